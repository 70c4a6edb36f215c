"""The terminal view of `limbeck worth` and `limbeck eval`: the verdict, the figures behind it, and the next step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from limbeck.console import Printer
from limbeck.reporting.figures import FEW, points_range, share_range
from limbeck.reporting.messages import terminal
from limbeck.reporting.messages.labels import ALIASES, EVALUATION, QUESTIONS

__all__ = ["show_evaluation"]

BAR_WIDTH = 30
AXIS_WIDTH, NARROW_AXIS_WIDTH = 41, 29  # odd, so that 0 has a column
WIDE_COLUMNS = 75  # of an axis with its figures next to it


def show_evaluation(printer: Printer, result: Mapping[str, Any], name: str | None = None) -> None:
    """Print a result; `name` is the name or path of its evaluation in a command."""
    num_prompts = result["prompts"]["num"]
    printer.rule(terminal.evaluation_title(question=QUESTIONS[result["kind"]], name=result["name"], num=num_prompts))
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
        printer.rule(EVALUATION["slices"])
        printer.table([_slice_row(each) for each in result["slices"]])
        printer.say(terminal.evaluation_slices())
    if result["notes"]:
        printer.rule(EVALUATION["notes"])
    for note in result["notes"]:
        printer.say(f"- {note}")
    step = result["next_step"]
    printer.rule()
    printer.say(terminal.evaluation_report())
    printer.say_whole(f"  limbeck report {name or result['name']}", style="bold")
    if step["text"] or step["command"]:
        printer.say(terminal.evaluation_next(step=step["text"]))
        if step["command"]:
            printer.say_whole(f"  {step['command']}", style="bold")


def _show_comparison(printer: Printer, compared: Mapping[str, Any], verdict: Mapping[str, Any] | None) -> None:
    first, second, interval = compared["first"], compared["second"], compared["difference"]
    printer.rule(terminal.evaluation_against(first=first, second=second))
    printer.say_whole(axis(interval, None if verdict is None else verdict["band"], printer.out.width))
    shares = {
        terminal.evaluation_better(model=first): compared["first_better"],
        terminal.evaluation_better(model=second): compared["second_better"],
        EVALUATION["both_good"]: compared["both_good"],
        EVALUATION["both_bad"]: compared["both_bad"],
        EVALUATION["tied"]: compared.get("tied") if compared["both_good"] is None else None,
    }
    shown = {name: (share, share_range(share)) for name, share in shares.items() if share is not None}
    name_width = max(map(len, shown), default=0)
    figure_width = max((len(figure) for _, figure in shown.values()), default=0)
    bar_width = max(0, min(BAR_WIDTH, printer.out.width - name_width - figure_width - 4))
    for name, (share, figure) in shown.items():
        bar = "█" * round(bar_width * share["estimate"])
        printer.say_whole(f"{name:<{name_width}}  {bar:<{bar_width}} {figure}")
    longer = compared["longer_won"]
    if longer is not None and longer["n"] < FEW:
        num_longer = round(longer["estimate"] * longer["n"])
        printer.say(terminal.evaluation_longer_few(num_longer=num_longer, num=longer["n"]))
    elif longer is not None:
        printer.say(terminal.evaluation_longer(share=share_range(longer), num=longer["n"]))
    if max(compared["num_not_graded"]):
        printer.say(terminal.evaluation_graded(num=interval["n"], asked=compared["num_asked"]))
    for note in compared["notes"]:
        printer.say(f"- {note}")


def axis(interval: Mapping[str, Any], band: float | None, columns: int = WIDE_COLUMNS) -> str:
    """An interval on an axis from -100 to +100 points, with the differences too small to matter shaded.

    The figures follow the axis, or come first, on a line of their own, if `columns` are too few for both.
    """
    width = AXIS_WIDTH if columns >= WIDE_COLUMNS else NARROW_AXIS_WIDTH

    def place(value: float) -> int:
        return round((max(-1.0, min(1.0, value)) + 1) / 2 * (width - 1))

    marks = ["·"] * width
    if band is not None:
        marks[place(-band) : place(band) + 1] = "░" * (place(band) - place(-band) + 1)
    marks[place(0)] = "|"
    low, high = place(interval["low"]), place(interval["high"])
    marks[low : high + 1] = "━" * (high - low + 1)
    marks[place(interval["estimate"])] = "●"
    drawn, figures = f"-100 {''.join(marks)} +100", points_range(interval)
    return f"{drawn}   {figures}" if columns >= WIDE_COLUMNS else f"{figures}\n{drawn}"


def _show_models(printer: Printer, result: Mapping[str, Any]) -> None:
    models = result["models"]
    judged = result["measure"]["kind"] == "judge"  # a judge compares pairs: single answers have no score
    printer.rule(EVALUATION["answers" if judged else "scores"])
    printer.table(
        [
            {
                "": model["alias"],
                **({} if judged else {EVALUATION["score"]: model["score"] and share_range(model["score"])}),
                EVALUATION["answered"]: f"{model['num_answered']:,}/{model['num_asked']:,}",
                EVALUATION["failed"]: model["num_failed"],
                EVALUATION["truncated"]: model["num_cut_off"],
                EVALUATION["empty"]: model["num_empty"],
                **({} if judged else {EVALUATION["not_graded"]: model["num_not_graded"]}),
            }
            for model in models
        ]
    )
    lengths = [_length_row(model["alias"], model["length"]) for model in models]
    if result["team_length"] is not None:
        lengths.append(_length_row(ALIASES["human_written"], result["team_length"]))
    printer.rule(EVALUATION["lengths"])
    printer.table(lengths)
    speeds = [_speed_row(model) for model in models]
    known = [name for name in speeds[0] if any(row[name] is not None for row in speeds)]
    if len(known) > 1:
        printer.rule(EVALUATION["speed"])
        printer.table([{name: row[name] for name in known} for row in speeds])
        printer.say(terminal.evaluation_latency(slots=result["settings"].get("slots") or 1))
    if EVALUATION["divergence"] in known:
        printer.say(terminal.evaluation_divergence())
    printer.rule(EVALUATION["models"])
    for model in models:
        printer.say(f"{model['alias']}: {model['ref']}")


def _length_row(name: str, length: Mapping[str, float] | None) -> dict[str, object]:
    known = {} if length is None else length
    numbers = {key: round(known[key]) if key in known else None for key in ("mean", "median", "p90")}
    return {"": name, **{EVALUATION[key]: number for key, number in numbers.items()}}


def _speed_row(model: Mapping[str, Any]) -> dict[str, object]:
    cost, distance = model["cost_per_1000"], model["divergence_to_teacher"]
    return {
        "": model["alias"],
        EVALUATION["tokens_per_s"]: _rounded(model["tokens_per_s"]),
        EVALUATION["latency_p50"]: _rounded(model["latency_p50_s"]),
        EVALUATION["latency_p95"]: _rounded(model["latency_p95_s"]),
        EVALUATION["cost"]: cost and f"{float(cost['amount']):,.2f} {cost['currency']}",
        EVALUATION["divergence"]: distance and f"{float(distance['estimate']):.3f}",
    }


def _slice_row(each: Mapping[str, Any]) -> dict[str, object]:
    difference = each["difference"]
    return {
        each["column"]: each["value"],
        EVALUATION["comparison"]: terminal.evaluation_against(first=each["first"], second=each["second"]),
        EVALUATION["points"]: f"{round(100 * difference['estimate']):+d}",
        EVALUATION["interval"]: f"{round(100 * difference['low']):+d} to {round(100 * difference['high']):+d}",
        EVALUATION["prompts"]: difference["n"],
    }


def _rounded(value: float | str | None) -> str | None:
    if value is None:
        return None
    number = float(value)  # JSON has NaN and Infinity as texts
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
