"""From the per-token statistics of a step to its StepRecord, and from that to the fields of its event.

Shapes  N = completion tokens of a micro-batch, B = its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace

import torch
from torch import Tensor

from limbeck.data.prompt import Prompt
from limbeck.models.language_model import LanguageModel
from limbeck.objectives.fused import TokenStatistics
from limbeck.recipe.recipe import Recipe
from limbeck.rollouts.request import Completion
from limbeck.training.batches import AnswerSet, MicroBatch
from limbeck.training.health import is_repetitive
from limbeck.training.state import PhaseClock, StepRecord, TrainState, WorstToken

__all__ = ["make_record", "step_fields"]

NUM_WORST_TOKENS = 5

# Events of runs keep the names of format 1.
_STORED_NAMES = {
    "generation_s": "write_s",
    "scoring_s": "score_s",
    "generation_us_per_token": "write_us_per_token",
    "scoring_us_per_token": "score_us_per_token",
}
_STORED_PHASES = {"generation": "writing", "scoring": "reading", "update": "updating"}


def make_record(
    state: TrainState,
    recipe: Recipe,
    clock: PhaseClock,
    answers: AnswerSet,
    stats: Sequence[tuple[MicroBatch, TokenStatistics]],
    grad_norm: float,
    *,
    practice_limit: int | None = None,
    own_stats: Sequence[tuple[MicroBatch, TokenStatistics]] = (),
) -> StepRecord:
    """The record of a step: means over its completion tokens, shares of its answers, time and memory by phase.

    `state` is that after the update, with the step counter of before. `answers` are all but `own_answers`; if the
    student generated some of them, lengths and shares are over those alone. `stats` and `own_stats` are the statistics
    of their tokens, by micro-batch; `grad_norm` is before clipping.
    """
    completions, num_tokens = answers.completions, answers.num_tokens
    generated = [answer for answer in completions if answer.logprobs]
    counted = generated or completions
    lengths = [len(answer.ids) for answer in counted]

    def share(flags: Iterable[bool]) -> float:
        return sum(flags) / len(counted)

    def us_per_token(phase: str, num: int) -> float | None:
        return 1e6 * clock.seconds[phase] / num if phase in clock.seconds else None

    scored = "scoring" in clock.seconds
    return StepRecord(
        step=state.step + 1,
        loss=_mean("divergence_N", stats),
        grad_norm=grad_norm,
        learning_rate=state.learning_rate(recipe),
        practice_limit=practice_limit,
        num_answers=len(completions),
        num_prompt_tokens=sum(len(prompt.ids) for prompt in answers.prompts),
        num_completion_tokens=num_tokens,
        generation_s=clock.seconds.get("generation"),
        scoring_s=clock.seconds.get("scoring"),
        update_s=clock.seconds["update"],
        generation_us_per_token=us_per_token("generation", sum(lengths)),
        scoring_us_per_token=us_per_token("scoring", num_tokens),
        mean_length=sum(lengths) / len(counted),
        max_length=max(lengths),
        cut_off_share=share(answer.cut_off for answer in counted),
        # nothing but a stop token
        empty_share=share(len(answer.ids) == 1 and not answer.cut_off for answer in counted),
        repetitive_share=share(is_repetitive(answer.ids) for answer in counted),
        student_entropy=_mean("student_entropy_N", stats),
        teacher_entropy=_mean("teacher_entropy_N", stats) if scored else None,
        agreement=_mean("agree_N", stats),
        student_logprob=_mean("student_logp_N", stats),
        teacher_logprob=_mean("teacher_logp_N", stats) if scored else None,
        engine_gap=_engine_gap(completions, stats) if generated else None,
        worst_tokens=_worst_tokens(state.student, answers.prompts, stats, scored),
        peak_bytes=clock.peak_bytes,
        own_answers_loss=_mean("divergence_N", own_stats) if own_stats else None,
    )


def step_fields(record: StepRecord) -> dict[str, object]:
    """The fields of a step's event: the record under its stored names, the step's time and the tokens/s of phases."""
    fields = {_STORED_NAMES.get(name, name): value for name, value in asdict(record).items()}
    num_scored = record.num_prompt_tokens + record.num_completion_tokens
    generation_us = record.generation_us_per_token
    return {
        **fields,
        "peak_bytes": {_STORED_PHASES[phase]: num_bytes for phase, num_bytes in record.peak_bytes.items()},
        "step_s": (record.generation_s or 0.0) + (record.scoring_s or 0.0) + record.update_s,
        "writing_tokens_per_s": None if generation_us is None else 1e6 / generation_us,
        "reading_tokens_per_s": None if record.scoring_s is None else num_scored / record.scoring_s,
        "updating_tokens_per_s": num_scored / record.update_s,
        "memory_bytes": max(record.peak_bytes.values()),
    }


def _mean(name: str, stats: Sequence[tuple[MicroBatch, TokenStatistics]]) -> float:
    """The mean of one statistic over all tokens."""
    num_tokens = sum(batch.tokens.num_tokens for batch, _ in stats)
    return sum(getattr(batch_stats, name).double().sum().item() for _, batch_stats in stats) / num_tokens


def _engine_gap(completions: Sequence[Completion], stats: Sequence[tuple[MicroBatch, TokenStatistics]]) -> float:
    """The largest difference, in nats, between a token's log-probabilities in generation and in training."""
    largest = 0.0
    for batch, batch_stats in stats:
        # NaN for tokens that the student did not generate
        unknown = [[torch.nan] * len(completions[row].ids) for row in batch.rows]
        generated = [completions[row].logprobs or nans for row, nans in zip(batch.rows, unknown, strict=True)]
        generated_N = torch.tensor([logprob for row in generated for logprob in row], dtype=torch.float64)
        gap_N = (generated_N - batch_stats.student_logp_N.double().cpu()).abs()
        largest = max([largest, *gap_N[~gap_N.isnan()].tolist()])
    return largest


def _worst_tokens(
    student: LanguageModel, prompts: Sequence[Prompt], stats: Sequence[tuple[MicroBatch, TokenStatistics]], scored: bool
) -> tuple[WorstToken, ...]:
    found: list[WorstToken] = []
    for batch, batch_stats in stats:
        index_N = batch_stats.divergence_N.topk(min(NUM_WORST_TOKENS, len(batch_stats.divergence_N))).indices
        columns = (
            batch.tokens.row_N,
            _position_in_answer(batch.tokens.row_N),
            batch.tokens.targets_N,
            batch_stats.divergence_N,
            batch_stats.student_logp_N,
            batch_stats.teacher_logp_N,
        )
        for row, place, token, nats, own, teachers in zip(
            *(column_N[index_N].tolist() for column_N in columns), strict=True
        ):
            source = prompts[batch.rows[row]].source
            found.append(WorstToken(source, place, token, nats, own, teachers if scored else None))
    found.sort(key=lambda worst: -worst.divergence)
    return tuple(replace(worst, text=student.text([worst.token])) for worst in found[:NUM_WORST_TOKENS])


def _position_in_answer(row_N: Tensor) -> Tensor:
    """0, 1, 2, ... within each row of a flat list of rows."""
    counts_B = torch.bincount(row_N)
    starts_B = counts_B.cumsum(0) - counts_B
    return torch.arange(len(row_N), device=row_N.device) - starts_B[row_N]
