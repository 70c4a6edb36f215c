"""Record the first steps of every route: what a refactoring must leave as it is, bit for bit.

    python scripts/record_trajectories.py             write tests/golden/trajectories.json
    python scripts/record_trajectories.py --check     compare with that file; exit 1 at the first difference

Each route trains the pair of tests/fixtures/format-1 for ten steps on one thread, through its recipe and the run folder
alone. Of each step are kept loss, gradient norm and both held-out measures (as `float.hex`), lengths, and the ids that
the student wrote: practice answers whole, held-out answers as a hash. Numbers are those of one kind of machine; so the
practice answers, and what a teacher wrote, are replayed in float64 (`replay` of tests/pairs.py) for numbers that hold
on every machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import torch

from limbeck import api
from limbeck.recipe.files import load_recipe
from limbeck.runs.marks import read_marks
from limbeck.runs.store import Run
from pairs import replay

ROOT = Path(__file__).parent.parent
PAIR = ROOT / "tests" / "fixtures" / "format-1" / "pair"
GOLDEN = ROOT / "tests" / "golden" / "trajectories.json"

NUM_STEPS = 10
COMMON: dict[str, Any] = {
    **{"student": str(PAIR / "student"), "prompts": str(PAIR / "rows.jsonl")},
    **{"held_out": 6, "steps": NUM_STEPS, "evaluate_every": 1, "prompts_per_step": 4},
    **{"learning_rate": 1e-2, "warmup_steps": 3, "decay_share": 0.4, "weight_decay": 0.1, "max_grad_norm": 0.5},
    **{"micro_batch_tokens": 128, "chunk_tokens": 16, "seed": 3, "name": "golden", "device": "cpu"},
}
TEACHER = {"teacher": str(PAIR / "teacher")}
PRACTICE = {**TEACHER, "max_practice_tokens": 8}
WRITTEN = {"max_teacher_tokens": 48, "teacher_temperature": 1.0}
OFF_POLICY = {**TEACHER, **WRITTEN, "route": "off-policy", "answers_per_prompt": 4}
MIXTURE = {"on_policy_share": 0.5, "warmup": {"steps": 2, "answers_per_prompt": 4}}
OWN = {"own_answers": {"file": str(PAIR / "rows.jsonl"), "weight": 0.3}}
ROUTES: dict[str, dict[str, Any]] = {
    "on-policy, beta 1": PRACTICE,
    "on-policy, beta 0.5": {**PRACTICE, "beta": 0.5, "sampling": {"temperature": 0.8, "top_p": 0.9}},
    "on-policy, lora": {**PRACTICE, "lora": {"rank": 2, "alpha": 4}},
    "on-policy, bf16-mixed": {**PRACTICE, "precision": "bf16-mixed"},
    "on-policy, mixture": {**PRACTICE, **WRITTEN, **MIXTURE, **OWN},
    "off-policy, cross_entropy": OFF_POLICY,
    "off-policy, soft_targets": {**OFF_POLICY, "objective": "soft_targets", "temperature": 2.0},
    "supervised, last_turn": {"route": "supervised"},
    "supervised, all_turns": {"route": "supervised", "train_on": "all_turns"},
}


def kind_of_machine() -> dict[str, object]:
    """What float32 numbers depend on to the last bit."""
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").is_file() else platform.machine()
    names = [line.partition(":")[2].strip() for line in info.splitlines() if line.startswith("model name")]
    flags = {flag for line in info.splitlines() if line.startswith("flags") for flag in line.split()}
    return {
        "cpu": names[0] if names else platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "half units": sorted(flags & {"amx_bf16", "avx512_bf16", "avx512_fp16"}),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        **{name: version(name) for name in ("transformers", "tokenizers", "peft")},
    }


@contextmanager
def exact() -> Iterator[None]:
    """One thread, and float32 products that are not chosen by measuring how fast they are."""
    num_threads, precision, choose = (
        torch.get_num_threads(),
        torch.get_float32_matmul_precision(),
        torch.set_float32_matmul_precision,
    )
    torch.set_num_threads(1)
    choose("highest")
    torch.set_float32_matmul_precision = lambda precision: None
    try:
        yield
    finally:
        torch.set_float32_matmul_precision = choose
        choose(precision)
        torch.set_num_threads(num_threads)


def write_recipe(settings: dict[str, Any], folder: Path) -> Path:
    path = folder / "recipe.yaml"
    text = "".join(f"{name}: {json.dumps(value)}\n" for name, value in {**COMMON, **settings}.items())
    path.write_text(f"{text}workspace: {json.dumps(str(folder))}\n", encoding="utf-8")
    return path


def trajectory(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Train once, and read the run folder."""
    run = api.train(write_recipe(settings, folder))
    events: list[dict[str, Any]] = run.read_events()
    of_kind = {kind: [event for event in events if event["kind"] == kind] for kind in ("step", "evaluation", "done")}
    first, *measured = of_kind["evaluation"]
    steps = [_step(run, *both) for both in zip(of_kind["step"], measured, strict=True)]
    found = {"start": _measures(first), "steps": steps, "weights": of_kind["done"][0]["weights"]}
    if "teacher" in run.answer_sets():
        found["teacher"] = run.read_answers("teacher")
    return found


def _step(run: Run, event: dict[str, Any], measured: dict[str, Any]) -> dict[str, Any]:
    step = event["step"]
    ids = [row["ids"] for row in run.read_answers(f"held-out-step-{step:06d}")]
    found: dict[str, Any] = {
        **{name: float.hex(event[name]) for name in ("loss", "grad_norm", "learning_rate", "mean_length")},
        "num_tokens": event["num_completion_tokens"],
        **_measures(measured),
        "held_out_ids": hashlib.sha256(json.dumps(ids).encode()).hexdigest(),
    }
    marks = run.path / "marks" / f"step-{step:06d}.safetensors"
    if marks.is_file():
        practised = [each for each in read_marks(marks).answers if each.source.startswith("practice on ")]
        found["practised"] = [
            {"source": each.source.removeprefix("practice on "), "ids": each.token_ids.tolist()} for each in practised
        ]
    return found


def _measures(event: dict[str, Any]) -> dict[str, str | None]:
    return {name: event[name] and float.hex(event[name]) for name in ("teacher_text_loss", "student_text_loss")}


def record() -> dict[str, Any]:
    """All routes, as they are on this machine."""
    with exact():
        found: dict[str, Any] = {"machine": kind_of_machine(), "routes": {}}
        for name, settings in ROUTES.items():
            with tempfile.TemporaryDirectory() as folder:
                found["routes"][name] = trajectory(settings, Path(folder))
    return json.loads(json.dumps(found))


def replayed(settings: dict[str, Any], stored: dict[str, Any], folder: Path) -> dict[str, list[str]]:
    """What the stored answers of a route give in float64."""
    recipe = load_recipe(write_recipe(settings, folder), [], {}).recipe
    practised = [step.get("practised", []) for step in stored["steps"]]
    found = replay(recipe, practised, stored.get("teacher"))
    return {name: [float.hex(value) for value in values] for name, values in found.items()}


def first_difference(stored: object, found: object, place: str = "") -> str:
    """Where two recordings differ first, and how; empty where they are the same."""
    if isinstance(stored, dict) and isinstance(found, dict):
        if stored.keys() != found.keys():
            return f"{place}: {sorted(stored.keys() ^ found.keys())} is on one side alone"
        parts = [(f"{place}/{name}", stored[name], found[name]) for name in stored]
    elif isinstance(stored, list) and isinstance(found, list):
        if len(stored) != len(found):
            return f"{place}: {len(stored)} stored, {len(found)} now"
        parts = [(f"{place}/{number}", *both) for number, both in enumerate(zip(stored, found, strict=True))]
    else:
        return "" if stored == found else f"{place}: {stored} stored, {found} now"
    return next(filter(None, (first_difference(old, new, where) for where, old, new in parts)), "")


def main() -> int:
    """Record, or check what is recorded; the exit code."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    found = record()
    if "--check" in sys.argv[1:]:
        stored = json.loads(GOLDEN.read_text(encoding="utf-8"))
        difference = first_difference({name: stored[name] for name in found}, found)
        print(difference or "All routes are as they were, bit for bit.")
        return int(bool(difference))
    found["replays"] = {}
    for name, settings in ROUTES.items():
        with exact(), tempfile.TemporaryDirectory() as folder:
            found["replays"][name] = replayed(settings, found["routes"][name], Path(folder))
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"{GOLDEN} holds {len(ROUTES)} routes.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
