"""The trainable weights of a run: always float32, whatever the student computes in.

    float32      the module's own parameters
    bf16-mixed   float32 master weights and a module in bfloat16: gradients are added up in float32, the optimizer
                 updates the master weights, and the module gets their rounded copies after each step

The module in bfloat16 also generates the practice answers, so the student that generates is the student that trains.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from limbeck.models.arena import move_together

__all__ = ["TrainedWeights"]


class TrainedWeights:
    """Trainable parameters by name. `named` are the float32 weights for optimizer, clipping and checkpoints."""

    def __init__(self, module: nn.Module, *, mixed: bool) -> None:
        """With `mixed`, all parameters of `module` become bfloat16 in place; buffers (rotation angles) do not."""
        trainable = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
        self._working = trainable if mixed else {}
        self._hooks: list[RemovableHandle] = []
        self.named = trainable
        if not mixed:
            return
        self.named = {name: nn.Parameter(parameter.detach().clone()) for name, parameter in trainable.items()}
        for parameter in module.parameters():
            parameter.data = parameter.data.bfloat16()
        move_together(module)
        for name, parameter in trainable.items():
            hook = parameter.register_post_accumulate_grad_hook(partial(_copy_gradient, self.named[name]))
            self._hooks.append(hook)

    @torch.no_grad()
    def publish(self) -> None:
        """Copy the rounded master weights into the module; does nothing without master weights."""
        for name, parameter in self._working.items():
            parameter.copy_(self.named[name])

    def widen(self) -> None:
        """Make the master weights the module's parameters, for saving after the last step."""
        for hook in self._hooks:
            hook.remove()
        for name, parameter in self._working.items():
            parameter.data = self.named[name].data


def _copy_gradient(master: nn.Parameter, parameter: torch.Tensor) -> None:
    """Add the gradient of a micro-batch to that of the master weight, and delete it."""
    assert parameter.grad is not None
    if master.grad is None:
        master.grad = parameter.grad.float()
    else:
        master.grad.add_(parameter.grad)
    parameter.grad = None
