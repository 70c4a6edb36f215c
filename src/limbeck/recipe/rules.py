"""Rules that a type cannot say: what this version does not offer, and settings that must fit other settings.

A rule raises at the setting that has to change, with a stable code, the reason and a fix, so that all faults of a
recipe can be told at once.
"""

from __future__ import annotations

from typing import Any

from pydantic import ValidationInfo
from pydantic_core import PydanticCustomError

from limbeck.names import check_name

# Settings that belong to one objective; every other setting serves them all.
OBJECTIVE_OF = {"beta": "divergence", "scale": "divergence", "forward_weight": "kl_mix"}


def whole(value: object) -> object:
    """1e3 is a whole number too, although YAML calls it a float."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def offered_route(value: object) -> object:
    """Refuse the routes that have a name and no place in this version."""
    if value in ("off-policy", "supervised"):
        raise PydanticCustomError(
            "recipe.route-not-offered",
            "This version trains on-policy only: the student writes, the teacher scores every token of it.",
            {"fix": "Write route: on-policy, or leave it out."},
        )
    return value


def weights_at_hand(text: str) -> str:
    if not text.startswith(("openai:", "vllm:")):
        return text
    raise PydanticCustomError(
        "recipe.model-remote",
        "On-policy, the student is trained here and the teacher scores a text that the student wrote. A chat API can "
        "write and cannot score a given text, and this version asks no scoring server.",
        {"fix": "Name a model whose weights this machine can hold: a hub id, a folder, a file.gguf or run:NAME."},
    )


def used_by_objective(value: object, info: ValidationInfo) -> object:
    """Refuse a setting of one objective under another."""
    name = str(info.field_name)
    user = OBJECTIVE_OF[name]
    if info.data.get("objective", user) != user:
        raise PydanticCustomError(
            "recipe.setting-unused",
            "Only objective: {user} uses {name}. A setting without effect is refused, not ignored.",
            {"user": user, "name": name, "fix": f"Remove {name}, or write objective: {user}."},
        )
    return value


def warmup_ends(number: int, info: ValidationInfo) -> int:
    steps = info.data.get("steps")
    if steps is not None and number >= steps and number > 0:
        raise PydanticCustomError(
            "recipe.warmup-too-long",
            "The learning rate must reach its full value before the run ends.",
            {"fix": f"Write at most warmup_steps: {steps - 1}, or more steps."},
        )
    return number


def learning_rate(settings: dict[str, Any]) -> float:
    """The default of learning_rate: few weights take larger steps than all of them."""
    return 1e-5 if settings.get("lora") is None else 1e-4


def run_name(text: str | None) -> str | None:
    return None if text is None else check_name(text)
