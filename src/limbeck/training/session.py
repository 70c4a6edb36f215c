"""A session of a run: its event log, its end, and the signals that stop it.

The last event of a session says how it ended: done, failed or stopped.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import torch

import limbeck.training.messages as messages
from limbeck.errors import LimbeckError, Stopped
from limbeck.runs.lines import write_failed
from limbeck.runs.store import Run

__all__ = ["EventListener", "EventLog", "log_ending", "stop_signals", "stopped_error"]

EventListener = Callable[[Mapping[str, object]], None]


@dataclass(frozen=True)
class EventLog:
    """Appends events to the log of a run and passes them on to a listener."""

    run: Run
    listen: EventListener

    def write(self, kind: str, **fields: object) -> None:
        event = {"kind": kind, **fields}
        self.run.append_event(event)
        self.listen(event)


@contextmanager
def log_ending(log: EventLog) -> Generator[EventLog]:
    """Log an error or interrupt that ends the run before its last step as the last event, and raise it again."""
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
        log.write("stopped", text=messages.interrupted(), code="run.interrupted")
        raise
    except BaseException as error:
        log.write("failed", text=f"{type(error).__name__}: {error}", code="unexpected")
        raise


def _out_of_memory(error: torch.OutOfMemoryError) -> Stopped:
    return messages.out_of_memory(why=str(error).splitlines()[0])


def stopped_error(run: Run, step: int, steps: int) -> Stopped:
    """The error of a run that was stopped on request after a step."""
    return messages.run_stopped(step=step, steps=steps, run=run.path)


@contextmanager
def stop_signals(log: EventLog) -> Generator[Callable[[], bool]]:
    """The first Ctrl-C or SIGTERM stops the run after the current step; a second one interrupts it immediately."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # only the main thread can handle signals
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)
        log.listen({"kind": "note", "text": messages.stopping()})

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
