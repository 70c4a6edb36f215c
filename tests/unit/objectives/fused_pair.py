"""A student and a teacher on heads with everything a model may put on them.

Axes: N tokens, V vocabulary rows, H hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from limbeck.objectives.fused import fused_divergence
from limbeck.objectives.head import Head
from limbeck.objectives.objective import Objective

NUM_TOKENS, NUM_REAL = 7, 37


@dataclass
class Pair:
    """Student with 40 rows and hidden size 6, teacher with 44 rows and hidden size 5, 37 of the rows real."""

    student_NH: Tensor
    weight_VH: Tensor
    bias_V: Tensor | None
    teacher_NH: Tensor
    teacher_head: Head
    weights_N: Tensor
    scale: float = 1.0
    softcap: float | None = None

    def head(self) -> Head:
        return Head(self.weight_VH, self.bias_V, NUM_REAL, self.scale, self.softcap)

    def inputs(self) -> list[Tensor]:
        return [tensor for tensor in (self.student_NH, self.weight_VH, self.bias_V) if tensor is not None]


def make_pair(*, dtype: torch.dtype = torch.float64, plain: bool = False, seed: int = 0) -> Pair:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    bias_V, teacher_bias_V = draw(40), draw(44)
    return Pair(
        draw(NUM_TOKENS, 6).requires_grad_(),
        draw(40, 6).requires_grad_(),
        None if plain else bias_V.requires_grad_(),
        draw(NUM_TOKENS, 5),
        Head(draw(44, 5), None if plain else teacher_bias_V, NUM_REAL, 1.0 if plain else 0.7, None if plain else 3.0),
        draw(NUM_TOKENS).float(),
        scale=1.0 if plain else 0.5,
        softcap=None if plain else 2.0,
    )


def fused(pair: Pair, objective: Objective, chunk_tokens: int | None = None) -> tuple[Tensor, Tensor]:
    return fused_divergence(
        pair.student_NH,
        pair.head(),
        pair.teacher_NH,
        pair.teacher_head,
        pair.weights_N,
        objective,
        chunk_tokens=chunk_tokens,
    )
