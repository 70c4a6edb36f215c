"""Writing and reading text with the real test pair: sampling answers, divergences on a text, repetition.

Plain transformers and a small sampling loop, on purpose: the pair is there to test the package's own rollouts, and what
tests them should not be made by them.

Axes: B sequences, T positions, N the counted positions of all sequences, K the most likely tokens, H hidden.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from limbeck.machine import probe_machine
from limbeck.objectives.fused import Head, fused_divergence
from limbeck.objectives.objective import Objective

# The last tokens of an answer that are looked at for repetition, and the share of distinct 4-grams below which an
# answer repeats itself.
REPETITION_WINDOW = 64
REPETITION_SHARE = 0.4


@dataclass(frozen=True)
class Sampling:
    """How answers are drawn, at temperature 1; top_k 0 draws from the whole distribution."""

    max_tokens: int
    top_k: int = 0
    top_p: float = 1.0
    num_rows: int = 64


@dataclass(frozen=True)
class Text:
    """A prompt with its answer, as token ids; the answer ends with the end of turn unless it was cut off."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]

    @property
    def ids(self) -> tuple[int, ...]:
        return self.prompt + self.answer


def save_texts(texts: Sequence[Text], path: Path) -> None:
    lines = (json.dumps({"prompt_ids": text.prompt, "answer_ids": text.answer}) + "\n" for text in texts)
    path.write_text("".join(lines), encoding="utf-8")


def load_texts(path: Path) -> list[Text]:
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [Text(tuple(row["prompt_ids"]), tuple(row["answer_ids"])) for row in rows]


def render(tokenizer: Any, question: str) -> tuple[int, ...]:
    """The token ids of a question in the chat template, up to where the answer starts."""
    messages = [{"role": "user", "content": question}]
    return tuple(tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"])


@torch.no_grad()
def write_answers(
    model: PreTrainedModel, prompts: Sequence[tuple[int, ...]], sampling: Sampling, *, seed: int
) -> list[Text]:
    """One sampled answer for each prompt, in the order of `prompts`; computed in bfloat16 where that is faster."""
    writer = copy.deepcopy(model).bfloat16() if probe_machine("cpu").bf16 else model
    generator = torch.Generator().manual_seed(seed)
    answers: dict[int, list[int]] = {}
    by_length = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    for start in range(0, len(by_length), sampling.num_rows):
        rows = by_length[start : start + sampling.num_rows]
        answers |= _write_batch(writer, {row: prompts[row] for row in rows}, sampling, generator)
    return [Text(prompt, tuple(answers[row])) for row, prompt in enumerate(prompts)]


def _write_batch(
    model: PreTrainedModel, prompts: dict[int, tuple[int, ...]], sampling: Sampling, generator: torch.Generator
) -> dict[int, list[int]]:
    """Answers for one batch, padded on the left; a finished row leaves the batch."""
    end = model.generation_config.eos_token_id
    width = max(map(len, prompts.values()))
    ids_BT = torch.tensor([[end] * (width - len(ids)) + list(ids) for ids in prompts.values()])
    mask_BT = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts.values()])
    positions_BT = (mask_BT.cumsum(1) - 1).clamp(min=0)
    cache = DynamicCache(config=model.config)
    answers: dict[int, list[int]] = {row: [] for row in prompts}
    rows = list(prompts)
    for _ in range(sampling.max_tokens):
        output = model(ids_BT, mask_BT, positions_BT, cache=cache, use_cache=True, logits_to_keep=1)
        drawn_B = _draw(output.logits[:, -1].float(), sampling, generator)
        for row, token in zip(rows, drawn_B.tolist(), strict=True):
            answers[row].append(token)
        going_B = (drawn_B != end).nonzero().squeeze(1)
        if not len(going_B):
            break
        rows = [rows[i] for i in going_B.tolist()]
        cache.batch_select_indices(going_B)
        ids_BT = drawn_B[going_B].unsqueeze(1)
        positions_BT = positions_BT[going_B, -1:] + 1
        mask_BT = torch.nn.functional.pad(mask_BT[going_B], (0, 1), value=1)
    return answers


def _draw(logits_BV: Tensor, sampling: Sampling, generator: torch.Generator) -> Tensor:
    """One token id [B] for each row; top_p counts within the top_k, which spares a sort of the vocabulary."""
    if not sampling.top_k:
        return torch.multinomial(logits_BV.softmax(-1), 1, generator=generator).squeeze(1)
    top_BK, ids_BK = logits_BV.topk(sampling.top_k)
    share_BK = top_BK.softmax(-1)
    share_BK[share_BK.cumsum(-1) - share_BK > sampling.top_p] = 0
    return ids_BK.gather(1, torch.multinomial(share_BK, 1, generator=generator)).squeeze(1)


def head(model: PreTrainedModel) -> Head:
    return Head(model.lm_head.weight, None, model.config.vocab_size)


def hidden_states(model: PreTrainedModel, texts: Sequence[Text]) -> Tensor:
    """Hidden states [N, H] at the positions that predict the answers' tokens, text after text.

    Texts are padded on the right, where causal attention keeps the padding out of everything that is returned.
    """
    width = max(len(text.ids) for text in texts)
    ids_BT = torch.tensor([text.ids + (0,) * (width - len(text.ids)) for text in texts])
    hidden_BTH = model.model(input_ids=ids_BT, use_cache=False).last_hidden_state
    parts = [hidden_BTH[i, len(text.prompt) - 1 : len(text.ids) - 1] for i, text in enumerate(texts)]
    return torch.cat(parts)


def _batches(texts: Sequence[Text], num_rows: int) -> Iterator[Sequence[Text]]:
    by_length = sorted(texts, key=lambda text: len(text.ids))
    for start in range(0, len(by_length), num_rows):
        yield by_length[start : start + num_rows]


@torch.no_grad()
def mean_divergences(
    student: PreTrainedModel, teacher: PreTrainedModel, texts: Sequence[Text], betas: Sequence[float]
) -> list[float]:
    """Means over the answers' tokens of divergences (unit scale), in nats: beta 0 forward KL, beta 1 reverse KL."""
    total_nats, num_tokens = [0.0] * len(betas), 0
    for batch in _batches(texts, 32):
        student_NH = hidden_states(student, batch)
        teacher_NH = hidden_states(teacher, batch)
        ones_N = torch.ones(len(student_NH))
        for number, beta in enumerate(betas):
            _, divergence_N = fused_divergence(
                student_NH, head(student), teacher_NH, head(teacher), ones_N, Objective(beta=beta)
            )
            total_nats[number] += float(divergence_N.sum())
        num_tokens += len(ones_N)
    return [nats / num_tokens for nats in total_nats]


def repeats_itself(answer: Sequence[int]) -> bool:
    """Whether fewer than 40 % of the 4-grams in the answer's last 64 tokens are distinct."""
    window = answer[-REPETITION_WINDOW:]
    grams = [tuple(window[i : i + 4]) for i in range(len(window) - 3)]
    return bool(grams) and len(set(grams)) / len(grams) < REPETITION_SHARE


def describe(texts: Sequence[Text], end: int) -> dict[str, float]:
    """Mean length in tokens, share that ends, share that repeats itself."""
    return {
        "mean_tokens": round(sum(len(text.answer) for text in texts) / len(texts), 1),
        "share_ended": round(sum(text.answer[-1] == end for text in texts) / len(texts), 3),
        "share_repeating": round(sum(repeats_itself(text.answer) for text in texts) / len(texts), 3),
    }
