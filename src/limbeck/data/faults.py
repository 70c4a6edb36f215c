"""What is wrong with rows, collected first and then told at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from limbeck.errors import DataError

__all__ = ["NUM_LISTED", "Fault", "faults_error", "listing", "shown"]

NUM_LISTED = 20
"""How many faults a message lists; the rest is counted."""

_SHOWN_LENGTH = 60


@dataclass(frozen=True)
class Fault:
    """One fault: the row ("tickets.jsonl:12"), the field, what was there and what was expected."""

    code: str
    source: str
    field: str
    given: str
    expected: str

    def __str__(self) -> str:
        place = f"{self.source}, {self.field}" if self.field else self.source
        return f"{place}: {self.given}; expected {self.expected}"


def shown(value: object) -> str:
    """A value on one short line: quoted, control characters escaped, long values cut with their length."""
    text = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    return text if len(text) <= _SHOWN_LENGTH else f"{text[:_SHOWN_LENGTH]}… ({len(text)} characters)"


def listing(lines: Sequence[str]) -> str:
    """The lines, each on its own line and indented; at most `NUM_LISTED` of them, then how many more."""
    listed = "".join(f"\n  {line}" for line in lines[:NUM_LISTED])
    more = len(lines) - NUM_LISTED
    return f"{listed}\n  and {more} more" if more > 0 else listed


def faults_error(faults: Sequence[Fault], *, file_name: str) -> DataError:
    """The error that lists all faults; its code is theirs, or "data.rows-faulty" when they differ in kind."""
    codes = {fault.code for fault in faults}
    count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
    return DataError(
        codes.pop() if len(codes) == 1 else "data.rows-faulty",
        given=f"{file_name} has {count}:{listing([str(fault) for fault in faults])}\n",
        needed="Every row must be read exactly as it is meant, so none is skipped or repaired unasked.",
        fix="Correct or remove these rows and start again.",
    )
