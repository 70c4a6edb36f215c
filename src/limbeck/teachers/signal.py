"""The signal of a teacher: its distributions over a given text.

Shapes  N = completion tokens, H = the teacher's hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from limbeck.data.batch import TokenBatch
from limbeck.objectives.fused import Head

__all__ = ["Dense", "Teacher"]


@dataclass(frozen=True)
class Dense:
    """The full distribution at each of N positions, as hidden states and the head that turns them into logits.

    Logits would take V / H times the memory (V = vocabulary); the objective computes them in chunks.
    """

    hidden_NH: Tensor
    head: Head


class Teacher(Protocol):
    """Scores prompts with completions in one forward pass: its next-token distribution at each completion position."""

    def score(self, batch: TokenBatch) -> Dense: ...
