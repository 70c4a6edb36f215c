"""The folder of a run: the names and formats of its files, for readers and for the one writer.

    runs/calm-otter-17/
    ├── recipe.yaml            the recipe as resolved
    ├── events.jsonl           one event per line, oldest first, only ever appended to
    ├── answers/NAME.jsonl     one answer per line, one file per set
    ├── marks/step-000050.safetensors    see marks.py
    ├── inputs/                rows and the student's first weights, where they were given as objects
    ├── checkpoints/step-00000123/
    ├── adapter/               the trained adapter of a LoRA run, in peft's format
    ├── model/                 the final model, adapters merged
    └── run.lock               the process that writes; its time is the heartbeat

An event has a time (ISO 8601, UTC) and a kind; the first also has the format of the folder (see lines.py). The kinds
`start`, `done`, `failed` and `stopped` set the run's state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from limbeck.errors import DataError
from limbeck.names import is_name
from limbeck.runs.folder import LockedFolder
from limbeck.runs.lines import FORMAT, append_line, event_line, iterate_lines, with_time
from limbeck.runs.lock import Holder, lock_status

__all__ = ["Run", "RunState", "RunStatus", "WriteEvent", "current_events", "list_runs"]

RunState = Literal["running", "done", "failed", "stopped", "died"]
WriteEvent = Callable[..., None]  # takes the kind of an event and its fields
_ENDS: dict[object, RunState] = {"done": "done", "failed": "failed", "stopped": "stopped"}


@dataclass(frozen=True)
class RunStatus:
    """The state of a run. `died`: its log has no end, and no process writes it."""

    state: RunState
    step: int
    steps: int | None  # the recipe's number of steps
    text: str  # the text of its end
    last_event: str | None  # its time
    holder: Holder | None  # the process that writes it, or the last one
    checkpoint: int | None  # the step of its newest checkpoint


class Run(LockedFolder):
    """One run folder."""

    kind = "run"
    marker = "events.jsonl"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.recipe_path = path / "recipe.yaml"
        self.events_path = path / self.marker
        self.checkpoints_path = path / "checkpoints"
        self.adapter_path = path / "adapter"
        self.model_path = path / "model"

    @classmethod
    def create(cls, workspace: Path, name: str | None) -> Self:
        """A new run in a workspace, with an empty log; errors as in `LockedFolder.create`."""
        run = super().create(workspace, name)
        run.events_path.touch()
        return run

    def append_event(self, event: Mapping[str, object]) -> None:
        """Append one event with its time to the log. An end of the run is on disk when this returns."""
        self._needs_lock()
        assert isinstance(event.get("kind"), str), "an event has a kind"
        first = FORMAT if self.events_path.stat().st_size == 0 else {}
        append_line(self.events_path, event_line({**with_time(event), **first}), durable=event["kind"] in _ENDS)

    def read_events(self) -> list[dict[str, object]]:
        """All events so far, oldest first, without one that is being written or was cut by a crash."""
        return list(iterate_lines(self.events_path))

    def answer_sets(self) -> list[str]:
        """The names of all answer sets, sorted."""
        return sorted(path.stem for path in (self.path / "answers").glob("*.jsonl") if is_name(path.stem))

    def status(self) -> RunStatus:
        """The current state, from the log and the lock."""
        held, holder = lock_status(self.path / "run.lock")
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
        names = (path.name.removeprefix("step-") for path in self.checkpoints_path.glob("step-*"))
        checkpoint = max((int(name) for name in names if name.isdecimal()), default=None)
        return RunStatus(state, step, steps if isinstance(steps, int) else None, text, last_event, holder, checkpoint)


def list_runs(workspace: Path) -> list[Run]:
    """All runs of a workspace, newest first, without links."""
    return sorted(Run.stored(workspace), key=lambda run: (_created(run), run.name), reverse=True)


def current_events(events: Iterable[dict[str, object]]) -> list[dict[str, object]]:
    """The events without those that a resumed run has superseded.

    A run that is resumed from the checkpoint of step k logs `start` with `step` k; what an earlier process logged for
    steps after k is then not part of the run any more, and those steps are repeated.
    """
    kept: list[dict[str, object]] = []
    for event in events:
        if event.get("kind") == "start":
            kept = [old for old in kept if _step(old) <= _step(event)]
        kept.append(event)
    return kept


def _step(event: Mapping[str, object]) -> int:
    """The step of an event, 0 if it has none."""
    step = event.get("step")
    return step if isinstance(step, int) else 0


def _created(run: Run) -> str:
    """The time of the first event, empty if it cannot be read."""
    try:
        return str(next(iterate_lines(run.events_path), {}).get("time", ""))
    except DataError:
        return ""
