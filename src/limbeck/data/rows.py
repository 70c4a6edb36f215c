"""Files to rows: the prompt and the reference answer of each row, and all errors at once.

A row is a JSON object in one of these forms:

    {"prompt": [{"role": "user", "content": "..."}]}      a conversation that ends with a user turn
    {"prompt": "..."}                                     one user turn
    {"messages": [..., {"role": "assistant", ...}]}       the last assistant turn is the reference answer
    {"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", ...}]}      the same by other names

A content is a string, or a list of text parts ({"type": "text", "text": "..."}), which are joined without a separator.
A reference answer may also be in a column completion, answer, ideal or response, where it may be a list of strings that
are equally right. Distillation ignores it, because the answers come from the models; supervised training uses the
first. Every other column is kept in `PromptRow.extra`.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from limbeck.data.jsonl import read_bytes, read_values
from limbeck.data.messages import rows as messages
from limbeck.data.prompt import Message, PromptRow
from limbeck.data.row_errors import RowErrors, row_label, short_json
from limbeck.errors import Fault

__all__ = ["RowSet", "read_rows"]

_ROLES = {"system": "system", "user": "user", "assistant": "assistant"}
_FROM_VALUE_ROLES = {**_ROLES, "human": "user", "gpt": "assistant"}
_CONVERSATIONS = ("prompt", "messages", "conversations")
_REFERENCES = ("completion", "answer", "ideal", "response")
# A template would need these to render the prompt; without them the prompt would be a different one.
_UNSUPPORTED_COLUMNS = ("tools", "functions", "images", "documents")
_UNSUPPORTED_KEYS = ("tool_calls", "function_call", "reasoning_content", "reasoning", "thinking")


@dataclass(frozen=True)
class RowSet:
    """All rows of a file; `sha256` is over its bytes without a byte-order mark, `notes` are for the user."""

    rows: tuple[PromptRow, ...]
    sha256: str
    notes: tuple[str, ...]


def read_rows(path: Path | str, errors: RowErrors | None = None) -> RowSet:
    """Read a JSONL file of prompts. Raises DataError that lists every error with file, line and field.

    With `errors`, invalid rows are left out and reported there; DataError then means that no row is left.
    """
    path = Path(path).expanduser()
    data = read_bytes(path)
    found = RowErrors(path.name) if errors is None else errors
    parsers: list[_RowParser] = []
    parsed: list[PromptRow | None] = []
    for source, value in read_values(data, found):
        parsers.append(_RowParser(source, found))
        parsed.append(parsers[-1].parse(value))
    rows = tuple(row for row in parsed if row is not None)
    if errors is None or not rows:
        found.raise_if_any()
    if not rows:
        raise messages.file_empty(file=path.name, num_bytes=len(data))
    return RowSet(rows, hashlib.sha256(data).hexdigest(), (*_form_notes(parsers), *_notes(rows)))


def _notes(rows: Sequence[PromptRow]) -> tuple[str, ...]:
    notes: list[str] = []
    if num_references := sum(row.reference is not None for row in rows):
        notes.append(messages.references_present(num=num_references))
    num_repeated = len(rows) - len({row.content_hash for row in rows})
    if num_repeated:
        notes.append(messages.prompts_repeated(num=num_repeated, num_rows=len(rows)))
    columns = Counter(name for row in rows for name in row.extra)
    if columns:
        notes.append(messages.columns_kept(columns=_counted(columns)))
    return tuple(notes)


def _counted(names: Mapping[str, int]) -> list[str]:
    return [f"{name} ({num})" for name, num in sorted(names.items())]


def _form_notes(parsers: Sequence[_RowParser]) -> Iterator[str]:
    """Notes on messages that have other keys than role and content."""
    if num_from_value := sum(parser.is_from_value for parser in parsers):
        yield messages.from_value_rows(num=num_from_value, num_rows=len(parsers))
    ignored = Counter(key for parser in parsers for key in parser.ignored_keys)
    if ignored:
        yield messages.keys_ignored(keys=_counted(ignored))


class _RowParser:
    """Parses one row and reports all of its errors; an invalid row gives None.

    `is_from_value` is whether a message has the form {"from": ..., "value": ...}; `ignored_keys` are keys of messages
    that have no effect.
    """

    def __init__(self, source: str, errors: RowErrors) -> None:
        self._source = self._place = source
        self._errors = errors
        self.is_from_value = False
        self.ignored_keys: set[str] = set()

    def parse(self, columns: object) -> PromptRow | None:
        num_errors = len(self._errors)
        if not isinstance(columns, dict):
            self._add("", messages.row_not_object(value=short_json(columns)))
            return None
        self._place = row_label(self._source, columns)
        self._refuse_unsupported(columns, _UNSUPPORTED_COLUMNS, "")
        field = self._conversation_field(columns)
        turns = self._messages(columns.get(field), field)
        references: dict[str, tuple[str, ...]] = {}
        if field != "prompt" and turns and turns[-1].role == "assistant":
            references[field] = (turns.pop().content,)
        references |= self._references(columns)
        if len(set(references.values())) > 1:
            self._add("", messages.references_differ(columns=list(references)))
        if len(self._errors) == num_errors and not turns:
            self._add(field, messages.no_turn(column=field))
        elif len(self._errors) == num_errors and turns[-1].role != "user":
            self._add(field, messages.last_turn_not_user(role=turns[-1].role))
        if len(self._errors) != num_errors:
            return None
        extra = {name: value for name, value in columns.items() if name not in (*_CONVERSATIONS, *_REFERENCES)}
        reference, *others = next(iter(references.values()), (None,))
        return PromptRow(tuple(turns), reference, self._source, extra, tuple(filter(None, others)))

    def _add(self, field: str, fault: Fault) -> None:
        self._errors.add(self._place, field, fault)

    def _refuse_unsupported(self, holder: Mapping[str, object], names: Sequence[str], prefix: str) -> None:
        for name in names:
            if holder.get(name):
                self._add(prefix + name, messages.field_unsupported(value=short_json(holder[name])))

    def _conversation_field(self, columns: Mapping[str, object]) -> str:
        present = [name for name in _CONVERSATIONS if columns.get(name) is not None]
        if len(present) > 1:
            self._add("", messages.conversation_ambiguous(columns=present))
        elif not present:
            self._add("prompt", messages.conversation_missing(columns=_names(columns)))
        return present[0] if present else "prompt"

    def _messages(self, value: object, field: str) -> list[Message]:
        if isinstance(value, str) and field == "prompt":
            self._refuse_empty(value, field)
            return [Message("user", value)]
        if isinstance(value, list):
            return [self._message(message, f"{field}[{index}]") for index, message in enumerate(value)]
        if value is not None:
            wrong = messages.prompt_type if field == "prompt" else messages.conversation_type
            self._add(field, wrong(value=short_json(value)))
        return []

    def _message(self, value: object, field: str) -> Message:
        if not isinstance(value, dict):
            self._add(field, messages.message_type(value=short_json(value)))
            return Message("", "")
        self._refuse_unsupported(value, _UNSUPPORTED_KEYS, f"{field}.")
        is_from_value = "from" in value and "role" not in value
        self.is_from_value |= is_from_value
        keys = ("from", "value") if is_from_value else ("role", "content")
        missing = [name for name in keys if name not in value]
        for name in missing:
            self._add(f"{field}.{name}", messages.message_key_missing(keys=_names(value), required=list(keys)))
        if missing:
            return Message("", "")
        self.ignored_keys |= value.keys() - {*keys, *_UNSUPPORTED_KEYS}
        role, content = (value[name] for name in keys)
        known = _FROM_VALUE_ROLES if is_from_value else _ROLES
        if not isinstance(role, str) or role not in known:
            roles = ["system", "human", "gpt"] if is_from_value else ["system", "user", "assistant"]
            self._add(f"{field}.{keys[0]}", messages.role_unknown(role=short_json(role), known=roles))
            role = ""
        role = known.get(role, "")
        text = self._text(content, f"{field}.{keys[1]}")
        if text is not None and role != "system":
            self._refuse_empty(text, f"{field}.{keys[1]}")
        return Message(role, text or "")

    def _text(self, content: object, field: str) -> str | None:
        """A content as one string; None if it is invalid, which is reported."""
        if not isinstance(content, list):
            if not isinstance(content, str):
                self._add(field, messages.content_type(value=short_json(content)))
                return None
            return content
        texts: list[str] = []
        for index, part in enumerate(content):
            kind, text = (part.get("type"), part.get("text")) if isinstance(part, dict) else (None, None)
            if kind == "text" and isinstance(text, str):
                texts.append(text)
            else:
                known = kind in (None, "text")
                wrong = (
                    messages.part_unsupported(part=short_json(part))
                    if known
                    else messages.part_type_unsupported(kind=short_json(kind))
                )
                self._add(f"{field}[{index}]", wrong)
        return "".join(texts) if len(texts) == len(content) else None

    def _refuse_empty(self, text: str, field: str) -> None:
        if not text.strip():
            self._add(field, messages.content_empty(text=short_json(text)))

    def _references(self, columns: Mapping[str, object]) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        for name in _REFERENCES:
            value = columns.get(name)
            texts = value if isinstance(value, list) else [] if value is None else [value]
            if len(texts) == 1 and isinstance(texts[0], dict):
                turn = self._message(texts[0], f"{name}[0]")
                texts = [turn.content] if turn.role == "assistant" else texts
            if texts and all(isinstance(text, str) for text in texts):
                found[name] = tuple(texts)
            elif value is not None:
                self._add(name, messages.reference_invalid(value=short_json(value)))
        return found


def _names(columns: Mapping[str, object]) -> list[str]:
    return list(columns) or ["(none)"]
