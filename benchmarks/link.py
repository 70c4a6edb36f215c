"""A worker's end of the line: one JSON object a line, in on stdin and out on stdout; and what a process says of itself.

Only the standard library, since this runs in the peers' environment too.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path

PROC = Path("/proc/self")


class Link:
    """Says lines to the parent and waits for its lines; once it is made, whatever else is printed goes to stderr."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def say(self, **fields: object) -> None:
        print(json.dumps(fields), file=self._out, flush=True)

    def wait(self) -> dict | None:
        """The parent's next line, without using the processor meanwhile; None once it has nothing more to ask."""
        line = sys.stdin.readline()
        return json.loads(line) if line.strip() else None


def status_bytes(name: str) -> int:
    """A figure of this process: VmRSS, resident memory, or VmHWM, the most of it so far."""
    for line in (PROC / "status").read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"{PROC / 'status'} has no line {name}")


def forget_peak() -> int:
    """Give free memory back, let the peak start anew from here; returns what is resident now, in bytes."""
    ctypes.CDLL(None).malloc_trim(0)
    (PROC / "clear_refs").write_text("5", encoding="utf-8")
    return status_bytes("VmRSS")


def page_faults() -> int:
    """Pages that this process was given so far: many in a step mean memory that is given back and fetched again."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def fingerprint(token_ids: Sequence[Sequence[int]]) -> str:
    """A short hash of token ids, to see that both sides were given the same."""
    return hashlib.sha256(json.dumps([list(row) for row in token_ids]).encode()).hexdigest()[:16]
