"""What is said about the options of an evaluation and about its limit, before and after."""

from __future__ import annotations

from limbeck.errors import Text, Unmet, UsageError, error

__all__: list[str] = []


@error(UsageError, "evaluation.option.above-0")
def not_above_0(*, option: str, value: float) -> Text:
    return Text(
        given="--{option} is {value}.", needed="It must be a finite number above 0.", fix="Change or remove --{option}."
    )


@error(UsageError, "evaluation.option.negative")
def negative(*, option: str, value: float) -> Text:
    return Text(
        given="--{option} is {value}.",
        needed="It must be a finite number, 0 or more.",
        fix="Change or remove --{option}.",
    )


@error(UsageError, "evaluation.option.samples")
def samples_equal(*, samples: int) -> Text:
    return Text(
        given="--samples is {samples}, but --temperature is 0.",
        needed="At temperature 0 every sample of a prompt is the same.",
        fix="Set --temperature above 0, or remove --samples.",
    )


@error(UsageError, "evaluation.option.judge-missing")
def judge_missing(*, option: str) -> Text:
    return Text(
        given="--{option} is set without --judge.",
        needed="Only a judge uses it, and Limbeck rejects options that have no effect.",
        fix="Add --judge MODEL, or remove --{option}.",
    )


@error(UsageError, "evaluation.option.grader")
def grader_invalid(*, grader: str, known: list[str]) -> Text:
    return Text(
        given="--grader is {grader!r}.",
        needed="A grader is one of {known}, or a function of your own as module:function.",
        fix="Choose one of them.",
    )


@error(UsageError, "evaluation.option.price")
def price_invalid(*, text: str) -> Text:
    return Text(
        given="--price is {text!r}.",
        needed="A price is a model and two numbers, 0 or more: per 1,000 tokens of input and of output.",
        fix="Use MODEL=IN,OUT, for example teacher=0.3,1.2.",
    )


@error(UsageError, "evaluation.option.not-hosted")
def model_not_hosted(*, text: str, known: list[str]) -> Text:
    return Text(
        given="--hosted is {text!r}.",
        needed="It must begin with a model of this evaluation that is at a hosted API. These are: {known}.",
        fix="Use MODEL.KEY=VALUE with one of these models.",
    )


@error(UsageError, "evaluation.option.none-hosted")
def no_model_hosted(*, text: str) -> Text:
    return Text(
        given="--hosted is {text!r}.",
        needed="No model of this evaluation is at a hosted API, so the option has no effect.",
        fix="Remove --hosted.",
    )


@error(UsageError, "evaluation.option.limit")
def limit_invalid(*, text: str) -> Text:
    return Text(
        given="--fail-under is {text!r}.",
        needed="A limit is a name and a finite number.",
        fix="Use net=POINTS or recovered=PERCENT.",
    )


@error(Unmet, "evaluation.below.unknown")
def measure_unknown(*, measure: str, limit: str) -> Text:
    return Text(
        given="The result does not contain the {measure}.",
        needed="--fail-under {limit} requires the lower end of its interval to be at least as high.",
        fix="Train longer, evaluate on more prompts, or remove the limit.",
    )


@error(Unmet, "evaluation.below.limit")
def below_limit(*, measure: str, estimate: float, low: float, unit: str, limit: str) -> Text:
    return Text(
        given="The {measure} is {estimate:.1f} {unit}, and the lower end of its interval is {low:.1f}.",
        needed="--fail-under {limit} requires the lower end to be at least as high.",
        fix="Train longer, evaluate on more prompts, or lower the limit.",
    )


@error(UsageError, "evaluation.option.other")
def option_invalid(*, given: str, fix: str) -> Text:
    return Text(given="{given}.", needed="An evaluation must be able to use each of its options.", fix="{fix}")
