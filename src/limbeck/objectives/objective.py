"""The objective as settings: which divergence, with which beta, scale, weight and temperature.

The arithmetic is in `divergence`, and so are the formulas.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from limbeck.errors import UsageError

__all__ = ["Kind", "Objective", "Scale"]

Kind = Literal["divergence", "kl_mix", "soft_targets"]
Scale = Literal["gkd", "unit"]

# Beta nearer to an end than this is taken for a slip: the end itself, 0 or 1, is meant.
SMALLEST_BETA = 1e-9


@dataclass(frozen=True)
class Objective:
    """What is minimised, at one position. Refuses values out of range and settings that its kind does not use.

    kind            "divergence" (beta, scale), "kl_mix" (forward_weight) or "soft_targets"
    beta            0 is KL(teacher‖student), 1 is KL(student‖teacher), between them generalized JSD
    scale           "gkd" is the published number; "unit" divides by beta(1-beta) between the ends: continuous in beta
    forward_weight  share w of the forward KL in w·KL(teacher‖student) + (1-w)·KL(student‖teacher)
    temperature     divides both logits before the softmax; soft targets multiply the result by its square
    """

    kind: Kind = "divergence"
    beta: float = 1.0
    scale: Scale = "unit"
    forward_weight: float = 0.5
    temperature: float = 1.0

    def __post_init__(self) -> None:
        for name, allowed in (("kind", get_args(Kind)), ("scale", get_args(Scale))):
            if getattr(self, name) not in allowed:
                raise self._refusal(name, f"It is one of {', '.join(allowed)}.", f"Choose for example {allowed[0]!r}.")
        for name in ("beta", "forward_weight"):
            if not 0 <= getattr(self, name) <= 1:
                needed = "It is a share, from 0 to 1: each end is one KL divergence alone, and between them both count."
                raise self._refusal(name, needed, "Choose an end or a number between.")
        if 0 < min(self.beta, 1 - self.beta) < SMALLEST_BETA:
            needed = f"Between the ends it keeps {SMALLEST_BETA} away from 0 and 1, so that rounding cannot blur it."
            raise self._refusal("beta", needed, "Write 0 or 1 for the end itself.", code="beta-near-end")
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            needed = "It divides the logits of both models, so it has to be a finite number above 0."
            fix = "Use 1 to leave the distributions as they are, or more to soften them."
            raise self._refusal("temperature", needed, fix)
        unused = {"divergence": ("forward_weight",), "kl_mix": ("beta", "scale")}
        for name in unused.get(self.kind, ("beta", "scale", "forward_weight")):
            if getattr(self, name) != getattr(type(self), name):
                needed = f"The objective {self.kind} does not use {name}, and a setting is never accepted and ignored."
                fix = f"Leave {name} out, or choose the objective that uses it."
                raise self._refusal(name, needed, fix, code="unused-setting")

    def _refusal(self, name: str, needed: str, fix: str, *, code: str = "") -> UsageError:
        code = code or name.replace("_", "-")
        return UsageError(f"objective.{code}", given=f"{name} is {getattr(self, name)!r}.", needed=needed, fix=fix)

    def describe(self) -> str:
        """One line for people: the name, the settings and, where the name is not enough, the formula."""
        softened = "" if self.temperature == 1 else f"temperature {self.temperature:g} on both, "
        if self.kind == "kl_mix":
            w, rest = f"{self.forward_weight:g}", f"{1 - self.forward_weight:g}"
            return f"KL mix {w}·KL(teacher‖student) + {rest}·KL(student‖teacher), {softened}nats per token"
        if self.kind == "soft_targets":
            return f"soft targets T²·KL(teacher‖student) at T = {self.temperature:g} on both, nats per token"
        setting = f"beta {self.beta:g}, scale {self.scale}, {softened}nats per token"
        if self.beta == 0:
            return f"forward KL(teacher‖student), {setting}"
        if self.beta == 1:
            return f"reverse KL(student‖teacher), {setting}"
        formula = "beta·KL(teacher‖m) + (1-beta)·KL(student‖m) with m = beta·teacher + (1-beta)·student"
        formula = formula if self.scale == "gkd" else f"[{formula}] / (beta(1-beta))"
        return f"generalized JSD {formula}, {setting}"
