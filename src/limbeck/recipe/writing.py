"""Recipes as text: shown with the origin of each value, or written with a user's comments kept."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.representer import RoundTripRepresenter
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from limbeck.errors import Stopped
from limbeck.recipe.reading import read_value
from limbeck.recipe.schema import Recipe

if TYPE_CHECKING:
    from limbeck.recipe.files import LoadedRecipe

__all__ = ["recipe_text", "show", "write_recipe"]

_MAX_ORIGIN_COLUMN = 48


class _Representer(RoundTripRepresenter):
    """Writes null as a word: an empty value looks like something forgotten."""


_Representer.add_representer(
    type(None), lambda representer, _: representer.represent_scalar("tag:yaml.org,2002:null", "null")
)


def show(loaded: LoadedRecipe, *, origin: bool) -> str:
    """The settings in force as a recipe, each with a comment on where its value came from if `origin`."""
    lines: list[tuple[str, str]] = []
    for key, value in loaded.recipe.settings().items():
        if isinstance(value, dict) and value:
            lines.append((f"{key}:", ""))
            lines += [(f"  {_scalar(k)}: {_scalar(v)}", loaded.origins[f"{key}.{k}"]) for k, v in value.items()]
        else:
            lines.append((f"{key}: {_scalar(value)}", loaded.origins[key]))
    if not origin:
        return "".join(f"{line}\n" for line, _ in lines)
    column = min(max(len(line) for line, _ in lines), _MAX_ORIGIN_COLUMN)
    return "".join(f"{line:<{column}}  # {place}\n" if place else f"{line}\n" for line, place in lines)


def recipe_text(recipe: Recipe, *, header: str = "", comments_of: str = "") -> str:
    """The settings in force as YAML text, under a comment `header`.

    With `comments_of`, the text of a recipe file, its comments, order and spelling stay wherever the value did.
    """
    yaml = YAML()
    yaml.Representer = _Representer
    yaml.width = 1_000_000
    document = yaml.load(comments_of) if comments_of else None
    document = document if isinstance(document, CommentedMap) else CommentedMap()
    _bring_up_to_date(document, recipe.settings())
    text = io.StringIO()
    yaml.dump(document, text)
    return "".join(f"# {line}".rstrip() + "\n" for line in header.splitlines()) + text.getvalue()


def write_recipe(path: Path, recipe: Recipe, header: str = "", *, comments_of: str = "") -> None:
    """Write `recipe_text` to `path`, at once: a reader sees the old file or the new one. Raises Stopped."""
    text = recipe_text(recipe, header=header, comments_of=comments_of)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with unfinished.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise Stopped(
            "recipe.write-failed",
            given=f"The recipe could not be written to {path}: {error.strerror}.",
            needed="A run keeps the recipe that it follows.",
            fix="Free space or give the permission, then start again.",
        ) from error


def _bring_up_to_date(document: CommentedMap, settings: Mapping[str, Any]) -> None:
    for key in [key for key in document if key not in settings]:
        del document[key]
    for key, value in settings.items():
        old = document.get(key)
        if isinstance(value, dict) and isinstance(old, CommentedMap):
            _bring_up_to_date(old, value)
        elif key not in document or type(old) is bool or isinstance(value, bool) or old != value:
            document[_escaped(key)] = _escaped(value)


def _escaped(value: object) -> object:
    """Text with characters that YAML reads as line ends, or cannot hold, in double quotes, where they are escapes."""
    if isinstance(value, dict):
        return {_escaped(key): _escaped(inner) for key, inner in value.items()}
    return DoubleQuotedScalarString(value) if isinstance(value, str) and not value.isprintable() else value


def _scalar(value: object) -> str:
    if isinstance(value, str):
        plain = (
            value != "" and value.isprintable() and value == value.strip() and value[0] not in "!&*-?|>@`%{}[]#,'\"=:"
        )
        plain = plain and ": " not in value and " #" not in value and value[-1] != ":"
        if plain and isinstance(read_value(value, "").plain, str):
            return value
        quoted = json.dumps(value, ensure_ascii=False)
        return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in quoted)
    return json.dumps(value)
