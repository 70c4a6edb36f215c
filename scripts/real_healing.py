"""The student of the real test pair: the teacher's first layers, taught to write again.

A model whose upper layers are cut off only babbles, and on-policy training from babble fails for want of anything to
correct. So the cut model is trained a while on what the teacher wrote, with the forward KL at every token of the
answers: enough for short recognisable answers that end, and little enough to leave on-policy training its work.

    cut(teacher, layers)                          the first layers, final norm and tied head
    heal(student, teacher, texts, healing, say)   forward KL on the teacher's texts, in place
    examine(student, teacher, texts)              its figures on held-out prompts
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from real_text import Sampling, Text, describe, head, hidden_states, mean_divergences, write_answers
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from limbeck.objectives.fused import fused_divergence
from limbeck.objectives.objective import Objective

# Practice answers of the student are this long at most, here and in the on-policy recipe.
PRACTICE_TOKENS = 64

# Adam's second moment follows a run of a few hundred steps, not the customary thousand.
ADAM_BETAS = (0.9, 0.95)
MAX_GRADIENT_NORM = 1.0
BATCHES_SORTED_TOGETHER = 4


@dataclass(frozen=True)
class Healing:
    """The settings of the healing; warm-up is linear, the rest a cosine down to a tenth."""

    epochs: int
    num_rows: int
    learning_rate: float
    warmup_steps: int
    seed: int


def cut(teacher: PreTrainedModel, layers: int) -> PreTrainedModel:
    """A copy of the teacher's first `layers` layers, its final norm and its tied head."""
    config = copy.deepcopy(teacher.config)
    config.num_hidden_layers = layers
    student = AutoModelForCausalLM.from_config(config).float().eval()
    kept = student.state_dict().keys()
    student.load_state_dict({name: tensor for name, tensor in teacher.state_dict().items() if name in kept})
    student.generation_config = copy.deepcopy(teacher.generation_config)
    return student


def _rate(step: int, num_steps: int, healing: Healing) -> float:
    if step < healing.warmup_steps:
        return healing.learning_rate * (step + 1) / healing.warmup_steps
    progress = (step - healing.warmup_steps) / max(1, num_steps - healing.warmup_steps)
    return healing.learning_rate * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * progress)))


@torch.no_grad()
def _read_all(teacher: PreTrainedModel, texts: Sequence[Text]) -> list[Tensor]:
    """The teacher's hidden states over the answer of each text: read once, used in every epoch."""
    read: dict[int, Tensor] = {}
    for rows in _batches_by_length(texts, range(len(texts)), 32):
        hidden_NH = hidden_states(teacher, [texts[row] for row in rows])
        parts = hidden_NH.split([len(texts[row].answer) for row in rows])
        read |= {row: part.clone() for row, part in zip(rows, parts, strict=True)}
    return [read[row] for row in range(len(texts))]


def _batches_by_length(texts: Sequence[Text], rows: Sequence[int], num_rows: int) -> list[list[int]]:
    by_length = sorted(rows, key=lambda row: len(texts[row].ids))
    return [by_length[start : start + num_rows] for start in range(0, len(rows), num_rows)]


def _epoch(texts: Sequence[Text], healing: Healing, generator: torch.Generator) -> list[list[int]]:
    """Batches in random order; texts of like length meet in one, within a random group, which halves the padding."""
    order = torch.randperm(len(texts), generator=generator).tolist()
    group = healing.num_rows * BATCHES_SORTED_TOGETHER
    batches = []
    for start in range(0, len(order), group):
        batches += _batches_by_length(texts, order[start : start + group], healing.num_rows)
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]


def heal(
    student: PreTrainedModel,
    teacher: PreTrainedModel,
    texts: Sequence[Text],
    healing: Healing,
    say: Callable[[str], None],
) -> None:
    """Train `student` in place: forward KL, mean over the answer tokens of each batch of the teacher's texts."""
    teacher_hidden = _read_all(teacher, texts)
    generator = torch.Generator().manual_seed(healing.seed)
    plan = [rows for _ in range(healing.epochs) for rows in _epoch(texts, healing, generator)]
    optimizer = torch.optim.AdamW(
        student.parameters(), lr=healing.learning_rate, betas=ADAM_BETAS, weight_decay=0.0, fused=True
    )
    began = time.monotonic()
    for step, rows in enumerate(plan):
        optimizer.param_groups[0]["lr"] = _rate(step, len(plan), healing)
        student_NH = hidden_states(student, [texts[row] for row in rows])
        teacher_NH = torch.cat([teacher_hidden[row] for row in rows])
        weights_N = torch.full((len(student_NH),), 1 / len(student_NH))
        loss, _ = fused_divergence(student_NH, head(student), teacher_NH, head(teacher), weights_N, Objective(beta=0.0))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(student.parameters(), MAX_GRADIENT_NORM)
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0 or step == len(plan) - 1:
            say(f"  step {step + 1}/{len(plan)}  forward KL {loss.item():.3f}  {time.monotonic() - began:.0f} s")


def examine(
    student: PreTrainedModel, teacher: PreTrainedModel, texts: Sequence[Text]
) -> tuple[dict[str, float], list[Text]]:
    """Figures of the student and its answers: divergences on the teacher's texts and on its own of the same prompts."""
    own = write_answers(student, [text.prompt for text in texts], Sampling(PRACTICE_TOKENS), seed=1)
    forward, reverse = mean_divergences(student, teacher, texts, (0.0, 1.0))
    figures = {
        "forward_kl_on_teacher_text_nats": forward,
        "reverse_kl_on_teacher_text_nats": reverse,
        "reverse_kl_on_own_text_nats": mean_divergences(student, teacher, own, (1.0,))[0],
    }
    rounded = {name: round(value, 4) for name, value in figures.items()}
    return rounded | describe(own, student.generation_config.eos_token_id), own
