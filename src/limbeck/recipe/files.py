"""Recipes in and out of YAML: layers, where each value came from, and all of their problems reported at once.

Precedence: default < file < environment (LIMBECK_BETA, LIMBECK_SAMPLING__TOP_P) < --set key=value. A relative path
starts at the folder of the recipe, in whichever layer it is, so that a recipe means the same from every folder; only
the workspace starts at the current folder, so that the runs of all recipes of a project are in one place.

Values follow YAML 1.2: 1e-4 is a number, no and on are text. A setting that takes text keeps 007 as it is spelled.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode

from limbeck.compat import construct_scalar, resolve_scalar
from limbeck.errors import RecipeError
from limbeck.recipe import messages
from limbeck.recipe.explain import field_of, needs_of, unknown_key
from limbeck.recipe.messages import BrokenRule
from limbeck.recipe.recipe import Recipe
from limbeck.recipe.types import NonEmptyText

__all__ = [
    "LoadedRecipe",
    "Problem",
    "RecipeProblems",
    "effective_recipe_text",
    "load_recipe",
    "placed",
    "plain_value",
    "recipe_text",
]

_PREFIX = "LIMBECK_"
_MAX_SHOWN_LENGTH = 60
_PATHS = (
    *("prompts", "held_out", "workspace", "template", "student", "teacher", "teacher_examples"),
    "own_answers.file",
)
_TEXT_TAGS = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:timestamp")
# Words that a template would take as true, and that other YAML readers take as a boolean.
_SWITCH_WORDS = ("yes", "no", "on", "off", "y", "n")
# Secrets are not allowed in recipes, and no message repeats their values.
_SECRET = re.compile(r"(^|[._])(api_?key|key|secret|password|token)$", re.IGNORECASE)
_NEEDS_NO_QUOTES = re.compile(r"[A-Za-z/][A-Za-z0-9_./@+-]*")


@dataclass(frozen=True)
class LoadedRecipe:
    """A recipe, and for each setting that is not at its default the place its value came from."""

    recipe: Recipe
    origins: dict[str, str]
    path: Path


@dataclass(frozen=True)
class Problem:
    """One problem of a recipe. `subject` is the key with its value, or the wrong piece of text."""

    code: str
    place: str
    subject: str
    needed: str
    fix: str


class RecipeProblems(RecipeError):
    """All problems of a recipe at once."""

    def __init__(self, name: str, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        first = problems[0]
        if len(problems) == 1:
            super().__init__(first.code, given=f"{first.place}: {first.subject}", needed=first.needed, fix=first.fix)
            return
        lines = (f"  {each.place}: {each.subject}\n    {each.needed} {each.fix}" for each in problems)
        whole = messages.several_problems(file=name, num=len(problems), listing="\n".join(lines))
        super().__init__(whole.code, given=whole.given, needed=whole.needed, fix=whole.fix, parameters=whole.parameters)


@dataclass(frozen=True)
class _Entry:
    """One setting as it was given; `place` is where, for example "support.yaml line 7"."""

    path: tuple[str, ...]
    node: Node
    place: str

    @property
    def key(self) -> str:
        return ".".join(self.path)

    @property
    def is_quoted(self) -> bool:
        return isinstance(self.node, ScalarNode) and self.node.style in ("'", '"')

    def value(self) -> object:
        """The value: as it is spelled where only text is allowed, so that the name 007 does not become 7."""
        value = _value(self.node)
        field = field_of(self.path)
        wants_text = field is not None and field.annotation in (str, str | None, NonEmptyText | None)
        return self.node.value if wants_text and isinstance(value, int | float) else value

    def problem(self, broken: BrokenRule) -> Problem:
        spelled = self.node.value if isinstance(self.node, ScalarNode) else "(no single value)"
        spelled = repr(spelled) if self.is_quoted else spelled or "(empty)"
        spelled = "***" if _SECRET.search(self.key) else re.sub(r"//\S*@|\?\S*=\S*", "***", spelled)
        subject = f"{_shorten(self.key)}: {_shorten(spelled)}"
        return Problem(broken.code, self.place, subject, broken.needed, broken.fix)


def _shorten(text: str) -> str:
    """A value as a message shows it: on one line and not too long."""
    line = " ".join(text.split())
    return line if len(line) <= _MAX_SHOWN_LENGTH else line[: _MAX_SHOWN_LENGTH - 3] + "..."


_Entries = dict[tuple[str, ...], _Entry]


def load_recipe(path: Path | str, overrides: Sequence[str], environ: Mapping[str, str]) -> LoadedRecipe:
    """Read a recipe and override it with the variables of `environ`, then with the `key=value` of `overrides`.

    Raises RecipeError (RecipeProblems lists all) before anything else happens; models and prompts are not looked at.
    """
    path = Path(path)
    entries: _Entries = {}
    problems: list[Problem] = []
    for layer in (_from_file(path), _from_environment(environ), _from_overrides(overrides)):
        above = _checked(layer, problems)
        # A whole setting replaces its parts below, and a part replaces a null below.
        replaced = [old for old in entries for new in above if old[0] == new[0] and len(old) != len(new)]
        entries = {old: entry for old, entry in entries.items() if old not in replaced} | above
    recipe = _validated(entries, problems, path)
    if recipe is None or problems:
        raise RecipeProblems(path.name, problems)
    return LoadedRecipe(recipe, {entry.key: entry.place for entry in entries.values()}, path)


def _checked(layer: Iterator[_Entry], problems: list[Problem]) -> _Entries:
    """The entries of one layer that are settings, each once."""
    known: _Entries = {}
    for entry in layer:
        first, whole = known.get(entry.path), known.get(entry.path[:1])
        if first is None and whole is not None and not isinstance(whole.node, MappingNode):
            first = whole  # practice_growth: null, and a part of it
        if first is not None:
            problems.append(entry.problem(messages.key_duplicate(first=first.place)))
        elif field_of(entry.path) is not None:
            known[entry.path] = entry
        elif not isinstance(entry.node, MappingNode) or not entry.node.value:  # else its keys are reported
            problems.append(entry.problem(unknown_key(entry.path)))
    return known


def _from_file(path: Path) -> Iterator[_Entry]:
    try:
        root = YAML(typ="safe", pure=True).compose(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError as error:
        near = difflib.get_close_matches(path.name, [each.name for each in path.parent.glob("*.y*ml")], n=1, cutoff=0.3)
        if near:
            raise messages.file_not_found(path=path, nearest=path.parent / near[0]) from error
        raise messages.no_file_found(path=path) from error
    except MarkedYAMLError as error:
        reason = _shorten(str(error.problem))
        if error.problem_mark is None:
            raise messages.file_not_yaml(file=path.name, reason=reason) from error
        raise messages.line_not_yaml(file=path.name, line=error.problem_mark.line + 1, reason=reason) from error
    except (OSError, ValueError, YAMLError, RecursionError) as error:
        raise messages.file_unreadable(path=path, reason=_shorten(str(error))) from error
    if isinstance(root, MappingNode):
        yield from _from_mapping(root, (), path.name)
    elif root is not None:
        raise messages.file_without_settings(file=path.name)


def _from_mapping(node: MappingNode, outer: tuple[str, ...], name: str) -> Iterator[_Entry]:
    for key_node, inner in node.value:
        key = key_node.value if isinstance(key_node, ScalarNode) else "[...]"
        yield _Entry((*outer, key), inner, f"{name} line {key_node.start_mark.line + 1}")
        if isinstance(inner, MappingNode) and not outer:
            yield from _from_mapping(inner, (key,), name)


def _from_environment(environ: Mapping[str, str]) -> Iterator[_Entry]:
    for name in sorted(environ):
        if name.startswith(_PREFIX):
            path = tuple(name.removeprefix(_PREFIX).lower().split("__"))
            yield _Entry(path, _plain_node(environ[name]), f"environment {name}")


def _from_overrides(overrides: Sequence[str]) -> Iterator[_Entry]:
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise messages.override_without_value(text=_shorten(text))
        yield _Entry(tuple(key.strip().split(".")), _plain_node(value), "--set")


def _plain_node(text: str) -> Node:
    """A value from outside a file, read as in a file; in quotes it is text."""
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in ("'", '"'):
        return ScalarNode(_TEXT_TAGS[0], text[1:-1], style=text[0])
    return resolve_scalar(text)


def plain_value(text: str) -> object:
    """A value from outside a file as a Python value: a number, true, null or a text."""
    return _value(_plain_node(text))


def _value(node: Node) -> object:
    if not isinstance(node, ScalarNode):
        return {} if isinstance(node, MappingNode) else []
    if node.tag in _TEXT_TAGS:
        return node.value
    try:
        return construct_scalar(node)
    except (YAMLError, ValueError, LookupError):
        return []  # a number of thousands of digits, or an unknown tag: no setting takes a list


def _validated(entries: _Entries, problems: list[Problem], path: Path) -> Recipe | None:
    """The recipe, None if it is invalid; its problems are added to `problems`."""
    values: dict[str, Any] = {"workspace": str(Path.cwd())}
    for entry in entries.values():
        name, *inner = entry.path
        value = placed(entry.key, entry.value(), path.parent)
        values[name] = {**(values.get(name) or {}), inner[0]: value} if inner else value
        if name.endswith("_options") and not entry.is_quoted and str(value).lower() in _SWITCH_WORDS:
            problems.append(entry.problem(messages.value_is_switch_word()))
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        found: dict[tuple[str, ...], Problem] = {}
        for each in error.errors(include_url=False):
            place = tuple(str(part) for part in each["loc"])
            place = place[:2] if field_of(place[:2]) is not None else place[:1]
            # A default that depends on an invalid setting is not a problem of its own.
            if each["type"] != "default_factory_not_called":
                found.setdefault(place, _problem_of(dict(each), place, entries.get(place), path.name))
        problems += found.values()
        return None


def _problem_of(found: Mapping[str, Any], path: tuple[str, ...], entry: _Entry | None, name: str) -> Problem:
    """An error that pydantic found, in the words of a recipe."""
    key, needs = ".".join(path), needs_of(path)
    if entry is None:
        broken = messages.setting_missing(key=key, needs=needs)
        return Problem(broken.code, name, messages.missing(key=key), broken.needed, broken.fix)
    if found["type"].startswith("recipe."):
        return entry.problem(BrokenRule(found["type"], found["msg"], found["ctx"]["fix"]))
    return entry.problem(messages.value_invalid(key=entry.key, needs=needs))


def placed(name: str, value: object, folder: Path) -> object:
    """A path made absolute. A model is a path if it looks like one or is a folder next to the recipe; else a hub id."""
    if name not in _PATHS or not isinstance(value, str) or not value.strip():
        return value
    base = Path.cwd() if name == "workspace" else folder.absolute()
    if name == "template" and value in ("student", "teacher", "none"):
        return value
    if name in ("student", "teacher"):
        looks_like_path = value.startswith((".", "/", "~")) or value.endswith(".gguf")
        if value == "previous" or (not looks_like_path and not (base / value).is_dir()):
            return value
    return os.path.normpath(base / os.path.expanduser(value))  # noqa: PTH111 (an unknown ~user stays text)


def effective_recipe_text(loaded: LoadedRecipe, *, origin: bool) -> str:
    """The effective settings as a recipe, each with a comment on where its value came from if `origin`."""
    lines = []
    for key, line in _lines(loaded.recipe):
        place = loaded.origins.get(key, "default")
        lines.append(f"{line:<40}  # {place}\n" if origin and key else f"{line}\n")
    return "".join(lines)


def recipe_text(recipe: Recipe, header: str = "") -> str:
    """The effective settings as a recipe under a comment."""
    lines = [*(f"# {line}" for line in header.splitlines()), *(line for _, line in _lines(recipe))]
    return "".join(f"{line}\n" for line in lines)


def _lines(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Dotted name and YAML line of each setting; the line above nested ones has no name."""
    for key, value in recipe.settings().items():
        if isinstance(value, dict) and value:
            yield "", f"{key}:"
            for name, inner in value.items():
                yield f"{key}.{name}", f"  {_scalar(name)}: {_scalar(inner)}"
        else:
            yield key, f"{key}: {_scalar(value)}"


def _scalar(value: object) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    is_word = _NEEDS_NO_QUOTES.fullmatch(value) is not None and value.lower() not in _SWITCH_WORDS
    if is_word and plain_value(value) == value:
        return value
    quoted = json.dumps(value, ensure_ascii=False)
    return "".join(each if each.isprintable() else f"\\U{ord(each):08x}" for each in quoted)
