"""The terminal view of `limbeck lineage`."""

from __future__ import annotations

from pathlib import Path

from limbeck.console import Printer
from limbeck.runs.lineage import LineageNode, lineage_of, other_teachers
from limbeck.runs.store import Run

__all__ = ["show_lineage"]


def show_lineage(printer: Printer, run: Run, workspace: Path) -> None:
    """The run, and below it the models and runs it was made from, as a tree."""
    root = lineage_of(run, workspace)
    printer.say(f"{root.name}  ({root.about})", style="bold")
    _show(printer, root, "")
    warning = other_teachers(root)
    if warning:
        printer.warn(warning)


def _show(printer: Printer, node: LineageNode, indent: str) -> None:
    for parent in node.parents:
        last = parent is node.parents[-1]
        printer.say(f"{indent}{'└' if last else '├'}─ {parent.role}: {parent.name}  ({parent.about})")
        _show(printer, parent, indent + ("   " if last else "│  "))
