"""Which run came from which: a run records its parents by content when it begins, and this follows them.

A parent is a run whose model the run started from or learnt from. Its content is the hash of the weights that it wrote
at its end, or of the checkpoint that was taken; a run of that name with other content is no longer the parent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from limbeck.runs.lines import iterate_lines
from limbeck.runs.store import Run

__all__ = ["Node", "content_of", "is_same_model", "other_teachers", "teachers_of", "trace"]


@dataclass(frozen=True)
class Node:
    """A run or a model: what it is to the run above it, what is known of it, and what it came from."""

    role: str
    name: str
    about: str
    teacher: Mapping[str, Any] | None = None
    parents: tuple[Node, ...] = ()


def content_of(run: Run, step: int | None) -> str | None:
    """The hash of the weights that a run wrote at its end, or of a checkpoint's file; None where there is none."""
    if step is None:
        done = [event for event in iterate_lines(run.events_path) if event.get("kind") == "done"]
        return str(done[-1].get("weights")) if done else None
    manifest = run.checkpoints_path / f"step-{step:08d}" / "MANIFEST.json"
    if not manifest.is_file():
        return None
    files = json.loads(manifest.read_text(encoding="utf-8"))["files"]
    return str(files["student.safetensors"]["sha256"])


def trace(run: Run, workspace: Path, role: str = "run", seen: frozenset[str] = frozenset()) -> Node:
    """A run with everything it came from, as far as it lies in the workspace."""
    events: Iterator[dict[str, Any]] = iterate_lines(run.events_path)
    start: dict[str, Any] = next((event for event in events if event.get("kind") == "start"), {})
    recorded = {parent["role"]: parent for parent in start.get("parents", ())}
    parents: list[Node] = []
    for side in ("student", "teacher"):
        model = start.get(side)
        if side in recorded:
            parents.append(_parent(recorded[side], workspace, seen | {run.name}))
        elif model is not None:
            parents.append(Node(side, model["name"], (model["weights"] or "")[:12] or "behind an interface"))
    status = run.status()
    about = f"{start.get('route', 'on-policy')}, {status.state} after step {status.step}"
    teacher = start.get("teacher") and {**start["teacher"], "dtype": start.get("teacher_dtype")}
    return Node(role, run.name, about, teacher, tuple(parents))


def _parent(parent: Mapping[str, Any], workspace: Path, seen: frozenset[str]) -> Node:
    step = "" if parent["step"] is None else f"@{parent['step']}"
    path = Run.home(workspace) / parent["run"]
    if parent["run"] in seen or not (path / "events.jsonl").is_file():
        return Node(parent["role"], f"{parent['run']}{step}", f"{str(parent['weights'])[:12]}, not in this workspace")
    found = trace(Run(path), workspace, parent["role"], seen)
    changed = content_of(Run(path), parent["step"]) != parent["weights"]
    about = f"{found.about}, CHANGED since" if changed else found.about
    return Node(found.role, f"{found.name}{step}", about, found.teacher, found.parents)


def teachers_of(node: Node) -> list[tuple[str, Mapping[str, Any]]]:
    """The teachers of a run and of the stages before it, newest first, each with the run that learnt from it.

    A stage that learns from one before it, to bring back what that one knew, has no teacher of its own.
    """
    before = set(_names_before(node))
    goes_back = any(parent.role == "teacher" and parent.name in before for parent in node.parents)
    own = [] if node.teacher is None or goes_back else [(node.name, node.teacher)]
    return own + [each for parent in node.parents if parent.role == "student" for each in teachers_of(parent)]


def _names_before(node: Node) -> Iterator[str]:
    for parent in node.parents:
        if parent.role == "student":
            yield parent.name
            yield from _names_before(parent)


def other_teachers(node: Node) -> str:
    """A warning where stages learnt from different teachers, nothing otherwise."""
    teachers = teachers_of(node)
    differing = [(run, teacher) for run, teacher in teachers[1:] if not is_same_model(teacher, teachers[0][1])]
    if not differing:
        return ""
    told = ", ".join(f"{run} from {teacher['name']}" for run, teacher in [teachers[0], *differing])
    return f"WARNING: stages learnt from different teachers: {told}. Where they differ, the later undoes the earlier."


def is_same_model(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two are one model: by content; by name where there is none, or one of them was rounded as it was read."""
    by_content = one["weights"] and other["weights"] and one["dtype"] == other["dtype"]
    return one["weights"] == other["weights"] if by_content else one["name"] == other["name"]
