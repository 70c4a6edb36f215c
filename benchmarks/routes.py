"""Both routes at the same compute, with few and many prompts; and an adapter against all weights.

    python benchmarks/routes.py [--prompts 64,256,1024] [--steps 40] [--save]

The pair that ships with Limbeck. Compute is counted in operations per token: 2 for each weight that reads or writes a
token, 6 for each that learns from it. The on-policy run takes --steps steps; the off-policy run takes as many as the
same operations allow after the teacher has written its answers. Every run is a process of its own, so its peak memory
is its own. Judged by exact answers to the same held-out messages, with the share of the gap to the teacher.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from common import Table, about_here, figure, finish

from limbeck.embedded.task import grade, write_prompts
from limbeck.evaluation.answering.answers import answer_prompts, text_of
from limbeck.evaluation.deciding.statistics import gap_recovered
from limbeck.models.load import load_model
from limbeck.models.resolve import parse_ref
from limbeck.recipe.files import load_recipe
from limbeck.recipe.recipe import Recipe
from limbeck.runs.store import Run
from limbeck.training.generation import engine_for
from limbeck.training.material import Material, prepare_material

ROOT = Path(__file__).parent.parent
RECIPES = ROOT / "recipes" / "demo"
MODELS = ROOT / "src" / "limbeck" / "embedded"
ANSWER_TOKENS = 22
PROMPTS_PER_STEP = 64
LEARNS, READS = 6, 2


def off_policy_steps(student: int, teacher: int, num_prompts: int, steps: int) -> int:
    """As many steps on stored answers as cost what `steps` steps of practice cost, the writing included."""
    practised = steps * PROMPTS_PER_STEP * (READS * student + READS * teacher + LEARNS * student)
    return max(1, round((practised - num_prompts * READS * teacher) / (PROMPTS_PER_STEP * LEARNS * student)))


def train(recipe: str, folder: Path, /, **settings: object) -> tuple[Run, list[dict[str, Any]]]:
    """Run a demo recipe in a process of its own; its run and events."""
    overrides = [f"--set={key}={json.dumps(value)}" for key, value in settings.items()]
    command = [
        sys.executable,
        "-c",
        "from limbeck.cli import main; main()",
        "train",
        str(RECIPES / f"{recipe}.yaml"),
        *overrides,
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    return Run.open(folder / "runs" / str(settings["name"])), events


def right_answers(folder: Path, material: Material, recipe: Recipe) -> tuple[bool, ...]:
    """Which held-out messages a model answers exactly, greedy."""
    ref = parse_ref(str(folder), workspace=Path())
    model = load_model(ref, trainable=False, dtype=torch.float32, device=torch.device("cpu"))
    model = model.with_vocabulary(material.vocabulary.num_shared)
    engine = engine_for(model, material.dialogue, "slots", num_slots=2 * recipe.slots)
    prompts = material.held_out.prompts
    answers = [text_of(engine, done) for done in answer_prompts(engine, prompts, max_new_tokens=96)]
    return tuple(grade(answer, prompt.reference or "") for answer, prompt in zip(answers, prompts, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", default="64,256,1024")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--save", action="store_true", help="keep the figures as the baseline")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        tables, results = compare(Path(name), [int(text) for text in options.prompts.split(",")], options.steps)
    finish("routes", tables, results, about_here(), save=options.save)


def compare(folder: Path, counts: list[int], steps: int) -> tuple[list[Table], dict[str, Any]]:
    held_out = folder / "held-out.jsonl"
    write_prompts(held_out, 200, seed=2, split="held-out")
    write_prompts(folder / "prompts.jsonl", max(counts), seed=1)
    rows = (folder / "prompts.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    shared = {"held_out": str(held_out), "workspace": str(folder), "evaluate_every": 10_000}
    recipe = load_recipe(RECIPES / "on_policy.yaml", [f"prompts={folder / 'prompts.jsonl'}", *_set(shared)], {}).recipe
    material = prepare_material(recipe)
    plain, teacher = (right_answers(MODELS / side, material, recipe) for side in ("student", "teacher"))
    sizes = {side: _num_weights(MODELS / side) for side in ("student", "teacher")}
    results: dict[str, Any] = {}

    def judge(name: str, route: str, **settings: object) -> tuple[str, ...]:
        run, events = train(route, folder, name=name, **shared, **settings)
        after = right_answers(run.model_path, material, recipe)
        found = gap_recovered(plain, teacher, after)
        steps_done = [event for event in events if event["kind"] == "step"]
        peak = max(event["memory_bytes"] for event in steps_done)
        exact = share(after)
        results[name] = {
            "exact": exact.estimate,
            "gap": found and found.estimate,
            "steps": len(steps_done),
            "peak": peak,
        }
        gap = "undefined" if found is None else f"{found.estimate:.0%} ({found.low:.0%} to {found.high:.0%})"
        right = f"{exact.estimate:.1%} ({exact.low:.1%} to {exact.high:.1%})"
        return (f"{len(steps_done)}", right, gap, figure(peak / 2**20))

    by_route = []
    for num in counts:
        prompts = folder / f"prompts-{num}.jsonl"
        prompts.write_text("".join(rows[:num]), encoding="utf-8")
        given = {"prompts": str(prompts)}
        by_route.append((f"{num:,}", "on-policy", *judge(f"on-{num}", "on_policy", steps=steps, **given)))
        other = off_policy_steps(sizes["student"], sizes["teacher"], num, steps)
        by_route.append((f"{num:,}", "off-policy", *judge(f"off-{num}", "off_policy", steps=other, **given)))
    given = {"prompts": str(folder / "prompts.jsonl"), "steps": steps}
    adapter = judge("adapter", "on_policy", learning_rate=0.01, **{"lora.rank": 8, "lora.alpha": 16}, **given)
    share = _num_weights(folder / "runs" / "adapter" / "adapter") / sizes["student"]

    results["adapter"]["trainable_share"] = share
    columns = ("steps", "exact answers of 200", "of the gap", "peak MiB")
    by_weights = (
        ("all", "100 %", *by_route[-2][2:]),
        ("lora, rank 8", f"{100 * share:.1f} %", *adapter),
    )

    title = f"{steps} on-policy steps of {PROMPTS_PER_STEP} answers, and the same compute off-policy"
    return [
        Table(title, ("prompts", "route", *columns), tuple(by_route)),
        Table(f"an adapter and all weights, {max(counts):,} prompts", ("weights", "trainable", *columns), by_weights),
    ], results


def _set(settings: dict[str, object]) -> list[str]:
    return [f"{key}={value}" for key, value in settings.items()]


def _num_weights(folder: Path) -> int:
    from safetensors import safe_open

    total = 0
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="np") as file:
            for name in file.keys():  # noqa: SIM118 - the file is no mapping
                size = 1
                for length in file.get_slice(name).get_shape():
                    size *= length
                total += size
    return total


if __name__ == "__main__":
    main()
