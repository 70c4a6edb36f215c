"""A chat endpoint on 127.0.0.1 that does, request by request, what a script says: it answers well or badly, and counts.

    with MisbehavingServer(lambda seen: "good" if seen.number % 2 else "429") as server:
        ...  # server.url, server.seen

A script gets each request as it came and returns the name of a form, or a form: the bytes to send before the connection
is closed, or a coroutine function of the writer. `good` answers with the words of the prompt and keeps the connection.
Nothing lasts longer than MAX_S, whatever the script says.
"""

from __future__ import annotations

import asyncio
import email.utils
import gzip
import json
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

MAX_S = 20.0

Form = bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass(frozen=True)
class Seen:
    """A request as it came: its number from 0, when (monotonic clock), and how many were in flight with it."""

    number: int
    at_s: float
    in_flight: int
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def prompt(self) -> str:
        return self.body["messages"][-1]["content"]


def completion(
    content: Any = "An answer.", *, finish: Any = "stop", usage: Any = None, **message: Any
) -> dict[str, Any]:
    """A chat completion; `usage` () leaves it out."""
    value: dict[str, Any] = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "tiny",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": content, **message}, "finish_reason": finish}
        ],
        "usage": {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12} if usage is None else usage,
    }
    if usage == ():
        del value["usage"]
    return value


def http(body: Any, status: int = 200, *, length: int | None = None, **headers: str) -> bytes:
    """A whole reply, after which the connection is closed; `length` is what it claims."""
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} Said", f"content-length: {len(payload) if length is None else length}"]
    lines += ["connection: close", *(f"{name.replace('_', '-')}: {text}" for name, text in headers.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + payload


def error(message: str, code: str | None = None, status: int = 400, **headers: str) -> bytes:
    return http({"error": {"message": message, "type": code, "code": code}}, status, **headers)


def in_seconds(seconds: float, server_clock_s: float = 0.0) -> dict[str, str]:
    """Retry-After as a date, by a server whose clock is wrong by `server_clock_s`."""
    now = time.time() + server_clock_s
    return {
        "date": email.utils.formatdate(now, usegmt=True),
        "retry_after": email.utils.formatdate(now + seconds, usegmt=True),
    }


def patched(**fields: Any) -> bytes:
    return http({**completion(), **fields})


async def hang(writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(MAX_S)


async def drip(writer: asyncio.StreamWriter) -> None:
    """A byte now and then: each read is quick, and the whole never comes."""
    for byte in http(completion()):
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.05)


async def reset(writer: asyncio.StreamWriter) -> None:
    writer.write(http(completion())[:-20])
    await writer.drain()
    writer.transport.abort()


async def chunked_stop(writer: asyncio.StreamWriter) -> None:
    writer.write(
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n10\r\n" + json.dumps(completion())[:16].encode()
    )


SSE = b'data: {"choices": [{"delta": {"content": "Half an ans"}}]}\n\n'
GOOD = json.dumps(completion()).encode()
FORMS: dict[str, Form] = {
    "hang": hang,
    "drip": drip,
    "reset in the body": reset,
    "close at once": b"",
    "no http": b"SSH-2.0-OpenSSH_9.2\r\n",
    "html": http(b"<html><body>Bad gateway</body></html>", content_type="text/html"),
    "200 with error": http({"error": {"message": "the model is loading", "code": None}}),
    "200 with error text": http({"error": "overloaded"}),
    "no choices": patched(choices=[]),
    "choices null": patched(choices=None),
    "message without content": patched(choices=[{"message": {"role": "assistant"}, "finish_reason": "stop"}]),
    "no object": http([1, 2]),
    "empty body": http(b""),
    "truncated json": http(GOOD[:-30]),
    "length too long": http(GOOD, length=len(GOOD) + 100),
    "length too short": http(GOOD, length=len(GOOD) - 10),
    "compressed": http(gzip.compress(GOOD), content_encoding="gzip"),
    "gzip bomb": http(gzip.compress(bytes(50 * 2**20)), content_encoding="gzip"),
    "chunked stop": chunked_stop,
    "sse without end": http(SSE, content_type="text/event-stream"),
    "sse cut in a character": http(SSE + "data: é".encode()[:-1], content_type="text/event-stream"),
    "key twice": http(GOOD.replace(b'"model": "tiny"', b'"model": "tiny", "choices": []')),
    "deep": http(b"[" * 100_000),
    "204": http(b"", 204),
    "429": http(b"", 429),
    "500": http({"detail": "oops"}, 500),
    "503 with wait": http(b"", 503, retry_after="0.2"),
    "408": http(b"", 408),
    "400": error("This model's maximum context length is 4096 tokens.", "context_length_exceeded", 400),
    "413": http(b"", 413),
    "422": http({"detail": "temperature"}, 422),
    "401": error("Incorrect API key provided.", "invalid_api_key", 401),
    "402": http({"error": {"message": "Insufficient Balance"}}, 402),
    "403": error("Country not supported.", "unsupported_country", 403),
    "404": error("The model `tiny` does not exist.", "model_not_found", 404),
    "400 for the model": error("The model `tiny` does not exist.", "model_not_found", 400),
    "405": http(b"", 405),
    "429 quota": error("You exceeded your current quota.", "insufficient_quota", 429),
    "429 for an hour": http(b"", 429, retry_after="3600"),
    "redirect": http(b"", 302, location="http://127.0.0.1:9/v1/chat/completions"),
    "length": http(completion("```python\nfor x in", finish="length")),
    "length in reasoning": http(completion("<think>\nFirst", finish="length")),
    "filtered": http(completion("", finish="content_filter")),
    "finish null": http(completion(finish=None)),
    "finish unknown": http(completion(finish="moon_phase")),
    "finish a list": http(completion(finish=["stop"])),
    "refusal field": http(completion(None, refusal="I can't help with that.")),
    "polite refusal": http(completion("I'm sorry, but I can't help with that.")),
    "empty": http(completion("")),
    "white space": http(completion(" \n\t")),
    "null": http(completion(None)),
    "null with reasoning": http(completion(None, reasoning_content="Let me think.")),
    "reasoning field": http(completion("", reasoning="Let me think.")),
    "parts": http(
        completion([{"type": "text", "text": "An "}, {"type": "image"}, {"type": "text", "text": "answer."}])
    ),
    "tool calls": http(completion(None, finish="tool_calls", tool_calls=[{"id": "1", "function": {"name": "f"}}])),
    "bad utf-8": http(GOOD.replace(b"An answer", b"An \xff answer")),
    "bad utf-8 elsewhere": http(GOOD.replace(b"chatcmpl-1", b"chatcmpl-\xff")),
    "lone surrogate": http(GOOD.replace(b"An answer", b"An \\ud800 answer")),
    "nul": http(completion("An \0 answer.")),
    "bom": http(b"\xef\xbb\xbf" + GOOD),
    "nan": http(GOOD.replace(b'"prompt_tokens": 5', b'"prompt_tokens": NaN')),
    "infinity": http(GOOD.replace(b'"completion_tokens": 7', b'"completion_tokens": Infinity')),
    "usage missing": http(completion(usage=())),
    "usage null": patched(usage=None),
    "usage negative": http(completion(usage={"prompt_tokens": -5, "completion_tokens": True})),
    "usage lies": http(completion(usage={"prompt_tokens": 10**30, "completion_tokens": "many"})),
    "other model": patched(model="another-model"),
    "dated model": patched(model="tiny-2026-01-01"),
    "20 MB": http(completion("a" * (20 * 2**20))),
    "reasoning apart": http(completion("An answer.", reasoning_content="Let me think.")),
    "think block": http(completion("<think>\nLet me think.\n</think>\n\nAn answer.")),
    "think unclosed": http(completion("<think>\nLet me think. An answer.")),
    "think only closed": http(completion("Let me think.\n</think>\n\nAn answer.")),
}


@dataclass
class MisbehavingServer:
    """See the module; `delay_s` is how long it thinks before each reply.

    With a `crowd`, the requests after the first are held until so many are in flight at once; then all are answered.
    """

    script: Callable[[Seen], str | Form] = lambda seen: "good"
    delay_s: float = 0.0
    crowd: int = 0
    seen: list[Seen] = field(default_factory=list)

    def __enter__(self) -> MisbehavingServer:
        self._loop = asyncio.new_event_loop()
        self._in_flight = 0
        self._crowded = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**24))
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            async with asyncio.timeout(MAX_S):
                while await self._answer(reader, writer):
                    pass
        except (ConnectionError, TimeoutError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client went away, or the test has ended
        finally:
            self._tasks.discard(task)
            writer.transport.abort() if writer.transport.is_closing() else writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One exchange; whether the connection stays."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): text.strip() for name, _, text in (line.partition(":") for line in head[1:] if line)}
        body = json.loads(await reader.readexactly(int(headers["content-length"])))
        self._in_flight += 1
        seen = Seen(len(self.seen), time.monotonic(), self._in_flight, headers, body)
        self.seen.append(seen)
        if self._in_flight >= self.crowd:
            self._crowded.set()
        try:
            await asyncio.sleep(self.delay_s)
            if seen.number > 0:
                await self._crowded.wait()
        finally:
            self._in_flight -= 1
        form = self.script(seen)
        form = FORMS[form] if isinstance(form, str) and form != "good" else form
        if form == "good":
            text = json.dumps(completion(f"You said {seen.prompt}")).encode()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(text) + text)
        elif isinstance(form, bytes):
            writer.write(form)
        elif not isinstance(form, str):
            await form(writer)
        await writer.drain()
        return form == "good"
