"""The package's functions: distil two models, iterate over training steps, and run each command from a program.

A recipe is the path of a YAML file, a dict of settings or a `limbeck.Recipe`; in a dict, models may be transformers
objects, and prompts may be lists, datasets or data frames. Settings are not read from environment variables unless
`environment` is passed. A notebook shows progress; elsewhere nothing is printed, and `listen` receives every event.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from limbeck.check_results import Check, Demo, as_check, as_demo
from limbeck.driver import generate_answers_run, plan_stages, resume_run, train_stages
from limbeck.embedded.story import run_demo
from limbeck.inputs_in_memory import (
    NO_ENVIRONMENT,
    AnyPrompts,
    AnyRecipe,
    Grader,
    given_for_run,
    given_recipe,
    given_settings,
)
from limbeck.machine import precision_kept, tune_process, use_machine
from limbeck.measurements import chat, evaluate, mark, worth
from limbeck.planning.check import check_recipe
from limbeck.reporting.notebook import Listener, Watcher, progress
from limbeck.results import MachineReport, Run
from limbeck.run_queries import export, find_run, lineage, list_runs, report, show
from limbeck.runs import store
from limbeck.step_iterator import MakeOptimizer, Schedule, Steps, take_steps

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = [
    "answers",
    "chat",
    "check",
    "demo",
    "distil",
    "doctor",
    "evaluate",
    "export",
    "lineage",
    "list_runs",
    "mark",
    "plan",
    "report",
    "resume",
    "show",
    "steps",
    "train",
    "tune_process",
    "worth",
]

WATCHED = (
    *("HF_HOME", "HF_HUB_OFFLINE", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "MALLOC_CONF"),
    *("LD_PRELOAD", "TERM", "NO_COLOR"),
)


def distil(
    student: str | Path | PreTrainedModel,
    teacher: str | Path | PreTrainedModel | None,
    prompts: AnyPrompts,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    in_place: bool = False,
    workspace: str | Path = ".",
    name: str | None = None,
    grader: Grader | str | None = None,
    listen: Listener | None = None,
    **settings: Any,
) -> Run:
    """Train a student to answer like a teacher, into a new run folder.

        run = limbeck.distil(student, teacher, [{"prompt": "..."}, ...], steps=100)
        run.model_path                               # loadable by transformers

    Args:
        student: the model to train: a transformers model, or a hub id, folder, file.gguf or run:NAME. An object is
            copied: its initial weights are saved in the run, and the object does not change.
        teacher: the model to learn from, given like the student, or openai:MODEL; None on the supervised route. An
            object is not saved: in another process, `resume` and `evaluate` load it by the name in its config if
            the weights match, and otherwise require it as an argument.
        prompts: a path, a list of dicts or strings, a `datasets.Dataset` or a pandas frame. Fields that contain None
            or NaN count as absent. The rows are saved in the run.
        tokenizer: the tokenizer of both models, if they are objects; by default each uses that of its config's name.
        in_place: train the student object itself. Its parameters stay the same objects, with the same dtype and
            device; with lora, an error leaves its original weights.
        workspace: the folder that contains runs/.
        name: the run's name; by default a new one such as calm-otter-17.
        grader: how answers to held-out prompts are graded: a function of (answer, row) that returns a number from 0 to
            1, or the name of a grader.
        listen: called with every event of the run.
        settings: any other recipe setting, such as steps=100 or lora={"rank": 32}; `limbeck recipe explain` lists
            them.

    Raises:
        RecipeError: a setting is unknown or out of range.
        LimbeckError: anything else prevents the run. What can be checked before training is checked before it.
    """
    given = {**settings, "student": student, "teacher": teacher, "prompts": prompts, "workspace": workspace}
    given |= {key: value for key, value in (("name", name), ("grader", grader)) if value is not None}
    on_event, on_phase = progress(listen, None)
    with given_settings(given, "limbeck.distil", tokenizer=tokenizer, in_place=in_place) as known, precision_kept():
        return Run(train_stages([known.loaded], on_event, on_phase).path)


def steps(
    student: str | Path | PreTrainedModel,
    teacher: str | Path | PreTrainedModel | None,
    prompts: AnyPrompts,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    in_place: bool = False,
    optimizer: MakeOptimizer | None = None,
    schedule: Schedule | None = None,
    **settings: Any,
) -> Steps:
    """An iterator of training steps for a loop of your own, without a run folder. `next` runs one step.

    Args:
        student: as for `distil`; the result's `student` is the model that is trained.
        teacher: as for `distil`, except for a hosted API.
        prompts: as for `distil`. Held-out prompts are set aside and not used.
        tokenizer: as for `distil`.
        in_place: train the student object itself.
        optimizer: makes an optimizer from the trainable parameters; by default AdamW with the recipe's settings.
        schedule: the learning rate of a step, counted from 0; by default the recipe's.
        settings: recipe settings, as for `distil`.

    Returns:
        An iterator of StepRecord: losses and entropies in nats per token, times in seconds, shares from 0 to 1.

    Raises:
        LimbeckError: as for `distil`.
    """
    given = {**settings, "student": student, "teacher": teacher, "prompts": prompts}
    with given_settings(given, "limbeck.steps", tokenizer=tokenizer, in_place=in_place, lend=False) as known:
        return take_steps(known.recipe, known.models, optimizer=optimizer, schedule=schedule)


def train(
    *recipes: AnyRecipe,
    overrides: Sequence[str] = (),
    tokenizer: PreTrainedTokenizerBase | None = None,
    listen: Listener | None = None,
    watch: Watcher | None = None,
    environment: Mapping[str, str] = NO_ENVIRONMENT,
) -> Run:
    """Train with a recipe in a new run folder, and return the run when it is done.

    Args:
        recipes: one or more recipes; they run one after another, and the last run is returned.
        overrides: `key=value` settings that take precedence over a file.
        tokenizer: the tokenizer of models that are objects.
        listen: called with every event of the run.
        watch: called with the phase of a step whenever it changes.
        environment: variables with settings (LIMBECK_BETA), which take precedence over a file; the command line passes
            its own.

    Raises:
        LimbeckError: the run cannot start or continue; `exit_code` is the exit status of the command line.
    """
    with ExitStack() as stack:
        loaded = [
            stack.enter_context(given_recipe(each, "limbeck.train", overrides, environment, tokenizer=tokenizer))
            for each in recipes
        ]
        on_event, on_phase = progress(listen, watch)
        return Run(train_stages(loaded, on_event, on_phase).path)


def answers(
    recipe: AnyRecipe,
    *,
    overrides: Sequence[str] = (),
    tokenizer: PreTrainedTokenizerBase | None = None,
    listen: Listener | None = None,
    environment: Mapping[str, str] = NO_ENVIRONMENT,
) -> Run:
    """Generate the teacher's answers for a recipe and save them in a run folder, without training."""
    with given_recipe(recipe, "limbeck.answers", overrides, environment, tokenizer=tokenizer) as loaded:
        return Run(generate_answers_run(loaded, progress(listen, None)[0]).path)


def resume(
    run: str | Path | store.Run,
    *,
    teacher: PreTrainedModel | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    grader: Grader | None = None,
    workspace: str | Path = ".",
    overrides: Sequence[str] = (),
    listen: Listener | None = None,
    watch: Watcher | None = None,
) -> Run:
    """Resume a stopped run from its last checkpoint.

    Args:
        run: its name, its folder, or the result of `distil` or `train`.
        teacher: the teacher, if the run started with an object that cannot be loaded by name.
        tokenizer: the teacher's tokenizer; by default that of its name, or the student's if both share a vocabulary.
        grader: the function, if the run started with one that cannot be imported from a module.
        workspace: the folder in which runs are found by name.
        overrides: `key=value` settings that take precedence over the run's recipe. Budget, length and learning rate
            may change; objective and data may not.
        listen: called with every event of the run.
        watch: called with the phase of a step whenever it changes.

    Raises:
        Refusal: the run is done, has no checkpoint or has changed, or the teacher is a different model.
    """
    found = find_run(run, workspace)
    on_event, on_phase = progress(listen, watch)
    with given_for_run(found, teacher=teacher, tokenizer=tokenizer, grader=grader), precision_kept():
        return Run(resume_run(found, on_event, on_phase, overrides).path)


def plan(
    *recipes: AnyRecipe,
    overrides: Sequence[str] = (),
    tokenizer: PreTrainedTokenizerBase | None = None,
    environment: Mapping[str, str] = NO_ENVIRONMENT,
) -> list[Check]:
    """Check the prompts, models and memory of each recipe without loading weights; see `limbeck.driver.plan_stages`."""
    with ExitStack() as stack:
        loaded = [
            stack.enter_context(given_recipe(each, "limbeck.plan", overrides, environment, tokenizer=tokenizer))
            for each in recipes
        ]
        return [as_check(report) for report in plan_stages(loaded)]


def check(
    recipe: AnyRecipe,
    *,
    overrides: Sequence[str] = (),
    tokenizer: PreTrainedTokenizerBase | None = None,
    environment: Mapping[str, str] = NO_ENVIRONMENT,
) -> Check:
    """Check a recipe as `plan` does, then load the weights and run the objective check."""
    with given_recipe(recipe, "limbeck.check", overrides, environment, tokenizer=tokenizer) as loaded:
        return as_check(check_recipe(loaded.recipe))


def demo(
    workspace: str | Path = ".",
    *,
    seed: int = 0,
    listen: Listener | None = None,
    watch: Watcher | None = None,
    environment: Mapping[str, str] = NO_ENVIRONMENT,
) -> Demo:
    """Distil the pair of models in the package, and evaluate it before and after training."""
    on_event, on_phase = progress(listen, watch)
    with precision_kept():
        return as_demo(run_demo(Path(workspace), seed=seed, listen=on_event, watch=on_phase, environment=environment))


def doctor(environment: Mapping[str, str] | None = None) -> MachineReport:
    """The machine's resources and libraries, and the environment variables that affect a run.

    Args:
        environment: the variables to report on; by default those of this process. The report shows Limbeck's own
            settings and known paths and switches, and no other variable.
    """
    with precision_kept():
        machine = asdict(use_machine())
    libraries, known = machine.pop("libraries"), os.environ if environment is None else environment
    seen = {name: known[name] for name in sorted(known) if name.startswith("LIMBECK_") or name in WATCHED}
    return MachineReport({**machine, **libraries}, seen)
