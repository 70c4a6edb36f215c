"""From what a step saw to its StepRecord.

Shapes  N = completion tokens of the whole step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from limbeck.data.chat import Prompt
from limbeck.objectives.fused import Readings
from limbeck.rollouts.request import Completion
from limbeck.training.batches import MicroBatch
from limbeck.training.health import is_repetitive
from limbeck.training.state import StepRecord, WorstToken

__all__ = ["make_record"]

NUM_WORST_TOKENS = 5


def make_record(
    *,
    step: int,
    prompts: Sequence[Prompt],
    answers: Sequence[Completion],
    readings: Sequence[tuple[MicroBatch, Readings]],
    grad_norm: float,
    learning_rate: float,
    practice_limit: int,
    seconds: Mapping[str, float],
) -> StepRecord:
    """Means over the step's completion tokens, shares over its answers, times from `seconds` by phase."""
    lengths = [len(answer.ids) for answer in answers]
    num_tokens = sum(lengths)

    def mean(name: str) -> float:
        return sum(getattr(reading, name).double().sum().item() for _, reading in readings) / num_tokens

    return StepRecord(
        step=step,
        loss=mean("divergence_N"),
        grad_norm=grad_norm,
        learning_rate=learning_rate,
        practice_limit=practice_limit,
        num_answers=len(answers),
        num_prompt_tokens=sum(len(prompt.ids) for prompt in prompts),
        num_completion_tokens=num_tokens,
        write_s=seconds["writing"],
        score_s=seconds["reading"],
        update_s=seconds["updating"],
        write_us_per_token=1e6 * seconds["writing"] / num_tokens,
        score_us_per_token=1e6 * seconds["reading"] / num_tokens,
        mean_length=num_tokens / len(answers),
        max_length=max(lengths),
        cut_off_share=_share(answer.cut_off for answer in answers),
        # a stop token and nothing else
        empty_share=_share(len(answer.ids) == 1 and not answer.cut_off for answer in answers),
        repetitive_share=_share(is_repetitive(answer.ids) for answer in answers),
        student_entropy=mean("student_entropy_N"),
        teacher_entropy=mean("teacher_entropy_N"),
        agreement=mean("agree_N"),
        student_logprob=mean("student_logp_N"),
        teacher_logprob=mean("teacher_logp_N"),
        engine_gap=_engine_gap(answers, readings),
        worst_tokens=_worst_tokens(prompts, readings),
    )


def _share(flags: Iterable[bool]) -> float:
    listed = list(flags)
    return sum(listed) / len(listed)


def _engine_gap(answers: Sequence[Completion], readings: Sequence[tuple[MicroBatch, Readings]]) -> float:
    """Largest difference, in nats, between a token's log-probability when it was written and when it was trained."""
    largest = 0.0
    for batch, reading in readings:
        written = [logprob for row in batch.rows for logprob in answers[row].logprobs]
        written_N = torch.tensor(written, dtype=torch.float64)
        largest = max(largest, (written_N - reading.student_logp_N.double().cpu()).abs().max().item())
    return largest


def _worst_tokens(prompts: Sequence[Prompt], readings: Sequence[tuple[MicroBatch, Readings]]) -> tuple[WorstToken, ...]:
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
        for row, position, token, *nats in zip(*(column_N[index_N].tolist() for column_N in columns), strict=True):
            found.append(WorstToken(prompts[batch.rows[row]].source, position, token, *nats))
    found.sort(key=lambda worst: -worst.divergence)
    return tuple(found[:NUM_WORST_TOKENS])


def _position_in_answer(row_N: Tensor) -> Tensor:
    """0, 1, 2, ... within each row of a flat list of rows."""
    counts_B = torch.bincount(row_N)
    starts_B = counts_B.cumsum(0) - counts_B
    return torch.arange(len(row_N), device=row_N.device) - starts_B[row_N]
