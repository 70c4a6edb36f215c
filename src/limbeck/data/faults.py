"""What is wrong with the rows of a file: collected first, told at once."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from limbeck.data.messages import rows as messages
from limbeck.errors import Fault

__all__ = ["Faults", "listing", "named", "nearest", "places", "shown"]

_NUM_LISTED = 20
_NUM_PLACES = 5
_SHOWN_LENGTH = 60


class Faults:
    """The faults of one file, in its order. `alternative` ends the advice to correct them: ", or do that"."""

    def __init__(self, file_name: str, *, alternative: str = "") -> None:
        self.file_name = file_name
        self._alternative = alternative
        self._sources: set[str] = set()
        self._found: list[tuple[str, str]] = []

    def __len__(self) -> int:
        return len(self._found)

    def add(self, source: str, field: str, fault: Fault) -> None:
        """Add a fault of a row ("tickets.jsonl:12") and, where it is in one, of a field."""
        place = f"{source}, {field}" if field else source
        self._sources.add(source)
        self._found.append((fault.code, f"{place}: {fault.given}; expected {fault.expected}"))

    def raise_if_any(self) -> None:
        """Raises DataError with all faults; its code is theirs, or "data.rows-faulty" when they differ in kind."""
        if not self._found:
            return
        codes, lines = zip(*self._found, strict=True)
        found = messages.rows_faulty(
            file=self.file_name, num=len(self), listing=listing(lines), alternative=self._alternative
        )
        raise found if len(set(codes)) > 1 else found.with_code(codes[0])

    @property
    def num_rows(self) -> int:
        """How many rows have faults."""
        return len(self._sources)

    def listed(self) -> str:
        """The faults as a list, for a note on rows that were left out because of them."""
        return listing([line for _, line in self._found])


def named(source: str, columns: Mapping[str, object]) -> str:
    """A row by its place, and by its own id where it has one."""
    return f"{source} (id {shown(columns['id'])})" if columns.get("id") is not None else source


def shown(value: object, longest: int = _SHOWN_LENGTH) -> str:
    """A JSON value on one short line; a long one is cut, with its length."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text)} characters)"


def listing(lines: Sequence[str]) -> str:
    """Each line on its own line and indented; after twenty of them, how many more there are."""
    more = len(lines) - _NUM_LISTED
    rest = [f"and {more} more"] if more > 0 else []
    return "".join(f"\n  {line}" for line in [*lines[:_NUM_LISTED], *rest])


def places(sources: Sequence[str]) -> str:
    """How many rows and which: "2 rows (tickets.jsonl:3, tickets.jsonl:9)"."""
    more = len(sources) - _NUM_PLACES
    named = ", ".join(sources[:_NUM_PLACES]) + (f" and {more} more" if more > 0 else "")
    return f"{len(sources)} {'row' if len(sources) == 1 else 'rows'} ({named})"


def nearest(name: str, folder: Path) -> str:
    """What the folder has of nearly this name, to append to a sentence: " (nearest: a, b)", or nothing."""
    entries = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    near = difflib.get_close_matches(name, entries, n=3, cutoff=0.5)
    return f" (nearest: {', '.join(near)})" if near else ""
