"""What a user may say about an evaluation, the same for `limbeck worth` and `limbeck eval`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from math import isfinite, nan
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from pydantic import TypeAdapter, ValidationError

from limbeck.errors import Unmet, UsageError
from limbeck.recipe.grader import GraderSettings, GraderText

__all__ = ["EvaluationOptions", "FailUnder", "Prices", "check_limit", "option_refused", "read_limit"]

Prices = dict[str, tuple[float, float]]
Texts = Annotated[tuple[str, ...], Parameter(negative=())]
JUDGE_TOKENS = 64
MAX_PRICE = 1e9  # of 1,000 tokens: more is a slip
_MEASURED = {"worth": "gap", "after": "gain"}
_FIELDS = "teacher_options."  # further fields of a request, as in a recipe


@Parameter(name="*")
@dataclass(frozen=True)
class EvaluationOptions:
    """How the models answer, and what their answers are measured by."""

    name: Annotated[str | None, Parameter(help="Of the evaluation's folder; a stopped one goes on.")] = None
    grader: Annotated[str | None, Parameter(help="As in a recipe: a grader's name or module:function.")] = None
    judge: Annotated[
        str | None, Parameter(help="A model that compares answers in pairs; preferences then count, not grades.")
    ] = None
    rubric: Annotated[Path | None, Parameter(help="How the judge is asked: a jinja2 text; there is a default.")] = None
    judge_tokens: Annotated[int, Parameter(help="The longest reply of the judge.")] = JUDGE_TOKENS
    max_tokens: Annotated[int | None, Parameter(help="The longest answer; left out, the recipe's, else 512.")] = None
    temperature: Annotated[float, Parameter(help="0 takes the likeliest token, the same each time.")] = 0.0
    samples: Annotated[int, Parameter(help="Answers to each prompt; several need a temperature.")] = 1
    seed: Annotated[int, Parameter(help="Of sampled answers and of the intervals.")] = 0
    slots: Annotated[int | None, Parameter(help="Answers written at once; left out, the recipe's, else 32.")] = None
    band: Annotated[float, Parameter(help="Points of difference that are worth the work.")] = 10.0
    by: Annotated[Texts, Parameter(help="A column of the prompts to slice by; may be given many times.")] = ()
    price: Annotated[
        Texts, Parameter(help="MODEL=IN,OUT: its price per 1,000 tokens read and written, for example teacher=0.3,1.2.")
    ] = ()
    currency: Annotated[str, Parameter(help="Of the prices.")] = "USD"
    hosted: Annotated[
        Texts, Parameter(help="MODEL.KEY=VALUE for one at openai:, KEY as in a recipe's hosted: judge.max_calls=500.")
    ] = ()

    def __post_init__(self) -> None:
        counts = [each for each in (self.samples, self.slots, self.max_tokens, self.judge_tokens) if each is not None]
        finite = isfinite(self.band) and isfinite(self.temperature)
        if not finite or min(counts) < 1 or self.band <= 0 or self.temperature < 0 or self.seed < 0:
            told = "samples, slots, max-tokens, judge-tokens and band are above 0, temperature and seed 0 or more"
            raise option_refused(f"A number is out of range: {told}, and all finite", "Correct it.")
        self.grader_settings()  # a mistake in these two is told now, and not after hours of answers
        self.prices()
        if self.samples > 1 and self.temperature == 0:
            raise option_refused(
                f"samples is {self.samples} at temperature 0", "Give a temperature: at 0 all would be alike."
            )
        for name, value in (("rubric", self.rubric), ("judge-tokens", self.judge_tokens)):
            if self.judge is None and value not in (None, JUDGE_TOKENS):
                raise option_refused(f"{name} is {value}, and nobody judges", "Name the judge too, or leave it out.")

    def arguments(self) -> list[str]:
        """What was chosen here, as a command line says it; the name is this evaluation's own and is left out."""
        found: list[str] = []
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name != "name" and value != each.default:
                values = value if isinstance(value, tuple) else (value,)
                found += [text for one in values for text in (f"--{each.name.replace('_', '-')}", str(one))]
        return found

    def grader_settings(self) -> GraderSettings | None:
        """The grader that is named here, if one is."""
        try:
            return TypeAdapter(GraderText).validate_python(self.grader)
        except ValidationError as error:
            first: Mapping[str, Any] = error.errors()[0]
            raise option_refused(f"grader is {self.grader!r}: {first['msg']}", "Name another grader.") from None

    def prices(self) -> Prices:
        """The prices by alias."""
        found: Prices = {}
        for text in self.price:
            alias, _, numbers = text.partition("=")
            try:
                price_in, price_out = (float(number) for number in numbers.split(","))
                if not alias or not 0 <= price_in <= MAX_PRICE or not 0 <= price_out <= MAX_PRICE:
                    raise ValueError(text)
            except ValueError:
                raise option_refused(f"price is {text!r}", "Write MODEL=IN,OUT, for example teacher=0.3,1.2.") from None
            found[alias] = (price_in, price_out)
        return found

    def hosted_settings(self, alias: str) -> dict[str, Any]:
        """What `hosted` says of a model."""
        from limbeck.recipe.files import plain_value  # --help need not wait for it

        said = [text.partition(".")[2].partition("=") for text in self.hosted if text.partition(".")[0] == alias]
        found = {key: plain_value(value) for key, _, value in said}
        fields = {key.removeprefix(_FIELDS): found.pop(key) for key in list(found) if key.startswith(_FIELDS)}
        return found | ({"parameters": fields} if fields else {})

    def refuse_unused(self, known: Collection[str]) -> None:
        """Raises UsageError where `hosted` is about none of the `known` models, which are behind a chat API."""
        for text in self.hosted:
            if text.partition(".")[0] not in known:
                told = f"Write MODEL.KEY=VALUE; behind a chat API are here: {', '.join(sorted(known)) or 'none'}."
                raise option_refused(f"hosted is {text!r}, which is about no model behind a chat API", told)


def read_limit(text: str) -> tuple[str, float]:
    """The name and the number of a limit: net=10 (points of difference) or recovered=50 (per cent)."""
    name, _, number = text.partition("=")
    try:
        limit = float(number)
    except ValueError:
        limit = nan
    if name not in ("net", "recovered") or not isfinite(limit):
        raise option_refused(f"fail-under is {text!r}", "Write net=POINTS or recovered=PERCENT.")
    return name, limit


def check_limit(text: str, result: Mapping[str, Any]) -> None:
    """Refuse a result whose interval begins below a limit.

    Net is teacher against student before distilling, distilled against student after, else the first comparison.

    Raises:
        Unmet: the lower end is below, or there is no such number.
    """
    name, limit = read_limit(text)
    interval = result["gap_recovered"]
    if name == "net":
        measured = (result["verdict"] or {}).get(_MEASURED.get(result["kind"], ""))
        interval = measured or next((each["difference"] for each in result["comparisons"]), None)
    if interval is None or round(100 * interval["low"], 9) < limit:
        given = "not known"
        if interval is not None:
            given = f"{100 * interval['estimate']:.1f}, and its interval begins at {100 * interval['low']:.1f}"
        raise Unmet(
            "evaluation.below",
            given=f"{name} is {given}.",
            needed=f"The lower end of its interval must be {limit:g} or more, as --fail-under says.",
            fix="Train on, evaluate on more prompts, or ask for less.",
        )


def option_refused(given: str, fix: str) -> UsageError:
    """What to raise for an option that cannot be meant."""
    return UsageError(
        "evaluation.option", given=f"{given}.", needed="An evaluation has to be meant as it is asked for.", fix=fix
    )


FailUnder = Annotated[
    str | None,
    Parameter(
        help="net=POINTS or recovered=PERCENT: exit 4 if the interval's lower end is below.",
        validator=lambda kind, text: text is None or read_limit(text),
    ),
]
