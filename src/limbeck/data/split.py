"""The held-out split, by content: the same conversation never stands on both sides."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from limbeck.data.rows import Row, read_rows
from limbeck.errors import DataError, RecipeError

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


def split_held_out(rows: Sequence[Row], held_out: float | int | Path | str) -> Split:
    """Sets rows aside for evaluation.

    Args:
        rows: all rows of the prompt file.
        held_out: a share above 0 and below 1: each conversation is drawn by its content alone, so it stays on its side
            when rows are added, removed or moved. A count: that many different conversations (repeats come along); 0
            holds nothing out. A path: the rows of that file, which are then taken out of the training rows.

    Raises:
        RecipeError: a share or count that cannot be meant.
        DataError: too few different conversations, or nothing left to train on.
    """
    if isinstance(held_out, (Path, str)):
        return _split_by_file(rows, Path(held_out))
    # bool is an int in Python, and true is no count
    if isinstance(held_out, bool) or not (held_out >= 0 and (held_out < 1 or float(held_out).is_integer())):
        raise RecipeError(
            "recipe.held-out-range",
            given=f"held_out: {held_out}.",
            needed="It is a share above 0 and below 1, a whole number of prompts, or the path of a file of rows.",
            fix="Set held_out: 0.1 for a tenth of the prompts, or held_out: 50 for fifty of them.",
        )
    if held_out == 0:
        return Split(tuple(rows), (), ("Nothing is held out, so nothing can be judged by unseen prompts.",))
    ordered = sorted({row.content_hash for row in rows}, key=_place)
    num_contents = len(ordered)
    if held_out < 1:
        num_drawn = sum(_place(content) < held_out * _NUM_PLACES for content in ordered)
        # at least one on each side: the first in the order, and never the last
        num_drawn = min(max(num_drawn, 1), num_contents - 1)
    else:
        num_drawn = int(held_out)
    if num_contents < 2 or num_drawn >= num_contents:
        raise DataError(
            "data.too-few-to-hold-out",
            given=f"held_out: {held_out}, and {len(rows)} rows with {num_contents} different conversations.",
            needed="At least one conversation must stay on each side.",
            fix="Add prompts, hold out fewer, or set held_out: 0 to judge by nothing.",
        )
    drawn = frozenset(ordered[:num_drawn])
    held = tuple(row for row in rows if row.content_hash in drawn)
    train = tuple(row for row in rows if row.content_hash not in drawn)
    note = f"{num_drawn} of {num_contents} different conversations are held out."
    if len(held) > num_drawn:
        note += f" {len(held)} rows hold them: repeats stay on one side."
    return Split(train, held, (note,))


def _place(content: str) -> int:
    """Where a content stands in the order of the draw: a number below 2^64, the same wherever it is computed."""
    return int.from_bytes(hashlib.sha256(_SALT + content.encode("ascii")).digest()[:8], "big")


def _split_by_file(rows: Sequence[Row], path: Path) -> Split:
    held_out = read_rows(path)
    contents = {row.content_hash for row in held_out.rows}
    train = tuple(row for row in rows if row.content_hash not in contents)
    shared = [row.source for row in rows if row.content_hash in contents]
    if not train:
        raise DataError(
            "data.nothing-to-train-on",
            given=f"All {len(rows)} prompts also stand in the held-out file {path.name}.",
            needed="Held-out prompts are taken out of the training prompts, so that the judgement is by unseen ones.",
            fix="Name another file, or set a share such as held_out: 0.1.",
        )
    notes = [f"{path.name}: {note}" for note in held_out.notes]
    if shared:
        more = f" and {len(shared) - 5} more" if len(shared) > 5 else ""
        notes.append(
            f"{len(shared)} training rows have the same conversation as a row of {path.name} and are taken out of "
            f"training: {', '.join(shared[:5])}{more}."
        )
    return Split(train, held_out.rows, tuple(notes))
