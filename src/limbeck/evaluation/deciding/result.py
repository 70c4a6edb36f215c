"""The graded answers of an evaluation as its result: scores, comparisons, slices and the verdict, ready to be shown.

Everything here is read from the evaluation's folder and counted again each time: nothing that is missing is filled in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import combinations
from statistics import fmean
from typing import Any

import numpy as np

from limbeck import __version__
from limbeck.data.chat import tokenise
from limbeck.evaluation.answering.held_out import TextMeasure
from limbeck.evaluation.answering.sides import Side
from limbeck.evaluation.deciding.comparison import Comparison, GradedModel, by_slice, common_scores, compare
from limbeck.evaluation.deciding.statistics import Interval, gap_recovered, mean_score
from limbeck.evaluation.deciding.verdict import Decision, Reason, Verdict, after, before, words
from limbeck.evaluation.grading.graders import length_ratio
from limbeck.evaluation.grading.grading import Measure, graded_model
from limbeck.evaluation.grading.judge import Judged, agreement
from limbeck.recipe.evaluation import EvaluationOptions
from limbeck.runs.evaluations import Evaluation

__all__ = ["Evaluated", "compared_pairs", "result_of"]

MANY_CUT_OFF = 0.05
_NEXT = {
    Decision.DISTIL: ("Distil.", "limbeck train {recipe}"),
    Decision.DONT: ("Use the student as it is, or choose another teacher.", ""),
    Decision.NOT_SURE: ("Ask again with more prompts.", "{again}"),
    Decision.SHIP: ("Take the model out.", "limbeck export {run}"),
    Decision.STYLE_NEXT: ("Teach it your style, with a supervised recipe on answers of your own.", ""),
    Decision.MORE_TRAINING: ("Train longer: more steps, or more prompts.", "limbeck train {recipe} --set name=again"),
    Decision.BACK_TO_PLAN: ("Look at what the recipe means before you train again.", "limbeck check {recipe}"),
    Decision.CHECK: ("Read answers beside their grades before you believe this.", ""),
}


@dataclass(frozen=True)
class Evaluated:
    """An evaluation whose answers are all there and graded.

    Where a judge compared pairs, `judged` has what it thinks and nothing else decides.
    """

    evaluation: Evaluation
    kind: str
    sides: tuple[Side, ...]
    measure: Measure
    divergences: Mapping[str, TextMeasure]
    commands: Mapping[str, str]
    judged: Mapping[tuple[str, str], Judged] = field(default_factory=dict)

    @property
    def measured(self) -> dict[str, str]:
        """The one measure that decides, as it is shown."""
        return next((each.measure() for each in self.judged.values()), self.measure.describe())


def result_of(done: Evaluated, options: EvaluationOptions) -> dict[str, object]:
    """The whole of result.json."""
    asked, seed = done.evaluation.asked(), options.seed
    rows = {side.alias: done.evaluation.read_answers(side.alias) for side in done.sides}
    graded = {alias: graded_model(alias, each, asked["settings"]) for alias, each in rows.items()}
    notes = [*asked["prompts"]["notes"], *_notes_on(done.sides)]
    notes += _told_by_judge(done, graded, seed)
    scored = {pair: _scored(done, graded, pair) for pair in compared_pairs(done.kind, done.sides)}
    alike = {side.alias for side in done.sides if side.alike}
    comparisons = {
        pair: compare(*both, other_template=not alike.issuperset(pair), seed=seed)
        for pair, both in scored.items()
        if _both_graded(*both)
    }
    kind = done.measured["kind"]
    for one, two in scored.keys() - comparisons.keys() if kind != "text" else ():
        why = _commonest_reason([*rows[one], *rows[two]])
        notes.append(f"{one} and {two} cannot be compared: no prompt is graded for both{why}.")
    recovered, reason = _recovered(done, graded, seed)
    verdict = _verdict(done, comparisons, recovered, options.band / 100)
    prices = options.prices()
    models = [_model(done, side, rows[side.alias], prices.get(side.alias), options, asked) for side in done.sides]
    notes += [note for model in models for note in _warnings(model)]
    if kind == "text":
        notes.append("Likeness is no verdict: give reference answers, --grader, or a judge, to know which is better.")
    return {
        "kind": done.kind,
        "name": done.evaluation.name,
        "created": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "limbeck": __version__,
        "seed": seed,
        "prompts": asked["prompts"],
        "settings": asked["settings"],
        "measure": done.measured,
        "models": models,
        "team_length": _team_length(done),
        "comparisons": [_shown(each, done.judged.get(pair)) for pair, each in comparisons.items()],
        "gap_recovered": recovered and asdict(recovered),
        "gap_recovered_reason": reason,
        "slices": list(_slices(done, {pair: scored[pair] for pair in comparisons}, rows, options)),
        "verdict": verdict and {**asdict(verdict), "words": words(verdict)},
        "next_step": _next_step(done, verdict),
        "notes": notes,
    }


def _notes_on(sides: Sequence[Side]) -> list[str]:
    """The notes on the models; one that holds for several is told once."""
    whose: dict[str, list[str]] = {}
    for side in sides:
        for note in side.notes:
            text = note.removeprefix(f"{side.alias}: ")
            whose.setdefault(text, []).extend([side.alias] if text != note else [])
    return [f"{', '.join(aliases)}: {text}" if aliases else text for text, aliases in whose.items()]


def compared_pairs(kind: str, sides: Sequence[Side]) -> list[tuple[str, str]]:
    """Who is compared with whom, the pair that decides first."""
    if kind == "compare":
        return list(combinations([side.alias for side in sides], 2))
    pairs = [("distilled", "student"), ("teacher", "distilled"), ("teacher", "student")]
    aliases = {side.alias for side in sides}
    return [pair for pair in pairs if aliases.issuperset(pair)]


def _scored(
    done: Evaluated, graded: Mapping[str, GradedModel], pair: tuple[str, str]
) -> tuple[GradedModel, GradedModel]:
    """Both models with what decides between them: grades, or a judge's preferences and no grade."""
    first, second = (graded[alias] for alias in pair)
    return done.judged[pair].models(first, second) if pair in done.judged else (first, second)


def _told_by_judge(done: Evaluated, graded: Mapping[str, GradedModel], seed: int) -> Iterator[str]:
    """What is known of the judge, and how far it agrees with the grader of the rows, if they have one."""
    for (one, two), judged in done.judged.items():
        yield from (f"{one} and {two}: {note}" for note in judged.notes())
        if done.measure.kind == "grader":
            agreed = agreement(judged, graded[one], graded[two], seed=seed)
            numbers = agreed and f"{agreed.estimate:.2f} ({agreed.low:.2f} to {agreed.high:.2f}, {agreed.n} prompts)"
            told = f"{one} and {two}: judge and grader {done.measure.name} agree beyond chance (Cohen's kappa)"
            yield f"{told} by {numbers or 'an undefined amount: they tell nothing apart'}."


def _shown(compared: Comparison, judged: Judged | None) -> dict[str, object]:
    """The comparison; with the judge's preference for the first model by prompt, which stands in no answer's grade."""
    preferences = judged and {key: grade.value for key, grade in judged.grades.items()}
    return {**asdict(compared), "preferences": preferences}


def _both_graded(one: GradedModel, two: GradedModel) -> bool:
    graded = [{each.key for each in model.answers if each.grade.value is not None} for model in (one, two)]
    return bool(graded[0] & graded[1])


def _recovered(done: Evaluated, graded: Mapping[str, GradedModel], seed: int) -> tuple[Interval | None, str | None]:
    """The share of the gap that distilling closed, or why there is none."""
    if done.kind != "after" or not {"student", "teacher", "distilled"} <= graded.keys():
        return None, None
    if done.judged:
        return None, "undefined: preferences within pairs are on no common scale"
    sides = [graded[alias] for alias in ("student", "teacher", "distilled")]
    if not (_both_graded(sides[0], sides[1]) and _both_graded(sides[1], sides[2])):
        return None, "undefined: the teacher's answers are not graded"
    found = gap_recovered(*common_scores(*sides), seed=seed)
    return found, None if found else "undefined: it is not certain that the teacher is better than the plain student"


def _verdict(
    done: Evaluated, comparisons: Mapping[tuple[str, str], Comparison], recovered: Interval | None, band: float
) -> Verdict | None:
    """Likeness of letters does not tell which of two answers is better, so nothing is decided on it."""
    if done.measured["kind"] == "text":
        return None
    gap, gain = comparisons.get(("teacher", "student")), comparisons.get(("distilled", "student"))
    left = comparisons.get(("teacher", "distilled"))
    if done.kind == "worth" and gap is not None:
        return before(gap, band=band)
    return after(gain, left, recovered, band=band) if done.kind == "after" and gain and left else None


def _next_step(done: Evaluated, verdict: Verdict | None) -> dict[str, str]:
    if verdict is None:
        if done.measured["kind"] == "text":
            again = f"{done.commands['again']} --grader NAME" if "again" in done.commands else ""
            return {"text": "Say how an answer is judged.", "command": again}
        return {"text": "", "command": ""}
    text, command = _NEXT[verdict.decision]
    if verdict.decision is Decision.DONT and Reason.BOTH_BAD in verdict.reasons:
        text = "Teach the student on answers of your own first, with a supervised recipe."
    known = all(name in done.commands for name in ("recipe", "run", "again") if f"{{{name}}}" in command)
    return {"text": text, "command": command.format(**done.commands) if known else ""}


def _model(
    done: Evaluated,
    side: Side,
    rows: Sequence[Mapping[str, Any]],
    price: tuple[float, float] | None,
    options: EvaluationOptions,
    asked: Mapping[str, Any],
) -> dict[str, object]:
    """A model's counts, score, lengths, speed, cost and distance to the teacher."""
    answered = [row for row in rows if row["answer"] is not None]
    lengths = [row["length"] for row in answered if row["length"] is not None]
    seconds = [row["seconds"] for row in answered if row["seconds"] is not None]
    engine_s = sum(row["engine_s"] for row in answered if row["engine_s"] is not None)
    graded = () if done.judged else graded_model(side.alias, rows, {}).answers
    scores = [each.grade.value for each in graded if each.grade.value is not None]
    cost = None
    if price is None and side.hosted is not None and None not in (side.hosted.input_price, side.hosted.output_price):
        price = ((side.hosted.input_price or 0) / 1000, (side.hosted.output_price or 0) / 1000)  # theirs: per million
    reads = [row["num_prompt_tokens"] for row in answered if row["num_prompt_tokens"] is not None]
    if price is not None and lengths and reads:
        num_read = fmean(reads)
        cost = {"amount": num_read * price[0] + fmean(lengths) * price[1], "currency": options.currency}
    distance = done.divergences.get(side.alias)
    return {
        "alias": side.alias,
        "role": side.role,
        "ref": side.name,
        "weights": asked["facts"][side.alias]["weights"],
        "dtype": side.dtype,
        "score": asdict(mean_score(scores, seed=options.seed)) if scores else None,
        "num_asked": len(rows),
        "num_answered": len(answered),
        "num_failed": sum(row["failure"] is not None for row in rows),
        "num_cut_off": sum(bool(row["cut_off"]) for row in rows),
        "num_empty": sum(not row["answer"].strip() for row in answered),
        "num_not_graded": sum(row["grade"] is None for row in rows),
        "length": _lengths(lengths),
        "length_ratio": _length_ratio(side, rows),
        "tokens_per_s": sum(lengths) / engine_s if engine_s else None,
        "latency_p50_s": float(np.quantile(seconds, 0.5)) if seconds else None,
        "latency_p95_s": float(np.quantile(seconds, 0.95)) if seconds else None,
        "cost_per_1000": cost,
        "divergence_to_teacher": None if distance is None or not distance.divergence else asdict(distance.divergence),
        "agreement": None if distance is None else distance.agreement,
    }


def _length_ratio(side: Side, rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Characters of the answers by those of the references, on average; None where rows have none."""
    references = {prompt.source: prompt.reference for prompt in side.prompts}
    pairs = [(row["answer"], references.get(row["source"])) for row in rows]
    ratios = [ratio for answer, text in pairs if answer and text and (ratio := length_ratio(answer, text)) is not None]
    return fmean(ratios) if ratios else None


def _lengths(lengths: Sequence[float]) -> dict[str, float] | None:
    """Tokens of answers: mean, median and the length that nine of ten stay within."""
    if not lengths:
        return None
    return {
        "mean": fmean(lengths),
        **{name: float(np.quantile(lengths, q)) for name, q in (("median", 0.5), ("p90", 0.9))},
    }


def _team_length(done: Evaluated) -> dict[str, float] | None:
    """The same of the answers that stand beside the prompts, in tokens of the first model that has a tokenizer."""
    side = next((side for side in done.sides if side.dialogue is not None), None)
    texts = [] if side is None else [prompt.reference for prompt in side.prompts if prompt.reference]
    return _lengths([len(ids) for ids in tokenise(texts, side.local.tokenizer)]) if side and texts else None


def _slices(
    done: Evaluated,
    compared: Mapping[tuple[str, str], tuple[GradedModel, GradedModel]],
    rows: Mapping[str, Sequence[Mapping[str, Any]]],
    options: EvaluationOptions,
) -> Iterator[dict[str, object]]:
    """The difference of each compared pair within each value of the chosen columns."""
    for column in options.by:
        labels = {row["key"]: row["labels"][column] for row in rows[done.sides[0].alias] if column in row["labels"]}
        for (one, two), both in compared.items():
            for value, interval in by_slice(*both, labels, seed=options.seed).items():
                found = {"column": column, "value": value, "first": one, "second": two}
                yield {**found, "difference": asdict(interval)}


def _commonest_reason(rows: Iterable[Mapping[str, Any]]) -> str:
    """Why most answers have no grade."""
    reasons = Counter(row["grade_reason"] for row in rows if row["grade"] is None and row["grade_reason"])
    return f" ({reasons.most_common(1)[0][0]})" if reasons else ""


def _warnings(model: Mapping[str, Any]) -> Iterator[str]:
    """What must be seen beside a score."""
    alias, num_asked = model["alias"], model["num_asked"]
    if model["num_failed"]:
        yield f"{alias}: {model['num_failed']} of {num_asked} questions failed and have no answer."
    if model["num_cut_off"] > MANY_CUT_OFF * num_asked:
        yield f"{alias}: {model['num_cut_off']} of {num_asked} answers are cut off; --max-tokens lets them end."
    if model["score"] is not None and model["num_not_graded"]:
        yield f"{alias}: {model['num_not_graded']} of {num_asked} answers have no grade and take no part in its score."
