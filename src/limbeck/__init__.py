"""Limbeck: distil a large language model into a small one, on your own prompts.

    limbeck.distil(student, teacher, prompts)                      two models of transformers, in memory
    limbeck.train("recipe.yaml")                                   what the command line does, as functions
    limbeck.steps(student, teacher, prompts)                       the steps, for a loop of your own
    limbeck.divergence(student_logits, teacher_logits, beta)       the objectives, as plain functions

Names are imported when they are used, so that `import limbeck` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from limbeck.api import (
        answers,
        chat,
        check,
        demo,
        distil,
        doctor,
        evaluate,
        mark,
        plan,
        resume,
        steps,
        train,
        tune_process,
        worth,
    )
    from limbeck.errors import LimbeckError
    from limbeck.objectives.divergence import divergence, kl_mix, soft_targets
    from limbeck.objectives.fused import fused_divergence
    from limbeck.objectives.head import Head
    from limbeck.objectives.objective import Objective
    from limbeck.objectives.topk import topk_divergence
    from limbeck.recipe.evaluation import EvaluationOptions
    from limbeck.recipe.keywords import Recipe
    from limbeck.results import Evaluation, Run
    from limbeck.run_queries import export, lineage, list_runs, report, show

__version__ = "0.1.0"

__all__ = [
    "Evaluation",
    "EvaluationOptions",
    "Head",
    "LimbeckError",
    "Objective",
    "Recipe",
    "Run",
    "answers",
    "chat",
    "check",
    "demo",
    "distil",
    "divergence",
    "doctor",
    "evaluate",
    "export",
    "fused_divergence",
    "kl_mix",
    "lineage",
    "list_runs",
    "mark",
    "plan",
    "report",
    "resume",
    "show",
    "soft_targets",
    "steps",
    "topk_divergence",
    "train",
    "tune_process",
    "worth",
]

_HOMES = {
    "errors": ("LimbeckError",),
    "run_queries": ("export", "lineage", "list_runs", "report", "show"),
    "objectives.divergence": ("divergence", "kl_mix", "soft_targets"),
    "objectives.fused": ("fused_divergence",),
    "objectives.head": ("Head",),
    "objectives.objective": ("Objective",),
    "objectives.topk": ("topk_divergence",),
    "recipe.evaluation": ("EvaluationOptions",),
    "recipe.keywords": ("Recipe",),
    "results": ("Evaluation", "Run"),
    "api": (
        *("answers", "chat", "check", "demo", "distil", "doctor", "evaluate", "mark", "plan", "resume", "steps"),
        *("train", "tune_process", "worth"),
    ),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"limbeck.{home}"), name)
    raise AttributeError(f"module 'limbeck' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
