"""A teacher in this process: a model that reads what the student wrote."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from limbeck.data.batch import TokenBatch, collate
from limbeck.data.prompt import Prompt
from limbeck.models.language_model import LanguageModel
from limbeck.models.packed import pack_parameters
from limbeck.objectives.divergence import divergence
from limbeck.rollouts.engine import Engine
from limbeck.rollouts.request import prompt_requests
from limbeck.rollouts.sampling import Sampling
from limbeck.teachers.signal import Dense

__all__ = ["LocalTeacher", "half_teacher"]

# What rounding the teacher may cost, as a share of what the student has to learn from it.
LARGEST_SHARE = 0.02
NUM_PROMPTS = 8
NUM_NEW_TOKENS = 16


@dataclass(frozen=True)
class LocalTeacher:
    """Scores a batch with one forward pass: no gradient, no generation, its head at completion positions only."""

    model: LanguageModel

    @torch.no_grad()
    def score(self, batch: TokenBatch) -> Dense:
        return Dense(self.model.completion_hidden(batch), self.model.head)


@torch.no_grad()
def half_teacher(
    load: Callable[[torch.dtype], LanguageModel], student: LanguageModel, engine: Engine, prompts: Sequence[Prompt]
) -> tuple[LanguageModel, str]:
    """The teacher in bfloat16 if that changes it little beside what separates it from the student, else in float32.

    KL(float32 teacher‖bfloat16 teacher) must stay below 2 % of KL(float32 teacher‖student), both in nats per token on a
    few answers that the student writes. The two teachers are never in memory together.

    Returns the teacher and what was found, a sentence.
    """
    chosen = prompts[:NUM_PROMPTS]
    answers = [answer.ids for answer in engine.generate(prompt_requests(chosen, NUM_NEW_TOKENS), Sampling())]
    batch = collate([prompt.ids for prompt in chosen], answers, pad_id=engine.pad_id, device=student.device)
    teacher = load(torch.float32)
    exact_NV = teacher.head.logits(teacher.completion_hidden(batch))
    student_NV = student.head.logits(student.completion_hidden(batch))
    to_learn_nats = divergence(student_NV, exact_NV, 0.0).mean().item()
    torch.nn.Module.to(teacher.module, torch.bfloat16)
    pack_parameters(teacher.module)
    rounded_NV = teacher.head.logits(teacher.completion_hidden(batch))
    rounding_nats = divergence(rounded_NV, exact_NV, 0.0).mean().item()
    found = f"rounding {teacher.name} to bfloat16 moves it by {rounding_nats:.2g} nats per token; the student is "
    found += f"{to_learn_nats:.2g} nats away"
    if rounding_nats < LARGEST_SHARE * to_learn_nats:
        return teacher, f"The teacher reads in bfloat16: {found}."
    return load(torch.float32), f"The teacher reads in float32 and not in bfloat16: {found}."
