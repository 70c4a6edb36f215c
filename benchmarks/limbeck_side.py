"""Limbeck's side of vs_trl.py and scaling.py: one step of the on-policy route at each word from the parent.

Nothing is set up here that a run would not set up: the machine, the models and the state come from where a run gets
them. Only where an answer must have an exact length the stop tokens are taken away, and where both sides are to read
the same answers those stand in for the engine.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from link import Link, fingerprint, page_faults, status_bytes
from safetensors.torch import save_file

from limbeck.machine import tune_process, use_machine
from limbeck.recipe.recipe import Recipe
from limbeck.rollouts.request import Completion, GenerationRequest
from limbeck.rollouts.sampling import Sampling
from limbeck.routes.on_policy import practice_requests, sampling_of, step
from limbeck.teachers.local import LocalTeacher
from limbeck.training.material import prepare_material
from limbeck.training.setup import load_models, make_state
from limbeck.training.state import TrainState


@dataclass
class StoredAnswers:
    """Stands in for the engine: hands out answers that were written before."""

    answers: Sequence[Sequence[int]]
    pad_id: int

    def generate(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> list[Completion]:
        return [Completion(tuple(ids), (0.0,) * len(ids), cut_off=False) for ids in self.answers]


def recipe_of(spec: dict[str, Any]) -> Recipe:
    """The package's defaults, but for what is being compared."""
    shape = spec["shape"]
    settings = {
        "student": spec["student"],
        "teacher": spec["teacher"],
        "prompts": spec["prompts"],
        "held_out": spec["held_out"],
        "workspace": spec["workspace"],
        "beta": spec["beta"],
        "prompts_per_step": shape["num_prompts"],
        "max_practice_tokens": shape["new_tokens"],
        "learning_rate": spec["learning_rate"],
        "max_grad_norm": spec["max_grad_norm"],
        "warmup_steps": 0,
        "steps": 100_000,
        "seed": spec["seed"],
        "device": spec["device"],
        "precision": spec["precision"],
    }
    return Recipe.model_validate(settings)


def keep_gradient(state: TrainState, path: str) -> None:
    """Save the gradient of the first step as the optimizer finds it; the clipping is far away (see max_grad_norm)."""

    def save(*args: object) -> None:
        gradients = {
            name: weight.grad.float().contiguous()
            for name, weight in state.weights.named.items()
            if weight.grad is not None
        }
        save_file(gradients, path)
        hook.remove()

    hook = state.optimizer.register_step_pre_hook(save)


def main() -> None:
    link = Link()
    spec = json.loads(sys.argv[1])
    recipe = recipe_of(spec)
    tune_process()
    machine = use_machine(recipe.device)
    material = prepare_material(recipe)
    if spec["shape"]["exact"]:
        dialogue = replace(material.dialogue, stop=replace(material.dialogue.stop, ids=()))
        material = replace(material, dialogue=dialogue)
    models = load_models(material, recipe, machine)
    state = make_state(models, material, recipe, lambda phase: None)
    teacher = LocalTeacher(models.teacher)
    engine, prompts = state.engine, material.train.prompts
    if spec["gradient_path"] is not None:
        keep_gradient(state, spec["gradient_path"])
    link.say(versions=machine.libraries, threads=machine.num_threads)
    loaded_bytes = status_bytes("VmHWM") if machine.device == "cpu" else 0
    while (message := link.wait()) is not None:
        first = message["round"] * recipe.prompts_per_step
        chosen = [prompts[(first + number) % len(prompts)] for number in range(recipe.prompts_per_step)]
        if message.get("write"):
            requests = practice_requests(chosen, message["round"], recipe)
            link.say(answers=[answer.ids for answer in engine.generate(requests, sampling_of(recipe))])
            continue
        stored = message.get("answers")
        state.engine = engine if stored is None else StoredAnswers(stored, engine.pad_id)
        faults, started = page_faults(), time.perf_counter()
        record = step(state, teacher, chosen, recipe)
        step_s = time.perf_counter() - started
        state.step += 1
        link.say(
            step_s=step_s,
            seconds={
                "writing": record.generation_s,
                "reading": record.scoring_s,
                "updating": step_s - record.generation_s - record.scoring_s,
            },
            loss=record.loss,
            num_tokens=record.num_completion_tokens,
            longest=record.max_length,
            prompts=fingerprint([prompt.ids for prompt in chosen]),
            prompt_tokens=record.num_prompt_tokens,
            faults=page_faults() - faults,
            peak_bytes=max(loaded_bytes, *record.peak_bytes.values()),
            phase_bytes=record.peak_bytes,
        )


if __name__ == "__main__":
    main()
