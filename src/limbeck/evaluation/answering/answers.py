"""Local models answer prompts: with the same settings for every model, each answer stored as it is generated.

One model is loaded at a time. A stopped evaluation continues with the missing answers, and answers are reused if an
earlier evaluation of the workspace has them for the same model, prompts and settings.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any

import torch

from limbeck.data.chat import conversation_key
from limbeck.data.prompt import Prompt
from limbeck.evaluation.answering.evaluated import EvaluatedModel
from limbeck.evaluation.messages import models as messages
from limbeck.models.language_model import LanguageModel
from limbeck.models.load import load_model
from limbeck.models.save import weights_hash
from limbeck.rollouts.engine import Engine
from limbeck.rollouts.request import Completion, GeneratedToken, GenerationRequest, prompt_requests
from limbeck.rollouts.sampling import GREEDY, Purpose, Sampling, stream_key
from limbeck.runs.evaluations import Evaluation, list_evaluations
from limbeck.runs.store import WriteEvent
from limbeck.training.generation import choose_method, engine_for

__all__ = [
    "GenerationSettings",
    "answer_prompts",
    "generate_answers_of",
    "labels_of",
    "load_evaluated",
    "make_answer_row",
    "prompt_samples",
    "text_of",
]

CHUNKS_PER_SLOT = 4
MAX_LABEL_LENGTH = 80


def answer_prompts(
    engine: Engine,
    prompts: Sequence[Prompt],
    *,
    max_new_tokens: int,
    sampling: Sampling = GREEDY,
    purpose: Purpose = Purpose.EVALUATION,
    seed: int = 0,
) -> list[Completion]:
    """One answer to each prompt, in order. Every model gets the same random numbers for the same seed."""
    return engine.generate(prompt_requests(prompts, max_new_tokens, purpose=purpose, seed=seed), sampling)


def text_of(engine: Engine, completion: Completion) -> str:
    """The answer as text, without its stop token; for people and graders, as text is never tokenised again."""
    return engine.model.text(completion.text_ids)


@dataclass(frozen=True)
class GenerationSettings:
    """How all models of an evaluation generate answers; greedily at temperature 0."""

    max_tokens: int
    temperature: float = 0.0
    samples: int = 1
    seed: int = 0
    slots: int = 32


def load_evaluated(evaluated: EvaluatedModel, device: str) -> LanguageModel:
    """Load the weights of a model; its logits are limited to the shared vocabulary."""
    model = load_model(evaluated.ref, trainable=False, dtype=evaluated.torch_dtype, device=torch.device(device))
    return model.with_vocabulary(evaluated.local.num_real)


def generate_answers_of(
    evaluation: Evaluation, evaluated: EvaluatedModel, settings: GenerationSettings, device: str, log: WriteEvent
) -> None:
    """Generate a model's missing answers, in chunks that are stored one after the other.

    Raises:
        Refusal: the evaluation started with another model under this alias.
    """
    model = load_evaluated(evaluated, device)
    dialogue = evaluated.local
    facts: dict[str, object] = {
        "weights": weights_hash(model.module),
        "dtype": evaluated.dtype,
        "template": dialogue.template.sha256,
        # by token ids, since the name of a tokenizer may stay when it changes
        "prompts": sha256("\0".join(prompt.content_hash for prompt in evaluated.prompts).encode("ascii")).hexdigest(),
        "stop_ids": list(dialogue.stop.ids),
        "num_real": dialogue.num_real,
    }
    evaluation.learn(evaluated.alias, facts)
    samples = prompt_samples(evaluated, settings)
    known = {(row["key"], row["sample"]) for row in evaluation.read_answers(evaluated.alias)}
    if not known and (rows := _reusable_answers(evaluation, evaluated, facts, log)):
        evaluation.write_answers(evaluated.alias, rows)
        return
    todo = [(prompt, sample) for prompt, sample in samples if (conversation_key(prompt), sample) not in known]
    if not todo:
        return
    longest = max(len(prompt.ids) for prompt in evaluated.prompts) + settings.max_tokens
    method = choose_method(model, max_length=longest, pad_id=dialogue.pad_id)
    engine = engine_for(model, dialogue, method.decoder, num_slots=settings.slots)
    size = CHUNKS_PER_SLOT * settings.slots
    for start in range(0, len(todo), size):
        num_done = len(samples) - len(todo) + start
        log("phase", phase=messages.generating(model=evaluated.alias, num_done=num_done, total=len(samples)))
        for row in _answer_chunk(engine, todo[start : start + size], settings):
            evaluation.append_answer(evaluated.alias, row)


def prompt_samples(evaluated: EvaluatedModel, settings: GenerationSettings) -> list[tuple[Prompt, int]]:
    """Each prompt with the number of each of its samples."""
    return [(prompt, sample) for prompt in evaluated.prompts for sample in range(settings.samples)]


def _reusable_answers(
    evaluation: Evaluation, evaluated: EvaluatedModel, facts: dict[str, object], log: WriteEvent
) -> list[dict[str, Any]]:
    """All answers that an earlier evaluation of the workspace has for the same model, prompts and settings."""
    settings = evaluation.asked()["settings"]
    for other in list_evaluations(evaluation.path.parents[1]):
        then = other.asked()
        alias = next((alias for alias, known in then.get("facts", {}).items() if known == facts), None)
        if other.name != evaluation.name and other.finished and then.get("settings") == settings and alias is not None:
            log("phase", phase=messages.reused(model=evaluated.alias, evaluation=other.name))
            return [{**row, "grade": None, "grade_reason": None} for row in other.read_answers(alias)]
    return []


def _answer_chunk(
    engine: Engine, samples: Sequence[tuple[Prompt, int]], settings: GenerationSettings
) -> Iterator[dict[str, object]]:
    """The answers as rows, each with its seconds from start to end and its share of the chunk's seconds."""
    requests = [
        GenerationRequest(
            prompt.ids,
            stream_key(settings.seed, Purpose.EVALUATION, 0, prompt.content_hash, prompt.occurrence, sample),
            settings.max_tokens,
        )
        for prompt, sample in samples
    ]
    written: list[list[GeneratedToken]] = [[] for _ in requests]
    begun, ended = [0.0] * len(requests), [0.0] * len(requests)
    started = before = time.perf_counter()
    for event in engine.stream(requests, Sampling(settings.temperature)):
        now = time.perf_counter()
        if not written[event.request]:
            begun[event.request] = before  # its prompt was processed after the token before
        written[event.request].append(event)
        ended[event.request] = before = now
    engine_s = (time.perf_counter() - started) / len(requests)
    for row, (prompt, sample) in enumerate(samples):
        ids = tuple(event.token for event in written[row])
        done = Completion(ids, (), written[row][-1].end == "limit")
        yield make_answer_row(
            prompt,
            sample,
            answer=text_of(engine, done),
            ids=list(ids),
            cut_off=done.cut_off,
            length=len(ids),
            num_prompt_tokens=len(prompt.ids),
            seconds=ended[row] - begun[row],
            engine_s=engine_s,
        )


def make_answer_row(prompt: Prompt, sample: int, *, cut_off: bool = False, **found: object) -> dict[str, object]:
    """An answer as it is stored, before it is graded; None for unknown values."""
    return {
        "key": conversation_key(prompt),
        "source": prompt.source,
        "sample": sample,
        "prompt": prompt.text,
        "messages": [asdict(turn) for turn in prompt.messages],
        "reference": prompt.reference,
        **dict.fromkeys(("answer", "ids", "failure", "length", "num_prompt_tokens", "seconds", "engine_s")),
        "cut_off": cut_off,
        **found,
        "grade": None,
        "grade_reason": None,
        "labels": labels_of(prompt),
    }


def labels_of(prompt: Prompt) -> dict[str, str]:
    """The row's other columns with a single short value, for slices."""
    return {
        name: str(value)
        for name, value in prompt.extra.items()
        if isinstance(value, str | int | float) and len(str(value)) <= MAX_LABEL_LENGTH
    }
