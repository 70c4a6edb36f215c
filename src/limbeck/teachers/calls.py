"""Concurrent requests to one endpoint: concurrency, waits, retries, budget, and the reasons to stop.

They run in a thread of their own, so requests proceed and keep their deadlines while the caller works.
"""

from __future__ import annotations

import asyncio
import json
import math
import queue
import random
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from pydantic import Field

from limbeck.errors import LimbeckError, Stopped
from limbeck.http import Endpoint, HttpClient, NoReply, Reply
from limbeck.recipe.parts import HostedApiSettings
from limbeck.recipe.types import TemplateOptionsSetting
from limbeck.teachers import messages
from limbeck.teachers.gate import Gate, Halted
from limbeck.teachers.ledger import BUSY, FULL, STORED, Caps, Cost, Ledger, LedgerRequest
from limbeck.teachers.reply import ChatFailure, ParsedReply, parse_reply

__all__ = ["Calls", "HostedSettings"]

_MAX_WAIT_S = 30.0
_REPORT_EVERY_S = 10.0
_LOOK_AGAIN_S = 0.1  # while another process has the same request in flight
_LEAST_SHARE = 0.1  # of the time limit of an attempt
_STOPS = {
    "unauthorized": messages.unauthorized,
    "forbidden": messages.forbidden,
    "unknown-model": messages.unknown_model,
    "quota": messages.quota_used_up,
    "redirected": messages.redirected,
    "unsupported": messages.unsupported,
}


class HostedSettings(HostedApiSettings):
    """A recipe's settings of a hosted teacher, with what no recipe sets.

    A request is given up after `num_attempts` failed attempts (a required wait does not count as a failure); generation
    stops after `stop_after` requests in a row without a usable answer. `parameters` are additional fields of each
    request; None removes a field.
    """

    num_attempts: int = 6
    first_wait_s: float = 0.5
    stop_after: int = 20
    parameters: TemplateOptionsSetting = Field(default_factory=dict)

    def caps(self) -> Caps:
        max_nano = None if self.max_cost is None else math.floor(self.max_cost * 1e9)
        return Caps(self.max_calls, self.max_total_tokens, max_nano)

    def cost(self, input_tokens: int, output_tokens: int) -> Cost:
        """The cost of one call, rounded up; 0 without prices."""
        prices = ((input_tokens, self.input_price or 0.0), (output_tokens, self.output_price or 0.0))
        nano = sum(math.ceil(num_tokens * price * 1000) for num_tokens, price in prices)
        return Cost(1, input_tokens + output_tokens, nano)


@dataclass
class _Call:
    """A request in progress; `until` is its deadline, None until it is first sent."""

    request: LedgerRequest
    until: float | None = None
    sent_at: float = 0.0
    num_failed: int = 0
    num_waits: int = 0


class Calls:
    """Sends requests to `model` inside `with`; `failure_of` waits for one of them and reports the progress of all."""

    def __init__(
        self,
        requests: Collection[LedgerRequest],
        model: str,
        endpoint: Endpoint,
        settings: HostedSettings,
        ledger: Ledger,
        on_progress: Callable[[str], None],
    ) -> None:
        self._num_requests = len(requests)
        self._requests = iter(requests)
        self._on_progress = on_progress
        self._report_at = time.monotonic() + _REPORT_EVERY_S
        self._model = model
        self._where = f"{model} at {endpoint.url}"
        self._settings = settings
        self._ledger = ledger
        self._client = HttpClient(endpoint, num_connections=settings.concurrency)
        self._gate = Gate(settings.concurrency)
        self._num_unusable = 0  # in a row
        self._finished: dict[str, ChatFailure | None] = {}
        self._news: queue.SimpleQueue[tuple[str, ChatFailure | None] | None] = queue.SimpleQueue()
        self._in_flight: dict[str, float] = {}
        self._started = threading.Event()
        self._workers: asyncio.Future[list[None]] | None = None
        # a daemon, so that no request is sent after the program has ended
        self._thread = threading.Thread(target=self._run, name="limbeck-teacher", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        """Requests in flight are cancelled; replies that arrived are stored."""
        self._started.wait()
        if self._workers is not None:
            with suppress(RuntimeError):  # their loop is closed because they have finished
                self._workers.get_loop().call_soon_threadsafe(self._workers.cancel)
        self._thread.join()

    def failure_of(self, request: LedgerRequest) -> ChatFailure | None:
        """Wait until a request is finished; None if its answer is stored. Raises the error that stopped generation."""
        while request.key not in self._finished:
            if time.monotonic() >= self._report_at:
                self._report_at = time.monotonic() + _REPORT_EVERY_S
                sent = list(self._in_flight.values())
                longest_s = max((time.monotonic() - sent_at for sent_at in sent), default=0.0)
                num, total = len(self._finished), self._num_requests
                progress = {"num": num, "total": total, "in_flight": len(sent), "longest_s": longest_s}
                self._on_progress(messages.requests_finished(**progress))
            try:
                news = self._news.get(timeout=_REPORT_EVERY_S)
            except queue.Empty:
                continue
            if news is None:
                assert self._gate.stop is not None, "generation stopped without an error"
                raise self._gate.stop
            self._finished[news[0]] = news[1]
        return self._finished[request.key]

    def _run(self) -> None:
        try:
            asyncio.run(self._send_all())
        finally:
            self._started.set()
            self._news.put(None)

    async def _send_all(self) -> None:
        async with self._client:
            self._workers = asyncio.gather(*(self._work() for _ in range(self._settings.concurrency)))
            self._started.set()
            with suppress(asyncio.CancelledError):  # the workers' cancellation; connections are closed in any case
                await self._workers

    async def _work(self) -> None:
        for request in self._requests:
            try:
                failure = await self._complete(_Call(request))
                self._news.put((request.key, failure))
            except Halted:
                break
            except LimbeckError as error:  # for example, the ledger cannot be written
                self._gate.close(error)

    async def _complete(self, call: _Call) -> ChatFailure | None:
        """One request with its retries; None if its answer is stored."""
        failure: ChatFailure | None = None
        while True:
            try:
                outcome = await self._attempt(call)
            except TimeoutError:  # no slot was free before its deadline
                break
            if outcome == STORED:
                return None
            if outcome == BUSY:
                await self._gate.sleep(_LOOK_AGAIN_S)
            elif isinstance(outcome, ParsedReply):
                self._gate.widen()
                self._count(usable=outcome.label == "ok")
                return None
            elif isinstance(outcome, ChatFailure):
                failure = outcome
                wait_s = self._wait_s(call, failure)
                if failure.kind in _STOPS or (failure.wait_s or 0.0) > self._settings.deadline_s:
                    self._stop(failure)
                # an attempt that cannot finish in time would only cost money
                ends_at = time.monotonic() + wait_s + _LEAST_SHARE * self._settings.attempt_s
                is_late = call.until is not None and ends_at >= call.until
                if failure.kind == "rejected" or call.num_failed >= self._settings.num_attempts or is_late:
                    break
                await self._gate.sleep(wait_s)
        self._count(usable=False)
        return failure

    def _wait_s(self, call: _Call, failure: ChatFailure) -> float:
        """Seconds until the next attempt: as the endpoint requires, or with full jitter; a rate limit holds for all."""
        is_busy = failure.kind == "rate-limited"
        call.num_failed += not is_busy
        longest_s = min(_MAX_WAIT_S, self._settings.first_wait_s * 2.0**call.num_waits)
        call.num_waits += 1
        jitter_s = random.SystemRandom().uniform(0.0, longest_s)
        if failure.wait_s is None and not is_busy:
            return jitter_s
        required_s = jitter_s if failure.wait_s is None else failure.wait_s
        self._gate.narrow(call.sent_at, required_s)
        return required_s + min(jitter_s, 0.1 * required_s)  # not all at once

    async def _attempt(self, call: _Call) -> ParsedReply | ChatFailure | str:
        """One attempt, as soon as there is a slot and budget; STORED or BUSY if another process sent the request."""
        request = call.request
        while True:
            await self._gate.enter(call.until)
            name = FULL
            try:
                name = await asyncio.to_thread(self._ledger.reserve, request, self._settings.attempt_s)
                if name in (STORED, BUSY):
                    return name
                if name != FULL and self._gate.is_open():
                    return await self._send(call, name)
                if name != FULL:  # the endpoint has required a wait meanwhile
                    await self._settle(
                        name, request, NoReply("unreachable", "", sent=False), ChatFailure("not-sent", "")
                    )
            finally:
                self._gate.leave(ended=name != FULL)
            if name == FULL and self._gate.num_in_flight == 0:
                self._gate.close(self._over_budget())
            if name == FULL:  # a call that ends may have cost less than was reserved
                await self._gate.change(call.until)

    async def _send(self, call: _Call, name: str) -> ParsedReply | ChatFailure:
        request = call.request
        body = {**request.body, self._settings.limit_name: request.limit, "stream": False}
        call.sent_at = time.monotonic()
        call.until = call.until or call.sent_at + self._settings.deadline_s
        within_s = max(min(self._settings.attempt_s, call.until - call.sent_at), 0.001)
        self._in_flight[name] = call.sent_at
        try:
            reply = await self._client.post("/chat/completions", json.dumps(body).encode(), within_s=within_s)
        finally:
            del self._in_flight[name]
        outcome = parse_reply(reply, self._model)
        await self._settle(name, request, reply, outcome)
        return outcome

    async def _settle(
        self, name: str, request: LedgerRequest, reply: Reply | NoReply, outcome: ParsedReply | ChatFailure
    ) -> None:
        spent, label = request.worst, ""  # the highest possible cost if the charge is unknown
        if isinstance(reply, NoReply) and not reply.sent:
            spent = Cost()
        elif isinstance(reply, Reply) and reply.status != 200:
            spent = Cost(calls=1)
        if isinstance(outcome, ParsedReply):
            label = outcome.label
            if outcome.input_tokens is not None and outcome.output_tokens is not None:
                spent = self._settings.cost(outcome.input_tokens, outcome.output_tokens)
        end = {"outcome": outcome.kind, "spent": spent, "label": label}
        await asyncio.to_thread(self._ledger.record_reply, name, request, reply, **end)

    def _count(self, *, usable: bool) -> None:
        """The circuit breaker: many requests in a row without a usable answer have a common cause."""
        self._num_unusable = 0 if usable else self._num_unusable + 1
        if self._num_unusable >= self._settings.stop_after:
            self._gate.close(messages.nothing_usable(num=self._num_unusable, where=self._where))

    def _stop(self, failure: ChatFailure) -> None:
        if (refused := _STOPS.get(failure.kind)) is not None:
            self._gate.close(refused(where=self._where, reply=failure.text))
        else:
            too_long = messages.rate_limited if failure.kind == "rate-limited" else messages.server_unavailable
            wait_s, deadline_s = failure.wait_s or 0.0, self._settings.deadline_s
            error = too_long(where=self._where, reply=failure.text, wait_s=wait_s, deadline_s=deadline_s)
            self._gate.close(error)
        raise Halted

    def _over_budget(self) -> Stopped:
        spent, account = self._ledger.spent(), self._ledger.account
        cost = spent.nano * 1e-9
        return messages.budget_used_up(
            account=account, calls=spent.calls, tokens=spent.tokens, cost=cost, where=self._where
        )
