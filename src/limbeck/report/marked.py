"""Marked answers as a page shows them: running text with its worst places, and what each model would have said there.

Only what is shown is kept here, so that a page can be made from any source of marks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Candidate", "Mark", "MarkedAnswer", "Piece"]


@dataclass(frozen=True)
class Candidate:
    """A token that one of the models thought of, with both probabilities; `written` is the one in the answer."""

    text: str
    teacher: float
    student: float
    written: bool = False


@dataclass(frozen=True)
class Mark:
    """One serious place. `weight` is 1 to 3, `teacher_unsure` says that the teacher had no clear opinion either.

    `teacher_text` is what the teacher would have said, `else_teacher` and `else_student` what is left for all tokens
    that are no candidate.
    """

    number: int
    position: int
    weight: int
    turning_point: bool
    teacher_unsure: bool
    text: str
    divergence: float
    student: float
    teacher: float
    teacher_text: str
    teacher_best: float
    student_entropy: float
    teacher_entropy: float
    candidates: Sequence[Candidate]
    else_teacher: float
    else_student: float

    @property
    def leads_with_space(self) -> bool:
        """Whether the token is a word with the space before it."""
        return self.text.startswith(" ") and bool(self.text.strip())


@dataclass(frozen=True)
class Piece:
    """A stretch of the answer; with a mark it is one token."""

    text: str
    mark: Mark | None = None


@dataclass(frozen=True)
class MarkedAnswer:
    """`key` is that of the row that the answer belongs to; `measure` says what the divergence of its marks is."""

    key: str
    model: str
    prompt: str
    pieces: Sequence[Piece]
    num_tokens: int
    measure: str

    @property
    def marks(self) -> list[Mark]:
        return [piece.mark for piece in self.pieces if piece.mark is not None]
