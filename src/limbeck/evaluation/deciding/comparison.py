"""Two models on the same prompts: which is better on which prompts, and by how much.

A comparison uses the prompts for which both answers have a grade, and counts the others: a missing answer or grade is
never replaced by a number. Models with different prompts cannot be compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from limbeck.data.row_errors import indented_lines
from limbeck.evaluation.deciding.statistics import (
    NUM_RESAMPLES,
    Interval,
    difference,
    difference_deviation,
    share_interval,
)
from limbeck.evaluation.grading.graders import Grade
from limbeck.evaluation.messages import verdicts as messages

__all__ = ["Comparison", "GradedAnswer", "GradedModel", "by_slice", "common_scores", "compare", "prompt_differences"]

GOOD_FROM = 0.5
TIE_WITHIN = 0.05
SHOWN_CHARACTERS = 40


@dataclass(frozen=True)
class GradedAnswer:
    """The grade of one answer. `key` identifies the prompt by its conversation, `prompt_text` is the exact text sent.

    `source` is the place of the row, for people. `length` is that of the answer, None if there is no answer.
    """

    key: str
    source: str
    prompt_text: str
    grade: Grade
    length: int | None


@dataclass(frozen=True)
class GradedModel:
    """A model's graded answers, one for each prompt; `settings` are those of the generation.

    `judge` is the name of the judge if the grades are its preferences; None if they come from graders.
    """

    name: str
    answers: tuple[GradedAnswer, ...]
    settings: Mapping[str, object]
    judge: str | None = None

    def by_key(self) -> dict[str, GradedAnswer]:
        found = {answer.key: answer for answer in self.answers}
        assert len(found) == len(self.answers), "a prompt occurs twice"
        return found


@dataclass(frozen=True)
class Comparison:
    """`difference` is first - second; `deviation` is its standard deviation over prompts.

    A difference of up to `TIE_WITHIN` is a tie, so `first_better`, `second_better` and `tied` add up to 1. Ties are
    split into `both_good` and `both_bad`; preferences have neither. `longer_won` is the share of prompts won by the
    longer answer, among those without a tie and with answers of different length.
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
    """Compare two models on the prompts for which both have a grade.

    Args:
        other_template: whether the models may use different chat templates (models of two families). Texts that differ
            are then a note; otherwise they are an error.
        seed: of the resampling.

    Raises:
        Refusal: the prompts differ, or only one of the models was graded by a judge.
        UsageError: no prompt has a grade for both.
    """
    if first.judge != second.judge:
        raise messages.measures_mixed(
            first=first.name, first_measure=_measure(first), second=second.name, second_measure=_measure(second)
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
        first_better=share_interval((won_P > 0).tolist()),
        second_better=share_interval((won_P < 0).tolist()),
        tied=share_interval((won_P == 0).tolist()),
        both_good=None if first.judge else share_interval(((won_P == 0) & good_P).tolist()),
        both_bad=None if first.judge else share_interval(((won_P == 0) & ~good_P).tolist()),
        longer_won=share_interval((won_P == longer_P)[decided_P].tolist()) if decided_P.any() else None,
        num_asked=len(first.answers),
        num_not_graded=(_num_not_graded(first), _num_not_graded(second)),
        notes=notes,
        seed=seed,
    )


def common_scores(*models: GradedModel) -> tuple[np.ndarray, ...]:
    """The grades of each model [P] on the prompts for which all have one, in the order of the first model."""
    common = common_answers(*models)
    if not common:
        raise messages.nothing_graded(models=[model.name for model in models])
    values = [[answer.grade.value for answer in answers] for answers in common]
    return tuple(np.asarray(values, dtype=np.float64).T)


def common_answers(*models: GradedModel) -> Sequence[tuple[GradedAnswer, ...]]:
    """The answers of all models, prompt by prompt, where all have a grade."""
    by_key = [model.by_key() for model in models]
    rows = (tuple(answers[key] for answers in by_key if key in answers) for key in by_key[0])
    return [row for row in rows if len(row) == len(models) and all(answer.grade.value is not None for answer in row)]


def winners(apart_P: np.ndarray) -> np.ndarray:
    """1, -1 or 0 (a tie) for each difference of two grades."""
    return np.sign(apart_P) * (np.abs(apart_P) > TIE_WITHIN)


def by_slice(
    first: GradedModel, second: GradedModel, labels: Mapping[str, str], *, seed: int = 0
) -> dict[str, Interval]:
    """The difference within each value of a column, the most frequent first; `labels` maps a prompt's key to the value.

    About one in twenty of these intervals misses the true difference by chance.
    """
    first_P, second_P = common_scores(first, second)
    places: dict[str, list[int]] = defaultdict(list)
    for place, (answer, _) in enumerate(common_answers(first, second)):
        if answer.key in labels:
            places[labels[answer.key]].append(place)
    ordered = sorted(places.items(), key=lambda item: (-len(item[1]), item[0]))
    return {label: difference(first_P[rows], second_P[rows], seed=seed) for label, rows in ordered}


def prompt_differences(first: GradedModel, second: GradedModel, *, other_template: bool = False) -> tuple[str, ...]:
    """Notes on differences that do not prevent a comparison: settings, and the chat template where allowed.

    Raises:
        Refusal: the prompts differ or, without `other_template`, their texts.
    """
    own, other = first.by_key(), second.by_key()
    only = messages.prompt_of_one_model
    unequal: list[str] = [only(source=own[key].source, model=first.name) for key in own if key not in other]
    unequal += [only(source=other[key].source, model=second.name) for key in other if key not in own]
    texts = [
        _first_difference(own[key].source, own[key].prompt_text, other[key].prompt_text)
        for key in own
        if key in other and own[key].prompt_text != other[key].prompt_text
    ]
    unequal += [] if other_template else texts
    if unequal:
        raise messages.prompts_unequal(
            num=len(unequal), first=first.name, second=second.name, listing=indented_lines(unequal)
        )
    names = sorted(first.settings.keys() | second.settings.keys())
    settings = [(name, first.settings.get(name), second.settings.get(name)) for name in names]
    return (
        *([messages.texts_differ(num=len(texts), example=texts[0])] if texts else []),
        *(
            messages.setting_differs(
                setting=name, first=first.name, first_value=str(one), second=second.name, second_value=str(two)
            )
            for name, one, two in settings
            if one != two
        ),
    )


def _first_difference(source: str, first: str, second: str) -> str:
    pairs = enumerate(zip(first, second, strict=False))
    place = next((place for place, (one, two) in pairs if one != two), min(len(first), len(second)))
    shown = [text[place : place + SHOWN_CHARACTERS] for text in (first, second)]
    return messages.text_differs(source=source, character=place + 1, first=shown[0], second=shown[1])


def _measure(model: GradedModel) -> str:
    return "a grader" if model.judge is None else f"the judge {model.judge}"


def _num_not_graded(model: GradedModel) -> int:
    return sum(answer.grade.value is None for answer in model.answers)
