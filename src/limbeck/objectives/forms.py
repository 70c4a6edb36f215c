"""The arithmetic of the divergences: values per token and gradients with respect to the student's logits, in nats.

The gradient is in closed form: autograd through the precise form of the value would lose its precision, and would give
NaN for logits of -inf.

Notation, at one position: p teacher, q student, both after the temperature; d = log q - log p; b = beta.

    forward KL   KL(p‖q) = Σ p (expm1(d) - d)                       gradient   q - p
    reverse KL   KL(q‖p) = Σ q (expm1(-d) + d)                      gradient   q (d - KL(q‖p))
    between      m = b p + (1-b) q
                 D_b = b KL(p‖m) + (1-b) KL(q‖m)                    gradient   (1-b) q (log(q/m) - KL(q‖m))

Every term of these sums is non-negative, so nothing cancels across the vocabulary. A single term still cancels
when d is small (it is about p d²/2); there its power series in d is used. An error in a log normaliser shifts
all d equally, and has only a quadratic effect on these forms.

Axes: N flat positions, V vocabulary. A one at the end of a name (N1) is an axis of size one.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from limbeck.objectives.objective import Objective

__all__ = ["FLOOR_NATS", "direct_value_and_gradient", "precise_value_and_gradient"]

# A logit this many nats (after the temperature) below the largest of its row counts as impossible, like -inf. It is
# far below where exp() underflows in float64, so probabilities do not change; it only keeps log-ratios finite.
FLOOR_NATS = 1e4

# Below this |d| the power series replaces the direct term. The series' ratio is at most |d|/π (nearest singularity of
# log(b + (1-b) e^d)), so five terms reach 3e-9 and nine reach 5e-16; above it the direct term loses at most
# 2/|d| = 32 units of rounding.
SERIES_REACH = 1 / 16
SERIES_TERMS = {torch.float32: 5, torch.float64: 9}

# Between the ends, log-ratios are clamped to this before exp(): beyond it, one probability is at most e^-80 of the
# other, which changes neither value nor gradient at any precision, and e^80 does not overflow float32.
LARGEST_LOG_RATIO = 80.0


class Normalised(NamedTuple):
    floored_NV: Tensor  # the logits, none below the floor of its row
    largest_N1: Tensor  # the largest of each row
    probabilities_NV: Tensor  # softmax(logits / temperature)
    log_total_N1: Tensor  # logsumexp((logits - largest) / temperature)


def precise_value_and_gradient(
    objective: Objective, student_NV: Tensor, teacher_NV: Tensor, want_gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """Value [N] and gradient [N, V] from logits, float32 or wider; precise for small and for large differences."""
    temperature = objective.temperature
    student, teacher = (_normalise(logits_NV, temperature) for logits_NV in (student_NV, teacher_NV))
    # Subtract the logits, not two log-softmaxes: nearly equal logits subtract exactly.
    d_NV = student.floored_NV - teacher.floored_NV
    if temperature != 1:
        d_NV.div_(temperature)
    # Likewise for the log normalisers: first their large parts, then their small ones.
    d_NV.sub_((student.largest_N1 - teacher.largest_N1) / temperature + (student.log_total_N1 - teacher.log_total_N1))
    p_NV, q_NV = teacher.probabilities_NV, student.probabilities_NV

    near_NV = d_NV.clamp(-SERIES_REACH, SERIES_REACH)
    is_far_NV = (d_NV - near_NV).sign_().abs_()  # 0 or 1, for lerp_: much faster than torch.where on a CPU
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

    if gradient_NV is not None and forward_weight:
        # A floored logit is a constant: factor 0, all others 1. (Without forward KL, the gradient is 0 there anyway.)
        gradient_NV.mul_((student_NV - student.floored_NV).sign_().add_(1))
    return _scaled(objective, value_N, gradient_NV)


def direct_value_and_gradient(
    objective: Objective, logq_NV: Tensor, logp_NV: Tensor, want_gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """The same from log-probabilities (after the temperature) by the direct formulas, in few passes over memory.

    Where the two models nearly agree, rounding errors of the log-probabilities dominate the result.
    """
    w = _forward_weight(objective)
    d_NV, q_NV = logq_NV - logp_NV, logq_NV.exp()
    if w is None:
        terms_NV, gradient_NV = _between(logp_NV.exp(), q_NV, d_NV, objective.beta, want_gradient)
        return _scaled(objective, terms_NV.sum(-1), gradient_NV)
    value_N, gradient_NV = torch.zeros_like(d_NV[:, 0]), None
    if w < 1:
        gradient_NV = q_NV * d_NV
        reverse_N = gradient_NV.sum(-1)
        if want_gradient:
            gradient_NV.addcmul_(q_NV, reverse_N.unsqueeze(1), value=-1)
        value_N.add_(reverse_N, alpha=1 - w)
    if w > 0:
        p_NV = logp_NV.exp()
        value_N.sub_(d_NV.mul_(p_NV).sum(-1), alpha=w)
        forward_NV = q_NV.sub_(p_NV)
        gradient_NV = forward_NV if gradient_NV is None else gradient_NV.lerp_(forward_NV, w)
    return _scaled(objective, value_N, gradient_NV if want_gradient else None)


def _scaled(objective: Objective, value_N: Tensor, gradient_NV: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """From the unit scale, and a gradient with respect to logits / temperature, to the objective's own scale."""
    temperature = objective.temperature
    between = _forward_weight(objective) is None
    factor = objective.beta * (1 - objective.beta) if between and objective.scale == "gkd" else 1.0
    factor *= temperature**2 if objective.kind == "soft_targets" else 1.0
    if factor != 1:
        value_N.mul_(factor)
    if gradient_NV is not None and factor != temperature:
        gradient_NV.mul_(factor / temperature)
    return value_N, gradient_NV


def _mixed_kl(p_NV: Tensor, q_NV: Tensor, d_NV: Tensor, forward_weight: float) -> Tensor:
    """Terms w (q - p - p d) + (1-w) (q d - q + p) of the two KLs, accurate for |d| above SERIES_REACH."""
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
    # q - p = p expm1(d) where the two are close. Then the sum over the vocabulary is corrected to zero, which removes
    # the error of the normalisers.
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
    """Terms of D_b / (b (1-b)), accurate for |d| above SERIES_REACH, and the whole gradient.

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
    """Floor the logits (float32 or wider) and compute their softmax. A row that is not finite becomes NaN."""
    largest_N1 = logits_NV.amax(-1, keepdim=True)
    floored_NV = torch.maximum(logits_NV, largest_N1 - FLOOR_NATS * temperature)
    weights_NV = floored_NV - largest_N1
    if temperature != 1:
        weights_NV.div_(temperature)
    total_N1 = weights_NV.exp_().sum(-1, keepdim=True)
    return Normalised(floored_NV, largest_N1, weights_NV.div_(total_N1), total_N1.log())


def _forward_weight(objective: Objective) -> float | None:
    """The weight of the forward KL if the objective is a sum of the two KLs, None if it lies between the ends."""
    if objective.kind == "kl_mix":
        return objective.forward_weight
    if objective.kind == "soft_targets" or objective.beta == 0:
        return 1.0
    return 0.0 if objective.beta == 1 else None


@lru_cache(maxsize=64)
def _series(objective: Objective, num_terms: int) -> tuple[float, ...]:
    """Coefficients of d^2, d^3, … of one term divided by p, in the unit scale.

    With x = expm1(d) the term between the ends is [(1-b) ψ(x) - ψ((1-b) x)] / (b (1-b)), ψ(x) = (1+x) log(1+x) - x, so
    its coefficient of (-x)^k is S_k / (k (k-1)) with S_k = 1 + (1-b) + … + (1-b)^(k-2), which never cancels and has
    the two KLs as its ends. Then the series of expm1 is substituted for x.
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
