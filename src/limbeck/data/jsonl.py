"""Bytes of a JSONL file to JSON values with their line numbers.

A row stands on one line, ended by a line feed; the lines are cut as bytes, so that characters such as U+2028 inside a
string cut nothing. Also read: a byte-order mark, CRLF, blank lines, a last line without line end, objects that span
several lines (pretty-printed), and one JSON array of objects. Not read: other encodings and other formats.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from limbeck.data.faults import Fault, shown
from limbeck.errors import DataError

__all__ = ["Document", "Item", "nearest_names", "read_document"]

_BOM = b"\xef\xbb\xbf"
_BLANK = re.compile(r"[ \t\r\n]*")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_OTHER_FORMATS = {
    ".csv": "CSV",
    ".tsv": "TSV",
    ".parquet": "Parquet",
    ".arrow": "Arrow",
    ".xlsx": "Excel",
    ".gz": "gzip",
    ".zst": "zstd",
    ".zip": "zip",
}
_MAGIC = {b"PAR1": "Parquet", b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip or Excel", b"\x28\xb5\x2f\xfd": "zstd"}
_ONE_OBJECT = 'one complete JSON object, such as {"prompt": "..."}'


@dataclass(frozen=True)
class Item:
    """A JSON value of the file and where it starts ("tickets.jsonl:12")."""

    source: str
    value: object


@dataclass(frozen=True)
class Document:
    items: tuple[Item, ...]
    faults: tuple[Fault, ...]
    sha256: str
    notes: tuple[str, ...]


def read_document(path: Path) -> Document:
    """Reads all values of the file; what cannot be read is a fault in the result, never an early stop.

    Raises DataError when there is nothing to read: no such file, another format or encoding, no rows.
    """
    data = _read_bytes(path)
    sha256 = hashlib.sha256(data).hexdigest()
    data = data.removeprefix(_BOM)
    if b"\n" not in data:
        # line ends of old Macs; a raw carriage return cannot stand inside a JSON string
        data = data.replace(b"\r", b"\n")
    if not data.strip(b" \t\r\n"):
        raise DataError(
            "data.file-empty",
            given=f"{path.name} has no rows ({len(data)} bytes).",
            needed="At least one prompt is needed.",
            fix=f"Write rows such as {_ROW_EXAMPLE} into it, one a line.",
        )
    faults: list[Fault] = []
    parser = _Parser(path.name, faults)
    text = _text_if_spanning(data)
    if text is None:
        items = tuple(_items_by_line(data, parser))
        return Document(items, tuple(faults), sha256, ())
    items = tuple(_items_spanning(text, parser))
    kind = "one JSON array" if text[_blank_end(text, 0)] == "[" else "JSON objects that span lines"
    note = f"{path.name} is {kind}, not one row a line; read all the same ({len(items)} values)."
    return Document(items, tuple(faults), sha256, (note,))


_ROW_EXAMPLE = '{"prompt": [{"role": "user", "content": "..."}]}'


def nearest_names(name: str, folder: Path) -> str:
    """A sentence part that names the entries of `folder` nearest to `name`, or what there is; empty if nothing."""
    if not folder.is_dir():
        return f" (the folder {folder} does not exist either)"
    names = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    return f" (nearest: {', '.join(near)})" if near else ""


def _read_bytes(path: Path) -> bytes:
    if path.is_dir():
        raise DataError(
            "data.file-is-folder",
            given=f"{path} is a folder.",
            needed="One JSONL file of prompts is needed.",
            fix=f"Name a file in it, such as {next(iter(sorted(path.glob('*.jsonl'))), path / 'prompts.jsonl')}.",
        )
    if not path.is_file():
        raise DataError(
            "data.file-missing",
            given=f"{path} does not exist{nearest_names(path.name, path.parent)}.",
            needed="A JSONL file of prompts is needed.",
            fix="Correct the path; it is relative to the folder you start in.",
        )
    data = path.read_bytes()
    other = _OTHER_FORMATS.get(path.suffix.lower()) or next((m for b, m in _MAGIC.items() if data.startswith(b)), None)
    if other is not None:
        raise DataError(
            "data.format-unsupported",
            given=f"{path.name} is a {other} file.",
            needed="Prompts are read from JSONL: one JSON object a line, UTF-8.",
            fix=f"Convert it, each row to {_ROW_EXAMPLE}.",
        )
    if data.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\x00" in data[:4]:
        raise DataError(
            "data.encoding-unsupported",
            given=f"{path.name} is encoded as UTF-16 or UTF-32.",
            needed="Rows are read as UTF-8 (a byte-order mark is fine).",
            fix=f"Save it as UTF-8, for example: iconv -f UTF-16 -t UTF-8 {path.name} > utf8-{path.name}",
        )
    return data


class _Parser:
    """Parses one value at a time and notes what strict JSON or a later writer would not stand."""

    def __init__(self, file_name: str, faults: list[Fault]) -> None:
        self.file_name = file_name
        self.faults = faults
        self._oddities: list[tuple[str, str, str]] = []
        self._decoder = json.JSONDecoder(
            object_pairs_hook=self._object, parse_constant=self._constant, parse_float=self._float
        )

    def parse(self, text: str, position: int, source: str) -> tuple[object, int]:
        """The value at `position` and where it ends; raises ValueError or RecursionError when there is none."""
        self._oddities.clear()
        value, end = self._decoder.raw_decode(text, position)
        for code, given, expected in self._oddities:
            self.faults.append(Fault(code, source, "", given, expected))
        if text.find("\\u", position, end) >= 0:
            self._find_lone_surrogates(value, source, "")
        return value, end

    def fault(self, code: str, source: str, given: str, expected: str) -> None:
        self.faults.append(Fault(code, source, "", given, expected))

    def _object(self, pairs: list[tuple[str, object]]) -> dict[str, object]:
        result = dict(pairs)
        if len(result) != len(pairs):
            keys = [key for key, _ in pairs]
            repeated = sorted({key for key in keys if keys.count(key) > 1})
            given = f"the key {', '.join(shown(key) for key in repeated)} stands twice in one object"
            self._oddities.append(
                ("data.key-repeated", given, "each key once, since only one of the values can be meant")
            )
        return result

    def _constant(self, name: str) -> None:
        self._oddities.append(("data.number-not-finite", f"the value {name}", "null or a number that JSON knows"))

    def _float(self, digits: str) -> float:
        number = float(digits)
        if math.isinf(number):
            self._oddities.append(("data.number-not-finite", f"the number {digits}", "a number that a float can hold"))
        return number

    def _find_lone_surrogates(self, value: object, source: str, field: str) -> None:
        if isinstance(value, str):
            found = _LONE_SURROGATE.search(value)
            if found is not None:
                given = f"half of a surrogate pair, \\u{ord(found.group()):04x}, at character {found.start() + 1}"
                self.faults.append(
                    Fault(
                        "data.lone-surrogate", source, field, given, "whole characters, since half of one has no UTF-8"
                    )
                )
        elif isinstance(value, dict):
            for key, inner in value.items():
                self._find_lone_surrogates(key, source, f"a key of {field}" if field else "a key")
                self._find_lone_surrogates(inner, source, f"{field}.{key}" if field else key)
        elif isinstance(value, list):
            for index, inner in enumerate(value):
                self._find_lone_surrogates(inner, source, f"{field}[{index}]")


def _blank_end(text: str, position: int) -> int:
    found = _BLANK.match(text, position)
    return position if found is None else found.end()


def _text_if_spanning(data: bytes) -> str | None:
    """The whole text when rows do not stand on one line each (an array, or a first object over several lines)."""
    first_line, _, _ = data.lstrip(b" \t\r\n").partition(b"\n")
    if first_line.startswith(b"{"):
        try:
            json.loads(first_line)
        except (ValueError, RecursionError):
            pass
        else:
            return None
    elif not first_line.startswith(b"["):
        return None
    try:
        text = data.decode("utf-8")
        if first_line.startswith(b"{"):
            start = _blank_end(text, 0)
            _, end = json.JSONDecoder().raw_decode(text, start)
            return text if "\n" in text[start:end] else None
    except (ValueError, RecursionError):
        return None  # line by line, each fault is named at its line
    return text


def _items_by_line(data: bytes, parser: _Parser) -> Iterator[Item]:
    start = 0
    number = 0
    while start < len(data):
        number += 1
        end = data.find(b"\n", start)
        end = len(data) if end < 0 else end
        line = data[start:end].removeprefix(_BOM)
        offset, start = start, end + 1
        source = f"{parser.file_name}:{number}"
        try:
            text = line.decode("utf-8").strip(" \t\r")
        except UnicodeDecodeError as error:
            given = f"byte {error.start + 1} of the row (byte {offset + error.start + 1} of the file) is 0x"
            given += f"{line[error.start]:02x}, which is not UTF-8"
            parser.fault("data.not-utf8", source, given, "a file saved as UTF-8")
            continue
        if not text:
            continue
        try:
            value, text_end = parser.parse(text, 0, source)
        except (ValueError, RecursionError) as error:
            parser.fault("data.json-invalid", source, _json_reason(error, text, is_last=end == len(data)), _ONE_OBJECT)
            continue
        if _blank_end(text, text_end) != len(text):
            given = f"more text after the object, from column {text_end + 1}: {shown(text[text_end : text_end + 40])}"
            parser.fault("data.json-invalid", source, given, "one JSON object on the line")
            continue
        yield Item(source, value)


def _json_reason(error: ValueError | RecursionError, text: str, *, is_last: bool) -> str:
    if isinstance(error, json.JSONDecodeError):
        if is_last and (error.pos >= len(text) or error.msg.startswith("Unterminated string")):
            return f"the file stops in the middle of this row ({error.msg} at column {error.colno})"
        return f"not JSON: {error.msg} at column {error.colno}, near {shown(text[error.pos : error.pos + 20])}"
    if isinstance(error, RecursionError):
        return "nested too deeply to be read"
    return f"not JSON: {error}"


def _items_spanning(text: str, parser: _Parser) -> Iterator[Item]:
    """The objects of an array, or one after another. After a fault nothing more can be told apart: reading ends."""
    position = _blank_end(text, 0)
    in_array = text[position] == "["
    position = _blank_end(text, position + 1) if in_array else position
    line, counted_to, previous_line, index = 1, 0, 0, 0
    while position < len(text) and not (in_array and text[position] == "]"):
        line += text.count("\n", counted_to, position)
        counted_to = position
        index += 1
        # several values on one line are told apart by their number
        source = f"{parser.file_name}:{line}" if line != previous_line else f"{parser.file_name}:{line}[{index}]"
        previous_line = line
        try:
            value, position = parser.parse(text, position, source)
        except (ValueError, RecursionError) as error:
            where = f" on line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
            reason = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deeply to be read"
            parser.fault("data.json-invalid", source, f"not JSON: {reason}{where}; the rest was not read", _ONE_OBJECT)
            return
        yield Item(source, value)
        position = _blank_end(text, position)
        if in_array and text[position : position + 1] == ",":
            position = _blank_end(text, position + 1)
        elif in_array and text[position : position + 1] != "]":
            given = f"{shown(text[position : position + 20])} after this value; the rest was not read"
            parser.fault("data.json-invalid", source, given, "a comma or the closing bracket of the array")
            return
    if in_array and _blank_end(text, position + 1) < len(text):
        given = f"{shown(text[position + 1 : position + 21].strip())} after the closing bracket of the array"
        parser.fault("data.json-invalid", f"{parser.file_name}:{line}", given, "one array, or one object a line")
