"""What a result says of each model: counts, score, lengths, speed, cost, and the distance from the teacher."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from limbeck.evaluation.answering.evaluated import EvaluatedModel
from limbeck.evaluation.answering.text_measures import TextMeasure
from limbeck.evaluation.deciding.statistics import Interval, mean_score
from limbeck.evaluation.grading.graders import length_ratio
from limbeck.evaluation.grading.measure import graded_model
from limbeck.evaluation.messages import verdicts as messages
from limbeck.recipe.evaluation import EvaluationOptions

__all__ = ["AnswerLengths", "Cost", "ModelResult", "lengths_of", "model_notes", "model_result"]

MANY_TRUNCATED = 0.05


@dataclass(frozen=True)
class AnswerLengths:
    """Lengths of answers in tokens; nine of ten are within `p90`."""

    mean: float
    median: float
    p90: float


@dataclass(frozen=True)
class Cost:
    """The cost of 1,000 answers."""

    amount: float
    currency: str


@dataclass(frozen=True)
class ModelResult:
    """A model in a result; None for what is unknown. An evaluation with a judge has no `score`.

    `length_ratio` is characters of the answers per character of the references, `tokens_per_s` and the latencies (50th
    and 95th percentile) are those of the generation, `divergence_to_teacher` is in nats per token.
    """

    alias: str
    role: str
    ref: str
    weights: str | None
    dtype: str
    score: Interval | None
    num_asked: int
    num_answered: int
    num_failed: int
    num_cut_off: int
    num_empty: int
    num_not_graded: int
    length: AnswerLengths | None
    length_ratio: float | None
    tokens_per_s: float | None
    latency_p50_s: float | None
    latency_p95_s: float | None
    cost_per_1000: Cost | None
    divergence_to_teacher: Interval | None
    agreement: float | None


def model_result(
    model: EvaluatedModel,
    rows: Sequence[Mapping[str, Any]],
    options: EvaluationOptions,
    *,
    weights: str | None,
    distance: TextMeasure | None,
    scored: bool,
) -> ModelResult:
    """The result of a model from its graded rows.

    Args:
        weights: their hash, None for a hosted API.
        distance: the divergence from the teacher on the model's own answers, where it is known.
        scored: whether the grades of its answers are the measure (and not a judge's preferences).
    """
    answered = [row for row in rows if row["answer"] is not None]
    lengths = [row["length"] for row in answered if row["length"] is not None]
    seconds = [row["seconds"] for row in answered if row["seconds"] is not None]
    engine_s = sum(row["engine_s"] for row in answered if row["engine_s"] is not None)
    graded = graded_model(model.alias, rows, {}).answers if scored else ()
    scores = [each.grade.value for each in graded if each.grade.value is not None]
    return ModelResult(
        alias=model.alias,
        role=model.role,
        ref=model.name,
        weights=weights,
        dtype=model.dtype,
        score=mean_score(scores, seed=options.seed) if scores else None,
        num_asked=len(rows),
        num_answered=len(answered),
        num_failed=sum(row["failure"] is not None for row in rows),
        num_cut_off=sum(bool(row["cut_off"]) for row in rows),
        num_empty=sum(not row["answer"].strip() for row in answered),
        num_not_graded=sum(row["grade"] is None for row in rows),
        length=lengths_of(lengths),
        length_ratio=_length_ratio(model, rows),
        tokens_per_s=sum(lengths) / engine_s if engine_s else None,
        latency_p50_s=float(np.quantile(seconds, 0.5)) if seconds else None,
        latency_p95_s=float(np.quantile(seconds, 0.95)) if seconds else None,
        cost_per_1000=_cost(model, answered, options),
        divergence_to_teacher=None if distance is None else distance.divergence,
        agreement=None if distance is None else distance.agreement,
    )


def _cost(model: EvaluatedModel, answered: Sequence[Mapping[str, Any]], options: EvaluationOptions) -> Cost | None:
    """The cost by the price of the options, else of the hosted API; None where there is none."""
    price = options.prices().get(model.alias)
    if price is None and model.hosted is not None and None not in (model.hosted.input_price, model.hosted.output_price):
        # a hosted API has prices per million tokens
        price = ((model.hosted.input_price or 0) / 1000, (model.hosted.output_price or 0) / 1000)
    prompts = [row["num_prompt_tokens"] for row in answered if row["num_prompt_tokens"] is not None]
    lengths = [row["length"] for row in answered if row["length"] is not None]
    if price is None or not lengths or not prompts:
        return None
    return Cost(fmean(prompts) * price[0] + fmean(lengths) * price[1], options.currency)


def _length_ratio(model: EvaluatedModel, rows: Sequence[Mapping[str, Any]]) -> float | None:
    """The mean of characters of an answer per character of its reference; None without references."""
    references = {prompt.source: prompt.reference for prompt in model.prompts}
    pairs = [(row["answer"], references.get(row["source"])) for row in rows]
    ratios = [ratio for answer, text in pairs if answer and text and (ratio := length_ratio(answer, text)) is not None]
    return fmean(ratios) if ratios else None


def lengths_of(lengths: Sequence[float]) -> AnswerLengths | None:
    """Mean, median and 90th percentile; None for no lengths."""
    if not lengths:
        return None
    return AnswerLengths(fmean(lengths), float(np.quantile(lengths, 0.5)), float(np.quantile(lengths, 0.9)))


def model_notes(model: ModelResult) -> Iterator[str]:
    """What to know about a model next to its score."""
    about = {"model": model.alias, "total": model.num_asked}
    if model.num_failed:
        yield messages.answers_failed(**about, num=model.num_failed)
    if model.num_cut_off > MANY_TRUNCATED * model.num_asked:
        yield messages.answers_truncated(**about, num=model.num_cut_off)
    if model.score is not None and model.num_not_graded:
        yield messages.answers_not_graded(**about, num=model.num_not_graded)
