"""The result of an evaluation: scores, comparisons, slices and the verdict.

A result is computed from the graded answers in the evaluation's folder; a missing value is never replaced by a number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import combinations
from typing import Any

from limbeck import __version__
from limbeck.data.chat import tokenise
from limbeck.evaluation.answering.evaluated import EvaluatedModel
from limbeck.evaluation.answering.text_measures import TextMeasure
from limbeck.evaluation.deciding.comparison import Comparison, GradedModel, by_slice, common_scores, compare
from limbeck.evaluation.deciding.model_result import AnswerLengths, ModelResult, lengths_of, model_notes, model_result
from limbeck.evaluation.deciding.statistics import Interval, gap_recovered
from limbeck.evaluation.deciding.verdict import Decision, Reason, Verdict, decide_after, decide_before, verdict_text
from limbeck.evaluation.grading.judge import Judged, agreement
from limbeck.evaluation.grading.measure import MeasureText, ScoreMeasure, graded_model
from limbeck.evaluation.messages import grading as about_judges
from limbeck.evaluation.messages import verdicts as messages
from limbeck.recipe.evaluation import EvaluationOptions
from limbeck.runs.evaluations import Evaluation

__all__ = [
    "ComparedModels",
    "EvaluationResult",
    "GradedEvaluation",
    "NextStep",
    "SliceResult",
    "VerdictWithText",
    "build_result",
    "compared_pairs",
]

Aliases = tuple[str, str]
Rows = Sequence[Mapping[str, Any]]

_NEXT = {
    Decision.DISTIL: (messages.next_distil, "limbeck train {recipe}"),
    Decision.DONT: (messages.next_keep_student, ""),
    Decision.NOT_SURE: (messages.next_more_prompts, "{again}"),
    Decision.SHIP: (messages.next_export, "limbeck export {run}"),
    Decision.STYLE_NEXT: (messages.next_style, ""),
    Decision.MORE_TRAINING: (messages.next_more_training, "limbeck train {recipe} --set name=again"),
    Decision.BACK_TO_PLAN: (messages.next_check_recipe, "limbeck check {recipe}"),
    Decision.CHECK: (messages.next_read_answers, ""),
}


@dataclass(frozen=True)
class GradedEvaluation:
    """An evaluation in which every answer is stored and graded.

    With a judge, `judged` has its preferences for each compared pair, and they alone decide. `commands` are those that
    a next step may show: `recipe`, `run` (as arguments) and `again`.
    """

    evaluation: Evaluation
    kind: str
    models: tuple[EvaluatedModel, ...]
    measure: ScoreMeasure
    divergences: Mapping[str, TextMeasure]
    commands: Mapping[str, str]
    judged: Mapping[Aliases, Judged] = field(default_factory=dict)

    @property
    def deciding_measure(self) -> MeasureText:
        """The measure that decides: a judge's, if there is one."""
        return next((each.measure() for each in self.judged.values()), self.measure.describe())


@dataclass(frozen=True)
class SliceResult:
    """The difference between two models on the prompts with one value of a column."""

    column: str
    value: str
    first: str
    second: str
    difference: Interval


@dataclass(frozen=True)
class NextStep:
    """What to do next, and the command for it; empty if there is none."""

    text: str
    command: str


@dataclass(frozen=True)
class ComparedModels(Comparison):
    """A comparison with the judge's preference for the first model by prompt, which is in no answer's grade."""

    preferences: Mapping[str, float | None] | None = None


@dataclass(frozen=True)
class VerdictWithText(Verdict):
    """A verdict with its sentences, the decision first."""

    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class EvaluationResult:
    """All of result.json, in its order. `prompts` and `settings` are those of evaluation.json."""

    kind: str
    name: str
    created: str
    limbeck: str
    seed: int
    prompts: Mapping[str, Any]
    settings: Mapping[str, Any]
    measure: MeasureText
    models: list[ModelResult]
    team_length: AnswerLengths | None
    comparisons: list[ComparedModels]
    gap_recovered: Interval | None
    gap_recovered_reason: str | None
    slices: list[SliceResult]
    verdict: VerdictWithText | None
    next_step: NextStep
    notes: list[str]


def build_result(done: GradedEvaluation, options: EvaluationOptions) -> EvaluationResult:
    """Compare the models and decide."""
    request, seed = done.evaluation.asked(), options.seed
    rows = {model.alias: done.evaluation.read_answers(model.alias) for model in done.models}
    graded = {alias: graded_model(alias, each, request["settings"]) for alias, each in rows.items()}
    scored = {pair: _scored(done, graded, pair) for pair in compared_pairs(done.kind, done.models)}
    shared = {model.alias for model in done.models if model.shares_vocabulary}
    comparisons = {
        pair: compare(*both, other_template=not shared.issuperset(pair), seed=seed)
        for pair, both in scored.items()
        if _both_graded(*both)
    }
    recovered, reason = _recovered(done, graded, seed)
    verdict = _verdict(done, comparisons, recovered, options.band / 100)
    models = [
        model_result(
            model,
            rows[model.alias],
            options,
            weights=request["facts"][model.alias]["weights"],
            distance=done.divergences.get(model.alias),
            scored=not done.judged,
        )
        for model in done.models
    ]
    notes = [*request["prompts"]["notes"], *_notes_on(done.models), *_judge_notes(done, graded, seed)]
    if done.deciding_measure.kind == "text":
        missing = [messages.no_verdict()]
    else:
        missing = [_not_comparable(pair, rows) for pair in scored if pair not in comparisons]
    return EvaluationResult(
        kind=done.kind,
        name=done.evaluation.name,
        created=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        limbeck=__version__,
        seed=seed,
        prompts=request["prompts"],
        settings=request["settings"],
        measure=done.deciding_measure,
        models=models,
        team_length=_reference_lengths(done),
        comparisons=[_with_preferences(each, done.judged.get(pair)) for pair, each in comparisons.items()],
        gap_recovered=recovered,
        gap_recovered_reason=reason,
        slices=list(_slices({pair: scored[pair] for pair in comparisons}, rows[done.models[0].alias], options)),
        verdict=None if verdict is None else VerdictWithText(**vars(verdict), words=tuple(verdict_text(verdict))),
        next_step=_next_step(done, verdict),
        notes=[*notes, *missing, *(note for model in models for note in model_notes(model))],
    )


def compared_pairs(kind: str, models: Sequence[EvaluatedModel]) -> list[Aliases]:
    """The pairs of models to compare, the deciding pair first."""
    if kind == "compare":
        return list(combinations([model.alias for model in models], 2))
    pairs = [("distilled", "student"), ("teacher", "distilled"), ("teacher", "student")]
    aliases = {model.alias for model in models}
    return [pair for pair in pairs if aliases.issuperset(pair)]


def _notes_on(models: Sequence[EvaluatedModel]) -> list[str]:
    """The notes on the models, each once with all models that it is about."""
    by_note: dict[str, list[str]] = {}
    for model in models:
        for note in model.notes:
            by_note.setdefault(note, []).append(model.alias)
    return [messages.of_models(models=aliases, note=note) for note, aliases in by_note.items()]


def _scored(
    done: GradedEvaluation, graded: Mapping[str, GradedModel], pair: Aliases
) -> tuple[GradedModel, GradedModel]:
    """Both models with the grades that decide between them: a judge's preferences, if there is a judge."""
    first, second = (graded[alias] for alias in pair)
    return done.judged[pair].models(first, second) if pair in done.judged else (first, second)


def _judge_notes(done: GradedEvaluation, graded: Mapping[str, GradedModel], seed: int) -> Iterator[str]:
    """How the judge behaved, and how far it agrees with the grader of the rows, if they have one."""
    for (one, two), judged in done.judged.items():
        yield from judged.notes(one, two)
        if done.measure.kind == "grader":
            about = {"first": one, "second": two, "grader": done.measure.name}
            found = agreement(judged, graded[one], graded[two], seed=seed)
            if found is None:
                yield about_judges.judge_agreement_undefined(**about)
            else:
                numbers = {"kappa": found.estimate, "low": found.low, "high": found.high, "num": found.n}
                yield about_judges.judge_agreement(**about, **numbers)


def _with_preferences(compared: Comparison, judged: Judged | None) -> ComparedModels:
    preferences = None if judged is None else {key: grade.value for key, grade in judged.grades.items()}
    return ComparedModels(**vars(compared), preferences=preferences)


def _both_graded(one: GradedModel, two: GradedModel) -> bool:
    graded = [{each.key for each in model.answers if each.grade.value is not None} for model in (one, two)]
    return bool(graded[0] & graded[1])


def _recovered(
    done: GradedEvaluation, graded: Mapping[str, GradedModel], seed: int
) -> tuple[Interval | None, str | None]:
    """The share of the gap recovered, or the reason why it is undefined."""
    roles = ("student", "teacher", "distilled")
    if done.kind != "after" or not graded.keys() >= set(roles):
        return None, None
    if done.judged:
        return None, messages.gap_without_scale()
    student, teacher, distilled = (graded[alias] for alias in roles)
    if not (_both_graded(student, teacher) and _both_graded(teacher, distilled)):
        return None, messages.gap_not_graded()
    found = gap_recovered(*common_scores(student, teacher, distilled), seed=seed)
    return found, None if found else messages.gap_uncertain()


def _verdict(
    done: GradedEvaluation, comparisons: Mapping[Aliases, Comparison], recovered: Interval | None, band: float
) -> Verdict | None:
    """The verdict; None for character overlap, which does not show which of two answers is better."""
    if done.deciding_measure.kind == "text":
        return None
    gap, gain = comparisons.get(("teacher", "student")), comparisons.get(("distilled", "student"))
    left = comparisons.get(("teacher", "distilled"))
    if done.kind == "worth" and gap is not None:
        return decide_before(gap, band=band)
    return decide_after(gain, left, recovered, band=band) if done.kind == "after" and gain and left else None


def _next_step(done: GradedEvaluation, verdict: Verdict | None) -> NextStep:
    if verdict is None:
        if done.deciding_measure.kind == "text":
            again = f"{done.commands['again']} --grader NAME" if "again" in done.commands else ""
            return NextStep(messages.next_choose_grader(), again)
        return NextStep("", "")
    text, command = _NEXT[verdict.decision]
    if verdict.decision is Decision.DONT and Reason.BOTH_BAD in verdict.reasons:
        text = messages.next_human_answers
    known = all(name in done.commands for name in ("recipe", "run", "again") if f"{{{name}}}" in command)
    return NextStep(text(), command.format(**done.commands) if known else "")


def _reference_lengths(done: GradedEvaluation) -> AnswerLengths | None:
    """The lengths of the reference answers, in tokens of the first model that has a tokenizer."""
    model = next((each for each in done.models if each.dialogue is not None), None)
    texts = [] if model is None else [prompt.reference for prompt in model.prompts if prompt.reference]
    return lengths_of([len(ids) for ids in tokenise(texts, model.local.tokenizer)]) if model and texts else None


def _slices(
    compared: Mapping[Aliases, tuple[GradedModel, GradedModel]], rows: Rows, options: EvaluationOptions
) -> Iterator[SliceResult]:
    """The difference of each compared pair within each value of the chosen columns; `rows` are one model's."""
    for column in options.by:
        labels = {row["key"]: row["labels"][column] for row in rows if column in row["labels"]}
        for (one, two), both in compared.items():
            for value, interval in by_slice(*both, labels, seed=options.seed).items():
                yield SliceResult(column, value, one, two, interval)


def _not_comparable(pair: Aliases, rows: Mapping[str, Rows]) -> str:
    """A pair without a prompt that has a grade for both, with the most frequent reason."""
    one, two = pair
    reasons = Counter(row["grade_reason"] for row in _ungraded([*rows[one], *rows[two]]) if row["grade_reason"])
    if not reasons:
        return messages.not_comparable(first=one, second=two)
    return messages.not_comparable_because(first=one, second=two, reason=reasons.most_common(1)[0][0])


def _ungraded(rows: Rows) -> Iterable[Mapping[str, Any]]:
    return (row for row in rows if row["grade"] is None)
