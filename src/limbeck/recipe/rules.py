"""What a setting is made of: its explanation, the kinds of values, and the rules that tie it to other settings.

A rule raises a RecipeError, which is a ValueError, at the setting that has to change, so that all faults of a recipe
can be told at once.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from limbeck.errors import RecipeError
from limbeck.names import check_name

__all__ = [
    "OBJECTIVE_OF",
    "AnswersPerPrompt",
    "Count",
    "CountOrZero",
    "HeldOut",
    "Model",
    "Name",
    "Positive",
    "PositiveShare",
    "Share",
    "Text",
    "WarmupSteps",
    "explanation",
    "offered_route",
    "setting",
    "used_by_objective",
]

# Settings that belong to one objective; every other setting serves them all.
OBJECTIVE_OF: dict[str, str] = {"beta": "divergence", "scale": "divergence", "forward_weight": "kl_mix"}


def setting(default: object, *, meaning: str, needs: str, choose: str, why: str, everyday: bool = False) -> Any:
    """A field with all that `limbeck recipe explain` tells of it; `needs` says in words which values are allowed."""
    extra = explanation(needs=needs, choose=choose, why=why, everyday=everyday)
    return Field(default, description=meaning, json_schema_extra=extra)


def explanation(*, needs: str, choose: str, why: str, everyday: bool) -> dict[str, Any]:
    """The part of an explanation that a JSON schema has no word for."""
    return {
        "needs": needs,
        "routes": ["on-policy"],
        "how_to_choose": choose,
        "default_and_why": why,
        "everyday": everyday,
    }


def _whole(value: object) -> object:
    """1e3 is a whole number too, although YAML calls it a float."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _share_count_or_file(value: object) -> object:
    share = isinstance(value, float) and 0 < value < 1
    count = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    file = isinstance(value, str) and value.strip() != ""
    if share or count or file:
        return value
    raise RecipeError(
        "recipe.held-out",
        given=f"held_out is {value!r}.",
        needed="A share lies between 0 and 1 (0.1), a count is a whole number from 1 up (200), text is a file. 1.0 and "
        "12.5 could mean either; and without held-out prompts nobody can say whether the run worked.",
        fix="Write a share such as 0.1, a count such as 200, or the path of a prompt file.",
    )


def offered_route(value: object) -> object:
    """Refuse the routes that have a name and no place in this version."""
    if value in ("off-policy", "supervised"):
        raise RecipeError(
            "recipe.route-not-offered",
            given=f"route is {value}.",
            needed="This version trains on-policy only: the student writes, the teacher scores every token of it.",
            fix="Write route: on-policy, or leave it out.",
        )
    return value


def _weights_at_hand(text: str, info: ValidationInfo) -> str:
    kind = re.match(r"(openai|vllm):", text)
    if kind is None:
        return text
    if info.field_name == "student":
        code, why = "recipe.student-remote", "The student is trained here, so its weights must be here."
    elif kind.group(1) == "openai":
        code = "recipe.teacher-cannot-score"
        why = (
            "On-policy, the teacher must give its probabilities for a text that the student wrote. A chat API gives "
            "them at most for text of its own: it can write, and cannot score a given text."
        )
    else:
        code, why = "recipe.teacher-served", "This version scores with a teacher on this machine only."
    raise RecipeError(
        code,
        given=f"{info.field_name} is {text}.",
        needed=why,
        fix=f"Name a {info.field_name} whose weights this machine can hold: a hub id, a folder, a file.gguf, run:NAME.",
    )


def used_by_objective(value: object, info: ValidationInfo) -> object:
    """Refuse a setting of one objective under another."""
    name = str(info.field_name)
    objective = info.data.get("objective")  # missing when it is itself at fault
    if objective is None or objective == OBJECTIVE_OF[name]:
        return value
    raise RecipeError(
        "recipe.setting-unused",
        given=f"{name} is set to {value}, and objective is {objective}.",
        needed=f"Only objective: {OBJECTIVE_OF[name]} uses {name}. A setting without effect is refused, not ignored.",
        fix=f"Remove {name}, or write objective: {OBJECTIVE_OF[name]}.",
    )


def _answers_differ(number: int, info: ValidationInfo) -> int:
    sampling = info.data.get("sampling")
    if number == 1 or sampling is None or (sampling.temperature > 0 and sampling.top_k != 1):
        return number
    raise RecipeError(
        "recipe.answers-alike",
        given=f"answers_per_prompt is {number}, and sampling always takes the likeliest token.",
        needed="Several answers to one prompt must differ to teach more than one of them does.",
        fix="Write answers_per_prompt: 1, or sampling.temperature: 1.0 and sampling.top_k: 0.",
    )


def _warmup_ends(number: int, info: ValidationInfo) -> int:
    steps = info.data.get("steps")
    if number == 0 or steps is None or number < steps:
        return number
    raise RecipeError(
        "recipe.warmup-too-long",
        given=f"warmup_steps is {number}, and steps is {steps}.",
        needed="The learning rate must reach its full value before the run ends.",
        fix=f"Write at most warmup_steps: {steps - 1}, or more steps.",
    )


Text = Annotated[str, Field(min_length=1, pattern=r"\S")]
Count = Annotated[int, BeforeValidator(_whole), Field(ge=1)]
CountOrZero = Annotated[int, BeforeValidator(_whole), Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
Share = Annotated[float, Field(ge=0, le=1)]
HeldOut = Annotated[float | int | str, BeforeValidator(_share_count_or_file)]
Model = Annotated[Text, AfterValidator(_weights_at_hand)]
AnswersPerPrompt = Annotated[Count, AfterValidator(_answers_differ)]
WarmupSteps = Annotated[CountOrZero, AfterValidator(_warmup_ends)]
Name = Annotated[Text, AfterValidator(check_name)]
