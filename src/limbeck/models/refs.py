"""What a model string means: hub id, folder, file.gguf, run:NAME, openai:MODEL, vllm:URL."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

__all__ = ["ModelRef"]

RefKind = Literal["hub", "folder", "gguf", "run", "hosted", "served"]


@dataclass(frozen=True)
class ModelRef:
    """A model string and what it means.

    `text` is as written; `hosted` is a chat API and `served` a scoring server. `path` is the folder or file, None where
    there is none here; `revision` is the branch, tag or commit of a hub id, None for the default branch. `weights` is
    the file of a checkpoint, whose tensors replace those at `path`, and `step` its step.
    """

    text: str
    kind: RefKind
    path: Path | None
    revision: str | None
    weights: Path | None = None
    step: int | None = None
