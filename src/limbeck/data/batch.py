"""Prompts and completions of different lengths as one right-padded batch, and the one mask rule.

What is prompt, completion or padding follows from lengths, never from comparing ids: a padding id that is also the
stop id therefore hides nothing.

Shapes  B = sequences, T = positions, N = completion tokens of all sequences, row after row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["TokenBatch", "collate", "completion_positions"]


@dataclass(frozen=True)
class TokenBatch:
    """Token ids and where the completions are.

    `predict_N` indexes the flattened [B * T] positions that predict the completion tokens `targets_N`; `row_N` tells
    the sequence of each.
    """

    ids_BT: Tensor
    positions_BT: Tensor
    mask_BT: Tensor
    predict_N: Tensor
    targets_N: Tensor
    row_N: Tensor

    @property
    def num_tokens(self) -> int:
        """Completion tokens, the stop token included."""
        return len(self.targets_N)


def collate(
    prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], *, pad_id: int, device: torch.device
) -> TokenBatch:
    """One batch from prompts and their completions, padded on the right to the longest row."""
    rows = [[*prompt, *completion] for prompt, completion in zip(prompts, completions, strict=True)]
    width = max(len(row) for row in rows)
    ids_BT = torch.tensor([row + [pad_id] * (width - len(row)) for row in rows], device=device)
    positions_BT = torch.arange(width, device=device).expand(len(rows), width)
    lengths_B1 = torch.tensor([len(row) for row in rows], device=device).unsqueeze(1)
    num_completion = [len(completion) for completion in completions]
    predict_N = completion_positions([len(prompt) for prompt in prompts], num_completion, width).to(device)
    return TokenBatch(
        ids_BT=ids_BT,
        positions_BT=positions_BT,
        mask_BT=(positions_BT < lengths_B1).long(),
        predict_N=predict_N,
        targets_N=torch.tensor([token for completion in completions for token in completion], device=device).long(),
        row_N=torch.arange(len(rows), device=device).repeat_interleave(torch.tensor(num_completion, device=device)),
    )


def completion_positions(prompt_lengths: Sequence[int], completion_lengths: Sequence[int], width: int) -> Tensor:
    """Flat indices, int64 [N] into [B * width], of the positions that predict each completion token.

    Token t is predicted at position t - 1: a prompt of p tokens (at least 1) and a completion of c take the positions
    p - 1 to p + c - 2, so the last one predicts the stop token, if there is one. Nothing else trains. No completion
    token gives an empty result.
    """
    positions: list[int] = []
    for row, (prompt, completion) in enumerate(zip(prompt_lengths, completion_lengths, strict=True)):
        assert prompt >= 1, "the first completion token needs a position that predicts it"
        assert 0 <= completion <= width - prompt, "a sequence is wider than the batch"
        first = row * width + prompt - 1
        positions.extend(range(first, first + completion))
    return torch.tensor(positions, dtype=torch.int64)
