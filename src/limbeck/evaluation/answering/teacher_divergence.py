"""The divergence of models from their teacher on their own answers, and marks of the answers with the highest one.

The teacher and one other model are in memory at the same time, which happens nowhere else in an evaluation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from limbeck.data.chat import conversation_key
from limbeck.data.prompt import Prompt
from limbeck.evaluation.answering.answers import load_evaluated
from limbeck.evaluation.answering.evaluated import EvaluatedModel
from limbeck.evaluation.answering.text_measures import TextMeasure, measure_text
from limbeck.evaluation.marking import mark_answers, nearest_beta
from limbeck.models.language_model import LanguageModel
from limbeck.objectives.objective import Objective
from limbeck.rollouts.request import Completion
from limbeck.runs.evaluations import Evaluation
from limbeck.runs.marks import MarkSheet, write_marks
from limbeck.teachers.local import LocalTeacher

__all__ = ["divergences_to_teacher"]

MICRO_BATCH_TOKENS, CHUNK_TOKENS = 4096, 512
NUM_MARKED = 5


def divergences_to_teacher(
    evaluation: Evaluation, models: Sequence[EvaluatedModel], device: str
) -> dict[str, TextMeasure]:
    """The divergence by alias, for models with the teacher's vocabulary.

    Marks are stored for the distilled model, or else for the student.
    """
    teacher = next(
        (evaluated for evaluated in models if evaluated.role == "teacher" and evaluated.shares_vocabulary), None
    )
    others = [evaluated for evaluated in models if evaluated.shares_vocabulary and evaluated is not teacher]
    if teacher is None or not others:
        return {}
    scoring = LocalTeacher(load_evaluated(teacher, device))
    roles = [evaluated.role for evaluated in others]
    marked = next((role for role in ("distilled", "student") if role in roles), None)
    found: dict[str, TextMeasure] = {}
    for evaluated in others:
        by_key = {
            row["key"]: row for row in evaluation.read_answers(evaluated.alias) if row["sample"] == 0 and row["ids"]
        }
        prompts = [prompt for prompt in evaluated.prompts if conversation_key(prompt) in by_key]
        if prompts:
            rows = [by_key[conversation_key(prompt)] for prompt in prompts]
            answers = [Completion(tuple(row["ids"]), (), bool(row["cut_off"])) for row in rows]
            model = load_evaluated(evaluated, device)
            found[evaluated.alias] = measured = measure_text(
                model,
                scoring,
                prompts,
                answers,
                Objective(),
                max_tokens=MICRO_BATCH_TOKENS,
                pad_id=evaluated.local.pad_id,
                chunk_tokens=CHUNK_TOKENS,
            )
            if evaluated.role == marked:
                worst = sorted(range(len(prompts)), key=lambda number: -measured.nats[number])[:NUM_MARKED]
                chosen = [(prompts[number], answers[number]) for number in worst]
                _write_marks(evaluation, evaluated, model, teacher, scoring, chosen)
    return found


def _write_marks(
    evaluation: Evaluation,
    evaluated: EvaluatedModel,
    model: LanguageModel,
    teacher: EvaluatedModel,
    scoring: LocalTeacher,
    chosen: Sequence[tuple[Prompt, Completion]],
) -> None:
    prompts = [prompt for prompt, _ in chosen]
    marks = mark_answers(model, scoring, prompts, [answer for _, answer in chosen], pad_id=evaluated.local.pad_id)
    # with the keys of the evaluation's rows, so that a report finds the marks of a row
    keyed = tuple(replace(each, key=conversation_key(prompt)) for each, prompt in zip(marks, prompts, strict=True))
    sheet = MarkSheet(evaluated.name, teacher.name, evaluated.ref.step, nearest_beta(Objective()), keyed)
    write_marks(evaluation.marks_path / f"{evaluated.alias}.safetensors", sheet)
