"""Prompts and completions of different lengths as one right-padded batch.

The side of the padding and the pad id do not matter: what is prompt, completion or padding follows from lengths.

Shapes  B = sequences, T = positions, N = completion tokens of all sequences, row after row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from limbeck.data.chat import completion_positions

__all__ = ["TokenBatch", "collate"]


@dataclass(frozen=True)
class TokenBatch:
    """Token ids and where the completions are.

    `predict_N` indexes the flattened [B * T] positions that predict the completion tokens `targets_N`: the position of
    the prompt's last token predicts the first, and the stop token is the last one predicted. `row_N` tells the
    sequence of each.
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
