"""Many questions to one endpoint at a time: places, waits, retries, budget, and the reasons to stop.

They run in a thread of their own, so calls go on and keep their deadlines while the caller works.
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
from limbeck.http import Endpoint, HttpClient, Lost, Reply
from limbeck.recipe.parts import HostedApiSettings
from limbeck.recipe.types import TemplateOptionsSetting
from limbeck.teachers.gate import Gate, Halted
from limbeck.teachers.ledger import BUSY, FULL, STORED, Caps, Cost, Ledger, Question
from limbeck.teachers.reply import Answer, Failure, judge

__all__ = ["Calls", "HostedSettings"]

_MAX_WAIT_S = 30.0
_TELL_EVERY_S = 10.0
_LOOK_AGAIN_S = 0.1  # while another process asks the same
_LEAST_SHARE = 0.1  # of the time of an attempt
_GO_ON = "Then start again: every answer that came is stored and not asked again."
_STOPS = {
    "unauthorized": ("The endpoint takes another key.", "Set the right key in the environment."),
    "forbidden": ("The key may not use this model.", "Ask the owner of the account, or name another model."),
    "unknown-model": (
        "The endpoint knows no such model, or this is not its address.",
        "Correct openai:MODEL, or base_url, which mostly ends in /v1.",
    ),
    "quota": ("The account at the endpoint is used up.", "Fill it up or raise its limit there."),
    "redirected": (
        "Prompts and keys do not follow an endpoint to another address.",
        "If you trust that address, approve it and write it as base_url.",
    ),
    "unsupported": ("The endpoint takes no such requests at all.", "Look at base_url and at the extra parameters."),
}


class HostedSettings(HostedApiSettings):
    """A recipe's settings of a hosted teacher, with what no recipe sets.

    After `num_attempts` failed attempts a question is given up (being told to wait is no failure); after `stop_after`
    questions in a row without a usable answer the writing stops. `parameters` are further fields of a request, None
    takes one out.
    """

    num_attempts: int = 6
    first_wait_s: float = 0.5
    stop_after: int = 20
    parameters: TemplateOptionsSetting = Field(default_factory=dict)

    def caps(self) -> Caps:
        max_nano = None if self.max_cost is None else math.floor(self.max_cost * 1e9)
        return Caps(self.max_calls, self.max_total_tokens, max_nano)

    def cost(self, input_tokens: int, output_tokens: int) -> Cost:
        """Of one call, rounded up; no money where there are no prices."""
        prices = ((input_tokens, self.input_price or 0.0), (output_tokens, self.output_price or 0.0))
        nano = sum(math.ceil(num_tokens * price * 1000) for num_tokens, price in prices)
        return Cost(1, input_tokens + output_tokens, nano)


@dataclass
class _Call:
    """A question on its way; `until` is None before its first sending."""

    question: Question
    until: float | None = None
    sent_at: float = 0.0
    num_failed: int = 0
    num_waits: int = 0


class Calls:
    """Puts `questions` to `model` inside `with`; `failure_of` waits for one of them, and tells how far all are."""

    def __init__(
        self,
        questions: Collection[Question],
        model: str,
        endpoint: Endpoint,
        settings: HostedSettings,
        ledger: Ledger,
        tell: Callable[[str], None],
    ) -> None:
        self._num_questions = len(questions)
        self._questions = iter(questions)
        self._tell = tell
        self._tells_at = time.monotonic() + _TELL_EVERY_S
        self._model = model
        self._where = f"{model} at {endpoint.url}"
        self._settings = settings
        self._ledger = ledger
        self._client = HttpClient(endpoint, num_connections=settings.concurrency)
        self._gate = Gate(settings.concurrency)
        self._num_unusable = 0  # in a row
        self._decided: dict[str, Failure | None] = {}
        self._news: queue.SimpleQueue[tuple[str, Failure | None] | None] = queue.SimpleQueue()
        self._in_flight: dict[str, float] = {}
        self._started = threading.Event()
        self._workers: asyncio.Future[list[None]] | None = None
        # a daemon, so that nothing more is asked once the program has ended
        self._thread = threading.Thread(target=self._run, name="limbeck-teacher", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        """Calls in flight are given up; replies that came are stored."""
        self._started.wait()
        if self._workers is not None:
            with suppress(RuntimeError):  # their loop is closed, for they have ended
                self._workers.get_loop().call_soon_threadsafe(self._workers.cancel)
        self._thread.join()

    def failure_of(self, question: Question) -> Failure | None:
        """Wait until a question is decided: None when its answer is stored. Raises what stopped the writing."""
        while question.key not in self._decided:
            if time.monotonic() >= self._tells_at:
                self._tells_at = time.monotonic() + _TELL_EVERY_S
                sent = list(self._in_flight.values())
                longest_s = max((time.monotonic() - sent_at for sent_at in sent), default=0.0)
                told = f"{len(self._decided)} of {self._num_questions} questions are decided, {len(sent)} in flight"
                self._tell(f"{told}, the longest for {longest_s:.1f} s")
            try:
                news = self._news.get(timeout=_TELL_EVERY_S)
            except queue.Empty:
                continue
            if news is None:
                assert self._gate.stop is not None, "the writing ended without a word on this question"
                raise self._gate.stop
            self._decided[news[0]] = news[1]
        return self._decided[question.key]

    def _run(self) -> None:
        try:
            asyncio.run(self._ask_all())
        finally:
            self._started.set()
            self._news.put(None)

    async def _ask_all(self) -> None:
        async with self._client:
            self._workers = asyncio.gather(*(self._work() for _ in range(self._settings.concurrency)))
            self._started.set()
            with suppress(asyncio.CancelledError):  # the workers', so connections are closed in any case
                await self._workers

    async def _work(self) -> None:
        for question in self._questions:
            try:
                failure = await self._ask(_Call(question))
                self._news.put((question.key, failure))
            except Halted:
                break
            except LimbeckError as error:  # the ledger cannot be written, for one
                self._gate.close(error)

    async def _ask(self, call: _Call) -> Failure | None:
        """One question with its retries; None when its answer is stored."""
        failure: Failure | None = None
        while True:
            try:
                outcome = await self._attempt(call)
            except TimeoutError:  # no place was free before its deadline
                break
            if outcome == STORED:
                return None
            if outcome == BUSY:
                await self._gate.sleep(_LOOK_AGAIN_S)
            elif isinstance(outcome, Answer):
                self._gate.widen()
                self._count(usable=outcome.label == "ok")
                return None
            elif isinstance(outcome, Failure):
                failure = outcome
                wait_s = self._wait_s(call, failure)
                if failure.kind in _STOPS or (failure.wait_s or 0.0) > self._settings.deadline_s:
                    self._stop(failure)
                # an attempt without time to answer would cost money for nothing
                ends_at = time.monotonic() + wait_s + _LEAST_SHARE * self._settings.attempt_s
                is_late = call.until is not None and ends_at >= call.until
                if failure.kind == "rejected" or call.num_failed >= self._settings.num_attempts or is_late:
                    break
                await self._gate.sleep(wait_s)
        self._count(usable=False)
        return failure

    def _wait_s(self, call: _Call, failure: Failure) -> float:
        """How long to wait before the next attempt: as the endpoint asks, or by full jitter; all wait if it is busy."""
        is_busy = failure.kind == "rate-limited"
        call.num_failed += not is_busy
        longest_s = min(_MAX_WAIT_S, self._settings.first_wait_s * 2.0**call.num_waits)
        call.num_waits += 1
        jitter_s = random.SystemRandom().uniform(0.0, longest_s)
        if failure.wait_s is None and not is_busy:
            return jitter_s
        asked_s = jitter_s if failure.wait_s is None else failure.wait_s
        self._gate.narrow(call.sent_at, asked_s)
        return asked_s + min(jitter_s, 0.1 * asked_s)  # not all at once

    async def _attempt(self, call: _Call) -> Answer | Failure | str:
        """One request, when there is a place and budget for it; STORED or BUSY where another process asks or asked."""
        question = call.question
        while True:
            await self._gate.enter(call.until)
            name = FULL
            try:
                name = await asyncio.to_thread(self._ledger.intend, question, self._settings.attempt_s)
                if name in (STORED, BUSY):
                    return name
                if name != FULL and self._gate.is_open():
                    return await self._send(call, name)
                if name != FULL:  # the endpoint has asked everybody to wait meanwhile
                    await self._settle(name, question, Lost("unreachable", "", sent=False), Failure("not-sent", ""))
            finally:
                self._gate.leave(ended=name != FULL)
            if name == FULL and self._gate.num_in_flight == 0:
                self._gate.close(self._over_budget())
            if name == FULL:  # a call that ends may cost less than was reserved
                await self._gate.change(call.until)

    async def _send(self, call: _Call, name: str) -> Answer | Failure:
        question = call.question
        body = {**question.request, self._settings.limit_name: question.limit, "stream": False}
        call.sent_at = time.monotonic()
        call.until = call.until or call.sent_at + self._settings.deadline_s
        within_s = max(min(self._settings.attempt_s, call.until - call.sent_at), 0.001)
        self._in_flight[name] = call.sent_at
        try:
            reply = await self._client.post("/chat/completions", json.dumps(body).encode(), within_s=within_s)
        finally:
            del self._in_flight[name]
        outcome = judge(reply, self._model)
        await self._settle(name, question, reply, outcome)
        return outcome

    async def _settle(self, name: str, question: Question, reply: Reply | Lost, outcome: Answer | Failure) -> None:
        spent, label = question.worst, ""  # the worst where it is not known what was charged
        if isinstance(reply, Lost) and not reply.sent:
            spent = Cost()
        elif isinstance(reply, Reply) and reply.status != 200:
            spent = Cost(calls=1)
        if isinstance(outcome, Answer):
            label = outcome.label
            if outcome.input_tokens is not None and outcome.output_tokens is not None:
                spent = self._settings.cost(outcome.input_tokens, outcome.output_tokens)
        end = {"outcome": outcome.kind, "spent": spent, "label": label}
        await asyncio.to_thread(self._ledger.settle, name, question, reply, **end)

    def _count(self, *, usable: bool) -> None:
        """The breaker: so many questions in a row without a usable answer mean a fault that all of them share."""
        self._num_unusable = 0 if usable else self._num_unusable + 1
        if self._num_unusable >= self._settings.stop_after:
            given = f"{self._num_unusable} questions in a row brought no usable answer from {self._where}."
            needed = "So many mean a fault of the endpoint or of the settings, and more would cost money for nothing."
            fix = f"Look at the labels and reasons of the last answers. {_GO_ON}"
            self._gate.close(Stopped("teacher.nothing-usable", given=given, needed=needed, fix=fix))

    def _stop(self, failure: Failure) -> None:
        needed, fix = _STOPS.get(failure.kind, ("It asks to wait longer than a call may take.", "Wait as long."))
        given = f"{self._where} ended the writing ({failure.kind}): {failure.text}."
        self._gate.close(Stopped(f"teacher.{failure.kind}", given=given, needed=needed, fix=f"{fix} {_GO_ON}"))
        raise Halted

    def _over_budget(self) -> Stopped:
        spent = self._ledger.spent()
        amounts = f"{spent.calls} calls, {spent.tokens} tokens, {spent.nano * 1e-9:.6g} money"
        return Stopped(
            "teacher.budget",
            given=f"{self._ledger.account} has spent {amounts}: its budget has no room for a call to {self._where}.",
            needed="A call is sent only if the most that it can cost, its prompt and its longest answer, still fits.",
            fix=f"Raise the cap. {_GO_ON}",
        )
