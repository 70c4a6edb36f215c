"""A session of a run: its log, how it ends, and the signals that ask it to stop.

Whatever ends a session is the last event of its log: done, failed or stopped.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import torch

from limbeck.errors import LimbeckError, Stopped
from limbeck.runs.lines import write_failed
from limbeck.runs.store import Run

__all__ = ["EventLog", "Listener", "ending", "stop_signals", "stopped"]

Listener = Callable[[Mapping[str, object]], None]


@dataclass(frozen=True)
class EventLog:
    run: Run
    listen: Listener

    def write(self, kind: str, **fields: object) -> None:
        event = {"kind": kind, **fields}
        self.run.append_event(event)
        self.listen(event)


@contextmanager
def ending(log: EventLog) -> Generator[EventLog]:
    """Whatever ends a run before its last step is the last event of its log."""
    try:
        yield log
    except (torch.OutOfMemoryError, OSError) as error:
        stopped = write_failed(log.run.path, error) if isinstance(error, OSError) else _out_of_memory(error)
        log.write("stopped", text=str(stopped), code=stopped.code)
        raise stopped from error
    except LimbeckError as error:
        log.write("stopped" if isinstance(error, Stopped) else "failed", text=str(error), code=error.code)
        raise
    except KeyboardInterrupt:
        log.write("stopped", text="Interrupted at once, within a step.", code="run.interrupted")
        raise
    except BaseException as error:
        log.write("failed", text=f"{type(error).__name__}: {error}", code="unexpected")
        raise


def _out_of_memory(error: torch.OutOfMemoryError) -> Stopped:
    return Stopped(
        "run.out-of-memory",
        given=f"The device ran out of memory: {str(error).splitlines()[0]}",
        needed="A step needs its answers, activations and logits in memory at once.",
        fix="Set micro_batch_tokens, slots or chunk_tokens lower; results do not change with them.",
    )


def stopped(run: Run, step: int, steps: int) -> Stopped:
    return Stopped(
        "run.stopped",
        given=f"The run was asked to stop and did after step {step} of {steps}.",
        needed="Nothing is lost: the student and the optimizer of that step are saved.",
        fix=f"limbeck resume {run.path} goes on from there.",
    )


@contextmanager
def stop_signals(log: EventLog) -> Generator[Callable[[], bool]]:
    """The first Ctrl-C or SIGTERM asks for a stop after the step; the second one interrupts at once."""
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # only the main thread may take signals
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        log.listen({"kind": "note", "text": "Stopping after this step; once more interrupts at once and loses it."})

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
