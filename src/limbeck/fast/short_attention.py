"""Attention over short sequences and its gradient, for bfloat16 weights on a CPU.

torch's own kernel processes the queries of a sequence shorter than 192 positions 32 at a time, and in bfloat16 its
backward pass is then three times as slow as explicit matrix products, which use the matrix units for whole sequences.
Here, explicit products process a few sequences at a time. Scores and probabilities are float32, and the backward pass
recomputes them, so nothing that grows with the square of the length is saved.

Shapes  B = sequences, T = queries, K = keys, H = query heads, G = key/value heads, R = H / G, D = head size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from limbeck.compat import attention_implementation
from limbeck.objectives.head import rounded_products

__all__ = ["patch_short_attention", "short_attention"]

SHORT = 192
GROUP_BYTES = 16 * 2**20  # of the scores that are computed at a time
_NAME = "limbeck_short"
_CHANGES_SCORES = ("position_bias", "softcap", "s_aux")


def patch_short_attention(module: PreTrainedModel) -> None:
    """Train the module with this attention for short sequences, if its family supports custom attention."""
    AttentionInterface.register(_NAME, _attend)
    AttentionMaskInterface.register(_NAME, sdpa_mask)
    if attention_implementation(module) == "sdpa" and module.is_backend_compatible():
        module.set_attn_implementation(_NAME)


def short_attention(
    query_BHTD: Tensor, key_BGKD: Tensor, value_BGKD: Tensor, mask_B1TK: Tensor, scale: float
) -> Tensor:
    """softmax(scale · query keyᵀ + mask) value, [B, H, T, D]; each of the G heads serves R consecutive query heads.

    Differentiable in query, key and value. The mask is additive. Products of 16-bit tensors are summed in float32.
    """
    found = _ShortAttention.apply(query_BHTD, key_BGKD, value_BGKD, mask_B1TK, scale)
    assert isinstance(found, Tensor)
    return found


class _ShortAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(query, key, value, mask)
        ctx.scale = scale
        found = query.new_empty(*query.shape[:3], value.shape[-1])
        with rounded_products(query.dtype == torch.bfloat16):
            for rows in _groups(query, key):
                weights, _, _ = _weights(query[rows], key[rows], mask[rows], scale)
                found[rows] = (weights @ _wide(value[rows])).view(found[rows].shape)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        query, key, value, mask = ctx.saved_tensors
        in_query, in_key, in_value = (torch.empty_like(tensor) for tensor in (query, key, value))
        with rounded_products(query.dtype == torch.bfloat16):
            for rows in _groups(query, key):
                weights, scaled_queries, keys = _weights(query[rows], key[rows], mask[rows], ctx.scale)
                received = _wide(gradients[0][rows]).reshape(*scaled_queries.shape[:3], -1)
                in_value[rows] = weights.transpose(-1, -2) @ received
                in_scores = received @ _wide(value[rows]).transpose(-1, -2)
                in_scores.sub_((in_scores * weights).sum(-1, keepdim=True)).mul_(weights)
                in_query[rows] = (in_scores @ keys).mul_(ctx.scale).view(in_query[rows].shape)
                in_key[rows] = in_scores.transpose(-1, -2) @ scaled_queries
        return in_query, in_key, in_value, None, None


def _weights(query: Tensor, key: Tensor, mask: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities [B, G, R·T, K]; the scaled queries [B, G, R·T, D] and the keys that they come from."""
    num_rows, num_heads, num_queries, size = query.shape
    num_groups = key.shape[1]
    scaled_queries = (_wide(query) * scale).reshape(num_rows, num_groups, num_heads // num_groups * num_queries, size)
    keys = _wide(key)
    scores = scaled_queries @ keys.transpose(-1, -2)
    scores.view(num_rows, num_groups, -1, num_queries, keys.shape[2]).add_(mask.unsqueeze(2))
    return scores.softmax(-1), scaled_queries, keys


def _groups(query: Tensor, key: Tensor) -> Iterator[slice]:
    num_rows, num_heads, num_queries, _ = query.shape
    step = max(1, GROUP_BYTES // (num_heads * num_queries * key.shape[2] * torch.float32.itemsize))
    return (slice(start, min(start + step, num_rows)) for start in range(0, num_rows, step))


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls: short sequences in training here, all others by its own."""
    mask = attention_mask
    learns = torch.is_grad_enabled() and query.requires_grad and query.shape[2] < SHORT
    plain = mask is not None and mask.dtype in (query.dtype, torch.bool) and mask.shape[1] == 1 and dropout == 0
    if not (learns and plain) or any(options.get(name) is not None for name in _CHANGES_SCORES):
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    assert mask is not None
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, torch.finfo(query.dtype).min)
    mask = mask.expand(len(query), -1, -1, -1)
    return short_attention(query, key, value, mask, scale).transpose(1, 2).contiguous(), None
