"""The command line: thin. Every verb is also a Python function (see `limbeck.api`).

Nothing heavy is imported before a verb needs it, so that `--help`, `recipe`, `runs` and `show` answer at once.
Exit codes: 0 done, 2 usage or recipe, 3 refused by a guard, 4 diverged or below --fail-under, 75 stopped but resumable,
1 anything else.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, CycloptsError, Parameter

from limbeck import __version__
from limbeck.console import Printer, print_json
from limbeck.errors import LimbeckError, UsageError
from limbeck.recipe.evaluating import Evaluating, FailUnder, check_limit

if TYPE_CHECKING:
    from limbeck.runs.evaluations import Evaluation

__all__ = ["app", "main"]

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

app = App(
    name="limbeck",
    help="Distil a large language model into a small one, on your own prompts, and see whether it worked.",
    version=__version__,
    help_format="plaintext",
    suppress_keyboard_interrupt=False,  # what was interrupted is told here, and that it can go on
)
recipe_app = App(name="recipe", help="Look at recipes: the YAML file of one run.", help_format="plaintext")
app.command(recipe_app)

RecipeFile = Annotated[Path, Parameter(help="The YAML file.")]
Overrides = Annotated[
    tuple[str, ...],
    Parameter(name="--set", help="key=value, wins over file and environment; may be given many times.", negative=()),
]
Json = Annotated[bool, Parameter(name="--json", help="One JSON object a line, for programs.", negative=())]
Origin = Annotated[bool, Parameter(help="Say where each value came from.", negative=())]
RunName = Annotated[str, Parameter(help="Its name, or the path of its folder.")]
Workspace = Annotated[Path, Parameter(help="The folder that holds runs/.")]


@app.command
def demo(*, workspace: Workspace = Path(), seed: int = 0, as_json: Json = False) -> None:
    """Distil the tiny pair that ships with Limbeck: worth it, on-policy, did it work. No network; takes minutes."""
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


@app.command
def worth(
    recipe: RecipeFile,
    *,
    options: Evaluating | None = None,
    overrides: Overrides = (),
    fail_under: FailUnder = None,
    as_json: Json = False,
) -> None:
    """Is it worth it? Teacher and student answer the recipe's held-out prompts; the verdict says whether to distil."""

    found = _api().worth(recipe, options, overrides=overrides, listen=_progress(as_json), environment=os.environ)
    _show_result(found, as_json, fail_under)


@app.command(name="eval")
def evaluate(
    *runs_or_models: Annotated[str, Parameter(help="A run; or models, each may be ROLE=MODEL with ROLE teacher, ...")],
    prompts: Annotated[Path | None, Parameter(help="A file of prompts; a run alone has its own.")] = None,
    options: Evaluating | None = None,
    workspace: Workspace = Path(),
    fail_under: FailUnder = None,
    as_json: Json = False,
) -> None:
    """Did it work? A run's student before and after beside its teacher, or any models, on the same prompts."""

    found = _api().evaluate(
        *runs_or_models, prompts=prompts, workspace=workspace, options=options, listen=_progress(as_json)
    )
    _show_result(found, as_json, fail_under)


@app.command
def train(
    recipe: RecipeFile,
    *later: Annotated[Path, Parameter(help="Later stages; `student: previous` goes on from the one before.")],
    overrides: Overrides = (),
    dry_run: Annotated[bool, Parameter(help="Show what the recipes mean, and stop.", negative=())] = False,
    as_json: Json = False,
) -> None:
    """Run a recipe, or several, one after the other."""
    from limbeck.planning.memory import refuse_if_too_large
    from limbeck.reporting.check import check_as_json, show_check
    from limbeck.reporting.live import live_view
    from limbeck.reporting.runs import show_run

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
        show_run(printer, run)


@app.command
def answers(recipe: RecipeFile, *, overrides: Overrides = (), as_json: Json = False) -> None:
    """Let the teacher write its answers to the recipe's prompts, and train nothing."""
    from limbeck.reporting.live import live_view

    if as_json:
        _api().answers(recipe, overrides=overrides, listen=_print_json, environment=os.environ)
        return
    printer = Printer()
    with live_view(printer) as screen:
        run = _api().answers(recipe, overrides=overrides, listen=screen.take, environment=os.environ)
    printer.say(f"They lie in {run.path / 'answers'}: teacher.jsonl is all, targets.jsonl what is fit to learn.")


@app.command
def lineage(run: RunName, *, workspace: Workspace = Path()) -> None:
    """Show what a run came from: the models and runs it started from and learnt from, as a tree."""
    from limbeck.reporting.lineage import show_lineage
    from limbeck.runs.store import Run

    show_lineage(Printer(), Run.find(workspace, run), workspace)


@app.command
def resume(run: RunName, *, overrides: Overrides = (), workspace: Workspace = Path(), as_json: Json = False) -> None:
    """Go on with a stopped run from its last checkpoint."""
    from limbeck.reporting.live import live_view
    from limbeck.reporting.runs import show_run

    if as_json:
        _api().resume(run, workspace=workspace, overrides=overrides, listen=_print_json)
        return
    printer = Printer()
    with live_view(printer) as screen:
        done = _api().resume(run, workspace=workspace, overrides=overrides, listen=screen.take, watch=screen.phase)
    show_run(printer, done)


@app.command
def check(recipe: RecipeFile, *, overrides: Overrides = ()) -> None:
    """Show what a recipe means before it runs: rendered prompts, the pair, the memory, the objective on your models."""
    from limbeck.planning.check import refuse_failed_certificate
    from limbeck.reporting.check import show_check

    report = _api().check(recipe, overrides=overrides, environment=os.environ)
    show_check(Printer(), report)
    refuse_failed_certificate(report)


@recipe_app.command(name="show")
def recipe_show(recipe: RecipeFile, *, overrides: Overrides = (), origin: Origin = False) -> None:
    """Print a recipe as it resolves."""
    from limbeck.recipe.files import load_recipe, show

    Printer().say_whole(show(load_recipe(recipe, overrides, os.environ), origin=origin))


@recipe_app.command(name="explain")
def recipe_explain(setting: str = "") -> None:
    """Say what a setting means, how to choose it, its default and why; without a name: all of them in a line each."""
    from limbeck.reporting.recipe import show_explanation

    show_explanation(Printer(), setting)


@recipe_app.command(name="schema")
def recipe_schema() -> None:
    """Print the JSON schema of recipes, for editors."""
    from limbeck.recipe.explain import json_schema

    print_json(json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n")


@app.command
def runs(*, workspace: Workspace = Path(), as_json: Json = False) -> None:
    """List the runs of a workspace, newest first."""
    from limbeck.reporting.runs import list_all_runs

    list_all_runs(Printer(), workspace, _print_json if as_json else None)


@app.command
def show(run: RunName, *, workspace: Workspace = Path(), as_json: Json = False) -> None:
    """Show a run: how it ended, its curves, its worst tokens."""
    from limbeck.reporting.runs import show_run
    from limbeck.runs.store import Run

    found = Run.find(workspace, run)
    if as_json:
        for event in found.read_events():
            _print_json(event)
    else:
        show_run(Printer(), found)


@app.command
def chat(
    model: str,
    *,
    workspace: Workspace = Path(),
    system: Annotated[str | None, Parameter(help="A system text before the first turn.")] = None,
    temperature: Annotated[float, Parameter(help="0 takes the likeliest token.")] = 0.0,
    max_tokens: int = 256,
    seed: int = 0,
) -> None:
    """Talk to a model: a hub id, a folder, a .gguf file or run:NAME. An empty line or Ctrl-D ends it."""
    from limbeck.conversation import Conversation
    from limbeck.machine import tune_process
    from limbeck.reporting.chat_view import chat_loop
    from limbeck.rollouts.sampling import Sampling

    sampling = Sampling(temperature=temperature)
    tune_process()
    found = Conversation(model, workspace=workspace, system=system, sampling=sampling, max_tokens=max_tokens, seed=seed)
    chat_loop(found.reply)


@app.command
def mark(
    student: Annotated[str, Parameter(help="A run (NAME@STEP for a checkpoint), or a model as for chat.")],
    teacher: Annotated[str | None, Parameter(help="Who marks; a run has its teacher.")] = None,
    *,
    prompt: Annotated[str | None, Parameter(help="What the student is asked.")] = None,
    answer: Annotated[str | None, Parameter(help="The answer to mark; left out, the student writes one.")] = None,
    worst: Annotated[int | None, Parameter(help="So many of the answers that the run marked last; 3.")] = None,
    continue_from: Annotated[
        int | None, Parameter(help="From this position the teacher writes another ending.")
    ] = None,
    beta: Annotated[float | None, Parameter(help="0, 0.25, 0.5, 0.75 or 1; left out, nearest to the run's.")] = None,
    max_tokens: int = 256,
    workspace: Workspace = Path(),
    as_json: Json = False,
) -> None:
    """The red pen: an answer as text, its worst tokens marked, and what the teacher would have said there."""
    from limbeck.reporting.marks import marks_as_json, show_marks

    if (teacher, prompt, answer, continue_from) == (None, None, None, None):
        from limbeck.runs.marks import worst_marks  # stored marks are read without torch

        sheet = worst_marks(student, workspace, 3 if worst is None else worst, beta)
    else:
        asked = {"prompt": prompt, "answer": answer, "worst": worst, "continue_from": continue_from}
        sheet = _api().mark(student, teacher, **asked, max_tokens=max_tokens, workspace=workspace)
    chosen = sheet.beta if beta is None else beta
    if as_json:
        for row in marks_as_json(sheet, chosen):
            _print_json(row)
    else:
        show_marks(Printer(), sheet, chosen)


@app.command
def report(
    evaluation: Annotated[str, Parameter(help="Its name or folder; or a run, for the newest evaluation of it.")],
    *,
    output: Annotated[
        Path | None, Parameter(name=["--output", "-o"], help="The page to write; left out, NAME.html here.")
    ] = None,
    workspace: Workspace = Path(),
) -> None:
    """Write an evaluation as one page for a browser: verdict, models, slices, all rows side by side, marks."""
    from limbeck.reporting.page import write_page

    Printer().say(f"{write_page(evaluation, workspace, output)} holds the report; it needs no network.")


@app.command
def export(
    run: RunName,
    *,
    to: Annotated[
        Literal["merged", "adapter"],
        Parameter(help="The whole model for transformers, or, of a run with lora, the adapter for peft."),
    ] = "merged",
    output: Annotated[
        Path | None, Parameter(name=["--output", "-o"], help="A new folder; left out, NAME-merged or NAME-adapter.")
    ] = None,
    workspace: Workspace = Path(),
) -> None:
    """Copy the result of a finished run to a folder."""

    Printer().say(f"{_api().export(run, to, output, workspace=workspace)} holds the result of {run}.")


@app.command
def doctor(*, as_json: Json = False) -> None:
    """Show what this machine gives a run: device, memory, threads, versions, settings from the environment."""
    from limbeck.reporting.check import show_machine

    found = _api().doctor(os.environ)
    if as_json:
        _print_json({"machine": found.machine, "environment": found.environment})
    else:
        show_machine(Printer(), found.machine, found.environment)


def _api() -> ModuleType:
    """The package's functions, in a process that is set up for long runs; settings come from the environment too."""
    from limbeck import api

    api.tune_process()
    return api


def _progress(as_json: bool) -> Callable[[Mapping[str, object]], None]:
    printer = Printer()
    return _print_json if as_json else lambda event: printer.progress(f"{event['phase']} ...")


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


def _usage_error(error: CycloptsError) -> UsageError:
    """The parser's complaint in our own three parts."""
    return UsageError(
        "cli.usage",
        given=str(error).strip().replace("\n", " "),
        needed="The command line has to say what to do.",
        fix="limbeck --help, or limbeck COMMAND --help, shows what there is.",
    )


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    sys.exit(run_cli(sys.argv[1:] if arguments is None else arguments))


def run_cli(arguments: list[str]) -> int:
    """Run the command line; returns the exit code."""
    printer = Printer()
    try:
        app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except LimbeckError as error:
        printer.fail(error)
        return error.exit_code
    except CycloptsError as error:
        printer.fail(_usage_error(error))
        return EXIT_USAGE
    except KeyboardInterrupt:
        printer.warn("Interrupted. What was computed is kept: the same command goes on (a run: limbeck resume NAME).")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # the reader of our output went away, for example `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        needed, fix = (
            "Limbeck reads and writes files, and prints.",
            "Free space, shorten the name or give the permission.",
        )
        printer.fail(LimbeckError("cli.system", given=f"The system refused: {error}.", needed=needed, fix=fix))
        return 1
    return 0
