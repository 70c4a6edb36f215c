"""How the reply of a hosted API is classified: an answer with a label, or a failed attempt. Pure functions of bytes.

An attempt ends as one of
    answered                    stored, and never requested again; the label says whether the answer is usable
    unreachable, deadline, broken, server-error, rate-limited       retried, within the limits of the request
    rejected                    this request is refused, the others continue
    unauthorized, forbidden, unknown-model, quota, redirected, unsupported  all would be refused: generation stops
and an answer is labelled
    ok                          the only label of answers to train on
    cut-off, filtered, refused, tool-call, bad-text, unclosed-reasoning, empty, unknown-end, other-model, oversize
    unreadable                  a stored reply that this version of Limbeck cannot parse
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, ClassVar

from limbeck.http import NoReply, Reply, retry_after_s
from limbeck.teachers import messages

__all__ = ["ChatFailure", "ParsedReply", "parse_reply", "parse_stored_reply"]

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
_REASONING_START = re.compile(r"\s*<(?:think|thinking)>")  # the template may already contain the start tag
_BAD_TEXT = re.compile("[\\0\ufffd\ud800-\udfff]")  # NUL, invalid UTF-8, half a surrogate pair
_SHOWN_LENGTH = 300


@dataclass(frozen=True)
class ParsedReply:
    """A generated answer. `text` is without the reasoning, which APIs return in one of several forms.

    Token counts that the API did not return are `None`.
    """

    kind: ClassVar[str] = "answered"
    text: str
    label: str
    reasoning: str = ""
    input_tokens: int | None = None
    output_tokens: int | None = None


@dataclass(frozen=True)
class ChatFailure:
    """An attempt without an answer: its kind, the API's message, and the wait that the API requires, if any."""

    kind: str
    text: str
    wait_s: float | None = None


class _Unreadable(ValueError):
    """Bytes that are not a chat completion; the text says why."""


def parse_reply(reply: Reply | NoReply, model: str) -> ParsedReply | ChatFailure:
    """How an attempt to get an answer of `model` ended."""
    if isinstance(reply, NoReply):
        # a reply that is too long was charged for, and would be as long again
        return ParsedReply("", "oversize") if reply.why == "oversize" else ChatFailure(reply.why, reply.text)
    wait_s = retry_after_s(reply.headers)
    said, codes = _error_of(reply.body)
    text: str = messages.reply_status(status=reply.status, reply=said)
    if codes & _QUOTA_CODES:
        return ChatFailure("quota", text)
    if reply.status == 200:
        if reply.headers.get("content-encoding", "") not in ("", "identity"):
            return ChatFailure("broken", messages.reply_compressed(), wait_s)
        try:
            return _answer(reply.body, model)
        except _Unreadable as unreadable:
            return ChatFailure("broken", messages.reply_unreadable(why=str(unreadable), reply=said), wait_s)
    if "model_not_found" in codes:
        return ChatFailure("unknown-model", text)
    if location := reply.headers.get("location"):
        text = messages.reply_redirect(status=reply.status, location=location[:_SHOWN_LENGTH])
    return ChatFailure(_STATUS.get(reply.status) or _STATUS_HUNDREDS.get(reply.status // 100, "broken"), text, wait_s)


def parse_stored_reply(body: bytes, model: str, label: str) -> ParsedReply:
    """A stored reply as this version parses it; `model` is the model name that replies should have."""
    if label == "oversize":
        return ParsedReply("", label)
    try:
        return _answer(body, model)
    except _Unreadable:
        return ParsedReply("", "unreadable")


def _answer(body: bytes, model: str) -> ParsedReply:
    value = _parsed(body)
    if value.get("error"):
        raise _Unreadable(messages.reply_is_error())
    choices = value.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise _Unreadable(messages.reply_without_choices())
    message = choices[0].get("message")
    if not isinstance(message, dict) or not {"content", "refusal", "tool_calls", "reasoning_content"} & message.keys():
        raise _Unreadable(messages.reply_without_message())
    content, refusal = _text(message.get("content")), _text(message.get("refusal"))
    reasoning = _text(message.get("reasoning_content")) or _text(message.get("reasoning"))
    is_unclosed = False
    if (block := _REASONING.fullmatch(content)) is not None:
        content, reasoning = block[2], reasoning or block[1].strip()
    elif (start := _REASONING_START.match(content)) is not None:
        content, reasoning, is_unclosed = "", reasoning or content[start.end() :].strip(), True
    reason = choices[0].get("finish_reason")
    end = _ENDS.get(reason, "unknown-end") if isinstance(reason, str) else "unknown-end"
    labels = (  # the first that applies
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
    return ParsedReply(
        text=refusal or content,
        label=next((label for holds, label in labels if holds), "ok"),
        reasoning=reasoning,
        input_tokens=_count(usage.get("prompt_tokens")),
        output_tokens=_count(usage.get("completion_tokens")),
    )


def _parsed(body: bytes) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({name for name, _ in pairs}) < len(pairs):
            raise ValueError(messages.reply_duplicate_key())
        return dict(pairs)

    try:
        value = json.loads(body.decode("utf-8-sig", "replace"), object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise _Unreadable(messages.reply_not_json(why=str(error))) from None
    if not isinstance(value, dict):
        raise _Unreadable(messages.reply_not_object())
    return value


def _text(content: object) -> str:
    """The text of a message's content, which is a string or a list of parts."""
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


def _is_same_model(replied: object, requested: str) -> bool:
    """Whether a reply is from the requested model; APIs add dates or versions, add or drop owners, omit names."""
    if not isinstance(replied, str):
        return True
    return replied.startswith(requested) or requested.endswith("/" + replied) or replied.endswith("/" + requested)


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**40 else None


def _error_of(body: bytes) -> tuple[str, set[str]]:
    """The API's error message, truncated, and the codes of the error."""
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
