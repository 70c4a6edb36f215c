"""Rules that a type cannot say: what a route cannot do, and settings that must fit other settings.

A rule raises at the setting that has to change, with a stable code, the reason and a fix, so that all faults of a
recipe can be told at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, LiteralString

from pydantic import ValidationInfo
from pydantic_core import PydanticCustomError

from limbeck.names import check_name

# Settings that not every objective uses.
OBJECTIVES_OF = {
    "beta": ("divergence",),
    "scale": ("divergence",),
    "forward_weight": ("kl_mix",),
    "temperature": ("divergence", "kl_mix", "soft_targets"),
}
# Settings of the answers that a teacher writes to train on.
TEACHER_ANSWER_SETTINGS = ("max_teacher_tokens", "teacher_temperature", "teacher_examples")
NO_CROSS_ENTROPY = "On-policy there is no cross-entropy term: it would reward the student for repeating its own words."
# Settings of a teacher behind an interface.
HOSTED = ("hosted", "teacher_options")


def fault(code: LiteralString, needed: str, fix: str) -> PydanticCustomError:
    """What a rule raises. `recipe.files` makes a problem of it, with the place and the value."""
    return PydanticCustomError(code, "{needed}", {"needed": needed, "fix": fix})


def whole(value: object) -> object:
    """1e3 is a whole number too, although YAML calls it a float."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def check_run_name(text: str | None) -> str | None:
    """A run and an endpoint have a folder of their own."""
    return None if text is None else check_name(text, what="folder")


def is_hosted(model: object) -> bool:
    """Whether a model's text names a chat API."""
    return str(model).strip().startswith("openai:")


def check_local_model(text: str | None, info: ValidationInfo) -> str | None:
    if text is None or not text.strip().startswith(("openai:", "vllm:")):
        return text
    fix = "Name a model whose weights this machine can hold: a hub id, a folder, a file.gguf or run:NAME."
    if info.field_name != "teacher":
        why = "The student is trained here."
    elif not is_hosted(text):
        why = "This version asks no scoring server."
        fix += " Or let its chat API write: route: off-policy, teacher: openai:MODEL, hosted: {base_url: URL/v1}."
    elif info.data.get("route") == "off-policy":
        return text
    else:
        why = "On-policy, the teacher scores a text that the student wrote. A chat API can write and cannot score a "
        why += "given text."
        fix += " Or write route: off-policy, for which a teacher only has to write."
    raise fault("recipe.model-remote", why, fix)


def check_teacher_present(value: object, info: ValidationInfo) -> object:
    if value is None and info.data.get("route", "supervised") != "supervised":
        raise fault("recipe.key-missing", "This route has a teacher.", "Name one.")
    return value


def check_objective(objective: str, info: ValidationInfo) -> str:
    if objective == "cross_entropy" and info.data.get("route") == "on-policy":
        raise fault(
            "recipe.cross-entropy",
            NO_CROSS_ENTROPY,
            "Remove it. To learn answers that people wrote beside the teacher's word, set own_answers.",
        )
    if objective != "cross_entropy" and is_hosted(info.data.get("teacher")):
        raise fault(
            "recipe.model-remote",
            "A chat API writes text and does not tell its distribution, which this objective compares.",
            "Write objective: cross_entropy, or name a teacher whose weights this machine can hold.",
        )
    return objective


def needed_for(name: str, routes: tuple[str, ...], values: Mapping[str, object]) -> str | None:
    """What else a recipe must say for a setting to have an effect; None if it has one, or if that cannot be told."""
    route, objective = values.get("route"), values.get("objective")
    if route is not None and route not in routes:
        return f"route: {' or '.join(routes)}"
    objectives = OBJECTIVES_OF.get(name)
    if objectives is not None and objective is not None and objective not in objectives:
        return f"objective: {' or '.join(objectives)}"
    practice_only = (route, values.get("warmup", ""), values.get("on_policy_share")) == ("on-policy", None, 1)
    if name in TEACHER_ANSWER_SETTINGS and practice_only:
        return "warmup, or on_policy_share below 1"
    if name in HOSTED and "teacher" in values and not is_hosted(values["teacher"]):
        return "teacher: openai:MODEL"
    if name == "teacher_dtype" and is_hosted(values.get("teacher")):
        return "a teacher whose weights are here"
    if name == "train_on" and route in ("on-policy", "off-policy") and values.get("own_answers", "") is None:
        return "own_answers, or route: supervised"
    return None


def check_on_policy_share(share: float, info: ValidationInfo) -> float:
    """A step has whole prompts: a share that rounds to all or none of them would be another one than it says."""
    num_prompts = info.data.get("prompts_per_step")
    if share < 1 and num_prompts is not None and (num := round(share * num_prompts)) in (0, num_prompts):
        why = f"Of {num_prompts} prompts a step, on_policy_share {share} is {'all' if num else 'none'}: nothing would "
        raise fault("recipe.setting-unused", why + "be mixed.", "Write more prompts_per_step or another share.")
    return share


def check_warmup_leaves_practice(warmup: Any, info: ValidationInfo) -> Any:
    steps = info.data.get("steps")
    if warmup is not None and steps is not None and warmup.steps >= steps:
        why = "The warm-up takes the first of the steps, and practice needs some too."
        fix = f"Write at most warmup: {{steps: {steps - 1}}}, or more steps."
        raise fault("recipe.warmup-too-long", why, fix)
    return warmup


def check_warmup_steps(num_steps: int, info: ValidationInfo) -> int:
    steps = info.data.get("steps")
    if steps is not None and num_steps >= steps and num_steps > 0:
        why = "The learning rate must reach its full value before the run ends."
        raise fault("recipe.warmup-too-long", why, f"Write at most warmup_steps: {steps - 1}, or more steps.")
    return num_steps


def check_answers_can_differ(temperature: float, info: ValidationInfo) -> float:
    off_policy, warmup = info.data.get("route") == "off-policy", info.data.get("warmup")
    num_answers = info.data.get("answers_per_prompt") if off_policy else warmup and warmup.answers_per_prompt
    if temperature == 0 and (num_answers or 1) > 1:
        why = "At temperature 0 a teacher writes the same answer to a prompt each time."
        fix = f"Write {'' if off_policy else 'warmup.'}answers_per_prompt: 1, or a temperature above 0."
        raise fault("recipe.answers-alike", why, fix)
    return temperature


def check_prices_given(cost: float | None, info: ValidationInfo) -> float | None:
    if cost is not None and None in (info.data.get("input_price", 0), info.data.get("output_price", 0)):
        why = "The most that a call can cost is reserved before it is sent, which takes both prices."
        fix = "Write input_price and output_price, or max_total_tokens instead of max_cost."
        raise fault("recipe.price-missing", why, fix)
    return cost


def check_precision_with_lora(precision: str, info: ValidationInfo) -> str:
    if precision != "float32" and info.data.get("lora") is not None:
        why = "Adapters are merged into their base at the end, and bf16-mixed would have rounded the base."
        raise fault("recipe.precision-lora", why, "Leave out precision, or lora.")
    return precision
