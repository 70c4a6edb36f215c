"""The objective certificate: that the objective is the one named, shown on the user's own two models.

    self        the student as its own teacher has divergence 0 and no gradient
    fused       the chunked function equals the plain definition, value and gradient
    teacher     another teacher signal gives another gradient, so the teacher is really used
    shift       the student as its own teacher, moved by one position, does diverge, so the zero above means something
    engine      the log-probabilities of written tokens are those of the training pass

Shapes  N = completion tokens, H = hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from limbeck.data.batch import TokenBatch, collate
from limbeck.data.chat import Prompt
from limbeck.evaluation.answers import answer_prompts
from limbeck.models.load import LanguageModel
from limbeck.objectives.divergence import Objective, evaluate
from limbeck.objectives.fused import Head, Readings, fused_with_readings
from limbeck.objectives.reduce import token_weights
from limbeck.rollouts.engine import Engine
from limbeck.rollouts.sampling import Sampling

__all__ = ["Finding", "certify"]

NUM_PROMPTS = 4
NUM_NEW_TOKENS = 12
SELF_LIMIT_NATS = 1e-5
SHIFT_LIMIT_NATS = 1e-3
TEACHER_LIMIT = 0.01
FUSED_LIMIT = 1e-5
ENGINE_LIMIT_NATS = 1e-3


@dataclass(frozen=True)
class Finding:
    """One line of the certificate: what was measured, the number, and what it must be."""

    name: str
    claim: str
    value: float
    limit: str
    passed: bool


def certify(
    student: LanguageModel,
    teacher: LanguageModel,
    engine: Engine,
    prompts: Sequence[Prompt],
    objective: Objective,
    *,
    chunk_tokens: int,
) -> list[Finding]:
    """Let the student write a few short answers and check the objective on them. Weights are not changed."""
    chosen = prompts[:NUM_PROMPTS]
    answers = answer_prompts(engine, chosen, max_new_tokens=NUM_NEW_TOKENS, sampling=Sampling())
    batch = collate(
        [prompt.ids for prompt in chosen],
        [answer.ids for answer in answers],
        pad_id=engine.pad_id,
        device=student.device,
    )
    with torch.no_grad():
        student_NH, teacher_NH = student.completion_hidden(batch), teacher.completion_hidden(batch)
    written_N = torch.tensor([logprob for answer in answers for logprob in answer.logprobs], dtype=torch.float64)
    bench = _Bench(batch, student_NH, _frozen(student.head), objective, chunk_tokens)
    true = bench.measure(teacher_NH, teacher.head)
    return [
        _self(bench),
        _fused(bench, true, teacher_NH, teacher.head),
        _teacher(bench, true, teacher_NH, teacher.head),
        _shift(bench),
        _engine(written_N, true.readings),
    ]


@dataclass(frozen=True)
class _Measured:
    mean: float
    gradient_NH: Tensor
    readings: Readings


@dataclass(frozen=True)
class _Bench:
    """A fixed text and student; `measure` puts a teacher beside them."""

    batch: TokenBatch
    student_NH: Tensor
    student_head: Head
    objective: Objective
    chunk_tokens: int

    def measure(self, teacher_NH: Tensor, teacher_head: Head) -> _Measured:
        hidden_NH = self.student_NH.clone().requires_grad_()
        num_tokens = self.batch.num_tokens
        loss, readings = fused_with_readings(
            hidden_NH,
            self.student_head,
            teacher_NH,
            teacher_head,
            token_weights(num_tokens, num_tokens, dtype=torch.float64, device=hidden_NH.device),
            self.objective,
            token_ids_N=self.batch.targets_N,
            chunk_tokens=self.chunk_tokens,
        )
        loss.backward()
        assert hidden_NH.grad is not None
        return _Measured(loss.item(), hidden_NH.grad, readings)


def _frozen(head: Head) -> Head:
    """The head without gradient, so that certifying leaves nothing on the student's weights."""
    bias_V = None if head.bias_V is None else head.bias_V.detach()
    return replace(head, weight_VH=head.weight_VH.detach(), bias_V=bias_V)


def _self(bench: _Bench) -> Finding:
    own = bench.measure(bench.student_NH, bench.student_head)
    value = max(abs(own.mean), own.gradient_NH.norm().item())
    claim = "student as its own teacher: divergence and gradient"
    return Finding("self", claim, value, f"at most {SELF_LIMIT_NATS:g}", value <= SELF_LIMIT_NATS)


def _fused(bench: _Bench, true: _Measured, teacher_NH: Tensor, teacher_head: Head) -> Finding:
    hidden_NH = bench.student_NH.clone().requires_grad_()
    dense_N = evaluate(bench.objective, bench.student_head.logits(hidden_NH), teacher_head.logits(teacher_NH))
    dense_N.mean().backward()
    assert hidden_NH.grad is not None
    value_gap = abs(dense_N.mean().item() - true.mean) / max(abs(true.mean), 1e-30)
    gradient_gap = ((hidden_NH.grad - true.gradient_NH).norm() / hidden_NH.grad.norm().clamp(min=1e-30)).item()
    worst = max(value_gap, gradient_gap)
    claim = "fused against plain definition: relative gap of value and gradient"
    return Finding("fused", claim, worst, f"at most {FUSED_LIMIT:g}", worst <= FUSED_LIMIT)


def _teacher(bench: _Bench, true: _Measured, teacher_NH: Tensor, teacher_head: Head) -> Finding:
    """The teacher's distributions dealt to other positions are another teacher, and must give another gradient."""
    other = bench.measure(teacher_NH.roll(1, dims=0), teacher_head)
    larger = torch.maximum(true.gradient_NH.norm(), other.gradient_NH.norm()).clamp(min=1e-30)
    change = ((true.gradient_NH - other.gradient_NH).norm() / larger).item()
    claim = "another teacher, another gradient: relative change"
    return Finding("teacher", claim, change, f"at least {TEACHER_LIMIT:g}", change >= TEACHER_LIMIT)


def _shift(bench: _Bench) -> Finding:
    moved = bench.measure(bench.student_NH.roll(1, dims=0), bench.student_head)
    claim = "student as its own teacher, moved by one position: divergence"
    return Finding("shift", claim, moved.mean, f"at least {SHIFT_LIMIT_NATS:g}", moved.mean >= SHIFT_LIMIT_NATS)


def _engine(written_N: Tensor, readings: Readings) -> Finding:
    gap = (written_N - readings.student_logp_N.double().cpu()).abs().max().item()
    claim = "log-probability when written against when trained: largest gap, nats"
    return Finding("engine", claim, gap, f"at most {ENGINE_LIMIT_NATS:g}", gap <= ENGINE_LIMIT_NATS)
