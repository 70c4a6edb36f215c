"""The answers that a teacher generates before training: requested once, all stored, the usable ones trained on.

Training starts when all of them are there: while some are missing that may still arrive, the run stops and can be
resumed.

answers/teacher.jsonl   every answer unchanged, with its label
answers/targets.jsonl   those that are trained on, as rows of the supervised route
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import limbeck.training.messages as messages
from limbeck.data.prompt import Prompt, Targets
from limbeck.data.targets import holds_stop, make_targets
from limbeck.recipe.recipe import Recipe
from limbeck.rollouts.request import Completion
from limbeck.runs.store import Run, WriteEvent
from limbeck.teachers.writer import generate_answers, rows_of
from limbeck.training.material import Material, num_positions, render_rows
from limbeck.training.setup import Models, make_answer_generator

__all__ = [
    "TARGETS",
    "TEACHER_ANSWERS",
    "generate_teacher_answers",
    "in_student_template",
    "label_unfit",
    "store_teacher_answers",
    "targets_from_answers",
]

TEACHER_ANSWERS = "teacher"
TARGETS = "targets"
NUM_SHOWN = 5


def store_teacher_answers(run: Run, log: WriteEvent, recipe: Recipe, material: Material, models: Models) -> None:
    """Generate the answers that the student is trained on; stores all of them, and the usable ones as targets."""
    if TARGETS in run.answer_sets():  # a resumed run trains on the same targets
        return
    log("phase", phase=messages.generating_answers())
    rows = generate_teacher_answers(run, log, recipe, material, models, material.train.prompts, recipe.answers_written)
    label_unfit(rows, material, recipe)
    run.write_answers(TEACHER_ANSWERS, rows)
    fit = _without_labels(rows)
    run.write_answers(TARGETS, [{"prompt": row["prompt"], "answer": row["answer"]} for row in fit])
    labels = Counter(row["label"] for row in rows if row["label"] is not None)
    log("answers", written=len(rows), learnt=len(fit), left_out=dict(sorted(labels.items())))
    left_out = [f"{num} {label}" for label, num in sorted(labels.items())]
    note = messages.teacher_answers(num=len(rows), num_used=len(fit))
    if left_out:
        note = messages.teacher_answers_left_out(num=len(rows), num_used=len(fit), left_out=left_out)
    log("note", text=note)


def label_unfit(rows: Sequence[dict[str, Any]], material: Material, recipe: Recipe) -> None:
    """Label answers that cannot be trained on: they contain a stop token, or are too long for the student."""
    targets = _targets(rows, material, recipe)
    limit = num_positions(material.student_ref)
    for row, prompt in zip(_without_labels(rows), targets.prompts, strict=True):
        answer = targets.answer_to(prompt)
        if holds_stop(answer, material.dialogue.stop):
            row["label"] = "stop-inside"
        elif limit is not None and len(prompt.ids) + len(answer) > limit:
            row["label"] = "too-long"


def generate_teacher_answers(
    run: Run,
    log: WriteEvent,
    recipe: Recipe,
    material: Material,
    models: Models,
    prompts: Sequence[Prompt],
    num_answers: int,
) -> list[dict[str, Any]]:
    """The teacher's answers to prompts as rows; prompts without an answer are listed in the log.

    Raises:
        Stopped: some answers are missing and may arrive when the run is resumed; the others are stored.
    """
    generator = make_answer_generator(models, material, recipe, account=run.name, log=log)
    rows = generate_answers(generator, prompts, material.examples, num_answers=num_answers, seed=recipe.seed)
    without = [row for row in rows if row["label"] in ("rejected", "failed")]
    if not without:
        return rows
    log("unanswered", rows=[{name: row[name] for name in ("source", "sample", "label", "why")} for row in without])
    shown: list[str] = [messages.answer_missing(source=row["source"], why=row["why"]) for row in without[:NUM_SHOWN]]
    shown += ["..."] * (len(without) > NUM_SHOWN)
    if any(row["label"] == "failed" for row in without):
        raise messages.answers_missing(num=len(without), num_rows=len(rows), shown=shown, run=run.path)
    log("note", text=messages.answers_missing_left_out(num=len(without), num_rows=len(rows), shown=shown))
    return rows


def in_student_template(
    stored: Sequence[Mapping[str, Any]], prompts: Sequence[Prompt], material: Material
) -> tuple[Completion, ...]:
    """A teacher's answers, one per prompt, in the student's tokens; a truncated one has no stop token."""
    asked = [replace(prompt, reference=row["answer"]) for prompt, row in zip(prompts, stored, strict=True)]
    cut_off = [bool(row["cut_off"]) for row in stored]
    targets = make_targets(asked, material.dialogue, cut_off)
    return tuple(Completion(targets.answer_to(each), (), cut) for each, cut in zip(asked, cut_off, strict=True))


def targets_from_answers(stored: Sequence[dict[str, Any]], material: Material, recipe: Recipe) -> Targets:
    """A teacher's answers without a label, as targets.

    Raises:
        Refusal: there is none.
    """
    targets = _targets(stored, material, recipe)
    if not targets.prompts:
        raise messages.no_usable_answer(num=len(stored))
    return targets


def _without_labels(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["label"] is None]


def _targets(rows: Sequence[dict[str, Any]], material: Material, recipe: Recipe) -> Targets:
    """Rows without a label in the student's tokens: the teacher's token ids if it scores, since both then share one
    vocabulary; otherwise its text, tokenised for the student."""
    if not (fit := _without_labels(rows)):
        return Targets((), {})
    rendered = render_rows(rows_of(fit), material, recipe)
    if not recipe.scores:
        return make_targets(rendered.prompts, material.dialogue, [False] * len(fit))
    identities = [(prompt.content_hash, prompt.occurrence) for prompt in rendered.prompts]
    return Targets(rendered.prompts, {key: tuple(row["ids"]) for key, row in zip(identities, fit, strict=True)})
