"""Small files that are replaced whole: after a crash at any moment the old one is there or the new one."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

from limbeck.runs.lines import write_failed

__all__ = ["write_bytes", "write_json", "write_text"]


def write_bytes(path: Path, data: bytes) -> None:
    """Put `data` at `path`: beside it, to the disk, renamed, and the folder to the disk. Raises Stopped."""
    unfinished = path.with_name(f".tmp-{path.name}-{os.getpid()}-{threading.get_ident()}")
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise write_failed(path, len(data), error) from error


def write_text(path: Path, text: str) -> None:
    """Put `text` at `path`, as `write_bytes` does."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: object) -> None:
    """Put `value` at `path` as strict JSON, as `write_bytes` does."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
