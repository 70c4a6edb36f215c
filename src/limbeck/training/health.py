"""Signs that a step must not be taken, or that the student's answers are going wrong.

Shapes  N = completion tokens of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from limbeck.data.chat import Prompt
from limbeck.errors import Diverged
from limbeck.objectives.fused import Readings
from limbeck.training.batches import MicroBatch
from limbeck.training.state import TrainState

__all__ = ["is_repetitive", "refuse_non_finite_gradient", "refuse_non_finite_loss"]

# An answer is called repetitive when fewer than this share of the 4-grams among its last 64 tokens are distinct.
NGRAM = 4
NUM_LAST_TOKENS = 64
MIN_DISTINCT_SHARE = 0.4


def refuse_non_finite_loss(
    loss: Tensor, reading: Readings, batch: MicroBatch, prompts: Sequence[Prompt], state: TrainState
) -> None:
    """Stop before a loss that is not a number reaches the weights, and name the rows it comes from."""
    if torch.isfinite(loss):
        return
    state.optimizer.zero_grad(set_to_none=True)
    bad_N = ~torch.isfinite(reading.divergence_N)
    rows = sorted({batch.rows[row] for row in batch.tokens.row_N[bad_N].tolist()})
    raise Diverged(
        "training.loss-not-finite",
        given=f"The loss of step {state.step + 1} is {loss.item()}; {int(bad_N.sum())} tokens of the answers to "
        f"{_sources(prompts[row] for row in rows)} have no finite divergence.",
        needed="An update with it would ruin every weight, so the weights are still those of the step before.",
        fix="Check the teacher's weights first; then lower the learning rate and start again from the last checkpoint.",
    )


def refuse_non_finite_gradient(grad_norm: Tensor, prompts: Sequence[Prompt], state: TrainState) -> None:
    """Stop before a gradient that is not a number reaches the weights."""
    if torch.isfinite(grad_norm):
        return
    state.optimizer.zero_grad(set_to_none=True)
    raise Diverged(
        "training.gradient-not-finite",
        given=f"The gradient norm of step {state.step + 1} is {grad_norm.item()}, on the answers to "
        f"{_sources(prompts)}.",
        needed="An update with it would ruin every weight, so the weights are still those of the step before.",
        fix="Lower the learning rate and start again from the last checkpoint.",
    )


def _sources(prompts: Iterable[Prompt]) -> str:
    names = list(dict.fromkeys(prompt.source for prompt in prompts))
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def is_repetitive(ids: Sequence[int]) -> bool:
    """Whether the end of an answer goes in circles. Answers under 16 tokens are never called so."""
    last = ids[-NUM_LAST_TOKENS:]
    if len(last) < 4 * NGRAM:
        return False
    grams = [tuple(last[start : start + NGRAM]) for start in range(len(last) - NGRAM + 1)]
    return len(set(grams)) < MIN_DISTINCT_SHARE * len(grams)
