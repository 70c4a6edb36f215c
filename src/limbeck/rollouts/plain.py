"""Generation by transformers' `generate`, for architectures that the slot decoder does not support.

Sampling is the same as in the engine: a logits processor samples the token and masks all others. The generation config
is explicit and replaces the model's own for the call, so that none of its defaults (a repetition penalty, suppressed
tokens) affects the answers.

Shapes  B = sequences, T = positions, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import GenerationConfig, GenerationMixin, LogitsProcessor, LogitsProcessorList

from limbeck.models.language_model import LanguageModel
from limbeck.rollouts.request import GeneratedToken, GenerationRequest, refuse_non_finite_logprob
from limbeck.rollouts.sampling import Sampling, draw_tokens, uniform

__all__ = ["TransformersGenerator"]


@dataclass
class _CounterSampler(LogitsProcessor):
    """Samples the next token of each row by its counters and masks all others."""

    model: LanguageModel
    requests: Sequence[GenerationRequest]
    sampling: Sampling
    logprobs_BT: list[Tensor] = field(default_factory=list)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        position = len(self.logprobs_BT)
        uniforms_B = torch.tensor([uniform(request.key, position) for request in self.requests], dtype=torch.float64)
        logits_BV = scores[:, : self.model.head.num_real].float()
        ids_B, logprobs_B = draw_tokens(logits_BV, uniforms_B.to(scores.device), self.sampling)
        for logprob in logprobs_B.tolist():
            refuse_non_finite_logprob(logprob, self.model.name)
        self.logprobs_BT.append(logprobs_B)
        return torch.full_like(scores, -torch.inf).scatter_(1, ids_B.unsqueeze(1), 0.0)


@dataclass(frozen=True)
class TransformersGenerator:
    """Generates with transformers' `generate`."""

    model: LanguageModel

    def stream(
        self,
        requests: Sequence[GenerationRequest],
        sampling: Sampling,
        stop_ids: frozenset[int],
        pad_id: int,
        batch_size: int,
    ) -> Iterator[GeneratedToken]:
        """Generate in fixed batches; a batch takes as long as its longest answer."""
        for first in range(0, len(requests), batch_size):
            chunk = requests[first : first + batch_size]
            config = GenerationConfig(
                max_new_tokens=max(request.max_new_tokens for request in chunk),
                do_sample=False,
                eos_token_id=sorted(stop_ids) or None,
                pad_token_id=pad_id,
                use_cache=True,
            )
            ids_BT, logprobs_BT = _generate(self.model, chunk, sampling, config)
            rows = zip(chunk, ids_BT.tolist(), logprobs_BT.tolist(), strict=True)
            for offset, (request, tokens, logprobs) in enumerate(rows):
                for position, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True)):
                    at_limit = position + 1 == request.max_new_tokens
                    end = "stop" if token in stop_ids else "limit" if at_limit else None
                    yield GeneratedToken(first + offset, token, logprob, end)
                    if end is not None:
                        break


def _generate(
    model: LanguageModel, requests: Sequence[GenerationRequest], sampling: Sampling, config: GenerationConfig
) -> tuple[Tensor, Tensor]:
    """Tokens and their log-probabilities [B, T]; prompts are left-padded, as `generate` requires."""
    module, sampler = model.module, _CounterSampler(model, requests, sampling)
    assert isinstance(module, GenerationMixin)
    width = max(len(request.prompt_ids) for request in requests)
    padding = [width - len(request.prompt_ids) for request in requests]
    rows = [[config.pad_token_id] * num + [*request.prompt_ids] for num, request in zip(padding, requests, strict=True)]
    own, module.generation_config = module.generation_config, config
    try:
        written_BT = module.generate(
            input_ids=torch.tensor(rows, device=model.device),
            attention_mask=torch.tensor([[0] * num + [1] * (width - num) for num in padding], device=model.device),
            generation_config=config,
            logits_processor=LogitsProcessorList([sampler]),
        )
    finally:
        module.generation_config = own
    return written_BT[:, width:], torch.stack(sampler.logprobs_BT, dim=1)
