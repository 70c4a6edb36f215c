"""Limbeck: distil a large language model into a small one, on your own prompts.

    limbeck.divergence(student_logits, teacher_logits, beta)       the objectives, as plain functions
    limbeck.train("recipe.yaml")                                   what the command line does, as a function

Names are imported when they are used, so that `import limbeck` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from limbeck.api import chat, check, demo, mark, resume, train
    from limbeck.errors import LimbeckError
    from limbeck.objectives.divergence import divergence, kl_mix, soft_targets
    from limbeck.objectives.fused import fused_divergence
    from limbeck.objectives.topk import topk_divergence

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
    "errors": ("LimbeckError",),
    "objectives.divergence": ("divergence", "kl_mix", "soft_targets"),
    "objectives.fused": ("fused_divergence",),
    "objectives.topk": ("topk_divergence",),
    "api": ("chat", "check", "demo", "mark", "resume", "train"),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"limbeck.{home}"), name)
    raise AttributeError(f"module 'limbeck' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
