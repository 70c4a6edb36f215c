"""The lock of a run folder: one writer at a time. The kernel releases it when the process ends, however it ends.

The lock is `flock` on a file that names the holder. The modification time of the file is the heartbeat.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from limbeck.errors import Refusal
from limbeck.runs import messages
from limbeck.runs.lines import write_failed

__all__ = ["Holder", "RunLock", "lock_status"]

HEARTBEAT_S = 5.0
ALIVE_ELSEWHERE_S = 60.0  # another machine's heartbeat may come late
NUM_TRIES = 10  # `lock_status` holds the lock for a moment
RETRY_S = 0.05


@dataclass(frozen=True)
class Holder:
    """The process that holds a lock, or held it last, and the age of its heartbeat."""

    host: str
    pid: int
    started: str
    heartbeat_age_s: float


class RunLock:
    """The right to write into a run folder, held from `acquire` to `release` or to the end of the process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._ended = threading.Event()

    @property
    def held(self) -> bool:
        return self._descriptor is not None

    def acquire(self) -> None:
        """Take the lock. Raises Refusal `run.locked`, with its holder, or Stopped if the file cannot be written."""
        assert self._descriptor is None, "this lock is held already"
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise write_failed(self._path, error) from error
        self._descriptor = descriptor
        os.register_at_fork(after_in_child=self._close)  # a forked child must not keep the lock of a parent that died
        holder = _holder(descriptor)
        if _is_alive_elsewhere(holder) or not _try_lock(descriptor, fcntl.LOCK_EX, NUM_TRIES):
            self._close()
            raise _refusal(self._path.parent, holder)
        started = datetime.now(UTC).isoformat(timespec="seconds")
        mine = {"host": socket.gethostname(), "pid": os.getpid(), "started": started}
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(mine).encode(), 0)
        self._ended.clear()
        threading.Thread(target=self._beat, name="limbeck-heartbeat", daemon=True).start()

    def _beat(self) -> None:
        while not self._ended.wait(HEARTBEAT_S):
            with suppress(OSError):  # a heartbeat is informative only
                os.utime(self._path)

    def release(self) -> None:
        """Release the lock; does nothing if it is not held, as in a forked child."""
        self._ended.set()
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
        self._close()

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def lock_status(path: Path) -> tuple[bool, Holder | None]:
    """Whether the lock at `path` is held, and its present or last holder; does not take the lock."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False, None
    try:
        holder = _holder(descriptor)
        held = _is_alive_elsewhere(holder) or not _try_lock(descriptor, fcntl.LOCK_SH)
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # also for a child that was forked at this moment
    finally:
        os.close(descriptor)
    return held, holder


def _try_lock(descriptor: int, mode: int, num_tries: int = 1) -> bool:
    for _ in range(num_tries):
        try:
            fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(RETRY_S)
    return False


def _holder(descriptor: int) -> Holder | None:
    """The holder that the lock file names."""
    age_s = max(time.time() - os.fstat(descriptor).st_mtime, 0.0)
    try:
        found = json.loads(os.pread(descriptor, 4096, 0))
        return Holder(str(found["host"]), int(found["pid"]), str(found["started"]), age_s)
    except (ValueError, KeyError, TypeError):  # empty because it is not held, or being written at this moment
        return None


def _is_alive_elsewhere(holder: Holder | None) -> bool:
    """Whether the holder is alive on another machine; a shared disk may not share locks."""
    return holder is not None and holder.host != socket.gethostname() and holder.heartbeat_age_s < ALIVE_ELSEWHERE_S


def _refusal(folder: Path, holder: Holder | None) -> Refusal:
    if holder is None:
        return messages.locked_by_unknown(folder=folder.name)
    return messages.locked(
        folder=folder.name,
        pid=holder.pid,
        host=holder.host,
        started=holder.started,
        heartbeat_age_s=holder.heartbeat_age_s,
    )
