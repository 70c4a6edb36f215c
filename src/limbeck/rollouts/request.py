"""What is asked of a writer and what it hands back; the same for the slots and for the plain way."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from limbeck.data.prompt import Prompt
from limbeck.errors import Diverged
from limbeck.rollouts.sampling import Purpose, stream_key

__all__ = ["Completion", "Request", "Way", "Written", "prompt_requests", "refuse_not_finite"]

# Who computes the next token: the lean decoder, the general one, or transformers' own `generate`.
Way = Literal["lean", "slots", "generate"]


@dataclass(frozen=True)
class Request:
    """One answer to write: the prompt's ids, the key of its random numbers (see `sampling`) and its longest length."""

    prompt_ids: tuple[int, ...]
    key: int
    max_new_tokens: int


@dataclass(frozen=True)
class Written:
    """One token as it is written. `logprob` is in nats, under the model's own distribution at temperature 1."""

    request: int
    token: int
    logprob: float
    end: Literal["stop", "limit"] | None


@dataclass(frozen=True)
class Completion:
    """A whole answer; `ids` ends with the stop token unless the answer was cut off at its longest length."""

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
) -> list[Request]:
    """One request for each prompt, in order; a prompt that comes again is another sample, with other random numbers.

    The same seed and step give the same random numbers to every model and time.
    """
    requests: list[Request] = []
    num_asked: Counter[tuple[str, int]] = Counter()
    for prompt in prompts:
        identity = (prompt.content_hash, prompt.occurrence)
        key = stream_key(seed, purpose, step, *identity, num_asked[identity])
        requests.append(Request(prompt.ids, key, max_new_tokens))
        num_asked[identity] += 1
    return requests


def refuse_not_finite(logprob: float, name: str) -> None:
    """Raises Diverged if a token could not be drawn because a logit is not a number."""
    if not math.isfinite(logprob):
        raise Diverged(
            "rollouts.not-finite",
            given=f"The logits of {name} are not finite numbers while it writes.",
            needed="No token can be drawn from them: a weight is infinite or not a number.",
            fix="Go back to the last checkpoint, and lower the learning rate if this model was being trained.",
        )
