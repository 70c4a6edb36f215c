"""The rows behind the numbers: every prompt with the answers of all models, and the sets of rows behind each number.

A set is a tuple such as ("cut_off", "student"). Each row lists its sets, so that a page can show the rows of one set
with a style rule and without a script.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from limbeck.reporting.messages import page as texts
from limbeck.reporting.messages.labels import PAIR_SETS, SETS

__all__ = ["AnswerRow", "Rows", "collect", "label"]

SetName = tuple[object, ...]


@dataclass
class AnswerRow:
    """One prompt; `answers` has the samples of each model by its alias, without the models that have no sample."""

    number: int
    key: str
    source: str
    messages: Sequence[Mapping[str, Any]]
    reference: str | None
    labels: Mapping[str, str]
    answers: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)
    sets: list[str] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)

    def score(self, alias: str) -> float | None:
        """The mean of a model's grades for this prompt; None without grades."""
        grades = [answer["grade"] for answer in self.answers.get(alias, ()) if answer["grade"] is not None]
        return sum(grades) / len(grades) if grades else None

    def length(self, alias: str) -> int:
        """The mean length of a model's answers, 0 without answers."""
        lengths = [answer["length"] for answer in self.answers.get(alias, ()) if answer["length"] is not None]
        return round(sum(lengths) / len(lengths)) if lengths else 0


@dataclass
class Rows:
    """All rows, and the sets by name: each has an id for the page and the number of its rows."""

    rows: list[AnswerRow] = field(default_factory=list)
    ids: dict[SetName, str] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)

    def put(self, row: AnswerRow, *name: object) -> None:
        """Put a row into a set."""
        identity = self.ids.setdefault(name, f"set-{len(self.ids)}")
        if identity not in row.sets:
            row.sets.append(identity)
            self.sizes[identity] = self.sizes.get(identity, 0) + 1

    def find(self, *name: object) -> str | None:
        """The id of a set, or None if no row is in it."""
        return self.ids.get(name)

    def size(self, *name: object) -> int:
        return self.sizes.get(self.ids.get(name, ""), 0)


def collect(result: Mapping[str, Any], answers: Mapping[str, Sequence[Mapping[str, Any]]]) -> Rows:
    """The answers of all models by prompt, in the order of the first model's answers, and every set of rows."""
    by_key: dict[str, AnswerRow] = {}
    for alias, lines in answers.items():
        for line in lines:
            row = by_key.get(line["key"])
            if row is None:
                row = by_key[line["key"]] = _new_row(len(by_key) + 1, line)
            row.answers.setdefault(alias, []).append(line)
    found = Rows(list(by_key.values()))
    for row in found.rows:
        _put_by_answers(found, row, result["measure"]["kind"] == "judge")
        _put_by_comparisons(found, row, result["comparisons"])
        for slice_ in result["slices"]:
            if row.labels.get(slice_["column"]) == slice_["value"]:
                found.put(row, "slice", slice_["column"], slice_["value"])
    return found


def _new_row(number: int, line: Mapping[str, Any]) -> AnswerRow:
    messages = line.get("messages") or [{"role": "prompt", "content": line["prompt"]}]
    return AnswerRow(number, line["key"], line["source"], messages, line.get("reference"), line.get("labels") or {})


def _put_by_answers(found: Rows, row: AnswerRow, judged: bool) -> None:
    """Sets by the state of the answers, for each model and for all; a judge grades pairs, not single answers."""
    for alias, samples in row.answers.items():
        for sample in samples:
            states = {
                "asked": True,
                "failed": sample["answer"] is None,
                "answered": sample["answer"] is not None,
                "empty": sample["answer"] is not None and not sample["answer"].strip(),
                "cut_off": bool(sample["cut_off"]),
                "not_graded": sample["grade"] is None and not judged,
                "graded": sample["grade"] is not None and not judged,
            }
            for state in (name for name, holds in states.items() if holds):
                found.put(row, state, alias)
                if state in ("failed", "empty", "cut_off", "not_graded"):
                    found.put(row, state)


def _put_by_comparisons(found: Rows, row: AnswerRow, comparisons: Sequence[Mapping[str, Any]]) -> None:
    """Sets by the better model, with the rule of the comparison itself."""
    from limbeck.evaluation.deciding.comparison import GOOD_FROM, TIE_WITHIN

    # the evaluation is about this model: its losses are of interest
    judged = next((alias for alias in ("distilled", "student") if alias in row.answers), None)
    differs = False
    for number, compared in enumerate(comparisons):
        names = compared["first"], compared["second"]
        first, second = _scores(row, compared)
        if first is None or second is None:
            found.put(row, "not_compared", number)
            continue
        found.put(row, "compared", number)
        apart = first - second
        if abs(apart) <= TIE_WITHIN:
            found.put(row, "tied", number)
            if compared["both_good"] is not None:
                good = first + second >= 2 * GOOD_FROM
                found.put(row, "both_good" if good else "both_bad", number)
                if not good:
                    found.put(row, "both_bad")
            continue
        differs = True
        found.put(row, "first_better" if apart > 0 else "second_better", number)
        winner, loser = names if apart > 0 else names[::-1]
        if loser == judged:
            found.put(row, "lost", winner)
        row.outcomes.append(texts.better_than(first=winner, second=loser))
        longer = row.length(winner) - row.length(loser)
        if longer:
            found.put(row, "longer_won" if longer > 0 else "longer_lost", number)
            found.put(row, "won_by_length", number)
    if differs or (not comparisons and _texts_differ(row)):
        found.put(row, "differ")


def _scores(row: AnswerRow, compared: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """The scores that decide between both models: a judge's preference if there is one, else their grades."""
    preferences = compared.get("preferences")
    if preferences is None:
        return row.score(compared["first"]), row.score(compared["second"])
    value = preferences.get(row.key)
    return value, None if value is None else 1 - value


def _texts_differ(row: AnswerRow) -> bool:
    texts = [[answer["answer"] for answer in samples] for samples in row.answers.values()]
    return any(text != texts[0] for text in texts)


def label(name: SetName, comparisons: Sequence[Mapping[str, Any]]) -> str:
    """What the rows of a set have in common, for people."""
    what, *about = name
    if what == "slice":
        return f"{about[0]}: {about[1]}"
    if about and isinstance(about[0], int):
        first, second = (comparisons[about[0]][side] for side in ("first", "second"))
        return PAIR_SETS[str(what)].format(first=first, second=second)
    return SETS[str(what)] + (f" ({about[0]})" if about else "")
