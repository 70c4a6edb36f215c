"""What a run is doing, on a terminal or in a log, driven by the plain dicts of its event log alone."""

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

from limbeck.console import PLAIN_WIDTH, encodable, is_number, print_text

__all__ = ["RunView", "time_left_s"]

# Phases of a step, and the names under which events store their tokens per second.
PHASES = {"generation": "writing", "scoring": "reading", "update": "updating"}
NUM_RECENT_STEPS = 20
COLUMN_WIDTHS = (11, 8, 8, 9, 9, 7, 8, 11)


def time_left_s(step_times_s: Sequence[float], num_steps_left: int) -> tuple[float, float] | None:
    """The least and the most seconds that `num_steps_left` steps will take, judged by the steps so far.

    The 95 % prediction interval of a sum of R like steps after n were seen: mean·R ± 2·s·sqrt(R + R²/n), from the
    spread s of the steps. None before three steps.
    """
    num = len(step_times_s)
    if num < 3:
        return None
    centre = statistics.fmean(step_times_s) * num_steps_left
    half = 2 * statistics.stdev(step_times_s) * math.sqrt(num_steps_left + num_steps_left**2 / num)
    return max(centre - half, 0.0), centre + half


class RunView:
    """What a run is doing, from the events of its log: a moving panel on a terminal, elsewhere about twenty lines.

    Read from a `step` event: step, loss (nats per token), tokens per second of each phase, cut_off_share (0 to 1),
    memory_bytes and step_s; from a `phase` event: phase; from an `evaluation` event: step, teacher_text_loss and
    student_text_loss; from an `alert` event: text. What an event lacks is shown as a dash.
    """

    def __init__(self, steps: int, console: Console, *, title: str = "") -> None:
        self._steps = steps
        self._console = console
        self._title = Text(encodable(console, title), "bold")
        self._every = max(1, steps // 20)
        self._times_s: deque[float] = deque(maxlen=NUM_RECENT_STEPS)
        self._phase = ""
        self._number = 0
        self._figures = dict.fromkeys(("loss", *PHASES, "cut off", "memory"), "-")
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
        """Take in one event of the run. Kinds that have no place in this view change nothing."""
        kind = event.get("kind")
        if kind == "phase":
            self._phase = str(event.get("phase", ""))
        elif kind == "step":
            self._take_step(event)
        elif kind == "evaluation":
            on_teacher, on_student = _shown(event.get("teacher_text_loss")), _shown(event.get("student_text_loss"))
            losses = f"teacher text {on_teacher}, student text {on_student}"
            self._evaluation = f"{losses} at step {event.get('step', '-')}"
            if self._live is None:
                print_text(self._console, f"held-out {self._evaluation}")
        elif kind == "alert":
            print_text(self._console, f"alert: {event.get('text', '')}", "bold")

    def _take_step(self, event: Mapping[str, object]) -> None:
        first = self._number == 0
        number, took_s, memory = event.get("step"), event.get("step_s"), event.get("memory_bytes")
        self._number = number if isinstance(number, int) else self._number
        if is_number(took_s) and not first:  # the first step warms caches up and takes longer than the others
            self._times_s.append(took_s)
        self._figures = {
            "loss": _shown(event.get("loss")),
            **{phase: _shown(event.get(f"{stored}_tokens_per_s"), ",.0f") for phase, stored in PHASES.items()},
            "cut off": _shown(event.get("cut_off_share"), ".0%"),
            "memory": f"{memory / 2**30:.1f} GiB" if is_number(memory) else "-",
        }
        if first:
            self._first_loss = self._figures["loss"]
        if self._live is None and (first or number == self._steps or self._number % self._every == 0):
            if first:
                print_text(self._console, "loss in nats per token; generation, scoring and update in tokens per second")
                self._print_line("step", *self._figures, "time left")
            self._print_line(f"{self._number}/{self._steps}", *self._figures.values(), self._time_left())

    def _print_line(self, *cells: str) -> None:
        line = " ".join(f"{cell:>{width}}" for cell, width in zip(cells, COLUMN_WIDTHS, strict=True))
        print_text(self._console, line)

    def _time_left(self) -> str:
        if self._number >= self._steps:
            return "finished"
        span_s = time_left_s(self._times_s, self._steps - self._number)
        return "measuring" if span_s is None else _span(*span_s)

    def panel(self) -> RenderableType:
        """What the run is doing now, as one block."""
        figures = self._figures
        rows = {
            "step": f"{self._number} of {self._steps}, time left: {self._time_left()}",
            "now": self._phase or "-",
            "loss": f"{figures['loss']} nats per token, {self._first_loss} at first",
            "tokens/s": "   ".join(f"{phase} {figures[phase]}" for phase in PHASES),
            "cut off": f"{figures['cut off']} of practice answers   memory {figures['memory']}",
            "held out": self._evaluation,
        }
        grid = Table.grid(padding=(0, 2))
        grid.add_row("", ProgressBar(self._steps, self._number, width=60))
        for label, row in rows.items():
            grid.add_row(Text(label, "dim"), Text(encodable(self._console, row)))
        return Panel(grid, title=self._title, title_align="left", width=min(self._console.width, PLAIN_WIDTH))


def _shown(value: object, spec: str = ".4g") -> str:
    if value is None:
        return "-"
    return format(value, spec) if is_number(value) else str(value)  # a text is NaN or the like


def _span(low_s: float, high_s: float) -> str:
    """A range of time in one unit, short: "40-55 s", "55-70 min", "2.1-2.7 h"."""
    if high_s < 120:
        unit_s, unit, digits = 1, "s", 0
    elif high_s < 7200:
        unit_s, unit, digits = 60, "min", 0
    else:
        unit_s, unit, digits = 3600, "h", 1
    low, high = (f"{value / unit_s:.{digits}f}" for value in (low_s, high_s))
    return f"{high} {unit}" if low == high else f"{low}-{high} {unit}"
