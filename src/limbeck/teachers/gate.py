"""The concurrency limit of requests: it rises with successful replies, and falls when the API requires a wait."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import suppress

from limbeck.errors import LimbeckError

__all__ = ["Gate", "Halted"]


class Halted(Exception):
    """Generation must stop; `Gate.stop` is the reason."""


class Gate:
    """The first call is sent alone, so that a wrong key costs one call; after its success there are `most` slots.

    When the API requires a wait, no call is sent before it is over, and the number of slots is halved; it then grows by
    one per as many successes as there are slots.
    """

    def __init__(self, most: int) -> None:
        self.num_in_flight = 0
        self.stop: LimbeckError | None = None
        self._most = most
        self._slots = 1.0
        self._opens_at = -math.inf
        self._narrowed_at = -math.inf
        self._changed = asyncio.Event()
        self._closed = asyncio.Event()

    def is_open(self) -> bool:
        return self.stop is None and time.monotonic() >= self._opens_at

    async def enter(self, until: float | None) -> None:
        """Wait for a slot. Raises Halted when generation must stop, TimeoutError at the time `until`."""
        async with asyncio.timeout_at(until):
            while self.stop is None and not (self.is_open() and self.num_in_flight < int(self._slots)):
                if self.is_open():
                    await self._changed.wait()
                else:
                    await self.sleep(self._opens_at - time.monotonic())
        if self.stop is not None:
            raise Halted
        self.num_in_flight += 1

    async def change(self, until: float | None) -> None:
        """Wait until a call ends or generation must stop. Raises TimeoutError at the time `until`."""
        async with asyncio.timeout_at(until):
            if self.stop is None:
                await self._changed.wait()

    async def sleep(self, seconds: float) -> None:
        """Wait, but no longer than until generation must stop."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closed.wait()

    def leave(self, *, ended: bool) -> None:
        """Free a slot; `ended`: a call was sent and ended, so waiting calls are notified."""
        self.num_in_flight -= 1
        if ended:
            self._notify()

    def widen(self) -> None:
        gain = float(self._most) if self._narrowed_at == -math.inf else 1.0 / self._slots
        self._slots = min(self._slots + gain, float(self._most))
        self._notify()

    def narrow(self, sent_at: float, wait_s: float) -> None:
        """Send nothing for `wait_s`, and halve the slots once for all calls that were sent before this was known."""
        now = time.monotonic()
        self._opens_at = max(self._opens_at, now + wait_s)
        if sent_at >= self._narrowed_at:
            self._slots, self._narrowed_at = max(self._slots / 2.0, 1.0), now

    def close(self, why: LimbeckError) -> None:
        """Stop generation; calls in flight are completed."""
        self.stop = self.stop or why
        self._closed.set()
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
