"""One writer per folder: the second one is told who the first is, and a dead one is in nobody's way."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from limbeck.errors import Refusal
from limbeck.runs import lock as lock_module
from limbeck.runs.lock import RunLock, lock_status

HOLD = """
import os, sys, time
from pathlib import Path
from limbeck.runs.lock import RunLock
lock = RunLock(Path(sys.argv[1]))
lock.acquire()
if sys.argv[2] == "fork" and os.fork() == 0:
    os.write(1, f"{os.getpid()}\\n".encode())
    time.sleep(30)
    os._exit(0)
os.write(1, b"held\\n")
time.sleep(30)
"""


def holding(path: Path, how: str = "plain") -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "ignore", "-c", HOLD, str(path), how]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.report("CR-09", "TU-07")
def test_a_second_writer_is_refused_without_waiting_and_told_who_writes(tmp_path: Path) -> None:
    path = tmp_path / "calm-otter-17" / "run.lock"
    path.parent.mkdir()
    with holding(path) as process:
        assert line_of(process) == "held"
        with pytest.raises(Refusal) as caught:
            RunLock(path).acquire()  # had it waited, it would have got the lock
        assert caught.value.code == "run.locked"
        assert caught.value.exit_code == 3
        assert "calm-otter-17" in caught.value.given
        assert f"process {process.pid} on {socket.gethostname()}" in caught.value.given
        assert "s ago" in caught.value.given
        held, holder = lock_status(path)
        assert held
        assert holder is not None
        assert holder.pid == process.pid
        process.kill()
    held, holder = lock_status(path)
    assert not held, "the kernel frees the lock of a killed process"
    assert holder is not None
    assert holder.pid == process.pid, "who held it last is still told"
    second = RunLock(path)
    second.acquire()
    assert second.held
    second.release()


def test_a_forked_child_does_not_keep_the_lock_of_a_parent_that_died(tmp_path: Path) -> None:
    path = tmp_path / "run.lock"
    with holding(path, "fork") as process:
        lines = [line_of(process), line_of(process)]  # the child's number and "held", in either order
        child = int(next(line for line in lines if line != "held"))
        try:
            assert lock_status(path)[0]
            process.kill()
            process.wait()
            os.kill(child, 0)  # the child lives
            lock = RunLock(path)
            lock.acquire()
            lock.release()
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_forked_child_neither_holds_nor_frees_the_lock(tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path; from limbeck.runs.lock import RunLock, lock_status\n"
        "path = Path(sys.argv[1]); lock = RunLock(path); lock.acquire(); child = os.fork()\n"
        "if child == 0:\n    held = lock.held; lock.release(); os._exit(int(held))\n"
        "code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]); print(code, lock.held, lock_status(path)[0])"
    )
    command = [sys.executable, "-W", "ignore", "-c", script, str(tmp_path / "run.lock")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == ["0", "True", "True"]


@pytest.mark.usefixtures("impatient")
def test_the_lock_comes_and_goes(tmp_path: Path) -> None:
    path = tmp_path / "run.lock"
    assert not lock_status(path)[0], "a folder that nobody ever wrote to"
    lock = RunLock(path)
    for _ in range(2):
        lock.acquire()
        assert lock.held
        assert lock_status(path)[0]
        with pytest.raises(Refusal):
            RunLock(path).acquire()
        lock.release()
        lock.release()
        assert not lock.held
        assert not lock_status(path)[0]
        assert lock_status(path)[1] is None


@pytest.mark.report("TU-01")
def test_readers_that_look_never_refuse_a_writer(tmp_path: Path) -> None:
    path = tmp_path / "run.lock"
    script = (
        "import sys; from pathlib import Path; from limbeck.runs.lock import lock_status; path = Path(sys.argv[1])\n"
        "print('on', flush=True)\nwhile True: lock_status(path)"
    )
    path.touch()
    readers = [
        subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    try:
        for reader in readers:
            assert line_of(reader) == "on"
        for _ in range(20):
            lock = RunLock(path)
            lock.acquire()
            lock.release()
    finally:
        for reader in readers:
            reader.kill()
            reader.communicate()


def test_the_heartbeat_is_renewed_while_the_lock_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_module, "HEARTBEAT_S", 0.02)
    path = tmp_path / "run.lock"
    lock = RunLock(path)
    lock.acquire()
    os.utime(path, (0, 0))
    until = time.monotonic() + 300
    while path.stat().st_mtime == 0 and time.monotonic() < until:
        time.sleep(0.01)
    assert path.stat().st_mtime > 0
    lock.release()
    os.utime(path, (0, 0))
    time.sleep(0.1)
    assert path.stat().st_mtime == 0, "a lock that was given up has no heartbeat"


def test_a_heartbeat_from_another_machine_counts_as_life_until_it_is_old(tmp_path: Path) -> None:
    path = tmp_path / "run.lock"
    path.write_text(json.dumps({"host": "another-machine", "pid": 1, "started": "2026-01-01T00:00:00+00:00"}))
    assert lock_status(path)[0]
    with pytest.raises(Refusal, match="another-machine"):
        RunLock(path).acquire()
    os.utime(path, (path.stat().st_mtime - 3600,) * 2)
    assert not lock_status(path)[0]
    lock = RunLock(path)
    lock.acquire()
    lock.release()


def test_a_clock_that_jumps_changes_nothing_on_this_machine(tmp_path: Path) -> None:
    path = tmp_path / "run.lock"
    lock = RunLock(path)
    lock.acquire()
    for seconds in (-86400, 86400):
        os.utime(path, (time.time() + seconds,) * 2)
        held, holder = lock_status(path)
        assert held
        assert holder is not None
        assert holder.heartbeat_age_s >= 0
    lock.release()


@pytest.mark.report("TU-07")
@pytest.mark.parametrize("text", ["", "{", "[]", '{"host": 1}', "\0" * 10, '{"host": "a", "pid": "x", "started": ""}'])
def test_whatever_the_lock_file_says_it_can_be_taken(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.lock"
    path.write_text(text)
    assert lock_status(path)[1] is None
    lock = RunLock(path)
    lock.acquire()
    lock.release()
