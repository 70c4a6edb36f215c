"""How the answers to a row are graded: by the row's own word, by a setting for all, or by the form of the reference."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal

import regex
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from limbeck.errors import DataError
from limbeck.evaluation.written_numbers import Language, unit_of, written_numbers

__all__ = ["GraderSettings", "choose_grader", "compiled"]

Kind = Literal[
    "exact", "normalised", "contains", "regex", "number", "json", "json-valid", "choice", "reasoning-gym", "function"
]
MAX_PATTERN_LENGTH = 1000
MAX_UNIT_LENGTH = 4
_SETTINGS_OF = {
    "regex": {"pattern"},
    "number": {"tolerance", "relative_tolerance", "language", "units"},
    "json": {"partial"},
    "function": {"function"},
}


class GraderSettings(BaseModel):
    """How answers are graded. A setting that the kind does not use is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Kind
    pattern: str | None = Field(None, max_length=MAX_PATTERN_LENGTH, description="instead of the row's reference")
    tolerance: float = Field(0.0, ge=0, allow_inf_nan=False, description="largest difference that is still right")
    relative_tolerance: float = Field(0.0, ge=0, le=1, description="the same as a share of the reference")
    language: Language | None = Field(None, description="how 1.800 is read; left out, either reading may be right")
    units: tuple[str, ...] = Field((), description="other spellings of the reference's unit")
    partial: bool = Field(False, description="the share of fields that are equal, instead of all or nothing")
    function: str | None = Field(None, pattern=r"^[\w.]+:\w+$", description="module:function; gets (answer, row)")

    @model_validator(mode="after")
    def _belongs(self) -> GraderSettings:
        unused = sorted(self.model_fields_set - {"kind"} - _SETTINGS_OF.get(self.kind, set()))
        if unused:
            raise ValueError(f"the grader {self.kind} does not use {', '.join(unused)}")
        if (self.kind == "function") != (self.function is not None):
            raise ValueError("the grader function needs the setting function")
        if self.pattern is not None:
            compiled(self.pattern)
        return self


def choose_grader(
    reference: str | None, columns: Mapping[str, object], setting: GraderSettings | None, *, source: str
) -> GraderSettings:
    """The grader of a row: its own column `grader` (a name, or an object of settings), the setting, or by form.

    By form: a JSON object or array is compared as json, a number with at most a short unit as number, and anything
    else normalised.

    Raises:
        DataError: the row names no known grader, or a function (data must not choose code to run).
    """
    own = columns.get("grader")
    if own is None:
        return setting or GraderSettings(kind=_kind_by_form(reference or ""))
    problem = "a row may not name a function to run"
    try:
        settings = GraderSettings.model_validate({"kind": own} if isinstance(own, str) else own)
        if settings.kind != "function":
            return settings
    except ValidationError as error:
        first = error.errors()[0]
        problem = ": ".join([*(str(place) for place in first["loc"]), first["msg"]])
    raise DataError(
        "data.grader-invalid",
        given=f"{source}, grader: {problem[:300]}.",
        needed="It is one of exact, normalised, contains, regex, number, json, json-valid, choice and reasoning-gym, "
        'or gives an object such as {"kind": "number", "tolerance": 0.01}.',
        fix="Correct the row. A function of your own is given as a setting, for all rows.",
    )


def _kind_by_form(reference: str) -> Kind:
    if reference.lstrip().startswith(("{", "[")):
        try:
            json.loads(reference)
        except (ValueError, RecursionError):
            return "normalised"
        return "json"
    found = written_numbers(reference)
    unit = unit_of(reference, found[0]) if len(found) == 1 else None
    return "normalised" if unit is None or len(unit) > MAX_UNIT_LENGTH else "number"


@lru_cache(maxsize=1024)
def compiled(pattern: str) -> regex.Pattern:
    """The pattern, ready to search. Raises ValueError when it cannot be read, or is longer than a pattern may be."""
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise ValueError(f"the pattern has {len(pattern)} characters, at most {MAX_PATTERN_LENGTH} are allowed")
    try:
        return regex.compile(pattern)
    except (regex.error, OverflowError) as error:
        raise ValueError(f"the pattern cannot be read: {error}") from None
