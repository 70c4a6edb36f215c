"""Answers asked once, paid once: what a workspace has sent to an endpoint, what came back, and what it cost.

    teachers/ALIAS/ledger.jsonl     one line per intent and one per outcome, only ever appended to
    teachers/ALIAS/ledger.lock      held for the moment of each entry, so several processes may write

An intent is on the disk before its request is sent, a reply's bytes are before anybody reads them. A call without an
outcome, of a process that was killed, counts as spent at the most that it could cost. Answers are found by the content
of the question, under the alias of the endpoint: two servers that both call their model "default" share nothing, and
one that moves keeps its answers under its alias.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from limbeck.http import NoReply, Reply
from limbeck.names import check_name, inside
from limbeck.runs.lines import append_line, event_line, iterate_places, with_time, write_failed

__all__ = ["BUSY", "FULL", "STORED", "Caps", "ChatRequest", "Cost", "Ledger"]

STORED = "stored"  # its answer is there meanwhile
BUSY = "busy"  # another process is asking it
FULL = "full"  # the caps have no room for what it can cost


class Cost(NamedTuple):
    """Requests sent, tokens in and out, and money in billionths: whole numbers add without error."""

    calls: int = 0
    tokens: int = 0
    nano: int = 0

    def plus(self, other: Cost, times: int = 1) -> Cost:
        return Cost(*(mine + times * its for mine, its in zip(self, other, strict=True)))


class Caps(NamedTuple):
    """The most that an account may spend of each, None for no cap."""

    calls: int | None = None
    tokens: int | None = None
    nano: int | None = None

    def allow(self, cost: Cost) -> bool:
        return all(cap is None or amount <= cap for cap, amount in zip(self, cost, strict=True))


class ChatRequest(NamedTuple):
    """What is asked: the request without its longest length, the number of the sample, that length, the worst cost."""

    request: Mapping[str, object]
    sample: int
    limit: int
    worst: Cost

    @property
    def key(self) -> str:
        """Its name, by its content save the longest length: where that was enough, a longer one asks nothing new."""
        text = json.dumps([1, self.request, self.sample], sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()


NO_CAPS = Caps()


class Ledger:
    """The calls to one endpoint, with the caps of the account that pays. Any thread and process may use it any time."""

    def __init__(
        self, workspace: Path, url: str, alias: str | None = None, *, account: str = "", caps: Caps = NO_CAPS
    ) -> None:
        readable = re.sub(r"[^a-z0-9.]+", "-", url.lower().partition("://")[2])[:60].strip("-.")
        alias = alias or f"{readable}-{hashlib.sha256(url.encode()).hexdigest()[:8]}"
        folder = inside(workspace, Path("teachers") / check_name(alias, what="endpoint"))
        self.account = account
        self.caps = caps
        self.path = folder / "ledger.jsonl"
        self._lock_path = folder / "ledger.lock"
        self._lock = threading.Lock()
        self._end = 0  # the byte up to which the file is known
        self._open: dict[str, dict[str, Any]] = {}  # the intents of calls without an outcome
        self._spent = Cost()  # by the account; calls without an outcome at the most that they could cost
        self._closed: dict[str, dict[int, tuple[int, str]]] = {}  # question, longest length: byte of its line, label
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.touch(mode=0o600)
        except OSError as error:
            raise write_failed(self.path, error) from error
        with self._held():
            pass

    def spent(self) -> Cost:
        """What the account has spent, calls without an outcome at the most that they could cost."""
        with self._held():
            return self._spent

    def find(self, key: str, limit: int) -> int | None:
        """The byte where the answer's line starts, as far as known: asked with this longest length, or ended under a
        smaller one."""
        answers = self._closed.get(key, {})
        shorter = [length for length in sorted(answers) if length < limit and answers[length][1] != "cut-off"]
        found = [answers[length][0] for length in (limit, *shorter) if length in answers]
        return found[0] if found else None

    def read(self, start: int) -> tuple[str, bytes]:
        """The label under which a reply was stored, and its bytes."""
        line: dict[str, Any] = next(iterate_places(self.path, start))[2]
        return line["label"], line["raw"].encode("utf-8", "surrogateescape")

    def intend(self, question: ChatRequest, lasting_s: float) -> str:
        """Announce a call that ends within `lasting_s`: its name, or STORED, BUSY or FULL if it is not to be sent."""
        with self._held():
            if self.find(question.key, question.limit) is not None:
                return STORED
            if any(intent["key"] == question.key and _is_on_its_way(intent) for intent in self._open.values()):
                return BUSY
            if not self.caps.allow(self._spent.plus(question.worst)):
                return FULL
            call = uuid.uuid4().hex
            entry = {"account": self.account, "reserved": question.worst, "key": question.key}
            mine = {"host": socket.gethostname(), "pid": os.getpid(), "until": time.time() + lasting_s}
            self._append({"kind": "intent", "call": call, **entry, **mine})
            return call

    def settle(
        self, call: str, question: ChatRequest, reply: Reply | NoReply, *, outcome: str, spent: Cost, label: str
    ) -> None:
        """Enter how an announced call ended. A `label` that is not empty closes the question: it is asked no more."""
        status, body = (reply.status, reply.body) if isinstance(reply, Reply) else (reply.text, b"")
        entry = {"kind": "outcome", "call": call, "outcome": outcome, "status": status, "spent": spent, "label": label}
        asked = {"key": question.key, "limit": question.limit, "sample": question.sample}
        asked |= {"request": question.request} if label else {}
        with self._held():  # bytes that are no UTF-8 become escapes, and come back as they were
            self._append({**entry, **asked, "raw": body.decode("utf-8", "surrogateescape")})

    def _append(self, entry: Mapping[str, object]) -> None:
        append_line(self.path, event_line(with_time(entry)), durable=True)
        self._read_on()

    def _read_on(self) -> None:
        for start, end, line in iterate_places(self.path, self._end):
            self._take_in(start, line)
            self._end = end

    def _take_in(self, start: int, line: dict[str, Any]) -> None:
        if line["kind"] == "intent":
            intent = self._open[line["call"]] = line
            cost = Cost(*line["reserved"])
        else:
            if line["label"]:
                self._closed.setdefault(line["key"], {}).setdefault(line["limit"], (start, line["label"]))
            intent = self._open.pop(line["call"], None)
            cost = Cost(*line["spent"]).plus(Cost(*intent["reserved"]), -1) if intent is not None else Cost()
        if intent is not None and intent["account"] == self.account:
            self._spent = self._spent.plus(cost)

    @contextmanager
    def _held(self) -> Generator[None]:
        """Nobody else writes inside `with`, and all that others wrote before is known."""
        with self._lock:
            try:
                descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise write_failed(self._lock_path, error) from error
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                self._read_on()
                yield
            finally:
                os.close(descriptor)


def _is_on_its_way(intent: Mapping[str, Any]) -> bool:
    """Whether another process of this machine is at an announced call."""
    is_other = intent["host"] == socket.gethostname() and intent["pid"] != os.getpid()
    return is_other and time.time() < intent["until"] and psutil.pid_exists(intent["pid"])
