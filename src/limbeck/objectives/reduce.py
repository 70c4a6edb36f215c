"""From values per token to one loss. Nothing else reduces.

The loss of a step is the sum over its completion positions divided by the completion tokens of the *whole* optimizer
step: all micro-batches, all processes. Then a step gives the same gradient however it was cut, and every token counts
the same in short and in long answers.

Axes: B sequences, T positions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from limbeck.errors import UsageError

__all__ = ["masked_mean", "token_weights"]


def token_weights(
    num_tokens_of_step: int,
    num: int,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Tensor:
    """[num] weights of 1 / num_tokens_of_step each, for the tokens of one micro-batch.

    A step without tokens has no weights to give, and its loss is the empty sum, 0. Raises UsageError (ValueError) for
    negative counts and for a micro-batch with more tokens than its step.
    """
    _require_counts(num_tokens_of_step, num)
    return torch.full((num,), 1 / max(1, num_tokens_of_step), dtype=dtype, device=device)


def masked_mean(values_BT: Tensor, mask_BT: Tensor, num_tokens: int) -> Tensor:
    """Sum of the values where the mask is True, divided by the tokens of the whole step: a scalar, in the values' unit.

    Positions are chosen by indexing, so a NaN outside the mask neither enters the sum nor the gradient. Without tokens
    the result is 0 with a gradient of 0. Raises UsageError (ValueError) for a mask that is not bool or of another
    shape, and for a mask that marks more positions than num_tokens.
    """
    if mask_BT.dtype != torch.bool or mask_BT.shape != values_BT.shape:
        raise UsageError(
            "reduce.mask",
            given=f"The mask is {mask_BT.dtype} {list(mask_BT.shape)} for values of shape {list(values_BT.shape)}.",
            needed="A mask is bool and has the shape of the values; a 0/1 weight would turn 0 x NaN into NaN.",
            fix="Build it from the lengths of the completions.",
        )
    chosen_N = values_BT[mask_BT]
    _require_counts(num_tokens, chosen_N.numel())
    return chosen_N.sum() / max(1, num_tokens)


def _require_counts(num_tokens_of_step: int, num: int) -> None:
    if num < 0 or num_tokens_of_step < num:
        raise UsageError(
            "reduce.token-count",
            given=f"A part of {num} tokens belongs to a step of {num_tokens_of_step} tokens.",
            needed="The divisor is the count of completion tokens of the whole step, which holds every part.",
            fix="Count the tokens of all micro-batches first, then weigh each of them.",
        )
