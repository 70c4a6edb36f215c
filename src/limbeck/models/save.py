"""The result of a run as a folder that transformers loads as it is."""

from __future__ import annotations

import shutil
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from transformers import GenerationConfig

from limbeck.models.fingerprint import weights_hash
from limbeck.models.language_model import LanguageModel
from limbeck.models.load import without_progress_bars

__all__ = ["save_model", "save_tokenizer_and_generation_config", "unfinished", "weights_hash"]


def save_model(model: LanguageModel, folder: Path, *, chat_template: str, stop_ids: Sequence[int], pad_id: int) -> None:
    """Write safetensors in the model's own dtype (declared in its config), tokenizer, template and generation config.

    The generation config holds the run's stop and pad ids and nothing else: what the base model's authors liked to
    sample with is not what this model was trained with. Rows of the embedding are never added or cut. The model in
    memory takes on what is written.
    """
    model.module.config.dtype = model.dtype
    with unfinished(folder) as beside:
        save_tokenizer_and_generation_config(
            model, beside, chat_template=chat_template, stop_ids=stop_ids, pad_id=pad_id
        )
        with without_progress_bars():
            model.module.save_pretrained(beside)


def save_tokenizer_and_generation_config(
    model: LanguageModel, folder: Path, *, chat_template: str, stop_ids: Sequence[int], pad_id: int
) -> None:
    """Write how a model is asked and where it ends: tokenizer, template and a generation config of the run's ids."""
    module, tokenizer = model.module, model.tokenizer
    module.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=list(stop_ids), pad_token_id=pad_id
    )
    module.generation_config.save_pretrained(folder)
    tokenizer.chat_template = chat_template
    tokenizer.save_pretrained(folder)


@contextmanager
def unfinished(folder: Path) -> Generator[Path]:
    """A folder beside, renamed when the block is done: a folder of that name is finished, and the latest one."""
    beside = folder.with_name(f".{folder.name}-unfinished")
    shutil.rmtree(beside, ignore_errors=True)
    yield beside
    if folder.exists():
        shutil.rmtree(folder)
    beside.rename(folder)
