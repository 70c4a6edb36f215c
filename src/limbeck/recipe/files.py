"""Recipes in and out of YAML: layers, where each value came from, and everything wrong with them told at once.

Precedence: default < file < environment (LIMBECK_BETA, LIMBECK_SAMPLING__TOP_P) < --set key=value. A relative path
starts at the folder of the recipe, wherever it was written, so that a recipe means the same from every folder; only
the workspace starts at the current folder, so that the runs of all recipes of a project lie together.
"""

from __future__ import annotations

import difflib
import functools
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from limbeck.errors import LimbeckError, RecipeError
from limbeck.recipe.explain import NESTED, Explanation, explain, field_of, is_known, json_schema, setting_names
from limbeck.recipe.hints import hint
from limbeck.recipe.reading import Entry, Problem, RecipeProblems, Value, read_entries, read_value, shorten
from limbeck.recipe.schema import Recipe
from limbeck.recipe.writing import recipe_text, show, write_recipe

__all__ = [
    "ENVIRONMENT_PREFIX",
    "Explanation",
    "LoadedRecipe",
    "Problem",
    "RecipeProblems",
    "build_recipe",
    "explain",
    "json_schema",
    "load_recipe",
    "recipe_text",
    "show",
    "write_recipe",
]

ENVIRONMENT_PREFIX = "LIMBECK_"
_DEFAULT = "default"
_MODEL_SCHEMES = ("run:", "openai:", "vllm:")
# Words that a template would take as true, and that other YAML readers take as a switch.
_SWITCH_WORDS = frozenset({"yes", "no", "on", "off", "y", "n"})


@dataclass(frozen=True)
class LoadedRecipe:
    """A recipe with the text of its file, and for each setting the place its value came from."""

    recipe: Recipe
    origins: dict[str, str]
    path: Path
    text: str


def load_recipe(path: Path | str, overrides: Sequence[str], environ: Mapping[str, str]) -> LoadedRecipe:
    """Read a recipe, then lay the variables of `environ` and the `key=value` of `overrides` over it.

    Raises RecipeError (RecipeProblems lists all) before anything else happens; models and prompts are not looked at.
    """
    path = Path(path)
    text = _read_text(path)
    entries, problems = read_entries(text, path.name)
    for layer, faults in (_from_environment(environ), _from_overrides(overrides)):
        entries = _laid_over(entries, layer)
        problems += faults
    recipe, origins = _build(entries, problems, path.name, path.parent)
    return LoadedRecipe(recipe, origins, path, text)


def build_recipe(values: Mapping[str, object], folder: Path, *, name: str = "the request") -> Recipe:
    """A recipe from plain values, checked and told of as a file would be; `name` is what messages call their source."""
    entries = list(_flattened(values, (), name))
    return _build(entries, [], name, folder)[0]


def _read_text(path: Path) -> str:
    fix = "Give the path of a recipe, a YAML file."
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        files = sorted(each.name for each in path.parent.glob("*.y*ml")) if path.parent.is_dir() else []
        near = difflib.get_close_matches(path.name, files, n=1, cutoff=0.3)
        fix = f"Did you mean {path.parent / near[0]}?" if near else fix
        raise RecipeError("recipe.not-found", given=f"{path} does not exist.", needed="A recipe.", fix=fix) from error
    except OSError as error:
        given = f"{path} cannot be read: {error.strerror}."
        raise RecipeError("recipe.unreadable", given=given, needed="A readable file.", fix=fix) from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        given = f"{path.name} line {line} is not UTF-8."
        raise RecipeError("recipe.unreadable", given=given, needed="YAML is UTF-8.", fix="Save it as UTF-8.") from error


def _from_environment(environ: Mapping[str, str]) -> tuple[list[Entry], list[Problem]]:
    entries: list[Entry] = []
    problems: list[Problem] = []
    for name in sorted(environ):
        if not name.startswith(ENVIRONMENT_PREFIX):
            continue
        place = f"environment {name}"
        path = tuple(name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__"))
        if name != name.upper():
            fix = f"Write {name.upper()}."
            problems.append(Problem("recipe.key-unknown", place, name, "Such variables are in capitals.", fix))
        else:
            entries.append(Entry(path, read_value(environ[name], place), place))
    return entries, problems


def _from_overrides(overrides: Sequence[str]) -> tuple[list[Entry], list[Problem]]:
    entries: list[Entry] = []
    problems: list[Problem] = []
    for text in overrides:
        key, equals, value = text.partition("=")
        path = tuple(key.strip().split("."))
        place = "--set"
        if not equals or not key.strip():
            needed = "An override names a setting and its value."
            problems.append(Problem("recipe.override-form", "--set", shorten(text), needed, "Write key=value."))
        elif path in {entry.path for entry in entries}:
            needed = "The same setting is given twice."
            problems.append(Problem("recipe.key-duplicate", place, shorten(text), needed, "Remove one of the two."))
        else:
            entries.append(Entry(path, read_value(value, place), place))
    return entries, problems


def _flattened(values: Mapping[str, object], path: tuple[str, ...], name: str) -> Iterable[Entry]:
    for key, value in values.items():
        inner = (*path, key)
        if isinstance(value, Mapping) and value:
            yield from _flattened(cast("Mapping[str, object]", value), inner, name)
        else:
            raw = value if isinstance(value, str) else json.dumps(value, default=str)
            yield Entry(inner, Value(value, raw, quoted=isinstance(value, str)), name)


def _laid_over(below: list[Entry], above: list[Entry]) -> list[Entry]:
    """Both layers, without what the upper one replaces: the same path, what lies under it, and a null above it.

    A key that is no setting replaces nothing, so that a typing error in each layer is told of.
    """

    def replaced(entry: Entry) -> bool:
        return is_known(entry.path) and any(
            _starts_with(entry.path, each.path) or _starts_with(each.path, entry.path) for each in above
        )

    return [entry for entry in below if not replaced(entry)] + above


def _starts_with(path: tuple[str, ...], start: tuple[str, ...]) -> bool:
    return path[: len(start)] == start


def _build(entries: list[Entry], problems: list[Problem], name: str, folder: Path) -> tuple[Recipe, dict[str, str]]:
    """The recipe and its origins from checked entries; raises RecipeProblems with all that is wrong."""
    problems = list(problems)
    known = [entry for entry in entries if is_known(entry.path)]
    problems += [_unknown(entry) for entry in entries if not is_known(entry.path)]
    values: dict[str, Any] = {"workspace": "."}
    for entry in known:
        value = _meant_value(entry)
        if entry.path[0] == "template_options" and not entry.value.quoted and str(value).lower() in _SWITCH_WORDS:
            problems.append(_problem(entry, "YAML 1.2 reads this as text.", "Write true or false, or quote the text."))
        outer = entry.path[0] if len(entry.path) == 2 else None
        if outer is None:
            values[entry.key] = value
        elif isinstance(values.setdefault(outer, {}), dict):
            values[outer][entry.path[1]] = value
        else:
            fix = f"Remove {outer} or {entry.key}."
            problems.append(_problem(entry, f"{outer} is given as a whole as well: {values[outer]}.", fix))
    recipe, faults = _validated(_with_absolute_paths(values, folder), known, name)
    problems += faults
    if recipe is None or problems:
        raise RecipeProblems(name, _in_order(problems, entries))
    origins = dict.fromkeys(_leaves(recipe.settings()), _DEFAULT)
    origins |= {entry.key: entry.place for entry in known if entry.key in origins}
    return recipe, origins


def _unknown(entry: Entry) -> Problem:
    told = hint(entry.path, setting_names())
    return Problem(told.code, entry.place, _subject(entry), told.why, told.fix)


def _problem(entry: Entry, needed: str, fix: str) -> Problem:
    return Problem("recipe.value", entry.place, _subject(entry), needed, fix)


def _subject(entry: Entry) -> str:
    return f"{shorten(entry.key)}: {shorten(entry.value.raw) or '(empty)'}"


def _meant_value(entry: Entry) -> object:
    """The value, spelled as it is given where only text is wanted: the name 007 is no 7, and a folder may be 2024."""
    value = entry.value
    scalar = isinstance(value.plain, int | float)
    return value.raw if scalar and _wants_only_text(entry.path) else value.plain


def _wants_only_text(path: tuple[str, ...]) -> bool:
    return len(path) == 1 and path[0] in _text_settings()


@functools.cache
def _text_settings() -> frozenset[str]:
    properties = Recipe.model_json_schema()["properties"].items()
    kinds = {name: {kind.get("type") for kind in each.get("anyOf", [each])} for name, each in properties}
    return frozenset(name for name, types in kinds.items() if types <= {"string", "null"})


def _with_absolute_paths(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    placed = dict(values)
    for key in ("prompts", "held_out", "workspace", "template", "student", "teacher"):
        text = values.get(key)
        base = Path.cwd() if key == "workspace" else folder.absolute()
        if isinstance(text, str) and text.strip() and _is_path(key, text, base):
            placed[key] = os.path.normpath(base / os.path.expanduser(text))  # noqa: PTH111 (an unknown ~user stays text)
    return placed


def _is_path(key: str, text: str, base: Path) -> bool:
    """A model is a path if it looks like one, or if a folder of that name lies beside the recipe; else a hub id."""
    if key == "template":
        return text not in ("student", "teacher")
    if key not in ("student", "teacher"):
        return True
    if text.startswith(_MODEL_SCHEMES):
        return False
    return text.startswith((".", "/", "~")) or text.endswith(".gguf") or ("\0" not in text and (base / text).is_dir())


def _validated(values: dict[str, Any], known: list[Entry], name: str) -> tuple[Recipe | None, list[Problem]]:
    try:
        return Recipe.model_validate(values), []
    except ValidationError as error:
        by_path = {entry.path: entry for entry in known}
        problems: dict[tuple[str, ...], Problem] = {}
        for fault in error.errors(include_url=False):
            if fault["type"] == "default_factory_not_called":
                continue  # waits for another setting that is told of itself
            path = tuple(str(part) for part in fault["loc"])[:2]
            path = path if is_known(path) else path[:1]
            entry = by_path.get(path)
            if entry is None:  # the whole of a nested setting, or a setting that is not there
                inside = next((each for each in known if each.path[0] == path[0]), None)
                entry = Entry(path, Value(None, "nothing"), inside.place if inside is not None else name)
            problems.setdefault(path, _told(entry, fault["type"], fault.get("ctx", {}).get("error")))
        return None, list(problems.values())


def _told(entry: Entry, kind: str, cause: object) -> Problem:
    subject = _subject(entry)
    if isinstance(cause, LimbeckError):
        return Problem(cause.code, entry.place, subject, cause.needed, cause.fix)
    extra = cast("dict[str, Any]", field_of(entry.path).json_schema_extra)
    needed = f"It needs {extra['needs']}."
    if kind == "missing":
        return Problem("recipe.key-missing", entry.place, f"{entry.key} is missing.", needed, f"Add {entry.key}.")
    fix = f"`limbeck recipe explain {entry.key if entry.path[0] in NESTED else entry.path[0]}` says more."
    if entry.value.quoted and not isinstance(read_value(entry.value.raw, entry.place).plain, str):
        fix = "Remove the quotes, which make it text."
    elif "," in entry.value.raw and not isinstance(read_value(entry.value.raw.replace(",", "."), "").plain, str):
        fix = "Write a point, not a comma."
    return Problem("recipe.value", entry.place, subject, needed, fix)


def _in_order(problems: list[Problem], entries: list[Entry]) -> list[Problem]:
    """The problems as a reader meets them: the lines of the file, then the layers over it, then what is missing."""
    places = [entry.place for entry in entries]

    def position(problem: Problem) -> tuple[int, int]:
        line = re.search(r" lines? (\d+)", problem.place)
        if line is not None:
            return 0, int(line.group(1))
        return 1, places.index(problem.place) if problem.place in places else len(places)

    return sorted(problems, key=position)


def _leaves(values: Mapping[str, object], prefix: str = "") -> Iterable[str]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _leaves(cast("dict[str, object]", value), f"{prefix}{key}.")
        else:
            yield prefix + key
