"""Functions that measure models: is it worth distilling, did it work, a conversation, the red pen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from limbeck.conversation import Conversation
from limbeck.errors import UsageError
from limbeck.evaluation.mark_pair import mark_prompt, recipe_of_pair
from limbeck.evaluation.run_evaluation import evaluate_models, evaluate_run, worth_of
from limbeck.given import NO_ENVIRONMENT, AnyRecipe, Grader, given_for_run, given_models, given_recipe
from limbeck.machine import precision_kept
from limbeck.messages import no_prompts
from limbeck.recipe.evaluation import EvaluationOptions
from limbeck.reporting.notebook import Listener, progress
from limbeck.results import Evaluation, Marks, Talk
from limbeck.rollouts.sampling import Sampling
from limbeck.routes.off_policy import objective_of
from limbeck.runs import store
from limbeck.runs.marks import worst_marks

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["chat", "evaluate", "mark", "worth"]


def worth(
    recipe: AnyRecipe,
    options: EvaluationOptions | None = None,
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
    log = _log_to(progress(listen, None)[0])
    with given_recipe(recipe, "limbeck.worth", overrides, environment, tokenizer=tokenizer, trains=False) as loaded:
        return Evaluation(worth_of(loaded, options or EvaluationOptions(), log, overrides).path)


def evaluate(
    *runs_or_models: str | Path | store.Run | PreTrainedModel,
    student: str | Path | PreTrainedModel | None = None,
    distilled: str | Path | PreTrainedModel | None = None,
    teacher: str | Path | PreTrainedModel | None = None,
    prompts: str | Path | Iterable[Mapping[str, Any] | str] | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    grader: Grader | str | None = None,
    workspace: str | Path = ".",
    options: EvaluationOptions | None = None,
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
        log = _log_to(progress(listen, None)[0])
        named = {} if found is not None else {str(place): _text_of(each) for place, each in enumerate(runs_or_models)}
        objects = {**named, **({} if found is not None else roles)}
        given = given_models(objects, tokenizer=tokenizer, grader=grader, rows=prompts)
        texts, grader_name, file = stack.enter_context(given)
        chosen = options or EvaluationOptions()
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
    system: str | None = None,
    temperature: float = 0.0,
    max_tokens: int = 256,
    seed: int = 0,
) -> Talk:
    """The model's answers to a conversation's user turns; the result is a sequence of them.

    Args:
        model: a hub id, a folder, a file.gguf, run:NAME, a run, or a model of transformers.
        turns: what the user says, one after the other.
        tokenizer: of a model that is an object.
        workspace: where runs are looked up.
        system: a system text before the first turn.
        temperature: 0 takes the likeliest token each time.
        max_tokens: the longest answer, in tokens.
        seed: of sampled tokens.

    Raises:
        LimbeckError: there is no such model, or the conversation is longer than it can read.
    """
    asked = [turns] if isinstance(turns, str) else list(turns)
    with given_models({"model": _text_of(model)}, tokenizer=tokenizer) as (texts, _, _), precision_kept():
        home = model.path.parents[1] if isinstance(model, store.Run) else Path(workspace)
        known = {"system": system, "max_tokens": max_tokens, "seed": seed}
        talk = Conversation(texts["model"], workspace=home, sampling=Sampling(temperature=temperature), **known)
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
