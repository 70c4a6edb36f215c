"""A model's weights in one piece of memory, in the order in which a pass reads them.

Writing a token reads every weight once and computes little with it, so on a CPU the time goes into finding the weights.
One piece in large pages is found several times as fast as many pieces in small ones, and weights that lie side by side
can be read as one matrix (queries, keys and values; gate and up) without a copy.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Sequence

import torch
from torch import Tensor, nn

__all__ = ["joined", "large_buffer", "move_together"]

# A line of the cache; every weight begins at one.
ALIGNMENT_BYTES = 64


def move_together(module: nn.Module) -> None:
    """Move all parameters of one type and device into one buffer, in place; values and names stay as they are."""
    groups: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
    for parameter in module.parameters():  # a tied one comes once
        groups.setdefault((parameter.dtype, parameter.device), []).append(parameter)
    for (dtype, device), parameters in groups.items():
        unit = ALIGNMENT_BYTES // dtype.itemsize
        sizes = [-(-parameter.numel() // unit) * unit for parameter in parameters]
        buffer = large_buffer(sum(sizes), dtype, device)
        for parameter, place in zip(parameters, buffer.split(sizes), strict=True):
            together = place[: parameter.numel()].view(parameter.shape)
            together.copy_(parameter.detach())
            parameter.data = together


def large_buffer(num_elements: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """An uninitialised buffer; on a CPU under Linux in large pages, where the system gives them."""
    if device.type != "cpu" or sys.platform != "linux" or num_elements == 0:
        return torch.empty(num_elements, dtype=dtype, device=device)
    memory = mmap.mmap(-1, num_elements * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype)


def joined(weights: Sequence[Tensor]) -> Tensor:
    """Matrices of one width as one matrix, rows after rows: a view where they lie side by side, else a copy."""
    first = weights[0]
    place, memory = first.data_ptr(), first.untyped_storage().data_ptr()
    for weight in weights:
        apart = weight.data_ptr() != place or weight.untyped_storage().data_ptr() != memory
        if apart or not weight.is_contiguous():  # two pieces of memory may end and begin at one place by chance
            return torch.cat(list(weights))
        place += weight.numel() * weight.element_size()
    num_rows = sum(len(weight) for weight in weights)
    return first.as_strided((num_rows, *first.shape[1:]), first.stride())
