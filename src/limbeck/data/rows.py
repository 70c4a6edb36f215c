"""Files to rows: what each row asks, which reference answer it carries, and every fault at once.

A row is a JSON object in one of these forms:

    {"prompt": [{"role": "user", "content": "..."}]}      a conversation that ends with a user turn
    {"prompt": "..."}                                     one user turn
    {"messages": [..., {"role": "assistant", ...}]}       the last assistant turn is the reference answer

A reference answer may also stand in the column completion, answer, ideal or response. It is set aside: prompts are
all that distillation reads, the answers come from the models. Every other column is kept in `Row.extra`.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from limbeck.data.faults import Fault, faults_error, shown
from limbeck.data.jsonl import Item, read_document

__all__ = ["ROLES", "Message", "Row", "RowSet", "as_dicts", "content_hash", "read_rows"]

ROLES = ("system", "user", "assistant")

_CONVERSATIONS = ("prompt", "messages")
_REFERENCES = ("completion", "answer", "ideal", "response")
# A template would need these to write the prompt that the row means; left out, the prompt would be another one.
_UNSUPPORTED_COLUMNS = ("tools", "functions", "images", "documents")
_UNSUPPORTED_KEYS = ("tool_calls", "function_call", "reasoning_content", "reasoning", "thinking")
_SHAREGPT_ROLES = {"human": "user", "gpt": "assistant"}
_ROLE_NAMES = "system, user or assistant"


@dataclass(frozen=True)
class Message:
    role: str
    content: str


@dataclass(frozen=True)
class Row:
    """A prompt: messages that end with a user turn. `source` is file and line, `extra` the columns not read."""

    messages: tuple[Message, ...]
    reference: str | None
    source: str
    content_hash: str
    extra: Mapping[str, object]


@dataclass(frozen=True)
class RowSet:
    """All rows of a file; `sha256` is that of its bytes, `notes` are sentences for the user."""

    rows: tuple[Row, ...]
    path: Path
    sha256: str
    num_references: int
    notes: tuple[str, ...]


def read_rows(path: Path | str) -> RowSet:
    """Reads a JSONL file of prompts. Raises DataError that lists every fault with file, line and field."""
    path = Path(path).expanduser()
    document = read_document(path)
    faults = list(document.faults)
    rows: list[Row] = []
    for item in document.items:
        row = _RowReader(item.source, faults).read(item)
        if row is not None:
            rows.append(row)
    if faults:
        raise faults_error(sorted(faults, key=_position), file_name=path.name)
    num_references = sum(row.reference is not None for row in rows)
    notes = (*document.notes, *_notes(rows, num_references))
    return RowSet(tuple(rows), path, document.sha256, num_references, notes)


def as_dicts(messages: Sequence[Message]) -> list[dict[str, str]]:
    """Messages in the form that chat templates and chat services take."""
    return [{"role": message.role, "content": message.content} for message in messages]


def content_hash(messages: Sequence[Message]) -> str:
    """SHA-256 (hex) of roles and contents: the same for the same conversation, however its row was written."""
    canonical = json.dumps([[message.role, message.content] for message in messages], separators=(",", ":"))
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def _position(fault: Fault) -> list[int]:
    """Line, and number within the line where several rows stand on one."""
    return [int(number) for number in re.findall(r"\d+", fault.source.rpartition(":")[2])]


def _notes(rows: Sequence[Row], num_references: int) -> list[str]:
    notes: list[str] = []
    if num_references:
        rows_carry = "1 row carries" if num_references == 1 else f"{num_references} rows carry"
        notes.append(f"{rows_carry} a reference answer; this route does not read it.")
    num_repeated = len(rows) - len({row.content_hash for row in rows})
    if num_repeated:
        notes.append(f"{num_repeated} of {len(rows)} rows repeat the prompt of an earlier row.")
    columns = Counter(name for row in rows for name in row.extra)
    if columns:
        names = ", ".join(f"{name} ({num})" for name, num in sorted(columns.items()))
        notes.append(f"Columns kept with their rows but not part of the prompt: {names}.")
    return notes


class _RowReader:
    """Reads one row; what is wrong goes to `faults`, and the row is then None."""

    def __init__(self, source: str, faults: list[Fault]) -> None:
        self._source = source
        self._faults = faults

    def read(self, item: Item) -> Row | None:
        num_faults = len(self._faults)
        if not isinstance(item.value, dict):
            given = f"the row is {_kind(item.value)}"
            self._fault("data.row-not-object", "", given, 'an object such as {"prompt": "..."}')
            return None
        columns = cast("dict[str, object]", item.value)
        for name in _UNSUPPORTED_COLUMNS:
            if columns.get(name):
                given = f"the column holds {shown(columns[name])}"
                self._fault(
                    "data.column-unsupported", name, given, "prompts of text alone; it is not written into them"
                )
        field = self._conversation_field(columns)
        if field is None:
            return None
        messages = self._messages(columns[field], field)
        turn_reference: str | None = None
        if field == "messages" and messages and messages[-1].role == "assistant":
            turn_reference = messages.pop().content
        if len(self._faults) == num_faults:
            self._check_turns(messages, field)
        reference = self._reference(columns, turn_reference)
        if len(self._faults) != num_faults:
            return None
        known = {*_CONVERSATIONS, *_REFERENCES}
        extra = {name: value for name, value in columns.items() if name not in known}
        return Row(tuple(messages), reference, self._source, content_hash(messages), extra)

    def _fault(self, code: str, field: str, given: str, expected: str) -> None:
        self._faults.append(Fault(code, self._source, field, given, expected))

    def _conversation_field(self, columns: Mapping[str, object]) -> str | None:
        present = [name for name in _CONVERSATIONS if columns.get(name) is not None]
        if len(present) == 1:
            return present[0]
        if present:
            given = "the row has both prompt and messages"
            self._fault("data.field-ambiguous", "", given, "one of them")
            return None
        names = ", ".join(shown(name) for name in columns) or "no columns"
        near = [name for name in columns if difflib.get_close_matches(name.lower(), _CONVERSATIONS, n=1, cutoff=0.7)]
        hint = f" (which {shown(near[0])} may be meant to be)" if near else ""
        if "role" in columns and "content" in columns:
            hint = " (this is one message: put it in a list under prompt)"
        self._fault("data.field-missing", "prompt", f"the row has {names}", f"prompt or messages{hint}")
        return None

    def _messages(self, value: object, field: str) -> list[Message]:
        if field == "prompt" and isinstance(value, str):
            if not value.strip():
                self._fault("data.content-empty", field, f"the prompt is {shown(value)}", "text")
            return [Message("user", value)]
        if not isinstance(value, list):
            expected = "a list of messages" if field == "messages" else "a text or a list of messages"
            self._fault("data.field-type", field, f"the value is {_kind(value)}", expected)
            return []
        if not value:
            self._fault("data.conversation-empty", field, "the list is empty", "at least one user turn")
        messages = [self._message(message, f"{field}[{index}]") for index, message in enumerate(value)]
        return [message for message in messages if message is not None]

    def _message(self, value: object, field: str) -> Message | None:
        if not isinstance(value, dict):
            given = f"the message is {_kind(value)}"
            self._fault("data.field-type", field, given, 'an object such as {"role": "user", "content": "..."}')
            return None
        message = cast("dict[str, object]", value)
        if "role" not in message and "from" in message:
            given = "the message has from and value"
            expected = "role and content (human is user, gpt is assistant): rename them"
            self._fault("data.field-missing", field, given, expected)
            return None
        for name in _UNSUPPORTED_KEYS:
            if message.get(name):
                given = f"the message carries {shown(message[name])}"
                self._fault("data.message-unsupported", f"{field}.{name}", given, "turns of text alone")
        role = self._role(message, field)
        content = self._content(message, field)
        if role is None or content is None:
            return None
        if not content.strip() and role != "system":
            given = f"the {role} turn is {shown(content)}"
            self._fault("data.content-empty", f"{field}.content", given, "text, or no such turn")
            return None
        return Message(role, content)

    def _role(self, message: Mapping[str, object], field: str) -> str | None:
        if "role" not in message:
            names = ", ".join(shown(name) for name in message) or "no keys"
            self._fault("data.field-missing", f"{field}.role", f"the message has {names}", _ROLE_NAMES)
            return None
        role = message["role"]
        if isinstance(role, str) and role in ROLES:
            return role
        near = None
        if isinstance(role, str):
            near = role.strip().lower()
            near = _SHAREGPT_ROLES.get(near, near)
        hint = f" (is {near} meant?)" if near in ROLES else ""
        self._fault("data.role-unknown", f"{field}.role", f"the role is {shown(role)}", f"{_ROLE_NAMES}{hint}")
        return None

    def _content(self, message: Mapping[str, object], field: str) -> str | None:
        field = f"{field}.content"
        if "content" not in message:
            names = ", ".join(shown(name) for name in message) or "no keys"
            self._fault("data.field-missing", field, f"the message has {names}", "the text of the turn")
            return None
        content = message["content"]
        if isinstance(content, str):
            return content
        if not isinstance(content, list):
            self._fault("data.field-type", field, f"the content is {_kind(content)}", "a text")
            return None
        texts: list[str] = []
        for index, part in enumerate(content):
            text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
            if isinstance(text, str):
                texts.append(text)
                continue
            part_type = part.get("type") if isinstance(part, dict) else None
            given = f"a part of type {shown(part_type)}" if isinstance(part_type, str) else f"the part is {_kind(part)}"
            self._fault("data.part-unsupported", f"{field}[{index}]", given, 'parts of type "text" alone')
        return "".join(texts) if len(texts) == len(content) else None

    def _check_turns(self, messages: Sequence[Message], field: str) -> None:
        if not messages:
            given = "there is nothing but the reference answer"
            self._fault("data.conversation-end", field, given, "a user turn before it")
            return
        last = messages[-1].role
        if last == "user":
            return
        expected = "a user turn at the end, for the model to answer"
        if last == "assistant" and field == "prompt":
            expected += " (a reference answer stands in messages, or in a column completion)"
        self._fault("data.conversation-end", field, f"the prompt ends with a turn of role {last}", expected)

    def _reference(self, columns: Mapping[str, object], turn_reference: str | None) -> str | None:
        found: dict[str, str] = {} if turn_reference is None else {"messages": turn_reference}
        for name in _REFERENCES:
            value = columns.get(name)
            if value is None:
                continue
            if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
                # the conversational form of prompt and completion: one assistant turn in a list
                message = self._message(value[0], f"{name}[0]")
                if message is not None and message.role == "assistant":
                    found[name] = message.content
                elif message is not None:
                    given = f"a turn of role {message.role}"
                    self._fault("data.reference-invalid", f"{name}[0].role", given, "assistant")
            elif isinstance(value, str):
                found[name] = value
            else:
                given = f"the reference answer is {_kind(value)}"
                self._fault("data.reference-invalid", name, given, "a text, or null where there is none")
        if len(set(found.values())) > 1:
            given = f"different reference answers in {' and '.join(found)}"
            self._fault("data.field-ambiguous", "", given, "one reference answer")
        return next(iter(found.values()), None)


def _kind(value: object) -> str:
    """What a JSON value is, with the value where it is short."""
    if value is None:
        return "null"
    if isinstance(value, dict):
        return f"an object with {', '.join(shown(key) for key in list(value)[:4]) or 'no keys'}"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    name = "the boolean" if isinstance(value, bool) else "the text" if isinstance(value, str) else "the number"
    return f"{name} {json.dumps(value) if isinstance(value, bool) else shown(value)}"
