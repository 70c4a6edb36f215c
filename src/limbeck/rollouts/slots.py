"""The general decoder: any transformers model that takes explicit attention masks, over one static key/value cache.

The caches of transformers assume that all rows of a batch have the same length or are left-padded. Here each row has
its own length: a pass stores the keys and values of its tokens at their positions and attends to what their rows hold.
Masks and positions are always explicit, so nothing is inferred from the cache, and a sliding window is just another
mask (every layer keeps all positions).

Shapes  S = rows of the cache, B = rows of a pass, T = positions, K = key positions, D = head size, G = key/value heads,
        H = hidden, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from limbeck.models.attention import ExplicitCache, attention_mask, kinds_of
from limbeck.models.language_model import LanguageModel
from limbeck.rollouts.request import GeneratedToken, GenerationRequest
from limbeck.rollouts.sampling import Sampling

__all__ = ["BatchGenerator", "Decoder", "SlotDecoder"]


class Decoder(Protocol):
    """A model's forward pass over the rows of a static cache, as the engine needs it; see `SlotDecoder`."""

    def prepare(self, num_rows: int, max_length: int) -> None: ...

    def forward(self, ids_BT: Tensor, positions_BT: Tensor, first_row: int, num_keys: int) -> Tensor: ...

    def copy(self, source: int, first_row: int, num_rows: int, num_positions: int) -> None: ...

    def logits(self, hidden_BH: Tensor) -> Tensor: ...

    def release(self) -> None: ...


@runtime_checkable
class BatchGenerator(Protocol):
    """Generates whole batches without the engine's slots; see `plain.TransformersGenerator`."""

    def stream(
        self,
        requests: Sequence[GenerationRequest],
        sampling: Sampling,
        stop_ids: frozenset[int],
        pad_id: int,
        batch_size: int,
    ) -> Iterator[GeneratedToken]: ...


class SlotDecoder:
    """Runs the model's own forward pass over the rows of a cache that it owns."""

    def __init__(self, model: LanguageModel) -> None:
        model.require_positions()
        self._model = model
        self._layers = kinds_of(model.module.config)
        self._cache = _SlotCache(0, 0)

    def prepare(self, num_rows: int, max_length: int) -> None:
        """Take the model's current weights and allocate at least `num_rows` rows of `max_length` positions."""
        if self._cache.num_rows < num_rows or self._cache.max_length < max_length:
            self._cache = _SlotCache(num_rows, max_length)

    def forward(self, ids_BT: Tensor, positions_BT: Tensor, first_row: int, num_keys: int) -> Tensor:
        """Hidden states [B, T, H] of tokens that are added to the rows from `first_row` on.

        Each token attends to the positions of its row up to its own; all are among the first `num_keys`.
        """
        keys_1K = torch.arange(num_keys, device=ids_BT.device).unsqueeze(0)
        mask = attention_mask(positions_BT, keys_1K, self._model.dtype, self._layers)
        self._cache.place(positions_BT, first_row, num_keys)
        return self._model.hidden(ids_BT, positions_BT, mask, cache=self._cache)

    def copy(self, source: int, first_row: int, num_rows: int, num_positions: int) -> None:
        """Copy the first `num_positions` positions of one row to `num_rows` others."""
        for stored in (*self._cache.keys, *self._cache.values):
            stored[first_row : first_row + num_rows, :, :num_positions] = stored[source, :, :num_positions]

    def logits(self, hidden_BH: Tensor) -> Tensor:
        """Logits [B, V] of the shared vocabulary, float32."""
        return self._model.head.logits(hidden_BH)

    def release(self) -> None:
        """Nothing to release: this decoder holds no copy of the weights."""


class _SlotCache(ExplicitCache):
    """Keys and values of all rows [S, G, T, D], one tensor per layer; `place` sets the positions of the next pass."""

    def __init__(self, num_rows: int, max_length: int) -> None:
        super().__init__()
        self.num_rows = num_rows
        self.max_length = max_length
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def place(self, positions_BT: Tensor, first_row: int, num_keys: int) -> None:
        self._positions_BT = positions_BT
        self._rows = slice(first_row, first_row + len(positions_BT))
        self._rows_B1 = torch.arange(first_row, self._rows.stop, device=positions_BT.device).unsqueeze(1)
        self._num_keys = num_keys

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Called by each attention layer with new keys and values [B, G, T, D]; returns those to attend to."""
        if layer_idx == len(self.keys):
            shape = (self.num_rows, key_states.shape[1], self.max_length)
            self.keys.append(key_states.new_zeros(*shape, key_states.shape[3]))
            self.values.append(value_states.new_zeros(*shape, value_states.shape[3]))
        keys, values = self.keys[layer_idx], self.values[layer_idx]
        keys[self._rows_B1, :, self._positions_BT] = key_states.transpose(1, 2)
        values[self._rows_B1, :, self._positions_BT] = value_states.transpose(1, 2)
        return keys[self._rows, :, : self._num_keys], values[self._rows, :, : self._num_keys]
