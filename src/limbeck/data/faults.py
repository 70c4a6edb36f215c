"""What is wrong with the rows of a file: collected first, told at once."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from limbeck.errors import DataError

__all__ = ["Faults", "listing", "named", "nearest", "places", "shown"]

_NUM_LISTED = 20
_NUM_PLACES = 5
_SHOWN_LENGTH = 60


class Faults:
    """The faults of one file, in its order. `or_else` is what else than correcting it somebody can do."""

    def __init__(self, file_name: str, *, or_else: str = "") -> None:
        self.file_name = file_name
        self._or_else = or_else
        self._sources: set[str] = set()
        self._found: list[tuple[str, str]] = []

    def __len__(self) -> int:
        return len(self._found)

    def add(self, code: str, source: str, field: str, given: str, expected: str) -> None:
        """Notes a fault: its row ("tickets.jsonl:12"), its field (may be empty), what is there and what is expected."""
        place = f"{source}, {field}" if field else source
        self._sources.add(source)
        self._found.append((code, f"{place}: {given}; expected {expected}"))

    def raise_if_any(self) -> None:
        """Raises DataError with all faults; its code is theirs, or "data.rows-faulty" when they differ in kind."""
        if not self._found:
            return
        codes, lines = zip(*self._found, strict=True)
        count = "1 fault" if len(self) == 1 else f"{len(self)} faults"
        raise DataError(
            codes[0] if len(set(codes)) == 1 else "data.rows-faulty",
            given=f"{self.file_name} has {count}:{listing(lines)}\n",
            needed="Every row must be read exactly as it is meant, so none is skipped or repaired unasked.",
            fix=f"Correct or remove these rows and start again{self._or_else}.",
        )

    @property
    def num_rows(self) -> int:
        """How many rows have faults."""
        return len(self._sources)

    def told(self) -> str:
        """The faults as a list, for a note on rows that were left out for them."""
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
