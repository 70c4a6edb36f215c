"""Sections of a recipe: settings that have parts, each documented as a setting of its own."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict

from limbeck.recipe import types

__all__ = ["HostedApiSettings", "Lora", "OwnAnswers", "PracticeGrowth", "SamplingSettings", "Settings", "WarmUp"]


class Settings(BaseModel):
    """Settings with their documentation below each: its meaning, how to choose it and the reason for its default."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class SamplingSettings(Settings):
    """How the tokens of practice answers are sampled."""

    temperature: types.NonNegative = 1.0
    """The temperature at which practice answers are sampled; 0 always takes the most likely token.
    Choose: 1: then the student practises exactly what it would generate. Lower values give less variety.
    Why: the objective is an average over the student's own distribution (Agarwal et al. 2024).
    """

    top_p: types.PositiveShare = 1.0
    """Nucleus sampling: sample only from the most likely tokens whose probabilities add up to this value (Holtzman et
    al. 2020).
    Choose: 1, unless a weak student generates nonsense that the teacher cannot judge; then 0.95.
    Why: with a smaller value the student never generates the unlikely tokens that the teacher should correct.
    """

    top_k: types.CountOrZero = 0
    """Sample only from this number of most likely tokens; 0 means all.
    Choose: 0; top_p has the same purpose and does less harm.
    Why: as for top_p.
    """


class PracticeGrowth(Settings):
    """Practice answers that start short and grow to their full length."""

    start: types.PositiveShare = 0.25
    """The maximum length of practice answers in the first step, as a share of max_practice_tokens.
    Choose: 0.25; lower only for limits above a thousand tokens.
    Why: training on beginnings alone came close to whole answers for far less computation (arXiv 2602.15260).
    """

    until: types.PositiveShare = 0.5
    """The share of all steps after which the maximum length is max_practice_tokens.
    Choose: 0.5, or less if the end of an answer matters: endings have to be practised too.
    Why: a linear schedule over the first half, as in arXiv 2602.15260.
    """


class OwnAnswers(Settings):
    """Human-written answers to train on, in addition to the teacher's signal."""

    file: types.PathText
    """The file with the human-written answers: rows of prompts that have a reference answer. Each step uses
    prompts_per_step of them.
    Choose: Answers that you would send unchanged.
    Why: it is your data.
    """

    weight: types.Positive = 1.0
    """The weight of the cross-entropy of one of their tokens, relative to the divergence of one token.
    Choose: 1; lower if the student uses your phrases where they do not fit.
    Why: both count equally.
    """


class Lora(Settings):
    """Adapters that are trained instead of the student's weights (Hu et al. 2021)."""

    rank: types.Count = 32
    """The rank of the adapters.
    Choose: 32; 128 for reasoning traces or a long supervised stage.
    Why: enough capacity for a distillation; published on-policy runs use 64 to 128 (OPSD, Tinker cookbook).
    """

    alpha: types.Count = 64
    """The scale of the adapters: their output is multiplied by alpha / rank.
    Choose: Twice the rank. If the effect is too small, raise learning_rate first.
    Why: twice the rank, as in published on-policy runs with adapters (OPSD: rank 64, alpha 128).
    """


class WarmUp(Settings):
    """First steps on answers of the teacher, before practice begins."""

    steps: types.Count = 50
    """The number of steps before practice begins. They minimise the forward KL on the teacher's answers.
    Choose: 50, or until the agreement on held-out prompts stops rising.
    Why: a quarter of the default 200 steps.
    """

    answers_per_prompt: types.Count = 4
    """The number of answers that the teacher generates for each prompt, once, before training.
    Choose: 4; 1 with thousands of prompts, since generation takes time.
    Why: several answers show more of what the teacher might say.
    """


class HostedApiSettings(Settings):
    """A teacher at a hosted, OpenAI-compatible API: its endpoint, budget and limits.

    The API key comes from the environment only, and is sent only to endpoints that the user approved in a file.
    """

    base_url: types.Address = "https://api.openai.com/v1"
    """The address of the API, without /chat/completions.
    Choose: The address in the provider's documentation; it usually ends in /v1.
    Why: the API that openai: is named after.
    """

    alias: Annotated[str | None, AfterValidator(types.check_run_name), "null, or a name"] = None
    """The folder of the workspace in which answers are stored, teachers/ALIAS; null derives it from base_url.
    Choose: Keep the alias if an API moves; choose a new one if another model answers under the same name.
    Why: a prompt is sent to an endpoint only once, and its answer is reused.
    """

    input_price: types.Price = None
    """The price of a million prompt tokens, in the currency of max_cost.
    Choose: The provider's price; 0 if prompts are free.
    Why: the API does not report prices.
    """

    output_price: types.Price = None
    """The price of a million answer tokens, in the currency of max_cost.
    Choose: The provider's price; 0 if answers are free.
    Why: the API does not report prices.
    """

    max_cost: Annotated[
        types.Positive | None, AfterValidator(types.check_prices_given), "null, or a number above 0"
    ] = None
    """The most money that a run may spend. A request is sent only if its worst-case cost is within the rest.
    Choose: The amount that you can afford to lose. An API on another machine requires one of the three caps.
    Why: no cap, since prices are not known.
    """
    max_total_tokens: types.Cap = None
    """The maximum number of tokens that a run may use, prompts and answers together.
    Choose: Use it if there are no prices, or if your quota is in tokens.
    Why: no cap.
    """

    max_calls: types.Cap = None
    """The maximum number of requests that a run may send, including failed ones.
    Choose: About answers_per_prompt times the number of prompts, held-out ones included, plus a tenth.
    Why: no cap.
    """

    concurrency: types.Count = 8
    """The maximum number of simultaneous requests. It is halved when the API reports a rate limit and rises again
    slowly.
    Choose: The limit of your account.
    Why: most accounts allow it.
    """

    attempt_s: types.Positive = 120.0
    """The timeout of one request, in seconds, including a slow reply.
    Choose: More than the longest answer takes; much more for reasoning models.
    Why: enough for a few thousand tokens.
    """

    deadline_s: types.Positive = 600.0
    """The maximum time for one answer in seconds, with all retries and waits, from its first request on.
    Choose: A multiple of attempt_s.
    Why: five attempts of maximum length.
    """

    limit_name: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """The field of a request that limits the length of the answer.
    Choose: max_completion_tokens if the API rejects the other, as OpenAI does for newer models.
    Why: most servers use it.
    """

    answers_as: Annotated[types.NonEmptyText | None, "null, or the name of a model"] = None
    """The model name in the API's replies, if it differs from the one that was requested.
    Choose: Set it if replies are reported as other-model and that is intended.
    Why: replies from another model are not used for training.
    """
