"""What a setting may hold: types whose text says which values they take, and which routes use a setting."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from limbeck.recipe import rules

EVERY = ("on-policy", "off-policy", "supervised")
# For settings that not every route uses. A part of a setting is used on the routes of the whole.
on_policy_only: Callable[..., Any] = partial(Field, json_schema_extra={"routes": ["on-policy"]})
with_teacher: Callable[..., Any] = partial(Field, json_schema_extra={"routes": ["on-policy", "off-policy"]})
hosted_only: Callable[..., Any] = partial(Field, json_schema_extra={"routes": ["off-policy"]})

# Types of settings. The text in each says which values it takes; a choice of words says so itself.
NonEmptyText = Annotated[str, Field(pattern=r"\S")]
PathText = Annotated[NonEmptyText, "the path of a file"]
Count = Annotated[int, BeforeValidator(rules.whole), Field(ge=1), "a whole number, 1 or more"]
CountOrZero = Annotated[int, BeforeValidator(rules.whole), Field(ge=0, lt=2**63), "a whole number, 0 or more"]
Positive = Annotated[float, Field(gt=0), "a number above 0"]
Cap = Annotated[Count | None, "null, or a whole number, 1 or more"]
NonNegative = Annotated[float, Field(ge=0), "a number, 0 or more"]
Price = Annotated[NonNegative | None, "null, or a number, 0 or more"]
Address = Annotated[
    str,
    Field(pattern=r"^https?://[^\s/?#@]+(/[^\s?#@]*)?$"),
    "an address with http or https, without user, password or query",
]
PositiveShare = Annotated[float, Field(gt=0, le=1), "a number above 0 and at most 1"]
Share = Annotated[float, Field(ge=0, le=1), "a number from 0 to 1"]
HeldOutSetting = Annotated[
    Annotated[float, Field(gt=0, lt=1)] | Annotated[int, Field(ge=1)] | NonEmptyText,
    "a share between 0 and 1 (0.1), a count from 1 up (200), or the path of a prompt file",
]
ModelText = Annotated[
    NonEmptyText,
    AfterValidator(rules.check_local_model),
    "a model whose weights this machine can hold: a hub id, a folder, a file.gguf, run:NAME or run:NAME@STEP",
]
TeacherText = Annotated[
    NonEmptyText | None,
    BeforeValidator(rules.check_teacher_present),
    AfterValidator(rules.check_local_model),
    Field(validate_default=True),
    "a model, as for student; off-policy also openai:MODEL",
]
TeacherTemperature = Annotated[NonNegative, AfterValidator(rules.check_answers_can_differ)]
RunName = Annotated[
    str | None, AfterValidator(rules.check_run_name), "null, or up to 100 of A-Z a-z 0-9 . _ - without . or - first"
]
Device = Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:[0-9]{1,3})?)$"), "auto, cpu, cuda or cuda:N"]
TemplateOptionsSetting = Annotated[
    dict[str, bool | int | float | str | None], "names with single values, such as true or 3"
]
