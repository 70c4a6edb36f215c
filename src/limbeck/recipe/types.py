"""The types of settings with a text on their values, the routes that use them, and rules that no type expresses.

A rule raises at the setting that has to change, so that all problems of a recipe are reported at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, LiteralString, cast

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo
from pydantic_core import PydanticCustomError

from limbeck.names import check_name
from limbeck.recipe import messages
from limbeck.recipe.messages import BrokenRule

# Settings that not every objective uses.
OBJECTIVES_OF = {
    "beta": ("divergence",),
    "scale": ("divergence",),
    "forward_weight": ("kl_mix",),
    "temperature": ("divergence", "kl_mix", "soft_targets"),
}
# Settings of the answers that a teacher generates to train on.
TEACHER_ANSWER_SETTINGS = ("max_teacher_tokens", "teacher_temperature", "teacher_examples")
# Settings of a teacher at a hosted API.
HOSTED = ("hosted", "teacher_options")


def setting_error(broken: BrokenRule) -> PydanticCustomError:
    """The error that a rule raises inside pydantic. `recipe.files` adds the place and the value."""
    code = cast("LiteralString", broken.code)
    return PydanticCustomError(code, "{needed}", {"needed": broken.needed, "fix": broken.fix})


def whole(value: object) -> object:
    """1e3 is a whole number too, although YAML calls it a float."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def check_run_name(text: str | None) -> str | None:
    """A run and an endpoint each have a folder of that name."""
    return None if text is None else check_name(text, what="folder")


def is_hosted(model: object) -> bool:
    """Whether a model reference is one of a hosted API."""
    return str(model).strip().startswith("openai:")


def check_local_model(text: str | None, info: ValidationInfo) -> str | None:
    if text is None or not text.strip().startswith(("openai:", "vllm:")):
        return text
    if info.field_name != "teacher":
        raise setting_error(messages.student_remote())
    if not is_hosted(text):
        raise setting_error(messages.teacher_served())
    if info.data.get("route") != "off-policy":
        raise setting_error(messages.teacher_cannot_score())
    return text


def check_teacher_present(value: object, info: ValidationInfo) -> object:
    if value is None and info.data.get("route", "supervised") != "supervised":
        raise setting_error(messages.teacher_missing())
    return value


def check_objective(objective: str, info: ValidationInfo) -> str:
    if objective == "cross_entropy" and info.data.get("route") == "on-policy":
        raise setting_error(messages.cross_entropy_on_policy())
    if objective != "cross_entropy" and is_hosted(info.data.get("teacher")):
        raise setting_error(messages.teacher_has_no_distribution())
    return objective


def needed_for(name: str, routes: tuple[str, ...], values: Mapping[str, object]) -> str | None:
    """What else a recipe needs for a setting to have an effect; None if it has one, or if that is not known yet."""
    route, objective = values.get("route"), values.get("objective")
    if route is not None and route not in routes:
        return f"route: {' or '.join(routes)}"
    objectives = OBJECTIVES_OF.get(name)
    if objectives is not None and objective is not None and objective not in objectives:
        return f"objective: {' or '.join(objectives)}"
    practice_only = (route, values.get("warmup", ""), values.get("on_policy_share")) == ("on-policy", None, 1)
    if name in TEACHER_ANSWER_SETTINGS and practice_only:
        return "warmup or on_policy_share below 1"
    if name in HOSTED and "teacher" in values and not is_hosted(values["teacher"]):
        return "teacher: openai:MODEL"
    if name == "teacher_dtype" and is_hosted(values.get("teacher")):
        return "a local teacher"
    if name == "train_on" and route in ("on-policy", "off-policy") and values.get("own_answers", "") is None:
        return "own_answers or route: supervised"
    return None


def check_on_policy_share(share: float, info: ValidationInfo) -> float:
    """A step has whole prompts: a share that rounds to all or none of them would not mix anything."""
    num_prompts = info.data.get("prompts_per_step")
    if share < 1 and num_prompts is not None and (num := round(share * num_prompts)) in (0, num_prompts):
        message = messages.share_of_all if num else messages.share_of_none
        raise setting_error(message(share=share, num_prompts=num_prompts))
    return share


def check_warmup_leaves_practice(warmup: Any, info: ValidationInfo) -> Any:
    steps = info.data.get("steps")
    if warmup is not None and steps is not None and warmup.steps >= steps:
        raise setting_error(messages.warmup_too_long(steps=steps))
    return warmup


def check_warmup_steps(num_steps: int, info: ValidationInfo) -> int:
    steps = info.data.get("steps")
    if steps is not None and num_steps >= steps and num_steps > 0:
        raise setting_error(messages.warmup_steps_too_many(steps=steps))
    return num_steps


def check_answers_can_differ(temperature: float, info: ValidationInfo) -> float:
    off_policy, warmup = info.data.get("route") == "off-policy", info.data.get("warmup")
    num_answers = info.data.get("answers_per_prompt") if off_policy else warmup and warmup.answers_per_prompt
    if temperature == 0 and num_answers is not None and num_answers > 1:
        setting = f"{'' if off_policy else 'warmup.'}answers_per_prompt"
        raise setting_error(messages.answers_equal(setting=setting, num=num_answers))
    return temperature


def check_prices_given(cost: float | None, info: ValidationInfo) -> float | None:
    if cost is not None and None in (info.data.get("input_price", 0), info.data.get("output_price", 0)):
        raise setting_error(messages.prices_missing())
    return cost


# The teacher's number format that goes with each of the student's.
DTYPE_OF = {"float32": "float32", "bf16-mixed": "bfloat16", "auto": "auto"}


def check_precision_with_lora(precision: str, info: ValidationInfo) -> str:
    if precision == "bf16-mixed" and info.data.get("lora") is not None:
        raise setting_error(messages.precision_with_lora())
    return precision


EVERY = ("on-policy", "off-policy", "supervised")
# Fields of settings that not every route uses. A section's parts have the routes of the section.
on_policy_only: Callable[..., Any] = partial(Field, json_schema_extra={"routes": ["on-policy"]})
with_teacher: Callable[..., Any] = partial(Field, json_schema_extra={"routes": ["on-policy", "off-policy"]})
hosted_only: Callable[..., Any] = partial(Field, json_schema_extra={"routes": ["off-policy"]})

# Types of settings. The text in each describes its values; a choice of words needs none.
NonEmptyText = Annotated[str, Field(pattern=r"\S")]
PathText = Annotated[NonEmptyText, "the path of a file"]
Count = Annotated[int, BeforeValidator(whole), Field(ge=1), "a whole number, 1 or more"]
CountOrZero = Annotated[int, BeforeValidator(whole), Field(ge=0, lt=2**63), "a whole number, 0 or more"]
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
    AfterValidator(check_local_model),
    "a local model: a hub id, a folder, a .gguf file, run:NAME or run:NAME@STEP",
]
TeacherText = Annotated[
    NonEmptyText | None,
    BeforeValidator(check_teacher_present),
    AfterValidator(check_local_model),
    Field(validate_default=True),
    "a model, as for student; off-policy also openai:MODEL",
]
TeacherTemperature = Annotated[NonNegative, AfterValidator(check_answers_can_differ)]
RunName = Annotated[
    str | None, AfterValidator(check_run_name), "null, or up to 100 of A-Z a-z 0-9 . _ - without . or - first"
]
Device = Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:[0-9]{1,3})?)$"), "auto, cpu, cuda or cuda:N"]
TemplateOptionsSetting = Annotated[
    dict[str, bool | int | float | str | None], "names with single values, such as true or 3"
]
