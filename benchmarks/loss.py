"""The fused objective against the naive one: logits of all tokens, autograd through softmax and sum.

    python benchmarks/loss.py [--tokens 512] [--vocabulary 49152] [--hidden 576] [--rounds 5]

Both run in turn in one process, so that their ratio does not depend on what else the machine does. Prints a table for
people and one JSON line last.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from limbeck.machine import probe_machine
from limbeck.objectives.divergence import Objective
from limbeck.objectives.fused import Head, fused_divergence


def naive(hidden_NH: Tensor, weight_VH: Tensor, teacher_NH: Tensor, teacher_VH: Tensor, beta: float) -> Tensor:
    """The mean divergence as the formulas say it, with the published scale."""
    student_NV = (hidden_NH @ weight_VH.T).log_softmax(-1)
    teacher_NV = (teacher_NH @ teacher_VH.T).log_softmax(-1)
    if beta == 1:
        return (student_NV.exp() * (student_NV - teacher_NV)).sum(-1).mean()
    mixture_NV = torch.log(beta * teacher_NV.exp() + (1 - beta) * student_NV.exp())
    to_teacher_N = (teacher_NV.exp() * (teacher_NV - mixture_NV)).sum(-1)
    to_student_N = (student_NV.exp() * (student_NV - mixture_NV)).sum(-1)
    return (beta * to_teacher_N + (1 - beta) * to_student_N).mean()


def timed(run: Callable[[], Tensor]) -> float:
    started = time.perf_counter()
    run().backward()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("tokens", 512), ("vocabulary", 49_152), ("hidden", 576), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    sizes = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    hidden_NH = torch.randn(sizes.tokens, sizes.hidden, generator=generator).requires_grad_()
    teacher_NH = torch.randn(sizes.tokens, sizes.hidden, generator=generator)
    weight_VH = (torch.randn(sizes.vocabulary, sizes.hidden, generator=generator) * 0.1).requires_grad_()
    teacher_VH = torch.randn(sizes.vocabulary, sizes.hidden, generator=generator) * 0.1
    weights_N = torch.full((sizes.tokens,), 1 / sizes.tokens)
    heads = [Head(weight, None, sizes.vocabulary) for weight in (weight_VH, teacher_VH)]
    results = {}
    for beta in (1.0, 0.5):
        objective = Objective(beta=beta, scale="gkd")
        runs = {
            "naive": lambda beta=beta: naive(hidden_NH, weight_VH, teacher_NH, teacher_VH, beta),
            "fused": lambda objective=objective: fused_divergence(
                hidden_NH, heads[0], teacher_NH, heads[1], weights_N, objective
            )[0],
        }
        seconds = {name: [] for name in runs}
        for _ in range(sizes.rounds + 1):
            for name, run in runs.items():
                seconds[name].append(timed(run))
        medians = {name: statistics.median(values[1:]) for name, values in seconds.items()}
        results[f"beta {beta}"] = {**medians, "ratio": medians["naive"] / medians["fused"]}
        print(f"beta {beta}: naive {medians['naive']:.3f} s, fused {medians['fused']:.3f} s")
    machine = probe_machine()
    about = {"machine": machine.device_name, **machine.libraries}
    print(json.dumps({"benchmark": "loss", **vars(sizes), "results": results, **about}))


if __name__ == "__main__":
    main()
