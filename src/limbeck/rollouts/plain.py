"""The plain way to write answers, for architectures that the slots do not serve: transformers' `generate`.

The sampling is the same as everywhere: a logits processor draws the token and leaves `generate` no other choice. The
generation config is explicit and the model's own is set aside meanwhile, so that none of its defaults (a repetition
penalty, suppressed tokens) leaks into the answers.

Shapes  B = sequences, T = positions, V = vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import GenerationConfig, GenerationMixin, LogitsProcessor, LogitsProcessorList, PreTrainedModel

from limbeck.errors import Diverged
from limbeck.models.load import LanguageModel
from limbeck.rollouts.request import Request, Written
from limbeck.rollouts.sampling import Sampling, draw_tokens, uniform

__all__ = ["refuse_not_finite", "write_plainly"]


class _CounterSampler(LogitsProcessor):
    """Draws the next token of every row by its counters and forbids all others."""

    def __init__(self, requests: Sequence[Request], sampling: Sampling, num_real: int, name: str) -> None:
        self.requests = requests
        self.sampling = sampling
        self.num_real = num_real
        self.name = name
        self.logprobs_BT: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        position = len(self.logprobs_BT)
        uniforms_B = torch.tensor([uniform(request.key, position) for request in self.requests], dtype=torch.float64)
        logits_BV = scores[:, : self.num_real].float()
        ids_B, logprobs_B = draw_tokens(logits_BV, uniforms_B.to(scores.device), self.sampling)
        for logprob in logprobs_B.tolist():
            refuse_not_finite(logprob, self.name)
        self.logprobs_BT.append(logprobs_B)
        return torch.full_like(scores, -torch.inf).scatter_(1, ids_B.unsqueeze(1), 0.0)


def refuse_not_finite(logprob: float, name: str) -> None:
    """Raises Diverged if a token could not be drawn because a logit is not a number."""
    if not math.isfinite(logprob):
        raise Diverged(
            "rollouts.not-finite",
            given=f"The logits of {name} are not finite numbers while it writes.",
            needed="No token can be drawn from them: a weight is infinite or not a number.",
            fix="Go back to the last checkpoint, and lower the learning rate if this model was being trained.",
        )


def write_plainly(
    model: LanguageModel,
    requests: Sequence[Request],
    sampling: Sampling,
    *,
    stop_ids: frozenset[int],
    pad_id: int,
    batch_size: int,
) -> Iterator[Written]:
    """Write the answers in fixed batches; a batch lasts as long as its longest answer."""
    for first in range(0, len(requests), batch_size):
        chunk = requests[first : first + batch_size]
        ids_BT, logprobs_BT = _generate(model, chunk, sampling, stop_ids, pad_id)
        rows = zip(chunk, ids_BT.tolist(), logprobs_BT.tolist(), strict=True)
        for offset, (request, tokens, logprobs) in enumerate(rows):
            for position, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True)):
                at_limit = position + 1 == request.max_new_tokens
                end = "stop" if token in stop_ids else "limit" if at_limit else None
                yield Written(first + offset, token, logprob, end)
                if end is not None:
                    break


def _generate(
    model: LanguageModel, requests: Sequence[Request], sampling: Sampling, stop_ids: frozenset[int], pad_id: int
) -> tuple[Tensor, Tensor]:
    """Tokens and their log-probabilities [B, T] after the prompts, which are padded on the left as `generate` needs."""
    width = max(len(request.prompt_ids) for request in requests)
    rows = [(pad_id,) * (width - len(request.prompt_ids)) + request.prompt_ids for request in requests]
    ids_BT = torch.tensor(rows, device=model.device)
    mask_BT = torch.tensor(
        [[0] * (width - len(request.prompt_ids)) + [1] * len(request.prompt_ids) for request in requests],
        device=model.device,
    )
    sampler = _CounterSampler(requests, sampling, model.head.num_real, model.name)
    config = GenerationConfig(
        max_new_tokens=max(request.max_new_tokens for request in requests),
        do_sample=False,
        eos_token_id=sorted(stop_ids) or None,
        pad_token_id=pad_id,
        bos_token_id=None,
        use_cache=True,
    )
    with _own_generation_config_set_aside(model.module, config):
        assert isinstance(model.module, GenerationMixin)
        written_BT = model.module.generate(
            input_ids=ids_BT,
            attention_mask=mask_BT,
            generation_config=config,
            logits_processor=LogitsProcessorList([sampler]),
        )
    return written_BT[:, width:], torch.stack(sampler.logprobs_BT, dim=1)


@contextmanager
def _own_generation_config_set_aside(module: PreTrainedModel, config: GenerationConfig) -> Generator[None]:
    own = module.generation_config
    module.generation_config = config
    try:
        yield
    finally:
        module.generation_config = own
