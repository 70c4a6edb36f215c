"""Stored answers to scores: by graders where the rows allow it, else by likeness of letters to a text.

One measure holds for all models of an evaluation and is never mixed with another. A score is between 0 and 1; several
samples of one prompt give their mean. What cannot be graded has no score and says why.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, Literal

from limbeck.data.chat import conversation_key
from limbeck.data.prompt import Prompt
from limbeck.evaluation.deciding.comparison import GradedAnswer, GradedModel
from limbeck.evaluation.grading.grader_settings import choose_grader
from limbeck.evaluation.grading.graders import Grade, chrf, grade
from limbeck.recipe.grader import GraderSettings

__all__ = ["Measure", "choose_measure", "grade_answers", "graded_model"]

# A reference longer than this, and of no form, is prose: hardly any answer equals it.
PROSE_CHARACTERS = 80


@dataclass(frozen=True)
class Measure:
    """How answers are scored. `kind` is "text" where likeness is all there is, to references or to the teacher."""

    name: str
    kind: Literal["grader", "judge", "text"]
    text: str
    graders: tuple[GraderSettings, ...] = ()
    to_teacher: bool = False

    def describe(self) -> dict[str, str]:
        return {"name": self.name, "kind": self.kind, "text": self.text}


def choose_measure(prompts: Sequence[Prompt], setting: GraderSettings | None) -> Measure:
    """Graders, by the rows' own word, the setting or the form of the references; likeness where these do not lead.

    Raises:
        DataError: a row names no known grader.
    """
    chosen = tuple(choose_grader(prompt.reference, prompt.extra, setting, source=prompt.source) for prompt in prompts)
    named = setting is not None or any(prompt.extra.get("grader") is not None for prompt in prompts)
    references = [prompt.reference for prompt in prompts if prompt.reference]
    if not named and not references:
        told = "The likeness of letters (chrF) of an answer to the teacher's: how alike they are, not which is better."
        return Measure("chrf", "text", told, to_teacher=True)
    prose = not named and median(map(len, references)) > PROSE_CHARACTERS
    if prose and {each.kind for each in chosen} <= {"normalised"}:
        told = "The likeness of letters (chrF) of an answer to the row's reference: no word on whether it is right."
        return Measure("chrf", "text", told)
    kinds = sorted({each.kind for each in chosen})
    told = f"An answer scores 0 to 1 by the grader {' or '.join(kinds)} against the row's reference answer."
    return Measure("+".join(kinds), "grader", told, chosen)


def grade_answers(
    measure: Measure,
    prompts: Sequence[Prompt],
    rows: Sequence[Mapping[str, Any]],
    teacher: Mapping[tuple[str, int], str | None] | None = None,
) -> list[dict[str, Any]]:
    """The rows with `grade` and `grade_reason`.

    Args:
        teacher: its answers by key and sample, where likeness to them is the measure; None for the teacher's own rows.
    """
    place_of = {conversation_key(prompt): place for place, prompt in enumerate(prompts)}
    graded: list[dict[str, Any]] = []
    for row in rows:
        place = place_of[row["key"]]
        prompt, answer = prompts[place], row["answer"]
        if measure.kind == "grader":
            found = grade(measure.graders[place], answer, prompt.references, prompt.extra)
        elif measure.to_teacher:
            found = _likeness(answer, [] if teacher is None else [teacher.get((row["key"], row["sample"]))])
        else:
            found = _likeness(answer, prompt.references)
        graded.append({**row, "grade": found.value, "grade_reason": row["failure"] or found.reason or None})
    return graded


def _likeness(answer: str | None, texts: Sequence[str | None]) -> Grade:
    known = [text for text in texts if text]
    if answer is None or not known:
        return Grade(None, "there is no answer" if answer is None else "there is no text to compare with")
    return Grade(max(chrf(answer, text) for text in known))


def graded_model(alias: str, rows: Sequence[Mapping[str, Any]], settings: Mapping[str, object]) -> GradedModel:
    """The graded rows of a model as what comparisons stand on: one entry for each prompt."""
    by_key: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        by_key[row["key"]].append(row)
    answers: list[GradedAnswer] = []
    for key, samples in by_key.items():
        grades = [row["grade"] for row in samples if row["grade"] is not None]
        lengths = [row["length"] for row in samples if row["length"] is not None]
        found = Grade(fmean(grades)) if grades else Grade(None, str(samples[0]["grade_reason"]))
        length = round(fmean(lengths)) if lengths else None
        answers.append(GradedAnswer(key, samples[0]["source"], samples[0]["prompt"], found, length))
    return GradedModel(alias, tuple(answers), settings)
