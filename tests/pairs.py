"""Models in memory as the package sees them after loading, and prompts as it sees them after rendering."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from builders import CORPUS, prompt_row, save_model, tiny_llama, tiny_tokenizer, write_rows
from limbeck.data.prompt import Prompt
from limbeck.fast.lean import LeanDecoder
from limbeck.models.language_model import LanguageModel
from limbeck.models.refs import ModelRef
from limbeck.objectives.fused import head_of
from limbeck.recipe.recipe import Recipe
from limbeck.rollouts.engine import Engine
from limbeck.rollouts.plain import TransformersGenerator
from limbeck.rollouts.slots import BatchGenerator, Decoder, SlotDecoder
from limbeck.routes.loop import TrainingData, training_steps
from limbeck.teachers.signal import Teacher
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
    return language_model(tiny_llama(tokenizer, seed=seed, scale=scale, **options).to(dtype), tokenizer)


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
