"""How answers are graded, as settings of a recipe or of a row. The grading itself is in `evaluation.graders`."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Any, Literal, get_args

import regex
from pydantic import BeforeValidator, Field, model_serializer, model_validator

from limbeck.recipe import messages, types
from limbeck.recipe.parts import Settings
from limbeck.recipe.types import setting_error

__all__ = ["GraderKind", "GraderSettings", "GraderText", "Language", "compiled"]

GraderKind = Literal[
    "exact", "normalised", "contains", "regex", "number", "json", "json-valid", "choice", "reasoning-gym", "function"
]
Language = Literal["en", "pt", "it", "es", "fr"]
MAX_PATTERN_LENGTH = 1000
_SETTINGS_OF = {
    "regex": {"pattern"},
    "number": {"tolerance", "relative_tolerance", "language", "units"},
    "json": {"partial"},
    "function": {"function"},
}


def _split(value: object) -> object:
    return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value


class GraderSettings(Settings):
    """How answers are graded. A setting that the kind does not use is refused."""

    kind: GraderKind
    """How an answer is compared with the reference answer of its row; the guide to evaluation describes each kind.
    Choose: number, json or choice if the answer has that form; exact or normalised for short texts; function for a
    rule of your own.
    Why: it depends on your task.
    """

    pattern: Annotated[str | None, "null, or a regular expression"] = None
    """For regex: the pattern to find in each answer, used in place of the row's reference answer.
    Choose: One pattern for all rows, or null if each row has its own.
    Why: the pattern is the row's reference answer.
    """

    tolerance: types.NonNegative = 0.0
    """For number: the largest difference from the reference that is still right.
    Choose: Half of the last digit that matters.
    Why: exact.
    """

    relative_tolerance: types.Share = 0.0
    """For number: the same, as a share of the reference.
    Choose: 0.01 for one percent.
    Why: exact.
    """

    language: Annotated[Language | None, "null, en, pt, it, es or fr"] = None
    """For number: the language whose number format decides how 1.800 is read.
    Choose: The language of the answers, if they are all in one.
    Why: an answer is right if either format gives the reference.
    """

    units: Annotated[
        tuple[str, ...], BeforeValidator(_split), Field(strict=False, min_length=1), "texts separated by commas"
    ] = ()
    """For number: other spellings of the reference's unit.
    Choose: The spellings that occur in answers.
    Why: only the unit of the reference.
    """

    partial: Annotated[bool, "true or false"] = False
    """For json: grade the share of fields that are equal instead of all or nothing.
    Choose: true while few answers are right as a whole.
    Why: an answer with a wrong field is wrong.
    """

    function: Annotated[str | None, Field(pattern=r"^[\w.]+:\w+$"), "null, or module:function"] = None
    """For function: a function that takes (answer, row) and returns a number from 0 to 1.
    Choose: A function in a file of the folder from which you run limbeck.
    Why: the other graders need none.
    """

    @model_validator(mode="after")
    def _fits_its_kind(self) -> GraderSettings:
        unused = sorted(self.model_fields_set - {"kind"} - _SETTINGS_OF.get(self.kind, set()))
        if unused:
            raise setting_error(messages.grader_setting_unused(kind=self.kind, unused=unused))
        if self.kind == "function" and self.function is None:
            raise setting_error(messages.grader_without_function())
        if self.pattern is not None:
            try:
                compiled(self.pattern)
            except ValueError as error:
                raise setting_error(messages.grader_pattern_invalid(reason=str(error))) from None
        return self

    @model_serializer(mode="wrap")
    def _as_given(self, write: Callable[[GraderSettings], dict[str, Any]]) -> dict[str, Any]:
        given = {name: value for name, value in write(self).items() if name in self.model_fields_set}
        return {**given, "units": ", ".join(self.units)} if "units" in given else given


def _expanded(value: object) -> object:
    """A kind alone, or module:function, as the settings that it stands for."""
    if not isinstance(value, str):
        return value
    if ":" in value:
        return {"kind": "function", "function": value}
    if value not in get_args(GraderKind):
        raise setting_error(messages.grader_unknown(known=list(get_args(GraderKind))))
    return {"kind": value}


GraderText = Annotated[
    GraderSettings | None,
    BeforeValidator(_expanded),
    "null, the name of a grader, module:function, or kind with its settings",
]


@lru_cache(maxsize=1024)
def compiled(pattern: str) -> regex.Pattern:
    """The pattern, ready to search. Raises ValueError when it is invalid, or longer than a pattern may be."""
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise ValueError(messages.pattern_too_long(num=len(pattern), limit=MAX_PATTERN_LENGTH))
    try:
        return regex.compile(pattern)
    except (regex.error, OverflowError) as error:
        raise ValueError(messages.pattern_invalid(reason=str(error))) from None
