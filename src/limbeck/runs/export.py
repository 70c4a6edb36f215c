"""Export of the final model of a run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal

from limbeck.runs import messages
from limbeck.runs.lines import write_failed
from limbeck.runs.store import Run

__all__ = ["ExportForm", "export_run"]

ExportForm = Literal["merged", "adapter"]


def export_run(run: Run, form: ExportForm, folder: Path) -> Path:
    """Copy a run's model (`merged`, loadable by transformers) or its adapter (in peft's format) to `folder`.

    Both include tokenizer, chat template and stop ids.

    Raises:
        UsageError: the run has no such result, or the folder exists.
        Stopped: writing failed.
    """
    source = run.model_path if form == "merged" else run.adapter_path
    if not source.is_dir():
        if run.model_path.is_dir():
            raise messages.no_adapter(name=run.name)
        raise messages.no_model_yet(name=run.name, path=run.path)
    if folder.exists():
        raise messages.export_exists(folder=folder)
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
