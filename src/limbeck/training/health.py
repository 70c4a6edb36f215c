"""Checks of a step: losses and gradients that are not finite, and repetitive answers.

Shapes  N = completion tokens of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

import limbeck.training.messages as messages
from limbeck.data.prompt import Prompt
from limbeck.objectives.fused import TokenStatistics
from limbeck.training.batches import MicroBatch
from limbeck.training.state import TrainState

__all__ = ["is_repetitive", "refuse_non_finite_gradient", "refuse_non_finite_loss"]

# An answer is repetitive if less than this share of the 4-grams among its last 64 tokens are distinct.
NGRAM = 4
NUM_LAST_TOKENS = 64
MIN_DISTINCT_SHARE = 0.4

# Rows that a message lists.
NUM_SHOWN = 8


def refuse_non_finite_loss(
    loss: Tensor, stats: TokenStatistics, batch: MicroBatch, prompts: Sequence[Prompt], state: TrainState
) -> None:
    """Raise Diverged before a loss that is not finite reaches the weights, with the rows that it comes from."""
    if not torch.isfinite(loss):
        bad_N = ~torch.isfinite(stats.divergence_N)
        rows = sorted({batch.rows[row] for row in batch.tokens.row_N[bad_N].tolist()})
        sources = _forget_step([prompts[row] for row in rows], state)
        value, step = loss.item(), state.step + 1
        raise messages.loss_not_finite(step=step, value=value, sources=sources)


def refuse_non_finite_gradient(grad_norm: Tensor, prompts: Sequence[Prompt], state: TrainState) -> None:
    """Raise Diverged before a gradient that is not finite reaches the weights."""
    if not torch.isfinite(grad_norm):
        sources = _forget_step(prompts, state)
        value, step = grad_norm.item(), state.step + 1
        raise messages.gradient_not_finite(step=step, value=value, sources=sources)


def _forget_step(prompts: Sequence[Prompt], state: TrainState) -> list[str]:
    """Delete the gradients of the step, so that they cannot reach the weights; returns the first sources."""
    state.optimizer.zero_grad(set_to_none=True)
    sources = list(dict.fromkeys(prompt.source for prompt in prompts))
    return [*sources[:NUM_SHOWN], *["..."] * (len(sources) > NUM_SHOWN)]


def is_repetitive(ids: Sequence[int]) -> bool:
    """Whether the end of an answer is repetitive. Answers under 16 tokens never are."""
    last = ids[-NUM_LAST_TOKENS:]
    if len(last) < 4 * NGRAM:
        return False
    grams = [tuple(last[start : start + NGRAM]) for start in range(len(last) - NGRAM + 1)]
    return len(set(grams)) < MIN_DISTINCT_SHARE * len(grams)
