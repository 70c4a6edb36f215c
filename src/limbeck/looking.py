"""Functions that look at what is there, without torch: runs, their lineage, reports, exports."""

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
    """A run by its name or folder; a notebook shows how it ended, its held-out losses and its last steps.

    Raises:
        UsageError: there is no such run.
    """
    return find_run(run, workspace)


def lineage(run: str | Path | store.Run, *, workspace: str | Path = ".") -> Lineage:
    """What a run came from: the models and runs that it started from and learnt from."""
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
    """Copy a finished run's model or adapter to a folder, by default NAME-merged or NAME-adapter here.

    Raises:
        UsageError: the run has no such result yet, or the folder exists.
    """
    found = find_run(run, workspace)
    return export_run(found, to, Path(output if output is not None else f"{found.name}-{to}"))


def report(evaluation: str | Evaluation, output: str | Path | None = None, *, workspace: str | Path = ".") -> Path:
    """Write an evaluation, or the newest one of a run, as one page for a browser, by default to NAME.html here."""
    name = str(evaluation.path) if isinstance(evaluation, Evaluation) else evaluation
    return write_page(name, Path(workspace), None if output is None else Path(output))


def find_run(run: str | Path | store.Run, workspace: str | Path) -> Run:
    """A run by its name in a workspace, by its folder, or as it is."""
    return Run(run.path) if isinstance(run, store.Run) else Run.find(Path(workspace), str(run))
