"""The reduction from values per token to a loss; no other code reduces.

The loss of a step is the sum over its completion positions divided by the number of completion tokens of the *whole*
optimizer step: all micro-batches, all processes. So the gradient does not depend on the micro-batches, and every token
has the same weight in short and long answers.
"""

from __future__ import annotations

import torch
from torch import Tensor

import limbeck.objectives.messages as messages

__all__ = ["token_weights"]


def token_weights(
    num_tokens_of_step: int,
    num: int,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Tensor:
    """Weights [num] of 1 / num_tokens_of_step each, for the tokens of one micro-batch.

    A step without tokens has no weights, and its loss is the empty sum, 0. Raises UsageError (ValueError) for negative
    counts and for a micro-batch with more tokens than its step.
    """
    if not 0 <= num <= num_tokens_of_step:
        raise messages.micro_batch_too_large(num=num, num_of_step=num_tokens_of_step)
    return torch.full((num,), 1 / max(1, num_tokens_of_step), dtype=dtype, device=device)
