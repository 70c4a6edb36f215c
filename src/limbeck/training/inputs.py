"""Objects that exist only in memory, stored in the run that needs them: rows, and the student's first weights.

    inputs/student/        the student object, in its own dtype, with its tokenizer
    inputs/NAME.jsonl      rows that were passed as objects

The recipe of the run then refers to these files, so any process can resume it, evaluate it or start from its recipe.
Their contents are verified as in any other run, by the hashes of rows and weights. A teacher is not stored (see
`models.memory`).
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from limbeck.models.load import without_progress_bars
from limbeck.models.memory import held, held_model, holds_rows, is_in_memory
from limbeck.models.refs import ModelRef
from limbeck.models.save import atomic_folder
from limbeck.recipe.recipe import Recipe
from limbeck.runs.lines import write_bytes, write_failed
from limbeck.runs.store import Run
from limbeck.training.material import Material

__all__ = ["keep_inputs", "own_file", "with_own_files"]

INPUTS = "inputs"


def keep_inputs(run: Run, recipe: Recipe, material: Material) -> tuple[Recipe, Material]:
    """Write to the run what its recipe names and only this process has; the recipe and material that name it there.

    Raises:
        Stopped: the disk does not take it.
    """
    folder, changed = run.path / INPUTS, _rows(run.path / INPUTS, recipe)
    if is_in_memory(recipe.student) and material.student_ref.kind == "memory":
        ref = material.student_ref
        path = folder / "student"
        _write_student(ref, path)
        changed["student"] = str(path)
        kept = replace(ref, text=str(path)) if held_model(ref).itself else ModelRef(str(path), "folder", path, None)
        material = replace(material, student_ref=kept)
    return (recipe.model_copy(update=changed) if changed else recipe), material


def with_own_files(text: str, run: Run) -> str:
    """The text of the run's recipe with its own files named from the run's folder, so that the run can be moved."""
    return text.replace(f"{run.path / INPUTS}/", f"./{INPUTS}/")


def own_file(value: object, run: Run) -> object:
    """A file of the run's own by its place in the run, wherever the run lies; anything else as it is."""
    before, marker, rest = value.partition(f"/{run.name}/{INPUTS}/") if isinstance(value, str) else ("", "", "")
    return f"./{INPUTS}/{rest}" if before and marker else value


def _rows(folder: Path, recipe: Recipe) -> dict[str, Any]:
    """The settings that name rows given as objects, each with its new place."""
    own = recipe.own_answers
    texts = {name: getattr(recipe, name) for name in ("prompts", "held_out", "teacher_examples")}
    texts["own_answers"] = None if own is None else own.file
    changed: dict[str, Any] = {}
    for name, text in texts.items():
        if isinstance(text, str) and holds_rows(text):
            folder.mkdir(mode=0o700, exist_ok=True)
            path = folder / Path(text).name
            write_bytes(path, Path(text).read_bytes())
            changed[name] = str(path)
    if own is not None and "own_answers" in changed:
        changed["own_answers"] = own.model_copy(update={"file": changed["own_answers"]})
    return changed


def _write_student(ref: ModelRef, path: Path) -> None:
    known = held()[str(ref.fingerprint)]
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        shutil.rmtree(path, ignore_errors=True)
        with atomic_folder(path) as beside, without_progress_bars():
            known.module.save_pretrained(beside)
            known.tokenizer.save_pretrained(beside)
    except OSError as error:
        raise write_failed(path, error) from error
