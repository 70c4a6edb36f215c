"""A cache of build stages: each is a folder, built aside, renamed into place, and entered in one manifest.

A stage is up to date when the manifest holds the key of its settings and of all it was built from, and its files still
have the sizes noted there. A build that was killed leaves only a folder named .building-*, which the next one removes:
stages that were finished stay, the one that was not starts over.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Stage:
    """One folder of the cache. `build` fills an empty folder and returns figures worth keeping in the manifest."""

    name: str
    settings: Mapping[str, object]
    needs: tuple[str, ...]
    build: Callable[[Path], Mapping[str, object]]


class Cache:
    """The folder of all stages; `key` of a stage covers its settings and the keys of the stages it needs."""

    def __init__(self, folder: Path, stages: tuple[Stage, ...]) -> None:
        self.folder = folder
        self.stages = {stage.name: stage for stage in stages}

    def key(self, name: str) -> str:
        stage = self.stages[name]
        parts = {"settings": stage.settings, "needs": [self.key(need) for need in stage.needs]}
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def manifest(self) -> dict[str, dict[str, object]]:
        path = self.folder / MANIFEST
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def is_ready(self, name: str) -> bool:
        entry = self.manifest().get(name)
        if entry is None or entry["key"] != self.key(name):
            return False
        files = entry["files"]
        return isinstance(files, dict) and all(
            _size(self.folder / name / file) == noted["bytes"] for file, noted in files.items()
        )

    def is_complete(self) -> bool:
        return all(map(self.is_ready, self.stages))

    def build_missing(self, versions: Callable[[], Mapping[str, str]], say: Callable[[str], None]) -> None:
        """Build every stage that is not ready, in the order in which they were given."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with _locked(self.folder / ".lock", say):
            for rest in self.folder.glob(".building-*"):
                shutil.rmtree(rest)
            for stage in self.stages.values():
                if not self.is_ready(stage.name):
                    self._build(stage, versions, say)

    def _build(self, stage: Stage, versions: Callable[[], Mapping[str, str]], say: Callable[[str], None]) -> None:
        say(f"{stage.name}: building")
        began = time.monotonic()
        aside = self.folder / f".building-{stage.name}"
        aside.mkdir()
        figures = stage.build(aside)
        files = {str(path.relative_to(aside)): _note(path) for path in sorted(aside.rglob("*")) if path.is_file()}
        place = self.folder / stage.name
        if place.exists():
            shutil.rmtree(place)
        aside.rename(place)
        took_s = round(time.monotonic() - began, 1)
        entry: dict[str, object] = {
            "key": self.key(stage.name),
            "settings": stage.settings,
            "figures": figures,
            "took_s": took_s,
            "versions": versions(),
            "files": files,
        }
        self._write_manifest(self.manifest() | {stage.name: entry})
        say(f"{stage.name}: done in {took_s:.0f} s")

    def _write_manifest(self, manifest: Mapping[str, object]) -> None:
        path = self.folder / MANIFEST
        aside = path.with_suffix(".new")
        aside.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        aside.replace(path)


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


def _note(path: Path) -> dict[str, object]:
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


@contextmanager
def _locked(path: Path, say: Callable[[str], None]) -> Generator[None]:
    """One build at a time: a second one waits and then finds everything ready."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another build is running in this folder; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
