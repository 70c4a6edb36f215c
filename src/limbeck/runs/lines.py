"""The files of a run: JSON lines that one process appends to while others read, and files that are replaced whole.

A line that does not end, for it is being written or was torn by a crash, is not there yet.

The first object of a log, a ledger or an evaluation bears `FORMAT` and the version that wrote it. One without is of
format 1; one of a later format than this version knows is refused, whoever reads it.
"""

from __future__ import annotations

import errno
import json
import numbers
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from limbeck import __version__
from limbeck.errors import DataError, Stopped

__all__ = [
    "FORMAT",
    "append_line",
    "check_format",
    "event_line",
    "iterate_lines",
    "iterate_places",
    "with_time",
    "write_bytes",
    "write_failed",
    "write_text",
]

NEWEST_FORMAT = 1
FORMAT = {"format": NEWEST_FORMAT, "limbeck": __version__}
"""What the first object of a file says of the rest."""


def check_format(first: Mapping[str, object], path: Path) -> None:
    """Raises DataError where the first object of a file bears a format that this version does not know."""
    number = first.get("format", 1)
    if isinstance(number, int) and 1 <= number <= NEWEST_FORMAT:
        return
    raise DataError(
        "run.format-unknown",
        given=f"{path} has format {number!r}, written by Limbeck {first.get('limbeck', '(version not given)')}.",
        needed=f"Limbeck {__version__} reads formats 1 to {NEWEST_FORMAT}; a later one may mean other things by the "
        "same names.",
        fix="Use the version that wrote it, or a newer one.",
    )


def event_line(event: Mapping[str, object], indent: int | None = None) -> str:
    """`event` as strict JSON with its newline, on one line or indented. Raises TypeError for what JSON has no word for.

    JSON has no word for numbers that are not finite: they become the texts NaN, Infinity and -Infinity.
    """
    plain = json.loads(json.dumps(dict(event), default=_plain), parse_constant=str)
    text = json.dumps(plain, ensure_ascii=False, allow_nan=False, indent=indent)
    return text.encode("utf-8", "backslashreplace").decode("utf-8") + "\n"  # a lone surrogate becomes its JSON escape


def with_time(event: Mapping[str, object]) -> dict[str, object]:
    """`event` with the present time in front, in UTC to the millisecond."""
    return {"time": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"), **event}


def _plain(value: object) -> object:
    if isinstance(value, numbers.Integral):  # numpy's are none of Python's own
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"JSON has no word for a {type(value).__name__}: {value}")


def append_line(path: Path, line: str, *, durable: bool = False) -> None:
    """Add `line` to the end of a file in one write; `durable` waits for the disk. Only one process may append."""
    data = line.encode("utf-8")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, _end_of_whole_lines(descriptor))  # no reader ever saw what follows
            if os.write(descriptor, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise write_failed(path, error) from error


def _end_of_whole_lines(descriptor: int) -> int:
    """The byte after the last newline. Up to there a file never changes again, whatever its writer does meanwhile."""
    end = os.fstat(descriptor).st_size
    while end > 0:
        start = max(0, end - 65_536)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def iterate_lines(path: Path) -> Iterator[dict[str, object]]:
    """The object of each line that ends. Raises DataError for a file that cannot be read or a line that is broken."""
    for _, _, value in iterate_places(path):
        yield value


def iterate_places(path: Path, start: int = 0) -> Iterator[tuple[int, int, dict[str, object]]]:
    """The lines from byte `start` on, each with the byte where it starts and the byte where it ends."""
    try:
        # no link: a run folder from elsewhere must not choose which file is read
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise DataError(
            "run.unreadable",
            given=f"{path} cannot be read: {error.strerror}.",
            needed="A run's files are plain files that you may read, and no links.",
            fix="Give yourself the permission, or put the file itself there.",
        ) from error
    name = str(path) if start == 0 else f"{path} from byte {start}"
    with os.fdopen(descriptor, "rb") as file:
        end = _end_of_whole_lines(descriptor)
        file.seek(start)
        number = 0
        while start < end:
            line = file.readline()  # lines of a binary file end at the newline byte alone
            number += 1
            value = _parsed(line, f"{name}:{number}")
            if start == 0:
                check_format(value, path)
            yield start, start + len(line), value
            start += len(line)


def _parsed(line: bytes, place: str) -> dict[str, object]:
    try:
        value = json.loads(line)
        if isinstance(value, dict):
            return value
        fault = "it is no object"
    except (ValueError, RecursionError) as error:
        fault = str(error)
    raise DataError(
        "run.line-broken",
        given=f"{place} is broken: {fault}.",
        needed="Every line is one JSON object; Limbeck writes them in one piece, so this one was changed.",
        fix="Restore the file from a copy, or delete this line.",
    )


def write_text(path: Path, text: str) -> None:
    """Put `text` at `path`, as `write_bytes` does."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    """Put `data` at `path`: after a crash at any moment the old file is there or the new one. Raises Stopped."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with unfinished.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise write_failed(path, error) from error


def write_failed(path: Path, error: OSError) -> Stopped:
    """The error for a file of a run that could not be written."""
    return Stopped(
        "run.write-failed",
        given=f"{path} could not be written: {error.strerror}.",
        needed="What a run has computed must reach the disk, or it is lost.",
        fix="Free space or give the permission, then go on with the run.",
    )
