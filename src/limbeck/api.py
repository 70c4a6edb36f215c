"""What the command line does, as Python functions of the same names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from limbeck.conversation import Conversation
from limbeck.driver import answer_run, plan_stages, resume_run, train_stages
from limbeck.embedded.story import DemoResult, run_demo
from limbeck.errors import UsageError
from limbeck.evaluation.evaluate import evaluate_models, evaluate_run, worth_of
from limbeck.evaluation.red_pen import mark_prompt, recipe_of_pair
from limbeck.machine import use_machine
from limbeck.planning.check import CheckReport, check_recipe
from limbeck.recipe.evaluation import EvaluationOptions
from limbeck.recipe.files import LoadedRecipe, load_recipe
from limbeck.reporting.page import write_page
from limbeck.rollouts.sampling import Sampling
from limbeck.routes.off_policy import objective_of
from limbeck.runs.evaluations import Evaluation
from limbeck.runs.export import ExportForm, export_run
from limbeck.runs.marks import MarkSheet, worst_marks
from limbeck.runs.store import Run

__all__ = [
    "answers",
    "chat",
    "check",
    "demo",
    "doctor",
    "evaluate",
    "export",
    "mark",
    "plan",
    "report",
    "resume",
    "train",
    "worth",
]

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
    overrides: Sequence[str] = (),
    listen: Listener = lambda event: None,
    watch: Callable[[str], None] = lambda phase: None,
) -> Run:
    """Go on with a stopped run, by its name or folder, from its last checkpoint.

    `overrides` lie over its own recipe: its budget, length or learning rate may change, what it learns may not.
    """
    return resume_run(Run.find(Path(workspace), str(run)), listen, watch, overrides)


def plan(*recipes: str | Path, overrides: Sequence[str] = ()) -> list[CheckReport]:
    """Prompts, pair and memory of each recipe, without reading a weight; see `limbeck.driver.plan_stages`."""
    return plan_stages(_load(recipes, overrides))


def _load(recipes: Sequence[str | Path], overrides: Sequence[str]) -> list[LoadedRecipe]:
    return [load_recipe(Path(recipe), list(overrides), os.environ) for recipe in recipes]


def check(recipe: str | Path, *, overrides: Sequence[str] = ()) -> CheckReport:
    """The plan, then the weights and the objective certificate on them."""
    return check_recipe(load_recipe(Path(recipe), list(overrides), os.environ).recipe)


def worth(
    recipe: str | Path,
    options: EvaluationOptions | None = None,
    *,
    overrides: Sequence[str] = (),
    listen: Listener = lambda event: None,
) -> Evaluation:
    """Teacher against student on a recipe's held-out prompts; `result()` of what is returned holds the verdict."""
    loaded = load_recipe(Path(recipe), list(overrides), os.environ)
    return worth_of(loaded, options or EvaluationOptions(), _log_to(listen), overrides)


def evaluate(
    *runs_or_models: str,
    prompts: str | Path | None = None,
    workspace: str | Path = ".",
    options: EvaluationOptions | None = None,
    listen: Listener = lambda event: None,
) -> Evaluation:
    """A run's student, result and teacher on its held-out prompts, or any models on a file of prompts.

    Args:
        runs_or_models: one run, by name or folder; or models, of which a run's name means its result. ROLE=MODEL says
            that a model is the teacher, the student or the distilled one, which gives a verdict.
        prompts: the file; only a run alone can do without.
        workspace: where runs are looked up, and the evaluation is written.
        options: how the models answer and are measured.
        listen: called with phases.
    """
    folder, chosen = Path(workspace), options or EvaluationOptions()
    file = None if prompts is None else Path(prompts)
    named = [f"run:{text}" if (folder / "runs" / text / "events.jsonl").is_file() else text for text in runs_or_models]
    is_run = len(named) == 1 and (named[0].startswith("run:") or (Path(named[0]) / "events.jsonl").is_file())
    if is_run and "@" not in named[0]:
        return evaluate_run(Run.find(folder, named[0].removeprefix("run:")), chosen, _log_to(listen), file)
    if file is None:
        raise UsageError(
            "evaluation.no-prompts",
            given=f"{' '.join(runs_or_models) or 'Nothing'} is to be evaluated, on no prompts.",
            needed=f"Only a run alone has held-out prompts of its own, and {folder} holds no single run of this name.",
            fix="Give --prompts FILE, or the name of one run (limbeck runs lists them).",
        )
    return evaluate_models(named, file, folder, chosen, _log_to(listen))


def _log_to(listen: Listener) -> Callable[..., None]:
    return lambda kind, **fields: listen({"kind": kind, **fields})


def chat(model: str, turns: Iterable[str], *, workspace: str | Path = ".", temperature: float = 0.0) -> list[str]:
    """The model's answers to a conversation's user turns."""
    conversation = Conversation(model, workspace=Path(workspace), sampling=Sampling(temperature=temperature))
    return ["".join(conversation.reply(turn)) for turn in turns]


def mark(
    student: str,
    teacher: str | None = None,
    *,
    prompt: str | None = None,
    answer: str | None = None,
    worst: int | None = None,
    continue_from: int | None = None,
    max_tokens: int = 256,
    workspace: str | Path = ".",
) -> MarkSheet:
    """What a teacher says of every token of an answer.

    Args:
        student: a model, or a run (NAME@STEP for a checkpoint), which has a teacher of its own.
        teacher: the model that marks; of a run, left out.
        prompt: one user turn. Without it, the worst answers that the run marked itself come from its folder.
        answer: the text to mark; left out, the student writes one, greedily.
        worst: how many answers of the run, 3 if left out.
        continue_from: a position from which the teacher writes another ending.
        max_tokens: the longest answer and ending, in tokens.
    """
    if max_tokens < 1 or (worst is not None and worst < 1):
        raise UsageError(
            "marks.number",
            given=f"The longest answer is {max_tokens} tokens, the number of worst answers {worst}.",
            needed="Both are 1 or more.",
            fix="Correct it.",
        )
    if prompt is None and (teacher, answer, continue_from) == (None, None, None):
        return worst_marks(student, Path(workspace), 3 if worst is None else worst)
    if prompt is None or worst is not None:
        raise UsageError(
            "marks.asked",
            given="An answer, a teacher or a position is named without a prompt."
            if prompt is None
            else "Both a prompt and a number of worst answers are given.",
            needed="Either a prompt is answered and marked now, or the worst of a run's stored answers are shown.",
            fix='limbeck mark STUDENT TEACHER --prompt "..." for one, limbeck mark RUN --worst 3 for the other.',
        )
    recipe = recipe_of_pair(student, teacher, Path(workspace))
    return mark_prompt(recipe, objective_of(recipe), prompt, answer, continue_from=continue_from, max_tokens=max_tokens)


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
    found = Run.find(Path(workspace), str(run))
    return export_run(found, to, Path(output if output is not None else f"{found.name}-{to}"))


def report(evaluation: str, output: str | Path | None = None, *, workspace: str | Path = ".") -> Path:
    """Write an evaluation, or the newest one of a run, as one page for a browser, by default to NAME.html here."""
    return write_page(evaluation, Path(workspace), None if output is None else Path(output))


def doctor() -> tuple[dict[str, object], dict[str, str]]:
    """What the machine gives a run, and the environment variables that have a say.

    Values are given for Limbeck's own settings and for plain paths and switches, never for anything else.
    """
    machine = asdict(use_machine())
    libraries = machine.pop("libraries")
    seen = {name: os.environ[name] for name in sorted(os.environ) if name.startswith("LIMBECK_") or name in WATCHED}
    return {**machine, **libraries}, seen
