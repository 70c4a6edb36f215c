"""Computes the marks of answers: both models score prompt and answer, and their distributions are compared.

Logits exist for a few positions at a time, so memory does not grow with tokens x vocabulary. `runs.marks` has the
formats.

Shapes  N = completion tokens, H = hidden, V = vocabulary, K = candidates (up to both top-20), M = candidates of all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from limbeck.data.prompt import Prompt
from limbeck.models.language_model import LanguageModel
from limbeck.models.pieces import token_pieces
from limbeck.objectives.divergence import Objective
from limbeck.objectives.forms import FLOOR_NATS, direct_value_and_gradient
from limbeck.objectives.fused import Head
from limbeck.rollouts.request import Completion
from limbeck.runs.marks import BETAS, TOP, MarkedAnswer
from limbeck.teachers.signal import Teacher
from limbeck.training.batches import micro_batches
from limbeck.training.state import TrainState

__all__ = ["compare_tokens", "mark_answers", "mark_step", "nearest_beta"]

# Answers that a run marks at each evaluation: few, so that marking takes less than a twentieth of its time.
NUM_HELD_OUT = 8
NUM_PRACTISED = 4

CHUNK_ELEMENTS = 2**22  # of one buffer [N, V], of which some ten exist


@torch.no_grad()
def mark_answers(
    student: LanguageModel,
    teacher: Teacher,
    prompts: Sequence[Prompt],
    answers: Sequence[Completion],
    *,
    temperature: float = 1.0,
    max_tokens: int = 4096,
    pad_id: int,
    share: bool = False,
) -> tuple[MarkedAnswer, ...]:
    """The marks of each answer, in order. The answers may come from any model.

    Args:
        temperature: of the run's objective; divergences are computed at this temperature and at 1.
        max_tokens, pad_id, share: as in `micro_batches`.
    """
    temperatures = tuple(dict.fromkeys((1.0, float(temperature))))
    arrays: dict[int, dict[str, Any]] = {}
    for batch in micro_batches(
        prompts, answers, max_tokens=max_tokens, pad_id=pad_id, device=student.device, share=share
    ):
        hidden_NH, signal = student.completion_hidden(batch.tokens), teacher.score(batch.tokens)
        marks = compare_tokens(
            hidden_NH, student.head, signal.hidden_NH, signal.head, batch.tokens.targets_N, temperatures
        )
        lengths = [len(answers[row].ids) for row in batch.rows]
        num_candidates = [int(part_N.sum()) for part_N in marks["num_candidates"].split(lengths)]
        for name, values in marks.items():
            sizes = num_candidates if name.startswith("candidate_") else lengths
            for row, part in zip(batch.rows, values.split(sizes), strict=True):
                arrays.setdefault(row, {})[name] = part
    return tuple(_answer(student, prompts[row], answers[row], temperatures, arrays[row]) for row in range(len(prompts)))


def mark_step(
    state: TrainState,
    teacher: Teacher,
    held_out: tuple[Sequence[Prompt], Sequence[Completion]],
    objective: Objective,
    max_tokens: int,
) -> tuple[MarkedAnswer, ...]:
    """The marks that a run stores for a step: of its first practice answers and its first held-out answers.

    The student was updated after it generated the practice answers; the marks are those of the updated student.
    """
    practice = state.rollouts
    prompts = [replace(prompt, source=f"practice on {prompt.source}") for prompt in practice.prompts[:NUM_PRACTISED]]
    return mark_answers(
        state.student,
        teacher,
        [*held_out[0][:NUM_HELD_OUT], *prompts],
        [*held_out[1][:NUM_HELD_OUT], *practice.completions[:NUM_PRACTISED]],
        temperature=objective.temperature,
        max_tokens=max_tokens,
        pad_id=state.engine.pad_id,
        share=state.share,
    )


def nearest_beta(objective: Objective) -> float:
    """The stored beta that is nearest to the objective."""
    towards = {"divergence": objective.beta, "kl_mix": 1 - objective.forward_weight, "soft_targets": 0.0}
    return min(BETAS, key=lambda beta: abs(beta - towards[objective.kind]))


def _answer(
    student: LanguageModel,
    prompt: Prompt,
    answer: Completion,
    temperatures: tuple[float, ...],
    tensors: Mapping[str, Tensor],
) -> MarkedAnswer:
    arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in tensors.items()}
    arrays["candidate_ends"] = arrays.pop("num_candidates").cumsum(dtype="int32")
    return MarkedAnswer(
        key=f"{prompt.content_hash}/{prompt.occurrence}",
        source=prompt.source,
        prompt=prompt.text,
        messages=[asdict(message) for message in prompt.messages],
        cut_off=answer.cut_off,
        temperatures=temperatures,
        vocabulary=token_pieces(student.tokenizer, [*answer.ids, *arrays["candidate_ids"].tolist()]),
        **arrays,
    )


@torch.no_grad()
def compare_tokens(
    student_hidden_NH: Tensor,
    student_head: Head,
    teacher_hidden_NH: Tensor,
    teacher_head: Head,
    token_ids_N: Tensor,
    temperatures: Sequence[float],
    *,
    chunk_tokens: int | None = None,
) -> dict[str, Tensor]:
    """What `runs.marks` stores of each token, from hidden states at the same N >= 1 positions; results are on the CPU.

    Names, types and units are those of `runs.marks`, with `num_candidates` [N] instead of ends. Both heads have the
    same ids. The divergences are those of `limbeck.divergence` at unit scale, up to rounding of 1e-5 nats.
    """
    step = chunk_tokens or max(1, CHUNK_ELEMENTS // student_head.num_real)
    student_head, teacher_head = (head.widened(torch.float32) for head in (student_head, teacher_head))
    parts = [
        _compare(student_head.logits(student_NH), teacher_head.logits(teacher_NH), ids_N, temperatures)
        for student_NH, teacher_NH, ids_N in zip(
            *(tensor.split(step) for tensor in (student_hidden_NH, teacher_hidden_NH, token_ids_N)), strict=True
        )
    ]
    return {name: torch.cat([part[name] for part in parts]).cpu() for name in parts[0]}


def _compare(
    student_NV: Tensor, teacher_NV: Tensor, token_ids_N: Tensor, temperatures: Sequence[float]
) -> dict[str, Tensor]:
    logq_NV, logp_NV = (_log_probabilities(logits_NV, 1.0) for logits_NV in (student_NV, teacher_NV))
    teacher_logp_N1 = logp_NV.gather(-1, token_ids_N[:, None])
    found = {
        "token_ids": token_ids_N.int(),
        "student_logp": logq_NV.gather(-1, token_ids_N[:, None]).squeeze(1),
        "teacher_logp": teacher_logp_N1.squeeze(1),
        "teacher_rank": (logp_NV > teacher_logp_N1).sum(-1, dtype=torch.int32),
    }
    ids_NK, kept_NK = _union_of_tops(logq_NV, logp_NV)
    found["num_candidates"] = kept_NK.sum(-1, dtype=torch.int32)
    found["candidate_ids"] = ids_NK[kept_NK].int()
    for side, side_NV in (("student", logq_NV), ("teacher", logp_NV)):
        probabilities_NV = side_NV.exp()
        found[f"{side}_entropy"] = -(probabilities_NV * side_NV).sum(-1)
        found[f"{side}_tail"] = probabilities_NV.scatter_(-1, ids_NK, 0.0).sum(-1)
        found[f"candidate_{side}"] = side_NV.gather(-1, ids_NK)[kept_NK].half()
    columns: list[Tensor] = []
    for temperature in temperatures:
        if temperature != 1:
            logq_NV, logp_NV = (_log_probabilities(logits_NV, temperature) for logits_NV in (student_NV, teacher_NV))
        for beta in BETAS:
            objective = Objective(beta=beta, scale="unit")  # the temperature is already applied
            columns.append(direct_value_and_gradient(objective, logq_NV, logp_NV, False)[0].clamp_(min=0))
    found["divergence"] = torch.stack(columns, dim=1).view(-1, len(temperatures), len(BETAS))
    return {name: values.float() if values.dtype == torch.float64 else values for name, values in found.items()}


def _log_probabilities(logits_NV: Tensor, temperature: float) -> Tensor:
    return (logits_NV if temperature == 1 else logits_NV / temperature).log_softmax(-1).clamp_(min=-FLOOR_NATS)


def _union_of_tops(logq_NV: Tensor, logp_NV: Tensor) -> tuple[Tensor, Tensor]:
    """Ids [N, 2K] of both top-k sets, the teacher's most likely first, and a mask that keeps each id once."""
    num = min(TOP, logp_NV.shape[-1])
    ids_NK = torch.cat([side_NV.topk(num).indices for side_NV in (logp_NV, logq_NV)], dim=-1).sort(-1).values
    order_NK = logp_NV.gather(-1, ids_NK).argsort(dim=-1, descending=True, stable=True)
    ids_NK = ids_NK.gather(-1, order_NK)  # equal ids have the same key and stay next to each other
    kept_NK = torch.ones_like(ids_NK, dtype=torch.bool)
    kept_NK[:, 1:] = ids_NK[:, 1:] != ids_NK[:, :-1]
    return ids_NK, kept_NK
