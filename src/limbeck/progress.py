"""The progress of a run on a terminal or in a log, from the events of its log alone."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from limbeck import messages
from limbeck.console import PLAIN_WIDTH, encodable, is_number, print_text
from limbeck.messages import PROGRESS_LABELS

__all__ = ["RunView", "time_left_s"]

# Phases of a step, and the names under which events store their tokens per second.
PHASES = {"generation": "writing", "scoring": "reading", "update": "updating"}
NUM_RECENT_STEPS = 20
NUM_LINES = 20  # in a log, however many steps there are
COLUMN_WIDTHS = (9, 7, 10, 9, 8, 9, 8, 11)


def time_left_s(step_times_s: Sequence[float], num_steps_left: int) -> tuple[float, float] | None:
    """The lower and upper bound, in seconds, of the time that `num_steps_left` more steps will take.

    The 95% prediction interval of the sum of R steps, after n steps with standard deviation s were measured:
    mean·R ± 2·s·sqrt(R + R²/n). None before three steps.
    """
    num = len(step_times_s)
    if num < 3:
        return None
    centre = statistics.fmean(step_times_s) * num_steps_left
    half = 2 * statistics.stdev(step_times_s) * math.sqrt(num_steps_left + num_steps_left**2 / num)
    return max(centre - half, 0.0), centre + half


class RunView:
    """The progress of a run, from the events of its log: a live panel on a terminal, about twenty lines elsewhere.

    Fields of a `step` event: step, loss (nats per token), tokens per second of each phase, cut_off_share (0 to 1),
    memory_bytes and step_s; of a `phase` event: phase; of an `evaluation` event: step, teacher_text_loss and
    student_text_loss; of an `alert` event: text. A missing field is shown as a dash.
    """

    def __init__(self, steps: int, console: Console, *, title: str = "") -> None:
        self._steps = steps
        self._console = console
        self._title = Text(encodable(console, title), "bold")
        self._every = max(1, steps // NUM_LINES)
        self._times_s: deque[float] = deque(maxlen=NUM_RECENT_STEPS)
        self._phase = ""
        self._number = 0
        self._figures = dict.fromkeys(("loss", *PHASES, "truncated", "memory"), "-")
        self._first_loss = self._evaluation = "-"
        self._live: Live | None = None
        if console.is_terminal:
            self._live = Live(console=console, get_renderable=self.panel, redirect_stdout=False, redirect_stderr=False)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start(refresh=True)
        return self

    def __exit__(self, *raised: object) -> None:
        self._phase = ""
        if self._live is not None:
            self._live.stop()

    def update(self, event: Mapping[str, object]) -> None:
        """Process one event of the run. Other kinds of events are ignored."""
        kind = event.get("kind")
        if kind == "phase":
            phase = str(event.get("phase", ""))
            self._phase = PROGRESS_LABELS.get(phase, phase)
        elif kind == "step":
            self._take_step(event)
        elif kind == "evaluation":
            on_teacher, on_student = _shown(event.get("teacher_text_loss")), _shown(event.get("student_text_loss"))
            self._evaluation = messages.progress_losses(
                teacher=on_teacher, student=on_student, step=str(event.get("step", "-"))
            )
            if self._live is None:
                print_text(self._console, messages.progress_held_out(losses=self._evaluation))
        elif kind == "alert":
            print_text(self._console, messages.progress_alert(text=str(event.get("text", ""))), "bold")

    def _take_step(self, event: Mapping[str, object]) -> None:
        first = self._number == 0
        number, took_s, memory = event.get("step"), event.get("step_s"), event.get("memory_bytes")
        self._number = number if isinstance(number, int) else self._number
        if is_number(took_s) and not first:  # the first step fills caches and takes longer than the others
            self._times_s.append(took_s)
        self._figures = {
            "loss": _shown(event.get("loss")),
            **{phase: _shown(event.get(f"{stored}_tokens_per_s"), ",.0f") for phase, stored in PHASES.items()},
            "truncated": _shown(event.get("cut_off_share"), ".0%"),
            "memory": f"{memory / 2**30:.1f} GiB" if is_number(memory) else "-",
        }
        if first:
            self._first_loss = self._figures["loss"]
        if self._live is None and (first or number == self._steps or self._number % self._every == 0):
            if first:
                print_text(self._console, messages.progress_units())
                self._print_line(*(PROGRESS_LABELS[name] for name in ("step", *self._figures, "time_left")))
            self._print_line(f"{self._number}/{self._steps}", *self._figures.values(), self._time_left())

    def _print_line(self, *cells: str) -> None:
        line, end = "", -1
        for cell, width in zip(cells, COLUMN_WIDTHS, strict=True):
            end += width + 1
            # a cell that is too wide takes space from the next ones
            line += " " * bool(line) + cell.rjust(end - len(line) - bool(line))
        print_text(self._console, line)

    def _time_left(self) -> str:
        if self._number >= self._steps:
            return PROGRESS_LABELS["finished"]
        span_s = time_left_s(self._times_s, self._steps - self._number)
        return PROGRESS_LABELS["measuring"] if span_s is None else _span(*span_s)

    def panel(self) -> RenderableType:
        """The current state of the run, as one block."""
        figures = self._figures
        rows = {
            "step": messages.progress_step(step=self._number, steps=self._steps, time_left=self._time_left()),
            "now": self._phase or "-",
            "loss": messages.progress_loss(loss=figures["loss"], first=self._first_loss),
            "tokens_per_s": "   ".join(f"{PROGRESS_LABELS[phase]} {figures[phase]}" for phase in PHASES),
            "truncated": messages.progress_truncated(share=figures["truncated"], memory=figures["memory"]),
            "held_out": self._evaluation,
        }
        grid = Table.grid(padding=(0, 2))
        grid.add_row("", ProgressBar(self._steps, self._number, width=60))
        for name, row in rows.items():
            grid.add_row(Text(PROGRESS_LABELS[name], "dim"), Text(encodable(self._console, row)))
        return Panel(grid, title=self._title, title_align="left", width=min(self._console.width, PLAIN_WIDTH))


def _shown(value: object, spec: str = ".4g") -> str:
    if value is None:
        return "-"
    return format(value, spec) if is_number(value) else str(value)  # NaN and infinity are stored as texts


def _span(low_s: float, high_s: float) -> str:
    """A range of time in one unit: "40-55 s", "55-70 min", "2.1-2.7 h"."""
    if high_s < 120:
        unit_s, unit, digits = 1, "s", 0
    elif high_s < 7200:
        unit_s, unit, digits = 60, "min", 0
    else:
        unit_s, unit, digits = 3600, "h", 1
    low, high = (f"{value / unit_s:.{digits}f}" for value in (low_s, high_s))
    return f"{high} {unit}" if low == high else f"{low}-{high} {unit}"
