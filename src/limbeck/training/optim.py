"""Optimizer, learning-rate schedule and gradient clipping."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from limbeck.recipe.schema import Recipe

__all__ = ["clip_gradients", "learning_rate_at", "make_optimizer", "set_learning_rate"]

# Distillation targets are dense, so gradients are less noisy than in pre-training; 0.95 lets the second moment follow
# the student within some twenty steps, which is a large part of a short run.
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
    """Linear warm-up over `warmup_steps`, then constant, then linear down to 0 over the last `decay_share` of steps.

    `step` counts from 0; step 0 already has 1 / warmup_steps of the rate, the last step has the last part of the decay.
    """
    rising = (step + 1) / recipe.warmup_steps if recipe.warmup_steps else 1.0
    num_falling = recipe.decay_share * recipe.steps
    falling = (recipe.steps - step) / num_falling if num_falling else 1.0
    return recipe.learning_rate * min(1.0, rising, falling)


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
    """Scale all gradients so that their joint norm is at most `max_norm`; returns the norm before that.

    The norm is not finite if any gradient is not: look at it before the optimizer's step.
    """
    return nn.utils.clip_grad_norm_(parameters, max_norm)
