"""What settings are made of: how one explains itself, which values it takes, and the settings that have parts."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticUndefined

from limbeck.recipe import rules

__all__ = ["Hosted", "Lora", "OwnAnswers", "PracticeGrowth", "Sampling", "Settings", "WarmUp", "setting"]

REQUIRED = PydanticUndefined
PRACTISED = ("on-policy",)
TAUGHT = ("on-policy", "off-policy")
EVERY = (*TAUGHT, "supervised")


def setting(default: object, meaning: str, *, choose: str, why: str, routes: tuple[str, ...] = EVERY) -> Any:
    """A field with all that `limbeck recipe explain` tells of it. A default that is a function says itself in `why`."""
    extra: dict[str, Any] = {"routes": list(routes), "how_to_choose": choose, "default_and_why": why}
    if callable(default):
        return Field(default_factory=default, description=meaning, json_schema_extra=extra)
    shown = "No default" if default is REQUIRED else "null" if default is None else str(default)
    extra["default_and_why"] = f"{shown}: {why}"
    return Field(default, description=meaning, json_schema_extra=extra)


# Types of settings. The text in each says which values it takes; a choice of words says so itself.
Text = Annotated[str, Field(pattern=r"\S")]
PathText = Annotated[Text, "the path of a file"]
Count = Annotated[int, BeforeValidator(rules.whole), Field(ge=1), "a whole number, 1 or more"]
CountOrZero = Annotated[int, BeforeValidator(rules.whole), Field(ge=0, lt=2**63), "a whole number, 0 or more"]
Positive = Annotated[float, Field(gt=0), "a number above 0"]
Cap = Annotated[Count | None, "null, or a whole number, 1 or more"]
Price = Annotated[Annotated[float, Field(ge=0)] | None, "null, or a number, 0 or more"]
Address = Annotated[
    str,
    Field(pattern=r"^https?://[^\s/?#@]+(/[^\s?#@]*)?$"),
    "an address with http or https, without user, password or query",
]
PositiveShare = Annotated[float, Field(gt=0, le=1), "a number above 0 and at most 1"]
Share = Annotated[float, Field(ge=0, le=1), "a number from 0 to 1"]
HeldOut = Annotated[
    Annotated[float, Field(gt=0, lt=1)] | Annotated[int, Field(ge=1)] | Text,
    "a share between 0 and 1 (0.1), a count from 1 up (200), or the path of a prompt file",
]
ModelText = Annotated[
    Text,
    AfterValidator(rules.weights_at_hand),
    "a model whose weights this machine can hold: a hub id, a folder, a file.gguf, run:NAME or run:NAME@STEP",
]
TeacherText = Annotated[
    Text | None,
    BeforeValidator(rules.teacher_where_needed),
    AfterValidator(rules.weights_at_hand),
    Field(validate_default=True),
    "a model, as for student; off-policy also openai:MODEL",
]
TeacherTemperature = Annotated[float, Field(ge=0), AfterValidator(rules.several_differ), "a number, 0 or more"]
RunName = Annotated[
    str | None, AfterValidator(rules.run_name), "null, or up to 100 of A-Z a-z 0-9 . _ - without . or - first"
]
Device = Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:[0-9]{1,3})?)$"), "auto, cpu, cuda or cuda:N"]
Options = Annotated[dict[str, bool | int | float | str | None], "names with single values, such as true or 3"]


class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Sampling(Settings):
    """How the student draws the tokens of its practice answers."""

    temperature: Annotated[float, Field(ge=0), "a number, 0 or more"] = setting(
        1.0,
        "Divides the student's logits before a practice token is drawn; 0 takes the likeliest token each time.",
        choose="Leave it at 1: then the student practises exactly what it would write. Lower is narrower.",
        why="the objective is an average over the student's own distribution (Agarwal et al. 2024).",
        routes=PRACTISED,
    )
    top_p: PositiveShare = setting(
        1.0,
        "Draw only from the likeliest tokens that together reach this probability (Holtzman et al. 2020).",
        choose="Leave it at 1 unless a weak student writes nonsense that the teacher cannot judge; then 0.95.",
        why="cutting the tail hides from the teacher the very tokens it should talk the student out of.",
        routes=PRACTISED,
    )
    top_k: CountOrZero = setting(
        0,
        "Draw only from this many of the likeliest tokens; 0 is off.",
        choose="Leave it at 0; top_p does the same with less harm.",
        why="the same reason as for top_p.",
        routes=PRACTISED,
    )


class PracticeGrowth(Settings):
    """Practice answers that start short and grow to their full length."""

    start: PositiveShare = setting(
        0.25,
        "The share of max_practice_tokens at which practice answers are cut off in the first step.",
        choose="0.25; lower only for limits over a thousand tokens.",
        why="training on beginnings alone came close to whole answers for far less work (2602.15260).",
        routes=PRACTISED,
    )
    until: PositiveShare = setting(
        0.5,
        "The share of all steps after which the full max_practice_tokens is in force.",
        choose="0.5, or less where the ending of an answer matters: endings have to be practised too.",
        why="a linear schedule over the first half, as in 2602.15260.",
        routes=PRACTISED,
    )


class OwnAnswers(Settings):
    """Answers that people wrote, learnt beside what the teacher says."""

    file: PathText = setting(
        REQUIRED,
        "The file of these answers: rows of prompts that carry an answer. Each step reads as many as prompts_per_step.",
        choose="Answers that you would send as they are.",
        why="they are yours.",
        routes=TAUGHT,
    )
    weight: Positive = setting(
        1.0,
        "What the cross-entropy of one of their tokens weighs against the teacher's word on one token.",
        choose="1; lower if the student copies your phrases where they do not fit.",
        why="both alike.",
        routes=TAUGHT,
    )


class Lora(Settings):
    """Adapters that train in the place of the student's weights (Hu et al. 2021)."""

    rank: Count = setting(
        32,
        "How many rows the two thin matrices beside each linear layer share.",
        choose="32. 128 for reasoning traces or a long supervised stage.",
        why="room for what a distillation teaches; published on-policy runs use 64 to 128 (OPSD, Tinker cookbook).",
    )
    alpha: Count = setting(
        64,
        "Multiplies what the adapters add, divided by rank.",
        choose="Twice the rank. Where more is needed, raise learning_rate first.",
        why="twice the rank, as published on-policy runs with adapters have it (OPSD: rank 64, alpha 128).",
    )


class WarmUp(Settings):
    """First steps on answers that the teacher wrote, before the student practises."""

    steps: Count = setting(
        50,
        "How many of the steps come before practice. They minimise the forward KL on the teacher's answers.",
        choose="50, or until the agreement on held-out prompts stops rising.",
        why="a quarter of the default 200 steps.",
        routes=PRACTISED,
    )
    answers_per_prompt: Count = setting(
        4,
        "How many answers the teacher writes to each prompt, once, before training.",
        choose="4; 1 with thousands of prompts, since writing takes the teacher's time.",
        why="several answers show what else the teacher might say.",
        routes=PRACTISED,
    )


hosted_setting = partial(setting, routes=("off-policy",))


class Hosted(Settings):
    """A teacher behind an OpenAI-compatible chat API: where it is, what it may cost, how it is treated.

    The key comes from the environment alone, and goes only to addresses that the user approved in a file of their own.
    """

    base_url: Address = hosted_setting(
        "https://api.openai.com/v1",
        "The address of the API, as far as /chat/completions follows.",
        choose="As its makers say; it mostly ends in /v1.",
        why="the API that openai: is named after.",
    )
    alias: Annotated[str | None, AfterValidator(rules.alias), "null, or a name"] = hosted_setting(
        None,
        "The name under which answers are stored in the workspace, in teachers/ALIAS; null makes one of base_url.",
        choose="Name the folder of before if an API moves, and a new one if another model answers under the same name.",
        why="what is stored under an address is asked there once.",
    )
    input_price: Price = hosted_setting(
        None,
        "What a million tokens of prompts cost, in the currency of max_cost.",
        choose="From the price list; 0 if they cost nothing.",
        why="nobody can see prices from outside.",
    )
    output_price: Price = hosted_setting(
        None,
        "What a million tokens of answers cost, in the currency of max_cost.",
        choose="From the price list; 0 if they cost nothing.",
        why="nobody can see prices from outside.",
    )
    max_cost: Annotated[Positive | None, AfterValidator(rules.prices_known), "null, or a number above 0"] = (
        hosted_setting(
            None,
            "The most money that a run may spend. A call is sent only if the most that it can cost still fits.",
            choose="What you can bear to lose. An API on another machine needs one of the three caps.",
            why="no cap; prices are not known.",
        )
    )
    max_total_tokens: Cap = hosted_setting(
        None,
        "The most tokens that a run may spend, of prompts and answers together.",
        choose="Where there are no prices, or tokens are what is limited.",
        why="no cap.",
    )
    max_calls: Cap = hosted_setting(
        None,
        "The most requests that a run may send, failed ones too.",
        choose="About answers_per_prompt times the prompts, held-out ones too, and a tenth more.",
        why="no cap.",
    )
    concurrency: Count = hosted_setting(
        8,
        "The most requests in flight. It halves by itself when the API asks to wait, and comes back slowly.",
        choose="What your account allows.",
        why="few accounts forbid it.",
    )
    attempt_s: Positive = hosted_setting(
        120.0,
        "How many seconds one request may take, however slowly its reply comes.",
        choose="Longer than the longest answer takes; more for a model that thinks first.",
        why="room for some thousand tokens.",
    )
    deadline_s: Positive = hosted_setting(
        600.0,
        "How many seconds a question may take with all its attempts and waits, from its first sending.",
        choose="Some times attempt_s.",
        why="five attempts at their longest.",
    )
    limit_name: Literal["max_tokens", "max_completion_tokens"] = hosted_setting(
        "max_tokens",
        "The field of a request that bounds the answer.",
        choose="max_completion_tokens where the API refuses the other, as for newer models of its makers.",
        why="what most servers read.",
    )
    answers_as: Annotated[Text | None, "null, or the name of a model"] = hosted_setting(
        None,
        "The name that the replies give to the model, if it is another than the one that was asked.",
        choose="Set it when answers are labelled other-model and that is right.",
        why="a reply of another model is not learnt.",
    )
