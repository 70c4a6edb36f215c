"""A model answers prompts: the same rendered prompts for every model, greedy unless said otherwise."""

from __future__ import annotations

from collections.abc import Sequence

from limbeck.data.chat import Prompt
from limbeck.rollouts.engine import Engine
from limbeck.rollouts.request import Completion, prompt_requests
from limbeck.rollouts.sampling import GREEDY, Purpose, Sampling

__all__ = ["answer_prompts", "text_of"]


def answer_prompts(
    engine: Engine,
    prompts: Sequence[Prompt],
    *,
    max_new_tokens: int,
    sampling: Sampling = GREEDY,
    purpose: Purpose = Purpose.EVALUATION,
    seed: int = 0,
) -> list[Completion]:
    """One answer to each prompt, in order. The same seed gives the same random numbers to every model and time."""
    return engine.generate(prompt_requests(prompts, max_new_tokens, purpose=purpose, seed=seed), sampling)


def text_of(engine: Engine, completion: Completion) -> str:
    """The answer as text, without its stop token. For reading and grading only: text is never tokenised again."""
    return engine.model.text(completion.text_ids)
