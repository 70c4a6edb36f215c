"""The commands, in the order in which they are used, with their help."""

from __future__ import annotations

import itertools
import json
import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from limbeck import __version__
from limbeck.cli import messages
from limbeck.cli.options import Json, MaxTokens, Origin, Overrides, RecipeFile, RunName, Workspace
from limbeck.console import Printer, print_json
from limbeck.recipe.evaluation import EvaluationOptions, FailUnder, check_limit

if TYPE_CHECKING:
    from limbeck.runs.evaluations import Evaluation
    from limbeck.runs.store import Run

__all__ = ["app"]

app = App(
    name="limbeck",
    help="Distil a large language model into a small one on your own prompts, and measure whether it worked.",
    version=__version__,
    help_format="plaintext",
    suppress_keyboard_interrupt=False,  # handled in run_cli, which says how to continue
)
app["--help"].sort_key, app["--version"].sort_key = 1001, 1002  # below the commands
recipe_app = App(name="recipe", help="Show recipes, the YAML files of runs, and explain their settings.", sort_key=3)
_ORDER = itertools.chain((1, 2), itertools.count(4))  # the third is `recipe`, an app of its own
_RECIPE_ORDER = itertools.count(1)


@app.command(name="demo", sort_key=next(_ORDER))
def demo_command(
    *,
    workspace: Workspace = Path(),
    seed: Annotated[int, Parameter(help="Random seed of the demo.")] = 0,
    as_json: Json = False,
) -> None:
    """Try it out: baseline check, training and evaluation of a tiny pair of models that ships with Limbeck.

    Needs no network and takes a few minutes.
    """
    from limbeck.embedded.show import introduce_demo, show_demo
    from limbeck.reporting.live import live_view

    if as_json:
        _api().demo(workspace, seed=seed, listen=_print_json, environment=os.environ)
        return
    printer = Printer()
    introduce_demo(printer)
    with live_view(printer) as screen:
        result = _api().demo(workspace, seed=seed, listen=screen.take, watch=screen.phase, environment=os.environ)
    show_demo(printer, result)


@app.command(name="doctor", sort_key=next(_ORDER))
def doctor_command(*, as_json: Json = False) -> None:
    """Show what this machine offers: device, memory, threads, versions, settings from the environment."""
    from limbeck.reporting.check import show_machine

    found = _api().doctor(os.environ)
    if as_json:
        _print_json({"machine": found.machine, "environment": found.environment})
    else:
        show_machine(Printer(), found.machine, found.environment)


app.command(recipe_app)


@recipe_app.command(name="show", sort_key=next(_RECIPE_ORDER))
def recipe_show_command(recipe: RecipeFile, *, overrides: Overrides = (), origin: Origin = False) -> None:
    """Print a recipe with all of its effective settings."""
    from limbeck.recipe.files import effective_recipe_text, load_recipe

    Printer().say_whole(effective_recipe_text(load_recipe(recipe, overrides, os.environ), origin=origin))


@recipe_app.command(name="explain", sort_key=next(_RECIPE_ORDER))
def recipe_explain_command(
    setting: Annotated[str, Parameter(help="Name of a setting, for example beta or sampling.top_p.")] = "",
) -> None:
    """Explain a setting: its meaning, how to choose it, its default and why. Without a name: list all settings."""
    from limbeck.reporting.recipe import show_explanation

    show_explanation(Printer(), setting)


@recipe_app.command(name="schema", sort_key=next(_RECIPE_ORDER))
def recipe_schema_command() -> None:
    """Print the JSON schema of recipes, for editors."""
    from limbeck.recipe.explain import json_schema

    print_json(json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n")


@app.command(name="check", sort_key=next(_ORDER))
def check_command(recipe: RecipeFile, *, overrides: Overrides = ()) -> None:
    """Check a recipe before it runs: rendered prompts, vocabularies, memory, and the objective on your models."""
    from limbeck.planning.check import refuse_failed_objective_check
    from limbeck.reporting.check import show_check

    report = _api().check(recipe, overrides=overrides, environment=os.environ)
    show_check(Printer(), report)
    refuse_failed_objective_check(report)


@app.command(name="worth", sort_key=next(_ORDER))
def worth_command(
    recipe: RecipeFile,
    *,
    options: EvaluationOptions | None = None,
    overrides: Overrides = (),
    fail_under: FailUnder = None,
    as_json: Json = False,
) -> None:
    """Baseline check: is the teacher better than the student on the held-out prompts, so that distilling can help?"""
    found = _api().worth(recipe, options, overrides=overrides, listen=_progress(as_json), environment=os.environ)
    _show_result(found, as_json, fail_under)


@app.command(name="answers", sort_key=next(_ORDER))
def answers_command(recipe: RecipeFile, *, overrides: Overrides = (), as_json: Json = False) -> None:
    """Generate and store the teacher's answers to the prompts, without training."""
    from limbeck.reporting.live import live_view

    if as_json:
        _api().answers(recipe, overrides=overrides, listen=_print_json, environment=os.environ)
        return
    printer = Printer()
    with live_view(printer) as screen:
        run = _api().answers(recipe, overrides=overrides, listen=screen.take, environment=os.environ)
    printer.say(messages.answers_stored(folder=run.path / "answers"))


@app.command(name="train", sort_key=next(_ORDER))
def train_command(
    recipe: RecipeFile,
    *later: Annotated[
        Path, Parameter(help="Recipes of later stages; `student: previous` there continues with the stage before.")
    ],
    overrides: Overrides = (),
    dry_run: Annotated[
        bool,
        Parameter(help="Show prompts, models and memory, and do not train.", negative=(), show_default=False),
    ] = False,
    as_json: Json = False,
) -> None:
    """Train a student with one recipe, or with several stages in order."""
    from limbeck.planning.memory import refuse_if_too_large
    from limbeck.reporting.check import check_as_json, show_check
    from limbeck.reporting.live import live_view

    printer = Printer()
    if dry_run:
        for path, report in zip(
            (recipe, *later), _api().plan(recipe, *later, overrides=overrides, environment=os.environ), strict=True
        ):
            if as_json:
                _print_json(check_as_json(report))
            else:
                show_check(printer, report, path.name)
            refuse_if_too_large(report.memory)
    elif as_json:
        _api().train(recipe, *later, overrides=overrides, listen=_print_json, environment=os.environ)
    else:
        with live_view(printer) as screen:
            run = _api().train(
                recipe, *later, overrides=overrides, listen=screen.take, watch=screen.phase, environment=os.environ
            )
        _show_trained(printer, run)


@app.command(name="resume", sort_key=next(_ORDER))
def resume_command(
    run: RunName, *, overrides: Overrides = (), workspace: Workspace = Path(), as_json: Json = False
) -> None:
    """Continue a stopped run from its last checkpoint."""
    from limbeck.reporting.live import live_view

    if as_json:
        _api().resume(run, workspace=workspace, overrides=overrides, listen=_print_json)
        return
    printer = Printer()
    with live_view(printer) as screen:
        done = _api().resume(run, workspace=workspace, overrides=overrides, listen=screen.take, watch=screen.phase)
    _show_trained(printer, done)


@app.command(name="runs", sort_key=next(_ORDER))
def runs_command(*, workspace: Workspace = Path(), as_json: Json = False) -> None:
    """List the runs of a workspace, newest first."""
    from limbeck.reporting.runs import list_all_runs

    list_all_runs(Printer(), workspace, _print_json if as_json else None)


@app.command(name="show", sort_key=next(_ORDER))
def show_command(run: RunName, *, workspace: Workspace = Path(), as_json: Json = False) -> None:
    """Show a run: its state, its curves, its worst tokens."""
    from limbeck.reporting.runs import show_run
    from limbeck.runs.store import Run

    found = Run.find(workspace, run)
    if as_json:
        for event in found.read_events():
            _print_json(event)
    else:
        show_run(Printer(), found)


@app.command(name="lineage", sort_key=next(_ORDER))
def lineage_command(run: RunName, *, workspace: Workspace = Path()) -> None:
    """Show the origin of a run as a tree: the models, runs and teachers that it was made from."""
    from limbeck.reporting.lineage import show_lineage
    from limbeck.runs.store import Run

    show_lineage(Printer(), Run.find(workspace, run), workspace)


@app.command(name="eval", sort_key=next(_ORDER))
def eval_command(
    *runs_or_models: Annotated[
        str,
        Parameter(
            help="A run; or models, each as a reference or ROLE=MODEL with the role student, teacher or distilled."
        ),
    ],
    prompts: Annotated[Path | None, Parameter(help="File of prompts (default: the run's held-out prompts).")] = None,
    options: EvaluationOptions | None = None,
    workspace: Workspace = Path(),
    fail_under: FailUnder = None,
    as_json: Json = False,
) -> None:
    """Evaluate a run: is the distilled student better than the original student, and how close to the teacher?

    Also compares any models on a file of prompts.
    """
    found = _api().evaluate(
        *runs_or_models, prompts=prompts, workspace=workspace, options=options, listen=_progress(as_json)
    )
    _show_result(found, as_json, fail_under)


@app.command(name="mark", sort_key=next(_ORDER))
def mark_command(
    student: Annotated[
        str, Parameter(help="Run whose student is marked (NAME@STEP for a checkpoint), or a model reference.")
    ],
    teacher: Annotated[
        str | None, Parameter(help="Teacher model that scores the answer (default: the run's teacher).")
    ] = None,
    *,
    prompt: Annotated[str | None, Parameter(help="Prompt for the student, as one user turn.")] = None,
    answer: Annotated[str | None, Parameter(help="Answer to mark (default: the student generates one).")] = None,
    worst: Annotated[
        int | None, Parameter(help="Number of worst answers to show from the run's latest marks (default: 3).")
    ] = None,
    continue_from: Annotated[
        int | None, Parameter(help="Position in the answer from which the teacher generates another ending.")
    ] = None,
    beta: Annotated[
        float | None, Parameter(help="Divergence to show: 0, 0.25, 0.5, 0.75 or 1 (default: nearest to the run's).")
    ] = None,
    max_tokens: MaxTokens = 256,
    workspace: Workspace = Path(),
    as_json: Json = False,
) -> None:
    """Mark an answer token by token: where the student differs from the teacher, and what the teacher prefers there."""
    from limbeck.reporting.marks import marks_as_json, show_marks

    if (teacher, prompt, answer, continue_from) == (None, None, None, None):
        from limbeck.runs.marks import worst_marks  # stored marks are read without torch

        sheet = worst_marks(student, workspace, 3 if worst is None else worst, beta)
    else:
        given = {"prompt": prompt, "answer": answer, "worst": worst, "continue_from": continue_from}
        sheet = _api().mark(student, teacher, **given, max_tokens=max_tokens, workspace=workspace)
    chosen = sheet.beta if beta is None else beta
    if as_json:
        for row in marks_as_json(sheet, chosen):
            _print_json(row)
    else:
        show_marks(Printer(), sheet, chosen)


@app.command(name="report", sort_key=next(_ORDER))
def report_command(
    evaluation: Annotated[str, Parameter(help="Evaluation: its name or folder; or a run, for its newest evaluation.")],
    *,
    output: Annotated[
        Path | None, Parameter(name=["--output", "-o"], help="HTML file to write (default: NAME.html).")
    ] = None,
    workspace: Workspace = Path(),
) -> None:
    """Write an evaluation as one HTML page: verdict, models, slices, all answers side by side, marks."""
    from limbeck.reporting.page import write_page

    Printer().say(messages.report_written(path=write_page(evaluation, workspace, output)))


@app.command(name="chat", sort_key=next(_ORDER))
def chat_command(
    model: Annotated[str, Parameter(help="Model: a hub id, a folder, a .gguf file or run:NAME.")],
    *,
    workspace: Workspace = Path(),
    system: Annotated[str | None, Parameter(help="System message at the beginning.")] = None,
    temperature: Annotated[float, Parameter(help="Sampling temperature; 0 always takes the most likely token.")] = 0.0,
    max_tokens: MaxTokens = 256,
    seed: Annotated[int, Parameter(help="Random seed for sampled answers.")] = 0,
) -> None:
    """Chat with a model. An empty line or Ctrl-D ends the chat."""
    from limbeck.conversation import Conversation
    from limbeck.machine import tune_process
    from limbeck.reporting.chat_view import chat_loop
    from limbeck.rollouts.sampling import Sampling

    sampling = Sampling(temperature=temperature)
    tune_process()
    found = Conversation(model, workspace=workspace, system=system, sampling=sampling, max_tokens=max_tokens, seed=seed)
    chat_loop(found.reply)


@app.command(name="export", sort_key=next(_ORDER))
def export_command(
    run: RunName,
    *,
    to: Annotated[
        Literal["merged", "adapter"],
        Parameter(help="merged: the whole model for transformers; adapter: the adapter for PEFT, if the run has lora."),
    ] = "merged",
    output: Annotated[
        Path | None,
        Parameter(name=["--output", "-o"], help="New folder to write (default: NAME-merged or NAME-adapter)."),
    ] = None,
    workspace: Workspace = Path(),
) -> None:
    """Export the model of a finished run to a folder."""
    path = _api().export(run, to, output, workspace=workspace)
    Printer().say(messages.exported(run=run, path=path))


def _api() -> ModuleType:
    """The package's functions, in a process that is set up for long runs."""
    from limbeck import api

    api.tune_process()
    return api


def _progress(as_json: bool) -> Callable[[Mapping[str, object]], None]:
    printer = Printer()
    if as_json:
        return _print_json
    return lambda event: printer.progress(messages.phase_begins(phase=str(event["phase"])))


def _show_trained(printer: Printer, run: Run) -> None:
    """A run that ended, and the command that comes next."""
    from limbeck.reporting.runs import show_run

    show_run(printer, run)
    is_here = run.path.resolve().parents[1] == Path.cwd()
    name = run.name if is_here else str(run.path)
    printer.say_whole(messages.next_command(command=f"limbeck eval {shlex.quote(name)}"))


def _show_result(found: Evaluation, as_json: bool, fail_under: str | None) -> None:
    from limbeck.reporting.evaluation import show_evaluation

    result, is_here = found.result(), found.path.resolve().parents[1] == Path.cwd()
    if as_json:
        _print_json({"event": "result", **result})
    else:
        show_evaluation(Printer(), result, found.name if is_here else str(found.path))
    if fail_under is not None:
        check_limit(fail_under, result)


def _print_json(event: Mapping[str, object]) -> None:
    from limbeck.runs.lines import event_line

    print_json(event_line(event))
