"""How answers are graded, as settings of a recipe or of a row. The grading itself is in `evaluation.graders`."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Any, Literal, get_args

import regex
from pydantic import BeforeValidator, Field, model_serializer, model_validator

from limbeck.recipe import kinds
from limbeck.recipe.parts import Settings
from limbeck.recipe.rules import fault

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
    """How an answer is compared with the reference answer of its row; docs/how-to/evaluate.md says what each does.
    Choose: number, json or choice where the answer has that form; exact or normalised for short texts; function for a
    rule of your own.
    Why: it is your decision.
    """

    pattern: Annotated[str | None, "null, or a regular expression"] = None
    """For regex: what to look for in each answer, instead of the row's reference.
    Choose: By hand.
    Why: the row's.
    """

    tolerance: kinds.NotNegative = 0.0
    """For number: the largest difference that is still right.
    Choose: Half of the last digit.
    Why: exact.
    """

    relative_tolerance: kinds.Share = 0.0
    """For number: the same as a share of the reference.
    Choose: 0.01 for one per cent.
    Why: exact.
    """

    language: Annotated[Language | None, "null, en, pt, it, es or fr"] = None
    """For number: how 1.800 is read.
    Choose: The language of the answers, where it is one.
    Why: either reading may be right.
    """

    units: Annotated[
        tuple[str, ...], BeforeValidator(_split), Field(strict=False, min_length=1), "texts with commas between them"
    ] = ()
    """For number: other spellings of the reference's unit.
    Choose: As answers write it.
    Why: the reference's own.
    """

    partial: Annotated[bool, "true or false"] = False
    """For json: the share of fields that are equal, instead of all or nothing.
    Choose: true while answers are seldom right as a whole.
    Why: an answer that is wrong in a field is wrong.
    """

    function: Annotated[str | None, Field(pattern=r"^[\w.]+:\w+$"), "null, or module:function"] = None
    """For function: gets (answer, row) and gives a number from 0 to 1.
    Choose: A function in a file of the folder that you start in.
    Why: there is none.
    """

    @model_validator(mode="after")
    def _belongs(self) -> GraderSettings:
        unused = sorted(self.model_fields_set - {"kind"} - _SETTINGS_OF.get(self.kind, set()))
        if unused:
            why = f"The grader {self.kind} does not use {', '.join(unused)}."
            raise fault("recipe.grader", why, "Remove it, or choose another kind.")
        if self.kind == "function" and self.function is None:
            why = "The grader function needs the setting function."
            raise fault("recipe.grader", why, "Write grader: module:function.")
        if self.pattern is not None:
            try:
                compiled(self.pattern)
            except ValueError as error:
                raise fault("recipe.grader", f"The grader regex: {error}.", "Correct the pattern.") from None
        return self

    @model_serializer(mode="wrap")
    def _as_given(self, write: Callable[[GraderSettings], dict[str, Any]]) -> dict[str, Any]:
        given = {name: value for name, value in write(self).items() if name in self.model_fields_set}
        return {**given, "units": ", ".join(self.units)} if "units" in given else given


def _spelled_out(value: object) -> object:
    """A kind alone, or module:function, as the settings that it stands for."""
    if not isinstance(value, str):
        return value
    if ":" in value:
        return {"kind": "function", "function": value}
    if value not in get_args(GraderKind):
        why = f"No grader is called so; there are {', '.join(get_args(GraderKind))}."
        raise fault("recipe.grader", why, "Choose one, or module:function.")
    return {"kind": value}


GraderText = Annotated[
    GraderSettings | None,
    BeforeValidator(_spelled_out),
    "null, the name of a grader, module:function, or kind with its settings",
]


@lru_cache(maxsize=1024)
def compiled(pattern: str) -> regex.Pattern:
    """The pattern, ready to search. Raises ValueError when it cannot be read, or is longer than a pattern may be."""
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise ValueError(f"the pattern has {len(pattern)} characters, at most {MAX_PATTERN_LENGTH} are allowed")
    try:
        return regex.compile(pattern)
    except (regex.error, OverflowError) as error:
        raise ValueError(f"the pattern cannot be read: {error}") from None
