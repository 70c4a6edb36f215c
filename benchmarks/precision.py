"""Does bf16-mixed train as well as float32? The same short run in both, over several seeds, compared on held-out text.

    python benchmarks/precision.py [--seeds 5] [--steps 40] [--prompts 4] [--tokens 24] [--save]

The healed 10-layer student learns on-policy from the 135M model at beta 1. Both runs of a seed see the same prompts in
the same order and draw with the same random numbers. At the end both students are measured in float32 against the
float32 teacher, on the same held-out text that the teacher wrote and on text of their own. The difference is the mean
over seeds of (bf16-mixed - float32) / float32, with the standard error of that mean.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time

import torch
from common import Table, about_here, figure, finish, models_cache

from limbeck.evaluation.answering.answers import answer_prompts
from limbeck.evaluation.answering.text_measures import measure_text
from limbeck.machine import tune_process, use_machine
from limbeck.models.language_model import LanguageModel
from limbeck.recipe.recipe import Recipe
from limbeck.rollouts.sampling import Purpose, Sampling
from limbeck.routes.on_policy import objective_of, step
from limbeck.teachers.local import LocalTeacher
from limbeck.training.batches import PromptOrder
from limbeck.training.material import prepare_material
from limbeck.training.setup import load_models, make_engine, make_state

PRECISIONS = ("float32", "bf16-mixed")
TEXTS = ("on the teacher's text", "on text of its own")


def recipe_of(options: argparse.Namespace, precision: str, seed: int, workspace: str) -> Recipe:
    cache = models_cache()
    return Recipe(
        student=str(cache / "student"),
        teacher=str(cache / "teacher"),
        prompts=str(cache / "prompts" / "on_policy.jsonl"),
        held_out=str(cache / "prompts" / "held_out.jsonl"),
        precision=precision,
        max_practice_tokens=options.tokens,
        steps=options.steps,
        prompts_per_step=options.prompts,
        learning_rate=1e-4,
        warmup_steps=min(5, options.steps - 1),
        seed=seed,
        workspace=workspace,
    )


def train_and_measure(recipe: Recipe) -> tuple[list[float], float]:
    """Held-out divergences at the end, nats per token, on each of TEXTS; and the seconds of a step."""
    tune_process()
    machine = use_machine(recipe.device)
    material = prepare_material(recipe)
    models = load_models(material, recipe, machine)
    state = make_state(models, material, recipe, lambda phase: None)
    teacher = LocalTeacher(models.teacher)
    order = PromptOrder(material.train.prompts, recipe.seed)
    started = time.perf_counter()
    for state.step in range(recipe.steps):
        step(state, teacher, order.of_step(state.step, recipe.prompts_per_step), recipe)
    step_s = (time.perf_counter() - started) / recipe.steps
    state.weights.widen()
    exact = recipe.model_copy(update={"teacher_dtype": "float32"})
    measuring = load_models(material, exact.model_copy(update={"precision": "float32"}), machine)
    return _measure(state.student, measuring.teacher, material, measuring, exact), step_s


def _measure(student: LanguageModel, teacher: LanguageModel, material, models, recipe: Recipe) -> list[float]:
    prompts = sorted(material.held_out.prompts, key=lambda prompt: prompt.content_hash)[:32]
    settings = {"max_new_tokens": recipe.max_practice_tokens, "sampling": Sampling(), "seed": 0}
    by_teacher = make_engine(teacher, models.teacher_generation, material, recipe)
    by_student = make_engine(student, models.student_generation, material, recipe)
    texts = (
        answer_prompts(by_teacher, prompts, purpose=Purpose.TEACHER, **settings),
        answer_prompts(by_student, prompts, **settings),
    )
    return [
        measure_text(
            student,
            LocalTeacher(teacher),
            prompts,
            answers,
            objective_of(recipe),
            max_tokens=recipe.micro_batch_tokens,
            pad_id=material.dialogue.pad_id,
            chunk_tokens=recipe.chunk_tokens,
        ).divergence.estimate
        for answers in texts
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("seeds", 5), ("steps", 40), ("prompts", 4), ("tokens", 24)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    found: list[dict[str, tuple[list[float], float]]] = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(options.seeds):
            runs = {each: train_and_measure(recipe_of(options, each, seed, folder)) for each in PRECISIONS}
            found.append(runs)
            print(f"seed {seed}: {runs}", flush=True)
    rows = []
    for place, text in enumerate(TEXTS):
        pairs = [(runs["float32"][0][place], runs["bf16-mixed"][0][place]) for runs in found]
        shares = [100 * (mixed - full) / full for full, mixed in pairs]
        error = statistics.stdev(shares) / len(shares) ** 0.5 if len(shares) > 1 else float("nan")
        means = [figure(statistics.mean(column)) for column in zip(*pairs, strict=True)]
        rows.append((text, *means, f"{statistics.mean(shares):+.1f} %", f"{error:.1f} %"))
    seconds = [figure(statistics.median(runs[each][1] for runs in found)) for each in PRECISIONS]
    rows.append(("seconds of a step", *seconds, "", ""))
    title = f"Held-out divergence after {options.steps} steps, nats per token, {options.seeds} seeds"
    table = Table(title, ("", *PRECISIONS, "difference", "standard error"), tuple(rows))
    finish("precision", [table], found, about_here(), save=options.save)


if __name__ == "__main__":
    main()
