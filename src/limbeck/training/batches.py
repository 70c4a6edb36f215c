"""Which answers share a forward pass, and which prompts share a step.

Micro-batches do not change the result: the loss of a step is a sum over its tokens, each weighted by 1 / tokens of the
whole step. The order of the prompts is a function of the seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from limbeck.data.batch import TokenBatch, collate
from limbeck.data.prompt import Prompt
from limbeck.rollouts.request import Completion
from limbeck.rollouts.sampling import Purpose, stream_key

__all__ = ["AnswerSet", "MicroBatch", "PromptOrder", "micro_batches"]


class AnswerSet(NamedTuple):
    """Prompts, one completion for each, and the weight of a token in the loss (1, except for human-written answers)."""

    prompts: Sequence[Prompt]
    completions: Sequence[Completion]
    weight: float = 1.0

    @property
    def num_tokens(self) -> int:
        """Completion tokens, stop tokens included."""
        return sum(len(completion.ids) for completion in self.completions)


@dataclass(frozen=True)
class MicroBatch:
    """A padded batch, and the index of each of its rows among the answers of the step."""

    tokens: TokenBatch
    rows: tuple[int, ...]


def micro_batches(
    prompts: Sequence[Prompt],
    completions: Sequence[Completion],
    *,
    max_tokens: int,
    pad_id: int,
    device: torch.device,
    share: bool = False,
) -> list[MicroBatch]:
    """Split a step's answers into batches of at most `max_tokens` tokens (prompt, completion and padding).

    A single row longer than `max_tokens` gets a batch of its own. Rows of similar length share a batch, so there is
    little padding. The longest rows come first, so that running out of memory shows at once. `share` as in `collate`.
    """
    lengths = [len(prompt.ids) + len(completion.ids) for prompt, completion in zip(prompts, completions, strict=True)]
    by_length = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    groups: list[list[int]] = []
    for row in by_length:
        if groups and (len(groups[-1]) + 1) * lengths[groups[-1][0]] <= max_tokens:
            groups[-1].append(row)
        else:
            groups.append([row])
    return [
        MicroBatch(
            tokens=collate(
                [prompts[row].ids for row in rows],
                [completions[row].ids for row in rows],
                pad_id=pad_id,
                device=device,
                share=share,
            ),
            rows=tuple(rows),
        )
        for rows in groups
    ]


class PromptOrder:
    """Which prompts a step uses: every prompt once per epoch, in an order that follows from seed and epoch.

    If an epoch ends within a step, the next one begins there, so every step has its full number of prompts (a step
    larger than an epoch uses prompts more than once). No state is kept: a resumed run computes the order of its step.
    """

    def __init__(self, prompts: Sequence[Prompt], seed: int) -> None:
        self._prompts = prompts
        self._seed = seed
        self._epoch: tuple[int, list[Prompt]] | None = None

    def of_step(self, step: int, num_prompts: int) -> list[Prompt]:
        chosen: list[Prompt] = []
        while len(chosen) < num_prompts:
            epoch, offset = divmod(step * num_prompts + len(chosen), len(self._prompts))
            chosen += self._ordered(epoch)[offset : offset + num_prompts - len(chosen)]
        return chosen

    def _ordered(self, epoch: int) -> list[Prompt]:
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = (epoch, sorted(self._prompts, key=lambda prompt: self._place(epoch, prompt)))
        return self._epoch[1]

    def _place(self, epoch: int, prompt: Prompt) -> int:
        return stream_key(self._seed, Purpose.ORDER, epoch, prompt.content_hash, prompt.occurrence, 0)
