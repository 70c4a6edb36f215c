"""A step on disk: written beside, hashed, then renamed into place; read only if every hash agrees.

    checkpoints/step-00000120/
        student.safetensors      the trainable weights (with lora the adapters alone), float32
        optimizer.safetensors    AdamW's two moments and step counters, by parameter name
        MANIFEST.json            step, and size and SHA-256 of the two files

The folder appears by one rename, after its files and manifest are on disk, so a kill at any moment leaves the step
before. Nothing that is not finite is written. What a killed process left half-written, and later steps than the one
that is written (a run only goes back behind them because they are damaged), are removed with the next step.
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

from limbeck.errors import Diverged, Refusal
from limbeck.models.load import put_weights
from limbeck.models.save import atomic_folder
from limbeck.training.state import TrainState

__all__ = ["Checkpoint", "damages", "latest_checkpoint", "load_checkpoint", "load_weights", "save_checkpoint"]

MANIFEST = "MANIFEST.json"
STUDENT = "student.safetensors"
OPTIMIZER = "optimizer.safetensors"
FILES = (STUDENT, OPTIMIZER)
NUM_KEPT = 2


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint, and which newer ones were passed over because they are damaged."""

    path: Path
    step: int
    passed_over: tuple[str, ...] = ()


def save_checkpoint(folder: Path, state: TrainState, *, kept_step: int | None = None) -> Path:
    """Write the state under `folder` and drop all but the last two steps and `kept_step`.

    Raises:
        Diverged: a weight or moment is not finite; what lies on disk stays as it is.
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
                raise Diverged(
                    "checkpoint.not-finite",
                    given=f"{key} of {name} holds numbers that are not finite after step {state.step}.",
                    needed="A checkpoint of it would replace a healthy one.",
                    fix=f"Go on from the last one with a lower learning rate: limbeck resume {folder.parent} --set "
                    "learning_rate=NUMBER.",
                )
    for left in folder.glob(".step-*"):
        shutil.rmtree(left)
    target = _place(folder, state.step)
    with atomic_folder(target) as beside:
        beside.mkdir(parents=True)
        for name, tensors in contents.items():
            # by way of numpy, since weights that share one piece of memory are no duplicates of each other
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
    """The newest checkpoint whose files agree with its manifest, or None where there is none."""
    passed_over: list[str] = []
    for path in _steps(folder):
        damage = _damage(path)
        if damage is None:
            return Checkpoint(path, int(path.name.removeprefix("step-")), tuple(passed_over))
        passed_over.append(f"Checkpoint {path.name} is damaged and passed over: {damage}.")
    return None


def damages(folder: Path) -> list[str]:
    """What is wrong with each checkpoint that cannot be read, newest first."""
    found = [(path, _damage(path)) for path in _steps(folder)]
    return [f"{path.name}: {damage}" for path, damage in found if damage is not None]


def load_checkpoint(checkpoint: Checkpoint, state: TrainState) -> None:
    """Put weights, moments and step back into `state`, in place."""
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
    """Put the weights of an earlier step back, and nothing else; for the student that a run hands over.

    Raises:
        Refusal: the checkpoint is gone or damaged.
    """
    path = _place(folder, step)
    if (damage := _damage(path)) is not None:
        raise Refusal(
            "checkpoint.kept-step",
            given=f"Step {step} is the best, and its checkpoint {path} cannot be read: {damage}.",
            needed="The run hands over the student of that step.",
            fix="Restore the folder from a copy and resume, or resume with --set keep=last.",
        )
    _load_student(path, state)


def _load_student(path: Path, state: TrainState) -> None:
    if differing := put_weights(load_file(path / STUDENT), state.weights.named):
        raise Refusal(
            "checkpoint.other-model",
            given=f"{path} and the student differ in {len(differing)} weights, the first is {differing[0]}.",
            needed="A checkpoint continues the model that it was written for.",
            fix="Start from the recipe that the run folder holds.",
        )
    state.weights.publish()


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    """Wait until a file, or the list of a folder's files, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _place(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}"


def _steps(folder: Path) -> list[Path]:
    """Checkpoints in place, newest first."""
    return sorted(folder.glob("step-" + "[0-9]" * 8), reverse=True)


def _damage(path: Path) -> str | None:
    """What is wrong with a checkpoint, or None."""
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        step = int(manifest["step"])
        known = {name: (manifest["files"][name]["bytes"], manifest["files"][name]["sha256"]) for name in FILES}
    except (OSError, ValueError, LookupError, TypeError):
        return f"no readable {MANIFEST}"
    if path != _place(path.parent, step):
        return f"{MANIFEST} is of step {step}"
    for name, (num_bytes, content) in known.items():
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if (size := file.stat().st_size) != num_bytes:
            return f"{name} has {size} bytes instead of {num_bytes}"
        if _hash(file) != content:
            return f"{name} differs from its hash"
    return None
