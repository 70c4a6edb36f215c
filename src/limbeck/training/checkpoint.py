"""Checkpoints: written to a temporary folder, hashed, then renamed; loaded only if every hash agrees.

    checkpoints/step-00000120/
        student.safetensors      the trainable weights (with lora the adapters alone), float32
        optimizer.safetensors    AdamW's two moments and step counters, by parameter name
        MANIFEST.json            step, and size and SHA-256 of the two files

The folder appears by one rename, after its files and manifest are on disk, so a process that is killed leaves the
checkpoint before. Numbers that are not finite are never written. Unfinished folders of a killed process, and steps
after the one being saved (a run is resumed before them only if they are damaged), are removed with the next checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.numpy import save_file
from safetensors.torch import load_file
from torch import Tensor

import limbeck.training.messages as messages
from limbeck.models.load import put_weights
from limbeck.models.save import unfinished
from limbeck.training.state import TrainState

__all__ = [
    "Checkpoint",
    "damaged_checkpoints",
    "latest_checkpoint",
    "load_checkpoint",
    "load_weights",
    "save_checkpoint",
]

MANIFEST = "MANIFEST.json"
STUDENT = "student.safetensors"
OPTIMIZER = "optimizer.safetensors"
FILES = (STUDENT, OPTIMIZER)
NUM_KEPT = 2


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint, and notes on newer ones that are damaged and were skipped."""

    path: Path
    step: int
    passed_over: tuple[str, ...] = ()


def save_checkpoint(folder: Path, state: TrainState, *, kept_step: int | None = None) -> Path:
    """Save the state under `folder`, and delete all checkpoints but the last two and `kept_step`.

    Raises:
        Diverged: a weight or moment is not finite; the checkpoints on disk are unchanged.
    """
    named = state.weights.named
    moments = {
        f"{name}/{key}": torch.as_tensor(value)
        for name, parameter in named.items()
        for key, value in state.optimizer.state.get(parameter, {}).items()
    }
    contents: dict[str, Mapping[str, Tensor]] = {STUDENT: named, OPTIMIZER: moments}
    for name, tensors in contents.items():
        for key, tensor in tensors.items():
            if not torch.isfinite(tensor).all():
                raise messages.checkpoint_not_finite(tensor=key, file=name, step=state.step, run=folder.parent)
    for left in folder.glob(".step-*"):
        shutil.rmtree(left)
    target = _place(folder, state.step)
    with unfinished(target) as beside:
        beside.mkdir(parents=True)
        for name, tensors in contents.items():
            # through numpy: safetensors.torch refuses tensors that share memory, as weights of an arena do
            arrays = {key: tensor.detach().cpu().contiguous().numpy() for key, tensor in tensors.items()}
            save_file(arrays, beside / name)
        files = {name: {"bytes": (beside / name).stat().st_size, "sha256": _hash(beside / name)} for name in contents}
        (beside / MANIFEST).write_text(json.dumps({"step": state.step, "files": files}, indent=1))
        for path in (*(beside / name for name in contents), beside / MANIFEST, beside):
            _sync(path)
    _sync(folder)
    steps = _steps(folder)
    place = steps.index(target)
    for other in steps[:place] + steps[place + NUM_KEPT :]:
        if kept_step is None or other != _place(folder, kept_step):
            shutil.rmtree(other)
    return target


def latest_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest checkpoint whose files agree with its manifest, or None."""
    passed_over: list[str] = []
    for path in _steps(folder):
        damage = _damage(path)
        if damage is None:
            return Checkpoint(path, int(path.name.removeprefix("step-")), tuple(passed_over))
        passed_over.append(messages.checkpoint_damaged(name=path.name, damage=damage))
    return None


def damaged_checkpoints(folder: Path) -> list[str]:
    """The damage of each checkpoint that cannot be read, newest first."""
    found = [(path, _damage(path)) for path in _steps(folder)]
    return [messages.checkpoint_damage(name=path.name, damage=damage) for path, damage in found if damage is not None]


def load_checkpoint(checkpoint: Checkpoint, state: TrainState) -> None:
    """Restore weights, moments and step in `state`, in place."""
    moments = load_file(checkpoint.path / OPTIMIZER)
    _load_student(checkpoint.path, state)
    for name, parameter in state.weights.named.items():
        state.optimizer.state[parameter] = {
            key: moments[f"{name}/{key}"].to(parameter.device if key != "step" else "cpu")
            for key in ("step", "exp_avg", "exp_avg_sq")
            if f"{name}/{key}" in moments
        }
    state.step = checkpoint.step


def load_weights(folder: Path, step: int, state: TrainState) -> None:
    """Restore the weights of an earlier step, and nothing else, for the final model.

    Raises:
        Refusal: the checkpoint is gone or damaged.
    """
    path = _place(folder, step)
    if (damage := _damage(path)) is not None:
        raise messages.best_checkpoint_unreadable(step=step, path=path, damage=damage)
    _load_student(path, state)


def _load_student(path: Path, state: TrainState) -> None:
    if differing := put_weights(load_file(path / STUDENT), state.weights.named):
        raise messages.checkpoint_of_other_model(path=path, num=len(differing), first=differing[0])
    state.weights.publish()


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    """Wait until a file, or the directory entries of a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _place(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}"


def _steps(folder: Path) -> list[Path]:
    """Finished checkpoints, newest first."""
    return sorted(folder.glob("step-" + "[0-9]" * 8), reverse=True)


def _damage(path: Path) -> str | None:
    """The damage of a checkpoint, or None."""
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        step = int(manifest["step"])
        known = {name: (manifest["files"][name]["bytes"], manifest["files"][name]["sha256"]) for name in FILES}
    except (OSError, ValueError, LookupError, TypeError):
        return messages.manifest_unreadable(file=MANIFEST)
    if path != _place(path.parent, step):
        return messages.manifest_of_other_step(file=MANIFEST, step=step)
    for name, (num_bytes, content) in known.items():
        file = path / name
        if not file.is_file():
            return messages.file_missing(file=name)
        if (size := file.stat().st_size) != num_bytes:
            return messages.file_size_differs(file=name, size=size, expected=num_bytes)
        if _hash(file) != content:
            return messages.file_hash_differs(file=name)
    return None
