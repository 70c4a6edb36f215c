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

from limbeck.data.faults import Faults, nearest, shown
from limbeck.data.messages import rows as messages
from limbeck.errors import Fault

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


def read_bytes(path: Path) -> bytes:
    """The bytes of a file of rows. Raises DataError when there is no such file, or it is of another kind."""
    if path.is_dir():
        raise messages.file_is_folder(path=path)
    if not path.is_file():
        raise messages.file_missing(path=path, nearest=nearest(path.name, path.parent))
    data = path.read_bytes()
    if (other := _other_format(path.suffix.lower(), data[:4])) is not None:
        raise messages.format_unsupported(file=path.name, form=other[0], conversion=other[1])
    return data.removeprefix(_BOM)


def _other_format(suffix: str, start: bytes) -> tuple[str, str] | None:
    """What else a file is, by its name and its first bytes, and how to convert it; None for what may be JSONL."""
    if start.startswith(_UTF16_MARKS) or b"\x00" in start:
        return "text in UTF-16 or UTF-32", "Save it as UTF-8, in an editor or with iconv -f UTF-16 -t UTF-8."
    if suffix in _TABLES:
        how = f'pandas.{_TABLES[suffix]}.to_json("rows.jsonl", orient="records", lines=True, force_ascii=False)'
        return f"a table ({suffix})", f"Convert it, with pandas for example: {how}."
    return (f"compressed ({suffix})", "Decompress it.") if suffix in _PACKED else None


def read_values(data: bytes, faults: Faults) -> Iterator[tuple[str, object]]:
    """All values in the order of the file; what cannot be read goes to `faults`, and reading goes on.

    With each goes where it stands: "tickets.jsonl:12" (the line), or "tickets.json[11]" (the place in an array).
    """
    first_line = data.lstrip().partition(b"\n")[0].strip()
    read = _whole_values if first_line.startswith(b"[") or first_line == b"{" else _line_values
    for source, value in read(data, faults):
        found = list(_faults_in(value, ""))
        for field, fault in found:
            faults.add(source, field, fault)
        if not found:
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
        position = error.start
        faults.add(source, "", messages.not_utf8(position=position + 1, byte=error.object[position]))
        return
    reason = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
    faults.add(source, "", messages.json_invalid(reason=reason))


def _object(pairs: list[tuple[str, object]]) -> dict[str, object] | Fault:
    """An object as a dictionary; a Fault stands in a parsed value for what Python would read and JSON does not mean."""
    result = dict(pairs)
    if len(result) == len(pairs):
        return result
    ((key, _),) = Counter(key for key, _ in pairs).most_common(1)
    return messages.key_repeated(key=shown(key))


def _not_finite(text: str) -> Fault:
    return messages.number_not_finite(value=text)


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_not_finite)


def _faults_in(value: object, field: str) -> Iterator[tuple[str, Fault]]:
    """Every fault in a value, with its field; half a surrogate pair in a text is one too."""
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
