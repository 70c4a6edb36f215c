"""Files of one JSON object per line, which one process appends to while others read.

A line is written in one piece and is strict JSON. A reader takes only lines that end, so a line being written, or torn
by a crash, is not there yet; a writer removes a torn end before it goes on. Lines are split at the newline byte alone:
a text may hold characters that other splitters take for line ends.
"""

from __future__ import annotations

import errno
import json
import math
import numbers
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, cast

from limbeck.errors import DataError, Stopped

__all__ = ["NOT_FINITE", "LineWriter", "event_line", "iterate_lines", "read_backwards", "read_lines", "write_failed"]

# JSON has no NaN and no infinity: such a number becomes null, and this field of the line says which it was, by path.
NOT_FINITE = "not_finite"
_BLOCK_BYTES = 64 * 1024


def event_line(event: Mapping[str, object]) -> str:
    """`event` as one line of strict JSON, with its newline.

    A number that is not finite becomes null; the field `not_finite` then says what it was: {"loss": "nan"}. Text that
    is no proper Unicode is escaped, never dropped. Raises TypeError for what JSON has no word for.
    """
    odd: dict[str, str] = {}
    plain = cast("dict[str, object]", _plain(event, (), odd))
    if odd:
        plain[NOT_FINITE] = odd
    line = json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(", ", ": "))
    return line.encode("utf-8", "backslashreplace").decode("utf-8") + "\n"


def _plain(value: object, path: tuple[str, ...], odd: dict[str, str]) -> object:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        number = float(value)
        if math.isfinite(number):
            return number
        odd[".".join(path)] = str(number)
        return None
    if isinstance(value, os.PathLike):
        return str(value)
    if isinstance(value, Mapping):
        assert all(isinstance(key, str) for key in value), f"keys of events are text: {list(value)}"
        return {key: _plain(inner, (*path, key), odd) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, (*path, str(index)), odd) for index, inner in enumerate(value)]
    raise TypeError(f"{'.'.join(path)} is a {type(value).__name__}, for which JSON has no word")


def write_failed(path: Path, num_bytes: int, error: OSError) -> Stopped:
    """The error for a file of a run that could not be written."""
    return Stopped(
        "run.write-failed",
        given=f"{num_bytes} bytes could not be written to {path}: {error.strerror}.",
        needed="What a run has computed must reach the disk, or it is lost.",
        fix="Free space or give the permission, then go on with the run.",
    )


class LineWriter:
    """Appends lines to one file. Only one process at a time may hold one for a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self._descriptor = os.open(path, flags, 0o600)
            self._remove_torn_end()
        except OSError as error:
            raise write_failed(path, 0, error) from error

    def _remove_torn_end(self) -> None:
        """Cut the file after its last newline: what follows was never seen by a reader."""
        end = os.fstat(self._descriptor).st_size
        position = end
        while position > 0:
            start = max(position - _BLOCK_BYTES, 0)
            newline = os.pread(self._descriptor, position - start, start).rfind(b"\n")
            if newline >= 0:
                position = start + newline + 1
                break
            position = start
        if position < end:
            os.ftruncate(self._descriptor, position)

    def append(self, line: str, *, durable: bool = False) -> None:
        """Write `line`, which ends in a newline, in one piece; `durable` waits until the disk has it."""
        data = line.encode("utf-8")
        assert data.endswith(b"\n")
        assert data.count(b"\n") == 1
        size = os.fstat(self._descriptor).st_size
        try:
            written = os.write(self._descriptor, data)
            if written < len(data):
                os.ftruncate(self._descriptor, size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if durable:
                os.fsync(self._descriptor)
        except OSError as error:
            raise write_failed(self._path, len(data), error) from error

    def close(self) -> None:
        os.close(self._descriptor)


def iterate_lines(path: Path, offset: int = 0) -> Iterator[tuple[dict[str, object], int]]:
    """The object of each line that ends after byte `offset`, with the offset behind it; one line is read at a time.

    A file that does not exist yet has no lines. Raises DataError for an ended line that is no JSON object.
    """
    if not path.exists():
        return
    with _open_to_read(path) as file:
        file.seek(offset)
        for line in file:  # a binary file: its lines end at the newline byte alone
            if not line.endswith(b"\n"):
                return
            start, offset = offset, offset + len(line)
            yield _parsed(line, path, start), offset


def read_lines(path: Path, offset: int = 0) -> tuple[list[dict[str, object]], int]:
    """The objects of all lines that end after byte `offset`, and the offset to go on from; see `iterate_lines`."""
    objects: list[dict[str, object]] = []
    for value, behind in iterate_lines(path, offset):
        objects.append(value)
        offset = behind
    return objects, offset


def read_backwards(path: Path) -> Iterator[dict[str, object]]:
    """The objects of all lines that end, last first, reading no more of the file than is asked for."""
    with _open_to_read(path) as file:
        position = file.seek(0, os.SEEK_END)
        rest = b""
        torn_end_seen = False
        while position > 0:
            start = max(position - _BLOCK_BYTES, 0)
            file.seek(start)
            pieces = (file.read(position - start) + rest).split(b"\n")
            position = start
            if len(pieces) > 1 and not torn_end_seen:
                del pieces[-1]
                torn_end_seen = True
            rest = pieces[0]
            for line in reversed(pieces[1:]):
                yield _parsed(line, path, position)
        if torn_end_seen:
            yield _parsed(rest, path, 0)


def _open_to_read(path: Path) -> BinaryIO:
    """The file itself and no link, so that a run folder from elsewhere cannot choose which file is read."""
    try:
        return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")
    except OSError as error:
        raise DataError(
            "run.unreadable",
            given=f"{path} cannot be read: {error.strerror}.",
            needed="A run's files are plain files that you may read, and no links.",
            fix="Give yourself the permission, or put the file itself there.",
        ) from error


def _parsed(line: bytes, path: Path, position: int) -> dict[str, object]:
    try:
        value = json.loads(line, parse_constant=_refuse_constant)
        if isinstance(value, dict):
            return value
        fault = "it is no object"
    except (ValueError, RecursionError) as error:
        fault = str(error)
    raise DataError(
        "run.line-broken",
        given=f"{path}, near byte {position}: a line is broken ({fault}).",
        needed="Every line that ends is one JSON object; Limbeck writes them in one piece, so this one was changed.",
        fix="Restore the file from a copy, or delete this line.",
    )


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
