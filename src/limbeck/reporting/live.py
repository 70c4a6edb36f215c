"""The live view of a run in a terminal: notes, alerts and progress."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager

from limbeck.console import Printer
from limbeck.progress import RunView
from limbeck.reporting.messages import terminal
from limbeck.reporting.messages.labels import PHASES

__all__ = ["Screen", "live_view"]


@contextmanager
def live_view(printer: Printer) -> Generator[Screen]:
    """A screen for one run, closed at the end, also after an error."""
    screen = Screen(printer)
    try:
        yield screen
    finally:
        screen.close()


class Screen:
    """Shows the events of a run on stderr; the progress view lasts from the `start` event to the end of the run."""

    def __init__(self, printer: Printer) -> None:
        self._printer = printer
        self._view: RunView | None = None

    def take(self, event: Mapping[str, object]) -> None:
        """Show one event."""
        kind = event["kind"]
        if kind == "start":
            self._open(event)
        elif kind == "note":
            self._printer.progress(terminal.live_note(text=str(event["text"])))
        elif kind == "verdict":
            self._printer.progress(str(event["text"]))
        elif kind == "phase" and self._view is None:
            self._printer.progress(terminal.live_phase(phase=str(event["phase"])))
        if self._view is not None:
            self._view.update(event)
        if kind in ("done", "failed", "stopped"):
            self.close()

    def phase(self, phase: str) -> None:
        """Show the current phase of a step."""
        if self._view is not None:
            self._view.update({"kind": "phase", "phase": PHASES.get(phase, phase)})

    def _open(self, event: Mapping[str, object]) -> None:
        steps = event["steps"]
        assert isinstance(steps, int)
        self._printer.progress(terminal.live_objective(objective=str(event["objective"])))
        self._view = RunView(steps, self._printer.err, title=str(event["run"]))
        self._view.__enter__()

    def close(self) -> None:
        if self._view is not None:
            self._view.__exit__(None, None, None)
            self._view = None
