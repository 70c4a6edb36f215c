"""The settings of an objective: which divergence, with which beta, scale, weight and temperature.

Formulas and arithmetic are in `divergence` and `forms`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import limbeck.objectives.messages as messages

__all__ = ["Objective", "ObjectiveKind", "Scale"]

ObjectiveKind = Literal["divergence", "kl_mix", "soft_targets"]
Scale = Literal["gkd", "unit"]

# A beta closer to 0 or 1 than this is refused: the end itself was intended.
SMALLEST_BETA = 1e-9


@dataclass(frozen=True)
class Objective:
    """What is minimised, at one position. Raises UsageError for values out of range and settings that `kind` ignores.

    kind            "divergence" (beta, scale), "kl_mix" (forward_weight) or "soft_targets"
    beta            0 is KL(teacher‖student), 1 is KL(student‖teacher), between them generalized JSD
    scale           "gkd" is the published number; "unit" divides by beta(1-beta) between the ends: continuous in beta
    forward_weight  share w of the forward KL in w·KL(teacher‖student) + (1-w)·KL(student‖teacher)
    temperature     divides both logits before the softmax; soft targets multiply the result by its square
    """

    kind: ObjectiveKind = "divergence"
    beta: float = 1.0
    scale: Scale = "unit"
    forward_weight: float = 0.5
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in get_args(ObjectiveKind):
            raise messages.unknown_kind(value=self.kind, allowed=list(get_args(ObjectiveKind)))
        if self.scale not in get_args(Scale):
            raise messages.unknown_scale(value=self.scale, allowed=list(get_args(Scale)))
        if not 0 <= self.beta <= 1:
            raise messages.beta_out_of_range(value=self.beta)
        if not 0 <= self.forward_weight <= 1:
            raise messages.forward_weight_out_of_range(value=self.forward_weight)
        if 0 < min(self.beta, 1 - self.beta) < SMALLEST_BETA:
            raise messages.beta_near_end(value=self.beta, smallest=SMALLEST_BETA)
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise messages.temperature_out_of_range(value=self.temperature)
        unused = {"divergence": ("forward_weight",), "kl_mix": ("beta", "scale")}
        for name in unused.get(self.kind, ("beta", "scale", "forward_weight")):
            if (value := getattr(self, name)) != getattr(type(self), name):
                raise messages.unused_setting(name=name, value=repr(value), kind=self.kind)

    def describe(self) -> str:
        """One line for people: the name, the settings and, where the name is not enough, the formula."""
        if self.kind == "kl_mix":
            w = self.forward_weight
            return messages.describe_kl_mix(forward=w, reverse=1 - w, temperature=self.temperature)
        if self.kind == "soft_targets":
            return messages.describe_soft_targets(temperature=self.temperature)
        if self.beta in (0, 1):
            describe = messages.describe_reverse_kl if self.beta else messages.describe_forward_kl
            return describe(scale=self.scale, temperature=self.temperature)
        describe_between = messages.describe_jsd if self.scale == "gkd" else messages.describe_unit_jsd
        return describe_between(beta=self.beta, temperature=self.temperature)
