"""Signs that a step must not be taken, or that the student's answers are going wrong.

Shapes  N = completion tokens of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from limbeck.data.prompt import Prompt
from limbeck.errors import Diverged
from limbeck.objectives.fused import TokenStats
from limbeck.training.batches import MicroBatch
from limbeck.training.state import TrainState

__all__ = ["is_repetitive", "refuse_non_finite_gradient", "refuse_non_finite_loss"]

# An answer is called repetitive when fewer than this share of the 4-grams among its last 64 tokens are distinct.
NGRAM = 4
NUM_LAST_TOKENS = 64
MIN_DISTINCT_SHARE = 0.4

# Rows that a message names.
NUM_SHOWN = 8


def refuse_non_finite_loss(
    loss: Tensor, reading: TokenStats, batch: MicroBatch, prompts: Sequence[Prompt], state: TrainState
) -> None:
    """Stop before a loss that is not a number reaches the weights, and name the rows it comes from."""
    if not torch.isfinite(loss):
        bad_N = ~torch.isfinite(reading.divergence_N)
        rows = sorted({batch.rows[row] for row in batch.tokens.row_N[bad_N].tolist()})
        raise _not_finite("loss", loss, [prompts[row] for row in rows], state)


def refuse_non_finite_gradient(grad_norm: Tensor, prompts: Sequence[Prompt], state: TrainState) -> None:
    """Stop before a gradient that is not a number reaches the weights."""
    if not torch.isfinite(grad_norm):
        raise _not_finite("gradient norm", grad_norm, prompts, state)


def _not_finite(what: str, value: Tensor, prompts: Sequence[Prompt], state: TrainState) -> Diverged:
    """Forgets the gradients of the step, so that nothing of it can reach the weights."""
    state.optimizer.zero_grad(set_to_none=True)
    sources = list(dict.fromkeys(prompt.source for prompt in prompts))
    more = f" and {len(sources) - NUM_SHOWN} more" if len(sources) > NUM_SHOWN else ""
    return Diverged(
        f"training.{what.split()[0]}-not-finite",
        given=f"The {what} of step {state.step + 1} is {value.item()}, on the answers to "
        f"{', '.join(sources[:NUM_SHOWN])}{more}.",
        needed="An update with it would ruin every weight, so the weights are still those of the step before.",
        fix="Check the teacher's weights; then lower the learning rate and start again from the last checkpoint.",
    )


def is_repetitive(ids: Sequence[int]) -> bool:
    """Whether the end of an answer goes in circles. Answers under 16 tokens are never called so."""
    last = ids[-NUM_LAST_TOKENS:]
    if len(last) < 4 * NGRAM:
        return False
    grams = [tuple(last[start : start + NGRAM]) for start in range(len(last) - NGRAM + 1)]
    return len(set(grams)) < MIN_DISTINCT_SHARE * len(grams)
