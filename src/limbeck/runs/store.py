"""A run is a folder; this file knows the names and formats in it, for readers and for the one writer.

    runs/calm-otter-17/
    ├── recipe.yaml            the recipe as resolved
    ├── events.jsonl           one event per line, oldest first, only ever appended to
    ├── answers/NAME.jsonl     one answer per line, one file per set
    ├── marks/step-000050.safetensors
    ├── votes.jsonl
    ├── checkpoints/step-00000123/
    ├── model/                 the result
    ├── report.html
    └── run.lock               who writes; its modification time is the heartbeat

An event has a time (ISO 8601, UTC) and a kind. The kinds `start`, `done`, `failed` and `stopped` say how a run stands.
A run that was continued says in its `start` event after which step, and what a dead process did beyond that step is
superseded: see `current_events`. Everything here reads and writes without torch, and may be read while it is written.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from limbeck.errors import DataError, UsageError
from limbeck.names import check_name, inside, is_name, new_run_name
from limbeck.runs.atomic import write_text
from limbeck.runs.lines import LineWriter, event_line, iterate_lines, read_backwards, read_lines, write_failed
from limbeck.runs.lock import Holder, RunLock, look

__all__ = ["Run", "RunState", "RunStatus", "current_events", "event_line", "list_runs", "resolve_run", "runs_folder"]

RunState = Literal["running", "done", "failed", "stopped", "died"]
_ENDS: dict[object, RunState] = {"done": "done", "failed": "failed", "stopped": "stopped"}
_NUM_NAMES_TRIED = 20


@dataclass(frozen=True)
class RunStatus:
    """How a run stands. `died` means: no end in its log, and no process that writes it.

    `steps` is what the run set out to do, `text` what its end said, `holder` the process that writes it or did last.
    """

    state: RunState
    step: int
    steps: int | None
    text: str
    last_event: str | None
    holder: Holder | None
    heartbeat_age_s: float | None


class Run:
    """One run folder. Reading needs nothing; writing needs the lock, which `with run:` holds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = RunLock(path / "run.lock")
        self._events: LineWriter | None = None

    @classmethod
    def create(cls, workspace: Path, name: str | None, recipe_text: str = "") -> Run:
        """A new folder under `workspace`/runs, named `name` or with a name like calm-otter-17.

        Raises UsageError `run.exists` if the name is taken, `names.not-allowed` if it is none; Stopped if the disk
        does not take it.
        """
        folder = runs_folder(workspace)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = _new_folder(workspace, folder, name)
            for inner in ("answers", "marks", "checkpoints"):
                (path / inner).mkdir(mode=0o700)
        except OSError as error:
            raise write_failed(folder, 0, error) from error
        run = cls(path)
        LineWriter(run.events_path).close()
        if recipe_text:
            write_text(run.recipe_path, recipe_text)
        return run

    @classmethod
    def open(cls, path: Path) -> Run:
        """The run in the folder `path`. Raises UsageError `run.not-found` if that is no run."""
        if not (path / "events.jsonl").is_file():
            raise UsageError(
                "run.not-found",
                given=f"{path} is no run.",
                needed="A run is a folder with a file events.jsonl.",
                fix="`limbeck runs` lists the runs of a workspace.",
            )
        return cls(path)

    def __enter__(self) -> Self:
        """Take the lock for writing. Raises Refusal `run.locked` naming the process that has it."""
        self._lock.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._events is not None:
            self._events.close()
            self._events = None
        self._lock.release()

    # ------------------------------------------------------------------------------------------------------- names

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def recipe_path(self) -> Path:
        return self.path / "recipe.yaml"

    @property
    def events_path(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def model_path(self) -> Path:
        return self.path / "model"

    @property
    def checkpoints_path(self) -> Path:
        return self.path / "checkpoints"

    @property
    def votes_path(self) -> Path:
        return self.path / "votes.jsonl"

    @property
    def report_path(self) -> Path:
        return self.path / "report.html"

    def answers(self, name: str) -> Path:
        """The file of a set of answers. Raises UsageError for a name that is none."""
        return self.path / "answers" / f"{check_name(name, what='set of answers')}.jsonl"

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints_path / f"step-{step:08d}"

    def marks(self, step: int) -> Path:
        return self.path / "marks" / f"step-{step:06d}.safetensors"

    # ------------------------------------------------------------------------------------------------------ events

    def append_event(self, event: Mapping[str, object]) -> None:
        """Add one event, with the time, as the last line of the log. Ends of a run wait until the disk has them."""
        assert self._lock.held, "only the holder of the lock may write: use `with run:`"
        assert isinstance(event.get("kind"), str), "an event has a kind"
        assert "time" not in event, "the log gives an event its time"
        if self._events is None:
            self._events = LineWriter(self.events_path)
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self._events.append(event_line({"time": now, **event}), durable=event["kind"] in _ENDS)

    def read_events(self) -> list[dict[str, object]]:
        """All events so far, oldest first. An event that is being written, or was torn by a crash, is not there."""
        return self.tail_events(0)[0]

    def tail_events(self, offset: int) -> tuple[list[dict[str, object]], int]:
        """The events after byte `offset` (0 for all) and the offset to ask from next time."""
        return read_lines(self.events_path, offset)

    # ----------------------------------------------------------------------------------------------------- answers

    def write_answers(self, name: str, rows: Iterable[Mapping[str, object]]) -> None:
        """Write a whole set of answers; a reader sees the old set or the new one."""
        assert self._lock.held, "only the holder of the lock may write: use `with run:`"
        write_text(self.answers(name), "".join(event_line(row) for row in rows))

    def read_answers(self, name: str) -> list[dict[str, object]]:
        """A set of answers. Raises DataError `run.answers-missing` naming the sets that there are."""
        path = self.answers(name)
        if not path.is_file():
            there = ", ".join(self.answer_sets()) or "none"
            raise DataError(
                "run.answers-missing",
                given=f"The run {self.name} has no answers called {name}.",
                needed=f"These are there: {there}.",
                fix="Ask for one of them.",
            )
        return read_lines(path)[0]

    def answer_sets(self) -> list[str]:
        """The names of all sets of answers, sorted."""
        return sorted(path.stem for path in (self.path / "answers").glob("*.jsonl") if is_name(path.stem))

    # ------------------------------------------------------------------------------------------------------ status

    def status(self) -> RunStatus:
        """How the run stands now, from the end of its log and from its lock."""
        lock = look(self.path / "run.lock")
        standing: dict[str, object] = {}
        step: int | None = None
        last_event: str | None = None
        for event in read_backwards(self.events_path):
            last_event = last_event or str(event.get("time"))
            if step is None and isinstance(number := event.get("step"), int) and event.get("kind") in ("step", "start"):
                step = number
            if not standing and (event.get("kind") in _ENDS or event.get("kind") == "start"):
                standing = event
            if standing and step is not None:
                break
        state = "running" if lock.held else _ENDS.get(standing.get("kind"), "died")
        text = "" if lock.held else str(standing.get("text", ""))
        return RunStatus(state, step or 0, self._steps(), text, last_event, lock.holder, lock.heartbeat_age_s)

    def _steps(self) -> int | None:
        """What the run set out to do, from its first `start` event, which stands before every step."""
        for event, _ in iterate_lines(self.events_path):
            if event.get("kind") in ("start", "step"):
                steps = event.get("steps")
                return steps if isinstance(steps, int) else None
        return None

    def created(self) -> str:
        """The time of the first event, or that of the folder if there is none that can be read."""
        with suppress(DataError):
            for event, _ in iterate_lines(self.events_path):
                return str(event.get("time"))
        return datetime.fromtimestamp(self.path.stat().st_mtime, UTC).isoformat(timespec="milliseconds")


def _new_folder(workspace: Path, folder: Path, name: str | None) -> Path:
    if name is not None:
        path = inside(workspace, folder / check_name(name))
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            raise UsageError(
                "run.exists",
                given=f"A run called {name} exists in {folder}.",
                needed="A new run gets a folder of its own, so that it cannot mix with an older one.",
                fix="Choose another name, or leave the name out and get a new one.",
            ) from None
        return path
    for _ in range(_NUM_NAMES_TRIED - 1):
        path = folder / new_run_name([each.name for each in folder.iterdir()])
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:  # another process drew the same name at the same moment
            continue
        return path
    return _new_folder(workspace, folder, new_run_name([each.name for each in folder.iterdir()]))


def runs_folder(workspace: Path) -> Path:
    """Where the runs of a workspace lie."""
    return inside(workspace, "runs")


def list_runs(workspace: Path) -> list[Run]:
    """All runs of a workspace, newest first. What is no run, or leads out of the workspace, is left out."""
    folder = runs_folder(workspace)
    if not folder.is_dir():
        return []
    found = [
        Run(path)
        for path in folder.iterdir()
        if is_name(path.name) and not path.is_symlink() and (path / "events.jsonl").is_file()
    ]
    return sorted(found, key=lambda run: (run.created(), run.name), reverse=True)


def resolve_run(workspace: Path, name: str) -> Run:
    """The run called `name`. Raises UsageError `run.not-found` with the names that are like it."""
    path = inside(workspace, runs_folder(workspace) / check_name(name))
    if (path / "events.jsonl").is_file():
        return Run(path)
    names = [run.name for run in list_runs(workspace)]
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    fix = "`limbeck runs` lists the runs of a workspace; --workspace names another one."
    raise UsageError(
        "run.not-found",
        given=f"No run in {runs_folder(workspace)} is called {name}.",
        needed=f"{len(names)} runs are there." if names else "There is no run yet.",
        fix=f"Did you mean {' or '.join(near)}?" if near else fix,
    )


def current_events(events: Iterable[dict[str, object]]) -> list[dict[str, object]]:
    """The events without those that a continued run superseded.

    A run that goes on from the checkpoint of step k writes `start` with `step` k; what an earlier process logged for
    steps after k is then not part of the run any more, and those steps come again.
    """
    kept: list[dict[str, object]] = []
    for event in events:
        step = event.get("step")
        if event.get("kind") == "start" and isinstance(step, int):
            kept = [old for old in kept if not _is_after(old, step)]
        kept.append(event)
    return kept


def _is_after(event: dict[str, object], step: int) -> bool:
    number = event.get("step")
    return isinstance(number, int) and number > step
