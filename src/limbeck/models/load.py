"""Weights and tokenizer onto a device: safetensors only, no code from a repository, and an output head that is checked.

Shapes  B = sequences, T = positions, N = completion positions of all sequences, H = hidden, V = vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import GENERATION_CONFIG_NAME, find_adapter_config_file
from transformers.utils import logging as transformers_logging

from limbeck.compat import find_file, recomputable_layers, replace_forward
from limbeck.errors import ModelError, Refusal
from limbeck.models.language_model import LanguageModel
from limbeck.models.memory import (
    configuration_of,
    generation_config_of,
    put_in_place,
    tokenizer_of,
    verify_fingerprint,
)
from limbeck.models.messages import loading as messages
from limbeck.models.messages.names import adapter_error
from limbeck.models.packed import pack_parameters
from limbeck.models.refs import ModelRef
from limbeck.objectives.fused import head_of

__all__ = [
    "checkpoint_activations",
    "load_config",
    "load_generation_config",
    "load_model",
    "load_tokenizer",
    "max_positions",
    "put_weights",
    "without_progress_bars",
]

# Two computations of the same logits may differ by rounding, relative to the largest logit.
HEAD_TOLERANCE = 1e-4

# What transformers raises for files that are missing, truncated, of a wrong shape or type, or need a missing package.
UNREADABLE = (
    OSError,
    SafetensorError,
    ValueError,
    KeyError,
    TypeError,
    RuntimeError,
    ImportError,
    StrictDataclassError,
)


def load_model(ref: ModelRef, *, trainable: bool, dtype: torch.dtype, device: torch.device) -> LanguageModel:
    """Load a model with its tokenizer and check that its logits are those of its output head.

    Args:
        ref: a hub id, a folder, a GGUF file (dequantised), the model of a run, or an object in this process.
        trainable: whether its weights get gradients.
        dtype: the dtype of the weights.
        device: the device of the weights.

    Raises:
        ModelError: the model was not found, is not safetensors, or lacks weights.
        Refusal: the repository has its own code, or the architecture computes logits in an unknown way.
    """
    config = load_config(ref)
    tokenizer = load_tokenizer(ref)
    if ref.kind == "memory":
        module = put_in_place(ref, trainable=trainable, dtype=dtype, device=device)
    else:
        module = _read_weights(ref, dtype if ref.fingerprint is None else torch.float32).eval()
        if ref.fingerprint is not None:
            verify_fingerprint(ref, module, dtype)
        nn.Module.to(module, device)
        pack_parameters(module)
    for parameter in module.parameters():
        parameter.requires_grad_(trainable)
    output = module.get_output_embeddings()
    assert isinstance(output, nn.Module)
    num_rows = output.get_parameter("weight").shape[0]
    head = head_of(output, num_real=num_rows, **logit_transform(config))
    model = LanguageModel(ref, module, tokenizer, load_generation_config(ref), head)
    _check_head(model)
    return model


def _read_weights(ref: ModelRef, dtype: torch.dtype) -> PreTrainedModel:
    source, options = _source(ref)
    if ref.kind == "hub" and find_adapter_config_file(source, revision=ref.revision) is not None:
        raise adapter_error(model=ref.text)
    with _reading_errors(ref, messages.weights_unreadable), without_progress_bars():
        module, report = AutoModelForCausalLM.from_pretrained(
            source,
            dtype=dtype,
            trust_remote_code=False,
            use_safetensors=True if ref.kind != "gguf" else None,
            output_loading_info=True,
            **options,
        )
    missing = sorted(report["missing_keys"])
    if missing:
        raise messages.weights_missing(model=ref.text, num=len(missing), first=missing[0])
    if ref.weights is not None and (differing := put_weights(load_file(ref.weights), dict(module.named_parameters()))):
        raise messages.checkpoint_other(checkpoint=ref.text, num=len(differing), first=differing[0])
    return module


@torch.no_grad()
def put_weights(stored: Mapping[str, Tensor], own: Mapping[str, nn.Parameter]) -> list[str]:
    """Copy tensors into the parameters of the same names, all or none.

    Returns the names that differ in presence or shape; if there are any, nothing is copied.
    """
    shapes, own_shapes = ({name: tuple(each.shape) for name, each in side.items()} for side in (stored, own))
    differing = sorted(name for name in shapes | own_shapes if shapes.get(name) != own_shapes.get(name))
    if not differing:
        for name, parameter in own.items():
            parameter.copy_(stored[name])
    return differing


@contextmanager
def without_progress_bars() -> Generator[None]:
    """Disable the progress bars of transformers, which also appear on stderr if it is not a terminal."""
    enabled = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            transformers_logging.enable_progress_bar()


@contextmanager
def _reading_errors(ref: ModelRef, unreadable: Callable[..., ModelError]) -> Generator[None]:
    """Turns an exception of a library about a model's files into the error `unreadable`."""
    try:
        yield
    except (ModelError, Refusal):
        raise
    except UNREADABLE as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise unreadable(model=ref.text, reason=reason[0].removesuffix(".")) from error


def load_config(ref: ModelRef) -> PretrainedConfig:
    """The model's configuration, without its weights."""
    if ref.kind == "memory":
        config = configuration_of(ref)
        _refuse_own_code(ref, config.to_dict())
        return config
    source, options = _source(ref)
    with _reading_errors(ref, messages.configuration_unreadable):
        if ref.kind in ("folder", "run"):  # before Python files that these refer to can be imported
            for path in (Path(source, "config.json"), Path(source, "tokenizer_config.json")):
                _refuse_own_code(ref, json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {})
        config = AutoConfig.from_pretrained(source, trust_remote_code=False, **options)
    _refuse_own_code(ref, config.to_dict())
    return config


def _refuse_own_code(ref: ModelRef, settings: Mapping[str, Any]) -> None:
    if "auto_map" in settings:
        raise messages.own_code(model=ref.text)


def load_tokenizer(ref: ModelRef) -> PreTrainedTokenizerBase:
    """The tokenizer exactly as saved: no token is added, no padding side is changed."""
    if ref.kind == "memory":
        return tokenizer_of(ref)
    source, options = _source(ref)
    with _reading_errors(ref, messages.tokenizer_unreadable):
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False, **options)
    assert isinstance(tokenizer, PreTrainedTokenizerBase)
    return tokenizer


def load_generation_config(ref: ModelRef) -> GenerationConfig:
    """The model's generation config. Limbeck uses only its stop and pad ids."""
    if ref.kind == "memory":
        return generation_config_of(ref)
    source, options = _source(ref)
    with _reading_errors(ref, messages.generation_config_unreadable):
        missing = ref.kind == "gguf" or find_file(source, GENERATION_CONFIG_NAME, **options) is None
        # Base models are often saved without this file; only then are the stop ids in the model's config.
        if missing:
            return GenerationConfig.from_model_config(load_config(ref))
        return GenerationConfig.from_pretrained(source, **options)


def _source(ref: ModelRef) -> tuple[str, dict[str, Any]]:
    """The name and the options for `from_pretrained`."""
    if ref.kind == "gguf":
        assert ref.path is not None
        return str(ref.path.parent), {"gguf_file": ref.path.name, "local_files_only": True}
    if ref.kind in ("folder", "run"):
        return str(ref.path), {"local_files_only": True}
    if ref.kind == "hub":
        return ref.hub_id, {} if ref.revision is None else {"revision": ref.revision}
    raise (messages.served_not_local if ref.kind == "served" else messages.not_local)(model=ref.text)


def logit_transform(config: PretrainedConfig) -> dict[str, Any]:
    """What an architecture does to its logits after the head, as arguments of `head_of`: a factor and a soft cap."""
    settings = config.get_text_config().to_dict()
    divisor, factor = settings.get("logits_scaling"), settings.get("logit_scale")  # of Granite and of Cohere
    return {"scale": (factor or 1.0) / (divisor or 1.0), "softcap": settings.get("final_logit_softcapping")}


def max_positions(config: PretrainedConfig) -> int | None:
    """The context length of a model, whatever its name in the config (GPT-2: n_positions); None if unlimited."""
    return getattr(config.get_text_config(), "max_position_embeddings", None)


def checkpoint_activations(model: LanguageModel) -> None:
    """Switch on activation checkpointing: each layer keeps only its input and is recomputed in the backward pass.

    A pass with a cache is not recomputed, because that would append its keys twice.

    Raises:
        Refusal: no layer of the architecture supports it.
    """
    layers = recomputable_layers(model.module)
    if not layers:
        raise messages.no_checkpointing(model=model.name)
    for layer in layers:
        replace_forward(layer, partial(_checkpointed, layer.forward))


def _checkpointed(forward: Callable[..., Any], *args: Any, **options: Any) -> Any:
    if not torch.is_grad_enabled() or options.get("past_key_values") is not None:
        return forward(*args, **options)
    return checkpoint(forward, *args, use_reentrant=False, **options)


def _check_head(model: LanguageModel) -> None:
    """Compare head(hidden) with the architecture's own logits on a few tokens."""
    hidden_NH, own_NV = model.on_few_tokens()
    ours_NV = model.head.logits(hidden_NH).float()
    own_NV = own_NV[:, : ours_NV.shape[1]].float()
    largest = own_NV.abs().max().clamp(min=1.0)
    # with 16-bit weights the architecture's own logits are 16-bit, ours are float32
    tolerance = HEAD_TOLERANCE if model.dtype in (torch.float32, torch.float64) else 2e-2
    gap = ((own_NV - ours_NV).abs().max() / largest).item()
    if torch.isfinite(own_NV).all() and gap > tolerance:
        raise messages.head_unknown(model=model.name, architecture=model.module.config.model_type, gap=gap)
