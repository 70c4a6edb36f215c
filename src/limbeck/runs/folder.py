"""What runs and evaluations have in common: a named folder in a workspace, with one writer and sets of answers."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from limbeck.names import check_name, inside, is_name, new_run_name
from limbeck.runs import messages
from limbeck.runs.lines import event_line, iterate_lines, write_failed, write_text
from limbeck.runs.lock import RunLock

__all__ = ["LockedFolder"]


class LockedFolder:
    """A run or an evaluation. Reading needs no lock; writing needs the lock, which `with folder:` holds."""

    kind: ClassVar[Literal["run", "evaluation"]]
    marker: ClassVar[str]  # a folder with a file of this name is of this kind

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name
        self._lock = RunLock(path / "run.lock")

    @classmethod
    def home(cls, workspace: Path) -> Path:
        """The folder of a workspace that contains the folders of this kind."""
        return inside(workspace, f"{cls.kind}s")

    @classmethod
    def create(cls, workspace: Path, name: str | None) -> Self:
        """A new folder in a workspace, named `name` or with a name like calm-otter-17.

        Raises UsageError for a name that is taken or invalid, Stopped if writing failed.
        """
        home = cls.home(workspace)
        try:
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            taken = [path.name for path in home.iterdir()]
            path = inside(workspace, home / (new_run_name(taken) if name is None else check_name(name, what=cls.kind)))
            try:
                path.mkdir(mode=0o700)
            except FileExistsError as error:  # from an earlier start, or from a process that starts at the same time
                exists = messages.run_exists if cls.kind == "run" else messages.evaluation_exists
                raise exists(name=path.name, folder=home) from error
            (path / "answers").mkdir()
        except OSError as error:
            raise write_failed(home, error) from error
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> Self:
        """The one in the folder `path`. Raises UsageError `KIND.not-found`, with similar names in the same place."""
        if (path / cls.marker).is_file():
            return cls(path)
        names = [found.parent.name for found in path.parent.glob(f"*/{cls.marker}")]
        near = difflib.get_close_matches(path.name, names, cutoff=0.5)
        if near:
            similar = messages.run_not_found_similar if cls.kind == "run" else messages.evaluation_not_found_similar
            raise similar(path=path, marker=cls.marker, similar=near)
        not_found = messages.run_not_found if cls.kind == "run" else messages.evaluation_not_found
        raise not_found(path=path, marker=cls.marker)

    @classmethod
    def named(cls, workspace: Path, name: str) -> Self:
        """The one of this name in a workspace; errors as in `open`."""
        return cls.open(inside(workspace, cls.home(workspace) / check_name(name, what=cls.kind)))

    @classmethod
    def find(cls, workspace: Path, text: str) -> Self:
        """The one in the folder at a path, or of a name in the workspace; errors as in `open`."""
        path = Path(text)
        is_path = path.name != text or (path / cls.marker).is_file()
        return cls.open(path) if is_path else cls.named(workspace, text)

    @classmethod
    def stored(cls, workspace: Path) -> list[Self]:
        """All in a workspace, in no particular order, without links."""
        found = [path.parent for path in cls.home(workspace).glob(f"*/{cls.marker}")]
        return [cls(path) for path in found if is_name(path.name) and not path.is_symlink()]

    def __enter__(self) -> Self:
        """Take the lock for writing. Raises Refusal `run.locked`, with the process that holds it."""
        self._lock.acquire()
        return self

    def __exit__(self, *raised: object) -> None:
        self._lock.release()

    def _needs_lock(self) -> None:
        assert self._lock.held, f"only the holder of the lock may write: use `with {self.kind}:`"

    def answers(self, name: str) -> Path:
        """The file of a set of answers. Raises UsageError for an invalid name."""
        return self.path / "answers" / f"{check_name(name, what='answer set')}.jsonl"

    def write_answers(self, name: str, rows: Iterable[Mapping[str, object]]) -> None:
        """Write a whole set of answers; readers see either the old set or the new one."""
        self._needs_lock()
        write_text(self.answers(name), "".join(event_line(row) for row in rows))

    def read_answers(self, name: str) -> list[dict[str, Any]]:
        """A set of answers. Raises DataError if there is none of this name."""
        return list(iterate_lines(self.answers(name)))
