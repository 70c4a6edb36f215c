"""The ledger: what a workspace has sent to an endpoint, what came back and what it cost; nothing is paid for twice.

    teachers/ALIAS/ledger.jsonl     one line per intent and one per outcome, only ever appended to
    teachers/ALIAS/ledger.lock      held for the moment of each entry, so several processes may write

An intent is on disk before its request is sent, and the bytes of a reply are before they are parsed. A call without an
outcome, from a process that was killed, counts with its highest possible cost. Answers are found by the content of the
request, under the alias of the endpoint: two servers that both call their model "default" share nothing, and a server
that moves to another address keeps its answers under its alias.
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
from limbeck.runs.lines import FORMAT, append_line, event_line, iterate_places, with_time, write_failed

__all__ = ["BUSY", "FULL", "STORED", "Caps", "Cost", "Ledger", "LedgerRequest"]

STORED = "stored"  # its answer is in the ledger
BUSY = "busy"  # another process has it in flight
FULL = "full"  # its highest possible cost exceeds the caps


class Cost(NamedTuple):
    """Requests sent, tokens in and out, and the price in billionths: integers add without error."""

    calls: int = 0
    tokens: int = 0
    nano: int = 0

    def plus(self, other: Cost, times: int = 1) -> Cost:
        return Cost(*(mine + times * its for mine, its in zip(self, other, strict=True)))


class Caps(NamedTuple):
    """The most that an account may spend of each; None for no cap."""

    calls: int | None = None
    tokens: int | None = None
    nano: int | None = None

    def allow(self, cost: Cost) -> bool:
        return all(cap is None or amount <= cap for cap, amount in zip(self, cost, strict=True))


class LedgerRequest(NamedTuple):
    """A request: its body without the token limit, the index of the sample, the token limit, the highest cost."""

    body: Mapping[str, object]
    sample: int
    limit: int
    worst: Cost

    @property
    def key(self) -> str:
        """Hash of all but the token limit: what fits a smaller limit is also the answer under a larger one."""
        text = json.dumps([1, self.body, self.sample], sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()


NO_CAPS = Caps()


class Ledger:
    """The calls to one endpoint, with the caps of the account that pays. Safe to use from any thread and process."""

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
        self._end = 0  # the byte up to which the file has been read
        self._open: dict[str, dict[str, Any]] = {}  # intents of calls without an outcome
        self._spent = Cost()  # by the account; calls without an outcome at their highest possible cost
        self._closed: dict[str, dict[int, tuple[int, str]]] = {}  # key, token limit: first byte of its line, label
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.touch(mode=0o600)
        except OSError as error:
            raise write_failed(self.path, error) from error
        with self._held():
            pass

    def spent(self) -> Cost:
        """What the account has spent; calls without an outcome count with their highest possible cost."""
        with self._held():
            return self._spent

    def find(self, key: str, limit: int) -> int | None:
        """The first byte of the answer's line: under this token limit, or a smaller one that the answer fits; None if
        there is none."""
        answers = self._closed.get(key, {})
        shorter = [length for length in sorted(answers) if length < limit and answers[length][1] != "cut-off"]
        found = [answers[length][0] for length in (limit, *shorter) if length in answers]
        return found[0] if found else None

    def read(self, start: int) -> tuple[str, bytes]:
        """The label with which a reply was stored, and its bytes."""
        line: dict[str, Any] = next(iterate_places(self.path, start))[2]
        return line["label"], line["raw"].encode("utf-8", "surrogateescape")

    def reserve(self, request: LedgerRequest, lasting_s: float) -> str:
        """Announce a call that ends within `lasting_s`: its id, or STORED, BUSY or FULL if it must not be sent."""
        with self._held():
            if self.find(request.key, request.limit) is not None:
                return STORED
            if any(intent["key"] == request.key and _is_on_its_way(intent) for intent in self._open.values()):
                return BUSY
            if not self.caps.allow(self._spent.plus(request.worst)):
                return FULL
            call = uuid.uuid4().hex
            entry = {"account": self.account, "reserved": request.worst, "key": request.key}
            mine = {"host": socket.gethostname(), "pid": os.getpid(), "until": time.time() + lasting_s}
            self._append({"kind": "intent", "call": call, **entry, **mine})
            return call

    def record_reply(
        self, call: str, request: LedgerRequest, reply: Reply | NoReply, *, outcome: str, spent: Cost, label: str
    ) -> None:
        """Record how an announced call ended. A label that is not empty is final: the request is never sent again."""
        status, body = (reply.status, reply.body) if isinstance(reply, Reply) else (reply.text, b"")
        entry = {"kind": "outcome", "call": call, "outcome": outcome, "status": status, "spent": spent, "label": label}
        asked = {"key": request.key, "limit": request.limit, "sample": request.sample}
        asked |= {"request": request.body} if label else {}
        with self._held():  # bytes that are not UTF-8 become escapes, and are restored when read
            self._append({**entry, **asked, "raw": body.decode("utf-8", "surrogateescape")})

    def _append(self, entry: Mapping[str, object]) -> None:
        first = FORMAT if self._end == 0 else {}
        append_line(self.path, event_line({**with_time(entry), **first}), durable=True)
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
        """Inside `with`, no other process writes, and everything written before has been read."""
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
    """Whether another process of this machine has an announced call in flight."""
    is_other = intent["host"] == socket.gethostname() and intent["pid"] != os.getpid()
    return is_other and time.time() < intent["until"] and psutil.pid_exists(intent["pid"])
