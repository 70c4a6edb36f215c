"""The divergence on held-out prompts, on two kinds of text.

    fixed teacher text   written by the teacher once, before training: does the student lose what the teacher covers?
    fresh student text   written by the student now: does it agree with the teacher where it goes by itself?

Only together they tell learning from collapse: a student that falls back on a few safe phrases improves on its own
text while it gets worse on the teacher's. Where no teacher scores, a given text is measured by its cross-entropy, and
of the student's own nothing but lengths is known.

Shapes  N = completion tokens of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from limbeck.data.prompt import Prompt
from limbeck.evaluation.deciding.statistics import Interval, mean_per_token
from limbeck.models.language_model import LanguageModel
from limbeck.objectives.cross_entropy import fused_cross_entropy
from limbeck.objectives.divergence import Objective
from limbeck.objectives.fused import fused_with_statistics
from limbeck.objectives.reduce import token_weights
from limbeck.rollouts.request import Completion
from limbeck.teachers.signal import Teacher
from limbeck.training.batches import micro_batches
from limbeck.training.health import is_repetitive

__all__ = ["TextMeasure", "measure_lengths", "measure_text"]


@dataclass(frozen=True)
class TextMeasure:
    """How far student and teacher are apart on a text. Nats per token; shares and lengths over answers.

    Without a teacher that scores, `divergence` is the cross-entropy of a given text and `agreement` the share of its
    tokens that are the student's first choice; both are None for a text that the student wrote. `nats` is the mean
    of each answer.
    """

    mean_length: float
    cut_off_share: float
    repetitive_share: float
    num_tokens: int
    divergence: Interval | None = None
    agreement: float | None = None
    student_entropy: float | None = None
    teacher_entropy: float | None = None
    nats: tuple[float, ...] = ()

    def as_event(self) -> dict[str, Any]:
        """What a run's log keeps of it."""
        return {name: value for name, value in asdict(self).items() if name != "nats"}


@torch.no_grad()
def measure_text(
    student: LanguageModel,
    teacher: Teacher | None,
    prompts: Sequence[Prompt],
    answers: Sequence[Completion],
    objective: Objective | None,
    *,
    max_tokens: int,
    pad_id: int,
    chunk_tokens: int,
    share: bool = False,
) -> TextMeasure:
    """Read `answers` and measure the objective at every completion token: without one, the cross-entropy."""
    num_tokens = sum(len(answer.ids) for answer in answers)
    sums = [0.0] * len(prompts)
    agreed = student_entropy = teacher_entropy = 0.0
    for batch in micro_batches(
        prompts, answers, max_tokens=max_tokens, pad_id=pad_id, device=student.device, share=share
    ):
        hidden_NH = student.completion_hidden(batch.tokens)
        weights_N = token_weights(num_tokens, batch.tokens.num_tokens, dtype=torch.float64, device=student.device)
        text_N = batch.tokens.targets_N
        if teacher is None or objective is None:
            _, reading = fused_cross_entropy(hidden_NH, student.head, text_N, weights_N, chunk_tokens=chunk_tokens)
        else:
            signal = teacher.score(batch.tokens)
            _, reading = fused_with_statistics(
                hidden_NH,
                student.head,
                signal.hidden_NH,
                signal.head,
                weights_N,
                objective,
                token_ids_N=text_N,
                chunk_tokens=chunk_tokens,
            )
        for row, value in zip(batch.tokens.row_N.tolist(), reading.divergence_N.tolist(), strict=True):
            sums[batch.rows[row]] += value
        agreed += reading.agree_N.double().sum().item()
        student_entropy += reading.student_entropy_N.double().sum().item()
        teacher_entropy += reading.teacher_entropy_N.double().sum().item()
    lengths = [len(answer.ids) for answer in answers]
    return replace(
        measure_lengths(answers),
        divergence=mean_per_token(sums, lengths),
        nats=tuple(total / length for total, length in zip(sums, lengths, strict=True)),
        agreement=agreed / num_tokens,
        student_entropy=student_entropy / num_tokens,
        teacher_entropy=None if teacher is None else teacher_entropy / num_tokens,
    )


def measure_lengths(answers: Sequence[Completion]) -> TextMeasure:
    """What can be said of answers that no model reads."""
    num_tokens = sum(len(answer.ids) for answer in answers)
    return TextMeasure(
        mean_length=num_tokens / len(answers),
        cut_off_share=sum(answer.cut_off for answer in answers) / len(answers),
        repetitive_share=sum(is_repetitive(answer.ids) for answer in answers) / len(answers),
        num_tokens=num_tokens,
    )
