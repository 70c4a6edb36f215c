"""What a run is doing, on a terminal or in a log, driven by the plain dicts of its event log.

The view knows nothing of the training that it shows, so it serves a run in this process and one elsewhere alike.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from limbeck.console import PLAIN_WIDTH, encodable, is_number, print_text, safe

__all__ = ["RunView", "time_left_s"]


def time_left_s(step_times_s: Sequence[float], num_steps_left: int) -> tuple[float, float] | None:
    """The least and the most seconds that `num_steps_left` steps will take, judged by the steps so far.

    The 95 % prediction interval of a sum of R like steps after n were seen: mean·R ± 2·s·sqrt(R + R²/n), from the
    spread s of the steps. It knows nothing of steps that will be unlike the recent ones. None before three steps.
    """
    num = len(step_times_s)
    if num < 3:
        return None
    centre = statistics.fmean(step_times_s) * num_steps_left
    half = 2 * statistics.stdev(step_times_s) * math.sqrt(num_steps_left + num_steps_left**2 / num)
    return max(centre - half, 0.0), centre + half


class RunView:
    """What a run is doing, from the events of its log: a moving panel on a terminal, elsewhere a line every N steps.

    Read from a `step` event: step, loss (nats per token), writing_tokens_per_s, reading_tokens_per_s,
    updating_tokens_per_s, cut_off_share (0 to 1), memory_bytes and step_s; from a `phase` event: phase; from an
    `evaluation` event: step, teacher_text_loss and student_text_loss, the held-out divergence on fixed teacher text and
    on fresh student text; from an `alert` event: text. What an event lacks is shown as a dash.
    """

    PHASES = ("writing", "reading", "updating")
    NUM_RECENT_STEPS = 20

    def __init__(
        self,
        steps: int,
        console: Console,
        interactive: bool,
        *,
        title: str = "",
        every: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._steps = steps
        self._console = console
        self._title = title
        self._every = every if every is not None else max(1, steps // 20)
        self._clock = clock
        self._last_time: float | None = None
        self._times_s: deque[float] = deque(maxlen=self.NUM_RECENT_STEPS)
        self._phase = ""
        self._step: Mapping[str, object] = {}
        self._first_loss = ""
        self._evaluation = ""
        self._num_lines = 0
        self._live = Live(
            console=console,
            get_renderable=self._panel,
            refresh_per_second=4,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._interactive = interactive

    def __enter__(self) -> Self:
        self._last_time = self._clock()
        if self._interactive:
            self._live.start(refresh=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._phase = ""
        if self._interactive:
            self._live.stop()

    def update(self, event: Mapping[str, object]) -> None:
        """Take in one event of the run. Kinds that have no place in this view change nothing."""
        kind = event.get("kind")
        if kind == "phase":
            self._phase = encodable(self._console, str(event.get("phase", "")))
        elif kind == "step":
            self._take_step(event)
        elif kind == "evaluation":
            losses = (
                f"teacher text {_loss(event, 'teacher_text_loss')}, student text {_loss(event, 'student_text_loss')}"
            )
            said = f"held-out {losses} at step {event.get('step', '-')}"
            self._evaluation = encodable(self._console, said)
            if not self._interactive:
                print_text(self._console, self._evaluation)
        elif kind == "alert":
            print_text(self._console, f"alert: {event.get('text', '')}", "bold")

    def _take_step(self, event: Mapping[str, object]) -> None:
        now = self._clock()
        took_s = event.get("step_s")
        if isinstance(took_s, int | float) and math.isfinite(took_s):
            self._times_s.append(took_s)
        elif self._last_time is not None:
            self._times_s.append(now - self._last_time)
        self._last_time = now
        first = not self._step
        if first:
            self._first_loss = _loss(event)
        self._step = event
        number = self._number()
        if not self._interactive and (first or number == self._steps or number % self._every == 0):
            self._print_line()

    def _print_line(self) -> None:
        if self._num_lines == 0:
            print_text(self._console, "loss in nats per token; writing, reading and updating in tokens per second")
            print_text(self._console, _columns("step", "loss", *self.PHASES, "cut off", "memory", "time left"))
        self._num_lines += 1
        print_text(self._console, _columns(self._progress(), *self._figures(), self._left()))

    def _figures(self) -> Iterable[str]:
        yield _loss(self._step)
        for phase in self.PHASES:
            yield _rate(self._step.get(f"{phase}_tokens_per_s"))
        share = self._step.get("cut_off_share")
        yield f"{share:.0%}".replace("%", " %") if is_number(share) else "-"
        memory = self._step.get("memory_bytes")
        yield f"{memory / 2**30:.1f} GiB" if is_number(memory) else "-"

    def _progress(self) -> str:
        return f"{self._number()}/{self._steps}"

    def _number(self) -> int:
        number = self._step.get("step")
        return number if isinstance(number, int) else 0

    def _left(self) -> str:
        number = self._number()
        if number >= self._steps:
            return "finished"
        # The first step warms caches up and takes longer than the others.
        times_s = list(self._times_s)[1:] if 3 < len(self._times_s) < self.NUM_RECENT_STEPS else list(self._times_s)
        span_s = time_left_s(times_s, self._steps - number)
        return "measuring" if span_s is None else _span(*span_s)

    def _panel(self) -> RenderableType:
        loss, writing, reading, updating, cut_off, memory = self._figures()
        bar = ProgressBar(total=self._steps, completed=self._number(), width=40)
        phases = Text("   ").join(
            Text(phase, style="bold reverse" if phase == self._phase else "")
            for phase in ((*self.PHASES, self._phase) if self._phase not in ("", *self.PHASES) else self.PHASES)
        )
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim")
        grid.add_column()
        progress = Table.grid(padding=(0, 2))
        progress.add_row(Text(f"{self._number()} of {self._steps}"), bar)
        grid.add_row("step", progress)
        grid.add_row("now", phases)
        begun = f", {self._first_loss} at first" if self._first_loss else ""
        grid.add_row("loss", Text(f"{loss} nats per token{begun}"))
        grid.add_row("tokens/s", Text(f"writing {writing}   reading {reading}   updating {updating}"))
        grid.add_row("cut off", Text(f"{cut_off} of practice answers   memory {memory}"))
        if self._evaluation:
            grid.add_row("held out", Text(self._evaluation.removeprefix("held-out ")))
        grid.add_row("left", Text(self._left()))
        title = Text(encodable(self._console, self._title), style="bold")
        title.truncate(60, overflow="ellipsis")
        return Panel(grid, title=title, title_align="left", width=min(self._console.width, PLAIN_WIDTH))


def _columns(*cells: str) -> str:
    widths = (11, 8, 8, 8, 9, 8, 9, 11)
    return " ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))


def _loss(event: Mapping[str, object], key: str = "loss") -> str:
    value = event.get(key)
    if is_number(value):
        return f"{value:.4f}" if abs(value) < 100 else f"{value:.3g}"
    odd = event.get("not_finite")
    return safe(str(odd[key])) if isinstance(odd, Mapping) and key in odd else "-"


def _rate(value: object) -> str:
    if not is_number(value):
        return "-"
    return f"{value:,.0f}" if value < 1e6 else f"{value / 1e6:.1f}M"


def _span(low_s: float, high_s: float) -> str:
    """A range of time in one unit, short: "40-55 s", "55-70 min", "2.1-2.7 h", "3.5-4.0 d"."""
    for limit_s, unit_s, unit, digits in (
        (120, 1, "s", 0),
        (7200, 60, "min", 0),
        (172_800, 3600, "h", 1),
        (8_640_000, 86_400, "d", 1),
    ):
        if high_s < limit_s:
            low, high = (f"{value / unit_s:.{digits}f}" for value in (low_s, high_s))
            return f"{high} {unit}" if low == high else f"{low}-{high} {unit}"
    return "over 99 d"
