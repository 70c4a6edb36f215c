"""The parent's end of the line: sides are worker processes that compute one at a time, when told to.

A side loads its models once and then waits. While another one computes it must not use the processor: the parent
measures that it does not (`Side.cpu_s`). OpenMP's threads fall asleep by themselves some milliseconds after their last
work, so nothing is set for that: OMP_WAIT_POLICY=PASSIVE makes every small operation wait for a thread to wake up,
which slows `generate` by a quarter and would flatter whoever has fewer small operations. On a machine with busy
neighbours it is the other way round; a variable set for the benchmark reaches both sides.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

HERE = Path(__file__).parent
ANSWER_TIMEOUT_S = 1800.0

# Told to glibc by the environment: keep freed memory instead of giving it back and faulting it in again each step.
KEEP_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
    "MALLOC_MMAP_THRESHOLD_": str(2**40),
    "MALLOC_TOP_PAD_": str(64 * 2**20),
}
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TQDM_DISABLE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}


class SideFailed(RuntimeError):
    """A worker ended or said nothing in time; the message holds the end of what it printed."""


class Side:
    """One worker: `ask` sends it a line and waits for its answer."""

    def __init__(
        self, name: str, python: Path, script: str, spec: Mapping[str, object], log: Path, *, keep_memory: bool = False
    ) -> None:
        self.name = name
        self._log = log
        command = [str(python), str(HERE / script), json.dumps(dict(spec))]
        with log.open("w", encoding="utf-8") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=worker_environment(peer=python != Path(sys.executable), keep_memory=keep_memory),
            )
        self._usage = psutil.Process(self._process.pid)
        self.about = self._answer()

    def ask(self, **message: object) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def cpu_s(self) -> float:
        """Processor seconds that the worker has used so far, on all its threads."""
        times = self._usage.cpu_times()
        return times.user + times.system

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        timer = threading.Timer(ANSWER_TIMEOUT_S, self._process.kill)
        timer.start()
        try:
            line = self._process.stdout.readline()
            while line and not line.startswith("{"):  # what a library printed while it was imported
                line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            self._process.wait()
            tail = "\n".join(self._log.read_text(encoding="utf-8").splitlines()[-25:])
            raise SideFailed(f"{self.name} ended with {self._process.returncode} or was too slow:\n{tail}")
        return json.loads(line)

    def __enter__(self) -> Side:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(timeout=10)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()


def worker_environment(*, peer: bool, keep_memory: bool) -> dict[str, str]:
    """What a worker finds in its environment: nothing of the parent's malloc, and for a peer nothing of its Python."""
    hidden = ("PYTHONPATH", "VIRTUAL_ENV") if peer else ()
    inherited = {
        name: value for name, value in os.environ.items() if name not in hidden and not name.startswith("MALLOC_")
    }
    return inherited | QUIET | (KEEP_MEMORY if keep_memory else {})


def in_turn(sides: Sequence[Side], ask: Mapping[str, object]) -> tuple[dict[str, dict[str, Any]], float]:
    """Ask each side in turn; returns the answers by name, and the largest share of a core that a waiting side used."""
    answers: dict[str, dict[str, Any]] = {}
    idle_share = 0.0
    for side in sides:
        waiting = [(other, other.cpu_s()) for other in sides if other is not side]
        answers[side.name] = side.ask(**ask)
        seconds = max(answers[side.name]["step_s"], 0.1)
        idle_share = max([idle_share, *((other.cpu_s() - before) / seconds for other, before in waiting)])
    return answers, idle_share
