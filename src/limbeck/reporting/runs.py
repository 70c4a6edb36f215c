"""The terminal views of `limbeck runs` and `limbeck show`, from the run folder alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from limbeck.console import PLAIN_WIDTH, Printer
from limbeck.errors import DataError
from limbeck.reporting.figures import count_text
from limbeck.reporting.messages import terminal
from limbeck.reporting.messages.labels import CURVES, RUNS
from limbeck.runs.store import Run, current_events, list_runs

__all__ = ["list_all_runs", "show_run"]

BARS = "▁▂▃▄▅▆▇█"
GAP = "×"
NUM_BARS, NARROW_BARS = 28, 20
NUM_GAPS = 10
NUM_WORST = 5


def list_all_runs(printer: Printer, workspace: Path, print_json: Callable[[Mapping[str, object]], None] | None) -> None:
    """The state of each run, newest first."""
    rows: list[dict[str, object]] = []
    for run in list_runs(workspace):
        try:
            status = run.status()
        except DataError as error:  # a damaged log does not hide the other runs
            printer.warn(error.given)
            continue
        known = {"state": status.state, "step": status.step, "steps": status.steps, "checkpoint": status.checkpoint}
        rows.append({RUNS[name]: value for name, value in ({"run": run.name} | known).items()})
        if print_json is not None:
            print_json({"run": run.name, "path": str(run.path), **asdict(status)})
    if print_json is not None:
        return
    if rows:
        printer.table(rows)
    else:
        printer.say(terminal.runs_none(folder=str((workspace / "runs").resolve())))


def show_run(printer: Printer, run: Run) -> None:
    """The state of a run, its held-out divergences, its curves and its worst tokens."""
    events: list[dict[str, Any]] = current_events(run.read_events())
    steps = [event for event in events if event["kind"] == "step"]
    printer.rule(run.name)
    _show_state(printer, run)
    starts = [event for event in events if event["kind"] == "start"]
    for event in starts[:1]:
        printer.say(terminal.run_objective(objective=str(event.get("objective", "-"))))
    for event in starts[1:]:
        printer.say(terminal.run_resumed(step=int(event.get("step", 0)), time=str(event["time"])))
    for event in events:
        if event["kind"] == "alert":
            printer.warn(str(event["text"]))
    _show_evaluations(printer, [event for event in events if event["kind"] == "evaluation"])
    if steps:
        _show_curves(printer, steps)
        if steps[-1].get("worst_tokens"):
            _show_worst(printer, steps[-1])
    if run.model_path.is_dir():
        printer.rule()
        printer.say(terminal.run_model(path=str(run.model_path)))


def _show_state(printer: Printer, run: Run) -> None:
    status = run.status()
    if status.steps is None:
        state = terminal.run_state_open(state=status.state, step=status.step)
    else:
        state = terminal.run_state(state=status.state, step=status.step, steps=status.steps)
    printer.say(f"{state} {status.text}".strip())
    if status.state in ("died", "failed", "stopped") and status.checkpoint is not None:
        printer.say(terminal.run_checkpoint(step=status.checkpoint))
        printer.say_whole(f"  limbeck resume {run.path}", style="bold")


def _show_evaluations(printer: Printer, evaluations: Sequence[Mapping[str, Any]]) -> None:
    if not evaluations:
        return
    scored = evaluations[-1]["student_text_loss"] is not None
    printer.rule(RUNS["held_out_divergence" if scored else "held_out_cross_entropy"])
    printer.table([_evaluation_row(event, scored) for event in evaluations])
    last = evaluations[-1]["fresh_student_text"]
    num_prompts = evaluations[-1]["fixed_teacher_text"]["divergence"]["n"]
    printer.say(terminal.run_measured(num_prompts=num_prompts, num_tokens=last["num_tokens"]))


def _evaluation_row(event: Mapping[str, Any], scored: bool) -> dict[str, object]:
    fixed, fresh = event["fixed_teacher_text"], event["fresh_student_text"]
    truncated = fresh["cut_off_share"]
    counted = None if truncated is None else count_text(truncated, fixed["divergence"]["n"])
    return {
        RUNS["step"]: event["step"],
        RUNS["teacher_text" if scored else "reference_text"]: _interval(fixed),
        RUNS["student_text"]: _interval(fresh),
        RUNS["agreement"]: _share((fresh if scored else fixed)["agreement"]),
        RUNS["mean_length"]: f"{_number(fresh['mean_length']):,.0f}",
        RUNS["truncated"]: counted or _share(truncated),
    }


def _interval(measure: Mapping[str, Any]) -> str:
    value = measure["divergence"]
    if value is None:
        return "-"
    estimate, low, high = (_number(value[name]) for name in ("estimate", "low", "high"))
    return f"{estimate:.3f} ({low:.2f} to {high:.2f})"


def _share(value: object) -> str:
    return "-" if value is None else f"{_number(value):.0%}"


def _number(value: object) -> float:
    """A number of the log, in which NaN and Infinity are texts; anything else becomes NaN."""
    try:
        return float(str(value))
    except ValueError:
        return math.nan


def _show_curves(printer: Printer, steps: Sequence[Mapping[str, Any]]) -> None:
    printer.rule(RUNS["curves"])
    printer.table(
        [
            {
                "": label,
                RUNS["first"]: f"{values[0]:.3g}",
                RUNS["last"]: f"{values[-1]:.3g}",
                RUNS["curve"]: sparkline(values, NARROW_BARS if printer.out.width < PLAIN_WIDTH else NUM_BARS),
            }
            for name, label in CURVES.items()
            if (values := [_number(step[name]) for step in steps if step.get(name) is not None])
        ]
    )
    gaps = [str(step.get("step")) for step in steps if not math.isfinite(_number(step.get("loss")))]
    if len(gaps) > NUM_GAPS:
        printer.warn(terminal.run_loss_not_finite_more(steps=gaps[:NUM_GAPS], more=len(gaps) - NUM_GAPS))
    elif gaps:
        printer.warn(terminal.run_loss_not_finite(steps=gaps))


def _logprob(value: object) -> str | None:
    return None if value is None else f"{_number(value):z.2f}"  # without a minus before 0.00


def sparkline(values: Sequence[float], most: int = NUM_BARS) -> str:
    """A curve in one line of at most `most` bars: means over equal stretches; a cross is not a finite number."""
    num_bars = min(most, len(values))
    edges = [round(place * len(values) / num_bars) for place in range(num_bars + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    finite = [value for value in means if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    span = (high - low) or 1.0
    return "".join(
        BARS[min(len(BARS) - 1, int((value - low) / span * len(BARS)))] if math.isfinite(value) else GAP
        for value in means
    )


def _show_worst(printer: Printer, step: Mapping[str, Any]) -> None:
    printer.rule(terminal.run_worst_title(step=step["step"]))
    printer.table(
        [
            {
                RUNS["token"]: repr(worst["text"]),
                RUNS["nats"]: f"{worst['divergence']:.2f}",
                RUNS["student"]: _logprob(worst["student_logprob"]),
                RUNS["teacher"]: _logprob(worst["teacher_logprob"]),
                RUNS["prompt"]: worst["source"],
                RUNS["position"]: worst["position"],
            }
            for worst in step["worst_tokens"][:NUM_WORST]
        ]
    )
    printer.say(terminal.run_worst_legend())
