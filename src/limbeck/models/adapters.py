"""LoRA: two low-rank matrices for every linear layer of a frozen student (Hu et al. 2021), with peft.

    y = x·Wᵀ + (alpha / rank)·x·Aᵀ·Bᵀ      A is random and B is 0 at first, so training starts at the base itself

Every linear layer of the body gets an adapter. The output head and the embedding never do: the objective uses the head
as a plain layer, and tied weights stay tied, with adapters, merged and on disk. There is no dropout, because the
student that trains must be the student that generates.

An adapter on disk has peft's own format and identifies its base by content: the hash of the base's weights is in the
metadata of adapter_model.safetensors.

Shapes  R = rank, I = inputs of a layer, O = its outputs.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, TaskType, inject_adapter_in_model
from peft.tuners.lora import Linear as AdaptedLinear
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from limbeck.compat import lora_scaling, lora_weights
from limbeck.errors import Note
from limbeck.models.language_model import LanguageModel
from limbeck.models.messages import pairs as messages
from limbeck.models.save import atomic_folder, weights_hash

__all__ = [
    "AdapterFacts",
    "adapter_facts",
    "attach_adapters",
    "body_layers",
    "merge_adapters",
    "merged_weight",
    "save_adapters",
    "without_adapters",
]

ADAPTER = "default"  # peft's name for the only adapter
WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."  # peft's prefix of the tensor names in a file
BASE_HASH = "base_sha256"
# Hidden states with adapter and with merged weights differ by rounding, relative to the largest.
MERGE_TOLERANCE = 1e-4


@dataclass(frozen=True)
class AdapterFacts:
    """Which layers of a student have adapters, and how many weights are trained and frozen."""

    rank: int
    alpha: int
    modules: tuple[str, ...]
    num_trained: int
    num_frozen: int

    def describe(self) -> Note:
        return messages.adapter_facts(
            rank=self.rank,
            num_trained=self.num_trained,
            num_frozen=self.num_frozen,
            share=self.num_trained / self.num_frozen,
            modules=list(self.modules),
        )


def attach_adapters(model: LanguageModel, *, rank: int, alpha: int, seed: int) -> None:
    """Add an adapter to every linear layer of the body and freeze all other weights, in place.

    A depends on `seed` alone, and the global random state is kept; B is 0, so the model still equals its base.
    """
    layers = body_layers(model.module)
    settings = LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        r=rank,
        lora_alpha=alpha,
        target_modules=list(_last_names(layers)),
        fan_in_fan_out=any(isinstance(layer, Conv1D) for layer in layers.values()),
    )
    model.module.requires_grad_(False)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        inject_adapter_in_model(settings, model.module, adapter_name=ADAPTER)
    assert _adapted(model.module).keys() == layers.keys(), "every layer of the body has an adapter, and no other layer"
    model.module.eval()


def body_layers(module: PreTrainedModel) -> dict[str, nn.Module]:
    """Every linear layer of a model without adapters by its name, except the output head."""
    head = module.get_output_embeddings()
    return {
        name: layer
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Linear | Conv1D) and layer is not head
    }


def adapter_facts(model: LanguageModel) -> AdapterFacts | None:
    """The facts about the adapters of a model, None if it has none."""
    layers = _adapted(model.module)
    if not layers:
        return None
    settings = _settings(model.module)
    num_trained = sum(matrix.numel() for matrix in _tensors(model.module).values())
    num_frozen = model.num_parameters - num_trained
    return AdapterFacts(settings.r, settings.lora_alpha, _last_names(layers), num_trained, num_frozen)


def merged_weight(linear: nn.Module) -> Tensor:
    """The weight of a linear layer with its adapter merged, in the layer's own dtype and shape, without gradient.

    For a layer with an adapter it is W + (alpha / rank)·B·A, computed in float32 or wider; for a plain layer, W itself.
    """
    if not isinstance(linear, AdaptedLinear):
        return linear.get_parameter("weight").detach()
    weight = linear.get_base_layer().get_parameter("weight").detach()
    wide = torch.promote_types(weight.dtype, torch.float32)
    a_RI, b_OR = (side.detach().to(wide) for side in lora_weights(linear, ADAPTER).values())
    # GPT-2 keeps its weights as [I, O], all others as [O, I]
    left, right = (a_RI.T, b_OR.T) if linear.fan_in_fan_out else (b_OR, a_RI)
    return torch.addmm(weight.to(wide), left, right, alpha=lora_scaling(linear, ADAPTER)).to(weight.dtype)


def without_adapters(model: LanguageModel) -> LanguageModel:
    """The base model as a second model that shares every weight with this one; nothing is copied."""
    if not _adapted(model.module):
        return model
    memo: dict[int, object] = {id(tensor): tensor for tensor in (*model.module.parameters(), *model.module.buffers())}
    module = copy.deepcopy(model.module, memo)
    _remove_adapters(module)
    return replace(model, module=module)


@torch.no_grad()
def merge_adapters(model: LanguageModel) -> None:
    """Merge every adapter into the weight of its layer, in place and layer by layer; the result has no adapters.

    Models from `without_adapters` keep the base's weights. Raises ModelError if merging changes the hidden states by
    more than rounding.
    """
    before_NH, _ = model.on_few_tokens()
    for layer in _adapted(model.module).values():
        layer.get_base_layer().weight = nn.Parameter(merged_weight(layer), requires_grad=False)
    _remove_adapters(model.module)
    merged_NH, _ = model.on_few_tokens()
    gap = ((merged_NH - before_NH).abs().max() / before_NH.abs().max()).item()
    if not gap <= MERGE_TOLERANCE:
        raise messages.merge_differs(model=model.name, gap=gap)


def save_adapters(model: LanguageModel, folder: Path) -> None:
    """Save the adapters in peft's format, with the hash of the base's weights."""
    path, settings = model.ref.path, copy.copy(_settings(model.module))
    settings.base_model_name_or_path = model.ref.hub_id if path is None else str(path.resolve())
    settings.revision = model.ref.revision
    settings.inference_mode = True
    tensors = {name: tensor.detach().contiguous() for name, tensor in _tensors(model.module).items()}
    about = {"format": "pt", BASE_HASH: weights_hash(without_adapters(model).module)}
    with atomic_folder(folder) as partial:
        settings.save_pretrained(str(partial))
        save_file(tensors, partial / WEIGHTS, metadata=about)


def _settings(module: PreTrainedModel) -> LoraConfig:
    """The peft settings of the adapters."""
    settings: Any = module.peft_config
    return settings[ADAPTER]


def _last_names(layers: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({name.rpartition(".")[2] for name in layers}))


def _adapted(module: nn.Module) -> dict[str, AdaptedLinear]:
    return {name: layer for name, layer in module.named_modules() if isinstance(layer, AdaptedLinear)}


def _tensors(module: nn.Module) -> dict[str, nn.Parameter]:
    """The weights of all adapters, by their names in peft's files."""
    return {
        f"{PREFIX}{name}.{side}.weight": matrix
        for name, layer in _adapted(module).items()
        for side, matrix in lora_weights(layer, ADAPTER).items()
    }


def _remove_adapters(module: PreTrainedModel) -> None:
    """Replace the layers with adapters by the plain layers, in place."""
    for name, layer in _adapted(module).items():
        module.set_submodule(name, layer.get_base_layer())
    del module.peft_config
