"""Bytes by component and phase, from the models' configurations alone, before a weight is read.

Weights, gradients, optimizer and cache are exact products of sizes; activations are those of a Llama-shaped layer and
are estimates. Gradients and moments exist for the student only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig

from limbeck.machine import Machine
from limbeck.models.adapters import body_layers
from limbeck.models.load import load_config
from limbeck.models.refs import ModelRef
from limbeck.planning import messages
from limbeck.recipe.recipe import Recipe
from limbeck.training.material import Material
from limbeck.training.setup import shares_base

__all__ = ["MemoryPlan", "ModelSize", "plan_memory", "refuse_if_too_large", "size_of"]

GIB = 2**30
FLOAT32_BYTES = 4
PROMPT_PASS = "reading prompts"  # the forward pass over the prompts, before tokens are generated
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
# Python, torch and transformers themselves, measured after import on a CPU.
LIBRARIES_BYTES = 500 * 2**20
# Float32 buffers of [chunk, V] in memory at the same time, counted: a CPU processes a chunk in blocks of rows, a GPU at
# once.
NUM_LOGIT_BUFFERS = {"cpu": 5, "gpu": 13}
# Logits and what inverse CDF and top-p make of them in float64, in float32 numbers.
NUM_SAMPLING_BUFFERS = 12
ALWAYS = (
    *("teacher weights", "student weights", "copy to compute with", "optimizer (AdamW)", "key/value cache"),
    "libraries",
)
UPDATING = ("student activations", "logits of a chunk", "gradient of the head", "heads in float32")
ALIVE_IN: dict[str, tuple[str, ...]] = {
    "load": ("teacher weights", "student weights", "libraries"),
    "write": (*ALWAYS, PROMPT_PASS, "sampling"),
    "score": (*ALWAYS, "student gradients", "teacher activations"),
    "update": (*ALWAYS, "student gradients", *UPDATING),
}
# Keys of the JSON output and what messages call them.
PHASE_NAMES = {"load": "loading", "write": "generation", "score": "scoring", "update": "update"}
COMPONENT_NAMES = {PROMPT_PASS: "prompt activations"}
REMEDIES = {
    "teacher weights": messages.smaller_teacher,
    "key/value cache": messages.smaller_cache,
    "sampling": messages.fewer_slots,
    "logits of a chunk": messages.smaller_chunk,
    **dict.fromkeys(("student gradients", "optimizer (AdamW)"), messages.train_fewer_weights),
    **dict.fromkeys((PROMPT_PASS, "student activations", "teacher activations"), messages.lower_micro_batch),
}


@dataclass(frozen=True)
class ModelSize:
    """The sizes of a model, from its configuration."""

    num_parameters: int
    adapter_width: int  # an adapter of rank 1 has as many weights
    num_layers: int
    hidden_size: int
    intermediate_size: int
    key_value_size: int
    vocabulary_rows: int


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes by component, the components in memory in each phase, and the free memory of the device."""

    components: dict[str, int]
    phases: dict[str, tuple[str, ...]]
    free_bytes: int

    def phase_bytes(self, phase: str) -> int:
        return sum(self.components[name] for name in self.phases[phase])

    @property
    def peak_phase(self) -> str:
        return max(self.phases, key=self.phase_bytes)

    @property
    def peak_bytes(self) -> int:
        return self.phase_bytes(self.peak_phase)

    @property
    def fits(self) -> bool:
        return self.peak_bytes <= self.free_bytes


def size_of(config: PretrainedConfig) -> ModelSize:
    """Sizes of a model from its configuration; the parameters are counted on a model without storage."""
    with torch.device("meta"):
        module = AutoModelForCausalLM.from_config(config)
    text = config.get_text_config()
    settings = text.to_dict()
    heads = text.num_attention_heads
    head_dim = settings.get("head_dim") or text.hidden_size // heads
    return ModelSize(
        num_parameters=sum(parameter.numel() for parameter in module.parameters()),
        adapter_width=sum(sum(layer.get_parameter("weight").shape) for layer in body_layers(module).values()),
        num_layers=text.num_hidden_layers,
        hidden_size=text.hidden_size,
        intermediate_size=settings.get("intermediate_size") or 4 * text.hidden_size,
        key_value_size=(settings.get("num_key_value_heads") or heads) * head_dim,
        vocabulary_rows=text.vocab_size,
    )


def plan_memory(
    student: ModelSize,
    teacher: ModelSize | None,
    recipe: Recipe,
    machine: Machine,
    *,
    longest_prompt: int,
    longest_answer: int | None = None,
) -> MemoryPlan:
    """The memory that a run needs at most in each phase, with its longest prompt and the longest answer that it allows.

    Args:
        teacher: None if no teacher is loaded in this process.
        longest_answer: of the whole run; by default, the longest practice answer.
    """
    max_length = longest_prompt + (longest_answer or recipe.max_practice_tokens)
    vocabulary_bytes = student.vocabulary_rows * FLOAT32_BYTES
    read_tokens = max(recipe.micro_batch_tokens, longest_prompt)
    num_buffers = NUM_LOGIT_BUFFERS["cpu" if machine.device == "cpu" else "gpu"]
    batch_tokens = max(recipe.micro_batch_tokens, max_length)
    num_adapter = 0 if recipe.lora is None else recipe.lora.rank * student.adapter_width
    num_trained = num_adapter or student.num_parameters
    mixed = recipe.precision == "bf16-mixed"
    widened = student.hidden_size if mixed else 0
    teacher_weights = teacher_activations = 0
    if teacher is not None:
        teacher_bytes = DTYPE_BYTES[recipe.teacher_dtype]
        teacher_weights = teacher.num_parameters * teacher_bytes
        teacher_activations = batch_tokens * _live_floats(teacher) * teacher_bytes
        widened += 0 if recipe.teacher_dtype == "float32" else teacher.hidden_size
    kept_floats = student.num_layers * _stored_floats(student)
    if recipe.activation_checkpointing:  # the inputs of all layers, and one layer computed again
        kept_floats = student.num_layers * student.hidden_size + _stored_floats(student)
    components = {
        "teacher weights": teacher_weights,
        "student weights": (student.num_parameters + num_adapter) * FLOAT32_BYTES,
        "copy to compute with": student.num_parameters * DTYPE_BYTES["bfloat16"] if mixed else 0,
        "student gradients": num_trained * FLOAT32_BYTES,
        "optimizer (AdamW)": 2 * num_trained * FLOAT32_BYTES,
        "key/value cache": 2 * recipe.slots * max_length * student.num_layers * student.key_value_size * FLOAT32_BYTES,
        "teacher activations": teacher_activations,
        "student activations": batch_tokens * kept_floats * (DTYPE_BYTES["bfloat16"] if mixed else FLOAT32_BYTES),
        PROMPT_PASS: read_tokens * (_live_floats(student) + 2 * longest_prompt) * FLOAT32_BYTES,
        "sampling": NUM_SAMPLING_BUFFERS * recipe.slots * vocabulary_bytes,
        "logits of a chunk": num_buffers * recipe.chunk_tokens * vocabulary_bytes,
        "gradient of the head": 0 if num_adapter else 2 * student.hidden_size * vocabulary_bytes,
        "heads in float32": widened * vocabulary_bytes,
        "libraries": LIBRARIES_BYTES if machine.device == "cpu" else 0,
    }
    return MemoryPlan(components, ALIVE_IN, machine.free_bytes)


def plan_for(material: Material, recipe: Recipe, machine: Machine) -> MemoryPlan:
    """The plan for a recipe's models; a teacher at a hosted API needs no memory here."""
    student_ref, teacher_ref = material.student_ref, material.teacher_ref
    teacher = None if teacher_ref is None or teacher_ref.kind == "hosted" else _size_of_ref(teacher_ref)
    if teacher is not None and teacher_ref is not None and shares_base(student_ref, teacher_ref, recipe):
        teacher = replace(teacher, num_parameters=0)
    lengths = {"longest_prompt": material.longest_prompt, "longest_answer": material.longest_answer}
    return plan_memory(_size_of_ref(student_ref), teacher, recipe, machine, **lengths)


def _size_of_ref(ref: ModelRef) -> ModelSize:
    config = load_config(ref)
    try:
        return size_of(config)
    except (ValueError, AttributeError, TypeError) as error:
        raise messages.sizes_unknown(model=ref.text, model_type=config.model_type, reason=str(error)) from error


def refuse_if_too_large(plan: MemoryPlan) -> None:
    """Raise before any weights are read if the largest phase does not fit.

    Raises:
        Refusal: with the largest component.
    """
    if plan.fits:
        return
    phase = plan.peak_phase
    largest = max(plan.phases[phase], key=lambda name: plan.components[name])
    raise messages.does_not_fit(
        phase=PHASE_NAMES[phase],
        peak_gib=plan.peak_bytes / GIB,
        largest=COMPONENT_NAMES.get(largest, largest),
        largest_gib=plan.components[largest] / GIB,
        free_gib=plan.free_bytes / GIB,
        remedy=REMEDIES.get(largest, messages.smaller_model)(),
    )


def _stored_floats(size: ModelSize) -> int:
    """What a layer keeps of each token for the backward pass: norms, attention inputs and output, the inner of the MLP.

    Four of the last, as adapted layers and other families keep; where `models.gated` serves it is two.
    """
    return 8 * size.hidden_size + 2 * size.key_value_size + 4 * size.intermediate_size


def _live_floats(size: ModelSize) -> int:
    """What a layer has in memory for each token if no backward pass follows."""
    return 4 * size.hidden_size + 3 * size.intermediate_size
