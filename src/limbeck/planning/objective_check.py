"""The objective check: measurements on the user's own models which show that the objective is the one of the recipe.

    self        the student as its own teacher has divergence 0 and no gradient
    fused       the chunked function equals the plain definition, value and gradient
    teacher     another teacher signal gives another gradient, so the teacher is really used
    shift       the student as its own teacher, shifted by one position, diverges, so the zero above is not trivial
    engine      the log-probabilities of generated tokens are those of the training pass

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
from limbeck.planning import messages
from limbeck.rollouts.engine import Engine
from limbeck.rollouts.sampling import Sampling

__all__ = ["Finding", "certify"]

NUM_PROMPTS = 4
NUM_NEW_TOKENS = 12
# The claim of each line, and the limit of its number.
CLAIMS = {
    "self": (messages.claim_self, "at most", 1e-5),
    "fused": (messages.claim_fused, "at most", 1e-5),
    "teacher": (messages.claim_teacher, "at least", 0.01),
    "shift": (messages.claim_shift, "at least", 1e-3),
    "engine": (messages.claim_engine, "at most", 1e-3),
}


@dataclass(frozen=True)
class Finding:
    """One line of the objective check: what was measured, the number, and its limit."""

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
    """Check the objective on a few short answers that the student generates. Weights are not changed."""
    chosen = prompts[:NUM_PROMPTS]
    answers = answer_prompts(engine, chosen, max_new_tokens=NUM_NEW_TOKENS, sampling=Sampling())
    ids = [prompt.ids for prompt in chosen], [answer.ids for answer in answers]
    batch = collate(*ids, pad_id=engine.pad_id, device=student.device)
    with torch.no_grad():
        student_NH, teacher_NH = student.completion_hidden(batch), teacher.completion_hidden(batch)
    generated_N = torch.tensor([logprob for answer in answers for logprob in answer.logprobs], dtype=torch.float64)
    bench = _Bench(batch, student_NH, _frozen(student.head), objective, chunk_tokens)
    true, plain = bench.measure(teacher_NH, teacher.head), bench.measure_plainly(teacher_NH, teacher.head)
    own = bench.measure(student_NH, bench.head)
    # shifted by one position, the teacher's distributions are another teacher, and the student's are not its own
    other = bench.measure(teacher_NH.roll(1, dims=0), teacher.head)
    moved = bench.measure(student_NH.roll(1, dims=0), bench.head)
    assert true.readings is not None
    measured = {
        "self": max(own.mean.abs().item(), own.gradient_NH.norm().item()),
        "fused": max(_gap(plain.mean, true.mean), _gap(plain.gradient_NH, true.gradient_NH)),
        "teacher": _gap(true.gradient_NH, other.gradient_NH),
        "shift": moved.mean.item(),
        "engine": (generated_N - true.readings.student_logp_N.double().cpu()).abs().max().item(),
    }
    return [_finding(name, value) for name, value in measured.items()]


@dataclass(frozen=True)
class _Measured:
    mean: Tensor
    gradient_NH: Tensor
    readings: TokenStatistics | None = None


@dataclass(frozen=True)
class _Bench:
    """A fixed text and student, to be measured with different teachers."""

    batch: TokenBatch
    student_NH: Tensor
    head: Head
    objective: Objective
    chunk_tokens: int

    def measure(self, teacher_NH: Tensor, teacher_head: Head) -> _Measured:
        """The objective as a run computes it."""
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
        """The objective by its definition, on whole logits."""
        hidden_NH = self.student_NH.clone().requires_grad_()
        mean = objective_per_token(self.objective, self.head.logits(hidden_NH), teacher_head.logits(teacher_NH)).mean()
        return _Measured(mean.detach(), torch.autograd.grad(mean, hidden_NH)[0])


def _frozen(head: Head) -> Head:
    """The head without gradient, so that the check leaves none on the student's weights."""
    bias_V = None if head.bias_V is None else head.bias_V.detach()
    return replace(head, weight_VH=head.weight_VH.detach(), bias_V=bias_V)


def _gap(one: Tensor, other: Tensor) -> float:
    """The distance of two tensors, relative to the longer one."""
    return ((one - other).norm() / torch.maximum(one.norm(), other.norm()).clamp(min=1e-30)).item()


def _finding(name: str, value: float) -> Finding:
    claim, bound, limit = CLAIMS[name]
    passed = value <= limit if bound == "at most" else value >= limit
    return Finding(name, claim(), value, f"{bound} {limit:g}", passed)
