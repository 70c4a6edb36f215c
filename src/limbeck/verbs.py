"""What the command line does, as Python functions of the same names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from limbeck.chat import Conversation
from limbeck.demo.story import DemoResult, run_demo
from limbeck.driver import answer_run, resume_run, stages_at_start, train_stages
from limbeck.machine import use_machine
from limbeck.planning.check import CheckReport, check_recipe, plan_recipe
from limbeck.recipe.files import LoadedRecipe, load_recipe
from limbeck.rollouts.sampling import Sampling
from limbeck.runs.export import ExportForm, export_run
from limbeck.runs.store import Run, find_run

__all__ = ["answers", "chat", "check", "demo", "doctor", "export", "plan", "resume", "train"]

WATCHED = (
    *("HF_HOME", "HF_HUB_OFFLINE", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "MALLOC_CONF"),
    *("LD_PRELOAD", "TERM", "NO_COLOR"),
)

Listener = Callable[[Mapping[str, object]], None]


def train(
    *recipes: str | Path,
    overrides: Sequence[str] = (),
    listen: Listener = lambda event: None,
    watch: Callable[[str], None] = lambda phase: None,
) -> Run:
    """Run a recipe into a new run folder; returns it when the run is done.

    Args:
        recipes: the YAML file; of several, each starts when the one before is done, and the last run is returned.
        overrides: `key=value` settings that win over the file.
        listen: called with every event of the run.
        watch: called with the phase within a step whenever it changes.

    Raises:
        LimbeckError: see the message; `exit_code` is what the command line would exit with.
    """
    return train_stages(_load(recipes, overrides), listen, watch)


def answers(recipe: str | Path, *, overrides: Sequence[str] = (), listen: Listener = lambda event: None) -> Run:
    """Let the recipe's teacher write its answers into a run folder, and train nothing."""
    return answer_run(load_recipe(Path(recipe), list(overrides), os.environ), listen)


def resume(
    run: str | Path,
    *,
    workspace: str | Path = ".",
    listen: Listener = lambda event: None,
    watch: Callable[[str], None] = lambda phase: None,
) -> Run:
    """Go on with a stopped run, by its name or folder, from its last checkpoint."""
    return resume_run(find_run(str(run), Path(workspace)), listen, watch)


def plan(*recipes: str | Path, overrides: Sequence[str] = ()) -> list[CheckReport]:
    """Prompts, pair and memory of each recipe, without reading a weight.

    A stage that goes on from an earlier one, or learns from it, is planned with the model that that one starts from:
    they are of one shape.
    """
    return [plan_recipe(stage) for stage in stages_at_start(_load(recipes, overrides))]


def _load(recipes: Sequence[str | Path], overrides: Sequence[str]) -> list[LoadedRecipe]:
    return [load_recipe(Path(recipe), list(overrides), os.environ) for recipe in recipes]


def check(recipe: str | Path, *, overrides: Sequence[str] = ()) -> CheckReport:
    """The plan, then the weights and the objective certificate on them."""
    return check_recipe(load_recipe(Path(recipe), list(overrides), os.environ).recipe)


def chat(model: str, turns: Iterable[str], *, workspace: str | Path = ".", temperature: float = 0.0) -> list[str]:
    """The model's answers to a conversation's user turns."""
    conversation = Conversation(model, workspace=Path(workspace), sampling=Sampling(temperature=temperature))
    return ["".join(conversation.reply(turn)) for turn in turns]


def demo(
    workspace: str | Path = ".",
    *,
    seed: int = 0,
    listen: Listener = lambda event: None,
    watch: Callable[[str], None] = lambda phase: None,
) -> DemoResult:
    """Distil the pair that ships in the package and measure it before and after."""
    return run_demo(Path(workspace), seed=seed, listen=listen, watch=watch)


def export(
    run: str | Path, to: ExportForm = "merged", output: str | Path | None = None, *, workspace: str | Path = "."
) -> Path:
    """Copy a finished run's model or adapter to a folder, by default NAME-merged or NAME-adapter here."""
    found = find_run(str(run), Path(workspace))
    return export_run(found, to, Path(output if output is not None else f"{found.name}-{to}"))


def doctor() -> tuple[dict[str, object], dict[str, str]]:
    """What the machine gives a run, and the environment variables that have a say.

    Values are given for Limbeck's own settings and for plain paths and switches, never for anything else.
    """
    machine = asdict(use_machine())
    libraries = machine.pop("libraries")
    seen = {name: os.environ[name] for name in sorted(os.environ) if name.startswith("LIMBECK_") or name in WATCHED}
    return {**machine, **libraries}, seen
