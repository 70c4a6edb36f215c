"""Functions that read runs and evaluations without torch: list, show, lineage, report, export."""

from __future__ import annotations

from pathlib import Path

from limbeck.reporting.page import write_page
from limbeck.results import Lineage, Run, RunList
from limbeck.runs import store
from limbeck.runs.evaluations import Evaluation
from limbeck.runs.export import ExportForm, export_run
from limbeck.runs.lineage import lineage_of, other_teachers

__all__ = ["export", "find_run", "lineage", "list_runs", "report", "show"]


def list_runs(workspace: str | Path = ".") -> RunList:
    """All runs of a workspace, newest first."""
    return RunList(tuple(Run(run.path) for run in store.list_runs(Path(workspace))))


def show(run: str | Path | store.Run, *, workspace: str | Path = ".") -> Run:
    """A run by its name or folder; a notebook shows its status, held-out losses and last steps.

    Raises:
        UsageError: the run does not exist.
    """
    return find_run(run, workspace)


def lineage(run: str | Path | store.Run, *, workspace: str | Path = ".") -> Lineage:
    """The models and runs that a run started from, and its teachers."""
    found = find_run(run, workspace)
    root = lineage_of(found, found.path.parents[1] if isinstance(run, store.Run) else Path(workspace))
    return Lineage(root, other_teachers(root))


def export(
    run: str | Path | store.Run,
    to: ExportForm = "merged",
    output: str | Path | None = None,
    *,
    workspace: str | Path = ".",
) -> Path:
    """Copy a finished run's model or adapter to a folder, by default NAME-merged or NAME-adapter in the current
    directory.

    Raises:
        UsageError: the run has no model or adapter to export yet, or the output folder exists.
    """
    found = find_run(run, workspace)
    return export_run(found, to, Path(output if output is not None else f"{found.name}-{to}"))


def report(evaluation: str | Evaluation, output: str | Path | None = None, *, workspace: str | Path = ".") -> Path:
    """Write an evaluation, or a run's newest one, as an HTML page, by default NAME.html in the current directory."""
    name = str(evaluation.path) if isinstance(evaluation, Evaluation) else evaluation
    return write_page(name, Path(workspace), None if output is None else Path(output))


def find_run(run: str | Path | store.Run, workspace: str | Path) -> Run:
    """A run by its name in a workspace or by its folder; a run is returned as a `limbeck.Run`."""
    return Run(run.path) if isinstance(run, store.Run) else Run.find(Path(workspace), str(run))
