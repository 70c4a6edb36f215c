"""A run while it runs: notes and alerts as they come, and the moving view."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager

from limbeck.console import Printer
from limbeck.progress import RunView

__all__ = ["Screen", "on_screen"]


@contextmanager
def on_screen(printer: Printer) -> Generator[Screen]:
    """A screen for one run, put away at the end whatever happens."""
    screen = Screen(printer)
    try:
        yield screen
    finally:
        screen.close()


class Screen:
    """Shows a run's events on stderr; the moving view lasts from its `start` event to its end."""

    def __init__(self, printer: Printer) -> None:
        self._printer = printer
        self._view: RunView | None = None

    def take(self, event: Mapping[str, object]) -> None:
        kind = event["kind"]
        if kind == "start":
            self._open(event)
        elif kind == "note":
            self._printer.progress(f"note: {event['text']}")
        elif kind == "verdict":
            self._printer.progress(str(event["text"]))
        elif kind == "phase" and self._view is None:
            self._printer.progress(f"{event['phase']} ...")
        if self._view is not None:
            self._view.update(event)
        if kind in ("done", "failed", "stopped"):
            self.close()

    def phase(self, phase: str) -> None:
        """The phase that a step is in now."""
        if self._view is not None:
            self._view.update({"kind": "phase", "phase": phase})

    def _open(self, event: Mapping[str, object]) -> None:
        steps = event["steps"]
        assert isinstance(steps, int)
        self._printer.progress(f"objective: {event['objective']}")
        self._view = RunView(steps, self._printer.err, title=str(event["run"]))
        self._view.__enter__()

    def close(self) -> None:
        if self._view is not None:
            self._view.__exit__(None, None, None)
            self._view = None
