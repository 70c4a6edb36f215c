"""Divergences between a student's and a teacher's next-token distribution: per token, unreduced, in nats.

The functions here, the top-k form and the fused form all call `value_and_gradient`, which returns the value and, in
closed form, its gradient with respect to the student's logits. The arithmetic is in `forms`: direct formulas for tokens
on which the models differ clearly, precise ones for all others.

Sources: D_b is the generalized Jensen-Shannon divergence of GKD (Agarwal et al., arXiv 2306.13649, eq. 1, with beta on
the teacher); soft targets are Hinton et al., arXiv 1503.02531, section 2.

Axes: N flat positions, V vocabulary, M rows selected from N. A one at the end of a name (N1) is an axis of size one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

import limbeck.objectives.messages as messages
from limbeck.objectives.forms import FLOOR_NATS, direct_value_and_gradient, precise_value_and_gradient
from limbeck.objectives.objective import Objective, Scale

__all__ = [
    "Objective",
    "Scale",
    "as_function_of",
    "attach_gradient",
    "compute_dtype",
    "divergence",
    "kl_mix",
    "objective_per_token",
    "soft_targets",
    "value_and_gradient",
]

# From this value on, in nats on any scale, the direct formulas are as accurate as the precise ones.
FAR_NATS = 0.1

# On a CPU, rows are processed in blocks of this many elements per thread, so that temporaries stay in cache.
CPU_BLOCK_ELEMENTS = 1 << 18


# Called for each block of rows with the log-probabilities of student and teacher at temperature 1, all finite; must not
# change them.
Observer = Callable[[slice, Tensor, Tensor], None]


def divergence(
    student_logits: Tensor, teacher_logits: Tensor, beta: float, *, scale: Scale = "gkd", temperature: float = 1.0
) -> Tensor:
    """Generalized Jensen-Shannon divergence of each token, in nats.

        m = beta·teacher + (1-beta)·student
        D = beta·KL(teacher‖m) + (1-beta)·KL(student‖m)          0 < beta < 1
        D = KL(teacher‖student) at beta 0,  KL(student‖teacher) at beta 1

    Args:
        student_logits: [..., V], any floating type; 16-bit types are computed in float32, float64 stays float64.
        teacher_logits: the same shape; never gets a gradient.
        beta: 0 (mode-covering) penalises missing what the teacher might say, 1 (mode-seeking) what it would not say.
        scale: "gkd" gives D as written (GKD, arXiv 2306.13649); "unit" divides by beta(1-beta) between the ends,
            which makes the value continuous in beta with the same curvature everywhere.
        temperature: divides both logits before the softmax. No factor T² here.

    Returns:
        [...], unreduced and unmasked, float32 or wider; empty in, empty out. A logit of -inf (or 1e4 nats below the
        largest) counts as that far below it and, being a constant, gets no gradient. NaN, +inf or a row of nothing
        but -inf gives NaN for its token. Differentiable once.

    Raises:
        UsageError, VocabularyMismatch (both ValueError): a setting out of range, or different shapes.
    """
    return objective_per_token(
        Objective(beta=beta, scale=scale, temperature=temperature), student_logits, teacher_logits
    )


def kl_mix(student_logits: Tensor, teacher_logits: Tensor, weight: float, *, temperature: float = 1.0) -> Tensor:
    """weight·KL(teacher‖student) + (1-weight)·KL(student‖teacher) of each token, in nats.

    The only mixed objective with a gradient on tokens to which the student gives no probability. Shapes, dtypes, -inf
    and errors as in `divergence`.
    """
    objective = Objective(kind="kl_mix", forward_weight=weight, temperature=temperature)
    return objective_per_token(objective, student_logits, teacher_logits)


def soft_targets(student_logits: Tensor, teacher_logits: Tensor, temperature: float) -> Tensor:
    """T²·KL(teacher_T‖student_T) of each token, in nats, with both logits divided by T = temperature.

    T² keeps the scale of the gradient, T·(student_T - teacher_T), about the same for every T (arXiv 1503.02531,
    section 2). Shapes, dtypes, -inf and errors as in `divergence`.
    """
    return objective_per_token(Objective(kind="soft_targets", temperature=temperature), student_logits, teacher_logits)


def objective_per_token(objective: Objective, student_logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """The objective of each token: logits [..., V] to nats [...], with a gradient to the student alone."""
    _require_same_shape(student_logits, teacher_logits)
    num_vocabulary = student_logits.shape[-1]
    want_gradient = torch.is_grad_enabled() and student_logits.requires_grad
    value_N, gradient_NV = value_and_gradient(
        objective,
        student_logits.detach().reshape(-1, num_vocabulary),
        teacher_logits.detach().reshape(-1, num_vocabulary),
        want_gradient,
    )
    return as_function_of(student_logits, value_N, gradient_NV)


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

    `out_NV` receives the gradient; it may be one of the two logit tensors, which is then overwritten. `observe` gets
    the log-softmaxes. Both results are float32, or float64 if one of the logits is.
    """
    dtype = compute_dtype(student_logits_NV, teacher_logits_NV)
    value_N = torch.empty(student_logits_NV.shape[0], dtype=dtype, device=student_logits_NV.device)
    gradient_NV = None
    if want_gradient:
        gradient_NV = torch.empty_like(student_logits_NV, dtype=dtype) if out_NV is None else out_NV
    for rows in _row_blocks(student_logits_NV):
        sides = (student_logits_NV[rows].to(dtype), teacher_logits_NV[rows].to(dtype))
        logps = None
        if observe is not None:
            logps = _log_softmax(sides, 1.0)
            observe(rows, *(_floored(logp_NV) for logp_NV in logps))
        if value_N.is_cpu:
            if logps is None or objective.temperature != 1:
                logps = _log_softmax(sides, objective.temperature)
            value_N[rows], block_NV = _directly_where_far(objective, sides, logps, want_gradient)
        else:  # selecting rows would synchronise the device
            value_N[rows], block_NV = precise_value_and_gradient(objective, *sides, want_gradient)
        if gradient_NV is not None and block_NV is not None:
            gradient_NV[rows] = block_NV
    return value_N, gradient_NV


def _directly_where_far(
    objective: Objective, sides: tuple[Tensor, Tensor], tempered: tuple[Tensor, Tensor], want_gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """The direct formulas for rows with a large divergence, the precise forms for all others.

    `sides` are the logits, `tempered` the log-probabilities after the objective's temperature.

    Log-probabilities of size 20 have an error of about 2e-6 in float32, which is negligible from FAR_NATS on. Rows with
    a logit at the floor, or one that is not finite, also use the precise forms.
    """
    logq_NV, logp_NV = tempered
    usual_N = torch.minimum(logq_NV.amin(-1), logp_NV.amin(-1)) >= -FLOOR_NATS
    value_N, gradient_NV = direct_value_and_gradient(objective, logq_NV, logp_NV, want_gradient)
    rest_M = (~(usual_N & (value_N >= FAR_NATS))).nonzero().squeeze(1)
    if len(rest_M):
        student_MV, teacher_MV = (logits_NV[rest_M] for logits_NV in sides)
        value_N[rest_M], rest_NV = precise_value_and_gradient(objective, student_MV, teacher_MV, want_gradient)
        if gradient_NV is not None and rest_NV is not None:
            gradient_NV[rest_M] = rest_NV
    return value_N, gradient_NV


def _log_softmax(sides: tuple[Tensor, Tensor], temperature: float) -> tuple[Tensor, Tensor]:
    student_NV, teacher_NV = sides if temperature == 1 else (logits_NV / temperature for logits_NV in sides)
    return student_NV.log_softmax(-1), teacher_NV.log_softmax(-1)


def _floored(logp_NV: Tensor) -> Tensor:
    if logp_NV.is_cpu and logp_NV.amin() >= -FLOOR_NATS:
        return logp_NV
    return logp_NV.clamp(min=-FLOOR_NATS)


class _AttachGradient(torch.autograd.Function):
    """Attaches gradients that were computed with a value, without autograd."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: tuple[Tensor, ...], *_inputs: Tensor) -> Tensor:
        ctx.save_for_backward(*gradients)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        if torch.is_grad_enabled():  # only under create_graph=True; the written gradient would count as a constant
            raise messages.second_derivative()
        (grad_value,) = grad_outputs
        if grad_value.is_cpu and grad_value.ndim == 0 and grad_value == 1:
            return (None, None, *ctx.saved_tensors)  # as in loss.backward(); a head's gradient is not copied for it
        # Autograd casts each result to the type of its input.
        return (None, None, *(gradient * grad_value.unsqueeze(-1) for gradient in ctx.saved_tensors))


def attach_gradient(value: Tensor, *pairs: tuple[Tensor, Tensor]) -> Tensor:
    """`value` [...] as a function of its inputs: each pair is an input and d value / d input, of shape [..., X]."""
    return _AttachGradient.apply(value, tuple(gradient for _, gradient in pairs), *(tensor for tensor, _ in pairs))


def as_function_of(student_logits: Tensor, value_N: Tensor, gradient_NV: Tensor | None) -> Tensor:
    """The values [N] in the shape [...] of the logits [..., V], with the gradient attached if there is one."""
    value = value_N.reshape(student_logits.shape[:-1])
    if gradient_NV is None:
        return value
    return attach_gradient(value, (student_logits, gradient_NV.reshape(student_logits.shape)))


def _row_blocks(logits_NV: Tensor) -> Iterator[slice]:
    """Slices over the rows: small ones on a CPU, so that temporaries stay in cache; a single one elsewhere."""
    num_rows, num_vocabulary = logits_NV.shape
    step = max(1, num_rows)
    if logits_NV.is_cpu:
        step = max(1, CPU_BLOCK_ELEMENTS * torch.get_num_threads() // num_vocabulary)
    for start in range(0, num_rows, step):
        yield slice(start, min(start + step, num_rows))


def compute_dtype(*tensors: Tensor) -> torch.dtype:
    """float32, or float64 if one of the tensors is."""
    return torch.float64 if any(tensor.dtype == torch.float64 for tensor in tensors) else torch.float32


def _require_same_shape(student_logits: Tensor, teacher_logits: Tensor) -> None:
    student_shape, teacher_shape = list(student_logits.shape), list(teacher_logits.shape)
    if not (student_logits.is_floating_point() and teacher_logits.is_floating_point()):
        raise messages.logits_type(student=str(student_logits.dtype), teacher=str(teacher_logits.dtype))
    if not student_shape or not teacher_shape or student_shape[:-1] != teacher_shape[:-1]:
        raise messages.logits_shape(student=str(student_shape), teacher=str(teacher_shape))
    if student_shape[-1] != teacher_shape[-1] or student_shape[-1] == 0:
        raise messages.vocabulary_size(student=student_shape[-1], teacher=teacher_shape[-1])
