"""Private names of dependencies, each behind one function here, with the versions in which they were seen to work.

`make newest` runs the tests with the newest versions. A name that a newer version lacks raises `Renamed`, which says
which one, so that whoever can do without it reports why it does; nothing is guessed around. Libraries are imported when
a function is called, so that recipes and runs are read without torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ruamel.yaml.nodes import Node, ScalarNode
    from torch import nn
    from transformers import PreTrainedModel

__all__ = [
    "SEEN",
    "Renamed",
    "attention_implementation",
    "choose_attention",
    "construct_scalar",
    "find_file",
    "gradient_hooks",
    "keeps_validation_plain",
    "llama_body",
    "lora_scaling",
    "lora_weights",
    "put_gradient_hooks",
    "recomputable_layers",
    "replace_forward",
    "resolve_scalar",
]

SEEN = {
    "transformers": ("5.24.0",),
    "peft": ("0.21.2",),
    "ruamel.yaml": ("0.19.1",),
    "pydantic": ("2.14.4",),
    "torch": ("2.13.0",),
}
"""Versions with which every function of this file was tested."""

# What a decoder of its own reads of a Llama-shaped model, by place: of the body, of a layer, of its two halves.
_BODY = ("embed_tokens", "layers", "norm", "rotary_emb")
_LAYER = ("input_layernorm", "mlp", "post_attention_layernorm", "self_attn")
_ATTENTION = ("head_dim", "k_proj", "o_proj", "q_proj", "scaling", "v_proj")
_MLP = ("act_fn", "down_proj", "gate_proj", "up_proj")


class Renamed(Exception):
    """An installed library lacks a name that Limbeck reads; `str` says which, and the version."""


def _need(holder: object, names: Sequence[str], library: str) -> None:
    """Raises Renamed for the first of `names` that `holder` lacks."""
    missing = [name for name in names if not hasattr(holder, name)]
    if missing:
        raise Renamed(f"{library} {version(library)} has no {missing[0]} in {type(holder).__name__}")


def llama_body(module: PreTrainedModel, *, normed_heads: bool) -> Any:
    """The body of a Llama-shaped model, after every name that the fast decoder reads of it was found.

    Args:
        module: a model of the families llama, qwen2 or qwen3.
        normed_heads: whether its attention has norms for queries and keys, as qwen3's has.

    Raises:
        Renamed: a name is not there.
    """
    body: Any = module.base_model
    _need(body, _BODY, "transformers")
    for layer in body.layers:
        _need(layer, _LAYER, "transformers")
        _need(layer.self_attn, (*_ATTENTION, *(("q_norm", "k_norm") if normed_heads else ())), "transformers")
        _need(layer.mlp, _MLP, "transformers")
    return body


def attention_implementation(module: PreTrainedModel) -> str | None:
    """The name of the attention function that a model uses, such as "sdpa"."""
    _need(module.config, ("_attn_implementation",), "transformers")
    return module.config._attn_implementation


def recomputable_layers(module: nn.Module) -> list[nn.Module]:
    """The layers that transformers marks as safe to compute again in the backward pass."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [layer for layer in module.modules() if isinstance(layer, GradientCheckpointingLayer)]


def find_file(source: str, name: str, **options: Any) -> str | None:
    """The path of one file of a folder or hub repository, None where there is no such file."""
    from transformers.utils import cached_file

    return cached_file(source, name, _raise_exceptions_for_missing_entries=False, **options)


def replace_forward(module: nn.Module, forward: Callable[..., Any]) -> None:
    """From now on calling `module` runs `forward` in place of its class's own method."""
    module.forward = forward


def lora_weights(layer: nn.Module, adapter: str) -> dict[str, nn.Parameter]:
    """The two matrices of one of peft's LoRA layers under the names that they have in its files: A [R, I], B [O, R]."""
    _need(layer, ("lora_A", "lora_B"), "peft")
    sides: dict[str, Any] = {"lora_A": layer.lora_A, "lora_B": layer.lora_B}
    return {name: side[adapter].get_parameter("weight") for name, side in sides.items()}


def lora_scaling(layer: nn.Module, adapter: str) -> float:
    """The factor alpha / rank of one of peft's LoRA layers."""
    _need(layer, ("scaling",), "peft")
    scaling: Any = layer.scaling
    return scaling[adapter]


def resolve_scalar(text: str) -> ScalarNode:
    """A plain YAML 1.2 scalar, its type found by its spelling."""
    from ruamel.yaml import YAML
    from ruamel.yaml.nodes import ScalarNode

    yaml = YAML(typ="safe", pure=True)
    _need(yaml.resolver, ("resolve",), "ruamel.yaml")
    return ScalarNode(yaml.resolver.resolve(ScalarNode, text, (True, False)), text)


def construct_scalar(node: Node) -> object:
    """The value that a YAML node stands for."""
    from ruamel.yaml import YAML

    yaml = YAML(typ="safe", pure=True)
    _need(yaml.constructor, ("construct_object",), "ruamel.yaml")
    return yaml.constructor.construct_object(node)


def keeps_validation_plain(initialise: Callable[..., None]) -> Callable[..., None]:
    """Marks an `__init__` that pydantic's `model_validate` need not call, as its own is marked (pydantic 2.11 to 2.14).

    Without the mark an error that it raises would be wrapped a second time.
    """
    vars(initialise)["__pydantic_base_init__"] = True
    return initialise


def gradient_hooks(weight: Any) -> Any:
    """What is called when the gradient of a parameter is finished; None where nothing is (torch 2.8 to 2.13)."""
    return weight._post_accumulate_grad_hooks


def put_gradient_hooks(weight: Any, hooks: Any) -> None:
    """Puts back what `gradient_hooks` gave."""
    weight._post_accumulate_grad_hooks = hooks


def choose_attention(module: Any) -> None:
    """Sets the attention that transformers chooses for a model that it loads (transformers 5.24)."""
    module.set_attn_implementation("sdpa" if module._supports_sdpa else "eager")
