"""Runs of the real pair that `make models` makes."""

from __future__ import annotations

from pathlib import Path

from limbeck.driver import train_run
from limbeck.recipe.files import load_recipe

RECIPES = Path(__file__).parent.parent.parent / "recipes"


def train(name, cache, workspace):
    overrides = [
        f"student={cache / 'student'}",
        f"teacher={cache / 'teacher'}",
        f"prompts={cache / 'prompts' / 'on_policy.jsonl'}",
        f"held_out={cache / 'prompts' / 'held_out.jsonl'}",
        f"workspace={workspace}",
    ]
    return train_run(load_recipe(RECIPES / f"smollm2_{name}.yaml", overrides, {}))


def of_kind(run, kind):
    return [event for event in run.read_events() if event["kind"] == kind]
