"""A model's weights in one block of memory, in the order in which a forward pass uses them.

Generating a token uses every weight once and computes little with it, so on a CPU memory access takes most of the time.
One block in large pages is several times as fast to access as many blocks in small pages, and adjacent weights can be
used as one matrix (queries, keys and values; gate and up) without a copy.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Sequence

import torch
from torch import Tensor, nn

__all__ = ["joined", "large_buffer", "pack_parameters"]

# A cache line; every weight is aligned to it.
ALIGNMENT_BYTES = 64


def pack_parameters(module: nn.Module) -> None:
    """Move all parameters of one dtype and device into one buffer, in place; values and names do not change."""
    groups: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
    for parameter in module.parameters():  # tied parameters appear once
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
    """An uninitialised buffer; on a CPU under Linux in large pages, if the system provides them."""
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
