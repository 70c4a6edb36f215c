"""LoRA: a pair of thin matrices beside every linear layer of a frozen student (Hu et al. 2021), by peft.

    y = x·Wᵀ + (alpha / rank)·x·Aᵀ·Bᵀ      A starts at random and B at 0, so the first step starts at the base itself

All linear layers of the body have one. The output head and the embedding never do: the objective reads the head as a
plain layer, and a tied pair of tables stays one table, with adapters, merged and on disk. There is no dropout, for the
student that trains must be the student that wrote.

An adapter on disk is in peft's own format and knows its base by content: the base's weights hash stands in the metadata
of adapter_model.safetensors.

Shapes  R = rank, I = inputs of a layer, O = its outputs.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from peft import LoraConfig, TaskType, inject_adapter_in_model
from peft.tuners.lora import Linear as AdaptedLinear
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from limbeck.errors import ModelError, Refusal
from limbeck.models.load import LanguageModel
from limbeck.models.save import refuse_non_finite, unfinished, weights_hash

__all__ = [
    "AdapterFacts",
    "adapter_facts",
    "attach_adapters",
    "base_hash",
    "body_layers",
    "load_adapters",
    "merge_adapters",
    "merged_weight",
    "save_adapters",
    "without_adapters",
]

ADAPTER = "default"  # peft's name for the only one
SETTINGS = "adapter_config.json"
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
    model.module.requires_grad_(False)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        inject_adapter_in_model(_settings(layers, rank, alpha), model.module, adapter_name=ADAPTER)
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
    first = next(iter(layers.values()))
    num_trained = sum(matrix.numel() for matrix in _tensors(model.module).values())
    num_frozen = model.num_parameters - num_trained
    return AdapterFacts(first.r[ADAPTER], first.lora_alpha[ADAPTER], _last_names(layers), num_trained, num_frozen)


def merged_weight(linear: nn.Module) -> Tensor:
    """The weight with which a plain layer computes what this one does, in its own dtype, shape and without gradient.

    Takes a plain linear layer, whose weight it is, or one with an adapter: then W + (alpha / rank)·B·A, computed in
    float32 or wider.
    """
    if not isinstance(linear, AdaptedLinear):
        return linear.get_parameter("weight").detach()
    weight = linear.get_base_layer().get_parameter("weight").detach()
    wide = torch.promote_types(weight.dtype, torch.float32)
    a_RI, b_OR = (side.detach().to(wide) for side in _matrices(linear).values())
    # GPT-2 keeps its weights as [I, O], all others as [O, I]
    left, right = (a_RI.T, b_OR.T) if linear.fan_in_fan_out else (b_OR, a_RI)
    return torch.addmm(weight.to(wide), left, right, alpha=linear.scaling[ADAPTER]).to(weight.dtype)


def without_adapters(model: LanguageModel) -> LanguageModel:
    """The base as a model of its own that shares every weight with this one: a second view, no second copy."""
    if not _adapted(model.module):
        return model
    memo: dict[int, object] = {id(tensor): tensor for tensor in (*model.module.parameters(), *model.module.buffers())}
    module = copy.deepcopy(model.module, memo)
    _take_off(module)
    return replace(model, module=module)


def base_hash(model: LanguageModel) -> str:
    """The weights hash of a model as it is without its adapters."""
    return weights_hash(without_adapters(model).module)


@torch.no_grad()
def merge_adapters(model: LanguageModel) -> None:
    """Add every adapter to its layer's weight, in place and layer by layer: then the model is a plain one.

    Views of the base keep the base's weights. Raises ModelError if the merged model computes something else.
    """
    before_TH = _hidden_states(model)
    for layer in _adapted(model.module).values():
        layer.get_base_layer().weight = nn.Parameter(merged_weight(layer), requires_grad=False)
    _take_off(model.module)
    gap = ((_hidden_states(model) - before_TH).abs().max() / before_TH.abs().max()).item()
    if not gap <= MERGE_TOLERANCE:
        raise ModelError(
            "adapter.merge",
            given=f"Merging the adapters of {model.name} changes its hidden states by {gap:.1e} of the largest.",
            needed="The merged model has to answer as the student that was trained.",
            fix="Use the adapter beside its base, and report this architecture.",
        )


# ------------------------------------------------------------------------------------------------------------- on disk


def save_adapters(model: LanguageModel, folder: Path) -> None:
    """Write the adapters as peft does, with the base's hash. Raises Diverged if a weight is not finite."""
    refuse_non_finite(model.module)
    facts = adapter_facts(model)
    assert facts is not None, "there are adapters to save"
    layers = {name: layer.get_base_layer() for name, layer in _adapted(model.module).items()}
    settings = _settings(layers, facts.rank, facts.alpha)
    path = model.ref.path
    settings.base_model_name_or_path = model.ref.text.partition("@")[0] if path is None else str(path.resolve())
    settings.revision = model.ref.revision
    settings.inference_mode = True
    tensors = {name: tensor.detach().contiguous() for name, tensor in _tensors(model.module).items()}
    with unfinished(folder) as beside:
        settings.save_pretrained(str(beside))
        save_file(tensors, beside / WEIGHTS, metadata={"format": "pt", BASE_HASH: base_hash(model)})


def load_adapters(model: LanguageModel, folder: Path) -> None:
    """Attach the adapters that `save_adapters` wrote, in place, to a model with the same content as their base.

    Raises:
        ModelError: the files cannot be read, or hold something else than adapters at the body's linear layers.
        Refusal: the base is another one.
    """
    try:
        settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        rank, alpha, base_name = settings["r"], settings["lora_alpha"], settings["base_model_name_or_path"]
        with safe_open(folder / WEIGHTS, framework="pt") as file:
            trained_on = (file.metadata() or {}).get(BASE_HASH, "unknown")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise _unfit(folder, f"cannot be read: {error}") from error
    own_hash = base_hash(model)
    if trained_on != own_hash:
        raise Refusal(
            "adapter.other-base",
            given=f"The adapter in {folder} was trained on the weights {trained_on[:16]}, and {model.name} has "
            f"{own_hash[:16]}.",
            needed="An adapter is a difference to the very weights that it was trained on; on others of the same "
            "shapes it loads without an error and answers worse.",
            fix=f"Load it on {base_name} as that was, or use the merged model.",
        )
    attach_adapters(model, rank=rank, alpha=alpha, seed=0)
    places = _tensors(model.module)
    shapes, own_shapes = ({name: each.shape for name, each in side.items()} for side in (tensors, places))
    if differing := sorted(name for name in shapes | own_shapes if shapes.get(name) != own_shapes.get(name)):
        raise _unfit(folder, f"and the linear layers of {model.name} differ in {', '.join(differing[:3])}")
    with torch.no_grad():
        for name, place in places.items():
            place.copy_(tensors[name])


def _unfit(folder: Path, what: str) -> ModelError:
    return ModelError(
        "adapter.unfit",
        given=f"The adapter in {folder} {what}.",
        needed="Limbeck reads adapters that it wrote: beside all linear layers of the body, never at embedding or "
        "output head, where a merge would tear tied tables apart.",
        fix="Merge this adapter with the tool that made it, and name the merged model.",
    )


def _settings(layers: Mapping[str, nn.Module], rank: int, alpha: int) -> LoraConfig:
    return LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        r=rank,
        lora_alpha=alpha,
        target_modules=list(_last_names(layers)),
        fan_in_fan_out=any(isinstance(layer, Conv1D) for layer in layers.values()),
    )


def _last_names(layers: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({name.rpartition(".")[2] for name in layers}))


def _adapted(module: nn.Module) -> dict[str, AdaptedLinear]:
    return {name: layer for name, layer in module.named_modules() if isinstance(layer, AdaptedLinear)}


def _tensors(module: nn.Module) -> dict[str, nn.Parameter]:
    """The weights of all adapters under the names that they have in peft's files."""
    return {
        f"{PREFIX}{name}.{side}.weight": matrix
        for name, layer in _adapted(module).items()
        for side, matrix in _matrices(layer).items()
    }


def _matrices(layer: AdaptedLinear) -> dict[str, nn.Parameter]:
    """A [R, I] and B [O, R]."""
    sides = {"lora_A": layer.lora_A, "lora_B": layer.lora_B}
    return {name: side[ADAPTER].get_parameter("weight") for name, side in sides.items()}


def _take_off(module: PreTrainedModel) -> None:
    """Put the plain layers back in the place of those with adapters."""
    for name, layer in _adapted(module).items():
        module.set_submodule(name, layer.get_base_layer())
    del module.peft_config


def _hidden_states(model: LanguageModel) -> Tensor:
    """Hidden states [T, H] of a few tokens."""
    ids_BT = torch.arange(1, 9, device=model.device).remainder(model.embedding_rows).unsqueeze(0)
    return model.hidden(ids_BT, torch.arange(8, device=model.device).unsqueeze(0), torch.ones_like(ids_BT))[0]
