"""What a run measures between its steps: the same held-out prompts each time, on a fixed text and on fresh text.

The fixed text is the teacher's, written once before training, or where none writes, the answers that stand beside the
prompts. Answers are stored as they are measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from limbeck.data.prompt import Prompt
from limbeck.errors import Refusal
from limbeck.evaluation.answering.answers import answer_prompts, text_of
from limbeck.evaluation.answering.held_out import TextMeasure, measure_lengths, measure_text
from limbeck.evaluation.deciding.statistics import mean_score
from limbeck.evaluation.grading.graders import grade
from limbeck.evaluation.grading.grading import choose_measure
from limbeck.objectives.divergence import Objective
from limbeck.recipe.recipe import Recipe
from limbeck.rollouts.engine import Engine
from limbeck.rollouts.request import Completion
from limbeck.rollouts.sampling import Purpose, Sampling
from limbeck.runs.store import Run
from limbeck.teachers.signal import Teacher
from limbeck.training.answers import generate_teacher_answers, in_student_template
from limbeck.training.material import Material
from limbeck.training.setup import Models, make_engine
from limbeck.training.state import TrainState

__all__ = ["HELD_OUT_TEACHER", "HeldOut", "answer_rows", "best_step", "evaluate", "held_out_texts", "refuse_ungraded"]

HELD_OUT_TEACHER = "held-out-teacher"
READABLE = (None, "cut-off", "duplicate")  # labels of answers that are text, from their beginning at least

Log = Callable[..., None]


@dataclass(frozen=True)
class HeldOut:
    """The prompts of every evaluation and the fixed text, an answer to each."""

    prompts: tuple[Prompt, ...]
    texts: tuple[Completion, ...]


def evaluate(
    state: TrainState,
    teacher: Teacher | None,
    held_out: HeldOut,
    objective: Objective | None,
    recipe: Recipe,
    *,
    answer_limit: int,
    sampling: Sampling,
) -> tuple[list[dict[str, Any]], dict[str, object]]:
    """Let the student answer and measure both texts; the answers as rows, and the fields of the event."""
    fresh = answer_prompts(
        state.engine, held_out.prompts, max_new_tokens=answer_limit, sampling=sampling, seed=recipe.seed
    )

    def measure(answers: Sequence[Completion]) -> TextMeasure:
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

    on_fixed = measure(held_out.texts)
    on_fresh = measure_lengths(fresh) if teacher is None else measure(fresh)
    fields: dict[str, object] = {
        "step": state.step,
        "teacher_text_loss": None if on_fixed.divergence is None else on_fixed.divergence.estimate,
        "student_text_loss": None if on_fresh.divergence is None else on_fresh.divergence.estimate,
        "fixed_teacher_text": on_fixed.as_event(),
        "fresh_student_text": on_fresh.as_event(),
    }
    rows = answer_rows(state.engine, held_out.prompts, fresh)
    measure = choose_measure(held_out.prompts, recipe.grader)
    if measure.kind != "grader":
        return rows, fields
    for row, prompt, settings in zip(rows, held_out.prompts, measure.graders, strict=True):
        found = grade(settings, str(row["answer"]), prompt.references, prompt.extra)
        row |= {"grade": found.value, "grade_reason": found.reason or None}
    grades = [row["grade"] for row in rows if row["grade"] is not None]
    fields |= {"grade": asdict(mean_score(grades)) if grades else None, "num_not_graded": len(rows) - len(grades)}
    return rows, fields


def refuse_ungraded(recipe: Recipe, prompts: Sequence[Prompt]) -> None:
    """Raise where the recipe keeps the best step and nothing says which is better; DataError for an unknown grader."""
    if choose_measure(prompts, recipe.grader).kind != "grader" and recipe.keep == "best":
        raise Refusal(
            "evaluation.keep-ungraded",
            given="keep is best, and the held-out rows have neither reference answers nor a grader.",
            needed="The best step is the one whose answers have the highest grade.",
            fix="Give the held-out rows reference answers, set grader: module:function, or write keep: last.",
        )


def best_step(evaluations: Iterable[Mapping[str, Any]]) -> int | None:
    """The step with the highest grade, the later of two alike; None where none is graded.

    The start is no step of the run: what it hands over was trained.
    """
    graded = [
        (event["grade"]["estimate"], event["step"]) for event in evaluations if event.get("grade") and event["step"]
    ]
    return max(graded, default=(0.0, None))[1]


def held_out_texts(run: Run, log: Log, recipe: Recipe, material: Material, models: Models) -> HeldOut:
    """Choose the prompts by content, the same for every run on this file, and have the fixed text written once.

    A repeated prompt is asked once: a second time says nothing new, and would count as if it did.
    """
    different = [prompt for prompt in material.held_out.prompts if prompt.occurrence == 0]
    by_content = sorted(different, key=lambda prompt: prompt.content_hash)
    prompts = tuple(by_content[: recipe.held_out_sample])
    given = material.held_out_targets
    if given is not None:
        return HeldOut(prompts, tuple(Completion(given.answer_to(prompt), (), False) for prompt in prompts))
    if HELD_OUT_TEACHER in run.answer_sets():  # a continued run keeps the text that it measured so far
        rows: dict[object, dict[str, Any]] = {row["prompt_hash"]: row for row in run.read_answers(HELD_OUT_TEACHER)}
        prompts = tuple(prompt for prompt in prompts if prompt.content_hash in rows)
        stored = [rows[prompt.content_hash] for prompt in prompts]
        return HeldOut(prompts, tuple(Completion(tuple(row["ids"]), (), bool(row["cut_off"])) for row in stored))
    log("phase", phase="teacher answers held-out prompts")
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
        asked = generate_teacher_answers(run, log, recipe, material, models, prompts, 1)
        prompts, asked = _with_text(prompts, asked, log)
        texts = in_student_template(asked, prompts, material)
    student = make_engine(models.student, models.student_generation, material.dialogue, recipe)
    run.write_answers(HELD_OUT_TEACHER, answer_rows(student, prompts, texts))
    return HeldOut(prompts, tuple(texts))


def _with_text(
    prompts: Sequence[Prompt], asked: Sequence[Mapping[str, Any]], log: Log
) -> tuple[tuple[Prompt, ...], list[Mapping[str, Any]]]:
    """The prompts to which the teacher wrote a text that can be read, with these texts: no gap becomes a number."""
    pairs = [pair for pair in zip(prompts, asked, strict=True) if pair[1]["label"] in READABLE]
    if len(pairs) < len(asked):
        log("note", text=f"{len(asked) - len(pairs)} of {len(asked)} held-out prompts have no text to measure.")
    if not pairs:
        raise Refusal(
            "teacher.no-held-out-text",
            given=f"None of the teacher's answers to {len(asked)} held-out prompts can be read.",
            needed="What the student learns is measured on texts of the teacher that it never saw.",
            fix="Look at their labels in the log of the run, and at the prompts.",
        )
    return tuple(prompt for prompt, _ in pairs), [row for _, row in pairs]


def answer_rows(engine: Engine, prompts: Sequence[Prompt], answers: Sequence[Completion]) -> list[dict[str, Any]]:
    """Answers as they are stored."""
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
