"""Attention masks, and a cache with which several rows share the tokens that they begin with.

Masks are always explicit and follow from positions alone: a query attends to the keys at its own position and before.
Padding comes after all tokens of its row, so it is never attended to.

Shapes  B = sequences, T = positions, K = key positions, G = key/value heads, D = head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig
from transformers.cache_utils import Cache

__all__ = ["NEVER_SEEN", "ContextCache", "ExplicitCache", "LayerKinds", "Unsuitable", "attention_mask", "layer_kinds"]

# The position of a padding key.
NEVER_SEEN = 1 << 40


@dataclass(frozen=True)
class LayerKinds:
    """The kinds of attention layers of a model, and the sliding window if a layer has one."""

    kinds: frozenset[str]
    window: int | None


def layer_kinds(config: PretrainedConfig) -> LayerKinds:
    """The kinds of layers of a model, from its configuration."""
    settings = config.get_text_config().to_dict()
    window = settings.get("sliding_window")
    kinds = settings.get("layer_types")
    if kinds is None:
        kinds = ["full_attention"] if window is None else ["sliding_attention"]
    return LayerKinds(frozenset(kinds), window if "sliding_attention" in kinds else None)


def attention_mask(
    query_positions_BT: Tensor, key_positions_BK: Tensor, dtype: torch.dtype, layers: LayerKinds
) -> Tensor | dict[str, Tensor]:
    """The additive mask of the attention scores.

    `key_positions_BK` may have one row for all queries. Returns [B, 1, T, K] in `dtype`: 0 where key <= query (and
    query - key < window in a sliding layer), the lowest finite number elsewhere. A model with several kinds of layers
    gets one mask for each kind.
    """
    query_BT1, key_B1K = query_positions_BT.unsqueeze(2), key_positions_BK.unsqueeze(1)
    lowest = torch.finfo(dtype).min

    def additive(hidden_BTK: Tensor) -> Tensor:
        mask_BTK = torch.zeros(hidden_BTK.shape, dtype=dtype, device=hidden_BTK.device)
        return mask_BTK.masked_fill_(hidden_BTK, lowest).unsqueeze(1)

    later_BTK = key_B1K > query_BT1
    if layers.window is None:
        return additive(later_BTK)
    sliding = additive(later_BTK | (key_B1K <= query_BT1 - layers.window))
    if layers.kinds == {"sliding_attention"}:
        return sliding
    return {"full_attention": additive(later_BTK), "sliding_attention": sliding}


class Unsuitable(Exception):
    """An architecture needs more of its cache than keys and values at explicit positions; `str` is what it needs."""


class _NoLayers(list[Any]):
    """The layers of a cache without transformers' own; an architecture that uses one keeps other state there."""

    def __getitem__(self, index: Any) -> Any:
        raise Unsuitable("it reads the layers of its cache")


class ExplicitCache(Cache):
    """A cache of keys and values whose positions are always given, so that nothing is inferred from its length."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.layers = _NoLayers()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise Unsuitable(f"it uses {name} of its cache")

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0  # the model must not add an offset to the positions


class ContextCache(ExplicitCache):
    """Prepends the keys and values of a context to those of the current pass, and stores both.

    Differentiable: the gradients of all rows that share a context are summed in the context.
    """

    def __init__(self, context: ContextCache | None = None, row_B: Tensor | None = None) -> None:
        """`row_B` (int64) is the row of `context` that each row of the next pass continues."""
        super().__init__()
        self._context = context
        self._row_B = row_B
        self.stored: list[tuple[Tensor, Tensor]] = []

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Called by every attention layer with its new keys and values [B, G, T, D]; returns those to attend to."""
        both = (key_states, value_states)
        if self._context is not None and self._row_B is not None:
            before = self._context.stored[layer_idx]
            rows = [_rows(earlier, self._row_B) for earlier in before]
            both = (torch.cat([rows[0], key_states], dim=2), torch.cat([rows[1], value_states], dim=2))
        self.stored.append(both)
        return both


def _rows(stored: Tensor, row_B: Tensor) -> Tensor:
    """Rows of a stored tensor; a single row is expanded, so its gradient is a sum instead of a scatter."""
    return stored.expand(len(row_B), -1, -1, -1) if len(stored) == 1 else stored[row_B]
