"""The lean decoder: the forward pass of the Llama-shaped families, reduced to what generation needs.

Per layer: norm, one product for queries, keys and values, rotation, attention over a static cache, output projection,
norm, one product for gate and up, down projection. Sizes, biases and norms are read from the model's own modules, so
the same code serves Llama, Qwen2 and Qwen3. The weights are the model's own if they are adjacent in memory (see
`models.arena`). `rollouts.probe` uses this decoder only if it agrees with the model itself.

Shapes  S = rows of the cache, B = rows of a pass, T = positions, M = B x T, K = key positions, H = hidden,
        V = vocabulary, D = head size, G = key/value heads, R = query heads for each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from limbeck.compat import llama_body
from limbeck.fast.gated import FAMILIES
from limbeck.models.adapters import merged_weight
from limbeck.models.arena import joined
from limbeck.models.attention import attention_mask, kinds_of
from limbeck.models.language_model import LanguageModel

__all__ = ["LeanDecoder", "is_lean"]

# The rotation angles of these depend on the length of the sequence.
CHANGING_ROTATIONS = ("dynamic", "longrope")
# Products with more rows than this come from prefill, not from decoding.
FEW_ROWS = 128
# For this many rows, blocks of this many outputs are faster than one product, as measured; for others it is slower.
BLOCK_OUTPUTS = 32
BLOCK_ROWS = range(3, 13)


def is_lean(model: LanguageModel) -> bool:
    """Whether `LeanDecoder` supports the model's configuration; the probe then compares the results."""
    config = model.module.config
    rotation = (config.to_dict().get("rope_parameters") or {}).get("rope_type", "default")
    return (
        config.model_type in FAMILIES
        and kinds_of(config).window is None
        and rotation not in CHANGING_ROTATIONS
        and model.head.softcap is None
    )


class _Product:
    """x · weightᵀ + bias, for the weights of several linear layers at once."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        weights = [merged_weight(layer) for layer in layers]
        biases: list[Any] = [layer.bias for layer in layers]
        self._weight = joined(weights)
        self._bias = None
        if any(bias is not None for bias in biases):
            pairs = zip(weights, biases, strict=True)
            self._bias = torch.cat([w.new_zeros(len(w)) if bias is None else bias.detach() for w, bias in pairs])
        on_cpu = self._weight.device.type == "cpu"
        # on a CPU, a bfloat16 product is faster with the weight on the left
        self._weight_first = on_cpu and self._weight.dtype == torch.bfloat16
        # a float32 product is faster in blocks, which the library distributes over its threads
        num_outputs, num_inputs = self._weight.shape
        self._blocks = None
        if on_cpu and self._weight.dtype == torch.float32 and num_outputs % BLOCK_OUTPUTS == 0:
            self._blocks = self._weight.view(-1, BLOCK_OUTPUTS, num_inputs).transpose(1, 2)

    def __call__(self, x_MH: Tensor) -> Tensor:
        num_rows = len(x_MH)
        if self._blocks is not None and num_rows in BLOCK_ROWS:
            product_MI = torch.bmm(x_MH.expand(len(self._blocks), -1, -1), self._blocks)
            product_MI = product_MI.transpose(0, 1).reshape(num_rows, -1)
        elif self._weight_first and num_rows <= FEW_ROWS:
            product_MI = (self._weight @ x_MH.t()).t().contiguous()
        else:
            return functional.linear(x_MH, self._weight, self._bias)
        return product_MI if self._bias is None else product_MI.add_(self._bias)


@dataclass(frozen=True)
class _Layer:
    """One layer's weights and its part of the cache, [S·T, G·D] each."""

    read: _Product
    back: _Product
    gate_up: _Product
    down: _Product
    attention_norm: nn.Module
    mlp_norm: nn.Module
    query_norm: nn.Module | None
    key_norm: nn.Module | None
    activation: nn.Module
    keys: Tensor
    values: Tensor


class LeanDecoder:
    """A `rollouts.slots.Decoder` for Llama-shaped models; collects the current weights at each `prepare`."""

    def __init__(self, model: LanguageModel) -> None:
        assert is_lean(model)
        self._model = model
        self._has_norms = model.module.config.model_type == "qwen3"
        self._body = body = llama_body(model.module, normed_heads=self._has_norms)
        first = body.layers[0].self_attn
        self._head_size = first.head_dim
        self._num_groups = first.k_proj.out_features // self._head_size
        self._num_queries = first.q_proj.out_features // self._head_size
        self._scaling = first.scaling
        self._kinds = kinds_of(model.module.config)
        self._max_length = self._num_rows = 0
        self._layers: list[_Layer] = []
        self._head: _Product | None = None
        self._caches: list[tuple[Tensor, Tensor]] = []

    @torch.no_grad()
    def prepare(self, num_rows: int, max_length: int) -> None:
        model, body = self._model, self._body
        if num_rows > self._num_rows or max_length > self._max_length:
            self._num_rows, self._max_length = num_rows, max_length
            shape = (num_rows * max_length, self._num_groups * self._head_size)
            zeros = partial(torch.zeros, shape, dtype=model.dtype, device=model.device)
            self._caches = [(zeros(), zeros()) for _ in body.layers]
            positions_1T = torch.arange(max_length, device=model.device).unsqueeze(0)
            like = torch.empty(1, dtype=model.dtype, device=model.device)
            self._cos_TD, self._sin_TD = (table[0] for table in body.rotary_emb(like, positions_1T))
        self._layers = [
            _Layer(
                read=_Product([layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj]),
                back=_Product([layer.self_attn.o_proj]),
                gate_up=_Product([layer.mlp.gate_proj, layer.mlp.up_proj]),
                down=_Product([layer.mlp.down_proj]),
                attention_norm=layer.input_layernorm,
                mlp_norm=layer.post_attention_layernorm,
                query_norm=layer.self_attn.q_norm if self._has_norms else None,
                key_norm=layer.self_attn.k_norm if self._has_norms else None,
                activation=layer.mlp.act_fn,
                keys=keys,
                values=values,
            )
            for layer, (keys, values) in zip(body.layers, self._caches, strict=True)
        ]
        head = model.module.get_output_embeddings()
        assert isinstance(head, nn.Module)
        self._head = _Product([head])

    def release(self) -> None:
        self._layers, self._head = [], None

    @torch.no_grad()
    def forward(self, ids_BT: Tensor, positions_BT: Tensor, first_row: int, num_keys: int) -> Tensor:
        num_rows, width = ids_BT.shape
        position_M = positions_BT.flatten()
        rows_B1 = torch.arange(first_row, first_row + num_rows, device=ids_BT.device).unsqueeze(1)
        index_M = (rows_B1 * self._max_length + positions_BT).flatten()
        cos_M1D, sin_M1D = self._cos_TD[position_M].unsqueeze(1), self._sin_TD[position_M].unsqueeze(1)
        keys_1K = torch.arange(num_keys, device=ids_BT.device).unsqueeze(0)
        mask_B1TK = attention_mask(positions_BT, keys_1K, self._model.dtype, self._kinds)
        assert isinstance(mask_B1TK, Tensor), "one kind of layer"
        num_shared = self._num_queries // self._num_groups
        mask = mask_B1TK.repeat_interleave(num_shared, dim=2) if width > 1 else mask_B1TK
        hidden_MH = self._body.embed_tokens(ids_BT.flatten())
        for layer in self._layers:
            queries_MGRD = self._read(layer, hidden_MH, index_M, cos_M1D, sin_M1D)
            # queries that share keys become positions of one head, so keys are not repeated
            queries = queries_MGRD.view(num_rows, width, self._num_groups, num_shared, self._head_size)
            queries = queries.permute(0, 2, 1, 3, 4).reshape(num_rows, self._num_groups, -1, self._head_size)
            cut = slice(first_row, first_row + num_rows)
            keys, values = (
                stored.view(self._num_rows, self._max_length, self._num_groups, self._head_size)[cut, :num_keys]
                for stored in (layer.keys, layer.values)
            )
            seen = functional.scaled_dot_product_attention(
                queries, keys.transpose(1, 2), values.transpose(1, 2), attn_mask=mask, scale=self._scaling
            )
            seen = seen.view(num_rows, self._num_groups, width, num_shared, self._head_size).permute(0, 2, 1, 3, 4)
            hidden_MH = hidden_MH + layer.back(seen.reshape(num_rows * width, -1))
            gate_MI, up_MI = layer.gate_up(layer.mlp_norm(hidden_MH)).chunk(2, dim=1)
            hidden_MH = hidden_MH + layer.down(layer.activation(gate_MI) * up_MI)
        return self._body.norm(hidden_MH).view(num_rows, width, -1)

    def _read(self, layer: _Layer, hidden_MH: Tensor, index_M: Tensor, cos_M1D: Tensor, sin_M1D: Tensor) -> Tensor:
        """Queries [M, G·R, D] of a layer; stores its keys and values in the cache."""
        together = layer.read(layer.attention_norm(hidden_MH)).view(len(hidden_MH), -1, self._head_size)
        turning, values = together.split([self._num_queries + self._num_groups, self._num_groups], dim=1)
        if layer.query_norm is not None and layer.key_norm is not None:
            queries, keys = turning.split([self._num_queries, self._num_groups], dim=1)
            turning = torch.cat([layer.query_norm(queries), layer.key_norm(keys)], dim=1)
        left, right = turning.chunk(2, dim=-1)
        turned = (turning * cos_M1D).addcmul_(torch.cat([-right, left], dim=-1), sin_M1D)
        layer.keys.index_copy_(0, index_M, turned[:, self._num_queries :].flatten(1))
        layer.values.index_copy_(0, index_M, values.flatten(1))
        return turned[:, : self._num_queries]

    def copy(self, source: int, first_row: int, num_rows: int, num_positions: int) -> None:
        for stored in (tensor for pair in self._caches for tensor in pair):
            rows = stored.view(self._num_rows, self._max_length, -1)
            rows[first_row : first_row + num_rows, :num_positions] = rows[source, :num_positions]

    def logits(self, hidden_BH: Tensor) -> Tensor:
        head = self._model.head
        assert self._head is not None
        logits_BV = self._head(hidden_BH)[:, : head.num_real].float()
        return logits_BV if head.scale == 1 else logits_BV * head.scale
