"""What `limbeck worth` and `limbeck eval` show: the verdict first, what it stands on, and the next step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from limbeck.console import Printer

__all__ = ["show_evaluation"]

TITLES = {"worth": "Is it worth it?", "after": "Did it work?", "compare": "Side by side"}
BAR_WIDTH = 30
AXIS_WIDTH = 41  # odd, so that 0 has a place of its own


def show_evaluation(printer: Printer, result: Mapping[str, Any], name: str | None = None) -> None:
    """A result as a page of text that fits into 80 columns; `name` is how its evaluation is found from here."""
    prompts = result["prompts"]
    printer.rule(f"{TITLES[result['kind']]} {result['name']}, {prompts['num']} prompts")
    if result["verdict"] is not None:
        first, *others = result["verdict"]["words"]
        printer.say(first, style="bold")
        for line in others:
            printer.say(line)
    printer.say(result["measure"]["text"])
    for comparison in result["comparisons"]:
        _show_comparison(printer, comparison, result["verdict"])
    _show_models(printer, result)
    if result["slices"]:
        printer.rule("Slices; of twenty, one misses the truth by chance")
        printer.table([_slice(each) for each in result["slices"]])
    if result["notes"]:
        printer.rule("Notes")
    for note in result["notes"]:
        printer.say(f"- {note}")
    step = result["next_step"]
    printer.rule()
    printer.say("All answers side by side, and marks where there are any:")
    printer.say(f"  limbeck report {name or result['name']}", style="bold")
    if step["text"] or step["command"]:
        printer.say(f"Next: {step['text']}")
        if step["command"]:
            printer.say(f"  {step['command']}", style="bold")


def _show_comparison(printer: Printer, compared: Mapping[str, Any], verdict: Mapping[str, Any] | None) -> None:
    first, second, interval = compared["first"], compared["second"], compared["difference"]
    printer.rule(f"{first} against {second}")
    printer.say(axis(interval, None if verdict is None else verdict["band"]))
    shares = {
        f"{first} better": compared["first_better"],
        f"{second} better": compared["second_better"],
        "both good": compared["both_good"],
        "both bad": compared["both_bad"],
        "tied": compared.get("tied") if compared["both_good"] is None else None,
    }
    width = max(map(len, shares))
    for name, share in shares.items():
        if share is not None:
            bar = "█" * round(BAR_WIDTH * share["estimate"])
            printer.say(f"{name:<{width}}  {bar:<{BAR_WIDTH}} {_percent(share)}")
    longer = compared["longer_won"]
    if longer is not None:
        printer.say(f"The longer answer won {_percent(longer)} of {longer['n']} that either won.")
    missing = max(compared["num_not_graded"])
    if missing:
        printer.say(f"On the {interval['n']} of {compared['num_asked']} prompts for which both have a grade.")
    for note in compared["notes"]:
        printer.say(f"- {note}")


def axis(interval: Mapping[str, Any], band: float | None) -> str:
    """An interval between -100 and +100 points, the band that is too small to bother shaded."""

    def place(value: float) -> int:
        return round((max(-1.0, min(1.0, value)) + 1) / 2 * (AXIS_WIDTH - 1))

    marks = ["·"] * AXIS_WIDTH
    if band is not None:
        marks[place(-band) : place(band) + 1] = "░" * (place(band) - place(-band) + 1)
    marks[place(0)] = "|"
    low, high = place(interval["low"]), place(interval["high"])
    marks[low : high + 1] = "━" * (high - low + 1)
    marks[place(interval["estimate"])] = "●"
    middle, *ends = (round(100 * interval[name]) for name in ("estimate", "low", "high"))
    points = f"{middle:+d} ({ends[0]:+d} to {ends[1]:+d})"
    return f"-100 {''.join(marks)} +100   {points}"


def _show_models(printer: Printer, result: Mapping[str, Any]) -> None:
    models = result["models"]
    judged = result["measure"]["kind"] == "judge"  # of pairs: no answer has a score of its own
    printer.rule("Answers" if judged else "Scores and answers")
    printer.table(
        [
            {
                "": model["alias"],
                **({} if judged else {"score, %": "-" if model["score"] is None else _percent(model["score"])}),
                "answered": f"{model['num_answered']}/{model['num_asked']}",
                "failed": model["num_failed"],
                "cut off": model["num_cut_off"],
                "empty": model["num_empty"],
                **({} if judged else {"no grade": model["num_not_graded"]}),
            }
            for model in models
        ]
    )
    rows = [
        {
            "": model["alias"],
            "tokens": _length(model["length"]),
            "p90": _number(model["length"], "p90"),
            "tokens/s": _rounded(model["tokens_per_s"]),
            "s p50": _rounded(model["latency_p50_s"]),
            "s p95": _rounded(model["latency_p95_s"]),
            "per 1,000": _cost(model["cost_per_1000"]),
            "nats": _distance(model["divergence_to_teacher"]),
        }
        for model in models
    ]
    if result["team_length"] is not None:
        rows.append({**dict.fromkeys(rows[0], None), "": "your own", "tokens": _length(result["team_length"]),
                     "p90": _number(result["team_length"], "p90")})  # fmt: skip
    filled = [name for name in rows[0] if name == "" or any(row[name] not in (None, "-") for row in rows)]
    printer.rule("Length, speed and cost")
    printer.table([{name: row[name] for name in filled} for row in rows])
    slots = result["settings"].get("slots")
    printer.say(f"Tokens: mean and median. s: seconds to an answer, up to {slots} written at once.")
    if "nats" in filled:
        printer.say("nats: KL(model‖teacher) per token, on the model's own answers.")
    for model in models:
        printer.say(f"{model['alias']}: {model['ref']}")


def _slice(each: Mapping[str, Any]) -> dict[str, object]:
    difference = each["difference"]
    return {
        each["column"]: each["value"],
        "of": f"{each['first']} - {each['second']}",
        "points": f"{round(100 * difference['estimate']):+d}",
        "95 % interval": f"{round(100 * difference['low']):+d} to {round(100 * difference['high']):+d}",
        "prompts": difference["n"],
    }


def _percent(interval: Mapping[str, Any]) -> str:
    return f"{interval['estimate']:.0%} ({100 * interval['low']:.0f} to {100 * interval['high']:.0f})"


def _length(length: Mapping[str, float] | None) -> str:
    return "-" if length is None else f"{length['mean']:.0f} ({length['median']:.0f})"


def _number(values: Mapping[str, float] | None, name: str) -> str:
    return "-" if values is None else f"{values[name]:.0f}"


def _rounded(value: float | str | None) -> str:
    if value is None:
        return "-"
    number = float(value)  # JSON has NaN and Infinity as texts
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _cost(cost: Mapping[str, Any] | None) -> str:
    return "-" if cost is None else f"{float(cost['amount']):.2f} {cost['currency']}"


def _distance(interval: Mapping[str, Any] | None) -> str:
    return "-" if interval is None else f"{float(interval['estimate']):.3f}"
