"""Requests for answers and the completions that a decoder returns."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import limbeck.rollouts.messages as messages
from limbeck.data.prompt import Prompt
from limbeck.rollouts.sampling import Purpose, stream_key

__all__ = [
    "Completion",
    "DecoderKind",
    "GeneratedToken",
    "GenerationRequest",
    "prompt_requests",
    "refuse_non_finite_logprob",
]

# What computes the next token: the lean decoder, the general one, or transformers' own `generate`.
DecoderKind = Literal["lean", "slots", "generate"]


@dataclass(frozen=True)
class GenerationRequest:
    """One answer to generate: the prompt's ids, the key of its random numbers (see `sampling`) and its token limit."""

    prompt_ids: tuple[int, ...]
    key: int
    max_new_tokens: int


@dataclass(frozen=True)
class GeneratedToken:
    """One generated token. `logprob` is in nats, under the model's own distribution at temperature 1."""

    request: int
    token: int
    logprob: float
    end: Literal["stop", "limit"] | None


@dataclass(frozen=True)
class Completion:
    """A whole answer. `ids` ends with the stop token unless the answer was truncated at its token limit.

    `logprobs` are in nats at temperature 1, one per token; empty if the answer was not generated in this run.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    cut_off: bool

    @property
    def text_ids(self) -> tuple[int, ...]:
        """The answer without its stop token."""
        return self.ids if self.cut_off else self.ids[:-1]


def prompt_requests(
    prompts: Sequence[Prompt],
    max_new_tokens: int,
    *,
    purpose: Purpose = Purpose.EVALUATION,
    seed: int = 0,
    step: int = 0,
) -> list[GenerationRequest]:
    """One request per prompt, in order; a repeated prompt is another sample, with other random numbers.

    The random numbers follow from seed, purpose and step alone: they are the same for every model.
    """
    requests: list[GenerationRequest] = []
    num_samples: Counter[tuple[str, int]] = Counter()
    for prompt in prompts:
        identity = (prompt.content_hash, prompt.occurrence)
        key = stream_key(seed, purpose, step, *identity, num_samples[identity])
        requests.append(GenerationRequest(prompt.ids, key, max_new_tokens))
        num_samples[identity] += 1
    return requests


def refuse_non_finite_logprob(logprob: float, name: str) -> None:
    """Raises Diverged if no token could be sampled because a logit of the model `name` is not finite."""
    if not math.isfinite(logprob):
        raise messages.logits_not_finite(model=name)
