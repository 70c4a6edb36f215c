"""What a chat endpoint's reply means: an answer with its label, or how a failed attempt ends. Pure functions of bytes.

An attempt ends as one of
    answered                    stored, and its question is never asked again; the label says what the answer is worth
    unreachable, deadline, broken, server-error, rate-limited       asked again, within the limits of the question
    rejected                    this question is refused, the others go on
    unauthorized, forbidden, unknown-model, quota, redirected, unsupported  all would be refused: the writing stops
and an answer is labelled
    ok                          the only one that may be fit to train on
    cut-off, filtered, refused, tool-call, bad-text, unclosed-reasoning, empty, unknown-end, other-model, oversize
    unreadable                  a stored reply that this version of Limbeck does not understand
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, ClassVar

from limbeck.http import NoReply, Reply, retry_after_s

__all__ = ["ChatAnswer", "ChatFailure", "classify_reply", "parse_stored_reply"]

_ENDS = {
    **dict.fromkeys(("stop", "eos", "eos_token", "end_turn", "stop_sequence"), "ok"),
    **dict.fromkeys(("length", "max_tokens"), "cut-off"),
    **dict.fromkeys(("content_filter", "safety"), "filtered"),
    **dict.fromkeys(("tool_calls", "function_call"), "tool-call"),
}
_QUOTA_CODES = {"insufficient_quota", "insufficient_balance", "billing_hard_limit_reached", "billing_not_active"}
_STATUS = {
    **dict.fromkeys((400, 413, 422), "rejected"),
    **dict.fromkeys((408, 409, 425), "server-error"),
    **{401: "unauthorized", 402: "quota", 403: "forbidden", 404: "unknown-model", 429: "rate-limited"},
}
_STATUS_HUNDREDS = {3: "redirected", 4: "unsupported", 5: "server-error"}
_REASONING = re.compile(r"(?:\s*<(?:think|thinking)>)?(.*?)</(?:think|thinking)>\s*(.*)", re.DOTALL)
_REASONING_START = re.compile(r"\s*<(?:think|thinking)>")  # a template may have opened the block itself
_BAD_TEXT = re.compile("[\\0\ufffd\ud800-\udfff]")  # NUL, bytes that were no UTF-8, half a surrogate pair
_SHOWN_LENGTH = 300


@dataclass(frozen=True)
class ChatAnswer:
    """What the teacher wrote. `text` is without its reasoning, which endpoints hand over in one of several forms.

    Token counts are None where the endpoint gave none.
    """

    kind: ClassVar[str] = "answered"
    text: str
    label: str
    reasoning: str = ""
    input_tokens: int | None = None
    output_tokens: int | None = None


@dataclass(frozen=True)
class ChatFailure:
    """An attempt without an answer: how it ended, what was said, how long the endpoint asks to wait, if it does."""

    kind: str
    text: str
    wait_s: float | None = None


class _Unreadable(ValueError):
    """Bytes that are no chat completion; the text says why."""


def classify_reply(reply: Reply | NoReply, model: str) -> ChatAnswer | ChatFailure:
    """How an attempt ended, for a question that was put to `model`."""
    if isinstance(reply, NoReply):
        # what is too long was written and charged for, and would be as long again
        return ChatAnswer("", "oversize") if reply.why == "oversize" else ChatFailure(reply.why, reply.text)
    wait_s = retry_after_s(reply.headers)
    said, codes = _error_of(reply.body)
    text = f"status {reply.status}: {said}"
    if codes & _QUOTA_CODES:
        return ChatFailure("quota", text)
    if reply.status == 200:
        if reply.headers.get("content-encoding", "") not in ("", "identity"):
            return ChatFailure("broken", "the body is compressed, which was not asked for", wait_s)
        try:
            return _answer(reply.body, model)
        except _Unreadable as unreadable:
            return ChatFailure("broken", f"{unreadable}: {said}", wait_s)
    if "model_not_found" in codes:
        return ChatFailure("unknown-model", text)
    if location := reply.headers.get("location"):
        text = f"status {reply.status}, to {location[:_SHOWN_LENGTH]}"
    return ChatFailure(_STATUS.get(reply.status) or _STATUS_HUNDREDS.get(reply.status // 100, "broken"), text, wait_s)


def parse_stored_reply(body: bytes, model: str, label: str) -> ChatAnswer:
    """A stored reply as this version reads it; `model` is the name under which the endpoint should answer."""
    if label == "oversize":
        return ChatAnswer("", label)
    try:
        return _answer(body, model)
    except _Unreadable:
        return ChatAnswer("", "unreadable")


def _answer(body: bytes, model: str) -> ChatAnswer:
    value = _parsed(body)
    if value.get("error"):
        raise _Unreadable("an error came as a good reply")
    choices = value.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise _Unreadable("there are no choices")
    message = choices[0].get("message")
    if not isinstance(message, dict) or not {"content", "refusal", "tool_calls", "reasoning_content"} & message.keys():
        raise _Unreadable("there is no message with a content")
    content, refusal = _text(message.get("content")), _text(message.get("refusal"))
    reasoning = _text(message.get("reasoning_content")) or _text(message.get("reasoning"))
    is_unclosed = False
    if (block := _REASONING.fullmatch(content)) is not None:
        content, reasoning = block[2], reasoning or block[1].strip()
    elif (start := _REASONING_START.match(content)) is not None:
        content, reasoning, is_unclosed = "", reasoning or content[start.end() :].strip(), True
    reason = choices[0].get("finish_reason")
    end = _ENDS.get(reason, "unknown-end") if isinstance(reason, str) else "unknown-end"
    labels = (  # the first that holds
        (end == "filtered", "filtered"),
        (refusal, "refused"),
        (end == "tool-call" or (message.get("tool_calls") and not content.strip()), "tool-call"),
        (end == "cut-off", "cut-off"),
        (_BAD_TEXT.search(content), "bad-text"),
        (is_unclosed, "unclosed-reasoning"),
        (not content.strip(), "empty"),
        (end == "unknown-end", "unknown-end"),
        (not _is_same_model(value.get("model"), model), "other-model"),
    )
    usage = value.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    return ChatAnswer(
        text=refusal or content,
        label=next((label for holds, label in labels if holds), "ok"),
        reasoning=reasoning,
        input_tokens=_count(usage.get("prompt_tokens")),
        output_tokens=_count(usage.get("completion_tokens")),
    )


def _parsed(body: bytes) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({name for name, _ in pairs}) < len(pairs):
            raise ValueError("a key stands twice in one object")
        return dict(pairs)

    try:
        value = json.loads(body.decode("utf-8-sig", "replace"), object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise _Unreadable(f"the body is no JSON, {error}") from None
    if not isinstance(value, dict):
        raise _Unreadable("the body is no JSON object")
    return value


def _text(content: object) -> str:
    """The text of a content, which is a text or a list of parts."""
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


def _is_same_model(replied: object, asked: str) -> bool:
    """An endpoint may add a date or a version, leave the owner out or put it in, or not say."""
    if not isinstance(replied, str):
        return True
    return replied.startswith(asked) or asked.endswith("/" + replied) or replied.endswith("/" + asked)


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**40 else None


def _error_of(body: bytes) -> tuple[str, set[str]]:
    """What the endpoint said, cut short, and the codes of its error."""
    said: object = None
    codes: set[str] = set()
    try:
        error = _parsed(body).get("error")
    except _Unreadable:
        error = None
    if isinstance(error, dict):
        said, codes = error.get("message"), {str(error.get("code")), str(error.get("type"))}
    text = said if isinstance(said, str) else body[: 2 * _SHOWN_LENGTH].decode("utf-8", "replace")
    return " ".join(text.split())[:_SHOWN_LENGTH], codes
