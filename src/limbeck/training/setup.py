"""From the material of a run to its first step: the models, how each generates, and who generates answers.

Weights are loaded only here, after all checks that need no weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import limbeck.training.messages as messages
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
from limbeck.teachers.writer import AnswerGenerator, HostedGenerator, LocalGenerator
from limbeck.training.generation import choose_method, engine_for
from limbeck.training.material import Material
from limbeck.training.optim import make_optimizer
from limbeck.training.state import MemoryMeter, TrainState
from limbeck.training.weights import TrainedWeights

__all__ = ["Models", "load_models", "make_answer_generator", "make_engine", "make_state", "shares_base"]


class ProcessMemory(MemoryMeter):
    """The memory of this process, as counted by the system."""

    def reset(self, device: torch.device) -> None:
        forget_peak_memory(device)

    def peak_bytes(self, device: torch.device) -> int:
        return peak_memory_bytes(device)


@dataclass(frozen=True)
class Models:
    """The models, with heads cut to the shared vocabulary, and how each generates; None without a local teacher."""

    student: LanguageModel
    student_content: str  # hash of its weights as loaded
    weights: TrainedWeights
    teacher: LanguageModel | None
    student_generation: GenerationMethod
    teacher_generation: GenerationMethod | None
    notes: tuple[str, ...] = ()


def load_models(
    material: Material, recipe: Recipe, machine: Machine, recorded: Mapping[str, Any] | None = None
) -> Models:
    """Load the weights, cut the heads to the shared vocabulary and choose how each model generates.

    `recorded` is the first event of an earlier session of the run; its choices are used without a new probe.
    """
    device = torch.device(machine.device)
    max_length = material.longest_prompt + material.longest_answer

    def method_of(model: LanguageModel, role: str, pad_id: int) -> GenerationMethod:
        if recorded is not None:
            return GenerationMethod.recorded(**recorded["writing"][role])
        return choose_method(model, max_length=max_length, pad_id=pad_id)

    student = load_model(material.student_ref, trainable=True, dtype=torch.float32, device=device)
    student = student.with_vocabulary(material.vocabulary.num_shared)
    content = weights_hash(student.module)
    if recipe.lora is not None:
        attach_adapters(student, rank=recipe.lora.rank, alpha=recipe.lora.alpha, seed=recipe.seed)
    notes = tuple(_patch(student))
    weights = TrainedWeights(student.module, mixed=recipe.precision == "bf16-mixed")
    models = Models(student, content, weights, None, method_of(student, "student", material.dialogue.pad_id), None)
    if material.teacher_dialogue is None or material.teacher_ref is None:
        return replace(models, notes=(*notes, *_fallback(student, models.student_generation)))
    dtype = None if recorded is None else recorded["teacher_dtype"]
    teacher, teacher_notes = _load_teacher(models, material, material.teacher_ref, recipe, device, dtype)
    teacher_generation = method_of(teacher, "teacher", material.teacher_dialogue.pad_id)
    fallbacks = (*_fallback(student, models.student_generation), *_fallback(teacher, teacher_generation))
    return replace(
        models, teacher=teacher, teacher_generation=teacher_generation, notes=(*notes, *teacher_notes, *fallbacks)
    )


def _patch(student: LanguageModel) -> Iterator[str]:
    """Patch the student's gated layers to save memory; yields a note if the installed transformers prevents it."""
    try:
        patch_gated_mlp(student.module)
    except Renamed as error:
        yield messages.mlp_not_patched(model=student.name, why=str(error))


def _fallback(model: LanguageModel, method: GenerationMethod) -> Iterator[str]:
    """A note if a faster decoder was rejected."""
    if method.fallback:
        yield messages.slower_decoder(model=model.name, decoder=method.decoder, why=method.fallback)


def _load_teacher(
    models: Models,
    material: Material,
    ref: ModelRef,
    recipe: Recipe,
    device: torch.device,
    recorded_dtype: str | None,
) -> tuple[LanguageModel, tuple[str, ...]]:
    """The teacher in the recorded dtype, or in the recipe's, after a check of what bfloat16 costs; notes on it."""

    assert material.teacher_dialogue is not None
    num_real = material.teacher_dialogue.num_real

    def read(dtype: torch.dtype) -> LanguageModel:
        return load_model(ref, trainable=False, dtype=dtype, device=device).with_vocabulary(num_real)

    if shares_base(material.student_ref, ref, recipe):
        return replace(without_adapters(models.student), ref=ref).with_vocabulary(num_real), ()
    if recorded_dtype is not None or recipe.teacher_dtype == "float32" or not recipe.scores:
        return read(getattr(torch, recorded_dtype or recipe.teacher_dtype)), ()
    if device.type != "cpu":
        return read(torch.bfloat16), (messages.bfloat16_not_compared(),)
    engine = make_engine(models.student, models.student_generation, material.dialogue, recipe)
    teacher, note = load_teacher_bf16_if_close(read, models.student, engine, material.train.prompts)
    return teacher, (note,)


def shares_base(student_ref: ModelRef, teacher_ref: ModelRef, recipe: Recipe) -> bool:
    """Whether the teacher is the student without its adapters: its weights are then in memory only once."""
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


def make_engine(model: LanguageModel, method: GenerationMethod, dialogue: Dialogue, recipe: Recipe) -> Engine:
    """The engine of a model of the run."""
    return engine_for(
        model, dialogue, method.decoder, num_slots=recipe.slots, max_read_tokens=recipe.micro_batch_tokens
    )


def make_answer_generator(
    models: Models, material: Material, recipe: Recipe, *, account: str, log: Callable[..., None]
) -> AnswerGenerator:
    """What generates the teacher's answers: a local model, or a hosted API with the budget of `account`."""
    ref, dialogue = material.teacher_ref, material.teacher_dialogue
    if ref is not None and ref.kind == "hosted":
        settings = HostedSettings(**dict(recipe.hosted), parameters=recipe.teacher_options)
        hosted = HostedTeacher(ref, settings, workspace=Path(recipe.workspace), account=account)
        return HostedGenerator(hosted, recipe.max_teacher_tokens, recipe.teacher_temperature, recipe.seed, log)
    assert dialogue is not None, "only for recipes with a teacher"
    assert models.teacher is not None
    assert models.teacher_generation is not None
    return LocalGenerator(
        engine=make_engine(models.teacher, models.teacher_generation, dialogue, recipe),
        dialogue=dialogue,
        temperature=recipe.teacher_temperature,
        max_tokens=recipe.max_teacher_tokens,
    )
