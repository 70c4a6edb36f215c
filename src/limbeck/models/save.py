"""The final model of a run as a folder that transformers can load."""

from __future__ import annotations

import shutil
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from transformers import GenerationConfig

from limbeck.models.fingerprint import weights_hash
from limbeck.models.language_model import LanguageModel
from limbeck.models.load import without_progress_bars

__all__ = ["atomic_folder", "save_model", "save_tokenizer_and_generation_config", "weights_hash"]


def save_model(model: LanguageModel, folder: Path, *, chat_template: str, stop_ids: Sequence[int], pad_id: int) -> None:
    """Save weights as safetensors in the model's own dtype (declared in its config), tokenizer and generation config.

    The generation config contains only the run's stop and pad ids: the base model's sampling settings are not those of
    the training. Embedding rows are never added or removed. The model in memory gets the same template and configs.
    """
    model.module.config.dtype = model.dtype
    with atomic_folder(folder) as partial:
        save_tokenizer_and_generation_config(
            model, partial, chat_template=chat_template, stop_ids=stop_ids, pad_id=pad_id
        )
        with without_progress_bars():
            model.module.save_pretrained(partial)


def save_tokenizer_and_generation_config(
    model: LanguageModel, folder: Path, *, chat_template: str, stop_ids: Sequence[int], pad_id: int
) -> None:
    """Save the tokenizer with the run's chat template, and a generation config with the run's stop and pad ids."""
    module, tokenizer = model.module, model.tokenizer
    module.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=list(stop_ids), pad_token_id=pad_id
    )
    module.generation_config.save_pretrained(folder)
    tokenizer.chat_template = chat_template
    tokenizer.save_pretrained(folder)


@contextmanager
def atomic_folder(folder: Path) -> Generator[Path]:
    """A temporary folder that replaces `folder` at the end of the block, so `folder` is always complete."""
    partial = folder.with_name(f".{folder.name}-unfinished")
    shutil.rmtree(partial, ignore_errors=True)
    yield partial
    if folder.exists():
        shutil.rmtree(folder)
    partial.rename(folder)
