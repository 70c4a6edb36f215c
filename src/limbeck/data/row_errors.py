"""What is wrong with the rows of a file: collected first, then reported together."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from limbeck.data.messages import rows as messages
from limbeck.errors import Fault

__all__ = ["RowErrors", "indented_lines", "nearest", "row_label", "rows_phrase", "short_json"]

_MAX_LINES = 20
_MAX_ROWS_NAMED = 5
_MAX_CHARACTERS = 60


class RowErrors:
    """The errors in the rows of one file, in the order of the file.

    With `skippable`, the message that lists them mentions `bad_rows: skip`.
    """

    def __init__(self, file_name: str, *, skippable: bool = False) -> None:
        self.file_name = file_name
        self._skippable = skippable
        self._sources: set[str] = set()
        self._found: list[tuple[str, str]] = []

    def __len__(self) -> int:
        return len(self._found)

    def add(self, source: str, field: str, fault: Fault) -> None:
        """Add an error of a row ("tickets.jsonl:12") and, if `field` is not empty, of that field."""
        place = f"{source}, {field}" if field else source
        self._sources.add(source)
        self._found.append((fault.code, f"{place}: {fault.given}; expected {fault.expected}"))

    def raise_if_any(self) -> None:
        """Raises DataError that lists all errors; its code is theirs, or "data.rows-faulty" if their codes differ."""
        if not self._found:
            return
        codes, lines = zip(*self._found, strict=True)
        message = messages.rows_invalid_skippable if self._skippable else messages.rows_invalid
        found = message(file=self.file_name, num=len(self), num_rows=self.num_rows, listing=indented_lines(lines))
        raise found if len(set(codes)) > 1 else found.with_code(codes[0])

    @property
    def num_rows(self) -> int:
        """The number of invalid rows."""
        return len(self._sources)

    def as_list(self) -> str:
        """The errors as indented lines, for a note about rows that were skipped."""
        return indented_lines([line for _, line in self._found])


def row_label(source: str, columns: Mapping[str, object]) -> str:
    """A row by its file and line, and by its id if it has one."""
    return f"{source} (id {short_json(columns['id'])})" if columns.get("id") is not None else source


def short_json(value: object, longest: int = _MAX_CHARACTERS) -> str:
    """A value as JSON on one line, truncated after `longest` characters and then followed by its length."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text)} characters)"


def indented_lines(lines: Sequence[str]) -> str:
    """Each line on a new, indented line; after twenty of them, the number of the others."""
    more = len(lines) - _MAX_LINES
    rest = [f"and {more} more"] if more > 0 else []
    return "".join(f"\n  {line}" for line in [*lines[:_MAX_LINES], *rest])


def rows_phrase(sources: Sequence[str]) -> str:
    """How many rows and which: "2 rows (tickets.jsonl:3, tickets.jsonl:9)"."""
    more = len(sources) - _MAX_ROWS_NAMED
    names = ", ".join(sources[:_MAX_ROWS_NAMED]) + (f" and {more} more" if more > 0 else "")
    return f"{len(sources)} {'row' if len(sources) == 1 else 'rows'} ({names})"


def nearest(name: str, folder: Path) -> str:
    """The entries of `folder` with similar names, to append to a sentence: " (nearest: a, b)", or an empty string."""
    entries = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    near = difflib.get_close_matches(name, entries, n=3, cutoff=0.5)
    return f" (nearest: {', '.join(near)})" if near else ""
