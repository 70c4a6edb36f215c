"""Weights and tokenizer onto a device: safetensors only, no code from a repository, one head that is known by test.

Shapes  B = sequences, T = positions, N = completion positions of all sequences, H = hidden, V = vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
from transformers.cache_utils import Cache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import GENERATION_CONFIG_NAME, cached_file, find_adapter_config_file
from transformers.utils import logging as transformers_logging

from limbeck.data.batch import TokenBatch
from limbeck.errors import ModelError, Refusal
from limbeck.models.arena import move_together
from limbeck.models.attention import NEVER_SEEN, ContextCache, attention_mask, kinds_of
from limbeck.models.refs import ModelRef, adapter_alone
from limbeck.objectives.fused import Head, head_of

__all__ = [
    "LanguageModel",
    "checkpoint_activations",
    "load_config",
    "load_generation_config",
    "load_model",
    "load_tokenizer",
    "positions_of",
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


@dataclass(frozen=True)
class LanguageModel:
    """A causal language model in this process: its body gives hidden states, its head turns them into logits.

    The module stays in evaluation mode, also while it trains: dropout would make the student that is trained another
    one than the student that wrote.
    """

    ref: ModelRef
    module: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    generation_config: GenerationConfig
    head: Head

    @property
    def name(self) -> str:
        return self.ref.text

    @property
    def device(self) -> torch.device:
        return self.module.device

    @property
    def dtype(self) -> torch.dtype:
        return self.module.dtype

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.module.parameters())

    @property
    def embedding_rows(self) -> int:
        embedding = self.module.get_input_embeddings()
        assert isinstance(embedding, nn.Embedding)
        return embedding.num_embeddings

    def with_vocabulary(self, num_real: int) -> LanguageModel:
        """The same model with its logits cut to the first `num_real` ids."""
        return replace(self, head=replace(self.head, num_real=num_real))

    def text(self, ids: Sequence[int]) -> str:
        """Token ids as text, control tokens shown. For reading only: text is never tokenised again."""
        text = self.tokenizer.decode(list(ids), skip_special_tokens=False)
        assert isinstance(text, str)
        return text

    def hidden(self, ids_BT: Tensor, positions_BT: Tensor, mask: Any, *, cache: Cache | None = None) -> Tensor:
        """Last hidden states [B, T, H] in the model's dtype, after the final norm, before the head.

        `mask` is a padding mask [B, T], an explicit additive mask [B, 1, T, K] or one of these for each kind of layer.
        """
        outputs = self.module.base_model(
            input_ids=ids_BT,
            attention_mask=mask,
            position_ids=positions_BT,
            cache=cache,
            use_cache=cache is not None,
        )
        return outputs.last_hidden_state

    def completion_hidden(self, batch: TokenBatch) -> Tensor:
        """Hidden states [N, H] of the positions that predict the completion tokens of `batch`, row after row."""
        if batch.context is None:
            hidden_BTH = self.hidden(batch.ids_BT, batch.positions_BT, batch.mask_BT)
        else:
            hidden_BTH, _, _ = self._read(batch)
        return hidden_BTH.flatten(0, 1)[batch.predict_N]

    def _read(self, batch: TokenBatch) -> tuple[Tensor, ContextCache, Tensor]:
        """Hidden states [B, T, H], the context read first; keys and values as stored, and their positions [B, K]."""
        context_cache, context_BK = None, None
        if batch.context is not None:
            _, context_cache, context_BK = self._read(batch.context.batch)
            context_BK = context_BK[batch.context.row_B]
        cache = ContextCache(context_cache, batch.context.row_B if batch.context is not None else None)

        def with_context(own_BT: Tensor) -> Tensor:
            return own_BT if context_BK is None else torch.cat([context_BK, own_BT], dim=1)

        # within this pass what fills a row up comes after all that is asked of the row; for later passes it is nobody's
        mask = attention_mask(
            batch.positions_BT, with_context(batch.positions_BT), self.dtype, kinds_of(self.module.config)
        )
        hidden_BTH = self.hidden(batch.ids_BT, batch.positions_BT, mask, cache=cache)
        return hidden_BTH, cache, with_context(batch.positions_BT.masked_fill(batch.mask_BT == 0, NEVER_SEEN))


def load_model(ref: ModelRef, *, trainable: bool, dtype: torch.dtype, device: torch.device) -> LanguageModel:
    """Load a model with its tokenizer and check that its head is understood.

    Args:
        ref: a hub id, a folder, a GGUF file (dequantised) or the model of a run.
        trainable: whether its weights take gradients.
        dtype: the dtype of the weights.
        device: where they go.

    Raises:
        ModelError: not found, not safetensors, or weights missing from the file.
        Refusal: the repository brings its own code, or the architecture changes its logits in an unknown way.
    """
    config = load_config(ref)
    tokenizer = load_tokenizer(ref)
    source, _ = _source(ref)
    if ref.kind == "hub" and find_adapter_config_file(source, revision=ref.revision) is not None:
        raise adapter_alone(ref.text)
    module = _read_weights(ref, dtype).eval()
    if ref.weights is not None:
        _put_weights(module, ref)
    nn.Module.to(module, device)
    move_together(module)
    for parameter in module.parameters():
        parameter.requires_grad_(trainable)
    output = module.get_output_embeddings()
    assert isinstance(output, nn.Module)
    num_rows = int(output.get_parameter("weight").shape[0])
    head = head_of(output, num_real=num_rows, **logit_transform(config))
    model = LanguageModel(ref, module, tokenizer, load_generation_config(ref), head)
    _check_head(model)
    return model


def _read_weights(ref: ModelRef, dtype: torch.dtype) -> PreTrainedModel:
    source, options = _source(ref)
    try:
        with without_progress_bars():
            module, report = AutoModelForCausalLM.from_pretrained(
                source,
                dtype=dtype,
                trust_remote_code=False,
                use_safetensors=True if ref.kind != "gguf" else None,
                output_loading_info=True,
                **options,
            )
    except UNREADABLE as error:
        raise _unreadable(ref, "weights", error) from error
    missing = sorted(report["missing_keys"])
    if missing:
        raise ModelError(
            "model.weights-missing",
            given=f"The weights of {ref.text} lack {len(missing)} tensors, the first is {missing[0]}.",
            needed="A missing tensor would be filled with random numbers.",
            fix="Download or save the model again.",
        )
    return module


@torch.no_grad()
def _put_weights(module: PreTrainedModel, ref: ModelRef) -> None:
    """The tensors of a checkpoint in place of the model's own."""
    assert ref.weights is not None
    stored, own = load_file(ref.weights), dict(module.named_parameters())
    if stored.keys() != own.keys():
        raise ModelError(
            "model.checkpoint-other",
            given=f"{ref.text} holds {len(stored)} tensors, and the model has {len(own)} of other names.",
            needed="A checkpoint that serves as a model holds every weight of it.",
            fix="Name the run without a step once it is done.",
        )
    for name, tensor in stored.items():
        own[name].copy_(tensor)


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


def load_config(ref: ModelRef) -> PretrainedConfig:
    """The model's configuration, without its weights."""
    source, options = _source(ref)
    try:
        if ref.kind in ("folder", "run"):
            _refuse_own_code(ref, Path(source))
        config = AutoConfig.from_pretrained(source, trust_remote_code=False, **options)
    except Refusal:
        raise
    except UNREADABLE as error:
        raise _unreadable(ref, "configuration", error) from error
    if "auto_map" in config.to_dict():
        raise _own_code(ref)
    return config


def load_tokenizer(ref: ModelRef) -> PreTrainedTokenizerBase:
    """The tokenizer as it is saved: nothing is added, no side is changed."""
    source, options = _source(ref)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False, **options)
    except UNREADABLE as error:
        raise _unreadable(ref, "tokenizer", error) from error
    assert isinstance(tokenizer, PreTrainedTokenizerBase)
    return tokenizer


def load_generation_config(ref: ModelRef) -> GenerationConfig:
    """The model's generation config, of which only the stop and pad ids are ever read."""
    source, options = _source(ref)
    try:
        missing = ref.kind == "gguf" or (
            cached_file(source, GENERATION_CONFIG_NAME, _raise_exceptions_for_missing_entries=False, **options) is None
        )
        # Base models are often saved without the file: then, and only then, the model's config holds the stop ids.
        if missing:
            return GenerationConfig.from_model_config(load_config(ref))
        return GenerationConfig.from_pretrained(source, **options)
    except UNREADABLE as error:
        raise _unreadable(ref, "generation config", error) from error


def _source(ref: ModelRef) -> tuple[str, dict[str, Any]]:
    """What `from_pretrained` takes as its name, and its further options."""
    if ref.kind == "gguf":
        assert ref.path is not None
        return str(ref.path.parent), {"gguf_file": ref.path.name, "local_files_only": True}
    if ref.kind in ("folder", "run"):
        return str(ref.path), {"local_files_only": True}
    if ref.kind == "hub":
        name = ref.text.partition("@")[0]
        return name, {} if ref.revision is None else {"revision": ref.revision}
    raise ModelError(
        "model.not-local",
        given=f"{ref.text} names a model behind an interface.",
        needed="On-policy distillation needs the teacher's distribution at every token of a text that it did not "
        "write, and the student's weights; a chat interface gives neither.",
        fix="Name a hub id, a folder, a .gguf file or run:NAME.",
    )


def _refuse_own_code(ref: ModelRef, folder: Path) -> None:
    """Refuse a folder whose configuration points at Python files, before anything can import them."""
    for name in ("config.json", "tokenizer_config.json"):
        path = folder / name
        if path.is_file() and "auto_map" in json.loads(path.read_text(encoding="utf-8")):
            raise _own_code(ref)


def _own_code(ref: ModelRef) -> Refusal:
    return Refusal(
        "model.own-code",
        given=f"{ref.text} asks for Python code of its own (auto_map in its configuration).",
        needed="Code that comes with weights would run with your rights, so Limbeck never runs it.",
        fix="Use a version of the model that transformers supports by itself.",
    )


def _unreadable(ref: ModelRef, what: str, error: Exception) -> ModelError:
    reason = str(error).strip().splitlines()
    return ModelError(
        f"model.{what.replace(' ', '-')}-unreadable",
        given=f"The {what} of {ref.text} could not be read: {reason[0] if reason else type(error).__name__}",
        needed="Limbeck reads safetensors weights (never pickled ones), config.json and a tokenizer, or a GGUF file.",
        fix="Check the name and that the download is complete; a .bin model can be saved again as safetensors.",
    )


def logit_transform(config: PretrainedConfig) -> dict[str, Any]:
    """What an architecture does to its logits after the head: a factor and a soft cap."""
    settings = config.get_text_config().to_dict()
    scale = 1.0
    if settings.get("logits_scaling"):  # Granite divides
        scale = 1.0 / settings["logits_scaling"]
    elif settings.get("logit_scale"):  # Cohere multiplies
        scale = settings["logit_scale"]
    return {"scale": scale, "softcap": settings.get("final_logit_softcapping")}


def positions_of(config: PretrainedConfig) -> int | None:
    """How many positions a model has, whatever its architecture calls them (GPT-2: n_positions); None if no limit."""
    return getattr(config.get_text_config(), "max_position_embeddings", None)


def checkpoint_activations(model: LanguageModel) -> None:
    """From now on each layer keeps only its input for the backward pass, and is computed again there.

    A pass that goes on from a cache is not: computing it again would put its keys there twice.

    Raises:
        Refusal: the architecture's layers are not made for it.
    """
    layers = [layer for layer in model.module.modules() if isinstance(layer, GradientCheckpointingLayer)]
    if not layers:
        raise Refusal(
            "model.no-checkpointing",
            given=f"activation_checkpointing is true, and no layer of {model.name} can be computed again.",
            needed="transformers marks the layers for which that is safe.",
            fix="Leave activation_checkpointing out; micro_batch_tokens lowers the same memory.",
        )
    for layer in layers:
        layer.forward = partial(_checkpointed, layer.forward)


def _checkpointed(forward: Callable[..., Any], *args: Any, **options: Any) -> Any:
    if not torch.is_grad_enabled() or options.get("past_key_values") is not None:
        return forward(*args, **options)
    return checkpoint(forward, *args, use_reentrant=False, **options)


@torch.no_grad()
def _check_head(model: LanguageModel) -> None:
    """Compare head(hidden) with the architecture's own logits on a few tokens."""
    ids_BT = torch.arange(1, 9, device=model.device).remainder(model.embedding_rows).unsqueeze(0)
    positions_BT = torch.arange(8, device=model.device).unsqueeze(0)
    mask_BT = torch.ones_like(ids_BT)
    own_NV = model.module(input_ids=ids_BT, attention_mask=mask_BT, position_ids=positions_BT).logits[0].float()
    ours_NV = model.head.logits(model.hidden(ids_BT, positions_BT, mask_BT)[0]).float()
    own_NV = own_NV[:, : ours_NV.shape[1]]
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
