"""How far models are from their teacher, token by token on their own answers, and the marks of the worst of these.

The teacher and one other model are loaded together, here and nowhere else in an evaluation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from limbeck.data.chat import conversation_key
from limbeck.data.prompt import Prompt
from limbeck.evaluation.answering.answers import load_side
from limbeck.evaluation.answering.held_out import TextMeasure, measure_text
from limbeck.evaluation.answering.sides import Side
from limbeck.evaluation.marking import mark_answers, nearest_beta
from limbeck.models.language_model import LanguageModel
from limbeck.objectives.objective import Objective
from limbeck.rollouts.request import Completion
from limbeck.runs.evaluations import Evaluation
from limbeck.runs.marks import MarkSheet, write_marks
from limbeck.teachers.local import LocalTeacher

__all__ = ["distances"]

READ_TOKENS, CHUNK_TOKENS = 4096, 512
NUM_MARKED = 5


def distances(evaluation: Evaluation, sides: Sequence[Side], device: str) -> dict[str, TextMeasure]:
    """By alias, where the ids mean the same to both; marks are made of the distilled model, else of the student."""
    teacher = next((side for side in sides if side.role == "teacher" and side.alike), None)
    others = [side for side in sides if side.alike and side is not teacher]
    if teacher is None or not others:
        return {}
    reads = LocalTeacher(load_side(teacher, device))
    roles = [side.role for side in others]
    marked = next((role for role in ("distilled", "student") if role in roles), None)
    found: dict[str, TextMeasure] = {}
    for side in others:
        by_key = {row["key"]: row for row in evaluation.read_answers(side.alias) if row["sample"] == 0 and row["ids"]}
        prompts = [prompt for prompt in side.prompts if conversation_key(prompt) in by_key]
        if prompts:
            rows = [by_key[conversation_key(prompt)] for prompt in prompts]
            answers = [Completion(tuple(row["ids"]), (), bool(row["cut_off"])) for row in rows]
            model = load_side(side, device)
            found[side.alias] = measured = measure_text(
                model,
                reads,
                prompts,
                answers,
                Objective(),
                max_tokens=READ_TOKENS,
                pad_id=side.local.pad_id,
                chunk_tokens=CHUNK_TOKENS,
            )
            if side.role == marked:
                worst = sorted(range(len(prompts)), key=lambda number: -measured.nats[number])[:NUM_MARKED]
                chosen = [(prompts[number], answers[number]) for number in worst]
                _write_marks(evaluation, side, model, teacher, reads, chosen)
    return found


def _write_marks(
    evaluation: Evaluation,
    side: Side,
    model: LanguageModel,
    teacher: Side,
    reads: LocalTeacher,
    chosen: Sequence[tuple[Prompt, Completion]],
) -> None:
    prompts = [prompt for prompt, _ in chosen]
    marks = mark_answers(model, reads, prompts, [answer for _, answer in chosen], pad_id=side.local.pad_id)
    # under the evaluation's own keys, by which the marks are found beside the rows
    named = tuple(replace(each, key=conversation_key(prompt)) for each, prompt in zip(marks, prompts, strict=True))
    sheet = MarkSheet(side.name, teacher.name, side.ref.step, nearest_beta(Objective()), named)
    write_marks(evaluation.marks_path / f"{side.alias}.safetensors", sheet)
