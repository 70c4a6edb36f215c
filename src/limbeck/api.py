"""The package's functions: distil two models, take single steps, and what the command line does, for programs.

Wherever a recipe is asked for, the path of a YAML file, a dict of settings or a `limbeck.Recipe` will do; in a dict,
models may be objects of transformers and prompts lists, datasets or frames. No environment variable is read for
settings. In a notebook progress is shown; elsewhere nothing is printed, and `listen` gets what happens.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from limbeck.checked import Check, Demo, as_check, as_demo
from limbeck.conversation import Conversation
from limbeck.driver import answer_run, plan_stages, resume_run, train_stages
from limbeck.embedded.story import run_demo
from limbeck.errors import UsageError
from limbeck.evaluation.mark_pair import mark_prompt, recipe_of_pair
from limbeck.evaluation.run_evaluation import evaluate_models, evaluate_run, worth_of
from limbeck.given import Grader, given_for_run, given_models, given_settings
from limbeck.looking import export, find_run, lineage, list_runs, report, show
from limbeck.machine import precision_kept, tune_process, use_machine
from limbeck.messages import no_prompts, recipe_form, settings_twice
from limbeck.planning.check import check_recipe
from limbeck.recipe.evaluating import Evaluating
from limbeck.recipe.files import LoadedRecipe, load_recipe
from limbeck.recipe.recipe import Recipe
from limbeck.reporting.notebook import NotebookScreen, in_notebook
from limbeck.results import Evaluation, MachineReport, Marks, Run, Talk
from limbeck.rollouts.sampling import Sampling
from limbeck.routes.off_policy import objective_of
from limbeck.runs import store
from limbeck.runs.marks import worst_marks
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
NO_ENVIRONMENT: Mapping[str, str] = MappingProxyType({})

Listener = Callable[[Mapping[str, object]], None]
Watcher = Callable[[str], None]
AnyRecipe = str | Path | Mapping[str, Any] | Recipe


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
    told, watch = _progress(listen, None)
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
    listen: Listener | None = None,
    watch: Watcher | None = None,
    environment: Mapping[str, str] = NO_ENVIRONMENT,
) -> Run:
    """Run a recipe into a new run folder; returns it when the run is done.

    Args:
        recipes: of several, each starts when the one before is done, and the last run is returned.
        overrides: `key=value` settings that win over a file.
        listen: called with every event of the run.
        watch: called with the phase within a step whenever it changes.
        environment: variables with settings (LIMBECK_BETA), which win over a file; the command line passes its own.

    Raises:
        LimbeckError: see the message; `exit_code` is what the command line would exit with.
    """
    with ExitStack() as stack:
        loaded = [stack.enter_context(_recipe(each, "limbeck.train", overrides, environment)) for each in recipes]
        told, seen = _progress(listen, watch)
        return Run(train_stages(loaded, told, seen).path)


def answers(
    recipe: AnyRecipe,
    *,
    overrides: Sequence[str] = (),
    listen: Listener | None = None,
    environment: Mapping[str, str] = NO_ENVIRONMENT,
) -> Run:
    """Let the recipe's teacher write its answers into a run folder, and train nothing."""
    with _recipe(recipe, "limbeck.answers", overrides, environment) as loaded:
        return Run(answer_run(loaded, _progress(listen, None)[0]).path)


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
    told, seen = _progress(listen, watch)
    with given_for_run(found, teacher=teacher, tokenizer=tokenizer, grader=grader), precision_kept():
        return Run(resume_run(found, told, seen, overrides).path)


def plan(
    *recipes: AnyRecipe, overrides: Sequence[str] = (), environment: Mapping[str, str] = NO_ENVIRONMENT
) -> list[Check]:
    """Prompts, pair and memory of each recipe, without reading a weight; see `limbeck.driver.plan_stages`."""
    with ExitStack() as stack:
        loaded = [stack.enter_context(_recipe(each, "limbeck.plan", overrides, environment)) for each in recipes]
        return [as_check(report) for report in plan_stages(loaded)]


def check(
    recipe: AnyRecipe, *, overrides: Sequence[str] = (), environment: Mapping[str, str] = NO_ENVIRONMENT
) -> Check:
    """The plan, then the weights and the objective certificate on them."""
    with _recipe(recipe, "limbeck.check", overrides, environment) as loaded:
        return as_check(check_recipe(loaded.recipe))


def worth(
    recipe: AnyRecipe,
    options: Evaluating | None = None,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    overrides: Sequence[str] = (),
    listen: Listener | None = None,
    environment: Mapping[str, str] = NO_ENVIRONMENT,
) -> Evaluation:
    """Is it worth distilling? Teacher against student on a recipe's held-out prompts.

    Args:
        recipe: a dict will do: {"student": model, "teacher": model, "prompts": rows}.
        options: how the models answer and are measured.
        tokenizer: of the models that are objects.
        overrides: `key=value` settings that win over a file.
        listen: called with phases.
        environment: variables with settings, which win over a file.
    """
    log = _log_to(_progress(listen, None)[0])
    with _recipe(recipe, "limbeck.worth", overrides, environment, tokenizer=tokenizer, trains=False) as loaded:
        return Evaluation(worth_of(loaded, options or Evaluating(), log, overrides).path)


def evaluate(
    *runs_or_models: str | Path | store.Run | PreTrainedModel,
    student: str | Path | PreTrainedModel | None = None,
    distilled: str | Path | PreTrainedModel | None = None,
    teacher: str | Path | PreTrainedModel | None = None,
    prompts: str | Path | Iterable[Mapping[str, Any] | str] | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    grader: Grader | str | None = None,
    workspace: str | Path = ".",
    options: Evaluating | None = None,
    listen: Listener | None = None,
) -> Evaluation:
    """Did it work? A run's student, result and teacher on its held-out prompts, or any models on the same prompts.

    Args:
        runs_or_models: one run, by name, folder or as it was returned; or models, of which a run's name means its
            result. ROLE=MODEL says that a model is the teacher, the student or the distilled one.
        student: a model in that role, like the next two; models in roles give a verdict.
        distilled: the student after training.
        teacher: the teacher; of a run, only where it began with an object that no name leads to.
        prompts: as for `distil`; only a run alone can do without.
        tokenizer: of the models that are objects.
        grader: a function of (answer, row), or the name of a grader.
        workspace: where runs are looked up, and the evaluation is written.
        options: how the models answer and are measured.
        listen: called with phases.
    """
    roles = {"student": student, "distilled": distilled, "teacher": teacher}
    roles = {role: model for role, model in roles.items() if model is not None}
    home = Path(workspace)
    found = _one_run(runs_or_models, home) if roles.keys() <= {"teacher"} else None
    with ExitStack() as stack:
        stack.enter_context(precision_kept())
        log = _log_to(_progress(listen, None)[0])
        named = {} if found is not None else {str(place): _text_of(each) for place, each in enumerate(runs_or_models)}
        objects = {**named, **({} if found is not None else roles)}
        given = given_models(objects, tokenizer=tokenizer, grader=grader, rows=prompts)
        texts, grader_name, file = stack.enter_context(given)
        chosen = options or Evaluating()
        chosen = chosen if grader_name is None else replace(chosen, grader=grader_name)
        if found is not None:
            stack.enter_context(given_for_run(found, teacher=teacher, tokenizer=tokenizer))
            return Evaluation(evaluate_run(found, chosen, log, None if file is None else Path(file)).path)
        models = [_at_home(text, home) if role in named else f"{role}={text}" for role, text in texts.items()]
        if file is None:
            raise no_prompts(models=" ".join(models) or "Nothing", workspace=str(home))
        return Evaluation(evaluate_models(models, Path(file), home, chosen, log).path)


def chat(
    model: str | Path | store.Run | PreTrainedModel,
    turns: Iterable[str],
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    workspace: str | Path = ".",
    temperature: float = 0.0,
) -> Talk:
    """The model's answers to a conversation's user turns; the result is a sequence of them.

    Args:
        model: a hub id, a folder, a file.gguf, run:NAME, a run, or a model of transformers.
        turns: what the user says, one after the other.
        tokenizer: of a model that is an object.
        workspace: where runs are looked up.
        temperature: 0 takes the likeliest token each time.
    """
    asked = [turns] if isinstance(turns, str) else list(turns)
    with given_models({"model": _text_of(model)}, tokenizer=tokenizer) as (texts, _, _), precision_kept():
        home = model.path.parents[1] if isinstance(model, store.Run) else Path(workspace)
        talk = Conversation(texts["model"], workspace=home, sampling=Sampling(temperature=temperature))
        return Talk(tuple(asked), tuple("".join(talk.reply(turn)) for turn in asked))


def mark(
    student: str | Path | store.Run | PreTrainedModel,
    teacher: str | Path | PreTrainedModel | None = None,
    *,
    prompt: str | None = None,
    answer: str | None = None,
    worst: int | None = None,
    continue_from: int | None = None,
    max_tokens: int = 256,
    tokenizer: PreTrainedTokenizerBase | None = None,
    workspace: str | Path = ".",
) -> Marks:
    """What a teacher says of every token of an answer.

    Args:
        student: a model, or a run (NAME@STEP for a checkpoint), which has a teacher of its own.
        teacher: the model that marks; of a run, left out, unless it began with an object that no name leads to.
        prompt: one user turn. Without it, the worst answers that the run marked itself come from its folder.
        answer: the text to mark; left out, the student writes one, greedily.
        worst: how many answers of the run, 3 if left out.
        continue_from: a position from which the teacher writes another ending.
        max_tokens: the longest answer and ending, in tokens.
        tokenizer: of the models that are objects.
        workspace: where runs are looked up.
    """
    if max_tokens < 1 or (worst is not None and worst < 1):
        raise UsageError(
            "marks.number",
            given=f"The longest answer is {max_tokens} tokens, the number of worst answers {worst}.",
            needed="Both are 1 or more.",
            fix="Correct it.",
        )
    home, is_run = Path(workspace), isinstance(student, store.Run)
    if isinstance(student, store.Run):
        home, student = student.path.parents[1], student.name
    if prompt is None and (teacher, answer, continue_from) == (None, None, None):
        return Marks(**vars(worst_marks(str(student), home, 3 if worst is None else worst)))
    if prompt is None or worst is not None:
        raise UsageError(
            "marks.asked",
            given="An answer, a teacher or a position is named without a prompt."
            if prompt is None
            else "Both a prompt and a number of worst answers are given.",
            needed="Either a prompt is answered and marked now, or the worst of a run's stored answers are shown.",
            fix='limbeck mark STUDENT TEACHER --prompt "..." for one, limbeck mark RUN --worst 3 for the other.',
        )
    pair = {"student": student, "teacher": teacher}
    with precision_kept(), given_models(pair, tokenizer=tokenizer) as (texts, _, _):
        name = f"run:{texts['student']}" if is_run else texts["student"]
        recipe = recipe_of_pair(name, texts["teacher"], home)
        objective = objective_of(recipe)
        sheet = mark_prompt(recipe, objective, prompt, answer, continue_from=continue_from, max_tokens=max_tokens)
        return Marks(**vars(sheet))


def demo(
    workspace: str | Path = ".",
    *,
    seed: int = 0,
    listen: Listener | None = None,
    watch: Watcher | None = None,
    environment: Mapping[str, str] = NO_ENVIRONMENT,
) -> Demo:
    """Distil the pair that ships in the package and measure it before and after."""
    told, seen = _progress(listen, watch)
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


@contextmanager
def _recipe(
    recipe: AnyRecipe,
    place: str,
    overrides: Sequence[str],
    environment: Mapping[str, str],
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    trains: bool = True,
) -> Generator[LoadedRecipe]:
    """A recipe in any of its forms; within the block its objects are at hand, and what is set is put back after it."""
    with precision_kept():
        if isinstance(recipe, str | Path):
            yield load_recipe(Path(recipe), list(overrides), environment)
            return
        if not isinstance(recipe, Mapping | Recipe):
            raise recipe_form(kind=type(recipe).__name__)
        if overrides:
            raise settings_twice()
        if isinstance(recipe, Recipe):
            yield LoadedRecipe(recipe, {}, Path(place))
            return
        with given_settings(recipe, place, tokenizer=tokenizer, in_place=not trains) as known:
            yield known.loaded


def _progress(listen: Listener | None, watch: Watcher | None) -> tuple[Listener, Watcher]:
    """What is called with events and phases: what the caller gave; in a notebook, where nothing is, a display."""
    if listen is None and in_notebook():
        screen = NotebookScreen()
        return screen.take, watch or screen.phase
    return listen or (lambda event: None), watch or (lambda phase: None)


def _one_run(given: Sequence[object], workspace: Path) -> store.Run | None:
    """The run that is given alone, by itself, its name or its folder; None for anything else."""
    if len(given) != 1 or not isinstance(given[0], str | Path | store.Run):
        return None
    if isinstance(given[0], store.Run):
        return given[0]
    text = _at_home(str(given[0]), workspace)
    is_run = text.startswith("run:") or (Path(text) / "events.jsonl").is_file()
    return store.Run.find(workspace, text.removeprefix("run:")) if is_run and "@" not in text else None


def _at_home(text: str, workspace: Path) -> str:
    """A model's text; the name of a run of the workspace means its result."""
    return f"run:{text}" if (workspace / "runs" / text / "events.jsonl").is_file() else text


def _text_of(model: Any) -> Any:
    """A run as the text that names its result; everything else as it is."""
    return f"run:{model.name}" if isinstance(model, store.Run) else model


def _log_to(listen: Listener) -> Callable[..., None]:
    return lambda kind, **fields: listen({"kind": kind, **fields})
