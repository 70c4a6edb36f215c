"""What a model string refers to: hub id, folder, file.gguf, run:NAME, openai:MODEL, vllm:URL, or a model in memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

__all__ = ["ModelRef"]

RefKind = Literal["hub", "folder", "gguf", "run", "hosted", "served", "memory"]


@dataclass(frozen=True)
class ModelRef:
    """A model string and what it refers to.

    `text` is the string itself; kind `hosted` is a hosted API and `served` a scoring server. `path` is the folder or
    file, None if there is none on this machine; `revision` is the branch, tag or commit of a hub id, None for the
    default branch. `weights` is the file of a checkpoint, whose tensors replace those at `path`, and `step` its step.

    `fingerprint` is the first digits of the hash of the weights of a model that was given as an object (see
    `models.memory`). If the kind is `memory`, the object is in this process; otherwise the weights are loaded from
    `origin`, the name under which transformers loaded the object, and must have this fingerprint.
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
        """The hub id without the revision."""
        return (self.origin or self.text).partition("@")[0]
