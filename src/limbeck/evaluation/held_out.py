"""Evaluation during training: the same held-out prompts each time, on a fixed text and on fresh text of the student.

The fixed text is the teacher's, generated once before training; without a teacher, it is the reference answers. The
student's answers are stored with their grades.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from limbeck.data.prompt import Prompt
from limbeck.evaluation.answering.answers import answer_prompts, text_of
from limbeck.evaluation.answering.text_measures import TextMeasure, measure_lengths, measure_text
from limbeck.evaluation.deciding.statistics import mean_score
from limbeck.evaluation.grading.graders import grade_answer
from limbeck.evaluation.grading.measure import choose_measure
from limbeck.evaluation.messages import models as messages
from limbeck.objectives.divergence import Objective
from limbeck.recipe.recipe import Recipe
from limbeck.rollouts.engine import Engine
from limbeck.rollouts.request import Completion
from limbeck.rollouts.sampling import Purpose, Sampling
from limbeck.runs.store import Run, WriteEvent
from limbeck.teachers.signal import Teacher
from limbeck.training.answers import generate_teacher_answers, in_student_template
from limbeck.training.material import Material
from limbeck.training.setup import Models, make_engine
from limbeck.training.state import TrainState

__all__ = [
    "HELD_OUT_TEACHER",
    "HeldOutSet",
    "best_step",
    "evaluate_held_out",
    "held_out_answer_rows",
    "prepare_held_out",
    "refuse_ungraded",
]

HELD_OUT_TEACHER = "held-out-teacher"
USABLE = (None, "cut-off", "duplicate")  # labels of answers whose text, or its beginning, can be measured


@dataclass(frozen=True)
class HeldOutSet:
    """The prompts of every evaluation of a run, and the fixed text: one answer to each."""

    prompts: tuple[Prompt, ...]
    texts: tuple[Completion, ...]


def evaluate_held_out(
    state: TrainState,
    teacher: Teacher | None,
    held_out: HeldOutSet,
    objective: Objective | None,
    recipe: Recipe,
    *,
    answer_limit: int,
    sampling: Sampling,
) -> tuple[list[dict[str, Any]], dict[str, object]]:
    """Generate the student's answers and measure both texts; returns the answers as rows, and the event's fields."""
    fresh = answer_prompts(
        state.engine, held_out.prompts, max_new_tokens=answer_limit, sampling=sampling, seed=recipe.seed
    )

    def measure_answers(answers: Sequence[Completion]) -> TextMeasure:
        return measure_text(
            state.student,
            teacher,
            held_out.prompts,
            answers,
            objective,
            max_tokens=recipe.micro_batch_tokens,
            pad_id=state.engine.pad_id,
            chunk_tokens=recipe.chunk_tokens,
            share=state.share,
        )

    on_fixed = measure_answers(held_out.texts)
    on_fresh = measure_lengths(fresh) if teacher is None else measure_answers(fresh)
    fields: dict[str, object] = {
        "step": state.step,
        "teacher_text_loss": None if on_fixed.divergence is None else on_fixed.divergence.estimate,
        "student_text_loss": None if on_fresh.divergence is None else on_fresh.divergence.estimate,
        "fixed_teacher_text": on_fixed.as_event(),
        "fresh_student_text": on_fresh.as_event(),
    }
    rows = held_out_answer_rows(state.engine, held_out.prompts, fresh)
    measure = choose_measure(held_out.prompts, recipe.grader)
    if measure.kind != "grader":
        return rows, fields
    for row, prompt, settings in zip(rows, held_out.prompts, measure.graders, strict=True):
        found = grade_answer(settings, str(row["answer"]), prompt.references, prompt.extra)
        row |= {"grade": found.value, "grade_reason": found.reason or None}
    grades = [row["grade"] for row in rows if row["grade"] is not None]
    fields |= {"grade": asdict(mean_score(grades)) if grades else None, "num_not_graded": len(rows) - len(grades)}
    return rows, fields


def refuse_ungraded(recipe: Recipe, prompts: Sequence[Prompt]) -> None:
    """Refuse a recipe that keeps the best step if the answers have no grades.

    Raises:
        Refusal: there are no grades.
        DataError: the grader of a row is invalid.
    """
    if choose_measure(prompts, recipe.grader).kind != "grader" and recipe.keep == "best":
        raise messages.best_needs_grades()


def best_step(evaluations: Iterable[Mapping[str, Any]]) -> int | None:
    """The step with the highest grade, the later one of two equal grades; None if no step has a grade.

    Step 0 does not count: the final model of a run is a trained one.
    """
    graded = [
        (event["grade"]["estimate"], event["step"]) for event in evaluations if event.get("grade") and event["step"]
    ]
    return max(graded, default=(0.0, None))[1]


def prepare_held_out(run: Run, log: WriteEvent, recipe: Recipe, material: Material, models: Models) -> HeldOutSet:
    """Choose the held-out prompts and prepare the fixed text.

    The prompts are chosen by content, so they are the same for every run on this file. A repeated prompt is used once:
    the second time gives no new information, but the interval would count it.
    """
    different = [prompt for prompt in material.held_out.prompts if prompt.occurrence == 0]
    by_content = sorted(different, key=lambda prompt: prompt.content_hash)
    prompts = tuple(by_content[: recipe.held_out_sample])
    given = material.held_out_targets
    if given is not None:
        return HeldOutSet(prompts, tuple(Completion(given.answer_to(prompt), (), False) for prompt in prompts))
    if HELD_OUT_TEACHER in run.answer_sets():  # a resumed run keeps its fixed text
        rows: dict[object, dict[str, Any]] = {row["prompt_hash"]: row for row in run.read_answers(HELD_OUT_TEACHER)}
        prompts = tuple(prompt for prompt in prompts if prompt.content_hash in rows)
        stored = [rows[prompt.content_hash] for prompt in prompts]
        return HeldOutSet(prompts, tuple(Completion(tuple(row["ids"]), (), bool(row["cut_off"])) for row in stored))
    log("phase", phase=messages.answering_held_out())
    if recipe.scores and models.teacher is not None and models.teacher_generation is not None:
        texts = answer_prompts(
            make_engine(models.teacher, models.teacher_generation, material.dialogue, recipe),
            prompts,
            max_new_tokens=material.answer_limit,
            sampling=Sampling(),
            purpose=Purpose.TEACHER,
            seed=recipe.seed,
        )
    else:
        answered = generate_teacher_answers(run, log, recipe, material, models, prompts, 1)
        prompts, answered = _with_text(prompts, answered, log)
        texts = in_student_template(answered, prompts, material)
    student = make_engine(models.student, models.student_generation, material.dialogue, recipe)
    run.write_answers(HELD_OUT_TEACHER, held_out_answer_rows(student, prompts, texts))
    return HeldOutSet(prompts, tuple(texts))


def _with_text(
    prompts: Sequence[Prompt], answered: Sequence[Mapping[str, Any]], log: WriteEvent
) -> tuple[tuple[Prompt, ...], list[Mapping[str, Any]]]:
    """The prompts for which the teacher gave a usable answer, with these answers."""
    pairs = [pair for pair in zip(prompts, answered, strict=True) if pair[1]["label"] in USABLE]
    if len(pairs) < len(answered):
        log("note", text=messages.held_out_skipped(num=len(answered) - len(pairs), total=len(answered)))
    if not pairs:
        raise messages.no_held_out_text(num=len(answered))
    return tuple(prompt for prompt, _ in pairs), [row for _, row in pairs]


def held_out_answer_rows(
    engine: Engine, prompts: Sequence[Prompt], answers: Sequence[Completion]
) -> list[dict[str, Any]]:
    """Answers to held-out prompts as they are stored."""
    return [
        {
            "source": prompt.source,
            "prompt_hash": prompt.content_hash,
            "prompt": prompt.text,
            "answer": text_of(engine, answer),
            "ids": list(answer.ids),
            "cut_off": answer.cut_off,
        }
        for prompt, answer in zip(prompts, answers, strict=True)
    ]
