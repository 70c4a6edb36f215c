"""The weights that a run changes: float32 always, whatever the student computes with.

    float32      the module's own parameters
    bf16-mixed   float32 masters beside a module in bfloat16: gradients are summed into the masters' float32, the
                 optimizer changes the masters, and the module gets their rounded copies after each step

The module in bfloat16 also is what writes the practice answers, so the student that writes is the student that trains.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from limbeck.models.packed import pack_parameters

__all__ = ["TrainedWeights"]


class TrainedWeights:
    """Trainable parameters by name; `named` is what optimizer, clipping and checkpoints work on."""

    def __init__(self, module: nn.Module, *, mixed: bool) -> None:
        """With `mixed`, all parameters of `module` become bfloat16 in place; buffers (rotation angles) stay."""
        trainable = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
        self._working = trainable if mixed else {}
        self._hooks: list[RemovableHandle] = []
        self.named = trainable
        if not mixed:
            return
        self.named = {name: nn.Parameter(parameter.detach().clone()) for name, parameter in trainable.items()}
        for parameter in module.parameters():
            parameter.data = parameter.data.bfloat16()
        pack_parameters(module)
        for name, parameter in trainable.items():
            hook = parameter.register_post_accumulate_grad_hook(partial(_hand_over, self.named[name]))
            self._hooks.append(hook)

    @torch.no_grad()
    def publish(self) -> None:
        """Round the masters into the module; nothing to do where they are the module's own."""
        for name, parameter in self._working.items():
            parameter.copy_(self.named[name])

    def widen(self) -> None:
        """Give the module the masters themselves, for saving; the run is over."""
        for hook in self._hooks:
            hook.remove()
        for name, parameter in self._working.items():
            parameter.data = self.named[name].data


def _hand_over(master: nn.Parameter, parameter: torch.Tensor) -> None:
    """Move a finished gradient of a micro-batch into the master's sum."""
    assert parameter.grad is not None
    if master.grad is None:
        master.grad = parameter.grad.float()
    else:
        master.grad.add_(parameter.grad)
    parameter.grad = None
