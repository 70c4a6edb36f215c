"""What a teacher says of a text that somebody else wrote.

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
    """The whole distribution at each of N positions, as hidden states and the head that turns them into logits.

    Logits themselves would take V / H times the memory; the objective makes them in chunks.
    """

    hidden_NH: Tensor
    head: Head


class Teacher(Protocol):
    """Reads prompt and completion in one pass and says what it would have written at each completion position."""

    def score(self, batch: TokenBatch) -> Dense: ...
