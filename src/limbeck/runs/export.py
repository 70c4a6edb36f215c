"""The result of a finished run, copied to where it is used."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal

from limbeck.errors import UsageError
from limbeck.runs.lines import write_failed
from limbeck.runs.store import Run

__all__ = ["ExportForm", "export_run"]

ExportForm = Literal["merged", "adapter"]


def export_run(run: Run, form: ExportForm, folder: Path) -> Path:
    """Copy a run's model (`merged`: transformers loads it as it is) or its adapter, in peft's format, to `folder`.

    Tokenizer, chat template and stop ids come along with both.

    Raises:
        UsageError: the run has no such result, or the folder is taken.
        Stopped: the disk does not take it.
    """
    source = run.model_path if form == "merged" else run.adapter_path
    if not source.is_dir():
        whole = run.model_path.is_dir()
        raise UsageError(
            "export.nothing",
            given=f"{run.name} {'trained all weights and has no adapter' if whole else 'has no model yet'}.",
            needed="A run writes its model at its end, and its adapter where its recipe says lora.",
            fix="Use --to merged." if whole else f"limbeck resume {run.path} goes on to the end.",
        )
    if folder.exists():
        raise UsageError(
            "export.exists",
            given=f"{folder} exists.",
            needed="An export never writes over what is there.",
            fix="Name another folder with --output, or remove that one.",
        )
    beside = folder.with_name(f".{folder.name}-unfinished")
    try:
        shutil.rmtree(beside, ignore_errors=True)
        shutil.copytree(source, beside)
        if form == "adapter":
            models_own = shutil.ignore_patterns("*.safetensors", "config.json", "model.safetensors.index.json")
            shutil.copytree(run.model_path, beside, ignore=models_own, dirs_exist_ok=True)
        beside.rename(folder)
    except OSError as error:
        raise write_failed(folder, error) from error
    return folder
