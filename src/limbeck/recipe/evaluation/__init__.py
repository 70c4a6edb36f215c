"""The options of an evaluation, the same for `limbeck worth` and `limbeck eval`.

The help of both commands is read from here, so nothing here imports pydantic before an option needs it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from math import isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

from cyclopts import Parameter

from limbeck.errors import UsageError
from limbeck.recipe.evaluation import messages

if TYPE_CHECKING:
    from limbeck.recipe.grader import GraderSettings

__all__ = ["EvaluationOptions", "FailUnder", "Prices", "check_limit", "option_refused", "read_limit"]

Prices = dict[str, tuple[float, float]]
Texts = Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)]
JUDGE_TOKENS = 64
MAX_PRICE = 1e9  # of 1,000 tokens: more is a slip
_MEASURED = {"worth": "gap", "after": "gain"}
_LIMITS = {"net": ("net difference", "points"), "recovered": ("share of the gap recovered", "%")}
_FIELDS = "teacher_options."  # further fields of a request, as in a recipe


@Parameter(name="*")
@dataclass(frozen=True)
class EvaluationOptions:
    """How the models generate their answers, and how these are measured."""

    name: Annotated[
        str | None,
        Parameter(help="Name of the evaluation and its folder; an unfinished one is continued (default: generated)."),
    ] = None
    grader: Annotated[
        str | None,
        Parameter(help="Grader of the answers: its name or module:function (default: the recipe's, else by row)."),
    ] = None
    judge: Annotated[
        str | None,
        Parameter(help="Model that compares pairs of answers; its preferences replace grades (default: none)."),
    ] = None
    rubric: Annotated[
        Path | None, Parameter(help="File with the judge's prompt as a Jinja template (default: built in).")
    ] = None
    judge_tokens: Annotated[int, Parameter(help="Maximum length of the judge's reply, in tokens.")] = JUDGE_TOKENS
    max_tokens: Annotated[
        int | None, Parameter(help="Maximum length of an answer, in tokens (default: the recipe's, else 512).")
    ] = None
    temperature: Annotated[float, Parameter(help="Sampling temperature; 0 always takes the most likely token.")] = 0.0
    samples: Annotated[int, Parameter(help="Number of answers per prompt; above 1 needs a temperature above 0.")] = 1
    seed: Annotated[int, Parameter(help="Random seed for sampled answers and intervals.")] = 0
    slots: Annotated[
        int | None, Parameter(help="Number of answers generated at the same time (default: the recipe's, else 32).")
    ] = None
    band: Annotated[float, Parameter(help="Smallest difference that matters, in points.")] = 10.0
    by: Annotated[Texts, Parameter(help="Column of the prompts that splits the results. Can be repeated.")] = ()
    price: Annotated[
        Texts,
        Parameter(
            help="MODEL=IN,OUT: prices per 1,000 tokens of input and output, for example teacher=0.3,1.2. "
            "Can be repeated."
        ),
    ] = ()
    currency: Annotated[str, Parameter(help="Currency of the prices.")] = "USD"
    hosted: Annotated[
        Texts,
        Parameter(
            help="MODEL.KEY=VALUE: a setting of a model at a hosted API, KEY as in a recipe's section hosted, for "
            "example judge.max_calls=500. Can be repeated."
        ),
    ] = ()

    def __post_init__(self) -> None:
        for option in ("samples", "slots", "max_tokens", "judge_tokens", "band"):
            value = getattr(self, option)
            if value is not None and not (isfinite(value) and value > 0):
                raise messages.not_above_0(option=option.replace("_", "-"), value=value)
        for option in ("temperature", "seed"):
            value = getattr(self, option)
            if not isfinite(value) or value < 0:
                raise messages.negative(option=option, value=value)
        self.grader_settings()  # validate both now, before hours of generation
        self.prices()
        if self.samples > 1 and self.temperature == 0:
            raise messages.samples_equal(samples=self.samples)
        for option, value in (("rubric", self.rubric), ("judge-tokens", self.judge_tokens)):
            if self.judge is None and value not in (None, JUDGE_TOKENS):
                raise messages.judge_missing(option=option)

    def arguments(self) -> list[str]:
        """The options that differ from their defaults, as a command line spells them; the name is left out."""
        found: list[str] = []
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name != "name" and value != each.default:
                values = value if isinstance(value, tuple) else (value,)
                found += [text for one in values for text in (f"--{each.name.replace('_', '-')}", str(one))]
        return found

    def grader_settings(self) -> GraderSettings | None:
        """The grader that was chosen here, if one was."""
        if self.grader is None:
            return None
        from pydantic import TypeAdapter, ValidationError

        from limbeck.recipe.grader import GraderKind, GraderText

        try:
            return TypeAdapter(GraderText).validate_python(self.grader)
        except ValidationError:
            raise messages.grader_invalid(grader=self.grader, known=list(get_args(GraderKind))) from None

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
                raise messages.price_invalid(text=text) from None
            found[alias] = (price_in, price_out)
        return found

    def hosted_settings(self, alias: str) -> dict[str, Any]:
        """The settings that `hosted` has for a model."""
        from limbeck.recipe.files import plain_value

        given = [text.partition(".")[2].partition("=") for text in self.hosted if text.partition(".")[0] == alias]
        found = {key: plain_value(value) for key, _, value in given}
        fields = {key.removeprefix(_FIELDS): found.pop(key) for key in list(found) if key.startswith(_FIELDS)}
        return found | ({"parameters": fields} if fields else {})

    def refuse_unused(self, known: Collection[str]) -> None:
        """Raises UsageError for an entry of `hosted` that belongs to none of the `known` models at hosted APIs."""
        for text in self.hosted:
            if text.partition(".")[0] in known:
                continue
            if known:
                raise messages.model_not_hosted(text=text, known=sorted(known))
            raise messages.no_model_hosted(text=text)


def read_limit(text: str) -> tuple[str, float]:
    """The name and the number of a limit: net=10 (points of difference) or recovered=50 (percent of the gap)."""
    name, _, number = text.partition("=")
    try:
        limit = float(number)
    except ValueError:
        limit = nan
    if name not in _LIMITS or not isfinite(limit):
        raise messages.limit_invalid(text=text)
    return name, limit


def check_limit(text: str, result: Mapping[str, Any]) -> None:
    """Refuse a result whose interval begins below a limit.

    The net difference is teacher minus student before distilling, distilled minus student after, else that of the first
    comparison.

    Raises:
        Unmet: the lower end is below, or the result has no such number.
    """
    name, limit = read_limit(text)
    measure, unit = _LIMITS[name]
    interval = result["gap_recovered"]
    if name == "net":
        measured = (result["verdict"] or {}).get(_MEASURED.get(result["kind"], ""))
        interval = measured or next((each["difference"] for each in result["comparisons"]), None)
    if interval is None:
        raise messages.measure_unknown(measure=measure, limit=text)
    if round(100 * interval["low"], 9) < limit:
        estimate, low = 100 * interval["estimate"], 100 * interval["low"]
        raise messages.below_limit(measure=measure, estimate=estimate, low=low, unit=unit, limit=text)


def option_refused(given: str, fix: str) -> UsageError:
    """The error for an option that an evaluation cannot use."""
    return messages.option_invalid(given=given, fix=fix)


FailUnder = Annotated[
    str | None,
    Parameter(
        help="net=POINTS or recovered=PERCENT: exit with code 4 if the lower end of the interval is below.",
        validator=lambda kind, text: text is None or read_limit(text),
    ),
]
