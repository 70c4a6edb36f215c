"""The fused loss against a naive one, TRL's kernel and Liger's: seconds and memory of forward and backward.

    python benchmarks/loss.py [--tokens 1024] [--vocabulary 49152] [--hidden 576] [--betas 1,0.5,0] [--rounds 5]
                              [--precision highest] [--save]

    naive    logits of all tokens, autograd through softmax and sum
    trl      ChunkedDivergenceFunction, what DistillationTrainer minimises, in its torch version on a CPU
    liger    LigerFusedLinearJSDLoss, chunks of 1024 tokens, not compiled (its Triton kernel needs a GPU)
    fused    limbeck.fused_divergence

TRL and Liger come from the peers' environment, so each variant is a process of its own (loss_side.py) that computes
only when told to, in turn, from the same numbers. Memory is the most that a forward and backward pass adds to what was
resident before it, the gradients of hidden states and head included. Loss and gradient norm stand beside, as a check.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from common import Table, about_here, figure, finish
from peers import add_option, peers_python
from sides import Side, in_turn

VARIANTS = ("naive", "trl", "liger", "fused")
PEERS = ("trl", "liger")


def measure(options: argparse.Namespace, folder: Path) -> dict[float, dict[str, dict[str, float]]]:
    """By beta, median seconds, extra bytes and the loss of each variant; the first round at a beta warms up."""
    spec = {key: getattr(options, key) for key in ("tokens", "vocabulary", "hidden", "precision")}
    found = {}
    with ExitStack() as stack:
        sides = []
        for name in options.variants.split(","):
            python = peers_python(options.peers) if name in PEERS else Path(sys.executable)
            log = folder / f"{name}.log"
            sides.append(stack.enter_context(Side(name, python, "loss_side.py", spec | {"variant": name}, log)))
        for beta in map(float, options.betas.split(",")):
            rounds = [in_turn(sides, {"beta": beta})[0] for _ in range(options.rounds + 1)][1:]
            found[beta] = {side.name: summary([said[side.name] for said in rounds]) for side in sides}
    return found


def summary(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    times = [step["step_s"] for step in steps]
    return {
        "median_s": statistics.median(times),
        "min_s": min(times),
        "max_s": max(times),
        "extra_bytes": max(step["extra_bytes"] for step in steps),
        "loss": steps[0]["loss"],
        "gradient_norm": steps[0]["gradient_norm"],
    }


def table_of(beta: float, found: dict[str, dict[str, float]], options: argparse.Namespace) -> Table:
    fused = found.get("fused")
    rows = []
    for name, side in found.items():
        ratios = ("", "")
        if fused is not None:
            ratios = tuple(figure(side[key] / fused[key]) for key in ("median_s", "extra_bytes"))
        spread = f"{figure(side['min_s'])}-{figure(side['max_s'])}"
        numbers = (f"{side['loss']:.6f}", f"{side['gradient_norm']:.6f}")
        extra = figure(side["extra_bytes"] / 2**20)
        rows.append((name, figure(side["median_s"]), spread, extra, *ratios, *numbers))
    columns = ("loss", "s", "min-max", "extra MiB", "s / fused", "MiB / fused", "nats per token", "gradient norm")
    sizes = f"{options.tokens:,} tokens x {options.vocabulary:,} ids x {options.hidden} hidden"
    return Table(f"beta {beta:g}: {sizes}, float32 products at {options.precision!r}", columns, tuple(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("tokens", 1024), ("vocabulary", 49_152), ("hidden", 576), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--betas", default="1,0.5,0")
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--precision", default="highest", help="torch's float32 matmul precision, of every variant")
    parser.add_argument("--save", action="store_true", help="keep the figures as the baseline")
    add_option(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(options, Path(folder))
    tables = [table_of(beta, variants, options) for beta, variants in found.items()]
    results = {f"beta {beta:g}": variants for beta, variants in found.items()}
    finish("loss", tables, results, about_here(), save=options.save)


if __name__ == "__main__":
    main()
