"""Limbeck's on-policy step and TRL's, side by side on the same prompts, lengths, objective and number of tokens.

    python benchmarks/vs_trl.py [--shapes 8x64,8x128,32x64,natural] [--sides ...] [--steps 5] [--warmup 1]
                                [--stored] [--save]

Each side is a process of its own that loads its models once (trl_side.py in the peers' environment, limbeck_side.py in
this one) and computes only when told to: A B A B. Every TRL side is measured in a group of its own, with all of
Limbeck's sides beside it, and a ratio is the median over rounds of two steps of one round, so that a machine that slows
down slows both.

    trl-plain        float32, no activation checkpointing
    trl-tuned        malloc keeps memory, float32 matrix products at "medium" (a CPU with AMX then rounds to bf16)
    trl-tuned-high   the same at "high", which stays float32 on such a CPU
    trl-bf16-all     as trl-tuned, all weights of both models in bf16, no float32 masters
    limbeck-float32, limbeck-bf16-mixed: the recipe's `precision`; what else the package does at start is its own

A shape is PROMPTSxTOKENS: every answer has exactly so many tokens (TRL by min_new_tokens, Limbeck by an engine without
stop tokens). `natural` is the 135M model as its own student, 32 prompts, stop tokens on, at most 128 tokens; `ragged`
is the usual student, 8 prompts, stop tokens on, at most 64. TRL takes 8 prompts at a time (gradient accumulation).

--stored feeds both sides the same answers, written once by Limbeck's engine, so a step is scoring and updating alone;
the loss and the student's gradient of the first step are then compared with those of TRL, which says something where
both sides are float32 (trl-plain, limbeck-float32) and the student is not the teacher (any shape but natural).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from common import Shape, Table, about_here, figure, finish, models_cache, shape_of
from floor import Rates, Work, floor_s, measure_rates, weights_of
from peers import add_option, peers_python
from sides import Side, in_turn

PHASES = ("writing", "reading", "updating")
TRL_SIDES = ("trl-plain", "trl-tuned", "trl-tuned-high", "trl-bf16-all")
LIMBECK_SIDES = ("limbeck-float32", "limbeck-bf16-mixed")
KEEPS_MEMORY = ("trl-tuned", "trl-tuned-high", "trl-bf16-all")
# Sides whose matrix products may be bf16: their floor is that of bf16.
BF16_SIDES = ("trl-tuned", "trl-bf16-all", "limbeck-bf16-mixed")
GRADIENT_FREE_CLIPPING = 1e9
IDLE_LIMIT = 0.02


@dataclass(frozen=True)
class Common:
    """What every side of every group is given."""

    peers: Path
    cache: Path
    folder: Path
    steps: int
    warmup: int
    stored: bool
    device: str

    @property
    def rounds(self) -> int:
        return self.warmup + self.steps


@dataclass
class Group:
    """One TRL side and Limbeck's sides, measured in turn: the answers of each side to each measured round."""

    steps: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    idle_share: float = 0.0
    apart: dict[str, dict[str, float]] = field(default_factory=dict)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)

    def ratio(self, peer: str, side: str) -> float:
        """How many times as long a step of `peer` takes as one of `side`: the median over rounds."""
        pairs = zip(self.steps[peer], self.steps[side], strict=True)
        return statistics.median(theirs["step_s"] / ours["step_s"] for theirs, ours in pairs)


def start_side(name: str, shape: Shape, common: Common) -> Side:
    prompts = common.cache / "prompts"
    spec = {
        "variant": name,
        "precision": name.removeprefix("limbeck-"),
        "shape": asdict(shape),
        "student": str(common.cache / shape.student),
        "teacher": str(common.cache / "teacher"),
        "prompts": str(prompts / "on_policy.jsonl"),
        "held_out": str(prompts / "held_out.jsonl"),
        "workspace": str(common.folder),
        "rounds": common.rounds + 1,  # so that TRL ends when it is told to, not while another side computes
        "beta": 1.0,
        "learning_rate": 1e-6,
        "max_grad_norm": GRADIENT_FREE_CLIPPING if common.stored else 1.0,
        "seed": 0,
        "device": common.device,
        "gradient_path": str(gradient_path(common, name)) if common.stored else None,
    }
    ours = name in LIMBECK_SIDES
    python = Path(sys.executable) if ours else peers_python(common.peers)
    script = "limbeck_side.py" if ours else "trl_side.py"
    log = common.folder / f"{name}.log"
    return Side(name, python, script, spec, log, keep_memory=name in KEEPS_MEMORY)


def gradient_path(common: Common, name: str) -> Path:
    return common.folder / f"{name}-gradient.safetensors"


def measure_group(sides: Sequence[Side], answers: Sequence[Any], common: Common) -> Group:
    """All rounds of one group; the first ones warm up. Refuses sides that were not given the same work."""
    group = Group({side.name: [] for side in sides}, versions={side.name: side.about["versions"] for side in sides})
    for number in range(common.rounds):
        said, idle_share = in_turn(sides, {"round": number, "answers": answers[number] if answers else None})
        prompts = {reply["prompts"] for reply in said.values()}
        if len(prompts) != 1:
            raise SystemExit(f"the sides read other prompts in round {number}: {sorted(prompts)}")
        if common.stored and number == 0:
            group.apart = apart(said, common)
        if number >= common.warmup:
            group.idle_share = max(group.idle_share, idle_share)
            for name, reply in said.items():
                group.steps[name].append(reply)
        print(f"  round {number}: {shown(said)}", file=sys.stderr, flush=True)
    return group


def shown(said: Mapping[str, dict[str, Any]]) -> str:
    return ", ".join(f"{name} {reply['step_s']:.2f} s" for name, reply in said.items())


def apart(said: Mapping[str, dict[str, Any]], common: Common) -> dict[str, dict[str, float]]:
    """How far each of Limbeck's sides is from TRL's in loss (relative) and gradient (norm-relative)."""
    import torch
    from safetensors.torch import load_file

    (peer,) = (name for name in said if name in TRL_SIDES)
    theirs = load_file(gradient_path(common, peer))
    found = {}
    for name in said.keys() - {peer}:
        ours = load_file(gradient_path(common, name))
        if ours.keys() != theirs.keys():
            raise SystemExit(f"{name} and {peer} have gradients of other weights: {ours.keys() ^ theirs.keys()}")
        gap = torch.stack([(ours[key] - theirs[key]).double().norm() for key in theirs]).norm()
        size = torch.stack([theirs[key].double().norm() for key in theirs]).norm()
        loss = said[peer]["loss"]
        found[f"{name} against {peer}"] = {
            "loss": loss,
            "loss_relative": abs(said[name]["loss"] - loss) / abs(loss) if loss else float("nan"),
            "gradient_relative": (gap / size).item(),
        }
    return found


def measure_shape(
    shape: Shape, peers: Sequence[str], ours: Sequence[str], common: Common
) -> Iterator[tuple[str, Group]]:
    """A group for each TRL side (or one of Limbeck's sides alone), which share Limbeck's processes."""
    with ExitStack() as stack:
        own_sides = [stack.enter_context(start_side(name, shape, common)) for name in ours]
        answers: list[Any] = []
        if common.stored:
            answers = [own_sides[0].ask(round=number, write=True)["answers"] for number in range(common.rounds)]
        for peer in peers or ("",):
            print(f"{shape.name}: {peer} {' '.join(ours)}", file=sys.stderr, flush=True)
            with ExitStack() as inner:
                beside = [inner.enter_context(start_side(peer, shape, common))] if peer else []
                yield peer, measure_group([*beside, *own_sides], answers, common)


def work_of(steps: Sequence[dict[str, Any]]) -> Work:
    keys = ("prompt_tokens", "num_tokens", "longest")
    return Work(*(round(statistics.mean(step[key] for step in steps)) for key in keys))


def summary(shape: Shape, groups: Mapping[str, Group], rates: Rates, common: Common) -> dict[str, dict[str, Any]]:
    """Each side's figures over all groups it was in, and its ratio to each TRL side within their group."""
    student, teacher = (weights_of(common.cache / name) for name in (shape.student, "teacher"))
    sides: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(name for group in groups.values() for name in group.steps):
        steps = [step for group in groups.values() for step in group.steps.get(name, [])]
        times = [step["step_s"] for step in steps]
        median_s = statistics.median(times)
        work = work_of(steps)
        floor = floor_s(work, student, teacher, rates, "bf16" if name in BF16_SIDES else "float32")
        if common.stored:
            floor["writing"] = 0.0
        sides[name] = {
            "median_s": median_s,
            "min_s": min(times),
            "max_s": max(times),
            "num_steps": len(steps),
            "work": asdict(work),
            "tokens_per_s": sum(step["num_tokens"] for step in steps) / sum(times),
            "phase_s": {phase: statistics.median(step["seconds"][phase] for step in steps) for phase in PHASES},
            "parts_s": {
                part: statistics.median(step["parts"][part] for step in steps) for part in steps[0].get("parts", {})
            },
            "peak_bytes": max(step["peak_bytes"] for step in steps),
            "page_faults": statistics.median(step["faults"] for step in steps),
            "floor_s": floor,
            "times_floor": median_s / sum(floor.values()),
            "faster_than": {
                peer: group.ratio(peer, name)
                for peer, group in groups.items()
                if peer and name in group.steps and name != peer
            },
        }
    return sides


def table_of(shape: Shape, sides: Mapping[str, dict[str, Any]], stored: bool) -> Table:
    peers = [name for name in sides if name in TRL_SIDES]
    ratio_columns = [f"vs {peer}" for peer in peers]
    columns = ("side", "s/step", "min-max", "tokens/s", *PHASES, "peak GiB", *ratio_columns, "x floor")
    rows = []
    for name, side in sides.items():
        shares = (f"{100 * side['phase_s'][phase] / side['median_s']:.0f} %" for phase in PHASES)
        ratios = (figure(side["faster_than"][peer]) if peer in side["faster_than"] else "" for peer in peers)
        spread = f"{figure(side['min_s'])}-{figure(side['max_s'])}"
        figures = (figure(side["median_s"]), spread, figure(side["tokens_per_s"]))
        rows.append((name, *figures, *shares, figure(side["peak_bytes"] / 2**30), *ratios, figure(side["times_floor"])))
    what = f"{shape.num_prompts} prompts, {'exactly' if shape.exact else 'at most'} {shape.new_tokens} new tokens"
    title = f"{shape.name}: {what}" + (", the same stored answers" if stored else "")
    return Table(title, columns, tuple(rows))


def gaps_table(shape: Shape, groups: Mapping[str, Group]) -> Table:
    rows = [
        (pair, figure(gap["loss"]), f"{gap['loss_relative']:.1e}", f"{gap['gradient_relative']:.1e}")
        for group in groups.values()
        for pair, gap in group.apart.items()
    ]
    columns = ("pair", "TRL's loss", "loss apart (relative)", "gradient apart (norm-relative)")
    return Table(f"{shape.name}: the same answers, first step", columns, tuple(rows))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="8x64,8x128,32x64,natural")
    parser.add_argument("--sides", default=",".join((*TRL_SIDES, *LIMBECK_SIDES)))
    parser.add_argument("--steps", type=int, default=5, help="measured rounds of each group")
    parser.add_argument("--warmup", type=int, default=1, help="rounds before them that do not count")
    parser.add_argument("--stored", action="store_true", help="both read the same answers; compare gradients")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    parser.add_argument("--save", action="store_true", help="keep the figures as the baseline")
    add_option(parser)
    return parser.parse_args()


def main() -> None:
    options = parse()
    names = options.sides.split(",")
    peers = [name for name in TRL_SIDES if name in names]
    ours = [name for name in LIMBECK_SIDES if name in names]
    if unknown := set(names) - {*peers, *ours}:
        raise SystemExit(f"unknown sides {sorted(unknown)}: choose from {', '.join((*TRL_SIDES, *LIMBECK_SIDES))}")
    if options.stored and not ours:
        raise SystemExit("--stored needs one of Limbeck's sides, which writes the answers")
    shapes = [shape_of(text) for text in options.shapes.split(",")]
    if peers:
        peers_python(options.peers)
    rates = measure_rates(options.device)
    tables, results, idle_share, versions = [], {}, 0.0, {}
    with tempfile.TemporaryDirectory() as folder:
        settings = (options.steps, options.warmup, options.stored, options.device)
        common = Common(options.peers, models_cache(), Path(folder), *settings)
        for shape in shapes:
            groups = dict(measure_shape(shape, peers, ours, common))
            sides = summary(shape, groups, rates, common)
            results[shape.name] = {"sides": sides, "apart": [group.apart for group in groups.values() if group.apart]}
            tables.append(table_of(shape, sides, options.stored))
            tables += [gaps_table(shape, groups)] if options.stored and peers and ours else []
            idle_share = max([idle_share, *(group.idle_share for group in groups.values())])
            versions |= {name: found for group in groups.values() for name, found in group.versions.items()}
    if idle_share > IDLE_LIMIT:
        print(f"\nWarning: a waiting side used up to {100 * idle_share:.0f} % of a core.")
    peer_versions = next((found for name, found in versions.items() if name in TRL_SIDES), {})
    about = about_here(peers=peer_versions, rates=asdict(rates), idle_share=idle_share, device=options.device)
    finish("vs_trl_stored" if options.stored else "vs_trl", tables, results, about, save=options.save)


if __name__ == "__main__":
    main()
