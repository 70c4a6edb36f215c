"""The result of a run as a folder that transformers loads as it is."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn
from transformers import GenerationConfig

from limbeck.errors import Diverged
from limbeck.models.load import LanguageModel, without_progress_bars

__all__ = ["save_model", "weights_hash"]


def save_model(model: LanguageModel, folder: Path, *, chat_template: str, stop_ids: Sequence[int], pad_id: int) -> None:
    """Write safetensors in the model's own dtype (declared in its config), tokenizer, template and generation config.

    The generation config holds the run's stop and pad ids and nothing else: what the base model's authors liked to
    sample with is not what this model was trained with. Rows of the embedding are never added or cut.

    Raises:
        Diverged: a weight is not finite; nothing is written.
    """
    for name, parameter in model.module.named_parameters():
        if not torch.isfinite(parameter).all():
            raise Diverged(
                "model.not-finite",
                given=f"{name} of the trained student holds numbers that are not finite.",
                needed="Such a model cannot answer.",
                fix="Use the last checkpoint of the run, and lower the learning rate.",
            )
    module = model.module
    module.config.dtype = model.dtype
    module.generation_config = GenerationConfig(
        bos_token_id=model.tokenizer.bos_token_id, eos_token_id=list(stop_ids), pad_token_id=pad_id
    )
    # beside first and renamed when whole: a folder of that name is a finished model
    beside = folder.with_name(f".{folder.name}-unfinished")
    shutil.rmtree(beside, ignore_errors=True)
    with without_progress_bars():
        module.save_pretrained(beside)
    own_template = model.tokenizer.chat_template
    model.tokenizer.chat_template = chat_template
    try:
        model.tokenizer.save_pretrained(beside)
    finally:
        model.tokenizer.chat_template = own_template
    beside.rename(folder)


def weights_hash(module: nn.Module) -> str:
    """SHA-256 over names, shapes, dtypes and bytes of all parameters, whatever files they came from."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.named_parameters()):  # a tied one comes once
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
