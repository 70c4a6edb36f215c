"""From the material of a run to what the first step needs: weights, how each model writes here, and the writer.

Weights are read only here, after everything that can be known without them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from limbeck.errors import Refusal
from limbeck.machine import Machine
from limbeck.models.load import LanguageModel, load_model
from limbeck.recipe.schema import Recipe
from limbeck.rollouts.engine import Engine
from limbeck.rollouts.probe import WritingMethod, choose_method
from limbeck.teachers.writer import LocalWriter, Writer
from limbeck.training.material import Material
from limbeck.training.optim import make_optimizer
from limbeck.training.state import TrainState

__all__ = ["Models", "load_models", "make_engine", "make_state", "make_writer"]


@dataclass(frozen=True)
class Models:
    """The models with their logits cut to the ids that count, and how each writes; None where no teacher is here."""

    student: LanguageModel
    teacher: LanguageModel | None
    student_writing: WritingMethod
    teacher_writing: WritingMethod | None


def load_models(material: Material, recipe: Recipe, machine: Machine) -> Models:
    """Read the weights, cut the heads to the vocabulary that counts and find out how each model writes."""
    device = torch.device(machine.device)
    student = load_model(material.student_ref, trainable=True, dtype=torch.float32, device=device)
    student = student.with_vocabulary(material.vocabulary.num_shared)
    max_length = material.longest_prompt + material.longest_answer
    teacher = teacher_writing = None
    if material.teacher_ref is not None and material.asking is not None:
        dtype = getattr(torch, recipe.teacher_dtype)
        teacher = load_model(material.teacher_ref, trainable=False, dtype=dtype, device=device)
        teacher = teacher.with_vocabulary(material.asking.num_real)
        teacher_writing = choose_method(teacher, max_length=max_length, pad_id=material.asking.pad_id)
    student_writing = choose_method(student, max_length=max_length, pad_id=material.pad_id)
    return Models(student, teacher, student_writing, teacher_writing)


def make_state(models: Models, material: Material, recipe: Recipe, watch: Callable[[str], None]) -> TrainState:
    """The state before the first step."""
    return TrainState(
        student=models.student,
        engine=make_engine(models.student, models.student_writing, material, recipe),
        optimizer=make_optimizer(models.student.module.parameters(), recipe),
        watch=watch,
    )


def make_engine(model: LanguageModel, writing: WritingMethod, material: Material, recipe: Recipe) -> Engine:
    return Engine(
        model,
        stop_ids=material.stop.ids,
        pad_id=material.pad_id,
        num_slots=recipe.slots,
        max_read_tokens=recipe.micro_batch_tokens,
        plain=writing.plain,
    )


def make_writer(models: Models, material: Material, recipe: Recipe) -> Writer:
    """Who writes the answers to train on.

    Raises:
        Refusal: a teacher behind an interface, which this version does not ask.
    """
    asking = material.asking
    if asking is None or models.teacher is None or models.teacher_writing is None:
        raise Refusal(
            "teacher.not-offered",
            given=f"The teacher is {recipe.teacher}.",
            needed="This version asks no model behind an interface.",
            fix="Name a teacher whose weights this machine can hold.",
        )
    own = replace(material, stop=asking.stop, pad_id=asking.pad_id)
    return LocalWriter(
        engine=make_engine(models.teacher, models.teacher_writing, own, recipe),
        template=asking.template,
        options=asking.options,
        temperature=recipe.teacher_temperature,
        max_tokens=recipe.max_teacher_tokens,
        max_prompt_tokens=asking.max_prompt_tokens,
    )
