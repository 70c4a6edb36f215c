"""The files of a run: JSON lines that one process appends to while others read, and files that are replaced as a whole.

A line without its newline is being written, or was cut by a crash; readers ignore it.

The first object of a log, a ledger or an evaluation has `FORMAT` and the version that wrote it. Without one, the format
is 1; a format that is newer than this version knows is refused by every reader.
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
from limbeck.errors import Stopped
from limbeck.runs import messages

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
"""What the first object of a file says about the file."""


def check_format(first: Mapping[str, object], path: Path) -> None:
    """Raises DataError if the first object of a file names a format that this version does not know."""
    number = first.get("format", 1)
    if isinstance(number, int) and 1 <= number <= NEWEST_FORMAT:
        return
    writer = str(first.get("limbeck", "(version not given)"))
    raise messages.format_unknown(
        file=path, number=repr(number), writer=writer, version=__version__, newest=NEWEST_FORMAT
    )


def event_line(event: Mapping[str, object], indent: int | None = None) -> str:
    """`event` as strict JSON with a newline, on one line or indented. Raises TypeError for types that JSON lacks.

    Numbers that are not finite become the strings NaN, Infinity and -Infinity.
    """
    plain = json.loads(json.dumps(dict(event), default=_plain), parse_constant=str)
    text = json.dumps(plain, ensure_ascii=False, allow_nan=False, indent=indent)
    return text.encode("utf-8", "backslashreplace").decode("utf-8") + "\n"  # a lone surrogate becomes its JSON escape


def with_time(event: Mapping[str, object]) -> dict[str, object]:
    """`event` with the current time as its first field, in UTC with milliseconds."""
    return {"time": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"), **event}


def _plain(value: object) -> object:
    if isinstance(value, numbers.Integral):  # numpy's integers are not Python's
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"JSON has no type for a {type(value).__name__}: {value}")


def append_line(path: Path, line: str, *, durable: bool = False) -> None:
    """Append `line` to a file in one write; `durable` waits for the disk. Only one process may append."""
    data = line.encode("utf-8")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, _end_of_whole_lines(descriptor))  # readers ignore what follows
            if os.write(descriptor, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise write_failed(path, error) from error


def _end_of_whole_lines(descriptor: int) -> int:
    """The byte after the last newline. Up to there the file does not change any more, even while it is written."""
    end = os.fstat(descriptor).st_size
    while end > 0:
        start = max(0, end - 65_536)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def iterate_lines(path: Path) -> Iterator[dict[str, object]]:
    """The object of each complete line. Raises DataError for an unreadable file or a broken line."""
    for _, _, value in iterate_places(path):
        yield value


def iterate_places(path: Path, start: int = 0) -> Iterator[tuple[int, int, dict[str, object]]]:
    """The lines from byte `start` on, each with its first byte and the byte after its end."""
    try:
        # no links: a run folder from elsewhere must not decide which file is opened
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise messages.unreadable(file=path, why=str(error.strerror)) from error
    name = str(path) if start == 0 else f"{path} from byte {start}"
    with os.fdopen(descriptor, "rb") as file:
        end = _end_of_whole_lines(descriptor)
        file.seek(start)
        number = 0
        while start < end:
            line = file.readline()  # in binary mode, lines end at the newline byte only
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
        fault: str = messages.line_not_object()
    except (ValueError, RecursionError) as error:
        fault = str(error)
    raise messages.line_broken(place=place, why=fault)


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path`, as `write_bytes` does."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    """Replace the file at `path`: after a crash, either the old or the new content is there. Raises Stopped."""
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
    return messages.write_failed(file=path, why=str(error.strerror))
