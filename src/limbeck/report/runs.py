"""What `limbeck runs` and `limbeck show` show, from the run folder alone."""

from __future__ import annotations

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
NUM_BARS = 36
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
        rows.append({"run": run.name, "state": status.state, "step": status.step, "of": status.steps})
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
    for event in events:
        if event["kind"] == "start":
            printer.say(f"objective: {event['objective']}")
        elif event["kind"] == "alert":
            printer.warn(str(event["text"]))
    _show_evaluations(printer, [event for event in events if event["kind"] == "evaluation"])
    if steps:
        _show_curves(printer, steps)
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
                "length": f"{event['fresh_student_text']['mean_length']:.0f}",
                "cut off": f"{event['fresh_student_text']['cut_off_share']:.0%}",
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
    return f"{value['estimate']:.3f} ({value['low']:.2f}-{value['high']:.2f})"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


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
            if (values := [float(step[name]) for step in steps if step.get(name) is not None])
        ]
    )


def sparkline(values: Sequence[float]) -> str:
    """A curve in one line of text: means over equal stretches, from the lowest to the highest value."""
    num_bars = min(NUM_BARS, len(values))
    edges = [round(place * len(values) / num_bars) for place in range(num_bars + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    span = (high - low) or 1.0
    return "".join(BARS[min(len(BARS) - 1, int((value - low) / span * len(BARS)))] for value in means)


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
