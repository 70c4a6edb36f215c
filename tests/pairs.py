"""Models in memory as the package sees them after loading, and prompts as it sees them after rendering."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from builders import CORPUS, prompt_row, save_model, tiny_llama, tiny_tokenizer, write_rows
from limbeck.data.prompt import Prompt
from limbeck.fast.lean import LeanDecoder
from limbeck.models.adapters import attach_adapters
from limbeck.models.language_model import LanguageModel
from limbeck.models.refs import ModelRef
from limbeck.objectives.fused import head_of
from limbeck.recipe.recipe import Recipe
from limbeck.rollouts.engine import Engine
from limbeck.rollouts.plain import TransformersGenerator
from limbeck.rollouts.request import Completion, GenerationRequest
from limbeck.rollouts.sampling import Sampling
from limbeck.rollouts.slots import BatchGenerator, Decoder, SlotDecoder
from limbeck.routes.loop import TrainingData, training_steps
from limbeck.teachers.local import LocalTeacher
from limbeck.teachers.signal import Teacher
from limbeck.training.answers import targets_from_answers
from limbeck.training.material import prepare_material
from limbeck.training.optim import make_optimizer
from limbeck.training.state import StepRecord, TrainState
from limbeck.training.weights import TrainedWeights


def language_model(
    module: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast | None = None,
    *,
    num_real: int | None = None,
    name: str = "tiny",
) -> LanguageModel:
    """A module in memory as a loaded model; the head is cut to `num_real` ids (by default all of its rows)."""
    head = module.get_output_embeddings()
    return LanguageModel(
        ref=ModelRef(name, "folder", None, None),
        module=module.eval(),
        tokenizer=tokenizer if tokenizer is not None else tiny_tokenizer(),
        generation_config=module.generation_config,
        head=head_of(head, num_real=num_real if num_real is not None else head.weight.shape[0]),
    )


def tiny_model(*, seed: int = 0, scale: float = 4.0, dtype: torch.dtype = torch.float32, **options) -> LanguageModel:
    """A tiny Llama with clear preferences (its logits are scaled up), 300 ids."""
    tokenizer = tiny_tokenizer()
    module = tiny_llama(tokenizer, seed=seed, scale=scale, **options)
    return language_model(in_float64(module) if dtype == torch.float64 else module.to(dtype), tokenizer)


def in_float64(module: PreTrainedModel) -> PreTrainedModel:
    """A model of the Llama family that computes in float64 throughout, changed in place.

    As transformers writes them, its norms, its angles and eager attention's softmax round to float32 whatever the dtype
    of the weights, by an amount that follows the order of the sums: the CPU, the threads and the width of a batch.
    """
    module.double()
    module.set_attn_implementation("sdpa")
    for part in module.modules():
        if hasattr(part, "variance_epsilon"):
            part.forward = partial(_exact_norm, part)
        elif hasattr(part, "inv_freq"):
            part.forward = partial(_exact_angles, part)
    return module


def _exact_norm(norm: torch.nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    return norm.weight * hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + norm.variance_epsilon)


@torch.no_grad()
def _exact_angles(
    rotary: torch.nn.Module, hidden: torch.Tensor, position_ids: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    angles = position_ids.unsqueeze(-1).double() * rotary.inv_freq.double()
    angles = torch.cat([angles, angles], dim=-1)
    return tuple((part * rotary.attention_scaling).to(hidden.dtype) for part in (angles.cos(), angles.sin()))


def prompt_of(ids: Sequence[int], *, occurrence: int = 0, source: str = "rows.jsonl:1") -> Prompt:
    """A rendered prompt with these ids."""
    return Prompt(
        ids=tuple(ids),
        text="",
        messages=(),
        content_hash=sha256(repr(tuple(ids)).encode()).hexdigest(),
        occurrence=occurrence,
        source=source,
        reference=None,
        extra={},
    )


def random_prompts(
    num: int, *, shortest: int = 3, longest: int = 20, seed: int = 0, num_ids: int = 300
) -> list[Prompt]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(shortest, longest + 1, (num,), generator=generator).tolist()
    return [
        prompt_of(torch.randint(num_ids, (length,), generator=generator).tolist(), source=f"rows.jsonl:{row + 1}")
        for row, length in enumerate(lengths)
    ]


def recipe_of(**settings) -> Recipe:
    """A recipe with the fields that a test does not care about filled in."""
    return Recipe(**{"student": "student", "teacher": "teacher", "prompts": "rows.jsonl", **settings})


def decoder_of(model: LanguageModel, way: str) -> Decoder | BatchGenerator:
    """The decoder of a name, as the engine takes it."""
    return {"lean": LeanDecoder, "slots": SlotDecoder, "generate": TransformersGenerator}[way](model)


def state_of(
    student: LanguageModel, recipe: Recipe, *, stop_ids: Sequence[int] = (2,), num_slots: int = 8
) -> TrainState:
    engine = Engine(student, stop_ids=stop_ids, pad_id=0, num_slots=num_slots)
    weights = TrainedWeights(student.module, mixed=recipe.precision == "bf16-mixed")
    return TrainState(student, weights, engine, make_optimizer(weights.named.values(), recipe))


class StoredAnswers:
    """Stands for a writer: hands out the answers that were stored of one step after the other."""

    def __init__(self, steps: Sequence[Sequence[Mapping[str, Any]]], pad_id: int) -> None:
        self.steps, self.pad_id = iter([step for step in steps if step]), pad_id

    def generate(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> list[Completion]:
        stored = next(self.steps)
        assert len(stored) == len(requests), "as many answers as were stored"
        return [Completion(tuple(row["ids"]), (0.0,) * len(row["ids"]), False) for row in stored]


class Angles(torch.nn.Module):
    """Rotation angles of positions in float64; transformers' are float32, which rounds otherwise elsewhere."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        size = config.head_dim
        self.rate_D = config.rope_parameters["rope_theta"] ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)

    def forward(self, hidden: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angles = (position_ids[..., None] * self.rate_D).repeat(1, 1, 2)
        return angles.cos(), angles.sin()


def _norm(norm: torch.nn.Module, hidden: Tensor) -> Tensor:
    return norm.weight * hidden * (hidden.square().mean(-1, keepdim=True) + norm.variance_epsilon).rsqrt()


def double(module: LlamaForCausalLM) -> LlamaForCausalLM:
    """A Llama all in float64, in place: transformers computes norms, angles and eager attention in float32."""
    module.double().set_attn_implementation("sdpa")
    module.model.rotary_emb = Angles(module.config)
    for each in module.modules():
        if isinstance(each, LlamaRMSNorm):
            each.forward = partial(_norm, each)
    return module


def replay(
    recipe: Recipe, practised: Sequence[Sequence[Mapping[str, Any]]], written: Sequence[dict[str, Any]] | None
) -> dict[str, list[float]]:
    """Train in float64 on answers that were stored: loss, gradient norm and learning rate of each step, and the weights
    at the end as one number for each tensor, its product with the cosines of 0, 1, 2, ...

    Args:
        practised: what the student wrote in each step: rows with `source` of the prompt and `ids`.
        written: what the teacher wrote before training, as `answers/teacher.jsonl` holds it.
    """
    material = prepare_material(recipe)
    student = language_model(LlamaForCausalLM.from_pretrained(recipe.student), material.dialogue.tokenizer)
    if recipe.lora is not None:
        attach_adapters(student, rank=recipe.lora.rank, alpha=recipe.lora.alpha, seed=recipe.seed)
    double(student.module)
    for name, weight in student.module.named_parameters():
        if "lora_A" in name:  # random numbers in float32 end otherwise elsewhere
            weight.data = torch.arange(weight.numel(), dtype=torch.float64).cos().view_as(weight) / 4
    teacher = None
    if recipe.teacher is not None and recipe.scores:
        teacher = LocalTeacher(language_model(double(LlamaForCausalLM.from_pretrained(recipe.teacher))))
    state = state_of(student, recipe.model_copy(update={"precision": "float32"}))
    state.engine = StoredAnswers(practised, material.dialogue.pad_id)
    targets = material.targets if written is None else targets_from_answers(written, material, recipe)
    data = TrainingData(material.train.prompts, teacher, targets, material.own)
    found: dict[str, list[float]] = {"loss": [], "grad_norm": [], "learning_rate": []}
    for stored, record in zip(practised, training_steps(state, data, recipe), strict=True):
        for name, values in found.items():
            values.append(getattr(record, name))
        if stored:
            assert [prompt.source for prompt in state.rollouts.prompts] == [row["source"] for row in stored]
    for name, weight in sorted(state.weights.named.items()):
        flat = weight.detach().flatten()
        found[name] = [(flat @ torch.arange(len(flat), dtype=torch.float64).cos()).item()]
    return found


def train(state: TrainState, teacher: Teacher, prompts: Sequence[Prompt], recipe: Recipe) -> Iterator[StepRecord]:
    """The steps of a recipe with nothing to read but what the student writes."""
    return training_steps(state, TrainingData(tuple(prompts), teacher), recipe)


def write_pair(
    folder: Path, *, num_prompts: int = 24, student=None, teacher=None, tokenizer=None, rows=None, **settings
) -> Path:
    """A student, a teacher, prompts and a recipe on disk; returns the recipe's path."""
    tokenizer = tokenizer or tiny_tokenizer()
    save_model(folder / "student", student if student is not None else tiny_llama(tokenizer, scale=4.0), tokenizer)
    save_model(
        folder / "teacher", teacher if teacher is not None else tiny_llama(tokenizer, scale=4.0, seed=1), tokenizer
    )
    if rows is None:
        rows = [prompt_row(f"{CORPUS[number % len(CORPUS)][: 12 + number]}") for number in range(num_prompts)]
    write_rows(folder / "rows.jsonl", rows)
    on_policy = settings.get("route", "on-policy") == "on-policy"
    supervised = settings.get("route") == "supervised"
    recipe = {
        "student": "student",
        **({} if supervised else {"teacher": "teacher"}),
        "prompts": "rows.jsonl",
        "held_out": 6,
        "steps": 4,
        "prompts_per_step": 4,
        **({"max_practice_tokens": 8} if on_policy else {}),
        "learning_rate": 1e-3,
        "warmup_steps": 0,
        "evaluate_every": 2,
        "name": "tiny",
        "workspace": str(folder),
        **settings,
    }
    lines = [f"{key}: {json.dumps(value)}\n" for key, value in recipe.items()]
    path = folder / "recipe.yaml"
    path.write_text("".join(lines), encoding="utf-8")
    return path
