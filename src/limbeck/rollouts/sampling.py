"""Counter-based sampling: a token is a function of its counters and of the logits alone.

    u     = hash(run seed, purpose, step, prompt, occurrence, sample, position)      in [0, 1)
    token = the first id whose cumulative probability exceeds u                      inverse CDF, float64

There is no generator state, so an answer does not depend on the other rows of its batch, on the number of slots or on
what was sampled before. The hash is the finaliser of SplitMix64 (Steele, Lea and Flood 2014),
applied once per counter.

Shapes  S = slots (rows that are sampled together), V = vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from math import inf

import torch
from torch import Tensor
from torch.nn import functional

import limbeck.rollouts.messages as messages

__all__ = ["Purpose", "Sampling", "draw_tokens", "sample_tokens", "stream_key", "uniform"]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15

# Ids per block of the two-stage inverse CDF: about the square root of a vocabulary's size.
CDF_BLOCK = 256


class Purpose(IntEnum):
    """Keeps the random numbers of training apart from those of everything else."""

    TRAINING = 0
    EVALUATION = 1
    TEACHER = 2
    CHAT = 3
    ORDER = 4


@dataclass(frozen=True)
class Sampling:
    """How tokens are sampled. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 keep every token.

    Raises RecipeError for values out of range.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < inf or not 0 < self.top_p <= 1 or self.top_k < 0:
            raise messages.sampling_out_of_range(temperature=self.temperature, top_p=self.top_p, top_k=self.top_k)


GREEDY = Sampling(temperature=0.0)


def _mix(value: int) -> int:
    """SplitMix64's finaliser: 64 bits in, 64 well-mixed bits out."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def stream_key(seed: int, purpose: Purpose, step: int, content_hash: str, occurrence: int, sample: int) -> int:
    """The 64-bit key of one answer's random numbers.

    Args:
        seed: the run's seed.
        purpose: what the answer is used for.
        step: the optimizer step, 0 outside of training.
        content_hash: hexadecimal hash of the prompt's token ids.
        occurrence: the number of earlier prompts with the same ids.
        sample: the index of this answer among the answers to its prompt.
    """
    key = 0
    for counter in (seed, int(purpose), step, int(content_hash[:16], 16), occurrence, sample):
        key = _mix((key + (counter & _MASK) + _GOLDEN) & _MASK)
    return key


def uniform(key: int, position: int) -> float:
    """A number in [0, 1) for one position of an answer, with 53 random bits."""
    return (_mix((key + (position + 1) * _GOLDEN) & _MASK) >> 11) * 2.0**-53


def draw_tokens(logits_SV: Tensor, uniforms_S: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Sample one token per row, as `sample_tokens` does, and return its log-probability under the model.

    Returns:
        (ids_S, logprobs_S): int64; and nats at temperature 1 over the whole vocabulary, NaN where a logit is not
        finite, since no token can be sampled from such a row.
    """
    plain = sampling.temperature == 1 and sampling.top_p == 1 and not 0 < sampling.top_k < logits_SV.shape[-1]
    if not plain:
        ids_S = sample_tokens(logits_SV, uniforms_S, sampling)
        return ids_S, _chosen(logits_SV, ids_S) - logits_SV.logsumexp(dim=-1)
    largest_S1 = logits_SV.amax(dim=-1, keepdim=True)
    weights_SV = (logits_SV - largest_S1).exp_()
    ids_S, totals_S = _inverse_cdf(weights_SV, uniforms_S)
    return ids_S, _chosen(logits_SV, ids_S) - largest_S1.squeeze(1) - totals_S.log()


def _chosen(logits_SV: Tensor, ids_S: Tensor) -> Tensor:
    return logits_SV.gather(1, ids_S.unsqueeze(1)).squeeze(1)


def _inverse_cdf(weights_SV: Tensor, uniforms_S: Tensor) -> tuple[Tensor, Tensor]:
    """`sample_tokens` from weights, in two stages: find the block of ids, then the id within the block.

    Cumulative sums are float64, over the blocks and then within one block per row, so the vocabulary is read once. The
    sum of a block has the weights' precision, which moves its edge by no more than their rounding. Returns ids [S] and
    the totals [S], float64.
    """
    num_rows, num_vocabulary = weights_SV.shape
    num_blocks = -(-num_vocabulary // CDF_BLOCK)
    num_missing = num_blocks * CDF_BLOCK - num_vocabulary
    padded_SV = functional.pad(weights_SV, (0, num_missing)) if num_missing else weights_SV  # padding copies
    blocks_SNV = padded_SV.view(num_rows, num_blocks, CDF_BLOCK)
    cumulative_SN = blocks_SNV.sum(dim=-1).cumsum(dim=-1, dtype=torch.float64)
    totals_S1 = cumulative_SN[:, -1:].contiguous()
    target_S1 = uniforms_S.to(cumulative_SN).unsqueeze(1) * totals_S1
    block_S1 = torch.searchsorted(cumulative_SN, target_S1, right=True)
    # u < 1 keeps the target below the total except for rounding; then take the last id of positive weight
    block_S1 = torch.minimum(block_S1, torch.searchsorted(cumulative_SN, totals_S1)).clamp_(max=num_blocks - 1)
    before_S1 = functional.pad(cumulative_SN, (1, 0)).gather(1, block_S1)
    rows_S = torch.arange(num_rows, device=weights_SV.device)
    within_SV = blocks_SNV[rows_S, block_S1.squeeze(1)].double().cumsum(dim=-1)
    inside_S1 = torch.searchsorted(within_SV, target_S1 - before_S1, right=True)
    last_S1 = torch.searchsorted(within_SV, within_SV[:, -1:].contiguous())
    ids_S = (block_S1 * CDF_BLOCK + torch.minimum(inside_S1, last_S1)).squeeze(1)
    return ids_S.clamp(max=num_vocabulary - 1), totals_S1.squeeze(1)


def sample_tokens(logits_SV: Tensor, uniforms_S: Tensor, sampling: Sampling) -> Tensor:
    """Sample one token per row by inverse CDF in float64.

    Args:
        logits_SV: any float dtype; cut to the ids that may be sampled.
        uniforms_S: float64 in [0, 1), one per row.
        sampling: temperature, top-k and top-p, applied in this order.

    Returns:
        ids_S, int64. Probabilities are summed in the order of the ids, so logits that differ by rounding give the same
        token unless the uniform falls between their cumulative sums.
    """
    if sampling.temperature == 0:
        return logits_SV.argmax(dim=-1)
    # shift the largest to 0 first, so that no temperature, however small, gives infinity
    scaled_SV = (logits_SV.double() - logits_SV.amax(dim=-1, keepdim=True).double()) / sampling.temperature
    if 0 < sampling.top_k < scaled_SV.shape[-1]:
        threshold_S1 = scaled_SV.topk(sampling.top_k, dim=-1).values[:, -1:]
        scaled_SV = scaled_SV.masked_fill(scaled_SV < threshold_S1, -torch.inf)
    weights_SV = scaled_SV.exp()
    if sampling.top_p < 1:
        weights_SV = _keep_nucleus(weights_SV, sampling.top_p)
    cumulative_SV = weights_SV.cumsum(dim=-1)
    target_S1 = uniforms_S.to(cumulative_SV).unsqueeze(1) * cumulative_SV[:, -1:]
    ids_S = torch.searchsorted(cumulative_SV, target_S1, right=True).squeeze(1)
    # u < 1 keeps the target below the total except for rounding; then take the last id of positive weight
    last_S = torch.searchsorted(cumulative_SV, cumulative_SV[:, -1:].contiguous()).squeeze(1)
    return torch.minimum(ids_S, last_S)


def _keep_nucleus(weights_SV: Tensor, top_p: float) -> Tensor:
    """Set to 0 all but the most likely tokens that together reach `top_p` (Holtzman et al. 2020)."""
    sorted_SV, order_SV = weights_SV.sort(dim=-1, descending=True, stable=True)
    before_SV = sorted_SV.cumsum(dim=-1) - sorted_SV
    sorted_SV = sorted_SV.masked_fill(before_SV >= top_p * weights_SV.sum(dim=-1, keepdim=True), 0.0)
    return torch.zeros_like(weights_SV).scatter_(-1, order_SV, sorted_SV)
