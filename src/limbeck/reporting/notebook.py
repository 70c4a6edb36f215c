"""The progress of a run in a notebook cell."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from limbeck.console import PLAIN_WIDTH, encodable
from limbeck.progress import RunView

__all__ = ["Listener", "NotebookScreen", "Watcher", "in_notebook", "progress"]

Listener = Callable[[Mapping[str, object]], None]
Watcher = Callable[[str], None]


NUM_LINES = 5


def progress(listen: Listener | None, watch: Watcher | None) -> tuple[Listener, Watcher]:
    """What is called with events and phases: what the caller gave; in a notebook, where nothing is, a display."""
    if listen is None and in_notebook():
        screen = NotebookScreen()
        return screen.take, watch or screen.phase
    return listen or (lambda event: None), watch or (lambda phase: None)


def in_notebook() -> bool:
    """Whether this process is a notebook kernel. Does not import IPython."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return any(kind.__name__ == "ZMQInteractiveShell" for kind in type(shell).__mro__)


class NotebookScreen:
    """Shows the events of a run in one output of a notebook cell, rendered by rich."""

    def __init__(self) -> None:
        self._console = Console(file=io.StringIO(), width=PLAIN_WIDTH, force_terminal=False, force_jupyter=False)
        self._view: RunView | None = None
        self._lines: list[str] = []
        self._shown: Any = None

    def take(self, event: Mapping[str, object]) -> None:
        """Show one event of a run or an evaluation."""
        kind = event.get("kind")
        if kind == "start":
            steps = event.get("steps")
            self._view = RunView(steps if isinstance(steps, int) else 0, self._console, title=str(event.get("run")))
        if self._view is not None:
            self._view.update(event)
        if kind in ("alert", "verdict", "stopped", "failed") or (kind == "phase" and self._view is None):
            self._lines = [*self._lines, str(event.get("text", event.get("phase")))][-NUM_LINES:]
        self._show()

    def phase(self, phase: str) -> None:
        """Show the current phase of a step."""
        if self._view is not None:
            self._view.update({"kind": "phase", "phase": phase})
            self._show()

    def _show(self) -> None:
        lines = [Text(encodable(self._console, line)) for line in self._lines]
        parts: list[RenderableType] = [*([] if self._view is None else [self._view.panel()]), *lines]
        if not parts:
            return
        if self._shown is None:
            self._shown = import_module("IPython.display").display(_Drawn(parts), display_id=True)
        else:
            self._shown.update(_Drawn(parts))


class _Drawn:
    """The output of rich as HTML and as plain text."""

    def __init__(self, parts: list[RenderableType]) -> None:
        console = Console(file=io.StringIO(), width=PLAIN_WIDTH, record=True, force_jupyter=False)
        console.print(Group(*parts))
        self._html = console.export_html(inline_styles=True, code_format="<pre>{code}</pre>", clear=False)
        self._text = console.export_text()

    def _repr_mimebundle_(self, **options: object) -> dict[str, str]:
        return {"text/html": self._html, "text/plain": self._text}
