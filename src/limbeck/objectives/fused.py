"""Output head and divergence fused, in chunks of tokens, with the gradient computed in the forward pass.

For every chunk, each head is applied once, over the whole vocabulary; the divergence returns its value and its gradient
with respect to the logits in closed form; two matrix products propagate that gradient to the hidden states and, if it
is trainable, to the head. The logits of all tokens, [N, V], are never in memory at once. This is possible because the
token weights are known beforehand and backward gets only a scalar, which multiplies the stored gradients.

The result does not depend on the chunk size, except for rounding.

Logits are computed in float32 or wider: 16-bit hidden states and heads are converted first, a slice of the head at a
time. Autocast has no effect here. Gradients are summed in the same precision and returned in the dtype of their
parameter.

Axes: N flat positions (or those of one chunk), V vocabulary rows of a head, H hidden size (different for each model).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

import limbeck.objectives.messages as messages
from limbeck.objectives.divergence import Objective, attach_gradient, compute_dtype, value_and_gradient
from limbeck.objectives.head import Head, head_of, products

__all__ = ["Head", "TokenStatistics", "default_chunk_tokens", "fused_divergence", "fused_with_statistics", "head_of"]

# One buffer [chunk, V]; a chunk needs three of them.
CHUNK_BUFFER_BYTES = 32 * 2**20
MAX_CHUNK_TOKENS = 4096


@dataclass(frozen=True)
class TokenStatistics:
    """Statistics of each token; all [N], detached, float32 or wider, in nats.

    Entropies and log-probabilities are at temperature 1, whatever the objective's temperature.
    """

    divergence_N: Tensor
    student_entropy_N: Tensor
    teacher_entropy_N: Tensor
    agree_N: Tensor  # bool: both models have the same most likely token
    student_logp_N: Tensor  # of the tokens of the text
    teacher_logp_N: Tensor


def fused_divergence(
    student_hidden_NH: Tensor,
    student_head: Head,
    teacher_hidden_NH: Tensor,
    teacher_head: Head,
    weights_N: Tensor,
    objective: Objective,
    *,
    chunk_tokens: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Sum of weights x divergence over N tokens, in nats, from hidden states; see the module's docstring.

    Args:
        student_hidden_NH, teacher_hidden_NH: hidden states after the final norm at the same N positions; the two
            hidden sizes may differ. N = 0 gives 0 with gradients of 0.
        student_head, teacher_head: with the same num_real; padded row counts may differ.
        weights_N: constants, usually 1 / completion tokens of the whole step (`reduce.token_weights`).
        objective: any, with any temperature.
        chunk_tokens: tokens per chunk; by default chosen so that a buffer stays within CHUNK_BUFFER_BYTES.

    Returns:
        (sum, divergence_N): the scalar to call backward on, and the detached value of each token, both float32 or
        wider. Gradients reach the student's hidden states and, if they require them, its head's weight and bias; a
        frozen head costs nothing. The teacher never gets a gradient. Differentiable once.

    Raises:
        UsageError, VocabularyMismatch (both ValueError): shapes or vocabularies that do not match.
    """
    sides = (student_hidden_NH, student_head, teacher_hidden_NH, teacher_head)
    total, divergence_N, _ = _fused(*sides, weights_N, objective, None, chunk_tokens)
    return total, divergence_N


def fused_with_statistics(
    student_hidden_NH: Tensor,
    student_head: Head,
    teacher_hidden_NH: Tensor,
    teacher_head: Head,
    weights_N: Tensor,
    objective: Objective,
    token_ids_N: Tensor,
    *,
    chunk_tokens: int | None = None,
) -> tuple[Tensor, TokenStatistics]:
    """`fused_divergence`, and the statistics of each token from the same logits.

    `token_ids_N` are the tokens of the text; `fused_divergence` describes the other arguments and the errors.
    """
    num_real = student_head.num_real
    outside = token_ids_N.numel() > 0 and not 0 <= int(token_ids_N.min()) <= int(token_ids_N.max()) < num_real
    if list(token_ids_N.shape) != list(student_hidden_NH.shape[:1]) or outside:
        raise messages.fused_token_ids(
            ids=str(list(token_ids_N.shape)), num_positions=student_hidden_NH.shape[0], last=num_real - 1
        )
    sides = (student_hidden_NH, student_head, teacher_hidden_NH, teacher_head)
    total, divergence_N, rest = _fused(*sides, weights_N, objective, token_ids_N.long(), chunk_tokens)
    return total, TokenStatistics(divergence_N, *rest)


def default_chunk_tokens(num_vocabulary: int, dtype: torch.dtype) -> int:
    """The number of tokens whose logits fill one buffer of CHUNK_BUFFER_BYTES, at most MAX_CHUNK_TOKENS."""
    return max(1, min(MAX_CHUNK_TOKENS, CHUNK_BUFFER_BYTES // (num_vocabulary * dtype.itemsize)))


def _fused(
    student_hidden_NH: Tensor,
    student_head: Head,
    teacher_hidden_NH: Tensor,
    teacher_head: Head,
    weights_N: Tensor,
    objective: Objective,
    token_ids_N: Tensor | None,
    chunk_tokens: int | None,
) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """The sum, the divergence of each token, and the other statistics (none without token ids)."""
    _require_fit(student_hidden_NH, student_head, teacher_hidden_NH, teacher_head, weights_N, chunk_tokens)
    dtype = compute_dtype(student_hidden_NH, student_head.weight_VH, teacher_hidden_NH, teacher_head.weight_VH)
    weights_N = weights_N.detach().to(dtype)
    gradients = _Gradients.for_inputs(student_hidden_NH, student_head, dtype)
    num_tokens, device = student_hidden_NH.shape[0], student_hidden_NH.device
    divergence_N = torch.empty(num_tokens, dtype=dtype, device=device)
    dtypes = () if token_ids_N is None else (dtype, dtype, torch.bool, dtype, dtype)
    stats = tuple(torch.empty(num_tokens, dtype=each, device=device) for each in dtypes)
    step = chunk_tokens or default_chunk_tokens(student_head.num_real, dtype)
    with torch.no_grad():
        head, wide_teacher_head = student_head.widened(dtype), teacher_head.widened(dtype)
        for start in range(0, num_tokens, step):
            chunk = slice(start, min(start + step, num_tokens))
            student_NV = head.logits(student_hidden_NH[chunk]).to(dtype)
            teacher_NV = wide_teacher_head.logits(teacher_hidden_NH[chunk]).to(dtype)
            observe = None
            if token_ids_N is not None:
                observe = partial(_fill_statistics, token_ids_N[chunk], tuple(values_N[chunk] for values_N in stats))
            # The teacher's logits are no longer needed, so the gradient overwrites them.
            divergence_N[chunk], gradient_NV = value_and_gradient(
                objective, student_NV, teacher_NV, gradients.wanted, out_NV=teacher_NV, observe=observe
            )
            if gradient_NV is not None:
                if head.softcap is not None:
                    gradient_NV.mul_(student_NV.div_(head.softcap).square_().neg_().add_(1))
                if head.scale != 1:
                    gradient_NV.mul_(head.scale)
                gradients.add(chunk, gradient_NV, weights_N[chunk], student_hidden_NH[chunk].to(dtype), head)
    total = (weights_N * divergence_N).sum()
    inputs = (student_hidden_NH, student_head.weight_VH, student_head.bias_V)
    computed = (gradients.hidden_NH, gradients.weight_VH, gradients.bias_V)
    pairs = [
        (tensor, grad) for tensor, grad in zip(inputs, computed, strict=True) if tensor is not None and grad is not None
    ]
    return (attach_gradient(total, *pairs) if pairs else total), divergence_N, stats


@dataclass(frozen=True)
class _Gradients:
    """The gradients of the sum, one per input; None for an input that requires none."""

    hidden_NH: Tensor | None
    weight_VH: Tensor | None
    bias_V: Tensor | None

    @classmethod
    def for_inputs(cls, hidden_NH: Tensor, head: Head, dtype: torch.dtype) -> _Gradients:
        def zeros(tensor: Tensor | None) -> Tensor | None:
            if tensor is None or not (tensor.requires_grad and torch.is_grad_enabled()):
                return None
            return torch.zeros_like(tensor, dtype=dtype, requires_grad=False)

        return cls(zeros(hidden_NH), zeros(head.weight_VH), zeros(head.bias_V))

    @property
    def wanted(self) -> bool:
        return not (self.hidden_NH is None and self.weight_VH is None and self.bias_V is None)

    def add(self, chunk: slice, gradient_NV: Tensor, weights_N: Tensor, hidden_NH: Tensor, head: Head) -> None:
        """Propagate the gradient of one chunk's logits (before softcap, scale and bias) to the inputs.

        The token weights are multiplied into the hidden states and their gradient, which are smaller than the logits.
        """
        weighted_NH = hidden_NH * weights_N.unsqueeze(1)
        with products(head, gradient_NV):
            for cut, rows_VH in head.slices(gradient_NV.dtype):
                if self.hidden_NH is not None:
                    self.hidden_NH[chunk].addmm_(gradient_NV[:, cut], rows_VH.to(gradient_NV.dtype))
                if self.weight_VH is not None:
                    self.weight_VH[cut].addmm_(gradient_NV[:, cut].T, weighted_NH)
            if self.bias_V is not None:
                self.bias_V[: head.num_real].add_(weights_N @ gradient_NV)
        if self.hidden_NH is not None:
            self.hidden_NH[chunk].mul_(weights_N.unsqueeze(1))


def _fill_statistics(
    token_ids_N: Tensor, out: tuple[Tensor, ...], rows: slice, logq_NV: Tensor, logp_NV: Tensor
) -> None:
    """Write entropies, agreement and log-probabilities of these rows, from the log-softmaxes of both models."""
    student_entropy_N, teacher_entropy_N, agree_N, student_logp_N, teacher_logp_N = out
    ids_N1 = token_ids_N[rows, None]
    for side_NV, entropy_N, logp_N in (
        (logq_NV, student_entropy_N, student_logp_N),
        (logp_NV, teacher_entropy_N, teacher_logp_N),
    ):
        logp_N[rows] = side_NV.gather(-1, ids_N1).squeeze(-1)
        entropy_N[rows] = -side_NV.exp().mul_(side_NV).sum(-1)
    top_N1 = logq_NV.max(-1, keepdim=True).indices
    agree_N[rows] = logp_NV.gather(-1, top_N1).squeeze(-1) == logp_NV.amax(-1)


def _require_fit(
    student_hidden_NH: Tensor,
    student_head: Head,
    teacher_hidden_NH: Tensor,
    teacher_head: Head,
    weights_N: Tensor,
    chunk_tokens: int | None,
) -> None:
    if student_head.num_real != teacher_head.num_real:
        raise messages.fused_num_real(student=student_head.num_real, teacher=teacher_head.num_real)
    for name, hidden_NH, head in (
        ("student", student_hidden_NH, student_head),
        ("teacher", teacher_hidden_NH, teacher_head),
    ):
        if hidden_NH.ndim != 2 or hidden_NH.shape[1] != head.weight_VH.shape[1]:
            raise messages.fused_hidden_shape(
                model=name, hidden=str(list(hidden_NH.shape)), head=str(list(head.weight_VH.shape))
            )
    num_tokens, num_teacher = student_hidden_NH.shape[0], teacher_hidden_NH.shape[0]
    if num_teacher != num_tokens or list(weights_N.shape) != [num_tokens]:
        raise messages.fused_token_count(student=num_tokens, teacher=num_teacher, weights=str(list(weights_N.shape)))
    if chunk_tokens is not None and chunk_tokens < 1:
        raise messages.fused_chunk_tokens(chunk_tokens=chunk_tokens)
