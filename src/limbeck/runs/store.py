"""A run is a folder; this file knows the names and formats in it, for readers and for the one writer.

    runs/calm-otter-17/
    ├── recipe.yaml            the recipe as resolved
    ├── events.jsonl           one event per line, oldest first, only ever appended to
    ├── answers/NAME.jsonl     one answer per line, one file per set
    ├── marks/step-000050.safetensors    see marks.py
    ├── checkpoints/step-00000123/
    ├── adapter/               what a run with lora trained, in peft's format
    ├── model/                 the result, whole
    └── run.lock               who writes; its time is the heartbeat

An event has a time (ISO 8601, UTC) and a kind. The kinds `start`, `done`, `failed` and `stopped` say how a run stands.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, Self

from limbeck.errors import DataError, UsageError
from limbeck.names import check_name, inside, is_name, new_run_name
from limbeck.runs.lines import append_line, event_line, iterate_lines, write_failed, write_text
from limbeck.runs.lock import Holder, RunLock, look

__all__ = [
    "Run",
    "RunState",
    "RunStatus",
    "current_events",
    "event_line",
    "find_run",
    "list_runs",
    "new_folder",
    "resolve_run",
    "runs_folder",
]

RunState = Literal["running", "done", "failed", "stopped", "died"]
_ENDS: dict[object, RunState] = {"done": "done", "failed": "failed", "stopped": "stopped"}


@dataclass(frozen=True)
class RunStatus:
    """How a run stands. `died` means: no end in its log, and no process that writes it."""

    state: RunState
    step: int
    steps: int | None  # what it set out to do
    text: str  # what its end said
    last_event: str | None  # its time
    holder: Holder | None  # the process that writes it, or did last


class Run:
    """One run folder. Reading needs nothing; writing needs the lock, which `with run:` holds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name
        self.recipe_path = path / "recipe.yaml"
        self.events_path = path / "events.jsonl"
        self.checkpoints_path = path / "checkpoints"
        self.adapter_path = path / "adapter"
        self.model_path = path / "model"
        self._lock_path = path / "run.lock"
        self._lock = RunLock(self._lock_path)

    @classmethod
    def create(cls, workspace: Path, name: str | None) -> Run:
        """A new folder under `workspace`/runs, named `name` or with a name like calm-otter-17.

        Raises UsageError for a name that is taken or is none, Stopped if the disk does not take the folder.
        """
        run = cls(new_folder(workspace, "run", name))
        (run.path / "answers").mkdir()
        run.events_path.touch()
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

    def __exit__(self, *raised: object) -> None:
        self._lock.release()

    def append_event(self, event: Mapping[str, object]) -> None:
        """Add one event, with the time, as the last line of the log. Ends of a run wait until the disk has them."""
        assert self._lock.held, "only the holder of the lock may write: use `with run:`"
        assert isinstance(event.get("kind"), str), "an event has a kind"
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        append_line(self.events_path, event_line({"time": now, **event}), durable=event["kind"] in _ENDS)

    def read_events(self) -> list[dict[str, object]]:
        """All events so far, oldest first. An event that is being written, or was torn by a crash, is not there."""
        return list(iterate_lines(self.events_path))

    def answers(self, name: str) -> Path:
        """The file of a set of answers. Raises UsageError for a name that is none."""
        return self.path / "answers" / f"{check_name(name, what='set of answers')}.jsonl"

    def write_answers(self, name: str, rows: Iterable[Mapping[str, object]]) -> None:
        """Write a whole set of answers; a reader sees the old set or the new one."""
        assert self._lock.held, "only the holder of the lock may write: use `with run:`"
        write_text(self.answers(name), "".join(event_line(row) for row in rows))

    def read_answers(self, name: str) -> list[dict[str, object]]:
        """A set of answers. Raises DataError if there is none of this name."""
        return list(iterate_lines(self.answers(name)))

    def answer_sets(self) -> list[str]:
        """The names of all sets of answers, sorted."""
        return sorted(path.stem for path in (self.path / "answers").glob("*.jsonl") if is_name(path.stem))

    def status(self) -> RunStatus:
        """How the run stands now, from its log and its lock."""
        held, holder = look(self._lock_path)
        state: RunState = "died"
        step, steps, text, last_event = 0, None, "", None
        for event in iterate_lines(self.events_path):
            kind, last_event = event.get("kind"), str(event.get("time"))
            if kind in ("start", "step"):
                step = _step(event)
            if kind == "start":
                steps = event.get("steps")
            if kind == "start" or kind in _ENDS:
                state, text = _ENDS.get(kind, "died"), str(event.get("text", ""))
        if held:
            state, text = "running", ""
        return RunStatus(state, step, steps if isinstance(steps, int) else None, text, last_event, holder)


def new_folder(workspace: Path, kind: Literal["run", "evaluation"], name: str | None) -> Path:
    """A new folder in `workspace`/runs or evaluations, named `name` or with a name like calm-otter-17.

    Raises UsageError for a name that is taken or is none, Stopped if the disk does not take the folder.
    """
    folder = inside(workspace, f"{kind}s")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        taken = [path.name for path in folder.iterdir()]
        path = inside(workspace, folder / (new_run_name(taken) if name is None else check_name(name, what=kind)))
        try:
            path.mkdir(mode=0o700)
        except FileExistsError as error:  # of an earlier start, or of one at this moment
            raise UsageError(
                f"{kind}.exists",
                given=f"The {kind} {path.name} exists in {folder}.",
                needed="A new one gets a folder of its own, so that it cannot mix with an older one.",
                fix="Choose another name, or leave the name out and get a new one.",
            ) from error
    except OSError as error:
        raise write_failed(folder, error) from error
    return path


def runs_folder(workspace: Path) -> Path:
    """Where the runs of a workspace lie."""
    return inside(workspace, "runs")


def list_runs(workspace: Path) -> list[Run]:
    """All runs of a workspace, newest first. What is no run, or leads out of the workspace, is left out."""
    logs = runs_folder(workspace).glob("*/events.jsonl")
    runs = [Run(log.parent) for log in logs if is_name(log.parent.name) and not log.parent.is_symlink()]
    return sorted(runs, key=lambda run: (_created(run), run.name), reverse=True)


def resolve_run(workspace: Path, name: str) -> Run:
    """The run called `name`. Raises UsageError `run.not-found` with the names that are like it."""
    path = inside(workspace, runs_folder(workspace) / check_name(name))
    if (path / "events.jsonl").is_file():
        return Run(path)
    names = [run.name for run in list_runs(workspace)]
    near = difflib.get_close_matches(name, names, cutoff=0.5)
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
        if event.get("kind") == "start":
            kept = [old for old in kept if _step(old) <= _step(event)]
        kept.append(event)
    return kept


def _step(event: Mapping[str, object]) -> int:
    """The step that an event belongs to; 0 for what belongs to none."""
    step = event.get("step")
    return step if isinstance(step, int) else 0


def _created(run: Run) -> str:
    """The time of the first event; empty if there is none that can be read."""
    try:
        return str(next(iterate_lines(run.events_path), {}).get("time", ""))
    except DataError:
        return ""


def find_run(name: str, workspace: Path) -> Run:
    """A run by the path of its folder or by its name in the workspace."""
    path = Path(name)
    if path.name != name or (path / "events.jsonl").is_file():
        return Run.open(path)
    return resolve_run(workspace, name)
