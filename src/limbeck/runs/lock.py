"""One writer per run folder. The kernel frees the lock when its process dies, however it dies.

The lock is `flock` on a file that also says who holds it: host, process, start. Its modification time is the heartbeat,
renewed every few seconds, which tells a reader on another machine of a shared disk that the run lives; on this machine
the lock itself does. A forked child must not keep the lock of a parent that died, so it closes its copy at birth.
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import socket
import threading
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from limbeck.errors import Refusal
from limbeck.runs.lines import write_failed

__all__ = ["Holder", "LockState", "RunLock", "look"]

HEARTBEAT_S = 5.0
# Another machine's heartbeat may be late by its own delays and by those of the shared disk.
_ALIVE_ELSEWHERE_S = 60.0
# A reader that asks holds the lock, shared, for a moment; a writer tries again before it believes in another writer.
_NUM_TRIES = 10
_RETRY_S = 0.05

_descriptors: set[int] = set()


@dataclass(frozen=True)
class Holder:
    """The process that holds a lock, or held it last."""

    host: str
    pid: int
    started: str


@dataclass(frozen=True)
class LockState:
    """Whether a run is being written, by whom, and how long ago that process last gave a sign of life."""

    held: bool
    holder: Holder | None
    heartbeat_age_s: float | None


class RunLock:
    """The right to write into a run folder, held from `acquire` to `release` or to the end of the process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._ended = threading.Event()

    @property
    def held(self) -> bool:
        return self._descriptor is not None and self._descriptor in _descriptors

    def acquire(self) -> None:
        """Take the lock, or raise Refusal `run.locked` naming who has it; Stopped if the folder takes no files."""
        _close_in_forked_children()
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise write_failed(self._path, 0, error) from error
        _descriptors.add(descriptor)
        state = _state(descriptor)
        if not _try_lock(descriptor, fcntl.LOCK_EX) or _is_alive_elsewhere(state):
            _close(descriptor)
            raise _refusal(self._path.parent, state)
        mine = Holder(socket.gethostname(), os.getpid(), datetime.now(UTC).isoformat(timespec="seconds"))
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(asdict(mine)).encode() + b"\n", 0)
        self._descriptor = descriptor
        self._ended.clear()
        threading.Thread(target=self._beat, args=(descriptor,), name="limbeck-heartbeat", daemon=True).start()

    def _beat(self, descriptor: int) -> None:
        while not self._ended.wait(HEARTBEAT_S):
            os.utime(descriptor)

    def release(self) -> None:
        """Give the lock up; in a forked child, where it is not held, nothing happens."""
        if self._descriptor is not None and self._descriptor in _descriptors:
            self._ended.set()
            os.ftruncate(self._descriptor, 0)
            _close(self._descriptor)
        self._descriptor = None


def look(path: Path) -> LockState:
    """The state of the lock at `path`, without taking it."""
    _close_in_forked_children()
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return LockState(held=False, holder=None, heartbeat_age_s=None)
    _descriptors.add(descriptor)
    try:
        state = _state(descriptor)
        held = _is_alive_elsewhere(state) or not _try_lock(descriptor, fcntl.LOCK_SH, num_tries=1)
    finally:
        _close(descriptor)
    return LockState(held, state.holder, state.heartbeat_age_s)


def _try_lock(descriptor: int, mode: int, num_tries: int = _NUM_TRIES) -> bool:
    for attempt in range(num_tries):
        if attempt:
            time.sleep(_RETRY_S)
        try:
            fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        return True
    return False


def _state(descriptor: int) -> LockState:
    """What the file says; `held` is not asked here."""
    age_s = max(time.time() - os.fstat(descriptor).st_mtime, 0.0)
    try:
        found = json.loads(os.pread(descriptor, 4096, 0))
        holder = Holder(str(found["host"]), int(found["pid"]), str(found["started"]))
    except (ValueError, KeyError, TypeError):  # empty since nobody holds it, or being written at this moment
        holder = None
    return LockState(held=False, holder=holder, heartbeat_age_s=age_s)


def _is_alive_elsewhere(state: LockState) -> bool:
    """Whether a process of another machine holds the lock, for disks that do not share locks between machines."""
    if state.holder is None or state.holder.host == socket.gethostname() or state.heartbeat_age_s is None:
        return False
    return state.heartbeat_age_s < _ALIVE_ELSEWHERE_S


def _refusal(folder: Path, state: LockState) -> Refusal:
    who = "another process"
    if state.holder is not None:
        who = f"process {state.holder.pid} on {state.holder.host}, started {state.holder.started}"
    age = "" if state.heartbeat_age_s is None else f" (last sign of life {state.heartbeat_age_s:.0f} s ago)"
    return Refusal(
        "run.locked",
        given=f"The run {folder.name} is being written by {who}{age}.",
        needed="Two writers in one run folder would mix their steps; nothing was written.",
        fix="Wait for it or stop it, or start a run of another name.",
    )


def _close(descriptor: int) -> None:
    _descriptors.discard(descriptor)
    os.close(descriptor)


@functools.cache
def _close_in_forked_children() -> None:
    """Once per process: a child closes its copies, which leaves the parent's lock in force."""
    os.register_at_fork(after_in_child=_close_all)


def _close_all() -> None:
    for descriptor in list(_descriptors):
        _close(descriptor)
