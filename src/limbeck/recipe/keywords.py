"""Recipes given as Python values instead of a file: keywords or a dict, checked in the same way."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from limbeck.compat import keeps_validation_plain
from limbeck.errors import RecipeError
from limbeck.recipe import messages, recipe
from limbeck.recipe.explain import field_of, needs_of, unknown_key
from limbeck.recipe.files import LoadedRecipe, Problem, RecipeProblems, placed
from limbeck.recipe.parts import Settings

__all__ = ["Recipe", "load_settings"]

_LONGEST_SHOWN = 60


class Recipe(recipe.Recipe):
    """The settings of one run: Recipe(student=..., teacher=..., prompts=..., steps=100).

    `limbeck recipe explain` describes each of them. Relative paths start at the folder that is current when the recipe
    is used.

    Raises:
        RecipeError: with every invalid setting.
    """

    @keeps_validation_plain
    def __init__(self, **settings: Any) -> None:
        try:
            super().__init__(**{name: _plain(value) for name, value in settings.items()})
        except ValidationError as error:
            raise _problems_with(error, settings, "limbeck.Recipe") from error


def load_settings(settings: Mapping[str, Any], place: str) -> LoadedRecipe:
    """Settings as a recipe. Relative paths, also of the workspace, start at the current folder.

    Args:
        settings: values as Python has them; those that have parts (sampling, lora) as dicts.
        place: where they were given, for messages, for example limbeck.distil.

    Raises:
        RecipeError: with all of their problems.
    """
    values = {"workspace": ".", **{name: _plain(value) for name, value in settings.items()}}
    values = {name: placed(name, value, Path()) for name, value in values.items()}
    own = values.get("own_answers")
    if isinstance(own, dict) and "file" in own:
        values["own_answers"] = {**own, "file": placed("own_answers.file", own["file"], Path())}
    try:
        checked = recipe.Recipe.model_validate(values)
    except ValidationError as error:
        raise _problems_with(error, values, place) from error
    return LoadedRecipe(checked, dict.fromkeys(settings, place), Path(place))


def _problems_with(error: ValidationError, settings: Mapping[str, Any], place: str) -> RecipeError:
    """All errors that pydantic found, in the words of a recipe."""
    found: dict[tuple[str, ...], Problem] = {}
    for each in error.errors(include_url=False):
        path = tuple(str(part) for part in each["loc"])
        if each["type"] == "default_factory_not_called":  # it depends on a setting that is reported
            continue
        if each["type"] == "extra_forbidden":
            broken = unknown_key(path)
            found.setdefault(path, Problem(broken.code, place, _as_given(path, settings), broken.needed, broken.fix))
            continue
        path = path[:2] if field_of(path[:2]) is not None else path[:1]
        found.setdefault(path, _problem(dict(each), path, settings, place))
    return RecipeProblems(place, list(found.values()))


def _problem(fault: Mapping[str, Any], path: tuple[str, ...], settings: Mapping[str, Any], place: str) -> Problem:
    key = ".".join(path)
    if fault["type"] == "missing":
        broken = messages.setting_missing(key=key, needs=needs_of(path))
        return Problem(broken.code, place, messages.missing(key=key), broken.needed, broken.fix)
    if fault["type"].startswith("recipe."):
        return Problem(fault["type"], place, _as_given(path, settings), fault["msg"], fault["ctx"]["fix"])
    broken = messages.value_invalid(key=key, needs=needs_of(path))
    return Problem(broken.code, place, _as_given(path, settings), broken.needed, broken.fix)


def _as_given(path: tuple[str, ...], settings: Mapping[str, Any]) -> str:
    """The setting as it was given: learning_rate=-1, and of a part the dotted name."""
    value: Any = settings
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    text = " ".join(repr(value).split())
    shown = text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."
    return f"{'.'.join(path)}={shown}"


def _plain(value: Any) -> Any:
    """A path as its text, parts that are pydantic objects as dicts of what was set, tuples and dicts likewise."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Settings):
        return {name: _plain(getattr(value, name)) for name in value.model_fields_set}
    return {name: _plain(each) for name, each in value.items()} if isinstance(value, dict) else value
