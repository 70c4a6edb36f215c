"""Which answers share a forward pass, and which prompts share a step.

Neither changes what is learnt: the loss of a step is a sum over its tokens with one weight for all of them, however
they are cut into micro-batches, and the order of the prompts is a function of the seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from limbeck.data.batch import TokenBatch, collate
from limbeck.data.prompt import Prompt
from limbeck.rollouts.request import Completion
from limbeck.rollouts.sampling import Purpose, stream_key

__all__ = ["MicroBatch", "PromptOrder", "micro_batches"]


@dataclass(frozen=True)
class MicroBatch:
    """A batch and the places that its rows have in the step."""

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
    """Cut a step's answers into batches of at most `max_tokens` tokens, padding counted, longest answers first.

    A single answer longer than `max_tokens` gets a batch of its own. Rows of similar length share a batch, so padding
    is rare; the longest come first, so that a memory shortage shows at once. `share` as in `collate`.
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
    """Which prompts a step practises on: every prompt once per epoch, in an order drawn from seed and epoch.

    An epoch that ends within a step is followed by the next one, so every step has its full number (a step larger than
    an epoch meets prompts again). The order is a function of the counters: a resumed run asks for its step.
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
