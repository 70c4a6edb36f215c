"""The held-out split, by content: a conversation is never both trained on and held out."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from limbeck.data.messages import rows as messages
from limbeck.data.prompt import PromptRow
from limbeck.data.row_errors import rows_phrase
from limbeck.data.rows import read_rows

__all__ = ["Split", "split_held_out"]

# Makes the split independent of every other use of content hashes.
_SALT = b"limbeck held-out split\x00"
_NUM_PLACES = 2**64


@dataclass(frozen=True)
class Split:
    """Rows for training and held-out rows, each in the order of the file."""

    train: tuple[PromptRow, ...]
    held_out: tuple[PromptRow, ...]
    notes: tuple[str, ...]


def split_held_out(rows: Sequence[PromptRow], held_out: float | int | Path) -> Split:
    """Hold out rows for evaluation.

    A share below 1 selects each conversation by its content alone, so the choice does not change when other rows are
    added, removed or moved. A count selects that many distinct conversations with all of their repeats. A path holds
    out the rows of that file and removes them from training. Raises DataError if either side would be empty.
    """
    if isinstance(held_out, Path):
        file = read_rows(held_out)
        held, notes = file.rows, [messages.held_out_file_note(file=held_out.name, text=note) for note in file.notes]
        contents = {row.content_hash for row in held}
    else:
        contents = _selected({row.content_hash for row in rows}, held_out)
        held = tuple(row for row in rows if row.content_hash in contents)
        notes = [messages.held_out_rows(num=len(held), num_rows=len(rows))]
    train = tuple(row for row in rows if row.content_hash not in contents)
    if not train or not held:
        raise messages.too_few_to_hold_out(
            held_out=str(held_out), num_train=len(train), num_rows=len(rows), num_held_out=len(held)
        )
    if isinstance(held_out, Path) and len(train) < len(rows):
        shared = [row.source for row in rows if row.content_hash in contents]
        notes.append(messages.held_out_removed(file=held_out.name, rows=rows_phrase(shared)))
    return Split(train, held, tuple(notes))


def _selected(contents: set[str], held_out: float | int) -> set[str]:
    assert held_out > 0
    ordered = sorted(contents, key=_position)
    num_selected = int(held_out)
    if held_out < 1:
        num_selected = sum(_position(content) < held_out * _NUM_PLACES for content in ordered)
        # at least one on each side
        num_selected = min(max(num_selected, 1), len(ordered) - 1)
    return set(ordered[:num_selected])


def _position(content: str) -> int:
    """The position of a conversation in the order of selection: a number below 2^64, the same on every machine."""
    return int.from_bytes(hashlib.sha256(_SALT + content.encode("ascii")).digest()[:8], "big")
