"""LoRA: a pair of thin matrices beside every linear layer of a frozen student (Hu et al. 2021), by peft.

    y = x·Wᵀ + (alpha / rank)·x·Aᵀ·Bᵀ      A starts at random and B at 0, so the first step starts at the base itself

All linear layers of the body have one. The output head and the embedding never do: the objective reads the head as a
plain layer, and a tied pair of tables stays one table, with adapters, merged and on disk. There is no dropout, for the
student that trains must be the student that wrote.

An adapter on disk is in peft's own format and tells its base by content: the base's weights hash stands in the metadata
of adapter_model.safetensors.

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
from limbeck.errors import ModelError
from limbeck.models.language_model import LanguageModel
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

ADAPTER = "default"  # peft's name for the only one
WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."  # what peft puts before the names of a file's tensors
BASE_HASH = "base_sha256"
# Adapter and merged weights compute the same by other roundings, relative to the largest hidden state.
MERGE_TOLERANCE = 1e-4


@dataclass(frozen=True)
class AdapterFacts:
    """What trains in a student with adapters, and how much of it that is."""

    rank: int
    alpha: int
    modules: tuple[str, ...]
    num_trained: int
    num_frozen: int

    def describe(self) -> str:
        share = self.num_trained / self.num_frozen
        return (
            f"LoRA of rank {self.rank} trains {self.num_trained:,} weights beside {self.num_frozen:,} frozen ones "
            f"({share:.1%}), at {', '.join(self.modules)}; embedding and output head stay as they are."
        )


def attach_adapters(model: LanguageModel, *, rank: int, alpha: int, seed: int) -> None:
    """Put an adapter beside every linear layer of the body and freeze all other weights, in place.

    A follows from `seed` alone, the global random state is kept; B is 0, so the model still says what its base says.
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
    assert _adapted(model.module).keys() == layers.keys(), "an adapter beside each of them and no other"
    model.module.eval()


def body_layers(module: PreTrainedModel) -> dict[str, nn.Module]:
    """Every linear layer of a model without adapters by its name, all but the output head."""
    head = module.get_output_embeddings()
    return {
        name: layer
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Linear | Conv1D) and layer is not head
    }


def adapter_facts(model: LanguageModel) -> AdapterFacts | None:
    """What `attach_adapters` made of a model, None if it has no adapters."""
    layers = _adapted(model.module)
    if not layers:
        return None
    settings = _settings(model.module)
    num_trained = sum(matrix.numel() for matrix in _tensors(model.module).values())
    num_frozen = model.num_parameters - num_trained
    return AdapterFacts(settings.r, settings.lora_alpha, _last_names(layers), num_trained, num_frozen)


def merged_weight(linear: nn.Module) -> Tensor:
    """The weight with which a plain layer computes what this one does, in its own dtype, shape and without gradient.

    Takes a plain linear layer, whose weight it is, or one with an adapter: then W + (alpha / rank)·B·A, computed in
    float32 or wider.
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
    """The base as a model of its own that shares every weight with this one: a second view, no second copy."""
    if not _adapted(model.module):
        return model
    memo: dict[int, object] = {id(tensor): tensor for tensor in (*model.module.parameters(), *model.module.buffers())}
    module = copy.deepcopy(model.module, memo)
    _remove_adapters(module)
    return replace(model, module=module)


@torch.no_grad()
def merge_adapters(model: LanguageModel) -> None:
    """Add every adapter to its layer's weight, in place and layer by layer: then the model is a plain one.

    Views of the base keep the base's weights. Raises ModelError if the merged model computes something else.
    """
    before_NH, _ = model.on_few_tokens()
    for layer in _adapted(model.module).values():
        layer.get_base_layer().weight = nn.Parameter(merged_weight(layer), requires_grad=False)
    _remove_adapters(model.module)
    merged_NH, _ = model.on_few_tokens()
    gap = ((merged_NH - before_NH).abs().max() / before_NH.abs().max()).item()
    if not gap <= MERGE_TOLERANCE:
        raise ModelError(
            "adapter.merge",
            given=f"Merging the adapters of {model.name} changes its hidden states by {gap:.1e} of the largest.",
            needed="The merged model has to answer as the student that was trained.",
            fix="Use the adapter beside its base, and report this architecture.",
        )


def save_adapters(model: LanguageModel, folder: Path) -> None:
    """Write the adapters as peft does, with the base's hash."""
    path, settings = model.ref.path, copy.copy(_settings(model.module))
    settings.base_model_name_or_path = model.ref.hub_id if path is None else str(path.resolve())
    settings.revision = model.ref.revision
    settings.inference_mode = True
    tensors = {name: tensor.detach().contiguous() for name, tensor in _tensors(model.module).items()}
    about = {"format": "pt", BASE_HASH: weights_hash(without_adapters(model).module)}
    with atomic_folder(folder) as beside:
        settings.save_pretrained(str(beside))
        save_file(tensors, beside / WEIGHTS, metadata=about)


def _settings(module: PreTrainedModel) -> LoraConfig:
    """Those with which the adapters were attached."""
    settings: Any = module.peft_config
    return settings[ADAPTER]


def _last_names(layers: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({name.rpartition(".")[2] for name in layers}))


def _adapted(module: nn.Module) -> dict[str, AdaptedLinear]:
    return {name: layer for name, layer in module.named_modules() if isinstance(layer, AdaptedLinear)}


def _tensors(module: nn.Module) -> dict[str, nn.Parameter]:
    """The weights of all adapters under the names that they have in peft's files."""
    return {
        f"{PREFIX}{name}.{side}.weight": matrix
        for name, layer in _adapted(module).items()
        for side, matrix in lora_weights(layer, ADAPTER).items()
    }


def _remove_adapters(module: PreTrainedModel) -> None:
    """Put the plain layers back in the place of those with adapters."""
    for name, layer in _adapted(module).items():
        module.set_submodule(name, layer.get_base_layer())
    del module.peft_config
