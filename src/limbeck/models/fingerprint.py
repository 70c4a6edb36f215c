"""A hash of the content of a model's weights, whatever file, folder or object they came from."""

from __future__ import annotations

import hashlib

import torch
from torch import nn

__all__ = ["weights_hash"]


def weights_hash(module: nn.Module, *, read_as: torch.dtype | None = None) -> str:
    """SHA-256 over names, shapes, dtypes and bytes of all parameters.

    With `read_as`, each weight is first rounded to that dtype and then widened to float32, so the same model in another
    dtype has the same hash if no precision was lost.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(module.named_parameters()):  # tied parameters appear once
        weight = tensor.detach()
        if read_as is not None:
            weight = weight.to(read_as).to(torch.float32)
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
        digest.update(weight.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
