"""From what a step saw to its StepRecord.

Shapes  N = completion tokens of the whole step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from limbeck.data.prompt import Prompt
from limbeck.models.language_model import LanguageModel
from limbeck.objectives.fused import Readings
from limbeck.recipe.recipe import Recipe
from limbeck.rollouts.request import Completion
from limbeck.training.batches import MicroBatch
from limbeck.training.health import is_repetitive
from limbeck.training.state import PhaseClock, StepRecord, TrainState, WorstToken

__all__ = ["make_record"]

NUM_WORST_TOKENS = 5


def make_record(
    state: TrainState,
    recipe: Recipe,
    clock: PhaseClock,
    prompts: Sequence[Prompt],
    answers: Sequence[Completion],
    readings: Sequence[tuple[MicroBatch, Readings]],
    grad_norm: float,
    *,
    practice_limit: int | None = None,
    own: Sequence[tuple[MicroBatch, Readings]] = (),
) -> StepRecord:
    """Means over the step's completion tokens, shares over its answers, times and memory from the `clock` by phase.

    `state` still counts the step before. Where the student wrote some of the answers, lengths and shares are those of
    them alone. `own` are the readings of people's own answers, learnt beside the others.
    """
    num_tokens = sum(len(answer.ids) for answer in answers)
    written = [answer for answer in answers if answer.logprobs]
    judged = written or answers
    lengths = [len(answer.ids) for answer in judged]

    def share(flags: Iterable[bool]) -> float:
        return sum(flags) / len(judged)

    def each_us(phase: str, num: int) -> float | None:
        return 1e6 * clock.seconds[phase] / num if phase in clock.seconds else None

    taught = "reading" in clock.seconds
    return StepRecord(
        step=state.step + 1,
        loss=_mean("divergence_N", readings),
        grad_norm=grad_norm,
        learning_rate=state.learning_rate(recipe),
        practice_limit=practice_limit,
        num_answers=len(answers),
        num_prompt_tokens=sum(len(prompt.ids) for prompt in prompts),
        num_completion_tokens=num_tokens,
        write_s=clock.seconds.get("writing"),
        score_s=clock.seconds.get("reading"),
        update_s=clock.seconds["updating"],
        write_us_per_token=each_us("writing", sum(lengths)),
        score_us_per_token=each_us("reading", num_tokens),
        mean_length=sum(lengths) / len(judged),
        max_length=max(lengths),
        cut_off_share=share(answer.cut_off for answer in judged),
        # a stop token and nothing else
        empty_share=share(len(answer.ids) == 1 and not answer.cut_off for answer in judged),
        repetitive_share=share(is_repetitive(answer.ids) for answer in judged),
        student_entropy=_mean("student_entropy_N", readings),
        teacher_entropy=_mean("teacher_entropy_N", readings) if taught else None,
        agreement=_mean("agree_N", readings),
        student_logprob=_mean("student_logp_N", readings),
        teacher_logprob=_mean("teacher_logp_N", readings) if taught else None,
        engine_gap=_engine_gap(answers, readings) if written else None,
        worst_tokens=_worst_tokens(state.student, prompts, readings, taught),
        peak_bytes=clock.peak_bytes,
        own_answers_loss=_mean("divergence_N", own) if own else None,
    )


def _mean(name: str, readings: Sequence[tuple[MicroBatch, Readings]]) -> float:
    """The mean of a reading over its tokens."""
    num_tokens = sum(batch.tokens.num_tokens for batch, _ in readings)
    return sum(getattr(reading, name).double().sum().item() for _, reading in readings) / num_tokens


def _engine_gap(answers: Sequence[Completion], readings: Sequence[tuple[MicroBatch, Readings]]) -> float:
    """Largest difference, in nats, between a token's log-probability when it was written and when it was trained."""
    largest = 0.0
    for batch, reading in readings:
        # not a number where somebody else wrote the token
        unknown = [[torch.nan] * len(answers[row].ids) for row in batch.rows]
        written = [answers[row].logprobs or nans for row, nans in zip(batch.rows, unknown, strict=True)]
        written_N = torch.tensor([logprob for row in written for logprob in row], dtype=torch.float64)
        gap_N = (written_N - reading.student_logp_N.double().cpu()).abs()
        largest = max([largest, *gap_N[~gap_N.isnan()].tolist()])
    return largest


def _worst_tokens(
    student: LanguageModel, prompts: Sequence[Prompt], readings: Sequence[tuple[MicroBatch, Readings]], taught: bool
) -> tuple[WorstToken, ...]:
    found: list[WorstToken] = []
    for batch, reading in readings:
        index_N = reading.divergence_N.topk(min(NUM_WORST_TOKENS, len(reading.divergence_N))).indices
        columns = (
            batch.tokens.row_N,
            _position_in_answer(batch.tokens.row_N),
            batch.tokens.targets_N,
            reading.divergence_N,
            reading.student_logp_N,
            reading.teacher_logp_N,
        )
        for row, place, token, nats, own, teachers in zip(
            *(column_N[index_N].tolist() for column_N in columns), strict=True
        ):
            source = prompts[batch.rows[row]].source
            found.append(WorstToken(source, place, token, nats, own, teachers if taught else None))
    found.sort(key=lambda worst: -worst.divergence)
    return tuple(replace(worst, text=student.text([worst.token])) for worst in found[:NUM_WORST_TOKENS])


def _position_in_answer(row_N: Tensor) -> Tensor:
    """0, 1, 2, ... within each row of a flat list of rows."""
    counts_B = torch.bincount(row_N)
    starts_B = counts_B.cumsum(0) - counts_B
    return torch.arange(len(row_N), device=row_N.device) - starts_B[row_N]
