"""Output heads, which turn hidden states into logits, and the precision of their matrix products.

Axes: N flat positions, V vocabulary rows of a head, H hidden size.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

import limbeck.objectives.messages as messages
from limbeck.objectives.divergence import compute_dtype

__all__ = ["Head", "head_of", "products", "rounded_products"]

# A 16-bit head up to this size is converted once for all chunks, a larger one a slice at a time.
WIDENED_AT_ONCE_BYTES = 256 * 2**20
WIDENED_BYTES = 32 * 2**20


@dataclass(frozen=True)
class Head:
    """An output head: logits = softcap(scale · (hidden · weightᵀ + bias)), cut to the real vocabulary.

    weight_VH  one row per token id; rows from num_real on are padding and are not used
    bias_V     one entry per row of the weight, or None
    num_real   the number of rows used, the shared vocabulary: logits are cut before any softmax
    scale      multiplies the logits
    softcap    c in c·tanh(logits / c), applied after the scale, or None
    rounded    whether weight_VH holds bfloat16 values, whatever its dtype
    """

    weight_VH: Tensor
    bias_V: Tensor | None
    num_real: int
    scale: float = 1.0
    softcap: float | None = None
    rounded: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.weight_VH, Tensor) or self.weight_VH.ndim != 2 or not self.weight_VH.is_floating_point():
            raise messages.head_not_plain(layer=type(self.weight_VH).__name__)
        num_rows = self.weight_VH.shape[0]
        if self.bias_V is not None and list(self.bias_V.shape) != [num_rows]:
            raise messages.head_bias_shape(num_rows=num_rows, bias=str(list(self.bias_V.shape)))
        if not 1 <= self.num_real <= num_rows:
            raise messages.head_num_real(num_real=self.num_real, num_rows=num_rows)
        usable = math.isfinite(self.scale) and self.scale != 0
        if not usable or (self.softcap is not None and not (self.softcap > 0 and math.isfinite(self.softcap))):
            raise messages.head_scale(scale=repr(self.scale), softcap=repr(self.softcap))

    def logits(self, hidden_NH: Tensor) -> Tensor:
        """Logits [N, num_real] of hidden states [N, H], float32 or wider; differentiable as usual."""
        dtype = compute_dtype(hidden_NH, self.weight_VH)
        with products(self, hidden_NH):
            wide_NH = hidden_NH.to(dtype)
            parts = [wide_NH @ rows_VH.to(dtype).T for _, rows_VH in self.slices(dtype)]
        logits_NV = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
        if self.bias_V is not None:
            logits_NV = logits_NV + self.bias_V[: self.num_real].to(dtype)
        if self.scale != 1:
            logits_NV = logits_NV * self.scale
        if self.softcap is not None:
            logits_NV = torch.tanh(logits_NV / self.softcap) * self.softcap
        return logits_NV

    def widened(self, dtype: torch.dtype) -> Head:
        """The same head in a wider dtype if it is small enough to be converted at once, otherwise itself."""
        num_bytes = self.num_real * self.weight_VH.shape[1] * dtype.itemsize
        if self.weight_VH.dtype == dtype or num_bytes > WIDENED_AT_ONCE_BYTES:
            return self
        rounded = self.weight_VH.dtype == torch.bfloat16
        bias_V = None if self.bias_V is None else self.bias_V[: self.num_real]
        return replace(self, weight_VH=self.weight_VH[: self.num_real].to(dtype), bias_V=bias_V, rounded=rounded)

    def slices(self, dtype: torch.dtype) -> list[tuple[slice, Tensor]]:
        """The rows used: all at once if they have this dtype, otherwise in slices that are converted one at a time."""
        step = self.num_real
        if self.weight_VH.dtype != dtype:
            step = max(1, WIDENED_BYTES // (self.weight_VH.shape[1] * dtype.itemsize))
        starts = range(0, self.num_real, step)
        cuts = [slice(start, min(start + step, self.num_real)) for start in starts]
        return [(cut, self.weight_VH[cut]) for cut in cuts]


@contextmanager
def products(head: Head, other: Tensor) -> Generator[None]:
    """Let products with bfloat16 values use bfloat16 hardware; they are still summed in float32.

    The gradient is rounded once before such a product, as in every layer of a bfloat16 model.
    """
    rounded = head.rounded or head.weight_VH.dtype == torch.bfloat16
    with rounded_products(rounded), torch.autocast(other.device.type, enabled=False):
        yield


@contextmanager
def rounded_products(rounded: bool) -> Generator[None]:
    """If `rounded`, let products of float32 tensors round their inputs to bfloat16; sums are in float32."""
    before = torch.get_float32_matmul_precision()
    if rounded:
        torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def head_of(module: nn.Module, *, num_real: int, scale: float = 1.0, softcap: float | None = None) -> Head:
    """The head of a model's output embedding, which must be a plain nn.Linear.

    Raises Refusal (ValueError) for any other module: an adapter (LoRA), a quantised or a parametrised layer computes
    more than weight and bias do, and ignoring that would train on the wrong logits.
    """
    if type(module) is not nn.Linear:
        raise messages.head_not_plain(layer=f"{type(module).__module__}.{type(module).__qualname__}")
    return Head(module.weight, module.bias, num_real, scale, softcap)
