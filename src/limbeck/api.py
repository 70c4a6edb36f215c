"""The package's functions: distil two models, take single steps, and what the command line does, for programs.

Wherever a recipe is asked for, the path of a YAML file, a dict of settings or a `limbeck.Recipe` will do; in a dict,
models may be objects of transformers and prompts lists, datasets or frames. No environment variable is read for
settings. In a notebook progress is shown; elsewhere nothing is printed, and `listen` gets what happens.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from limbeck.checked import Check, Demo, as_check, as_demo
from limbeck.driver import generate_answers_run, plan_stages, resume_run, train_stages
from limbeck.embedded.story import run_demo
from limbeck.given import NO_ENVIRONMENT, AnyRecipe, Grader, given_for_run, given_recipe, given_settings
from limbeck.looking import export, find_run, lineage, list_runs, report, show
from limbeck.machine import precision_kept, tune_process, use_machine
from limbeck.measuring import chat, evaluate, mark, worth
from limbeck.planning.check import check_recipe
from limbeck.reporting.notebook import Listener, Watcher, progress
from limbeck.results import MachineReport, Run
from limbeck.runs import store
from limbeck.stepping import MakeOptimizer, Schedule, Steps, take_steps

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
    prompts: str | Path | Iterable[Mapping[str, Any] | str],
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
        student: the model that learns: a model of transformers, or a hub id, folder, file.gguf or run:NAME. An object
            is copied: its first weights are stored in the run, and it stays as it is.
        teacher: the model to learn from, likewise, or openai:MODEL; None on the supervised route. An object is not
            stored: `resume` and `evaluate` in another process load it by the name that it came with if its weights
            are the same, else they ask for it.
        prompts: a path, a list of dicts or of texts, a `datasets.Dataset` or a pandas frame. Fields that are None or
            NaN are absent. Rows are stored in the run.
        tokenizer: of both models, where they are objects; left out, each has that of the name that it came with.
        in_place: train the student object itself. Its parameters stay the same objects, of the same dtype and on the
            same device; after an error, with lora, its weights are those of before.
        workspace: the folder in which runs/ lies.
        name: of the run; left out, a new one like calm-otter-17.
        grader: how answers to held-out prompts are graded: a function of (answer, row) that returns a number from 0 to
            1, or the name of a grader.
        listen: called with every event of the run.
        settings: all other settings of a recipe, such as steps=100 or lora={"rank": 32}; `limbeck recipe explain`
            lists them.

    Raises:
        RecipeError: a setting is unknown or out of range.
        LimbeckError: whatever else stands in the way; what can be known before training is said before it.
    """
    given = {**settings, "student": student, "teacher": teacher, "prompts": prompts, "workspace": workspace}
    given |= {key: value for key, value in (("name", name), ("grader", grader)) if value is not None}
    told, watch = progress(listen, None)
    with given_settings(given, "limbeck.distil", tokenizer=tokenizer, in_place=in_place) as known, precision_kept():
        return Run(train_stages([known.loaded], told, watch).path)


def steps(
    student: str | Path | PreTrainedModel,
    teacher: str | Path | PreTrainedModel | None,
    prompts: str | Path | Iterable[Mapping[str, Any] | str],
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    in_place: bool = False,
    optimizer: MakeOptimizer | None = None,
    schedule: Schedule | None = None,
    **settings: Any,
) -> Steps:
    """The steps of a route without a run folder, for a loop of your own; each is taken when it is asked for.

    Args:
        student: as for `distil`; `steps.student` of what is returned is the model that trains.
        teacher: as for `distil`, but not behind a chat API.
        prompts: as for `distil`. Held-out prompts are set aside and not used.
        tokenizer: as for `distil`.
        in_place: train the student object itself.
        optimizer: makes an optimizer of the trainable parameters; left out, AdamW as the settings say.
        schedule: the learning rate of a step, counted from 0; left out, as the settings say.
        settings: of a recipe.

    Returns:
        An iterator of StepRecord: losses and entropies in nats per token, times in seconds, shares from 0 to 1.

    Raises:
        LimbeckError: as `distil`.
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
    """Run a recipe into a new run folder; returns it when the run is done.

    Args:
        recipes: of several, each starts when the one before is done, and the last run is returned.
        overrides: `key=value` settings that win over a file.
        tokenizer: of the models that are objects.
        listen: called with every event of the run.
        watch: called with the phase within a step whenever it changes.
        environment: variables with settings (LIMBECK_BETA), which win over a file; the command line passes its own.

    Raises:
        LimbeckError: see the message; `exit_code` is what the command line would exit with.
    """
    with ExitStack() as stack:
        loaded = [
            stack.enter_context(given_recipe(each, "limbeck.train", overrides, environment, tokenizer=tokenizer))
            for each in recipes
        ]
        told, seen = progress(listen, watch)
        return Run(train_stages(loaded, told, seen).path)


def answers(
    recipe: AnyRecipe,
    *,
    overrides: Sequence[str] = (),
    tokenizer: PreTrainedTokenizerBase | None = None,
    listen: Listener | None = None,
    environment: Mapping[str, str] = NO_ENVIRONMENT,
) -> Run:
    """Let the recipe's teacher write its answers into a run folder, and train nothing."""
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
    """Go on with a stopped run, by its name or folder, from its last checkpoint.

    Args:
        run: its name, its folder, or what `distil` or `train` returned.
        teacher: the model, where the run began with an object that no name leads to.
        tokenizer: of that teacher; left out, that of its name, or the student's where both have one vocabulary.
        grader: the function, where the run began with one that stands in no module.
        workspace: where runs are looked up by name.
        overrides: `key=value` settings that lie over the run's own recipe: its budget, length or learning rate may
            change, what it learns may not.
        listen: called with every event of the run.
        watch: called with the phase within a step whenever it changes.

    Raises:
        Refusal: the run is done, has no checkpoint, or is no longer what it was; or the teacher is another model.
    """
    found = find_run(run, workspace)
    told, seen = progress(listen, watch)
    with given_for_run(found, teacher=teacher, tokenizer=tokenizer, grader=grader), precision_kept():
        return Run(resume_run(found, told, seen, overrides).path)


def plan(
    *recipes: AnyRecipe,
    overrides: Sequence[str] = (),
    tokenizer: PreTrainedTokenizerBase | None = None,
    environment: Mapping[str, str] = NO_ENVIRONMENT,
) -> list[Check]:
    """Prompts, pair and memory of each recipe, without reading a weight; see `limbeck.driver.plan_stages`."""
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
    """The plan, then the weights and the objective certificate on them."""
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
    """Distil the pair that ships in the package and measure it before and after."""
    told, seen = progress(listen, watch)
    with precision_kept():
        return as_demo(run_demo(Path(workspace), seed=seed, listen=told, watch=seen, environment=environment))


def doctor(environment: Mapping[str, str] | None = None) -> MachineReport:
    """What the machine gives a run, and the environment variables that have a say, by default of this process.

    Values are given for Limbeck's own settings and for plain paths and switches, never for anything else.
    """
    with precision_kept():
        machine = asdict(use_machine())
    libraries, known = machine.pop("libraries"), os.environ if environment is None else environment
    seen = {name: known[name] for name in sorted(known) if name.startswith("LIMBECK_") or name in WATCHED}
    return MachineReport({**machine, **libraries}, seen)
