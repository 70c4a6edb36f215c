"""One way to compute the loss, in a process of its own: loss.py says when. Runs in either environment.

Axes: N tokens, V vocabulary, H hidden.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import torch
from link import Link, forget_peak, status_bytes
from torch import Tensor

# The mean divergence from student hidden states and head, teacher hidden states and head, and beta.
Loss = Callable[[Tensor, Tensor, Tensor, Tensor, float], Tensor]


def naive(hidden_NH: Tensor, weight_VH: Tensor, teacher_NH: Tensor, teacher_VH: Tensor, beta: float) -> Tensor:
    """As the formulas say it, with the published scale."""
    student_NV = (hidden_NH @ weight_VH.T).log_softmax(-1)
    teacher_NV = (teacher_NH @ teacher_VH.T).log_softmax(-1)
    if beta == 1:
        return (student_NV.exp() * (student_NV - teacher_NV)).sum(-1).mean()
    if beta == 0:
        return (teacher_NV.exp() * (teacher_NV - student_NV)).sum(-1).mean()
    mixture_NV = torch.log(beta * teacher_NV.exp() + (1 - beta) * student_NV.exp())
    to_teacher_N = (teacher_NV.exp() * (teacher_NV - mixture_NV)).sum(-1)
    to_student_N = (student_NV.exp() * (student_NV - mixture_NV)).sum(-1)
    return (beta * to_teacher_N + (1 - beta) * to_student_N).mean()


def fused() -> Loss:
    from limbeck.objectives.divergence import Objective
    from limbeck.objectives.fused import Head, fused_divergence

    def loss(hidden_NH: Tensor, weight_VH: Tensor, teacher_NH: Tensor, teacher_VH: Tensor, beta: float) -> Tensor:
        student, teacher = (Head(weight, None, weight.shape[0]) for weight in (weight_VH, teacher_VH))
        weights_N = torch.full((len(hidden_NH),), 1 / len(hidden_NH))
        objective = Objective(beta=beta, scale="gkd")
        return fused_divergence(hidden_NH, student, teacher_NH, teacher, weights_N, objective)[0]

    return loss


def trl() -> Loss:
    from trl.trainer.distillation_trainer import _chunked_divergence_loss

    def loss(hidden_NH: Tensor, weight_VH: Tensor, teacher_NH: Tensor, teacher_VH: Tensor, beta: float) -> Tensor:
        mask_1N = torch.ones(1, len(hidden_NH), dtype=torch.long)
        return _chunked_divergence_loss(hidden_NH[None], teacher_NH[None], weight_VH, teacher_VH, mask_1N, beta)[0]

    return loss


def liger() -> Loss:
    from liger_kernel.chunked_loss import LigerFusedLinearJSDLoss

    def loss(hidden_NH: Tensor, weight_VH: Tensor, teacher_NH: Tensor, teacher_VH: Tensor, beta: float) -> Tensor:
        # its labels only say which tokens count; the hard loss is weighted away
        labels_N = torch.zeros(len(hidden_NH), dtype=torch.long)
        module = LigerFusedLinearJSDLoss(weight_hard_loss=0.0, weight_soft_loss=1.0, beta=beta, compiled=False)
        return module(hidden_NH, weight_VH, teacher_NH, teacher_VH, labels_N)

    return loss


VARIANTS: dict[str, Callable[[], Loss]] = {"naive": lambda: naive, "fused": fused, "trl": trl, "liger": liger}


def main() -> None:
    link = Link()
    spec = json.loads(sys.argv[1])
    torch.set_float32_matmul_precision(spec["precision"])
    loss_of = VARIANTS[spec["variant"]]()
    generator = torch.Generator().manual_seed(0)

    def numbers(rows: int, scale: float) -> Tensor:
        return torch.randn(rows, spec["hidden"], generator=generator) * scale

    hidden_NH, teacher_NH = numbers(spec["tokens"], 1.0).requires_grad_(), numbers(spec["tokens"], 1.0)
    weight_VH, teacher_VH = numbers(spec["vocabulary"], 0.1).requires_grad_(), numbers(spec["vocabulary"], 0.1)
    link.say(threads=torch.get_num_threads())
    while (message := link.wait()) is not None:
        hidden_NH.grad = weight_VH.grad = None
        before = forget_peak()
        started = time.perf_counter()
        loss = loss_of(hidden_NH, weight_VH, teacher_NH, teacher_VH, message["beta"])
        loss.backward()
        step_s = time.perf_counter() - started
        assert weight_VH.grad is not None
        link.say(
            step_s=step_s,
            extra_bytes=status_bytes("VmHWM") - before,
            loss=loss.item(),
            gradient_norm=weight_VH.grad.norm().item(),
        )


if __name__ == "__main__":
    main()
