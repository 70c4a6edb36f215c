"""Limbeck: distil a large language model into a small one, on your own prompts.

    limbeck.divergence(student_logits, teacher_logits, beta)       the objectives, as plain functions
    limbeck.train("recipe.yaml")                                   what the command line does, as a function

Names are imported when they are used, so that `import limbeck` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from limbeck.errors import LimbeckError
    from limbeck.objectives.divergence import divergence, kl_mix, soft_targets
    from limbeck.objectives.fused import fused_divergence
    from limbeck.objectives.topk import topk_divergence
    from limbeck.verbs import chat, check, demo, resume, train

__version__ = "0.1.0"

__all__ = [
    "LimbeckError",
    "chat",
    "check",
    "demo",
    "divergence",
    "fused_divergence",
    "kl_mix",
    "mark",
    "resume",
    "soft_targets",
    "topk_divergence",
    "train",
]

_HOMES = {
    "LimbeckError": "limbeck.errors",
    "chat": "limbeck.verbs",
    "check": "limbeck.verbs",
    "demo": "limbeck.verbs",
    "divergence": "limbeck.objectives.divergence",
    "fused_divergence": "limbeck.objectives.fused",
    "kl_mix": "limbeck.objectives.divergence",
    "mark": "limbeck.verbs",
    "resume": "limbeck.verbs",
    "soft_targets": "limbeck.objectives.divergence",
    "topk_divergence": "limbeck.objectives.topk",
    "train": "limbeck.verbs",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'limbeck' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
