"""Weights and tokenizer onto a device: safetensors only, no code from a repository, one head that is known by test.

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
from limbeck.models.packed import pack_parameters
from limbeck.models.refs import ModelRef
from limbeck.models.resolve import adapter_error
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

# The two ways to compute the same logits may differ by rounding, relative to the largest logit.
HEAD_TOLERANCE = 1e-4

# What transformers raises for files that are absent, cut, of another shape or type, or in need of a missing package.
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
    """Load a model with its tokenizer and check that its head is understood.

    Args:
        ref: a hub id, a folder, a GGUF file (dequantised), the model of a run, or an object that is held.
        trainable: whether its weights take gradients.
        dtype: the dtype of the weights.
        device: where they go.

    Raises:
        ModelError: not found, not safetensors, or weights missing from the file.
        Refusal: the repository brings its own code, or the architecture changes its logits in an unknown way.
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
        raise adapter_error(ref.text)
    with _reading_errors(ref, "weights"), without_progress_bars():
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
        raise ModelError(
            "model.weights-missing",
            given=f"The weights of {ref.text} lack {len(missing)} tensors, the first is {missing[0]}.",
            needed="A missing tensor would be filled with random numbers.",
            fix="Download or save the model again.",
        )
    if ref.weights is not None and (differing := put_weights(load_file(ref.weights), dict(module.named_parameters()))):
        raise ModelError(
            "model.checkpoint-other",
            given=f"{ref.text} and the model differ in {len(differing)} weights, the first is {differing[0]}.",
            needed="A checkpoint that serves as a model holds every weight of it.",
            fix="Name the run without a step once it is done.",
        )
    return module


@torch.no_grad()
def put_weights(stored: Mapping[str, Tensor], own: Mapping[str, nn.Parameter]) -> list[str]:
    """Copy tensors into the parameters of their names, all or none; the names that differ in presence or shape."""
    shapes, own_shapes = ({name: tuple(each.shape) for name, each in side.items()} for side in (stored, own))
    differing = sorted(name for name in shapes | own_shapes if shapes.get(name) != own_shapes.get(name))
    if not differing:
        for name, parameter in own.items():
            parameter.copy_(stored[name])
    return differing


@contextmanager
def without_progress_bars() -> Generator[None]:
    """transformers draws bars of its own on stderr, also where nobody watches; the run shows its own progress."""
    enabled = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            transformers_logging.enable_progress_bar()


@contextmanager
def _reading_errors(ref: ModelRef, what: str) -> Generator[None]:
    """What a library says of files that it cannot use, as an error of the model."""
    try:
        yield
    except (ModelError, Refusal):
        raise
    except UNREADABLE as error:
        reason = str(error).strip().splitlines()
        raise ModelError(
            f"model.{what.replace(' ', '-')}-unreadable",
            given=f"The {what} of {ref.text} could not be read: {reason[0] if reason else type(error).__name__}",
            needed="Limbeck reads safetensors (never pickled weights), config.json and a tokenizer, or a GGUF file.",
            fix="Check the name and that the download is complete; a .bin model can be saved again as safetensors.",
        ) from error


def load_config(ref: ModelRef) -> PretrainedConfig:
    """The model's configuration, without its weights."""
    if ref.kind == "memory":
        config = configuration_of(ref)
        _refuse_own_code(ref, config.to_dict())
        return config
    source, options = _source(ref)
    with _reading_errors(ref, "configuration"):
        if ref.kind in ("folder", "run"):  # before anything can import the Python files that these may point at
            for path in (Path(source, "config.json"), Path(source, "tokenizer_config.json")):
                _refuse_own_code(ref, json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {})
        config = AutoConfig.from_pretrained(source, trust_remote_code=False, **options)
    _refuse_own_code(ref, config.to_dict())
    return config


def _refuse_own_code(ref: ModelRef, settings: Mapping[str, Any]) -> None:
    if "auto_map" in settings:
        raise Refusal(
            "model.own-code",
            given=f"{ref.text} asks for Python code of its own (auto_map in its configuration).",
            needed="Code that comes with weights would run with your rights, so Limbeck never runs it.",
            fix="Use a version of the model that transformers supports by itself.",
        )


def load_tokenizer(ref: ModelRef) -> PreTrainedTokenizerBase:
    """The tokenizer as it is saved: nothing is added, no side is changed."""
    if ref.kind == "memory":
        return tokenizer_of(ref)
    source, options = _source(ref)
    with _reading_errors(ref, "tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False, **options)
    assert isinstance(tokenizer, PreTrainedTokenizerBase)
    return tokenizer


def load_generation_config(ref: ModelRef) -> GenerationConfig:
    """The model's generation config, of which only the stop and pad ids are ever read."""
    if ref.kind == "memory":
        return generation_config_of(ref)
    source, options = _source(ref)
    with _reading_errors(ref, "generation config"):
        missing = ref.kind == "gguf" or find_file(source, GENERATION_CONFIG_NAME, **options) is None
        # Base models are often saved without the file: then, and only then, the model's config holds the stop ids.
        if missing:
            return GenerationConfig.from_model_config(load_config(ref))
        return GenerationConfig.from_pretrained(source, **options)


def _source(ref: ModelRef) -> tuple[str, dict[str, Any]]:
    """What `from_pretrained` takes as its name, and its further options."""
    if ref.kind == "gguf":
        assert ref.path is not None
        return str(ref.path.parent), {"gguf_file": ref.path.name, "local_files_only": True}
    if ref.kind in ("folder", "run"):
        return str(ref.path), {"local_files_only": True}
    if ref.kind == "hub":
        return ref.hub_id, {} if ref.revision is None else {"revision": ref.revision}
    raise ModelError(
        "model.not-local",
        given=f"{ref.text} names a model behind an interface.",
        needed="On-policy distillation needs the teacher's distribution at every token of a text that it did not "
        "write, and the student's weights; a chat interface gives neither.",
        fix="Name a hub id, a folder, a .gguf file or run:NAME.",
    )


def logit_transform(config: PretrainedConfig) -> dict[str, Any]:
    """What an architecture does to its logits after the head: a factor and a soft cap."""
    settings = config.get_text_config().to_dict()
    divisor, factor = settings.get("logits_scaling"), settings.get("logit_scale")  # those of Granite and of Cohere
    return {"scale": (factor or 1.0) / (divisor or 1.0), "softcap": settings.get("final_logit_softcapping")}


def max_positions(config: PretrainedConfig) -> int | None:
    """How many positions a model has, whatever its architecture calls them (GPT-2: n_positions); None if no limit."""
    return getattr(config.get_text_config(), "max_position_embeddings", None)


def checkpoint_activations(model: LanguageModel) -> None:
    """From now on each layer keeps only its input for the backward pass, and is computed again there.

    A pass that goes on from a cache is not: computing it again would put its keys there twice.

    Raises:
        Refusal: the architecture's layers are not made for it.
    """
    layers = recomputable_layers(model.module)
    if not layers:
        raise Refusal(
            "model.no-checkpointing",
            given=f"activation_checkpointing is true, and no layer of {model.name} can be computed again.",
            needed="transformers marks the layers for which that is safe.",
            fix="Leave activation_checkpointing out; micro_batch_tokens lowers the same memory.",
        )
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
    # bf16 weights give bf16 logits on their own path and float32 logits on ours
    tolerance = HEAD_TOLERANCE if model.dtype in (torch.float32, torch.float64) else 2e-2
    gap = ((own_NV - ours_NV).abs().max() / largest).item()
    if torch.isfinite(own_NV).all() and gap > tolerance:
        raise Refusal(
            "model.head-unknown",
            given=f"The logits of {model.name} ({model.module.config.model_type}) differ from its head applied to its "
            f"hidden states by {gap:.1e} of the largest logit.",
            needed="The divergence is computed from hidden states and head, so a step in between that Limbeck does "
            "not know would train towards the wrong distribution.",
            fix="Use another model, or report this architecture.",
        )
