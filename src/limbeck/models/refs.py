"""What a model string means: hub id, folder, file.gguf, run:NAME, openai:MODEL, vllm:URL, or a model in memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

__all__ = ["ModelRef"]

RefKind = Literal["hub", "folder", "gguf", "run", "hosted", "served", "memory"]


@dataclass(frozen=True)
class ModelRef:
    """A model string and what it means.

    `text` is as written; `hosted` is a chat API and `served` a scoring server. `path` is the folder or file, None where
    there is none here; `revision` is the branch, tag or commit of a hub id, None for the default branch. `weights` is
    the file of a checkpoint, whose tensors replace those at `path`, and `step` its step.

    `fingerprint` identifies the weights of a model that was given as an object (see `models.memory`), by the first
    digits of their hash. Of kind `memory` the object is at hand; of another kind the weights are read from `origin`,
    the name that the object came with, and must have this fingerprint.
    """

    text: str
    kind: RefKind
    path: Path | None
    revision: str | None
    weights: Path | None = None
    step: int | None = None
    fingerprint: str | None = None
    origin: str | None = None

    @property
    def hub_id(self) -> str:
        """What a hub calls it, without the revision."""
        return (self.origin or self.text).partition("@")[0]
