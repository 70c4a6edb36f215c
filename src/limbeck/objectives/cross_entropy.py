"""Cross-entropy of a given text fused with the output head, in chunks of tokens.

    loss of a token = -log q(token)      q = softmax of the student's logits; nats

The logits of all tokens, [N, V], are never in memory at once: each chunk computes its own, and its gradient is added up
before the next chunk. Logits and sums are float32 or wider.

Axes: N flat positions (or those of one chunk), V vocabulary rows of the head, H hidden size.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

import limbeck.objectives.messages as messages
from limbeck.objectives.divergence import attach_gradient, compute_dtype
from limbeck.objectives.fused import Head, TokenStatistics, default_chunk_tokens

__all__ = ["fused_cross_entropy"]


def fused_cross_entropy(
    hidden_NH: Tensor, head: Head, token_ids_N: Tensor, weights_N: Tensor, *, chunk_tokens: int | None = None
) -> tuple[Tensor, TokenStatistics]:
    """Sum of weights x cross-entropy over N tokens of a text, in nats, from hidden states.

    Args:
        hidden_NH: hidden states after the final norm at the positions that predict the tokens. N = 0 gives 0.
        head: with the vocabulary that the softmax is over.
        token_ids_N: the tokens of the text.
        weights_N: constants, usually 1 / tokens of the whole step (`reduce.token_weights`).
        chunk_tokens: tokens per chunk; by default chosen from the size of the vocabulary.

    Returns:
        (sum, stats): the scalar to call backward on, and the statistics of each token. The text takes the place of a
        teacher that is certain: teacher entropy and log-probability are 0, and `agree_N` is whether the token is the
        student's most likely one. Gradients reach the hidden states and, if it requires them, the head.

    Raises:
        UsageError (ValueError): shapes that do not match, or a token id that the head has no row for.
    """
    num_tokens, device = len(token_ids_N), hidden_NH.device
    outside = num_tokens > 0 and not 0 <= int(token_ids_N.min()) <= int(token_ids_N.max()) < head.num_real
    if hidden_NH.shape[0] != num_tokens or list(weights_N.shape) != [num_tokens] or outside:
        raise messages.cross_entropy_tokens(
            num_tokens=num_tokens,
            hidden=str(list(hidden_NH.shape)),
            weights=str(list(weights_N.shape)),
            last=head.num_real - 1,
        )
    dtype = compute_dtype(hidden_NH, head.weight_VH)
    weights_N = weights_N.detach().to(dtype)
    parameters = [each for each in (head.weight_VH, head.bias_V) if each is not None and each.requires_grad]
    inputs = [hidden_NH, *parameters] if hidden_NH.requires_grad else parameters
    wanted = inputs if torch.is_grad_enabled() else []
    written = [torch.zeros_like(each, dtype=dtype, requires_grad=False) for each in wanted]
    loss_N, entropy_N, logp_N = (torch.empty(num_tokens, dtype=dtype, device=device) for _ in range(3))
    agree_N = torch.empty(num_tokens, dtype=torch.bool, device=device)
    step = chunk_tokens or default_chunk_tokens(head.num_real, dtype)
    for start in range(0, num_tokens, step):
        chunk = slice(start, min(start + step, num_tokens))
        part_NH = hidden_NH[chunk].detach().requires_grad_(hidden_NH.requires_grad)
        logp_NV = functional.log_softmax(head.logits(part_NH).to(dtype), dim=-1)
        text_logp_N = logp_NV.gather(1, token_ids_N[chunk, None])[:, 0]
        if wanted:
            leaves = [part_NH if each is hidden_NH else each for each in wanted]
            gradients = torch.autograd.grad(-(weights_N[chunk] * text_logp_N).sum(), leaves)
            for each, into, gradient in zip(wanted, written, gradients, strict=True):
                (into[chunk] if each is hidden_NH else into).add_(gradient)
        with torch.no_grad():
            logp_NV = logp_NV.detach()
            logp_N[chunk], loss_N[chunk] = text_logp_N, -text_logp_N
            entropy_N[chunk] = -(logp_NV.exp() * logp_NV.clamp(min=torch.finfo(dtype).min)).sum(-1)
            agree_N[chunk] = text_logp_N == logp_NV.amax(-1)
    total = (weights_N * loss_N).sum()
    zeros_N = torch.zeros_like(loss_N)
    stats = TokenStatistics(loss_N, entropy_N, zeros_N, agree_N, logp_N, zeros_N)
    return (attach_gradient(total, *zip(wanted, written, strict=True)) if wanted else total), stats
