"""Files to rows: what each row asks, which reference answer it carries, and every fault at once.

A row is a JSON object in one of these forms:

    {"prompt": [{"role": "user", "content": "..."}]}      a conversation that ends with a user turn
    {"prompt": "..."}                                     one user turn
    {"messages": [..., {"role": "assistant", ...}]}       the last assistant turn is the reference answer
    {"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", ...}]}      the same by other names

A content is a text, or a list of text parts ({"type": "text", "text": "..."}), which are joined as they stand.
A reference answer may also stand in the column completion, answer, ideal or response, there also as a list of texts
that are equally right. Distillation sets it aside and reads prompts alone, for the answers come from the models;
supervised training learns the first. Every other column is kept in `Row.extra`.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from limbeck.data.faults import Faults, named, shown
from limbeck.data.jsonl import read_bytes, read_values
from limbeck.data.messages import rows as messages
from limbeck.data.prompt import Message, Row
from limbeck.errors import Fault

__all__ = ["RowSet", "read_rows"]

_ROLES = {"system": "system", "user": "user", "assistant": "assistant"}
_FROM_VALUE_ROLES = {**_ROLES, "human": "user", "gpt": "assistant"}
_CONVERSATIONS = ("prompt", "messages", "conversations")
_REFERENCES = ("completion", "answer", "ideal", "response")
# A template would need these to write the prompt that the row means; left out, the prompt would be another one.
_UNSUPPORTED_COLUMNS = ("tools", "functions", "images", "documents")
_UNSUPPORTED_KEYS = ("tool_calls", "function_call", "reasoning_content", "reasoning", "thinking")


@dataclass(frozen=True)
class RowSet:
    """All rows of a file; `sha256` is that of its bytes after a byte-order mark, `notes` are sentences for the user."""

    rows: tuple[Row, ...]
    sha256: str
    notes: tuple[str, ...]


def read_rows(path: Path | str, known: Faults | None = None) -> RowSet:
    """Reads a JSONL file of prompts. Raises DataError that lists every fault with file, line and field.

    With `known`, rows with faults are left out, and it is told of them; DataError then means that none is left.
    """
    path = Path(path).expanduser()
    data = read_bytes(path)
    faults = Faults(path.name) if known is None else known
    readers: list[_RowReader] = []
    read: list[Row | None] = []
    for source, value in read_values(data, faults):
        readers.append(_RowReader(source, faults))
        read.append(readers[-1].read(value))
    rows = tuple(row for row in read if row is not None)
    if known is None or not rows:
        faults.raise_if_any()
    if not rows:
        raise messages.file_empty(file=path.name, num_bytes=len(data))
    return RowSet(rows, hashlib.sha256(data).hexdigest(), (*_form_notes(readers), *_notes(rows)))


def _notes(rows: Sequence[Row]) -> tuple[str, ...]:
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


def _form_notes(readers: Sequence[_RowReader]) -> Iterator[str]:
    """How messages were read where they come in other forms than role and content alone."""
    if renamed := sum(reader.is_from_value for reader in readers):
        yield messages.from_value_rows(num=renamed, num_rows=len(readers))
    unread = Counter(name for reader in readers for name in reader.unread)
    if unread:
        yield messages.keys_unread(keys=_counted(unread))


class _RowReader:
    """Reads one row. A fault is noted and reading goes on, so that all are told; a row with faults gives None.

    `is_from_value` and `unread` tell of its messages: their form, and their keys that are left out.
    """

    def __init__(self, source: str, faults: Faults) -> None:
        self._source = self._place = source
        self._faults = faults
        self.is_from_value = False
        self.unread: set[str] = set()

    def read(self, columns: object) -> Row | None:
        num_faults = len(self._faults)
        if not isinstance(columns, dict):
            self._add("", messages.row_not_object(value=shown(columns)))
            return None
        self._place = named(self._source, columns)
        self._refuse_unsupported(columns, _UNSUPPORTED_COLUMNS, "")
        field = self._conversation_field(columns)
        turns = self._messages(columns.get(field), field)
        references: dict[str, tuple[str, ...]] = {}
        if field != "prompt" and turns and turns[-1].role == "assistant":
            references[field] = (turns.pop().content,)
        references |= self._references(columns)
        if len(set(references.values())) > 1:
            self._add("", messages.references_differ(columns=list(references)))
        if len(self._faults) == num_faults and not turns:
            self._add(field, messages.no_turn(columns=[field]))
        elif len(self._faults) == num_faults and turns[-1].role != "user":
            self._add(field, messages.last_turn_not_user(role=turns[-1].role))
        if len(self._faults) != num_faults:
            return None
        extra = {name: value for name, value in columns.items() if name not in (*_CONVERSATIONS, *_REFERENCES)}
        reference, *others = next(iter(references.values()), (None,))
        return Row(tuple(turns), reference, self._source, extra, tuple(filter(None, others)))

    def _add(self, field: str, fault: Fault) -> None:
        self._faults.add(self._place, field, fault)

    def _refuse_unsupported(self, holder: Mapping[str, object], names: Sequence[str], prefix: str) -> None:
        for name in names:
            if holder.get(name):
                self._add(prefix + name, messages.field_unsupported(value=shown(holder[name])))

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
            self._add(field, wrong(value=shown(value)))
        return []

    def _message(self, value: object, field: str) -> Message:
        if not isinstance(value, dict):
            self._add(field, messages.message_type(value=shown(value)))
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
        self.unread |= value.keys() - {*keys, *_UNSUPPORTED_KEYS}
        role, content = (value[name] for name in keys)
        known = _FROM_VALUE_ROLES if is_from_value else _ROLES
        if not isinstance(role, str) or role not in known:
            roles = ["system", "human", "gpt"] if is_from_value else ["system", "user", "assistant"]
            self._add(f"{field}.{keys[0]}", messages.role_unknown(role=shown(role), known=roles))
            role = ""
        role = known.get(role, "")
        text = self._text(content, f"{field}.{keys[1]}")
        if text is not None and role != "system":
            self._refuse_empty(text, f"{field}.{keys[1]}")
        return Message(role, text or "")

    def _text(self, content: object, field: str) -> str | None:
        """A content as one text; None where it is none, which is noted."""
        if not isinstance(content, list):
            if not isinstance(content, str):
                self._add(field, messages.content_type(value=shown(content)))
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
                    messages.part_unsupported(part=shown(part))
                    if known
                    else messages.part_type_unsupported(kind=shown(kind))
                )
                self._add(f"{field}[{index}]", wrong)
        return "".join(texts) if len(texts) == len(content) else None

    def _refuse_empty(self, text: str, field: str) -> None:
        if not text.strip():
            self._add(field, messages.content_empty(text=shown(text)))

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
                self._add(name, messages.reference_invalid(value=shown(value)))
        return found


def _names(columns: Mapping[str, object]) -> list[str]:
    return list(columns) or ["(none)"]
