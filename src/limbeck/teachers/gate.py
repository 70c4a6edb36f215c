"""How many calls may be in flight, and from when: it widens with success and narrows when the endpoint asks to wait."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import suppress

from limbeck.errors import LimbeckError

__all__ = ["Gate", "Halted"]


class Halted(Exception):
    """The writing is to end; `Gate.stop` says why."""


class Gate:
    """The first call goes alone, so that a wrong key costs one call; with its success there are `most` places.

    When the endpoint asks to wait, nobody is let in before, and the places are halved; from then on they come back
    slowly, one for as many successes as there are places.
    """

    def __init__(self, most: int) -> None:
        self.num_in_flight = 0
        self.stop: LimbeckError | None = None
        self._most = most
        self._places = 1.0
        self._opens_at = -math.inf
        self._narrowed_at = -math.inf
        self._changed = asyncio.Event()
        self._closed = asyncio.Event()

    def is_open(self) -> bool:
        return self.stop is None and time.monotonic() >= self._opens_at

    async def enter(self, until: float | None) -> None:
        """Wait for a place. Raises Halted when the writing is to end, TimeoutError at the time `until`."""
        async with asyncio.timeout_at(until):
            while self.stop is None and not (self.is_open() and self.num_in_flight < int(self._places)):
                if self.is_open():
                    await self._changed.wait()
                else:
                    await self.sleep(self._opens_at - time.monotonic())
        if self.stop is not None:
            raise Halted
        self.num_in_flight += 1

    async def change(self, until: float | None) -> None:
        """Wait until a call ends, or the writing is to. Raises TimeoutError at the time `until`."""
        async with asyncio.timeout_at(until):
            if self.stop is None:
                await self._changed.wait()

    async def sleep(self, seconds: float) -> None:
        """Wait, unless the writing is to end."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closed.wait()

    def leave(self, *, ended: bool) -> None:
        """Give a place back; `ended` says that a call was sent, so that there is news for those who wait."""
        self.num_in_flight -= 1
        if ended:
            self._tell()

    def widen(self) -> None:
        gain = float(self._most) if self._narrowed_at == -math.inf else 1.0 / self._places
        self._places = min(self._places + gain, float(self._most))
        self._tell()

    def narrow(self, sent_at: float, wait_s: float) -> None:
        """Let nobody in for `wait_s`; the places are halved once for all calls that were sent before that was known."""
        now = time.monotonic()
        self._opens_at = max(self._opens_at, now + wait_s)
        if sent_at >= self._narrowed_at:
            self._places, self._narrowed_at = max(self._places / 2.0, 1.0), now

    def close(self, why: LimbeckError) -> None:
        """End the writing; calls in flight come to their end."""
        self.stop = self.stop or why
        self._closed.set()
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
