"""What `limbeck runs` and `limbeck show` show, from the run folder alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from limbeck.console import Printer
from limbeck.errors import DataError
from limbeck.runs.store import Run, current_events, list_runs

__all__ = ["list_all_runs", "show_run"]

BARS = "▁▂▃▄▅▆▇█"
GAP = "×"
NUM_BARS = 36
NUM_GAPS = 10
NUM_WORST = 5


def list_all_runs(printer: Printer, workspace: Path, print_json: Callable[[Mapping[str, object]], None] | None) -> None:
    """One line for each run, newest first."""
    rows: list[dict[str, object]] = []
    for run in list_runs(workspace):
        try:
            status = run.status()
        except DataError as error:  # one damaged log must not hide the other runs
            printer.warn(error.given)
            continue
        known = {"state": status.state, "step": status.step, "of": status.steps, "checkpoint": status.checkpoint}
        rows.append({"run": run.name, **known})
        if print_json is not None:
            print_json({"run": run.name, "path": str(run.path), **asdict(status)})
    if print_json is not None:
        return
    if rows:
        printer.table(rows)
    else:
        printer.say(f"No runs in {(workspace / 'runs').resolve()} yet. `limbeck demo` makes one.")


def show_run(printer: Printer, run: Run) -> None:
    """How a run ended, both held-out divergences, its curves and its worst tokens."""
    events: list[dict[str, Any]] = current_events(run.read_events())
    status = run.status()
    steps = [event for event in events if event["kind"] == "step"]
    printer.rule(run.name)
    printer.say(f"{status.state} after step {status.step} of {status.steps or '?'}. {status.text}".strip())
    if status.state in ("died", "failed", "stopped") and status.checkpoint is not None:
        printer.say(f"last checkpoint: step {status.checkpoint}; limbeck resume {run.path} goes on from there")
    starts = [event for event in events if event["kind"] == "start"]
    for event in starts[:1]:
        printer.say(f"objective: {event.get('objective', '-')}")
    for event in starts[1:]:
        printer.say(
            f"went on from step {event.get('step', 0)} at {event['time']}; what came after it before is left out"
        )
    for event in events:
        if event["kind"] == "alert":
            printer.warn(str(event["text"]))
    _show_evaluations(printer, [event for event in events if event["kind"] == "evaluation"])
    if steps:
        _show_curves(printer, steps)
        if steps[-1].get("worst_tokens"):
            _show_worst(printer, steps[-1])
    if run.model_path.is_dir():
        printer.say(f"model: {run.model_path}")


def _show_evaluations(printer: Printer, evaluations: Sequence[Mapping[str, Any]]) -> None:
    if not evaluations:
        return
    scored = evaluations[-1]["student_text_loss"] is not None
    what = "divergence" if scored else "cross-entropy of given answers"
    printer.rule(f"Held-out {what}, nats per token, with 95 % intervals")
    printer.table(
        [
            {
                "step": event["step"],
                "teacher's text" if scored else "given text": _interval(event["fixed_teacher_text"]),
                "student's text": _interval(event["fresh_student_text"]),
                "agree": _share(event["fresh_student_text" if scored else "fixed_teacher_text"]["agreement"]),
                "length": f"{_number(event['fresh_student_text']['mean_length']):.0f}",
                "cut off": _share(event["fresh_student_text"]["cut_off_share"]),
            }
            for event in evaluations
        ]
    )
    last = evaluations[-1]["fresh_student_text"]
    num_prompts = evaluations[-1]["fixed_teacher_text"]["divergence"]["n"]
    printer.say(f"{num_prompts} prompts, {last['num_tokens']} tokens of student text at the last evaluation.")


def _interval(measure: Mapping[str, Any]) -> str:
    value = measure["divergence"]
    if value is None:
        return "-"
    estimate, low, high = (_number(value[name]) for name in ("estimate", "low", "high"))
    return f"{estimate:.3f} ({low:.2f}-{high:.2f})"


def _share(value: object) -> str:
    return "-" if value is None else f"{_number(value):.0%}"


def _number(value: object) -> float:
    """A number as it is logged, NaN and Infinity as texts; what is none is not a number."""
    try:
        return float(str(value))
    except ValueError:
        return math.nan


def _show_curves(printer: Printer, steps: Sequence[Mapping[str, Any]]) -> None:
    printer.rule("Steps")
    printer.table(
        [
            {
                "": label,
                "first": f"{values[0]:.3g}",
                "last": f"{values[-1]:.3g}",
                "curve": sparkline(values),
            }
            for label, name in (
                ("loss, nats/token", "loss"),
                ("gradient norm", "grad_norm"),
                ("answer length", "mean_length"),
                ("cut off", "cut_off_share"),
                ("student entropy", "student_entropy"),
                ("teacher entropy", "teacher_entropy"),
                ("agreement", "agreement"),
                ("writing, µs/token", "write_us_per_token"),
                ("reading, µs/token", "score_us_per_token"),
                ("own answers, nats/token", "own_answers_loss"),
            )
            if (values := [_number(step[name]) for step in steps if step.get(name) is not None])
        ]
    )
    gaps = [str(step.get("step")) for step in steps if not math.isfinite(_number(step.get("loss")))]
    if gaps:
        printer.warn(
            f"The loss is no finite number at step {', '.join(gaps[:NUM_GAPS])}{', ...' * (len(gaps) > NUM_GAPS)}."
        )


def sparkline(values: Sequence[float]) -> str:
    """A curve in one line of text: means over equal stretches, from the lowest to the highest; a cross is no number."""
    num_bars = min(NUM_BARS, len(values))
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
    printer.rule(f"Worst tokens of step {step['step']}")
    printer.table(
        [
            {
                "token": repr(worst["text"]),
                "nats": f"{worst['divergence']:.2f}",
                "student": f"{worst['student_logprob']:.2f}",
                "teacher": "-" if worst["teacher_logprob"] is None else f"{worst['teacher_logprob']:.2f}",
                "answer to": worst["source"],
                "position": worst["position"],
            }
            for worst in step["worst_tokens"][:NUM_WORST]
        ]
    )
    printer.say("student, teacher: log-probability of this token under each, in nats")
