"""The held-out split, by content: the same conversation never stands on both sides."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from limbeck.data.faults import places
from limbeck.data.prompt import Row
from limbeck.data.rows import read_rows
from limbeck.errors import DataError

__all__ = ["Split", "split_held_out"]

# Makes the split independent of every other use of content hashes.
_SALT = b"limbeck held-out split\x00"
_NUM_PLACES = 2**64


@dataclass(frozen=True)
class Split:
    """Rows to train on and rows to judge by, each in the order of the file."""

    train: tuple[Row, ...]
    held_out: tuple[Row, ...]
    notes: tuple[str, ...]


def split_held_out(rows: Sequence[Row], held_out: float | int | Path) -> Split:
    """Sets rows aside for evaluation.

    A share below 1 draws each conversation by its content alone, so it stays on its side when rows are added, removed
    or moved. A count draws that many different conversations; repeats come along. A path holds out the rows of that
    file and takes them out of training. Raises DataError when a side would be empty.
    """
    if isinstance(held_out, Path):
        file = read_rows(held_out)
        held, notes = file.rows, [f"{held_out.name}: {note}" for note in file.notes]
        contents = {row.content_hash for row in held}
    else:
        contents = _drawn({row.content_hash for row in rows}, held_out)
        held = tuple(row for row in rows if row.content_hash in contents)
        notes = [f"{len(held)} of {len(rows)} rows are held out; rows that repeat a prompt are on one side."]
    train = tuple(row for row in rows if row.content_hash not in contents)
    if not train or not held:
        raise DataError(
            "data.too-few-to-hold-out",
            given=f"held_out: {held_out} leaves {len(train)} of {len(rows)} rows to train on, {len(held)} to judge by.",
            needed="At least one conversation must stand on each side, and none on both.",
            fix="Add prompts, hold out fewer, or name another file.",
        )
    if isinstance(held_out, Path) and len(train) < len(rows):
        shared = [row.source for row in rows if row.content_hash in contents]
        notes.append(f"Taken out of training, since {held_out.name} has them too: {places(shared)}.")
    return Split(train, held, tuple(notes))


def _drawn(contents: set[str], held_out: float | int) -> set[str]:
    assert held_out > 0
    ordered = sorted(contents, key=_place)
    num_drawn = int(held_out)
    if held_out < 1:
        num_drawn = sum(_place(content) < held_out * _NUM_PLACES for content in ordered)
        # at least one on each side: the first in the order, and never the last
        num_drawn = min(max(num_drawn, 1), len(ordered) - 1)
    return set(ordered[:num_drawn])


def _place(content: str) -> int:
    """Where a content stands in the order of the draw: a number below 2^64, the same wherever it is computed."""
    return int.from_bytes(hashlib.sha256(_SALT + content.encode("ascii")).digest()[:8], "big")
