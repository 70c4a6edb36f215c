"""A module that belongs to the caller: after use, everything except the values of its weights is restored."""

from __future__ import annotations

import copy
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from limbeck.compat import gradient_hooks, put_gradient_hooks

__all__ = ["lent"]


@contextmanager
def lent(module: PreTrainedModel) -> Generator[None]:
    """Changes of `module` within the block are undone at its end, also after an error, except the values of weights.

    Restored are `forward` functions, adapters, training mode, `requires_grad`, gradients, hooks on parameters,
    configurations, dtypes and devices. Parameters remain the same objects; trained values are rounded to the
    parameter's own dtype.
    """
    parts = {part: _attributes(part) for part in module.modules()}
    configs = {id(config): (config, dict(vars(config))) for part in parts for config in _configs(part)}
    weights = [
        (part, name, weight, _place(weight), weight.requires_grad, weight.grad, gradient_hooks(weight))
        for part in parts
        for name, weight in part._parameters.items()
        if weight is not None
    ]
    try:
        yield
    finally:
        for part, name, weight, *_ in weights:
            now = part._parameters.get(name)
            if now is not None and now is not weight:  # merging an adapter replaced the parameter
                weight.data = now.data
        seen: set[int] = set()
        for _, _, weight, place, requires_grad, grad, hooks in weights:
            if id(weight) in seen:  # tied
                continue
            seen.add(id(weight))
            if _place(weight) != place:
                weight.data = weight.data.to(place[0], place[1], copy=True)
            weight.requires_grad_(requires_grad)
            weight.grad = grad
            put_gradient_hooks(weight, hooks)
        for part, attributes in parts.items():
            vars(part).clear()
            vars(part).update(attributes)
        for config, settings in configs.values():
            vars(config).clear()
            vars(config).update(settings)


def _place(weight: nn.Parameter) -> tuple[torch.device, torch.dtype, int]:
    """Device, dtype and address of a parameter's values, without a reference to that memory."""
    return weight.device, weight.dtype, weight.data.data_ptr()


def _attributes(part: nn.Module) -> dict[str, Any]:
    """The attributes of a module; dictionaries of parameters, buffers, submodules and hooks are copied."""
    return {name: copy.copy(value) if isinstance(value, dict) else value for name, value in vars(part).items()}


def _configs(part: nn.Module) -> Iterator[PretrainedConfig]:
    """The configurations of a module, and those nested in them."""
    todo = [value for value in vars(part).values() if isinstance(value, PretrainedConfig)]
    while todo:
        config = todo.pop()
        yield config
        todo += [value for value in vars(config).values() if isinstance(value, PretrainedConfig)]
