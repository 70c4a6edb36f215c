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
from limbeck.data.prompt import Prompt
from limbeck.evaluation.answering.answers import answer_prompts
from limbeck.models.language_model import LanguageModel
from limbeck.objectives.divergence import Objective, objective_per_token
from limbeck.objectives.fused import Head, TokenStatistics, fused_with_statistics
from limbeck.objectives.reduce import token_weights
from limbeck.rollouts.engine import Engine
from limbeck.rollouts.sampling import Sampling

__all__ = ["Finding", "certify"]

NUM_PROMPTS = 4
NUM_NEW_TOKENS = 12
# What each line says, and which numbers are good.
CLAIMS = {
    "self": ("student as its own teacher: divergence and gradient", "at most", 1e-5),
    "fused": ("fused against plain definition: relative gap of value and gradient", "at most", 1e-5),
    "teacher": ("another teacher, another gradient: relative change", "at least", 0.01),
    "shift": ("student as its own teacher, moved by one position: divergence", "at least", 1e-3),
    "engine": ("log-probability when written against when trained: largest gap, nats", "at most", 1e-3),
}


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
    ids = [prompt.ids for prompt in chosen], [answer.ids for answer in answers]
    batch = collate(*ids, pad_id=engine.pad_id, device=student.device)
    with torch.no_grad():
        student_NH, teacher_NH = student.completion_hidden(batch), teacher.completion_hidden(batch)
    written_N = torch.tensor([logprob for answer in answers for logprob in answer.logprobs], dtype=torch.float64)
    bench = _Bench(batch, student_NH, _frozen(student.head), objective, chunk_tokens)
    true, plain = bench.measure(teacher_NH, teacher.head), bench.measure_plainly(teacher_NH, teacher.head)
    own = bench.measure(student_NH, bench.head)
    # dealt to other positions, the teacher's distributions are another teacher, and the student's are not its own
    other = bench.measure(teacher_NH.roll(1, dims=0), teacher.head)
    moved = bench.measure(student_NH.roll(1, dims=0), bench.head)
    assert true.readings is not None
    measured = {
        "self": max(own.mean.abs().item(), own.gradient_NH.norm().item()),
        "fused": max(_gap(plain.mean, true.mean), _gap(plain.gradient_NH, true.gradient_NH)),
        "teacher": _gap(true.gradient_NH, other.gradient_NH),
        "shift": moved.mean.item(),
        "engine": (written_N - true.readings.student_logp_N.double().cpu()).abs().max().item(),
    }
    return [_finding(name, value) for name, value in measured.items()]


@dataclass(frozen=True)
class _Measured:
    mean: Tensor
    gradient_NH: Tensor
    readings: TokenStatistics | None = None


@dataclass(frozen=True)
class _Bench:
    """A fixed text and student; a teacher is put beside them."""

    batch: TokenBatch
    student_NH: Tensor
    head: Head
    objective: Objective
    chunk_tokens: int

    def measure(self, teacher_NH: Tensor, teacher_head: Head) -> _Measured:
        """As a run computes it."""
        hidden_NH, num_tokens = self.student_NH.clone().requires_grad_(), self.batch.num_tokens
        mean, readings = fused_with_statistics(
            hidden_NH,
            self.head,
            teacher_NH,
            teacher_head,
            token_weights(num_tokens, num_tokens, dtype=torch.float64, device=hidden_NH.device),
            self.objective,
            token_ids_N=self.batch.targets_N,
            chunk_tokens=self.chunk_tokens,
        )
        return _Measured(mean.detach(), torch.autograd.grad(mean, hidden_NH)[0], readings)

    def measure_plainly(self, teacher_NH: Tensor, teacher_head: Head) -> _Measured:
        """By the definition, on whole logits."""
        hidden_NH = self.student_NH.clone().requires_grad_()
        mean = objective_per_token(self.objective, self.head.logits(hidden_NH), teacher_head.logits(teacher_NH)).mean()
        return _Measured(mean.detach(), torch.autograd.grad(mean, hidden_NH)[0])


def _frozen(head: Head) -> Head:
    """The head without gradient, so that certifying leaves nothing on the student's weights."""
    bias_V = None if head.bias_V is None else head.bias_V.detach()
    return replace(head, weight_VH=head.weight_VH.detach(), bias_V=bias_V)


def _gap(one: Tensor, other: Tensor) -> float:
    """How far two tensors are apart, as a share of the longer."""
    return ((one - other).norm() / torch.maximum(one.norm(), other.norm()).clamp(min=1e-30)).item()


def _finding(name: str, value: float) -> Finding:
    claim, bound, limit = CLAIMS[name]
    passed = value <= limit if bound == "at most" else value >= limit
    return Finding(name, claim, value, f"{bound} {limit:g}", passed)
