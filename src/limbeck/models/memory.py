"""Models that the caller passes as objects: a recipe refers to them by a fingerprint of their weights.

    memory:3f9a0c54b1e2d687 from Qwen/Qwen2.5-3B-Instruct

Within `hold` the fingerprint refers to the object. In any other process the weights are loaded from the name after
`from`, by which transformers loaded the object, and must have the same fingerprint.
"""

from __future__ import annotations

import copy
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import torch
from torch import nn
from transformers import AutoTokenizer, GenerationConfig, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from limbeck.compat import choose_attention
from limbeck.models.fingerprint import weights_hash
from limbeck.models.lent import lent
from limbeck.models.messages import objects as messages
from limbeck.models.packed import pack_parameters
from limbeck.models.refs import ModelRef

__all__ = [
    "MemoryModel",
    "configuration_of",
    "fingerprint_in",
    "generation_config_of",
    "held",
    "held_model",
    "hold",
    "holds_rows",
    "is_in_memory",
    "known",
    "lend",
    "memory_model",
    "parse_memory",
    "put_in_place",
    "read_from_origin",
    "tokenizer_of",
    "verify_fingerprint",
]

PREFIX, FROM = "memory:", " from "
NUM_DIGITS = 16
# The dtypes that a model may have been rounded to since it was stored.
READINGS = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class MemoryModel:
    """A caller's model with its tokenizer; `name` is the name it was loaded by, empty if it is unknown.

    If `itself` is true, the module itself is used and, if the run trains it, trained; otherwise a copy of it.
    """

    module: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    fingerprint: str
    name: str
    itself: bool = False

    @property
    def text(self) -> str:
        """How a recipe refers to it."""
        return f"{PREFIX}{self.fingerprint}" + (f"{FROM}{self.name}" if self.name else "")


_HELD: ContextVar[Mapping[str, MemoryModel]] = ContextVar("_HELD", default=MappingProxyType({}))
_ROWS: ContextVar[tuple[Path, ...]] = ContextVar("_ROWS", default=())


@contextmanager
def hold(models: Sequence[MemoryModel], rows: Path | None = None) -> Generator[None]:
    """Within the block these models are found by their fingerprints; at its end they are restored (see `lent`).

    `rows` is a folder that exists during the block, with the rows that were given as objects.
    """
    with lend(models), known(models, rows):
        yield


@contextmanager
def lend(models: Sequence[MemoryModel]) -> Generator[None]:
    """`lent` for each of the models."""
    with ExitStack() as stack:
        for module in {id(each.module): each.module for each in models}.values():
            stack.enter_context(lent(module))
        yield


@contextmanager
def known(models: Sequence[MemoryModel], rows: Path | None = None) -> Generator[None]:
    """Within the block these models are found by their fingerprints, and rows in their folder."""
    models_before = _HELD.set({**_HELD.get(), **{each.fingerprint: each for each in models}})
    rows_before = _ROWS.set((*_ROWS.get(), *(() if rows is None else (rows,))))
    try:
        yield
    finally:
        _ROWS.reset(rows_before)
        _HELD.reset(models_before)


def held() -> Mapping[str, MemoryModel]:
    """The models that are held now, by fingerprint."""
    return _HELD.get()


def holds_rows(path: str | Path) -> bool:
    """Whether a file contains rows that were given as objects, so that it exists only for a while."""
    return Path(path).parent in _ROWS.get()


def memory_model(
    module: object, tokenizer: PreTrainedTokenizerBase | None, *, what: str, itself: bool = False
) -> MemoryModel:
    """A caller's model as Limbeck uses it; without a tokenizer, the one of the name that the model was loaded by.

    `what` is its role, for messages.

    Raises:
        ModelError: it is not a causal language model of transformers, or it has no tokenizer.
    """
    if not isinstance(module, PreTrainedModel):
        raise messages.unfit_type(role=what, kind=type(module).__name__)
    if module.get_output_embeddings() is None:
        raise messages.object_without_head(role=what, kind=type(module).__name__)
    for name, weight in module.named_parameters():
        if weight.device.type == "meta":
            raise messages.object_without_weights(role=what, weight=name)
        if not weight.is_floating_point():
            raise messages.object_quantised(role=what, weight=name, dtype=str(weight.dtype).removeprefix("torch."))
    name = getattr(module.config, "_name_or_path", "") or ""
    if name and Path(name).expanduser().is_dir():
        name = str(Path(name).expanduser().resolve())
    digits = weights_hash(module, read_as=torch.float32)[:NUM_DIGITS]
    return MemoryModel(module, tokenizer or _tokenizer_of(name, what), digits, name, itself)


def _tokenizer_of(name: str, what: str) -> PreTrainedTokenizerBase:
    if not name:
        raise messages.no_tokenizer(role=what)
    try:
        found = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        assert isinstance(found, PreTrainedTokenizerBase)
        return found
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, ImportError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise messages.tokenizer_of_name_unreadable(role=what, name=name, reason=reason[0]) from error


def is_in_memory(text: str) -> bool:
    """Whether a model string refers to an object."""
    return text.startswith(PREFIX)


def fingerprint_in(text: str) -> str:
    """The fingerprint in a model string."""
    return text.removeprefix(PREFIX).partition(FROM)[0]


def parse_memory(text: str) -> tuple[ModelRef | None, str, str]:
    """The reference of an object, None if it is not in this process; its fingerprint, and the name it was loaded by."""
    digits, _, name = text.removeprefix(PREFIX).partition(FROM)
    ref = ModelRef(text, "memory", None, None, fingerprint=digits) if digits in held() else None
    if ref is None and not name:
        raise messages.unnamed_not_in_memory(model=text)
    return ref, digits, name


def held_model(ref: ModelRef) -> MemoryModel:
    """The object that a reference of kind `memory` refers to."""
    found = held().get(str(ref.fingerprint))
    if found is None:
        raise messages.not_in_memory(model=ref.text)
    return found


def configuration_of(ref: ModelRef) -> PretrainedConfig:
    return copy.deepcopy(held_model(ref).module.config)


def tokenizer_of(ref: ModelRef) -> PreTrainedTokenizerBase:
    return copy.deepcopy(held_model(ref).tokenizer)


def generation_config_of(ref: ModelRef) -> GenerationConfig:
    """The object's own generation config; if it has none, the one that follows from its configuration."""
    module = held_model(ref).module
    own = getattr(module, "generation_config", None)
    return GenerationConfig.from_model_config(module.config) if own is None else copy.deepcopy(own)


def put_in_place(ref: ModelRef, *, trainable: bool, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """The object in evaluation mode, on a device and in a dtype: itself if it can be used, else a copy.

    A model that is not trained is used itself if it already has this device and dtype; it is never cast. Its attention
    is computed as in a loaded model, so that a resumed run gives the same numbers.
    """
    given = held_model(ref)
    fits = all(weight.dtype == dtype and weight.device == device for weight in given.module.parameters())
    if given.itself and not trainable and fits:
        choose_attention(given.module)
        return given.module.eval()
    module = given.module if given.itself and trainable else copy.deepcopy(given.module)
    choose_attention(module)
    module.zero_grad(set_to_none=True)
    for weight in module.parameters():
        weight.data = weight.data.to(dtype)
    for part in module.modules():
        for name, buffer in part.named_buffers(recurse=False):
            if buffer.is_floating_point() and name not in part._non_persistent_buffers_set:
                setattr(part, name, buffer.to(dtype))
    nn.Module.to(module, device)
    pack_parameters(module)
    return module.eval()


@torch.no_grad()
def verify_fingerprint(ref: ModelRef, module: PreTrainedModel, dtype: torch.dtype) -> None:
    """Check weights that were loaded in float32 by the name of an object, and round them to `dtype`, in place.

    The object may have been in a 16-bit dtype: then the weights are rounded to that first.

    Raises:
        Refusal: the weights are different ones.
    """
    found = ""
    for reading in READINGS:
        digits = weights_hash(module, read_as=reading)[:NUM_DIGITS]
        found = found or digits
        if digits == ref.fingerprint:
            for weight in module.parameters():
                weight.data = weight.data.to(reading).to(dtype)
            return
    raise messages.other_weights(model=str(ref.origin), expected=str(ref.fingerprint), found=found)


def read_from_origin(ref: ModelRef, text: str, digits: str, name: str) -> ModelRef:
    """The reference `ref` of the name that an object was loaded by, with the object's text and fingerprint."""
    return replace(ref, text=text, fingerprint=digits, origin=name)
