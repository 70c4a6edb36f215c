"""The lineage of a run: a run records its parents by content when it begins, and this module follows them.

A parent is a run whose model is the run's first student or its teacher. Its content is the hash of its final weights,
or of the checkpoint that was used; a run of the same name with other content is not the parent any more.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from limbeck.runs import messages
from limbeck.runs.lines import iterate_lines
from limbeck.runs.store import Run

__all__ = ["LineageNode", "content_of", "is_same_model", "lineage_of", "other_teachers", "teachers_of"]


@dataclass(frozen=True)
class LineageNode:
    """A run or a model: its role for the run above it, a description, its teacher and its parents."""

    role: str
    name: str
    about: str
    teacher: Mapping[str, Any] | None = None
    parents: tuple[LineageNode, ...] = ()


def content_of(run: Run, step: int | None) -> str | None:
    """The hash of a run's final weights, or of the student file of a checkpoint; None if there is none."""
    if step is None:
        done = [event for event in iterate_lines(run.events_path) if event.get("kind") == "done"]
        return str(done[-1].get("weights")) if done else None
    manifest = run.checkpoints_path / f"step-{step:08d}" / "MANIFEST.json"
    if not manifest.is_file():
        return None
    files = json.loads(manifest.read_text(encoding="utf-8"))["files"]
    return str(files["student.safetensors"]["sha256"])


def lineage_of(run: Run, workspace: Path, role: str = "run", seen: frozenset[str] = frozenset()) -> LineageNode:
    """A run with all its ancestors in the workspace."""
    events: Iterator[dict[str, Any]] = iterate_lines(run.events_path)
    start: dict[str, Any] = next((event for event in events if event.get("kind") == "start"), {})
    recorded = {parent["role"]: parent for parent in start.get("parents", ())}
    parents: list[LineageNode] = []
    for side in ("student", "teacher"):
        model = start.get(side)
        if side in recorded:
            parents.append(_parent(recorded[side], workspace, seen | {run.name}))
        elif model is not None:
            parents.append(LineageNode(side, model["name"], (model["weights"] or "")[:12] or messages.lineage_hosted()))
    status = run.status()
    route = str(start.get("route", "on-policy"))
    about = messages.lineage_run(route=route, state=status.state, step=status.step)
    teacher = start.get("teacher") and {**start["teacher"], "dtype": start.get("teacher_dtype")}
    return LineageNode(role, run.name, about, teacher, tuple(parents))


def _parent(parent: Mapping[str, Any], workspace: Path, seen: frozenset[str]) -> LineageNode:
    step = "" if parent["step"] is None else f"@{parent['step']}"
    path = Run.home(workspace) / parent["run"]
    if parent["run"] in seen or not (path / "events.jsonl").is_file():
        about = messages.lineage_not_in_workspace(weights=str(parent["weights"])[:12])
        return LineageNode(parent["role"], f"{parent['run']}{step}", about)
    found = lineage_of(Run(path), workspace, parent["role"], seen)
    changed = content_of(Run(path), parent["step"]) != parent["weights"]
    about = messages.lineage_run_changed(about=found.about) if changed else found.about
    return LineageNode(found.role, f"{found.name}{step}", about, found.teacher, found.parents)


def teachers_of(node: LineageNode) -> list[tuple[str, Mapping[str, Any]]]:
    """The teachers of a run and of the stages before it, newest first, each with the run that it taught.

    A stage whose teacher is an earlier stage, to recover a lost skill, has no teacher of its own.
    """
    before = set(_names_before(node))
    goes_back = any(parent.role == "teacher" and parent.name in before for parent in node.parents)
    own = [] if node.teacher is None or goes_back else [(node.name, node.teacher)]
    return own + [each for parent in node.parents if parent.role == "student" for each in teachers_of(parent)]


def _names_before(node: LineageNode) -> Iterator[str]:
    for parent in node.parents:
        if parent.role == "student":
            yield parent.name
            yield from _names_before(parent)


def other_teachers(node: LineageNode) -> str:
    """A warning if stages had different teachers, otherwise empty."""
    teachers = teachers_of(node)
    differing = [(run, teacher) for run, teacher in teachers[1:] if not is_same_model(teacher, teachers[0][1])]
    if not differing:
        return ""
    named: list[str] = [
        messages.teacher_of(run=run, teacher=teacher["name"]) for run, teacher in [teachers[0], *differing]
    ]
    return messages.other_teachers(teachers=named)


def is_same_model(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two records are of the same model: by content; by name if a hash is missing or the dtypes differ."""
    by_content = one["weights"] and other["weights"] and one["dtype"] == other["dtype"]
    return one["weights"] == other["weights"] if by_content else one["name"] == other["name"]
