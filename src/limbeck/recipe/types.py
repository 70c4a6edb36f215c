"""The types of settings, each with a text on its values, and the routes that use a setting."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from limbeck.recipe import rules

EVERY = ("on-policy", "off-policy", "supervised")
# Fields of settings that not every route uses. A section's parts have the routes of the section.
on_policy_only: Callable[..., Any] = partial(Field, json_schema_extra={"routes": ["on-policy"]})
with_teacher: Callable[..., Any] = partial(Field, json_schema_extra={"routes": ["on-policy", "off-policy"]})
hosted_only: Callable[..., Any] = partial(Field, json_schema_extra={"routes": ["off-policy"]})

# Types of settings. The text in each describes its values; a choice of words needs none.
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
    "an http or https address without user, password or query",
]
PositiveShare = Annotated[float, Field(gt=0, le=1), "a number above 0 and at most 1"]
Share = Annotated[float, Field(ge=0, le=1), "a number from 0 to 1"]
HeldOutSetting = Annotated[
    Annotated[float, Field(gt=0, lt=1)] | Annotated[int, Field(ge=1)] | NonEmptyText,
    "a share between 0 and 1 (0.1), a count of 1 or more (200), or the path of a prompt file",
]
ModelText = Annotated[
    NonEmptyText,
    AfterValidator(rules.check_local_model),
    "a local model: a hub id, a folder, a .gguf file, run:NAME or run:NAME@STEP",
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
