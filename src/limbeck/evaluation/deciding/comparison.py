"""Two models on the same prompts: who is better where, by how much, and on how many of the prompts asked.

Only prompts that both answers are graded for take part, and how many were asked stands beside: a failed answer is
counted and never filled in. Comparing models that were asked other prompts is refused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from limbeck.data.row_errors import indented_lines
from limbeck.errors import Refusal, UsageError
from limbeck.evaluation.deciding.statistics import NUM_RESAMPLES, Interval, difference, difference_deviation, share
from limbeck.evaluation.grading.graders import Grade

__all__ = ["Comparison", "GradedAnswer", "GradedModel", "by_slice", "common_scores", "compare", "prompt_differences"]

GOOD_FROM = 0.5
TIE_WITHIN = 0.05
SHOWN_CHARACTERS = 40


@dataclass(frozen=True)
class GradedAnswer:
    """`key` names the prompt by its conversation, `prompt_text` is exactly what went out.

    `length` is the answer's (None: there is no answer), `source` the row's place for people.
    """

    key: str
    source: str
    prompt_text: str
    grade: Grade
    length: int | None


@dataclass(frozen=True)
class GradedModel:
    """Every prompt that a model was asked, each once; `settings` are those of its answering.

    Where the grades are preferences of a model between two, and not of graders, `judge` is its name.
    """

    name: str
    answers: tuple[GradedAnswer, ...]
    settings: Mapping[str, object]
    judge: str | None = None

    def by_key(self) -> dict[str, GradedAnswer]:
        found = {answer.key: answer for answer in self.answers}
        assert len(found) == len(self.answers), "a prompt stands twice"
        return found


@dataclass(frozen=True)
class Comparison:
    """`difference` is first - second. A tie is a difference within `TIE_WITHIN`; the shares of it and of either being
    better add to 1. It is of two good or two bad answers, which is not known (None) where grades are preferences.

    `longer_won` is the share of prompts won by the longer answer, of those won by either and not equally long.
    """

    first: str
    second: str
    difference: Interval
    deviation: float
    first_better: Interval
    second_better: Interval
    tied: Interval
    both_good: Interval | None
    both_bad: Interval | None
    longer_won: Interval | None
    num_asked: int
    num_not_graded: tuple[int, int]
    notes: tuple[str, ...]
    seed: int
    num_resamples: int = NUM_RESAMPLES


def compare(first: GradedModel, second: GradedModel, *, other_template: bool = False, seed: int = 0) -> Comparison:
    """First against second on the prompts that both are graded for.

    Args:
        other_template: the models write the same conversation in templates of their own (other families). The texts
            then differ, which goes to the notes; otherwise it is refused.
        seed: of the resamples.

    Raises:
        Refusal: they were asked other prompts, or a judge graded one of them alone.
        UsageError: no prompt is graded for both.
    """
    if first.judge != second.judge:
        raise Refusal(
            "evaluation.measures-mixed",
            given=f"{first.name} is graded by {_measure(first)}, {second.name} by {_measure(second)}.",
            needed="A preference between two answers and a grade of one answer are on no common scale.",
            fix="Grade both in the same way.",
        )
    notes = prompt_differences(first, second, other_template=other_template)
    first_P, second_P = common_scores(first, second)
    won_P = winners(first_P - second_P)
    good_P = first_P + second_P >= 2 * GOOD_FROM
    longer_P = np.sign([(one.length or 0) - (two.length or 0) for one, two in common_answers(first, second)])
    decided_P = (won_P != 0) & (longer_P != 0)
    return Comparison(
        first=first.name,
        second=second.name,
        difference=difference(first_P, second_P, seed=seed),
        deviation=difference_deviation(first_P, second_P),
        first_better=share((won_P > 0).tolist()),
        second_better=share((won_P < 0).tolist()),
        tied=share((won_P == 0).tolist()),
        both_good=None if first.judge else share(((won_P == 0) & good_P).tolist()),
        both_bad=None if first.judge else share(((won_P == 0) & ~good_P).tolist()),
        longer_won=share((won_P == longer_P)[decided_P].tolist()) if decided_P.any() else None,
        num_asked=len(first.answers),
        num_not_graded=(_num_not_graded(first), _num_not_graded(second)),
        notes=notes,
        seed=seed,
    )


def common_scores(*models: GradedModel) -> tuple[np.ndarray, ...]:
    """The grades of each model [P] on the prompts that all are graded for, in the order of the first model."""
    common = common_answers(*models)
    if not common:
        raise UsageError(
            "evaluation.nothing-graded",
            given=f"No prompt is graded for all of {', '.join(model.name for model in models)}.",
            needed="A comparison stands on prompts that each model answered and a grader graded.",
            fix="Look at the reasons beside the answers; give the rows a reference answer or choose another grader.",
        )
    values = [[answer.grade.value for answer in answers] for answers in common]
    return tuple(np.asarray(values, dtype=np.float64).T)


def common_answers(*models: GradedModel) -> Sequence[tuple[GradedAnswer, ...]]:
    """The answers of all models, prompt by prompt, where all are graded."""
    by_key = [model.by_key() for model in models]
    rows = (tuple(answers[key] for answers in by_key if key in answers) for key in by_key[0])
    return [row for row in rows if len(row) == len(models) and all(answer.grade.value is not None for answer in row)]


def winners(apart_P: np.ndarray) -> np.ndarray:
    """1, -1 or 0 (a tie) for each difference of two scores."""
    return np.sign(apart_P) * (np.abs(apart_P) > TIE_WITHIN)


def by_slice(
    first: GradedModel, second: GradedModel, labels: Mapping[str, str], *, seed: int = 0
) -> dict[str, Interval]:
    """The difference within each value of a column, most prompts first; `labels` gives the value by a prompt's key.

    Of twenty slices one misses the truth with its interval by chance alone.
    """
    first_P, second_P = common_scores(first, second)
    places: dict[str, list[int]] = defaultdict(list)
    for place, (answer, _) in enumerate(common_answers(first, second)):
        if answer.key in labels:
            places[labels[answer.key]].append(place)
    ordered = sorted(places.items(), key=lambda item: (-len(item[1]), item[0]))
    return {label: difference(first_P[rows], second_P[rows], seed=seed) for label, rows in ordered}


def prompt_differences(first: GradedModel, second: GradedModel, *, other_template: bool = False) -> tuple[str, ...]:
    """What differs between two evaluations and does not forbid comparing: settings, and templates where allowed.

    Raises:
        Refusal: other prompts were asked, or (unless `other_template`) a prompt went out as another text.
    """
    own, other = first.by_key(), second.by_key()
    unequal = [f"{own[key].source}: only {first.name} was asked this" for key in own if key not in other]
    unequal += [f"{other[key].source}: only {second.name} was asked this" for key in other if key not in own]
    texts = [
        f"{own[key].source}: {_first_difference(own[key].prompt_text, other[key].prompt_text)}"
        for key in own
        if key in other and own[key].prompt_text != other[key].prompt_text
    ]
    unequal += [] if other_template else texts
    if unequal:
        raise Refusal(
            "evaluation.prompts-unequal",
            given=f"{len(unequal)} prompts of {first.name} and {second.name} are not the same:"
            f"{indented_lines(unequal)}\n",
            needed="A difference between two models means something only on the same prompts.",
            fix="Evaluate both with the same file and template; for models of two families allow their own templates.",
        )
    names = sorted(first.settings.keys() | second.settings.keys())
    settings = [(name, first.settings.get(name), second.settings.get(name)) for name in names]
    return (
        *([f"{len(texts)} prompts went out as different texts; {texts[0]}"] if texts else []),
        *(f"{name}: {one} for {first.name}, {two} for {second.name}" for name, one, two in settings if one != two),
    )


def _first_difference(first: str, second: str) -> str:
    pairs = enumerate(zip(first, second, strict=False))
    place = next((place for place, (one, two) in pairs if one != two), min(len(first), len(second)))
    shown = [text[place : place + SHOWN_CHARACTERS] for text in (first, second)]
    return f"from character {place + 1} on, {shown[0]!r} and {shown[1]!r}"


def _measure(model: GradedModel) -> str:
    return "graders" if model.judge is None else f"the judge {model.judge}"


def _num_not_graded(model: GradedModel) -> int:
    return sum(answer.grade.value is None for answer in model.answers)
