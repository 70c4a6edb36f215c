"""The red pen: one prompt, an answer that the student writes or that is given, marked by a teacher.

The pair is rendered and cut to its vocabulary exactly as in a run. The teacher may go on from any position.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from pydantic import ValidationError

from limbeck.data.prompt import Message, PromptRow
from limbeck.data.targets import make_targets
from limbeck.errors import Refusal, UsageError
from limbeck.evaluation.answering.sides import NO_LIMIT, refuse_too_long
from limbeck.evaluation.marking import mark_answers, nearest_beta
from limbeck.machine import use_machine
from limbeck.models.language_model import LanguageModel
from limbeck.models.load import load_model
from limbeck.models.refs import ModelRef
from limbeck.objectives.divergence import Objective
from limbeck.recipe.files import load_recipe
from limbeck.recipe.recipe import Recipe
from limbeck.rollouts.request import Completion, GenerationRequest
from limbeck.rollouts.sampling import GREEDY
from limbeck.runs.marks import Continuation, MarkSheet
from limbeck.runs.store import Run
from limbeck.teachers.local import LocalTeacher
from limbeck.training.generation import choose_method, engine_for
from limbeck.training.material import ModelPair, compare_pair, num_positions, refuse_unshared, render_rows

__all__ = ["mark_prompt", "recipe_of_pair"]

# What a pair has from the recipe of a run: how it is asked, and where a teacher scores, what is minimised.
ASKED = ("template", "template_options", "device")
MINIMISED = ("objective", "beta", "forward_weight", "temperature")


def recipe_of_pair(student: str, teacher: str | None, workspace: Path) -> Recipe:
    """What a run would need to know of a pair. A run (or a checkpoint of it, NAME@STEP) means its student and teacher.

    Raises:
        Refusal: the run has no teacher, and none is named.
    """
    name, at, step = student.removeprefix("run:").partition("@")
    if teacher is not None and not student.startswith("run:"):
        try:
            return Recipe(student=student, teacher=teacher, prompts="none", workspace=str(workspace))
        except ValidationError as error:
            raise UsageError(
                "marks.pair",
                given=f"{student} and {teacher}: {error.errors()[0]['msg']}",
                needed="Both models are read here, token by token.",
                fix="Name models whose weights this machine can hold: a hub id, a folder, a .gguf file or run:NAME.",
            ) from None
    run = Run.find(workspace, name)
    known = load_recipe(run.recipe_path, [], {}).recipe
    if teacher is None and known.teacher is None:
        raise Refusal(
            "marks.no-teacher",
            given=f"{run.name} was trained without a teacher.",
            needed="Marks say what a teacher would have written instead.",
            fix=f"Name one: limbeck mark run:{run.name} TEACHER --prompt TEXT.",
        )
    settings = {
        name: value
        for name, value in known.settings().items()
        if name in (*ASKED, *(MINIMISED if known.scores else ()))
    }
    return Recipe(
        student=f"run:{run.name}{at}{step}",
        teacher=teacher or known.teacher,
        prompts="none",
        workspace=str(run.path.parent.parent),
        **settings,
    )


def mark_prompt(
    recipe: Recipe,
    objective: Objective,
    prompt: str,
    answer: str | None,
    *,
    continue_from: int | None = None,
    max_tokens: int = 256,
) -> MarkSheet:
    """Mark one answer to one user turn: the student's own, greedy, or the one given.

    Raises:
        VocabularyMismatch: the two models do not split text alike.
        UsageError: a position that the answer does not have.
    """
    pair = compare_pair(recipe)
    assert pair.teacher_ref is not None, "a recipe that scores has a teacher"
    recipe = recipe.model_copy(update={"max_prompt_tokens": NO_LIMIT})
    messages = (Message("user", prompt),)
    row = PromptRow(messages, answer, "the prompt")
    rendered = render_rows([row], pair, recipe)
    asked = rendered.prompts[0]
    targets = None if answer is None else make_targets([asked], pair.dialogue, [False]).answer_to(asked)
    longest = max_tokens if targets is None else len(targets)
    if continue_from is not None:
        longest = max(longest, continue_from + max_tokens)
    for ref in (pair.student_ref, pair.teacher_ref):
        refuse_too_long(ref.text, num_positions(ref), len(asked.ids), longest)
    device = torch.device(use_machine(recipe.device).device)
    student, teacher = (_load(ref, pair, device) for ref in (pair.student_ref, pair.teacher_ref))
    if targets is None:
        written = _write(student, pair, asked.ids, max_tokens)
    else:
        written = Completion(targets, (), False)
    refuse_unshared([replace(asked, ids=(*asked.ids, *written.ids))], pair)
    marked = mark_answers(
        student,
        LocalTeacher(teacher),
        [asked],
        [written],
        temperature=objective.temperature,
        pad_id=pair.dialogue.pad_id,
    )
    sheet = MarkSheet(recipe.student, teacher.name, pair.student_ref.step, nearest_beta(objective), marked)
    if continue_from is None:
        return sheet
    if not 0 <= continue_from < len(written.ids):
        raise UsageError(
            "marks.position",
            given=f"The teacher is asked to go on from position {continue_from}.",
            needed=f"The answer has the positions 0 to {len(written.ids) - 1}.",
            fix="Take the position of a mark.",
        )
    rest = _write(teacher, pair, (*asked.ids, *written.ids[:continue_from]), max_tokens)
    return replace(sheet, continued=Continuation(continue_from, teacher.text(rest.text_ids), rest.cut_off))


def _load(ref: ModelRef | None, pair: ModelPair, device: torch.device) -> LanguageModel:
    assert ref is not None
    model = load_model(ref, trainable=False, dtype=torch.float32, device=device)
    return model.with_vocabulary(pair.vocabulary.num_shared)


def _write(model: LanguageModel, pair: ModelPair, ids: tuple[int, ...], max_tokens: int) -> Completion:
    """The likeliest tokens after `ids`."""
    writing = choose_method(model, max_length=len(ids) + max_tokens, pad_id=pair.dialogue.pad_id)
    engine = engine_for(model, pair.dialogue, writing.decoder, num_slots=1)
    return engine.generate([GenerationRequest(ids, 0, max_tokens)], GREEDY)[0]
