"""How answers are graded: by a grader where the rows allow it, else by character overlap with another text.

An evaluation has one measure for all of its models. A grade is between 0 and 1; several samples of one prompt give
their mean. An answer that cannot be graded has no grade, and a reason.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, Literal

from pydantic import ValidationError

from limbeck.data.chat import conversation_key
from limbeck.data.prompt import Prompt
from limbeck.evaluation.deciding.comparison import GradedAnswer, GradedModel
from limbeck.evaluation.grading.graders import Columns, Grade, chrf, grade_answer
from limbeck.evaluation.grading.written_numbers import unit_of, written_numbers
from limbeck.evaluation.messages import grading as messages
from limbeck.recipe.grader import GraderKind, GraderSettings

__all__ = ["MeasureText", "ScoreMeasure", "choose_grader", "choose_measure", "grade_answers", "graded_model"]

# A longer reference without a special form is prose, which an answer hardly ever equals.
PROSE_CHARACTERS = 80
MAX_UNIT_LENGTH = 4
MeasureKind = Literal["grader", "judge", "text"]


@dataclass(frozen=True)
class MeasureText:
    """A measure as a result stores it; the kind "text" is character overlap."""

    name: str
    kind: MeasureKind
    text: str


@dataclass(frozen=True)
class ScoreMeasure:
    """How the answers of an evaluation are graded: `graders` has one entry for each prompt.

    For the kind "text", the measure is character overlap with the references, or with the teacher's answers.
    """

    name: str
    kind: MeasureKind
    text: str
    graders: tuple[GraderSettings, ...] = ()
    to_teacher: bool = False

    def describe(self) -> MeasureText:
        return MeasureText(self.name, self.kind, self.text)


def choose_measure(prompts: Sequence[Prompt], setting: GraderSettings | None) -> ScoreMeasure:
    """The graders of the rows, the setting, or the form of the references; else character overlap.

    Raises:
        DataError: the grader of a row is invalid.
    """
    chosen = tuple(choose_grader(prompt.reference, prompt.extra, setting, source=prompt.source) for prompt in prompts)
    named = setting is not None or any(prompt.extra.get("grader") is not None for prompt in prompts)
    references = [prompt.reference for prompt in prompts if prompt.reference]
    if not named and not references:
        return ScoreMeasure("chrf", "text", messages.overlap_with_teacher(), to_teacher=True)
    prose = not named and median(map(len, references)) > PROSE_CHARACTERS
    if prose and {each.kind for each in chosen} <= {"normalised"}:
        return ScoreMeasure("chrf", "text", messages.overlap_with_reference())
    kinds: list[str] = sorted({each.kind for each in chosen})
    return ScoreMeasure("+".join(kinds), "grader", messages.graded_by(kinds=kinds), chosen)


def choose_grader(
    reference: str | None, columns: Columns, setting: GraderSettings | None, *, source: str
) -> GraderSettings:
    """The grader of a row: its own column `grader` (a name, or an object of settings), the setting, or by form.

    By form: a JSON object or array is compared as json, a number with at most a short unit as number, and any other
    reference as normalised.

    Raises:
        DataError: the row's grader is invalid, or is a function (data must not choose code to run).
    """
    own = columns.get("grader")
    if own is None:
        return setting or GraderSettings(kind=_kind_by_form(reference or ""))
    try:
        settings = GraderSettings.model_validate({"kind": own} if isinstance(own, str) else own)
    except ValidationError as error:
        first = error.errors()[0]
        problem = ": ".join([*(str(place) for place in first["loc"]), first["msg"]])
        raise messages.grader_invalid(source=source, problem=problem[:300]) from None
    if settings.kind == "function":
        raise messages.grader_function_in_row(source=source)
    return settings


def _kind_by_form(reference: str) -> GraderKind:
    if reference.lstrip().startswith(("{", "[")):
        try:
            json.loads(reference)
        except (ValueError, RecursionError):
            return "normalised"
        return "json"
    found = written_numbers(reference)
    unit = unit_of(reference, found[0]) if len(found) == 1 else None
    return "normalised" if unit is None or len(unit) > MAX_UNIT_LENGTH else "number"


def grade_answers(
    measure: ScoreMeasure,
    prompts: Sequence[Prompt],
    rows: Sequence[Mapping[str, Any]],
    teacher: Mapping[tuple[str, int], str | None] | None = None,
) -> list[dict[str, Any]]:
    """The rows with `grade` and `grade_reason`.

    Args:
        teacher: its answers by key and sample, for character overlap with them; None for the teacher's own rows.
    """
    place_of = {conversation_key(prompt): place for place, prompt in enumerate(prompts)}
    graded: list[dict[str, Any]] = []
    for row in rows:
        place = place_of[row["key"]]
        prompt, answer = prompts[place], row["answer"]
        if measure.kind == "grader":
            found = grade_answer(measure.graders[place], answer, prompt.references, prompt.extra)
        elif measure.to_teacher:
            found = _character_overlap(answer, [] if teacher is None else [teacher.get((row["key"], row["sample"]))])
        else:
            found = _character_overlap(answer, prompt.references)
        graded.append({**row, "grade": found.value, "grade_reason": row["failure"] or found.reason or None})
    return graded


def _character_overlap(answer: str | None, texts: Sequence[str | None]) -> Grade:
    known = [text for text in texts if text]
    if answer is None or not known:
        return Grade(None, messages.no_answer() if answer is None else messages.no_text_to_compare())
    return Grade(max(chrf(answer, text) for text in known))


def graded_model(alias: str, rows: Sequence[Mapping[str, Any]], settings: Mapping[str, object]) -> GradedModel:
    """The graded rows of a model, with one entry for each prompt, as comparisons need them."""
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
