"""Bytes of a JSONL file to JSON values, each with its position in the file.

A row is one line that ends with a line feed. Lines are split as bytes, so that characters such as U+2028 inside a text
do not end a row. A byte-order mark, CRLF, blank lines, one JSON array and pretty-printed objects are accepted too.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

from limbeck.data.messages import rows as messages
from limbeck.data.row_errors import RowErrors, nearest, short_json
from limbeck.errors import Fault

__all__ = ["read_bytes", "read_values"]

_BOM = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
# Tables, each with the pandas call that reads it without changing text cells.
_TABLES = {
    ".csv": "pandas.read_csv(FILE, sep=SEPARATOR, dtype=str, keep_default_na=False)",
    ".tsv": "pandas.read_csv(FILE, sep=TAB, dtype=str, keep_default_na=False)",
    ".parquet": "pandas.read_parquet(FILE)",
    ".arrow": "pandas.read_feather(FILE)",
    ".xlsx": "pandas.read_excel(FILE, dtype=str, keep_default_na=False)",
}
_COMPRESSED = (".gz", ".zst", ".zip")
_BLANK = re.compile(r"\s*")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def read_bytes(path: Path) -> bytes:
    """The bytes of a JSONL file. Raises DataError if there is no such file or if it has another format."""
    if path.is_dir():
        raise messages.file_is_folder(path=path)
    if not path.is_file():
        raise messages.file_missing(path=path, nearest=nearest(path.name, path.parent))
    data = path.read_bytes()
    suffix = path.suffix.lower()
    if data[:4].startswith(_UTF16_MARKS) or b"\x00" in data[:4]:
        raise messages.encoding_unsupported(file=path.name)
    if suffix in _TABLES:
        raise messages.table_unsupported(file=path.name, suffix=suffix, call=_TABLES[suffix])
    if suffix in _COMPRESSED:
        raise messages.compressed_unsupported(file=path.name, suffix=suffix)
    return data.removeprefix(_BOM)


def read_values(data: bytes, errors: RowErrors) -> Iterator[tuple[str, object]]:
    """All values in the order of the file, each with its source; values that cannot be read are reported in `errors`.

    A source is "tickets.jsonl:12" (the line) or "tickets.json[11]" (the index in an array).
    """
    first_line = data.lstrip().partition(b"\n")[0].strip()
    read = _whole_values if first_line.startswith(b"[") or first_line == b"{" else _line_values
    for source, value in read(data, errors):
        found = list(_faults_in(value, ""))
        for field, fault in found:
            errors.add(source, field, fault)
        if not found:
            yield source, value


def _line_values(data: bytes, errors: RowErrors) -> Iterator[tuple[str, object]]:
    for number, line in enumerate(BytesIO(data), start=1):  # splits at line feeds only, and copies one line at a time
        source = f"{errors.file_name}:{number}"
        if not line.strip():
            continue
        try:
            yield source, _DECODER.decode(line.decode("utf-8").removesuffix("\n"))
        except (ValueError, RecursionError) as error:
            _add_unreadable(error, source, errors)


def _whole_values(data: bytes, errors: RowErrors) -> Iterator[tuple[str, object]]:
    """The values of an array, or objects that span lines. One syntax error makes the whole file unreadable."""
    values: list[object] = []
    try:
        text = data.decode("utf-8").rstrip()
        position = len(text) - len(text.lstrip())
        while position < len(text):
            value, end = _DECODER.raw_decode(text, position)
            values.append(value)
            blank = _BLANK.match(text, end)
            position = end if blank is None else blank.end()
    except (ValueError, RecursionError) as error:
        line = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        _add_unreadable(error, f"{errors.file_name}{line}", errors)
        return
    if len(values) == 1 and isinstance(values[0], list):
        values = values[0]
    for index, value in enumerate(values):
        yield f"{errors.file_name}[{index}]", value


def _add_unreadable(error: ValueError | RecursionError, source: str, errors: RowErrors) -> None:
    if isinstance(error, UnicodeDecodeError):
        position = error.start
        errors.add(source, "", messages.not_utf8(position=position + 1, byte=error.object[position]))
        return
    reason = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
    errors.add(source, "", messages.json_invalid(reason=reason))


def _object(pairs: list[tuple[str, object]]) -> dict[str, object] | Fault:
    """An object as a dictionary; if a key is repeated, which `json` would accept silently, the error in its place."""
    result = dict(pairs)
    if len(result) == len(pairs):
        return result
    ((key, _),) = Counter(key for key, _ in pairs).most_common(1)
    return messages.key_repeated(key=short_json(key))


def _not_finite(text: str) -> Fault:
    return messages.number_not_finite(value=text)


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_not_finite)


def _faults_in(value: object, field: str) -> Iterator[tuple[str, Fault]]:
    """Every error in a parsed value, with its field; half a surrogate pair in a text is one too."""
    if isinstance(value, Fault):
        yield field, value
    elif isinstance(value, str) and (found := _LONE_SURROGATE.search(value)):
        yield field, messages.lone_surrogate(code_point=ord(found.group()), position=found.start() + 1)
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _faults_in(key, f"a key of {field or 'the row'}")
            yield from _faults_in(inner, f"{field}.{key}" if field else key)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _faults_in(inner, f"{field}[{index}]")
