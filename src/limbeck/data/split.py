"""The held-out split, by content: the same conversation is never on both sides."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from limbeck.data.faults import places
from limbeck.data.messages import rows as messages
from limbeck.data.prompt import Row
from limbeck.data.rows import read_rows

__all__ = ["Split", "split_held_out"]

# Makes the split independent of every other use of content hashes.
_SALT = b"limbeck held-out split\x00"
_NUM_PLACES = 2**64


@dataclass(frozen=True)
class Split:
    """Rows for training and held-out rows, each in the order of the file."""

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
        held, notes = file.rows, [messages.held_out_file_note(file=held_out.name, text=note) for note in file.notes]
        contents = {row.content_hash for row in held}
    else:
        contents = _drawn({row.content_hash for row in rows}, held_out)
        held = tuple(row for row in rows if row.content_hash in contents)
        notes = [messages.held_out_rows(num=len(held), num_rows=len(rows))]
    train = tuple(row for row in rows if row.content_hash not in contents)
    if not train or not held:
        raise messages.too_few_to_hold_out(
            held_out=str(held_out), num_train=len(train), num_rows=len(rows), num_held_out=len(held)
        )
    if isinstance(held_out, Path) and len(train) < len(rows):
        shared = [row.source for row in rows if row.content_hash in contents]
        notes.append(messages.taken_out_of_training(file=held_out.name, rows=places(shared)))
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
