"""Settings that have parts: the parts, each explained as a setting of its own."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict

from limbeck.recipe import rules, types

__all__ = ["HostedApiSettings", "Lora", "OwnAnswers", "PracticeGrowth", "SamplingSettings", "Settings", "WarmUp"]


class Settings(BaseModel):
    """Settings that explain themselves: below each stand its meaning, how to choose it and why its default is that."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class SamplingSettings(Settings):
    """How the student draws the tokens of its practice answers."""

    temperature: types.NonNegative = 1.0
    """Divides the student's logits before a practice token is drawn; 0 takes the likeliest token each time.
    Choose: Leave it at 1: then the student practises exactly what it would write. Lower is narrower.
    Why: the objective is an average over the student's own distribution (Agarwal et al. 2024).
    """

    top_p: types.PositiveShare = 1.0
    """Draw only from the likeliest tokens that together reach this probability (Holtzman et al. 2020).
    Choose: Leave it at 1 unless a weak student writes nonsense that the teacher cannot judge; then 0.95.
    Why: cutting the tail hides from the teacher the very tokens it should talk the student out of.
    """

    top_k: types.CountOrZero = 0
    """Draw only from this many of the likeliest tokens; 0 is off.
    Choose: Leave it at 0; top_p does the same with less harm.
    Why: the same reason as for top_p.
    """


class PracticeGrowth(Settings):
    """Practice answers that start short and grow to their full length."""

    start: types.PositiveShare = 0.25
    """The share of max_practice_tokens at which practice answers are cut off in the first step.
    Choose: 0.25; lower only for limits over a thousand tokens.
    Why: training on beginnings alone came close to whole answers for far less work (2602.15260).
    """

    until: types.PositiveShare = 0.5
    """The share of all steps after which the full max_practice_tokens is in force.
    Choose: 0.5, or less where the ending of an answer matters: endings have to be practised too.
    Why: a linear schedule over the first half, as in 2602.15260.
    """


class OwnAnswers(Settings):
    """Answers that people wrote, learnt beside what the teacher says."""

    file: types.PathText
    """The file of these answers: rows of prompts that carry an answer. Each step reads as many as prompts_per_step.
    Choose: Answers that you would send as they are.
    Why: they are yours.
    """

    weight: types.Positive = 1.0
    """What the cross-entropy of one of their tokens weighs against the teacher's word on one token.
    Choose: 1; lower if the student copies your phrases where they do not fit.
    Why: both alike.
    """


class Lora(Settings):
    """Adapters that train in the place of the student's weights (Hu et al. 2021)."""

    rank: types.Count = 32
    """How many rows the two thin matrices beside each linear layer share.
    Choose: 32. 128 for reasoning traces or a long supervised stage.
    Why: room for what a distillation teaches; published on-policy runs use 64 to 128 (OPSD, Tinker cookbook).
    """

    alpha: types.Count = 64
    """Multiplies what the adapters add, divided by rank.
    Choose: Twice the rank. Where more is needed, raise learning_rate first.
    Why: twice the rank, as published on-policy runs with adapters have it (OPSD: rank 64, alpha 128).
    """


class WarmUp(Settings):
    """First steps on answers that the teacher wrote, before the student practises."""

    steps: types.Count = 50
    """How many of the steps come before practice. They minimise the forward KL on the teacher's answers.
    Choose: 50, or until the agreement on held-out prompts stops rising.
    Why: a quarter of the default 200 steps.
    """

    answers_per_prompt: types.Count = 4
    """How many answers the teacher writes to each prompt, once, before training.
    Choose: 4; 1 with thousands of prompts, since writing takes the teacher's time.
    Why: several answers show what else the teacher might say.
    """


class HostedApiSettings(Settings):
    """A teacher behind an OpenAI-compatible chat API: where it is, what it may cost, how it is treated.

    The key comes from the environment alone, and goes only to addresses that the user approved in a file of their own.
    """

    base_url: types.Address = "https://api.openai.com/v1"
    """The address of the API, as far as /chat/completions follows.
    Choose: As its makers say; it mostly ends in /v1.
    Why: the API that openai: is named after.
    """

    alias: Annotated[str | None, AfterValidator(rules.check_run_name), "null, or a name"] = None
    """The name under which answers are stored in the workspace, in teachers/ALIAS; null makes one of base_url.
    Choose: Name the folder of before if an API moves, and a new one if another model answers under the same name.
    Why: what is stored under an address is asked there once.
    """

    input_price: types.Price = None
    """What a million tokens of prompts cost, in the currency of max_cost.
    Choose: From the price list; 0 if they cost nothing.
    Why: nobody can see prices from outside.
    """

    output_price: types.Price = None
    """What a million tokens of answers cost, in the currency of max_cost.
    Choose: From the price list; 0 if they cost nothing.
    Why: nobody can see prices from outside.
    """

    max_cost: Annotated[
        types.Positive | None, AfterValidator(rules.check_prices_given), "null, or a number above 0"
    ] = None
    """The most money that a run may spend. A call is sent only if the most that it can cost still fits.
    Choose: What you can bear to lose. An API on another machine needs one of the three caps.
    Why: no cap; prices are not known.
    """
    max_total_tokens: types.Cap = None
    """The most tokens that a run may spend, of prompts and answers together.
    Choose: Where there are no prices, or tokens are what is limited.
    Why: no cap.
    """

    max_calls: types.Cap = None
    """The most requests that a run may send, failed ones too.
    Choose: About answers_per_prompt times the prompts, held-out ones too, and a tenth more.
    Why: no cap.
    """

    concurrency: types.Count = 8
    """The most requests in flight. It halves by itself when the API asks to wait, and comes back slowly.
    Choose: What your account allows.
    Why: few accounts forbid it.
    """

    attempt_s: types.Positive = 120.0
    """How many seconds one request may take, however slowly its reply comes.
    Choose: Longer than the longest answer takes; more for a model that thinks first.
    Why: room for some thousand tokens.
    """

    deadline_s: types.Positive = 600.0
    """How many seconds a question may take with all its attempts and waits, from its first sending.
    Choose: Some times attempt_s.
    Why: five attempts at their longest.
    """

    limit_name: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """The field of a request that bounds the answer.
    Choose: max_completion_tokens where the API refuses the other, as for newer models of its makers.
    Why: what most servers read.
    """

    answers_as: Annotated[types.NonEmptyText | None, "null, or the name of a model"] = None
    """The name that the replies give to the model, if it is another than the one that was asked.
    Choose: Set it when answers are labelled other-model and that is right.
    Why: a reply of another model is not learnt.
    """
