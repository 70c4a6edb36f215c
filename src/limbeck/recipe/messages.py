"""What is said about recipes: settings that break a rule, files that cannot be read, unknown keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import ParamSpec

from limbeck.errors import CATALOGUE, RecipeError, Text, error, fill, note

__all__ = ["BrokenRule"]

P = ParamSpec("P")

_LOCAL = "a hub id, a folder, a .gguf file or run:NAME"
_LIST = "`limbeck recipe explain` lists all settings."
_YAML = "A recipe is a YAML file in UTF-8 with lines of the form key: value."
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
    return RuleText(needed="In the grader regex, {reason}.", fix="Fix the pattern.")


@note("recipe.pattern-too-long")
def pattern_too_long(*, num: int, limit: int) -> str:
    return "the pattern has {num:character|characters}, more than {limit:,}"


@note("recipe.pattern-invalid")
def pattern_invalid(*, reason: str) -> str:
    return "the pattern is not a regular expression: {reason}"


@rule("recipe.key-missing.required")
def setting_missing(*, key: str, needs: str) -> RuleText:
    return RuleText(needed="It requires {needs}.", fix="Add {key}.")


@note("recipe.missing")
def missing(*, key: str) -> str:
    return "{key} is missing."


@rule("recipe.value.invalid")
def value_invalid(*, key: str, needs: str) -> RuleText:
    return RuleText(needed="It requires {needs}.", fix="Run `limbeck recipe explain {key}` for details.")


@rule("recipe.value.switch-word")
def value_is_switch_word() -> RuleText:
    return RuleText(needed="YAML 1.2 reads this value as text.", fix="Use true or false, or quote the text.")


@rule("recipe.not-offered.epochs")
def epochs_not_offered() -> RuleText:
    return RuleText(needed="The length of a run is given in steps, not in epochs.", fix="Remove it and set steps.")


@rule("recipe.not-offered.quantised")
def quantisation_not_offered() -> RuleText:
    return RuleText(
        needed="This version does not train on quantised weights.",
        fix="Remove it. To train adapters on full-precision weights, set lora: {{}}.",
    )


@rule("recipe.key-in-recipe")
def secret_in_recipe() -> RuleText:
    return RuleText(
        needed="Recipes are copied into run folders and logs. API keys are read from environment variables and sent "
        "to approved endpoints only.",
        fix="Remove it and revoke this key, since it may have been copied.",
    )


@rule("recipe.lora-modules")
def lora_modules() -> RuleText:
    return RuleText(
        needed="LoRA trains all linear layers of the body. Embedding and output head are never adapted: the objective "
        "uses the head's own weights, and where both share one matrix a merge would change it only for one of them.",
        fix=f"Remove it. {_LIST}",
    )


@rule("recipe.key-unknown.nearest")
def key_unknown(*, nearest: str) -> RuleText:
    return RuleText(needed="There is no such setting.", fix="Did you mean {nearest}?")


@rule("recipe.key-unknown.top-level")
def key_unknown_inside(*, nearest: str) -> RuleText:
    return RuleText(needed="There is no such setting in this section.", fix="Did you mean {nearest} at the top level?")


@rule("recipe.key-unknown.other")
def key_like_no_other() -> RuleText:
    return RuleText(needed="There is no setting of this name or of a similar one.", fix=f"Remove it. {_LIST}")


@rule("recipe.key-duplicate")
def key_duplicate(*, first: str) -> RuleText:
    return RuleText(
        needed="It is set twice (first: {first}), and programs differ in which of the two they use.",
        fix="Remove one of the two.",
    )


@error(RecipeError, "recipe.explained")
def setting_unknown(*, name: str, reason: str, fix: str) -> Text:
    return Text(given="The setting {name!r} was requested.", needed="{reason}", fix="{fix}")


@error(RecipeError, "recipe.problems")
def several_problems(*, file: str, num: int, listing: str) -> Text:
    return Text(
        given="{file} has {num:problem|problems}.\n{listing}",
        needed="Every key must be a setting with a valid value. Nothing is ignored or guessed.",
        fix=f"Fix them and run the command again. {_LIST}",
    )


@error(RecipeError, "recipe.not-found.nearest")
def file_not_found(*, path: Path, nearest: Path) -> Text:
    return Text(given="{path} does not exist.", needed="A recipe file is required.", fix="Did you mean {nearest}?")


@error(RecipeError, "recipe.not-found.other")
def no_file_found(*, path: Path) -> Text:
    return Text(
        given="{path} does not exist.", needed="A recipe file is required.", fix="Specify the path of a recipe."
    )


@error(RecipeError, "recipe.unreadable.line")
def line_not_yaml(*, file: str, line: int, reason: str) -> Text:
    return Text(given="{file} line {line} is not valid YAML: {reason}.", needed=_YAML, fix=f"Fix the file. {_LIST}")


@error(RecipeError, "recipe.unreadable.yaml")
def file_not_yaml(*, file: str, reason: str) -> Text:
    return Text(given="{file} is not valid YAML: {reason}.", needed=_YAML, fix=f"Fix the file. {_LIST}")


@error(RecipeError, "recipe.unreadable.file")
def file_unreadable(*, path: Path, reason: str) -> Text:
    return Text(given="{path} cannot be read: {reason}.", needed=_YAML, fix=f"Fix the file. {_LIST}")


@error(RecipeError, "recipe.unreadable.top")
def file_without_settings(*, file: str) -> Text:
    return Text(given="{file} has no settings at its top level.", needed=_YAML, fix=f"Fix the file. {_LIST}")


@error(RecipeError, "recipe.override-form")
def override_without_value(*, text: str) -> Text:
    return Text(
        given="--set {text!r} has no key or no value.",
        needed="An override is a setting with its value.",
        fix="Use --set key=value.",
    )
