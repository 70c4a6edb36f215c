"""One static key/value cache, cut into slots: a row per answer being written, all rows at their own length.

transformers' caches assume that every row of a batch has the same length (or is padded on the left). Here each row
has its own: a decode step writes row s at position length[s] and attends to positions 0..length[s]. Masks and
positions are always given explicitly, so nothing is inferred from the cache, and a sliding window is a mask like
any other (every layer keeps all positions).

Shapes  S = slots, A = slots in use, B = prompts read together, T = positions, K = key positions, D = head size,
        G = key/value heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig
from transformers.cache_utils import Cache

__all__ = ["LayerKinds", "SlotCache", "attention_mask", "kinds_of"]

# Key positions grow in blocks, so that attention sees few distinct shapes.
KEY_BLOCK = 32


class SlotCache(Cache):
    """Keys and values of all slots; `read` or `write` chooses what the next forward pass does with them."""

    def __init__(self, num_slots: int, max_length: int) -> None:
        super().__init__(layers=[])
        self.num_slots = num_slots
        self.max_length = max_length
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._rows: slice | None = None
        self._positions_A: Tensor | None = None
        self._num_keys = 0

    def reading(self, first_row: int, num_rows: int) -> None:
        """The next pass reads whole prompts into `num_rows` slots from `first_row` on."""
        self._rows = slice(first_row, first_row + num_rows)
        self._positions_A = None

    def writing(self, positions_A: Tensor, num_keys: int) -> None:
        """The next pass writes one token for each of the first A slots, at `positions_A`."""
        self._positions_A = positions_A
        self._num_keys = num_keys

    def move(self, source: int, target: int) -> None:
        """Copy slot `source` over slot `target`, so that the slots in use stay contiguous."""
        for stored in (*self._keys, *self._values):
            stored[target].copy_(stored[source])

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Called by every attention layer with its new keys and values [B, G, T, D]; returns those to attend to."""
        if layer_idx == len(self._keys):
            shape = (self.num_slots, key_states.shape[1], self.max_length)
            self._keys.append(key_states.new_zeros(*shape, key_states.shape[3]))
            self._values.append(value_states.new_zeros(*shape, value_states.shape[3]))
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        if self._positions_A is None:
            assert self._rows is not None
            keys[self._rows, :, : key_states.shape[2]] = key_states
            values[self._rows, :, : value_states.shape[2]] = value_states
            return key_states, value_states
        num_active = len(self._positions_A)
        rows_A = torch.arange(num_active, device=keys.device)
        keys[rows_A, :, self._positions_A] = key_states[:, :, 0]
        values[rows_A, :, self._positions_A] = value_states[:, :, 0]
        return keys[:num_active, :, : self._num_keys], values[:num_active, :, : self._num_keys]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0  # positions are always explicit; a model must not add an offset of its own


@dataclass(frozen=True)
class LayerKinds:
    """The kinds of attention layer in a model, and its sliding window if a layer has one."""

    kinds: frozenset[str]
    window: int | None


def kinds_of(config: PretrainedConfig) -> LayerKinds:
    """The layers of a model, from its configuration."""
    settings = config.get_text_config().to_dict()
    window = settings.get("sliding_window")
    kinds = settings.get("layer_types")
    if kinds is None:
        kinds = ["full_attention"] if window is None else ["sliding_attention"]
    return LayerKinds(frozenset(kinds), window if "sliding_attention" in kinds else None)


def attention_mask(
    query_positions_BT: Tensor, num_keys: int, dtype: torch.dtype, layers: LayerKinds
) -> Tensor | dict[str, Tensor]:
    """Which of the key positions 0..num_keys-1 each query may see, as numbers to add to the attention scores.

    Returns [B, 1, T, num_keys]: 0 where key <= query (and query - key < window in a sliding layer), the lowest
    finite number elsewhere. Models that mix kinds of layer get one mask for each kind.
    """
    query_BT1 = query_positions_BT.unsqueeze(2)
    key_K = torch.arange(num_keys, device=query_positions_BT.device)
    lowest = torch.finfo(dtype).min

    def additive(hidden_BTK: Tensor) -> Tensor:
        mask_BTK = torch.zeros(hidden_BTK.shape, dtype=dtype, device=hidden_BTK.device)
        return mask_BTK.masked_fill_(hidden_BTK, lowest).unsqueeze(1)

    later_BTK = key_K > query_BT1
    if layers.window is None:
        return additive(later_BTK)
    sliding = additive(later_BTK | (key_K <= query_BT1 - layers.window))
    if layers.kinds == {"sliding_attention"}:
        return sliding
    return {"full_attention": additive(later_BTK), "sliding_attention": sliding}
