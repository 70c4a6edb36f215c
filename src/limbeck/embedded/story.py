"""The demo, on the models of this folder: baseline check, on-policy distillation, evaluation. No network."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from limbeck.driver import train_run
from limbeck.embedded import FOLDER
from limbeck.embedded.task import write_prompts
from limbeck.evaluation.run_evaluation import evaluate_run, worth_of
from limbeck.recipe.evaluation import EvaluationOptions
from limbeck.recipe.files import load_recipe
from limbeck.runs.evaluations import Evaluation
from limbeck.runs.store import Run

__all__ = ["DemoResult", "examples_to_show", "run_demo"]

NUM_TRAIN = 4000
NUM_HELD_OUT = 300
NUM_SHOWN = 3
NUM_SLOTS = 150

EventListener = Callable[[Mapping[str, object]], None]


@dataclass(frozen=True)
class DemoResult:
    """The run and both evaluations, on the same prompts; the second has student, teacher and distilled student."""

    worth: Evaluation
    after: Evaluation
    run: Run
    seconds: float


def run_demo(
    workspace: Path,
    *,
    seed: int = 0,
    listen: EventListener = lambda event: None,
    watch: Callable[[str], None] = lambda phase: None,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> DemoResult:
    """Baseline check, distillation and evaluation, all on the same held-out prompts.

    Args:
        workspace: where run and evaluations are stored; the prompts are written into its `demo` folder.
        seed: the seed of the run; the models and prompts are always the same.
        listen: called with the run's events and with `verdict` and `result` events of its own.
        watch: called with the phase of a step whenever it changes.
        environment: environment variables with settings (LIMBECK_...).
    """
    started = time.monotonic()
    loaded = load_recipe(_write_files(workspace), [f"seed={seed}", f"workspace={workspace.resolve()}"], environment)
    options = EvaluationOptions(slots=NUM_SLOTS)

    def log(kind: str, **fields: object) -> None:
        listen({"kind": kind, **fields})

    worth = worth_of(loaded, options, log)
    log("verdict", evaluation=worth.name, text=worth.result()["verdict"]["words"][0])
    run = train_run(loaded, listen, watch)
    after = evaluate_run(run, options, log)
    result = after.result()
    log("verdict", evaluation=after.name, text=result["verdict"]["words"][0])
    done = DemoResult(worth, after, run, time.monotonic() - started)
    scores = {model["role"]: model["score"] for model in result["models"]}
    log("result", **scores, gap_recovered=result["gap_recovered"], run=str(run.path), seconds=done.seconds)
    return done


def examples_to_show(after: Evaluation) -> list[dict[str, dict[str, Any]]]:
    """The answers of all models to a few prompts; those come first where distilling turned a wrong answer right."""
    by_key: dict[str, dict[str, dict[str, Any]]] = {}
    for alias in ("student", "distilled", "teacher"):
        for row in after.read_answers(alias):
            by_key.setdefault(row["key"], {})[alias] = row
    return sorted(by_key.values(), key=lambda rows: rows["student"]["grade"] - rows["distilled"]["grade"])[:NUM_SHOWN]


def _write_files(workspace: Path) -> Path:
    """Write the prompts and the recipe of the demo as files that the user can change and run again."""
    folder = workspace / "demo"
    folder.mkdir(parents=True, exist_ok=True)
    write_prompts(folder / "prompts.jsonl", NUM_TRAIN, seed=1)
    write_prompts(folder / "held-out.jsonl", NUM_HELD_OUT, seed=2, split="held-out")
    text = (FOLDER / "recipe.yaml").read_text(encoding="utf-8")
    path = folder / "recipe.yaml"
    path.write_text(text.replace("{demo}", str(FOLDER).replace("'", "''")), encoding="utf-8")
    return path
