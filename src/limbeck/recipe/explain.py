"""What a setting means, for a person and for an editor. All of it stands at the field itself."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from limbeck.errors import RecipeError
from limbeck.recipe.hints import hint
from limbeck.recipe.rules import OBJECTIVE_OF
from limbeck.recipe.schema import PracticeGrowth, Recipe, Sampling

__all__ = ["NESTED", "Explanation", "explain", "field_of", "is_known", "json_schema", "setting_names"]

NESTED: Mapping[str, type[Sampling] | type[PracticeGrowth]] = {"sampling": Sampling, "practice_growth": PracticeGrowth}
# Names below it are those of the user's chat template.
_FREE = "template_options"


@dataclass(frozen=True)
class Explanation:
    """One setting: its meaning, who uses it, which values it takes, how to choose, its default and why that."""

    name: str
    meaning: str
    routes: tuple[str, ...]
    objective: str | None
    needs: str
    how_to_choose: str
    default_and_why: str
    everyday: bool

    def parts(self) -> tuple[tuple[str, str], ...]:
        """Label and text, in the order in which to read them."""
        used = f"route {' or '.join(self.routes)}"
        if self.objective is not None:
            used += f", objective {self.objective} only"
        return (
            ("meaning", self.meaning),
            ("used by", used),
            ("values", self.needs[0].upper() + self.needs[1:] + "."),
            ("choose", self.how_to_choose),
            ("default", self.default_and_why),
        )

    def __str__(self) -> str:
        return "\n".join([self.name, *(f"  {label:<8} {text}" for label, text in self.parts())])


@functools.cache
def setting_names() -> tuple[str, ...]:
    """The dotted names of all settings, in the order of a recipe."""
    names: list[str] = []
    for name in Recipe.model_fields:
        names.append(name)
        if name in NESTED:
            names += [f"{name}.{inner}" for inner in NESTED[name].model_fields]
    return tuple(names)


def is_known(path: tuple[str, ...]) -> bool:
    """Whether a setting stands at `path`."""
    return ".".join(path) in setting_names() or (len(path) == 2 and path[0] == _FREE)


def field_of(path: tuple[str, ...]) -> FieldInfo:
    """The field at the path of a known setting; for an option of the chat template, the field that holds it."""
    if len(path) == 2 and path[0] in NESTED:
        return NESTED[path[0]].model_fields[path[1]]
    return Recipe.model_fields[path[0]]


def explain(name: str) -> Explanation:
    """What the setting with this dotted name means. Raises RecipeError with the nearest names if there is none."""
    path = tuple(name.split("."))
    if not is_known(path):
        told = hint(path, setting_names())
        raise RecipeError(told.code, given=f"{name[:100]!r} is asked for.", needed=told.why, fix=told.fix)
    field = field_of(path)
    extra = cast("dict[str, Any]", field.json_schema_extra)
    return Explanation(
        name=name,
        meaning=str(field.description),
        routes=tuple(extra["routes"]),
        objective=OBJECTIVE_OF.get(path[0]),
        needs=extra["needs"],
        how_to_choose=extra["how_to_choose"],
        default_and_why=extra["default_and_why"],
        everyday=extra["everyday"],
    )


def json_schema() -> dict[str, Any]:
    """The JSON schema of a recipe, for editors; each property carries its explanation."""
    schema = Recipe.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "Limbeck recipe"}


def default_of(path: tuple[str, ...]) -> object:
    """The default of a known setting; PydanticUndefined where there is none."""
    field = field_of(path)
    return PydanticUndefined if field.is_required() else field.default
