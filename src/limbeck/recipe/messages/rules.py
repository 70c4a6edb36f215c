"""What is said about settings that break a rule; and how such a message is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import ParamSpec

from limbeck.errors import CATALOGUE, fill, note

__all__ = ["BrokenRule", "RuleText", "rule"]

P = ParamSpec("P")

_LOCAL = "a hub id, a folder, a .gguf file or run:NAME"
_NO_CROSS_ENTROPY = (
    "On-policy training has no cross-entropy term: it would reward the student for repeating its own words."
)


@dataclass(frozen=True)
class RuleText:
    """The template of a broken rule: what is needed and why, and what to do next. What was given is the setting."""

    needed: str
    fix: str


@dataclass(frozen=True)
class BrokenRule:
    """A rule that a setting breaks. Its place and value are added where they are known."""

    code: str
    needed: str
    fix: str


def rule(code: str) -> Callable[[Callable[P, RuleText]], Callable[P, BrokenRule]]:
    """Makes a rule's function of its template, as `limbeck.errors.error` does for errors."""

    def decorate(template: Callable[P, RuleText]) -> Callable[P, BrokenRule]:
        assert code not in CATALOGUE, f"{code} is the code of two messages"
        CATALOGUE[code] = template

        @wraps(template)
        def make(*args: P.args, **values: P.kwargs) -> BrokenRule:
            text = template(*args, **values)
            return BrokenRule(".".join(code.split(".")[:2]), fill(text.needed, values), fill(text.fix, values))

        return make

    return decorate


@rule("recipe.model-remote.student")
def student_remote() -> RuleText:
    return RuleText(
        needed="The student's weights are trained on this machine, so the student must be a local model.",
        fix=f"Use {_LOCAL}.",
    )


@rule("recipe.model-remote.served")
def teacher_served() -> RuleText:
    return RuleText(
        needed="This version does not support scoring servers.",
        fix=f"Use a local model: {_LOCAL}. Or let the server generate answers, with route: off-policy, "
        "teacher: openai:MODEL and hosted: {{base_url: URL/v1}}.",
    )


@rule("recipe.model-remote.on-policy")
def teacher_cannot_score() -> RuleText:
    return RuleText(
        needed="On-policy, the teacher scores text that the student generated. A hosted API generates text but "
        "cannot score a given text.",
        fix=f"Use a local model: {_LOCAL}. Or set route: off-policy, where a teacher only generates answers.",
    )


@rule("recipe.model-remote.objective")
def teacher_has_no_distribution() -> RuleText:
    return RuleText(
        needed="This objective compares the teacher's distribution with the student's, and a hosted API returns only "
        "text.",
        fix="Set objective: cross_entropy, or use a local teacher.",
    )


@rule("recipe.key-missing.teacher")
def teacher_missing() -> RuleText:
    return RuleText(needed="This route needs a teacher.", fix="Set teacher: MODEL, or route: supervised.")


@rule("recipe.setting-unused.other")
def setting_unused(*, key: str, user: str) -> RuleText:
    return RuleText(
        needed="{key} is used only with {user}. Limbeck rejects settings that have no effect.",
        fix="Remove {key}, or use {user}.",
    )


@rule("recipe.setting-unused.share-of-all")
def share_of_all(*, share: float, num_prompts: int) -> RuleText:
    return RuleText(
        needed="With prompts_per_step: {num_prompts}, a share of {share} rounds to all prompts of a step, so no "
        "teacher answer would be used.",
        fix="Raise prompts_per_step, or choose another share.",
    )


@rule("recipe.setting-unused.share-of-none")
def share_of_none(*, share: float, num_prompts: int) -> RuleText:
    return RuleText(
        needed="With prompts_per_step: {num_prompts}, a share of {share} rounds to no prompt of a step, so there "
        "would be no practice answers.",
        fix="Raise prompts_per_step, or choose another share.",
    )


@rule("recipe.cross-entropy.objective")
def cross_entropy_on_policy() -> RuleText:
    return RuleText(
        needed=_NO_CROSS_ENTROPY, fix="Remove it. To train on human-written answers as well, set own_answers."
    )


@rule("recipe.cross-entropy.key")
def cross_entropy_weight() -> RuleText:
    return RuleText(
        needed=_NO_CROSS_ENTROPY, fix="Remove it. The weight of human-written answers is own_answers.weight."
    )


@rule("recipe.warmup-too-long.answers")
def warmup_too_long(*, steps: int) -> RuleText:
    return RuleText(
        needed="The warm-up takes the first of the {steps:step|steps} of the run, and practice must follow it.",
        fix="Set warmup.steps below steps, or raise steps.",
    )


@rule("recipe.warmup-too-long.rate")
def warmup_steps_too_many(*, steps: int) -> RuleText:
    return RuleText(
        needed="The learning rate must reach its full value before the run ends, after {steps:step|steps}.",
        fix="Set warmup_steps below steps, or raise steps.",
    )


@rule("recipe.answers-alike")
def answers_equal(*, setting: str, num: int) -> RuleText:
    return RuleText(
        needed="At temperature 0 the teacher generates the same answer to a prompt every time, and {setting} is {num}.",
        fix="Set {setting}: 1, or teacher_temperature above 0.",
    )


@rule("recipe.price-missing")
def prices_missing() -> RuleText:
    return RuleText(
        needed="A request is sent only if the most that it can cost is within the budget. This requires both prices.",
        fix="Set input_price and output_price, or use max_total_tokens instead of max_cost.",
    )


@rule("recipe.precision-lora")
def precision_with_lora() -> RuleText:
    return RuleText(
        needed="Adapters are merged into their base at the end, and bf16-mixed would train them on a rounded base.",
        fix="Remove precision, or remove lora.",
    )


@rule("recipe.grader.unused")
def grader_setting_unused(*, kind: str, unused: list[str]) -> RuleText:
    return RuleText(
        needed="The grader {kind} does not use {unused}.", fix="Remove {unused}, or choose another kind of grader."
    )


@rule("recipe.grader.function")
def grader_without_function() -> RuleText:
    return RuleText(needed="The grader function requires the function that grades.", fix="Set grader: module:function.")


@rule("recipe.grader.unknown")
def grader_unknown(*, known: list[str]) -> RuleText:
    return RuleText(
        needed="There is no such grader. The graders are {known}.", fix="Use one of them, or module:function."
    )


@rule("recipe.grader.pattern")
def grader_pattern_invalid(*, reason: str) -> RuleText:
    return RuleText(needed="The pattern of the grader regex is invalid: {reason}.", fix="Fix the pattern.")


@note("recipe.pattern-too-long")
def pattern_too_long(*, num: int, limit: int) -> str:
    return "the pattern has {num:character|characters}, more than {limit:,}"


@note("recipe.pattern-invalid")
def pattern_invalid(*, reason: str) -> str:
    return "the pattern is not a regular expression: {reason}"
