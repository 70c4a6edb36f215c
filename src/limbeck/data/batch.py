"""Prompts and completions of different lengths as one right-padded batch, and the mask rule.

What is prompt, completion or padding follows from lengths, never from comparing ids, so a padding id that is also the
stop id is harmless.

Rows that begin with the same tokens can share them: the batch then contains only the rest of each row, and its context,
computed once, contains the beginnings. A context is a batch itself, so contexts can share beginnings too.

Shapes  B = sequences, T = positions, N = completion tokens of all sequences, row after row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Context", "TokenBatch", "collate", "completion_positions", "worthwhile_start"]

# Sharing needs an additional forward pass, which pays off if it saves this many tokens.
MIN_TOKENS_SAVED = 64


@dataclass(frozen=True)
class Context:
    """The beginnings of the rows of a batch. `row_B` (int64) is the context's row that each row continues."""

    batch: TokenBatch
    row_B: Tensor


@dataclass(frozen=True)
class TokenBatch:
    """Token ids and the positions of the completions; all tensors are int64.

    `ids_BT` begins after the context, if there is one; `positions_BT` counts from the beginning of the text. `length_B`
    is the number of a row's own tokens, without padding and context. `predict_N` indexes the flattened [B * T]
    positions that predict the completion tokens `targets_N`; `row_N` is the row of each.
    """

    ids_BT: Tensor
    positions_BT: Tensor
    length_B: Tensor
    predict_N: Tensor
    targets_N: Tensor
    row_N: Tensor
    context: Context | None = None

    @property
    def num_tokens(self) -> int:
        """Number of completion tokens, stop tokens included."""
        return len(self.targets_N)

    @property
    def mask_BT(self) -> Tensor:
        """1 for the row's own tokens, 0 for padding."""
        width = self.ids_BT.shape[1]
        return (torch.arange(width, device=self.ids_BT.device) < self.length_B.unsqueeze(1)).long()


def collate(
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    *,
    pad_id: int,
    device: torch.device,
    share: bool = False,
) -> TokenBatch:
    """One batch from prompts and their completions, padded on the right to the longest row.

    With `share`, a beginning that all prompts have in common is computed once, and the prompt of several completions
    once for all of them. Results differ only by rounding.
    """
    context: Context | None = None
    starts = [0] * len(prompts)
    if share:
        context, starts = _context_of([tuple(prompt) for prompt in prompts], pad_id, device)
    own = [prompt[start:] for prompt, start in zip(prompts, starts, strict=True)]
    rows = [[*prompt, *completion] for prompt, completion in zip(own, completions, strict=True)]
    num_completion = [len(completion) for completion in completions]
    width = max(len(row) for row in rows)
    starts_B1 = torch.tensor(starts, device=device).unsqueeze(1)
    return TokenBatch(
        ids_BT=torch.tensor([row + [pad_id] * (width - len(row)) for row in rows], device=device),
        positions_BT=torch.arange(width, device=device) + starts_B1,
        length_B=torch.tensor([len(row) for row in rows], device=device),
        predict_N=completion_positions([len(prompt) for prompt in own], num_completion, width).to(device),
        targets_N=torch.tensor([token for completion in completions for token in completion], device=device).long(),
        row_N=torch.arange(len(rows), device=device).repeat_interleave(torch.tensor(num_completion, device=device)),
        context=context,
    )


def worthwhile_start(prompts: Sequence[Sequence[int]]) -> int:
    """How many first tokens all prompts share, at least one token of each left out; 0 if sharing saves too little."""
    num_shared = 0
    for column in zip(*(prompt[:-1] for prompt in prompts), strict=False):
        if len(set(column)) > 1:
            break
        num_shared += 1
    return num_shared if num_shared * (len(prompts) - 1) >= MIN_TOKENS_SAVED else 0


def completion_positions(prompt_lengths: Sequence[int], completion_lengths: Sequence[int], width: int) -> Tensor:
    """Flat indices, int64 [N] into [B * width], of the positions that predict each completion token.

    Token t is predicted at position t - 1: for a prompt of p tokens (at least 1) and a completion of c tokens these are
    the positions p - 1 to p + c - 2, so the last one predicts the stop token, if there is one. No other position is
    trained on. Without completion tokens the result is empty.
    """
    positions: list[int] = []
    for row, (prompt, completion) in enumerate(zip(prompt_lengths, completion_lengths, strict=True)):
        assert prompt >= 1, "the first completion token needs a position that predicts it"
        assert 0 <= completion <= width - prompt, "a sequence is wider than the batch"
        first = row * width + prompt - 1
        positions.extend(range(first, first + completion))
    return torch.tensor(positions, dtype=torch.int64)


def _context_of(
    prompts: Sequence[tuple[int, ...]], pad_id: int, device: torch.device
) -> tuple[Context | None, list[int]]:
    """The context of the prompts, and the index at which each row continues on its own.

    The last token of a prompt is never in the context, because it predicts the completion's first token.
    """
    distinct = list(dict.fromkeys(prompts))
    num_saved = sum(len(prompt) - 1 for prompt in prompts) - sum(len(prompt) - 1 for prompt in distinct)
    if num_saved >= MIN_TOKENS_SAVED and all(len(prompt) > 1 for prompt in distinct):
        place = {prompt: row for row, prompt in enumerate(distinct)}
        row_B = torch.tensor([place[prompt] for prompt in prompts], device=device)
        beginnings = [prompt[:-1] for prompt in distinct]
        batch = collate(beginnings, [()] * len(beginnings), pad_id=pad_id, device=device, share=True)
        return Context(batch, row_B), [len(prompt) - 1 for prompt in prompts]
    num_shared = worthwhile_start(prompts)
    if not num_shared:
        return None, [0] * len(prompts)
    batch = collate([prompts[0][:num_shared]], [()], pad_id=pad_id, device=device)
    return Context(batch, torch.zeros(len(prompts), dtype=torch.int64, device=device)), [num_shared] * len(prompts)
