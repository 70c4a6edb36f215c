"""The divergence from a teacher whose probabilities are known for k tokens only, with one bucket for all others.

Both distributions become distributions over k + 1 outcomes: the k tokens and "any other token". That is a divergence
(never negative), a lower bound of the full one, and the tightest one that k log-probabilities allow. Without the
bucket, the value could be negative, and clamping it would remove its gradient.

The softmax of the bucket logits (the k logits, and the logsumexp of the others) is the bucket distribution, which gives
the gradient; within the bucket, the student's proportions do not change.

Axes: N flat positions, V vocabulary, K kept tokens, J outcomes (K, and the bucket if K < V).
"""

from __future__ import annotations

import torch
from torch import Tensor

import limbeck.objectives.messages as messages
from limbeck.objectives.divergence import Objective, Scale, as_function_of, compute_dtype, value_and_gradient

__all__ = ["topk_divergence"]

# How far the k probabilities may exceed a sum of 1 by rounding: servers round log-probabilities, 16-bit ones coarsely.
SUM_TOLERANCE = 1e-3
SUM_TOLERANCE_HALF = 1e-2


def topk_divergence(
    student_logits: Tensor, teacher_ids: Tensor, teacher_logprobs: Tensor, beta: float, *, scale: Scale = "gkd"
) -> Tensor:
    """`divergence` of each token over the teacher's k tokens and one bucket for all others, in nats.

    Args:
        student_logits: [..., V], any floating type, computed in float32 or wider.
        teacher_ids: [..., k] integers, distinct within a row, 1 <= k <= V; constants.
        teacher_logprobs: [..., k], natural logarithms over the *full* vocabulary (not renormalised over the k),
            computed at the intended temperature; never get a gradient.
        beta, scale: as in `divergence`.

    Returns:
        [...], unreduced; never negative; equal to `divergence` for k = V. -inf counts as in `divergence`, NaN gives
        NaN. If the k probabilities sum to 1 or, by rounding, a little more, the bucket keeps one rounding unit.
        Differentiable once, with respect to the student.

    Raises:
        UsageError (ValueError): shapes that do not match, ids outside the vocabulary or twice in one row, probabilities
        that sum to clearly more than 1, beta out of range.
    """
    _require_shapes(student_logits, teacher_ids, teacher_logprobs)
    num_vocabulary, num_kept = student_logits.shape[-1], teacher_ids.shape[-1]
    dtype = compute_dtype(student_logits, teacher_logprobs)
    ids_NK = teacher_ids.detach().reshape(-1, num_kept).long()
    _require_ids(ids_NK, num_vocabulary)
    value_N, gradient_NV = _value_and_gradient(
        Objective(beta=beta, scale=scale),
        student_logits.detach().reshape(-1, num_vocabulary).to(dtype),
        ids_NK,
        _teacher_buckets(teacher_logprobs.detach().reshape(-1, num_kept), num_vocabulary, dtype),
        torch.is_grad_enabled() and student_logits.requires_grad,
    )
    return as_function_of(student_logits, value_N, gradient_NV)


@torch.no_grad()
def _value_and_gradient(
    objective: Objective, logits_NV: Tensor, ids_NK: Tensor, teacher_NJ: Tensor, want_gradient: bool
) -> tuple[Tensor, Tensor | None]:
    # The bucket is the logsumexp over the other tokens. Computed as 1 minus the k probabilities, a small bucket would
    # be rounding noise: wrong by 20 % for a tail of 3e-4 in float32 and 152k tokens.
    student_NJ = logits_NV.gather(-1, ids_NK)
    rest_NV = logits_NV.scatter(-1, ids_NK, -torch.inf)
    rest_N1 = rest_NV.logsumexp(-1, keepdim=True)
    if teacher_NJ.shape[-1] > ids_NK.shape[-1]:
        student_NJ = torch.cat([student_NJ, rest_N1], dim=-1)
    value_N, gradient_NJ = value_and_gradient(objective, student_NJ, teacher_NJ, want_gradient)
    if gradient_NJ is None:
        return value_N, None
    if teacher_NJ.shape[-1] > ids_NK.shape[-1]:
        # Shares within the bucket; all 0 if the bucket is empty (all -inf).
        shares_NV = rest_NV.sub_(rest_N1.masked_fill(rest_N1 == -torch.inf, 0)).exp_()
        gradient_NV = shares_NV.mul_(gradient_NJ[:, -1:])
    else:
        gradient_NV = rest_NV.zero_()
    return value_N, gradient_NV.scatter_(-1, ids_NK, gradient_NJ[:, : ids_NK.shape[-1]])


def _teacher_buckets(teacher_logprobs_NK: Tensor, num_vocabulary: int, dtype: torch.dtype) -> Tensor:
    """The teacher's log-probabilities [N, J] of the outcomes, in the given dtype."""
    kept_NK = teacher_logprobs_NK.to(dtype)
    log_sum_N1 = kept_NK.logsumexp(-1, keepdim=True)
    half = teacher_logprobs_NK.dtype in (torch.float16, torch.bfloat16)
    tolerance = SUM_TOLERANCE_HALF if half else SUM_TOLERANCE
    # A NaN passes here and makes its token's divergence NaN.
    if bool((log_sum_N1 > tolerance).any()):
        row = int(log_sum_N1.argmax())
        total = float(log_sum_N1[row].exp())
        raise messages.topk_sum(num_tokens=kept_NK.shape[-1], row=row, total=total)
    if kept_NK.shape[-1] == num_vocabulary:
        return kept_NK
    one_unit = torch.finfo(dtype if teacher_logprobs_NK.dtype == torch.float64 else torch.float32).eps
    tail_N1 = torch.log1p(-log_sum_N1.clamp(max=-one_unit).exp())
    return torch.cat([kept_NK, tail_N1], dim=-1)


def _require_shapes(student_logits: Tensor, teacher_ids: Tensor, teacher_logprobs: Tensor) -> None:
    shapes = [list(tensor.shape) for tensor in (student_logits, teacher_ids, teacher_logprobs)]
    fits = bool(shapes[0]) and shapes[1] == shapes[2] and shapes[0][:-1] == shapes[1][:-1]
    if not fits or not 1 <= shapes[1][-1] <= shapes[0][-1]:
        raise messages.topk_shape(student=str(shapes[0]), ids=str(shapes[1]), logprobs=str(shapes[2]))
    integer = not (teacher_ids.is_floating_point() or teacher_ids.is_complex() or teacher_ids.dtype == torch.bool)
    if not (student_logits.is_floating_point() and teacher_logprobs.is_floating_point() and integer):
        raise messages.topk_type(
            student=str(student_logits.dtype), ids=str(teacher_ids.dtype), logprobs=str(teacher_logprobs.dtype)
        )


def _require_ids(ids_NK: Tensor, num_vocabulary: int) -> None:
    if ids_NK.numel() == 0:
        return
    smallest, largest = int(ids_NK.min()), int(ids_NK.max())
    if smallest < 0 or largest >= num_vocabulary:
        raise messages.topk_id_range(
            smallest=smallest, largest=largest, num_vocabulary=num_vocabulary, last=num_vocabulary - 1
        )
    sorted_NK = ids_NK.sort(-1).values
    twice_N = (sorted_NK[:, 1:] == sorted_NK[:, :-1]).any(-1)
    if bool(twice_N.any()):
        row = int(twice_N.int().argmax())
        raise messages.topk_id_twice(row=row)
