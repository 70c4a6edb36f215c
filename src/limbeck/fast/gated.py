"""The gated MLP of the Llama-shaped families with two tensors saved for the backward pass instead of four.

Autograd saves the gate, its activation, the up projection and their product; two of them are cheap to recompute. That
is a quarter of the activation memory of such a model in training. The operations and their results are the same.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from limbeck.compat import llama_body, replace_forward

__all__ = ["FAMILIES", "gated_down", "patch_gated_mlp"]

# Each layer computes down(act(gate(x)) · up(x)) with three linear layers.
FAMILIES = ("llama", "qwen2", "qwen3")


def patch_gated_mlp(module: PreTrainedModel) -> None:
    """Replace the forward of the module's gated MLPs by one that saves less for the backward pass.

    Other families, and layers with adapters, are left unchanged. Raises compat.Renamed if transformers lacks a name.
    """
    if module.config.model_type not in FAMILIES or module.config.hidden_act != "silu":
        return
    for layer in llama_body(module, normed_heads=False).layers:
        down = layer.mlp.down_proj
        if type(down) is nn.Linear and down.bias is None:  # not one with an adapter
            replace_forward(layer.mlp, partial(_forward, layer.mlp))


def gated_down(gate: Tensor, up: Tensor, weight_HI: Tensor) -> Tensor:
    """(silu(gate) · up) weightᵀ, from [..., I] to [..., H]; differentiable once in all three."""
    found = _GatedDown.apply(gate, up, weight_HI)
    assert isinstance(found, Tensor)
    return found


def _forward(mlp: Any, hidden: Tensor) -> Tensor:
    return gated_down(mlp.gate_proj(hidden), mlp.up_proj(hidden), mlp.down_proj.weight)


class _GatedDown(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, weight_HI: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up, weight_HI)
        return functional.linear(functional.silu(gate).mul_(up), weight_HI)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        (grad,) = gradients
        gate, up, weight_HI = ctx.saved_tensors
        activated, in_weight_HI = functional.silu(gate), None
        if ctx.needs_input_grad[2]:
            in_weight_HI = grad.flatten(0, -2).T @ (activated * up).flatten(0, -2)
        in_product = grad @ weight_HI
        in_up = activated.mul_(in_product)
        return torch.ops.aten.silu_backward(in_product.mul_(up), gate), in_up, in_weight_HI
