"""The answers that a teacher writes before training: asked once, stored whole, learnt as far as they are fit.

A run waits for all of them: it stops, to be resumed, while some are missing that may still come.

answers/teacher.jsonl   every answer as it came, with its label
answers/targets.jsonl   those that are learnt, as rows that the supervised route reads
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from limbeck.data.prompt import Prompt, Targets
from limbeck.data.targets import holds_stop, make_targets
from limbeck.errors import Refusal, Stopped
from limbeck.recipe.recipe import Recipe
from limbeck.rollouts.request import Completion
from limbeck.runs.store import Run
from limbeck.teachers.writer import ask, rows_of
from limbeck.training.material import Material, num_positions, render_rows
from limbeck.training.setup import Models, make_writer

__all__ = [
    "TARGETS",
    "TEACHER_ANSWERS",
    "as_student_reads",
    "ask_teacher",
    "label_unfit",
    "write_answers",
    "written_targets",
]

TEACHER_ANSWERS = "teacher"
TARGETS = "targets"
NUM_SHOWN = 5

Log = Callable[..., None]


def write_answers(run: Run, log: Log, recipe: Recipe, material: Material, models: Models) -> None:
    """Let the teacher write what the student is trained on: all of it is stored, what is fit to learn a second time."""
    if TARGETS in run.answer_sets():  # a continued run learns the text that it learnt so far
        return
    log("phase", phase="teacher writes answers")
    rows = ask_teacher(run, log, recipe, material, models, material.train.prompts, recipe.answers_written)
    label_unfit(rows, material, recipe)
    run.write_answers(TEACHER_ANSWERS, rows)
    fit = _unlabelled(rows)
    run.write_answers(TARGETS, [{"prompt": row["prompt"], "answer": row["answer"]} for row in fit])
    labels = Counter(row["label"] for row in rows if row["label"] is not None)
    log("answers", written=len(rows), learnt=len(fit), left_out=dict(sorted(labels.items())))
    left_out = ", ".join(f"{num} {label}" for label, num in sorted(labels.items()))
    log("note", text=f"The teacher wrote {len(rows)} answers; {len(fit)} are learnt, left out: {left_out or 0}.")


def label_unfit(rows: Sequence[dict[str, Any]], material: Material, recipe: Recipe) -> None:
    """Put a label on answers that the student cannot learn: a stop token stands inside, or they are too long for it."""
    targets = _targets(rows, material, recipe)
    limit = num_positions(material.student_ref)
    for row, prompt in zip(_unlabelled(rows), targets.prompts, strict=True):
        answer = targets.answer_to(prompt)
        if holds_stop(answer, material.dialogue.stop):
            row["label"] = "stop-inside"
        elif limit is not None and len(prompt.ids) + len(answer) > limit:
            row["label"] = "too-long"


def ask_teacher(
    run: Run,
    log: Log,
    recipe: Recipe,
    material: Material,
    models: Models,
    prompts: Sequence[Prompt],
    num_answers: int,
) -> list[dict[str, Any]]:
    """The teacher's answers to prompts as rows; what has none is listed in the log.

    Raises:
        Stopped: some answers did not come, and may at the next start. Those that came are stored by their teacher.
    """
    writer = make_writer(models, material, recipe, account=run.name, log=log)
    rows = ask(writer, prompts, material.examples, num_answers=num_answers, seed=recipe.seed)
    without = [row for row in rows if row["label"] in ("rejected", "failed")]
    if not without:
        return rows
    log("unanswered", rows=[{name: row[name] for name in ("source", "sample", "label", "why")} for row in without])
    shown = "; ".join(f"{row['source']} ({row['why']})" for row in without[:NUM_SHOWN])
    given = f"{len(without)} of {len(rows)} questions have no answer: {shown}{', ...' * (len(without) > NUM_SHOWN)}."
    if any(row["label"] == "failed" for row in without):
        raise Stopped(
            "teacher.incomplete",
            given=given,
            needed="Each may be answered the next time, and what is learnt should not depend on a bad hour.",
            fix=f"`limbeck resume {run.path}`, or the same command again, asks only for these. If a prompt never gets "
            "an answer, leave it out.",
        )
    log("note", text=f"WARNING: {given} They are left out.")
    return rows


def as_student_reads(
    stored: Sequence[Mapping[str, Any]], prompts: Sequence[Prompt], material: Material
) -> tuple[Completion, ...]:
    """A teacher's answers, one to each of `prompts`, in the student's tokens; one that was cut off has no end."""
    asked = [replace(prompt, reference=row["answer"]) for prompt, row in zip(prompts, stored, strict=True)]
    cut_off = [bool(row["cut_off"]) for row in stored]
    targets = make_targets(asked, material.dialogue, cut_off)
    return tuple(Completion(targets.answer_to(each), (), cut) for each, cut in zip(asked, cut_off, strict=True))


def written_targets(stored: Sequence[dict[str, Any]], material: Material, recipe: Recipe) -> Targets:
    """A teacher's answers that bear no label, as targets.

    Raises:
        Refusal: none is left.
    """
    targets = _targets(stored, material, recipe)
    if not targets.prompts:
        raise Refusal(
            "teacher.nothing-to-learn",
            given=f"None of the teacher's {len(stored)} answers is fit to learn from.",
            needed="Answers that are cut off, empty, refused or doubled teach what nobody wants.",
            fix="Look at them in answers/teacher.jsonl; raise max_teacher_tokens if they are cut off.",
        )
    return targets


def _unlabelled(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["label"] is None]


def _targets(rows: Sequence[dict[str, Any]], material: Material, recipe: Recipe) -> Targets:
    """Rows without a label in the student's tokens: the teacher's own where it scores, for then both have one
    vocabulary, else those of its text."""
    if not (fit := _unlabelled(rows)):
        return Targets((), {})
    rendered = render_rows(rows_of(fit), material, recipe)
    if not recipe.scores:
        return make_targets(rendered.prompts, material.dialogue, [False] * len(fit))
    identities = [(prompt.content_hash, prompt.occurrence) for prompt in rendered.prompts]
    return Targets(rendered.prompts, {key: tuple(row["ids"]) for key, row in zip(identities, fit, strict=True)})
