"""Models answer prompts: the same for every model, greedy unless said otherwise, stored as the answers come.

The models are loaded one after the other and never together. An evaluation that was stopped goes on with what is
open, and answers that an earlier evaluation of the workspace has to the very same question are taken from there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any

import torch

from limbeck.data.chat import conversation_key
from limbeck.data.prompt import Prompt
from limbeck.evaluation.answering.sides import Side
from limbeck.models.language_model import LanguageModel
from limbeck.models.load import load_model
from limbeck.models.save import weights_hash
from limbeck.rollouts.engine import Engine
from limbeck.rollouts.request import Completion, GeneratedToken, GenerationRequest, prompt_requests
from limbeck.rollouts.sampling import GREEDY, Purpose, Sampling, stream_key
from limbeck.runs.evaluations import Evaluation, list_evaluations
from limbeck.training.generation import choose_method, engine_for

__all__ = ["Answering", "answer_prompts", "answer_row", "answer_side", "asked_of", "labels_of", "load_side", "text_of"]

CHUNKS_PER_SLOT = 4
MAX_LABEL_LENGTH = 80

Log = Callable[..., None]


def answer_prompts(
    engine: Engine,
    prompts: Sequence[Prompt],
    *,
    max_new_tokens: int,
    sampling: Sampling = GREEDY,
    purpose: Purpose = Purpose.EVALUATION,
    seed: int = 0,
) -> list[Completion]:
    """One answer to each prompt, in order. The same seed gives the same random numbers to every model and time."""
    return engine.generate(prompt_requests(prompts, max_new_tokens, purpose=purpose, seed=seed), sampling)


def text_of(engine: Engine, completion: Completion) -> str:
    """The answer as text, without its stop token. For reading and grading only: text is never tokenised again."""
    return engine.model.text(completion.text_ids)


@dataclass(frozen=True)
class Answering:
    """How all models of an evaluation answer. At temperature 0 each writes one answer, the likeliest."""

    max_tokens: int
    temperature: float = 0.0
    samples: int = 1
    seed: int = 0
    slots: int = 32


def load_side(side: Side, device: str) -> LanguageModel:
    """The weights of a model, its logits cut to the ids that count."""
    model = load_model(side.ref, trainable=False, dtype=side.torch_dtype, device=torch.device(device))
    return model.with_vocabulary(side.local.num_real)


def answer_side(evaluation: Evaluation, side: Side, answering: Answering, device: str, log: Log) -> None:
    """Let a model answer what it has not answered yet, each chunk of answers stored before the next is written.

    Raises:
        Refusal: the evaluation began with another model under this alias.
    """
    model = load_side(side, device)
    dialogue = side.local
    facts: dict[str, object] = {
        "weights": weights_hash(model.module),
        "dtype": side.dtype,
        "template": dialogue.template.sha256,
        # by their ids, which another tokenizer under the same name changes
        "prompts": sha256("\0".join(prompt.content_hash for prompt in side.prompts).encode("ascii")).hexdigest(),
        "stop_ids": list(dialogue.stop.ids),
        "num_real": dialogue.num_real,
    }
    evaluation.learn(side.alias, facts)
    asked = asked_of(side, answering)
    known = {(row["key"], row["sample"]) for row in evaluation.read_answers(side.alias)}
    if not known and (rows := _answered_before(evaluation, side, facts, log)):
        evaluation.write_answers(side.alias, rows)
        return
    todo = [(prompt, sample) for prompt, sample in asked if (conversation_key(prompt), sample) not in known]
    if not todo:
        return
    longest = max(len(prompt.ids) for prompt in side.prompts) + answering.max_tokens
    writing = choose_method(model, max_length=longest, pad_id=dialogue.pad_id)
    engine = engine_for(model, dialogue, writing.decoder, num_slots=answering.slots)
    size = CHUNKS_PER_SLOT * answering.slots
    for start in range(0, len(todo), size):
        log("phase", phase=f"{side.alias} answers, {len(asked) - len(todo) + start} of {len(asked)} so far")
        for row in _answer_chunk(engine, todo[start : start + size], answering):
            evaluation.append_answer(side.alias, row)


def asked_of(side: Side, answering: Answering) -> list[tuple[Prompt, int]]:
    """Each prompt with the number of each of its samples."""
    return [(prompt, sample) for prompt in side.prompts for sample in range(answering.samples)]


def _answered_before(evaluation: Evaluation, side: Side, facts: dict[str, object], log: Log) -> list[dict[str, Any]]:
    """All answers of the same model to the same question in an earlier evaluation beside this one."""
    settings = evaluation.asked()["settings"]
    for other in list_evaluations(evaluation.path.parents[1]):
        then = other.asked()
        alias = next((alias for alias, known in then.get("facts", {}).items() if known == facts), None)
        if other.name != evaluation.name and other.finished and then.get("settings") == settings and alias is not None:
            log("phase", phase=f"{side.alias} answered all this in {other.name}")
            return [{**row, "grade": None, "grade_reason": None} for row in other.read_answers(alias)]
    return []


def _answer_chunk(
    engine: Engine, asked: Sequence[tuple[Prompt, int]], answering: Answering
) -> Iterator[dict[str, object]]:
    """The answers as rows, with how long each took from its turn to its end and its share of the chunk's time."""
    requests = [
        GenerationRequest(
            prompt.ids,
            stream_key(answering.seed, Purpose.EVALUATION, 0, prompt.content_hash, prompt.occurrence, sample),
            answering.max_tokens,
        )
        for prompt, sample in asked
    ]
    written: list[list[GeneratedToken]] = [[] for _ in requests]
    begun, ended = [0.0] * len(requests), [0.0] * len(requests)
    started = before = time.perf_counter()
    for event in engine.stream(requests, Sampling(answering.temperature)):
        now = time.perf_counter()
        if not written[event.request]:
            begun[event.request] = before  # its prompt was read since the token before
        written[event.request].append(event)
        ended[event.request] = before = now
    engine_s = (time.perf_counter() - started) / len(requests)
    for row, (prompt, sample) in enumerate(asked):
        ids = tuple(event.token for event in written[row])
        done = Completion(ids, (), written[row][-1].end == "limit")
        yield answer_row(
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


def answer_row(prompt: Prompt, sample: int, *, cut_off: bool = False, **found: object) -> dict[str, object]:
    """An answer as it is stored, before it is graded; None for what is not known of it."""
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
    """The row's other columns with one short value, by which an evaluation can be sliced."""
    return {
        name: str(value)
        for name, value in prompt.extra.items()
        if isinstance(value, str | int | float) and len(str(value)) <= MAX_LABEL_LENGTH
    }
