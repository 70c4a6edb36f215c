"""A local teacher: a model in this process that scores answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from limbeck.data.batch import TokenBatch, collate
from limbeck.data.prompt import Prompt
from limbeck.models.arena import move_together
from limbeck.models.language_model import LanguageModel
from limbeck.objectives.divergence import divergence
from limbeck.rollouts.engine import Engine
from limbeck.rollouts.request import prompt_requests
from limbeck.rollouts.sampling import Sampling
from limbeck.teachers import messages
from limbeck.teachers.signal import Dense

__all__ = ["LocalTeacher", "load_teacher_bf16_if_close"]

# The largest error from rounding the teacher, as a share of the divergence between student and teacher.
LARGEST_SHARE = 0.02
NUM_PROMPTS = 8
NUM_NEW_TOKENS = 16


@dataclass(frozen=True)
class LocalTeacher:
    """Scores a batch in one forward pass: no gradient, no generation, completion positions only."""

    model: LanguageModel

    @torch.no_grad()
    def score(self, batch: TokenBatch) -> Dense:
        return Dense(self.model.completion_hidden(batch), self.model.head)


@torch.no_grad()
def load_teacher_bf16_if_close(
    load: Callable[[torch.dtype], LanguageModel], student: LanguageModel, engine: Engine, prompts: Sequence[Prompt]
) -> tuple[LanguageModel, str]:
    """The teacher in bfloat16 if rounding changes it little compared with its distance to the student, else in float32.

    KL(float32 teacher‖bfloat16 teacher) must be below 2 % of KL(float32 teacher‖student), both in nats per token on a
    few answers that the student generates. The two teachers are never in memory at the same time.

    Returns the teacher and a note on what was measured.
    """
    chosen = prompts[:NUM_PROMPTS]
    answers = [answer.ids for answer in engine.generate(prompt_requests(chosen, NUM_NEW_TOKENS), Sampling())]
    batch = collate([prompt.ids for prompt in chosen], answers, pad_id=engine.pad_id, device=student.device)
    teacher = load(torch.float32)
    exact_NV = teacher.head.logits(teacher.completion_hidden(batch))
    student_NV = student.head.logits(student.completion_hidden(batch))
    to_learn_nats = divergence(student_NV, exact_NV, 0.0).mean().item()
    torch.nn.Module.to(teacher.module, torch.bfloat16)
    move_together(teacher.module)
    rounded_NV = teacher.head.logits(teacher.completion_hidden(batch))
    rounding_nats = divergence(rounded_NV, exact_NV, 0.0).mean().item()
    measured = {"model": teacher.name, "rounding_nats": rounding_nats, "student_nats": to_learn_nats}
    if rounding_nats < LARGEST_SHARE * to_learn_nats:
        return teacher, messages.scores_in_bfloat16(**measured)
    return load(torch.float32), messages.scores_in_float32(**measured)
