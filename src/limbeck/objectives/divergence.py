"""Divergences between a student's and a teacher's next-token distribution: per token, unreduced, in nats.

The arithmetic exists once, in `value_and_gradient`; the dense functions here, the top-k form and the fused form
all call it. It returns the value and, in closed form, its gradient with respect to the student's logits. The
gradient is written down instead of left to autograd because autograd through the stable value form would lose
what the form gains and would give NaN for logits of -inf.

Notation, at one position: p teacher, q student, both after the temperature; d = log q - log p; b = beta.

    forward KL   KL(p‖q) = Σ p (expm1(d) - d)                       gradient   q - p
    reverse KL   KL(q‖p) = Σ q (expm1(-d) + d)                      gradient   q (d - KL(q‖p))
    between      m = b p + (1-b) q
                 D_b = b KL(p‖m) + (1-b) KL(q‖m)                    gradient   (1-b) q (log(q/m) - KL(q‖m))

Every term of these sums is non-negative, so nothing cancels across the vocabulary. A single term still cancels
when d is small (it is about p d²/2), so there its power series in d is used. An error in a log normaliser shifts
all d alike, and enters these forms only squared.

Sources: D_b is the generalized Jensen-Shannon divergence of GKD (Agarwal et al., arXiv 2306.13649, eq. 1, with beta on
the teacher); soft targets are Hinton et al., arXiv 1503.02531, section 2.

Axes: N flat positions, V vocabulary. A one at the end of a name (N1) is a kept axis of size one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from limbeck.errors import UsageError, VocabularyMismatch
from limbeck.objectives.objective import Objective, Scale

__all__ = [
    "Normalised",
    "Objective",
    "Scale",
    "attach_gradient",
    "compute_dtype",
    "divergence",
    "evaluate",
    "kl_mix",
    "soft_targets",
    "value_and_gradient",
]

# A logit this many nats (after the temperature) below the largest of its row counts as impossible, like -inf. It is
# far below where exp() reaches zero in float64, so probabilities do not change; it only keeps log-ratios finite.
FLOOR_NATS = 1e4

# Below this |d| the power series replaces the direct term. The series' ratio is at most |d|/π (nearest singularity of
# log(b + (1-b) e^d)), so five terms reach 3e-9 and nine reach 5e-16; above it the direct term loses at most
# 2/|d| = 32 units of rounding.
SERIES_REACH = 1 / 16
SERIES_TERMS = {torch.float32: 5, torch.float64: 9}

# Between the ends, log-ratios are clamped here before exp(): what lies beyond has at most e^-80 of the probability of
# the other side, which changes neither value nor gradient at any precision, and e^80 does not overflow float32.
LARGEST_LOG_RATIO = 80.0

# On a CPU the rows are worked through in blocks, so that temporaries stay in cache. Several threads wait for each other
# after every operation, which is slow where other programs hold the cores; they get larger blocks (for each thread).
CPU_BLOCK_ELEMENTS = 1 << 18
CPU_BLOCK_ELEMENTS_THREADED = 1 << 20


class Normalised(NamedTuple):
    floored_NV: Tensor  # the logits, none below the floor of its row
    largest_N1: Tensor  # the largest of each row
    probabilities_NV: Tensor  # softmax(logits / temperature)
    log_total_N1: Tensor  # logsumexp((logits - largest) / temperature)


# Called for a block of rows with both sides at temperature 1; may read but not change them.
Observer = Callable[[slice, Normalised, Normalised], None]


def divergence(
    student_logits: Tensor, teacher_logits: Tensor, beta: float, *, scale: Scale = "gkd", temperature: float = 1.0
) -> Tensor:
    """Generalized Jensen-Shannon divergence of each token, in nats.

        m = beta·teacher + (1-beta)·student
        D = beta·KL(teacher‖m) + (1-beta)·KL(student‖m)          0 < beta < 1
        D = KL(teacher‖student) at beta 0,  KL(student‖teacher) at beta 1

    Args:
        student_logits: [..., V], any floating type; half types are computed in float32, float64 stays float64.
        teacher_logits: the same shape; never gets a gradient.
        beta: 0 covers everything the teacher might say, 1 commits to what it likes most.
        scale: "gkd" gives D as written (GKD, arXiv 2306.13649); "unit" divides by beta(1-beta) between the ends,
            which makes the value continuous in beta with the same curvature everywhere.
        temperature: divides both logits before the softmax. No factor T² here.

    Returns:
        [...], unreduced and unmasked, float32 or wider; empty in, empty out. A logit of -inf (or 1e4 nats below the
        largest) counts as that far below it and, being a constant, gets no gradient. NaN, +inf or a row of nothing
        but -inf gives NaN for its token. Differentiable once.

    Raises:
        UsageError, VocabularyMismatch (both ValueError): a setting out of range, or shapes that differ.
    """
    return evaluate(Objective(beta=beta, scale=scale, temperature=temperature), student_logits, teacher_logits)


def kl_mix(student_logits: Tensor, teacher_logits: Tensor, weight: float, *, temperature: float = 1.0) -> Tensor:
    """weight·KL(teacher‖student) + (1-weight)·KL(student‖teacher) of each token, in nats.

    The only mixed objective whose gradient reaches a token the student thinks impossible. Shapes, types, -inf and
    errors as in `divergence`.
    """
    objective = Objective(kind="kl_mix", forward_weight=weight, temperature=temperature)
    return evaluate(objective, student_logits, teacher_logits)


def soft_targets(student_logits: Tensor, teacher_logits: Tensor, temperature: float) -> Tensor:
    """T²·KL(teacher_T‖student_T) of each token, in nats, with both logits divided by T = temperature.

    T² keeps the size of the gradient, T·(student_T - teacher_T), about the same for every T (arXiv 1503.02531,
    section 2). Shapes, types, -inf and errors as in `divergence`.
    """
    return evaluate(Objective(kind="soft_targets", temperature=temperature), student_logits, teacher_logits)


def evaluate(objective: Objective, student_logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """The objective of each token: logits [..., V] to nats [...], with a gradient to the student alone."""
    _require_same_shape(student_logits, teacher_logits)
    leading, num_vocabulary = student_logits.shape[:-1], student_logits.shape[-1]
    want_gradient = torch.is_grad_enabled() and student_logits.requires_grad
    value_N, gradient_NV = value_and_gradient(
        objective,
        student_logits.detach().reshape(-1, num_vocabulary),
        teacher_logits.detach().reshape(-1, num_vocabulary),
        want_gradient,
    )
    value = value_N.reshape(leading)
    if gradient_NV is None:
        return value
    return attach_gradient(value, (student_logits, gradient_NV.reshape(student_logits.shape)))


@torch.no_grad()
def value_and_gradient(
    objective: Objective,
    student_logits_NV: Tensor,
    teacher_logits_NV: Tensor,
    want_gradient: bool,
    *,
    out_NV: Tensor | None = None,
    observe: Observer | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The objective of each row, and its gradient with respect to the student's logits (None unless wanted).

    `out_NV` receives the gradient; it may be one of the two logit tensors, which is then overwritten. `observe` sees
    the softmaxes that are computed on the way. Both results are float32, or float64 if one of the logits is.
    """
    dtype = compute_dtype(student_logits_NV, teacher_logits_NV)
    value_N = torch.empty(student_logits_NV.shape[0], dtype=dtype, device=student_logits_NV.device)
    gradient_NV = None
    if want_gradient:
        gradient_NV = torch.empty_like(student_logits_NV, dtype=dtype) if out_NV is None else out_NV
    for rows in _row_blocks(student_logits_NV):
        student_NV, teacher_NV = student_logits_NV[rows].to(dtype), teacher_logits_NV[rows].to(dtype)
        student, teacher = (_normalise(logits_NV, objective.temperature) for logits_NV in (student_NV, teacher_NV))
        if observe is not None:
            plain = objective.temperature == 1
            observe(
                rows, student if plain else _normalise(student_NV, 1), teacher if plain else _normalise(teacher_NV, 1)
            )
        value_N[rows], block_NV = _value_and_gradient_of_block(objective, student, teacher, want_gradient)
        if block_NV is not None and _forward_weight(objective):
            # A floored logit is a constant: factor 0, and 1 for all others. (Without forward KL it is 0 there anyway.)
            block_NV.mul_((student_NV - student.floored_NV).sign_().add_(1))
        if gradient_NV is not None and block_NV is not None:
            gradient_NV[rows] = block_NV
    return value_N, gradient_NV


def _value_and_gradient_of_block(
    objective: Objective, student: Normalised, teacher: Normalised, want_gradient: bool
) -> tuple[Tensor, Tensor | None]:
    temperature = objective.temperature
    # From the difference of the logits, not of two log-softmaxes: near-equal logits subtract exactly.
    d_NV = student.floored_NV - teacher.floored_NV
    if temperature != 1:
        d_NV.div_(temperature)
    # The log normalisers likewise: their large parts first, their small parts then.
    d_NV.sub_((student.largest_N1 - teacher.largest_N1) / temperature + (student.log_total_N1 - teacher.log_total_N1))
    p_NV, q_NV = teacher.probabilities_NV, student.probabilities_NV

    near_NV = d_NV.clamp(-SERIES_REACH, SERIES_REACH)
    is_far_NV = (d_NV - near_NV).sign_().abs_()  # 0 or 1, for lerp_: on a CPU many times faster than torch.where
    forward_weight = _forward_weight(objective)
    if forward_weight is None:
        terms_NV, gradient_NV = _between(p_NV, q_NV, d_NV, objective.beta, want_gradient)
    else:
        terms_NV = _mixed_kl(p_NV, q_NV, d_NV, forward_weight)
        gradient_NV = None
        if want_gradient:
            gradient_NV = _gradient_of_mixed_kl(p_NV, q_NV, d_NV, near_NV, is_far_NV, forward_weight)
    near_terms_NV = _polynomial(_series(objective, SERIES_TERMS[d_NV.dtype]), near_NV)
    near_terms_NV.mul_(near_NV).mul_(near_NV).mul_(p_NV)
    value_N = near_terms_NV.lerp_(terms_NV, is_far_NV).sum(-1)

    # Both terms are in the unit scale and, for the gradient, with respect to logits / temperature.
    factor = objective.beta * (1 - objective.beta) if forward_weight is None and objective.scale == "gkd" else 1.0
    factor *= temperature**2 if objective.kind == "soft_targets" else 1.0
    if factor != 1:
        value_N.mul_(factor)
    if gradient_NV is not None and factor != temperature:
        gradient_NV.mul_(factor / temperature)
    return value_N, gradient_NV


def _mixed_kl(p_NV: Tensor, q_NV: Tensor, d_NV: Tensor, forward_weight: float) -> Tensor:
    """Terms w (q - p - p d) + (1-w) (q d - q + p) of the two KLs, good for |d| above the series' reach."""
    w = forward_weight
    if w == 0:
        return (q_NV * d_NV).sub_(q_NV).add_(p_NV)
    if w == 1:
        return (p_NV * d_NV).add_(p_NV).neg_().add_(q_NV)
    return (q_NV * (1 - w)).sub_(p_NV, alpha=w).mul_(d_NV).add_(q_NV, alpha=2 * w - 1).sub_(p_NV, alpha=2 * w - 1)


def _gradient_of_mixed_kl(
    p_NV: Tensor, q_NV: Tensor, d_NV: Tensor, near_NV: Tensor, is_far_NV: Tensor, forward_weight: float
) -> Tensor:
    """w (q - p) + (1-w) q (d - KL(q‖p)), precise for every d."""
    w = forward_weight
    if w == 0:
        return (d_NV - (q_NV * d_NV).sum(-1, keepdim=True)).mul_(q_NV)
    # q - p = p expm1(d) where the two are close. Then the sum over the vocabulary is brought back to zero, which takes
    # out again what an error of the normalisers puts in.
    num_terms = SERIES_TERMS[d_NV.dtype]
    expm1 = tuple(1 / math.factorial(power) for power in range(1, num_terms + 1))
    forward_NV = _polynomial(expm1, near_NV).mul_(near_NV).mul_(p_NV).lerp_(q_NV - p_NV, is_far_NV)
    forward_NV.addcmul_(q_NV, forward_NV.sum(-1, keepdim=True), value=-1)
    if w == 1:
        return forward_NV
    return _gradient_of_mixed_kl(p_NV, q_NV, d_NV, near_NV, is_far_NV, 0.0).lerp_(forward_NV, w)


def _between(
    p_NV: Tensor, q_NV: Tensor, d_NV: Tensor, beta: float, want_gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """Terms of D_b / (b (1-b)), good for |d| above the series' reach, and the whole gradient.

    Each term is p log(p/m)/(1-b) + q log(q/m)/b. Of the two logarithms, which differ by d, the one divided by the
    smaller number is computed first, from expm1 and log1p; it stays precise however small that number is.
    """
    d_NV = d_NV.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)
    if beta <= 0.5:
        log_m_over_q_NV = (-d_NV).expm1_().mul_(beta).log1p_()
        log_m_over_p_NV = d_NV.add_(log_m_over_q_NV)
    else:
        log_m_over_p_NV = d_NV.expm1().mul_(1 - beta).log1p_()
        log_m_over_q_NV = d_NV.neg_().add_(log_m_over_p_NV)
    weighted_NV = log_m_over_q_NV.mul_(q_NV).mul_(-1 / beta)
    terms_NV = log_m_over_p_NV.mul_(p_NV).mul_(-1 / (1 - beta)).add_(weighted_NV)
    if not want_gradient:
        return terms_NV, None
    return terms_NV, weighted_NV.addcmul_(q_NV, weighted_NV.sum(-1, keepdim=True), value=-1)


def _normalise(logits_NV: Tensor, temperature: float) -> Normalised:
    """Floor the logits (float32 or wider) and take their softmax. Not finite in, NaN out, for that row."""
    largest_N1 = logits_NV.amax(-1, keepdim=True)
    floored_NV = torch.maximum(logits_NV, largest_N1 - FLOOR_NATS * temperature)
    weights_NV = floored_NV - largest_N1
    if temperature != 1:
        weights_NV.div_(temperature)
    total_N1 = weights_NV.exp_().sum(-1, keepdim=True)
    return Normalised(floored_NV, largest_N1, weights_NV.div_(total_N1), total_N1.log())


def _forward_weight(objective: Objective) -> float | None:
    """Share of the forward KL where the objective is a sum of the two KLs, None where it lies between the ends."""
    if objective.kind == "kl_mix":
        return objective.forward_weight
    if objective.kind == "soft_targets" or objective.beta == 0:
        return 1.0
    return 0.0 if objective.beta == 1 else None


@lru_cache(maxsize=64)
def _series(objective: Objective, num_terms: int) -> tuple[float, ...]:
    """Coefficients of d^2, d^3, … of one term divided by p, in the unit scale.

    With x = expm1(d) the term between the ends is [(1-b) ψ(x) - ψ((1-b) x)] / (b (1-b)), ψ(x) = (1+x) log(1+x) - x, so
    its coefficient of (-x)^k is S_k / (k (k-1)) with S_k = 1 + (1-b) + … + (1-b)^(k-2), which nowhere cancels and has
    the two KLs as its ends. Then the series of expm1 is put in for x.
    """
    w = _forward_weight(objective)
    highest = num_terms + 1
    in_x = [0.0, 0.0]
    for k in range(2, highest + 1):
        geometric = sum((1 - objective.beta) ** j for j in range(k - 1)) if w is None else w * (k - 1) + (1 - w)
        in_x.append((-1) ** k * geometric / (k * (k - 1)))
    in_d = [0.0] * (highest + 1)
    for coefficient in reversed(in_x):  # Horner, in polynomials of d cut at the highest power
        product = [0.0] * (highest + 1)
        for power, value in enumerate(in_d):
            for k in range(1, highest + 1 - power):
                product[power + k] += value / math.factorial(k)
        product[0] += coefficient
        in_d = product
    return tuple(in_d[2:])


def _polynomial(coefficients: tuple[float, ...], x_NV: Tensor) -> Tensor:
    result_NV = x_NV * coefficients[-1]
    for coefficient in coefficients[-2:0:-1]:
        result_NV.add_(coefficient).mul_(x_NV)
    return result_NV.add_(coefficients[0])


class _AttachGradient(torch.autograd.Function):
    """Gives a value computed without autograd the gradients that were written down with it."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: tuple[Tensor, ...], *_inputs: Tensor) -> Tensor:
        ctx.save_for_backward(*gradients)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        if torch.is_grad_enabled():  # only under create_graph=True; the written gradient would count as a constant
            raise UsageError(
                "objective.second-derivative",
                given="A derivative of the divergence's gradient is asked for (create_graph=True).",
                needed="The gradient is written in the forward pass, so the divergence can be differentiated once.",
                fix="Call backward without create_graph.",
            )
        (grad_value,) = grad_outputs
        # Autograd casts each result to the type of its input.
        return (None, None, *(gradient * grad_value.unsqueeze(-1) for gradient in ctx.saved_tensors))


def attach_gradient(value: Tensor, *pairs: tuple[Tensor, Tensor]) -> Tensor:
    """`value` [...] as a function of its inputs: each pair is an input and d value / d input, of shape [..., X]."""
    return _AttachGradient.apply(value, tuple(gradient for _, gradient in pairs), *(tensor for tensor, _ in pairs))


def _row_blocks(logits_NV: Tensor) -> Iterator[slice]:
    """Slices over the rows: small ones on a CPU, where temporaries should stay in cache, one elsewhere."""
    num_rows, num_vocabulary = logits_NV.shape
    step = max(1, num_rows)
    if logits_NV.device.type == "cpu":
        num_threads = torch.get_num_threads()
        elements = CPU_BLOCK_ELEMENTS if num_threads == 1 else CPU_BLOCK_ELEMENTS_THREADED * num_threads
        step = max(1, elements // num_vocabulary)
    for start in range(0, num_rows, step):
        yield slice(start, min(start + step, num_rows))


def compute_dtype(*tensors: Tensor) -> torch.dtype:
    """float32, or float64 if one of the tensors is."""
    return torch.float64 if any(tensor.dtype == torch.float64 for tensor in tensors) else torch.float32


def _require_same_shape(student_logits: Tensor, teacher_logits: Tensor) -> None:
    student_shape, teacher_shape = list(student_logits.shape), list(teacher_logits.shape)
    if not (student_logits.is_floating_point() and teacher_logits.is_floating_point()):
        raise UsageError(
            "objective.logits-type",
            given=f"The logits have the types {student_logits.dtype} and {teacher_logits.dtype}.",
            needed="Logits are floating-point numbers.",
            fix="Pass what the output heads return, not token ids.",
        )
    if not student_shape or not teacher_shape or student_shape[:-1] != teacher_shape[:-1]:
        raise UsageError(
            "objective.shape",
            given=f"The student's logits have the shape {student_shape}, the teacher's {teacher_shape}.",
            needed="Both need the same leading shape and the vocabulary last: position by position the same text.",
            fix="Take both at the same positions of the same tokens.",
        )
    if student_shape[-1] != teacher_shape[-1] or student_shape[-1] == 0:
        raise VocabularyMismatch(
            "objective.vocabulary-size",
            given=f"The student's logits have {student_shape[-1]} columns, the teacher's {teacher_shape[-1]}.",
            needed="The last axis is the vocabulary the two share, one column a token.",
            fix="Cut both to the shared real vocabulary before the divergence: padded rows differ within one family.",
        )
