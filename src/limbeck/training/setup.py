"""From the material of a run to what the first step needs: weights, how each model writes here, and the writer.

Weights are read only here, after everything that can be known without them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from limbeck.compat import Renamed
from limbeck.data.dialogue import Dialogue
from limbeck.fast.gated import patch_gated_mlp
from limbeck.fast.short_attention import patch_short_attention
from limbeck.machine import Machine, forget_peak_memory, peak_memory_bytes
from limbeck.models.adapters import attach_adapters, without_adapters
from limbeck.models.language_model import LanguageModel
from limbeck.models.load import checkpoint_activations, load_model
from limbeck.models.refs import ModelRef
from limbeck.models.save import weights_hash
from limbeck.recipe.recipe import Recipe
from limbeck.rollouts.engine import Engine
from limbeck.rollouts.probe import GenerationMethod
from limbeck.teachers.hosted import HostedSettings, HostedTeacher
from limbeck.teachers.local import load_teacher_bf16_if_close
from limbeck.teachers.writer import AnswerGenerator, HostedAnswerGenerator, LocalAnswerGenerator
from limbeck.training.generation import choose_method, engine_for
from limbeck.training.material import Material
from limbeck.training.optim import make_optimizer
from limbeck.training.state import MemoryMeter, TrainState
from limbeck.training.weights import TrainedWeights

__all__ = ["Models", "load_models", "make_answer_generator", "make_engine", "make_state", "shares_base"]


class ProcessMemory(MemoryMeter):
    """What this process holds, as the system counts it."""

    def reset(self, device: torch.device) -> None:
        forget_peak_memory(device)

    def peak_bytes(self, device: torch.device) -> int:
        return peak_memory_bytes(device)


@dataclass(frozen=True)
class Models:
    """The models with their logits cut to the ids that count, and how each writes; None where no teacher is here."""

    student: LanguageModel
    student_content: str  # hash of its weights as they were read
    weights: TrainedWeights
    teacher: LanguageModel | None
    student_generation: GenerationMethod
    teacher_generation: GenerationMethod | None
    notes: tuple[str, ...] = ()


def load_models(
    material: Material, recipe: Recipe, machine: Machine, recorded: Mapping[str, Any] | None = None
) -> Models:
    """Read the weights, cut the heads to the vocabulary that counts and find out how each model writes.

    `recorded` is what an earlier session of the run found out; then nothing is tried again.
    """
    device = torch.device(machine.device)
    max_length = material.longest_prompt + material.longest_answer

    def writing(model: LanguageModel, who: str, pad_id: int) -> GenerationMethod:
        if recorded is not None:
            return GenerationMethod.recorded(recorded["writing"][who])
        return choose_method(model, max_length=max_length, pad_id=pad_id)

    student = load_model(material.student_ref, trainable=True, dtype=torch.float32, device=device)
    student = student.with_vocabulary(material.vocabulary.num_shared)
    content = weights_hash(student.module)
    if recipe.lora is not None:
        attach_adapters(student, rank=recipe.lora.rank, alpha=recipe.lora.alpha, seed=recipe.seed)
    notes = tuple(_patch(student))
    weights = TrainedWeights(student.module, mixed=recipe.precision == "bf16-mixed")
    models = Models(student, content, weights, None, writing(student, "student", material.dialogue.pad_id), None)
    if material.teacher_dialogue is None or material.teacher_ref is None:
        return replace(models, notes=(*notes, *_fallback(student, models.student_generation)))
    dtype = None if recorded is None else recorded["teacher_dtype"]
    teacher, teacher_notes = _load_teacher(models, material, material.teacher_ref, recipe, device, dtype)
    teacher_generation = writing(teacher, "teacher", material.teacher_dialogue.pad_id)
    fallbacks = (*_fallback(student, models.student_generation), *_fallback(teacher, teacher_generation))
    return replace(
        models, teacher=teacher, teacher_generation=teacher_generation, notes=(*notes, *teacher_notes, *fallbacks)
    )


def _patch(student: LanguageModel) -> Iterator[str]:
    """Let the student's gated layers keep less for the backward pass; a note where this version cannot."""
    try:
        patch_gated_mlp(student.module)
    except Renamed as error:
        yield f"{student.name} keeps more memory for its gradients than it needs: {error}."


def _fallback(model: LanguageModel, writing: GenerationMethod) -> Iterator[str]:
    """A note where a faster way to generate was left because something is not as it was."""
    if writing.fallback:
        yield f"{model.name} generates with the slower {writing.decoder} decoder: {writing.fallback}."


def _load_teacher(
    models: Models,
    material: Material,
    ref: ModelRef,
    recipe: Recipe,
    device: torch.device,
    recorded_dtype: str | None,
) -> tuple[LanguageModel, tuple[str, ...]]:
    """The teacher in the type that was recorded, or else in the recipe's where it may be rounded; notes on that."""

    assert material.teacher_dialogue is not None
    num_real = material.teacher_dialogue.num_real

    def read(dtype: torch.dtype) -> LanguageModel:
        return load_model(ref, trainable=False, dtype=dtype, device=device).with_vocabulary(num_real)

    if shares_base(material.student_ref, ref, recipe):
        return replace(without_adapters(models.student), ref=ref).with_vocabulary(num_real), ()
    if recorded_dtype is not None or recipe.teacher_dtype == "float32" or not recipe.scores:
        return read(getattr(torch, recorded_dtype or recipe.teacher_dtype)), ()
    if device.type != "cpu":
        note = "The teacher reads in bfloat16, which was not compared with float32: that would take twice the memory."
        return read(torch.bfloat16), (note,)
    engine = make_engine(models.student, models.student_generation, material.dialogue, recipe)
    teacher, note = load_teacher_bf16_if_close(read, models.student, engine, material.train.prompts)
    return teacher, (note,)


def shares_base(student_ref: ModelRef, teacher_ref: ModelRef, recipe: Recipe) -> bool:
    """Whether the teacher is the student without its adapters: then its weights are held once."""
    student, teacher = (ref.text if ref.path is None else ref.path.resolve() for ref in (student_ref, teacher_ref))
    return student == teacher and recipe.lora is not None and recipe.teacher_dtype == "float32"


def make_state(models: Models, material: Material, recipe: Recipe, watch: Callable[[str], None]) -> TrainState:
    """The state before the first step."""
    if recipe.activation_checkpointing:
        checkpoint_activations(models.student)
    if recipe.precision == "bf16-mixed" and models.student.device.type == "cpu":
        patch_short_attention(models.student.module)
    shares = models.student_generation.share and (models.teacher_generation is None or models.teacher_generation.share)
    return TrainState(
        student=models.student,
        weights=models.weights,
        engine=make_engine(models.student, models.student_generation, material.dialogue, recipe),
        optimizer=make_optimizer(models.weights.named.values(), recipe),
        share=shares and not recipe.activation_checkpointing,
        watch=watch,
        memory=ProcessMemory(),
    )


def make_engine(model: LanguageModel, writing: GenerationMethod, dialogue: Dialogue, recipe: Recipe) -> Engine:
    """What generates with a model of the run."""
    return engine_for(
        model, dialogue, writing.decoder, num_slots=recipe.slots, max_read_tokens=recipe.micro_batch_tokens
    )


def make_answer_generator(
    models: Models, material: Material, recipe: Recipe, *, account: str, log: Callable[..., None]
) -> AnswerGenerator:
    """Who writes the teacher's answers: a model here, or one behind an interface, on the account of a run."""
    ref, dialogue = material.teacher_ref, material.teacher_dialogue
    if ref is not None and ref.kind == "hosted":
        settings = HostedSettings(**dict(recipe.hosted), parameters=recipe.teacher_options)
        hosted = HostedTeacher(ref, settings, workspace=Path(recipe.workspace), account=account)
        return HostedAnswerGenerator(hosted, recipe.max_teacher_tokens, recipe.teacher_temperature, recipe.seed, log)
    assert dialogue is not None, "a route that asks a teacher has one"
    assert models.teacher is not None
    assert models.teacher_generation is not None
    return LocalAnswerGenerator(
        engine=make_engine(models.teacher, models.teacher_generation, dialogue, recipe),
        dialogue=dialogue,
        temperature=recipe.teacher_temperature,
        max_tokens=recipe.max_teacher_tokens,
    )
