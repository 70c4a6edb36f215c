"""The student writes practice answers: slots over one static key/value cache, a finished slot refilled at once.

    free slots and prompts waiting?   read the next prompts into the free slots, all in one pass
    else                              write one token in every slot in use
    then                              sample; a slot that drew a stop token or reached its limit gives its row back

The rows in use stay contiguous: the last one moves into the hole, so that a few long answers do not drag finished rows
along. Nothing is drawn from a generator (see `sampling`): an answer does not depend on its slot or its neighbours.

Shapes  A = slots in use, B = prompts read together, T = positions, H = hidden, V = vocabulary.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from limbeck.models.load import LanguageModel
from limbeck.rollouts.plain import finite_normalizer, write_plainly
from limbeck.rollouts.request import Completion, Request, Written
from limbeck.rollouts.sampling import Sampling, sample_tokens, uniform
from limbeck.rollouts.slots import KEY_BLOCK, SlotCache, attention_mask, kinds_of

__all__ = ["Engine"]

MAX_READ_TOKENS = 4096


@dataclass
class _Slot:
    """An answer under way: its request, how many positions its row holds, how many tokens it has and the last one."""

    index: int
    request: Request
    num_cached: int = 0
    num_written: int = 0
    token: int = -1
    finished: bool = False


class Engine:
    """Writes answers with one model. The cache is kept between calls; the model's weights may change in between."""

    def __init__(
        self,
        model: LanguageModel,
        *,
        stop_ids: Sequence[int],
        pad_id: int,
        num_slots: int,
        max_read_tokens: int = MAX_READ_TOKENS,
        plain: bool = False,
    ) -> None:
        """
        Args:
            model: writes; its head decides which ids exist.
            stop_ids: a token of these ends an answer and is its last token. Nothing else stops one.
            pad_id: fills short rows; never seen by an answer.
            num_slots: answers written at the same time.
            max_read_tokens: prompt tokens read in one pass, padding counted; a longer prompt is read alone.
            plain: use transformers' `generate` instead of the slots (see `probe`).
        """
        self.model = model
        self.stop_ids = frozenset(stop_ids)
        self.pad_id = pad_id
        self.num_slots = num_slots
        self.max_read_tokens = max_read_tokens
        self.plain = plain
        self._layers = kinds_of(model.module.config)
        self._cache: SlotCache | None = None

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """Write all answers, in the order of the requests."""
        written: list[list[Written]] = [[] for _ in requests]
        for event in self.write(requests, sampling):
            written[event.request].append(event)
        return [
            Completion(
                ids=tuple(event.token for event in events),
                logprobs=tuple(event.logprob for event in events),
                cut_off=events[-1].end == "limit",
            )
            for events in written
        ]

    @torch.no_grad()
    def write(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Written]:
        """Write all answers, token by token, as they come."""
        if self.plain:
            yield from write_plainly(
                self.model, requests, sampling, stop_ids=self.stop_ids, pad_id=self.pad_id, batch_size=self.num_slots
            )
            return
        waiting = deque(enumerate(requests))
        slots: list[_Slot] = []
        cache = self._cache_for(requests)
        while waiting or slots:
            fresh = self._next_to_read(waiting, self.num_slots - len(slots))
            if fresh:
                hidden_AH = self._read(fresh, len(slots), cache)
                slots += fresh
            else:
                fresh = slots
                hidden_AH = self._write(slots, cache)
            yield from self._sample(fresh, hidden_AH, sampling)
            self._give_back(slots, cache)

    def _next_to_read(self, waiting: deque[tuple[int, Request]], num_free: int) -> list[_Slot]:
        """The prompts that are read next: as many as there are free slots and as one pass may read."""
        fresh: list[_Slot] = []
        width = 0
        while waiting and len(fresh) < num_free:
            width = max(width, len(waiting[0][1].prompt_ids))
            if fresh and width * (len(fresh) + 1) > self.max_read_tokens:
                break
            fresh.append(_Slot(*waiting.popleft()))
        return fresh

    def _cache_for(self, requests: Sequence[Request]) -> SlotCache:
        longest = max((len(request.prompt_ids) + request.max_new_tokens for request in requests), default=1)
        max_length = -(-longest // KEY_BLOCK) * KEY_BLOCK
        if self._cache is None or self._cache.max_length < max_length:
            self._cache = SlotCache(self.num_slots, max_length)
        return self._cache

    def _read(self, fresh: list[_Slot], first_row: int, cache: SlotCache) -> Tensor:
        """Read the prompts of `fresh` into the rows from `first_row` on; hidden states [B, H] of their last tokens."""
        prompts = [slot.request.prompt_ids for slot in fresh]
        width = max(len(prompt) for prompt in prompts)
        device = self.model.device
        ids_BT = torch.tensor([[*prompt, *[self.pad_id] * (width - len(prompt))] for prompt in prompts], device=device)
        positions_BT = torch.arange(width, device=device).expand(len(fresh), width)
        mask = attention_mask(positions_BT, width, self.model.dtype, self._layers)
        cache.reading(first_row, len(fresh))
        hidden_BTH = self.model.hidden(ids_BT, positions_BT, mask, cache=cache)
        for slot in fresh:
            slot.num_cached = len(slot.request.prompt_ids)
        last_B = torch.tensor([slot.num_cached - 1 for slot in fresh], device=device)
        return hidden_BTH[torch.arange(len(fresh), device=device), last_B]

    def _write(self, slots: list[_Slot], cache: SlotCache) -> Tensor:
        """Give every slot's last token to the model; hidden states [A, H] that predict the next ones."""
        device = self.model.device
        num_keys = -(-(max(slot.num_cached for slot in slots) + 1) // KEY_BLOCK) * KEY_BLOCK
        positions_A1 = torch.tensor([[slot.num_cached] for slot in slots], device=device)
        mask = attention_mask(positions_A1, num_keys, self.model.dtype, self._layers)
        cache.writing(positions_A1[:, 0], num_keys)
        ids_A1 = torch.tensor([[slot.token] for slot in slots], device=device)
        hidden_A1H = self.model.hidden(ids_A1, positions_A1, mask, cache=cache)
        for slot in slots:
            slot.num_cached += 1
        return hidden_A1H[:, 0]

    def _sample(self, slots: list[_Slot], hidden_AH: Tensor, sampling: Sampling) -> Iterator[Written]:
        """Draw the next token of each of `slots` and record it."""
        logits_AV = self.model.head.logits(hidden_AH)
        normalizer_A = finite_normalizer(logits_AV, self.model.name)
        uniforms_A = torch.tensor(
            [uniform(slot.request.key, slot.num_written) for slot in slots], dtype=torch.float64
        ).to(logits_AV.device)
        ids_A = sample_tokens(logits_AV, uniforms_A, sampling)
        logprobs_A = logits_AV.gather(1, ids_A.unsqueeze(1)).squeeze(1) - normalizer_A
        for slot, token, logprob in zip(slots, ids_A.tolist(), logprobs_A.tolist(), strict=True):
            slot.token = token
            slot.num_written += 1
            at_limit = slot.num_written == slot.request.max_new_tokens
            end = "stop" if token in self.stop_ids else "limit" if at_limit else None
            slot.finished = end is not None
            yield Written(slot.index, token, logprob, end)

    def _give_back(self, slots: list[_Slot], cache: SlotCache) -> None:
        """Drop the finished slots and move the last rows into their place."""
        row = 0
        while row < len(slots):
            if not slots[row].finished:
                row += 1
                continue
            last = slots.pop()
            if row < len(slots):
                cache.move(len(slots), row)
                slots[row] = last
