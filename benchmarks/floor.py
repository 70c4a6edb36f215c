"""The least time that a step could take on this machine: its arithmetic at the measured speed of matrix products.

    floor = sum over writing, reading, updating of max(FLOPs / fastest matrix product, bytes / fastest read)

Counted, for P prompt tokens, N new tokens in D decode steps, body and head weights of student (s) and teacher (t), and
b bytes a weight (4 in float32, 2 in bf16):

    writing    2·body_s·(P + N) + 2·head_s·N FLOPs            D·(body_s + head_s)·b bytes: all weights each decode step
    reading    2·body_t·(P + N) + 2·head_t·N
    updating   6·body_s·(P + N) + 6·head_s·N                  8·weights_s·4 bytes: AdamW over float32 weights

Left out, so that it stays a floor: attention scores (2 % at these lengths), norms, softmax, sampling, the key/value
cache, padding, and that small products never reach the speed of large ones. The teacher's head counts as reading here,
though both sides apply it inside the loss, which is updating on the clock.

The speeds are the best of several products and reads on this machine, before anything else is started: float32 with
true float32 products (at whichever of torch's settings is fastest and still right), bf16 as it is.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

# Relative error up to which a product still counts as float32.
FLOAT32_ERROR = 1e-5
BYTES = {"float32": 4, "bf16": 2}


@dataclass(frozen=True)
class Rates:
    """What the machine does at best: FLOPs and bytes read in a second, by number format.

    A step in bf16 may turn its numbers into float32 and multiply those, as libraries do on a CPU without units for
    bf16. So its least time follows the faster of the two.
    """

    float32_flops: float
    bf16_flops: float
    read_bytes: float

    def flops(self, kind: str) -> float:
        return self.float32_flops if kind == "float32" else max(self.float32_flops, self.bf16_flops)


@dataclass(frozen=True)
class Weights:
    """Weights that take part in matrix products: in the layers, and in the output head."""

    body: int
    head: int


@dataclass(frozen=True)
class Work:
    """What one step has to do, whoever does it."""

    prompt_tokens: int
    new_tokens: int
    decode_steps: int


def weights_of(folder: Path) -> Weights:
    """Count the weights of a Llama-shaped model from its configuration."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    hidden = config["hidden_size"]
    head_size = config.get("head_dim") or hidden // config["num_attention_heads"]
    attention = hidden * head_size * 2 * (config["num_attention_heads"] + config["num_key_value_heads"])
    layer = attention + 3 * hidden * config["intermediate_size"]
    return Weights(body=layer * config["num_hidden_layers"], head=hidden * config["vocab_size"])


def floor_s(work: Work, student: Weights, teacher: Weights, rates: Rates, kind: str) -> dict[str, float]:
    """The least seconds of each phase, with products and weights in `kind` (float32 or bf16); see the top."""
    tokens, new = work.prompt_tokens + work.new_tokens, work.new_tokens
    flops = {
        "writing": 2 * (student.body * tokens + student.head * new),
        "reading": 2 * (teacher.body * tokens + teacher.head * new),
        "updating": 6 * (student.body * tokens + student.head * new),
    }
    weights = student.body + student.head
    read = {"writing": work.decode_steps * weights * BYTES[kind], "reading": 0, "updating": 8 * weights * 4}
    return {phase: max(flops[phase] / rates.flops(kind), read[phase] / rates.read_bytes) for phase in flops}


def measure_rates(device: str = "cpu") -> Rates:
    """Time matrix products of a step's shapes and a read of a model's size; takes a few seconds."""
    import torch

    def synchronize() -> None:
        if device.startswith("cuda"):
            torch.cuda.synchronize()

    def best_s(run: Callable[[], object]) -> float:
        times = []
        for _ in range(6):
            synchronize()
            started = time.perf_counter()
            run()
            synchronize()
            times.append(time.perf_counter() - started)
        return min(times)

    def product_flops(dtype: torch.dtype) -> float:
        found = []
        for rows, inner, columns in ((1024, 576, 12_288), (2048, 2048, 2048)):
            left, right = (torch.randn(shape, device=device).to(dtype) for shape in ((rows, inner), (inner, columns)))
            out = torch.empty(rows, columns, device=device, dtype=dtype)
            found.append(2 * rows * inner * columns / best_s(lambda a=left, b=right, o=out: torch.mm(a, b, out=o)))
        return max(found)

    def float32_error() -> float:
        left, right = (torch.randn(512, 512, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
        exact = left.double() @ right.double()
        product = (left.to(device) @ right.to(device)).cpu().double()
        return float((product - exact).norm() / exact.norm())

    before = torch.get_float32_matmul_precision()
    float32 = []
    for precision in ("highest", "high", "medium"):
        torch.set_float32_matmul_precision(precision)
        if float32_error() < FLOAT32_ERROR:
            float32.append(product_flops(torch.float32))
    torch.set_float32_matmul_precision(before)
    numbers = torch.ones(2**26, device=device)
    read_bytes = numbers.nbytes / best_s(numbers.sum)
    return Rates(max(float32), product_flops(torch.bfloat16), read_bytes)
