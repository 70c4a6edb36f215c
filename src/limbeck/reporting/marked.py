"""Marked answers for a page: running text with its worst tokens, and the probabilities of both models there."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from limbeck.reporting.messages import page as texts

if TYPE_CHECKING:  # a page without marks does not import numpy
    from limbeck.runs.marks import Mark, MarkedAnswer, MarkSheet

__all__ = ["MarkNote", "Sheet", "sheets"]

NUM_CANDIDATES = 8
LEADING_SPACE = "␣"
MARK_WEIGHTS = {"serious": 3, "mild": 2, "unsure": 1}


@dataclass(frozen=True)
class MarkNote:
    """The note on a mark. All texts can be shown: invisible characters are replaced by signs.

    A candidate has a text, the teacher's and the student's probability, and whether it is the token of the answer.
    `rest` has both probabilities of all other tokens together.
    """

    number: int
    position: int
    weight: int
    kind: str
    turning_point: bool
    nats: float
    written: str
    student: float
    teacher: float
    teacher_rank: int
    teacher_text: str
    teacher_best: float
    student_entropy: float
    teacher_entropy: float
    candidates: tuple[tuple[str, float, float, bool], ...]
    rest: tuple[float, float]

    @property
    def follows_space(self) -> bool:
        """Whether the token is a word that begins with a space."""
        return self.written.startswith(LEADING_SPACE) and self.written != LEADING_SPACE


@dataclass(frozen=True)
class Sheet:
    """One marked answer: `parts` are pieces of text, each with the note on the token after it (None at the end)."""

    key: str
    title: str
    prompt: str
    parts: tuple[tuple[str, MarkNote | None], ...]
    num_tokens: int
    cut_off: bool
    beta: float

    @property
    def notes(self) -> list[MarkNote]:
        return [note for _, note in self.parts if note is not None]


def sheets(marked: MarkSheet) -> Iterator[Sheet]:
    """The answers of a file of marks, at its own beta and temperature 1."""
    student = marked.student
    if marked.step is not None:
        student = texts.marks_student_at(student=marked.student, step=marked.step)
    for answer in marked.answers:
        prompt = answer.messages[-1]["content"] if answer.messages else answer.prompt
        parts = tuple(_parts(answer, answer.marks(marked.beta)))
        title = texts.marks_title(source=answer.source, student=student, teacher=marked.teacher)
        yield Sheet(answer.key, title, prompt, parts, len(answer), answer.cut_off, marked.beta)


def _parts(answer: MarkedAnswer, marks: list[Mark]) -> Iterator[tuple[str, MarkNote | None]]:
    start = 0
    for number, mark in enumerate(marks, start=1):
        yield answer.shown(start, mark.position), _note(answer, mark, number)
        start = mark.position + 1
    yield answer.shown(start), None


def _note(answer: MarkedAnswer, mark: Mark, number: int) -> MarkNote:
    place = mark.position
    written_id = int(answer.token_ids[place])
    teacher, student = math.exp(answer.teacher_logp[place]), math.exp(answer.student_logp[place])
    written = answer.piece(place).shown, teacher, student, True
    others: list[tuple[str, float, float, bool]] = [
        (each.piece.shown, math.exp(each.teacher_logp), math.exp(each.student_logp), False)
        for each in answer.candidates(place)
        if each.token != written_id
    ]
    most_likely = sorted(others, key=lambda each: -max(each[1], each[2]))[: NUM_CANDIDATES - 1]
    shown = sorted([written, *most_likely], key=lambda each: -each[1])
    return MarkNote(
        number=number,
        position=place,
        weight=MARK_WEIGHTS[mark.kind],
        kind=mark.kind,
        turning_point=mark.turning_point,
        nats=mark.nats,
        written=written[0],
        student=student,
        teacher=teacher,
        teacher_rank=int(answer.teacher_rank[place]),
        teacher_text=shown[0][0],
        teacher_best=shown[0][1],
        student_entropy=float(answer.student_entropy[place]),
        teacher_entropy=float(answer.teacher_entropy[place]),
        candidates=tuple(shown),
        rest=(max(0.0, 1 - sum(each[1] for each in shown)), max(0.0, 1 - sum(each[2] for each in shown))),
    )
