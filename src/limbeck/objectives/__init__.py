"""What is minimised: divergences per token in nats, their fused form with the output head, and the one reducer."""

from limbeck.objectives.cross_entropy import fused_cross_entropy
from limbeck.objectives.divergence import Objective, Scale, divergence, evaluate, kl_mix, soft_targets
from limbeck.objectives.fused import Head, Readings, fused_divergence, fused_with_readings, head_of
from limbeck.objectives.reduce import masked_mean, token_weights
from limbeck.objectives.topk import topk_divergence

__all__ = [
    "Head",
    "Objective",
    "Readings",
    "Scale",
    "divergence",
    "evaluate",
    "fused_cross_entropy",
    "fused_divergence",
    "fused_with_readings",
    "head_of",
    "kl_mix",
    "masked_mean",
    "soft_targets",
    "token_weights",
    "topk_divergence",
]
