"""Bytes of a JSONL file to JSON values, each with its place in the file.

A row stands on one line, ended by a line feed; the lines are cut as bytes, so that characters such as U+2028 inside a
text cut nothing. Also read: a byte-order mark, CRLF, blank lines, one JSON array, and pretty-printed objects.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from limbeck.data.faults import Faults, nearest, shown
from limbeck.errors import DataError

__all__ = ["read_bytes", "read_values"]

_BOM = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
# Tables, with what reads them: cells of text stay the text that they are.
_TABLES = {
    ".csv": "read_csv(FILE, sep=SEPARATOR, dtype=str, keep_default_na=False)",
    ".tsv": "read_csv(FILE, sep=TAB, dtype=str, keep_default_na=False)",
    ".parquet": "read_parquet(FILE)",
    ".arrow": "read_feather(FILE)",
    ".xlsx": "read_excel(FILE, dtype=str, keep_default_na=False)",
}
_PACKED = (".gz", ".zst", ".zip")
_BLANK = re.compile(r"\s*")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class _Oddity(NamedTuple):
    """Stands in a parsed value for something that Python would read and JSON does not mean."""

    code: str
    given: str
    expected: str


def read_bytes(path: Path) -> bytes:
    """The bytes of a file of rows. Raises DataError when there is no such file, or it is of another kind."""
    if not path.is_file():
        raise DataError(
            "data.file-missing",
            given=f"{path} is {'a folder' if path.is_dir() else f'not there{nearest(path.name, path.parent)}'}.",
            needed="A JSONL file of prompts is needed.",
            fix="Correct the path; it is relative to the folder you start in.",
        )
    data = path.read_bytes()
    if (other := _other_format(path.suffix.lower(), data[:4])) is not None:
        raise DataError(
            "data.format-unsupported",
            given=f"{path.name} is {other[0]}, not JSONL in UTF-8.",
            needed='Prompts are read from one JSON object a line, such as {"prompt": "..."}, saved as UTF-8.',
            fix=other[1],
        )
    return data.removeprefix(_BOM)


def _other_format(suffix: str, start: bytes) -> tuple[str, str] | None:
    """What else a file is, by its name and its first bytes, and how to convert it; None for what may be JSONL."""
    if start.startswith(_UTF16_MARKS) or b"\x00" in start:
        return "text in UTF-16 or UTF-32", "Save it as UTF-8, in an editor or with iconv -f UTF-16 -t UTF-8."
    if suffix in _TABLES:
        how = f'pandas.{_TABLES[suffix]}.to_json("rows.jsonl", orient="records", lines=True, force_ascii=False)'
        return f"a table ({suffix})", f"Convert it, with pandas for example: {how}."
    return (f"packed ({suffix})", "Unpack it.") if suffix in _PACKED else None


def read_values(data: bytes, faults: Faults) -> Iterator[tuple[str, object]]:
    """All values in the order of the file; what cannot be read goes to `faults`, and reading goes on.

    With each goes where it stands: "tickets.jsonl:12" (the line), or "tickets.json[11]" (the place in an array).
    """
    first_line = data.lstrip().partition(b"\n")[0].strip()
    read = _whole_values if first_line.startswith(b"[") or first_line == b"{" else _line_values
    for source, value in read(data, faults):
        oddities = list(_oddities(value, ""))
        for field, oddity in oddities:
            faults.add(oddity.code, source, field, oddity.given, oddity.expected)
        if not oddities:
            yield source, value


def _line_values(data: bytes, faults: Faults) -> Iterator[tuple[str, object]]:
    for number, line in enumerate(BytesIO(data), start=1):  # which cuts at line feeds alone, and copies one line
        source = f"{faults.file_name}:{number}"
        if not line.strip():
            continue
        try:
            yield source, _DECODER.decode(line.decode("utf-8").removesuffix("\n"))
        except (ValueError, RecursionError) as error:
            _add_unreadable(error, source, faults)


def _whole_values(data: bytes, faults: Faults) -> Iterator[tuple[str, object]]:
    """The values of an array, or objects that span lines. They cannot be told apart when one of them is broken."""
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
        _add_unreadable(error, f"{faults.file_name}{line}", faults)
        return
    if len(values) == 1 and isinstance(values[0], list):
        values = values[0]
    for index, value in enumerate(values):
        yield f"{faults.file_name}[{index}]", value


def _add_unreadable(error: ValueError | RecursionError, source: str, faults: Faults) -> None:
    if isinstance(error, UnicodeDecodeError):
        given = f"byte {error.start + 1} is 0x{error.object[error.start]:02x}, which is not UTF-8"
        faults.add("data.not-utf8", source, "", given, "a file saved as UTF-8")
        return
    reason = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
    faults.add("data.json-invalid", source, "", f"not JSON: {reason}", "one complete JSON object on a line")


def _object(pairs: list[tuple[str, object]]) -> dict[str, object] | _Oddity:
    result = dict(pairs)
    if len(result) == len(pairs):
        return result
    ((key, _),) = Counter(key for key, _ in pairs).most_common(1)
    return _Oddity("data.key-repeated", f"the key {shown(key)} stands twice in one object", "each key once")


def _not_finite(text: str) -> _Oddity:
    return _Oddity("data.number-not-finite", f"the value {text}", "null, or a number that JSON knows")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_not_finite)


def _oddities(value: object, field: str) -> Iterator[tuple[str, _Oddity]]:
    """Every oddity in a value, with the field where it stands; half a surrogate pair in a text is one too."""
    if isinstance(value, _Oddity):
        yield field, value
    elif isinstance(value, str) and (found := _LONE_SURROGATE.search(value)):
        given = f"half of a surrogate pair, \\u{ord(found.group()):04x}, at character {found.start() + 1}"
        yield field, _Oddity("data.lone-surrogate", given, "whole characters")
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _oddities(key, f"a key of {field or 'the row'}")
            yield from _oddities(inner, f"{field}.{key}" if field else key)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _oddities(inner, f"{field}[{index}]")
