"""Optimizer and learning-rate schedule."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from limbeck.recipe.recipe import Recipe

__all__ = ["learning_rate_at", "make_optimizer"]

# Distillation targets are dense, so gradients are less noisy than in pre-training. With 0.95, the second moment follows
# the student within about twenty steps, a large part of a short run.
ADAM_BETAS = (0.9, 0.95)


def make_optimizer(parameters: Iterable[nn.Parameter], recipe: Recipe) -> torch.optim.AdamW:
    """AdamW over the run's weights (Loshchilov and Hutter 2019)."""
    return torch.optim.AdamW(
        list(parameters),
        lr=recipe.learning_rate,
        betas=ADAM_BETAS,
        weight_decay=recipe.weight_decay,
        fused=True,  # one pass over weights, gradients and moments instead of ten
    )


def learning_rate_at(step: int, recipe: Recipe) -> float:
    """Linear warm-up over `warmup_steps`, then constant, then linear decay to 0 over the last `decay_share` of steps.

    `step` counts from 0. Step 0 has 1 / warmup_steps of the rate; the last step has the last nonzero rate of the decay.
    """
    rising = (step + 1) / recipe.warmup_steps if recipe.warmup_steps else 1.0
    num_falling = recipe.decay_share * recipe.steps
    falling = (recipe.steps - step) / num_falling if num_falling else 1.0
    return recipe.learning_rate * min(1.0, rising, falling)
