"""How answers are graded, as settings of a recipe or of a row. The grading itself is in `evaluation.graders`."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Any, Literal, LiteralString, cast, get_args

import regex
from pydantic import BeforeValidator, Field, model_serializer, model_validator
from pydantic_core import PydanticCustomError

from limbeck.recipe.parts import REQUIRED, Settings, setting

__all__ = ["GRADER", "KEEP", "GraderSettings", "GraderText", "Kind", "Language", "compiled"]

Kind = Literal[
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

    kind: Kind = setting(
        REQUIRED,
        "How an answer is compared with the reference answer of its row; docs/evaluation.md says what each does.",
        choose="number, json or choice where the answer has that form; exact or normalised for short texts; function "
        "for a rule of your own.",
        why="it is your decision.",
    )
    pattern: Annotated[str | None, Field(max_length=MAX_PATTERN_LENGTH), "null, or a regular expression"] = setting(
        None,
        "For regex: what to look for in each answer, instead of the row's reference.",
        choose="By hand.",
        why="the row's.",
    )
    tolerance: Annotated[float, Field(ge=0), "a number, 0 or more"] = setting(
        0.0, "For number: the largest difference that is still right.", choose="Half of the last digit.", why="exact."
    )
    relative_tolerance: Annotated[float, Field(ge=0, le=1), "a number from 0 to 1"] = setting(
        0.0, "For number: the same as a share of the reference.", choose="0.01 for one per cent.", why="exact."
    )
    language: Annotated[Language | None, "null, en, pt, it, es or fr"] = setting(
        None,
        "For number: how 1.800 is read.",
        choose="The language of the answers, where it is one.",
        why="either reading may be right.",
    )
    units: Annotated[
        tuple[str, ...], BeforeValidator(_split), Field(strict=False, min_length=1), "texts with commas between them"
    ] = setting(
        (),
        "For number: other spellings of the reference's unit.",
        choose="As answers write it.",
        why="the reference's own.",
    )
    partial: Annotated[bool, "true or false"] = setting(
        False,
        "For json: the share of fields that are equal, instead of all or nothing.",
        choose="true while answers are seldom right as a whole.",
        why="an answer that is wrong in a field is wrong.",
    )
    function: Annotated[str | None, Field(pattern=r"^[\w.]+:\w+$"), "null, or module:function"] = setting(
        None,
        "For function: gets (answer, row) and gives a number from 0 to 1.",
        choose="A function in a file of the folder that you start in.",
        why="there is none.",
    )

    @model_validator(mode="after")
    def _belongs(self) -> GraderSettings:
        unused = sorted(self.model_fields_set - {"kind"} - _SETTINGS_OF.get(self.kind, set()))
        if unused:
            raise _fault(
                f"The grader {self.kind} does not use {', '.join(unused)}.", "Remove it, or choose another kind."
            )
        if (self.kind == "function") != (self.function is not None):
            raise _fault("The grader function needs the setting function.", "Write grader: module:function.")
        if self.pattern is not None:
            try:
                compiled(self.pattern)
            except ValueError as error:
                raise _fault(f"The grader regex: {error}.", "Correct the pattern.") from None
        return self

    @model_serializer(mode="wrap")
    def _as_given(self, write: Callable[[GraderSettings], dict[str, Any]]) -> dict[str, Any]:
        given = {name: value for name, value in write(self).items() if name in self.model_fields_set}
        return {**given, "units": ", ".join(self.units)} if "units" in given else given


def _spelled_out(value: object) -> object:
    """A kind alone, or module:function, as the settings that it stands for."""
    if not isinstance(value, str):
        return value
    if ":" not in value and value not in get_args(Kind):
        raise _fault(
            f"No grader is called so; there are {', '.join(get_args(Kind))}.", "Choose one, or module:function."
        )
    return {"kind": "function", "function": value} if ":" in value else {"kind": value}


def _fault(needed: str, fix: str) -> PydanticCustomError:
    return PydanticCustomError("recipe.grader", cast("LiteralString", needed), {"fix": fix})


GraderText = Annotated[
    GraderSettings | None,
    BeforeValidator(_spelled_out),
    "null, the name of a grader, module:function, or kind with its settings",
]

# The two settings of a recipe that stand on a grader.
GRADER = setting(
    None,
    "How answers to held-out prompts are graded: by limbeck worth and eval, and during the run. A row's own column "
    "grader goes before it; null goes by the form of each row's reference answer.",
    choose="Say it once you know how an answer is judged; a verdict stands on it.",
    why="the form of a reference tells numbers, JSON and short texts apart.",
)
KEEP = setting(
    lambda settings: "last" if settings.get("grader") is None else "best",
    "Which step's student the run hands over. best: of the steps after which the held-out sample was graded, the "
    "one with the highest grade, and the later of two alike. last: the last step's.",
    choose="best with a grader that you trust and a held_out_sample of 100 or more; a small sample picks by luck.",
    why="best with a grader, for then the run knows what better means; else last.",
)


@lru_cache(maxsize=1024)
def compiled(pattern: str) -> regex.Pattern:
    """The pattern, ready to search. Raises ValueError when it cannot be read, or is longer than a pattern may be."""
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise ValueError(f"the pattern has {len(pattern)} characters, at most {MAX_PATTERN_LENGTH} are allowed")
    try:
        return regex.compile(pattern)
    except (regex.error, OverflowError) as error:
        raise ValueError(f"the pattern cannot be read: {error}") from None
