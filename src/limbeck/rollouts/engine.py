"""Generation of practice answers: slots over one static key/value cache; a finished slot is refilled at once.

    once                              prefill the common prefix of all prompts
    free slots and prompts waiting?   prefill the next prompts into the free slots, each distinct prompt once
    else                              decode one token in every slot in use
    then                              sample; a slot that sampled a stop token or reached its limit frees its row

The rows in use stay contiguous: the last one moves into the gap, so that finished rows cost nothing while a few long
answers continue. Sampling has no generator state (see `sampling`): an answer depends neither on its slot nor on the
other answers.

Shapes  A = slots in use, B = prompts of a prefill pass, T = positions, H = hidden size, V = vocabulary.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from limbeck.data.batch import worthwhile_start
from limbeck.models.language_model import LanguageModel
from limbeck.rollouts.request import Completion, GeneratedToken, GenerationRequest, refuse_non_finite_logprob
from limbeck.rollouts.sampling import Sampling, draw_tokens, uniform
from limbeck.rollouts.slots import BatchGenerator, Decoder, SlotDecoder

__all__ = ["Engine"]

MAX_READ_TOKENS = 4096

# The number of key positions grows in blocks, so that attention sees few distinct shapes.
KEY_BLOCK = 32

# Prompts share a prefill pass if the shortest has this share of the longest one's length, or if the pass is small.
MIN_FILL = 0.75
FEW_TOKENS = 512


@dataclass
class _Slot:
    """An unfinished answer: its request, the cached positions of its row, its number of tokens and the last token."""

    index: int
    request: GenerationRequest
    num_cached: int = 0
    num_tokens: int = 0
    token: int = -1
    finished: bool = False


class Engine:
    """Generates answers with one model. The cache is kept between calls; the weights may change in between."""

    def __init__(
        self,
        model: LanguageModel,
        *,
        stop_ids: Sequence[int],
        pad_id: int,
        num_slots: int,
        max_read_tokens: int = MAX_READ_TOKENS,
        decoder: Decoder | BatchGenerator | None = None,
    ) -> None:
        """
        Args:
            model: its head defines which ids can be sampled.
            stop_ids: each of them ends an answer, as its last token. Nothing else but the token limit ends one.
            pad_id: fills short rows of a prefill pass; has no effect on answers.
            num_slots: answers generated at the same time.
            max_read_tokens: tokens of one prefill pass, padding included; a longer prompt gets a pass of its own.
            decoder: computes the hidden states, or generates whole batches; by default the general decoder, which
                supports most architectures (`training.generation` chooses the fastest).
        """
        self.model = model
        self.stop_ids = frozenset(stop_ids)
        self.pad_id = pad_id
        self.num_slots = num_slots
        self.max_read_tokens = max_read_tokens
        self._decoder = SlotDecoder(model) if decoder is None else decoder

    def generate(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> list[Completion]:
        """One completion per request, in order.

        Raises:
            Diverged: a logit is not finite.
        """
        tokens: list[list[GeneratedToken]] = [[] for _ in requests]
        for event in self.stream(requests, sampling):
            tokens[event.request].append(event)
        return [
            Completion(
                ids=tuple(event.token for event in events),
                logprobs=tuple(event.logprob for event in events),
                cut_off=events[-1].end == "limit",
            )
            for events in tokens
        ]

    @torch.no_grad()
    def stream(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> Iterator[GeneratedToken]:
        """The tokens of all answers as they are generated; errors as in `generate`."""
        decoder = self._decoder
        if not requests:
            return
        if isinstance(decoder, BatchGenerator):
            yield from decoder.stream(requests, sampling, self.stop_ids, self.pad_id, self.num_slots)
            return
        num_slots = min(self.num_slots, len(requests))
        longest = max(len(request.prompt_ids) + request.max_new_tokens for request in requests)
        decoder.prepare(num_slots + 1, _whole_blocks(longest))
        num_shared = self._prefill_prefix(decoder, requests, num_slots)
        waiting = deque(enumerate(requests))
        slots: list[_Slot] = []
        while waiting or slots:
            if waiting and len(slots) < num_slots:
                fresh = [_Slot(*waiting.popleft()) for _ in range(min(len(waiting), num_slots - len(slots)))]
                fresh, hidden_AH = self._prefill(decoder, fresh, len(slots), num_slots, num_shared)
                slots += fresh
            else:
                fresh = slots
                hidden_AH = self._decode(decoder, slots)
            yield from self._sample(decoder, fresh, hidden_AH, sampling)
            _free_rows(decoder, slots)
        decoder.release()

    def _prefill_prefix(self, decoder: Decoder, requests: Sequence[GenerationRequest], spare_row: int) -> int:
        """Prefill the common prefix of all prompts into the spare row; returns its number of tokens."""
        num_shared = worthwhile_start([request.prompt_ids for request in requests])
        if not num_shared:
            return 0
        ids_1T = torch.tensor([requests[0].prompt_ids[:num_shared]], device=self.model.device)
        positions_1T = torch.arange(num_shared, device=self.model.device).unsqueeze(0)
        decoder.forward(ids_1T, positions_1T, spare_row, num_shared)
        return num_shared

    def _prefill(
        self, decoder: Decoder, fresh: list[_Slot], first_row: int, spare_row: int, num_shared: int
    ) -> tuple[list[_Slot], Tensor]:
        """Prefill the prompts of `fresh` into the rows from `first_row` on, each distinct prompt once.

        Returns the slots in the order of their rows and the hidden states [B, H] of their prompts' last tokens.
        """
        if num_shared:
            decoder.copy(spare_row, first_row, len(fresh), num_shared)
        first_of: dict[tuple[int, ...], _Slot] = {}
        repeated = [slot for slot in fresh if first_of.setdefault(slot.request.prompt_ids, slot) is not slot]
        distinct = sorted(first_of.values(), key=lambda slot: -len(slot.request.prompt_ids))
        rows = {slot.request.prompt_ids: row for row, slot in enumerate(distinct)}
        hidden = [
            self._prefill_group(decoder, group, first_row + rows[group[0].request.prompt_ids], num_shared)
            for group in self._groups(distinct, num_shared)
        ]
        for offset, slot in enumerate(repeated, start=len(distinct)):
            prompt = slot.request.prompt_ids
            decoder.copy(first_row + rows[prompt], first_row + offset, 1, len(prompt))
        ordered = [*distinct, *repeated]
        for slot in ordered:
            slot.num_cached = len(slot.request.prompt_ids)
        return ordered, torch.cat(hidden)[[rows[slot.request.prompt_ids] for slot in ordered]]

    def _groups(self, slots: list[_Slot], num_shared: int) -> list[list[_Slot]]:
        """Prompts grouped into passes, longest first: of similar length, within the token limit of a pass."""
        groups: list[list[_Slot]] = []
        for slot in slots:
            length = len(slot.request.prompt_ids) - num_shared
            if groups:
                width = len(groups[-1][0].request.prompt_ids) - num_shared
                num_tokens = width * (len(groups[-1]) + 1)
                similar = length >= MIN_FILL * width or num_tokens <= FEW_TOKENS
                if num_tokens <= self.max_read_tokens and similar:
                    groups[-1].append(slot)
                    continue
            groups.append([slot])
        return groups

    def _prefill_group(self, decoder: Decoder, group: list[_Slot], first_row: int, num_shared: int) -> Tensor:
        prompts = [slot.request.prompt_ids[num_shared:] for slot in group]
        width, device = len(prompts[0]), self.model.device
        ids_BT = torch.tensor([[*prompt, *[self.pad_id] * (width - len(prompt))] for prompt in prompts], device=device)
        positions_BT = torch.arange(num_shared, num_shared + width, device=device).expand(len(group), width)
        hidden_BTH = decoder.forward(ids_BT, positions_BT, first_row, num_shared + width)
        last_B = torch.tensor([len(prompt) - 1 for prompt in prompts], device=device)
        return hidden_BTH[torch.arange(len(group), device=device), last_B]

    def _decode(self, decoder: Decoder, slots: list[_Slot]) -> Tensor:
        """Hidden states [A, H] that predict the next tokens, from the last token of every slot."""
        device = self.model.device
        ids_A1 = torch.tensor([[slot.token] for slot in slots], device=device)
        positions_A1 = torch.tensor([[slot.num_cached] for slot in slots], device=device)
        num_keys = _whole_blocks(max(slot.num_cached for slot in slots) + 1)
        hidden_A1H = decoder.forward(ids_A1, positions_A1, 0, num_keys)
        for slot in slots:
            slot.num_cached += 1
        return hidden_A1H[:, 0]

    def _sample(
        self, decoder: Decoder, slots: list[_Slot], hidden_AH: Tensor, sampling: Sampling
    ) -> Iterator[GeneratedToken]:
        """Sample the next token of each of `slots`, store it there and yield it."""
        uniforms = [uniform(slot.request.key, slot.num_tokens) for slot in slots]
        uniforms_A = torch.tensor(uniforms, dtype=torch.float64, device=hidden_AH.device)
        ids_A, logprobs_A = draw_tokens(decoder.logits(hidden_AH), uniforms_A, sampling)
        # the only place that waits for the device
        sampled = torch.stack([ids_A.double(), logprobs_A.double()], dim=1).tolist()
        for slot, (token, logprob) in zip(slots, sampled, strict=True):
            refuse_non_finite_logprob(logprob, self.model.name)
            slot.token = int(token)
            slot.num_tokens += 1
            at_limit = slot.num_tokens == slot.request.max_new_tokens
            end = "stop" if slot.token in self.stop_ids else "limit" if at_limit else None
            slot.finished = end is not None
            yield GeneratedToken(slot.index, slot.token, logprob, end)


def _free_rows(decoder: Decoder, slots: list[_Slot]) -> None:
    """Remove finished slots and move the last rows into the gaps."""
    row = 0
    while row < len(slots):
        if not slots[row].finished:
            row += 1
            continue
        last = slots.pop()
        if row < len(slots):
            decoder.copy(len(slots), row, 1, last.num_cached)
            slots[row] = last


def _whole_blocks(num_keys: int) -> int:
    return -(-num_keys // KEY_BLOCK) * KEY_BLOCK
