"""Functions that run models: baseline check, evaluation, chat and marks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from limbeck.conversation import Conversation
from limbeck.evaluation.mark_pair import mark_prompt, recipe_of_pair
from limbeck.evaluation.run_evaluation import evaluate_models, evaluate_run, worth_of
from limbeck.inputs_in_memory import (
    NO_ENVIRONMENT,
    AnyPrompts,
    AnyRecipe,
    Grader,
    given_for_run,
    given_models,
    given_recipe,
)
from limbeck.machine import precision_kept
from limbeck.messages import marks_and_prompt, marks_max_tokens, marks_without_prompt, marks_worst, no_prompts
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
    """The baseline check: teacher against original student on a recipe's held-out prompts.

    Args:
        recipe: a path, a Recipe, or a dict such as {"student": model, "teacher": model, "prompts": rows}.
        options: how answers are generated and graded.
        tokenizer: the tokenizer of models that are objects.
        overrides: `key=value` settings that take precedence over a file.
        listen: called with every event.
        environment: variables with settings, which take precedence over a file.
    """
    log = _log_to(progress(listen, None)[0])
    with given_recipe(recipe, "limbeck.worth", overrides, environment, tokenizer=tokenizer, trains=False) as loaded:
        return Evaluation(worth_of(loaded, options or EvaluationOptions(), log, overrides).path)


def evaluate(
    *runs_or_models: str | Path | store.Run | PreTrainedModel,
    student: str | Path | PreTrainedModel | None = None,
    distilled: str | Path | PreTrainedModel | None = None,
    teacher: str | Path | PreTrainedModel | None = None,
    prompts: AnyPrompts | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    grader: Grader | str | None = None,
    workspace: str | Path = ".",
    options: EvaluationOptions | None = None,
    listen: Listener | None = None,
) -> Evaluation:
    """Compare a run's original student, distilled student and teacher on its held-out prompts, or any models.

    Args:
        runs_or_models: one run (a name, a folder or a Run), or several models; the name of a run is then its final
            model. ROLE=MODEL gives a model the role teacher, student or distilled.
        student: the original student. A verdict requires models with roles.
        distilled: the student after training.
        teacher: the teacher; for a run only if it started with an object that cannot be loaded by name.
        prompts: as for `distil`; optional only for a single run, which has held-out prompts.
        tokenizer: the tokenizer of models that are objects.
        grader: a function of (answer, row), or the name of a grader.
        workspace: the folder in which runs are found and the evaluation is saved.
        options: how answers are generated and graded.
        listen: called with every event.
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
    """A model's answers to the user turns of a conversation, as a sequence.

    Args:
        model: a hub id, a folder, a file.gguf, run:NAME, a run, or a transformers model.
        turns: the user's messages, in order.
        tokenizer: the tokenizer of a model that is an object.
        workspace: the folder in which runs are found.
        system: the system message before the first turn.
        temperature: the sampling temperature; 0 always chooses the most likely token.
        max_tokens: the token limit of an answer.
        seed: the seed for sampling.

    Raises:
        LimbeckError: the model cannot be found or loaded, or the conversation exceeds its context length.
    """
    users = [turns] if isinstance(turns, str) else list(turns)
    with given_models({"model": _text_of(model)}, tokenizer=tokenizer) as (texts, _, _), precision_kept():
        home = model.path.parents[1] if isinstance(model, store.Run) else Path(workspace)
        known = {"system": system, "max_tokens": max_tokens, "seed": seed}
        talk = Conversation(texts["model"], workspace=home, sampling=Sampling(temperature=temperature), **known)
        return Talk(tuple(users), tuple("".join(talk.reply(turn)) for turn in users))


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
    """The marks of an answer: for each token, the log-probabilities of student and teacher and their divergence.

    Args:
        student: a model, or a run (NAME@STEP for a checkpoint), which has a teacher.
        teacher: the teacher; for a run only if it started with an object that cannot be loaded by name.
        prompt: one user message. Without it, the result is the worst answers among those that the run marked.
        answer: the text to mark; by default the student generates one greedily.
        worst: the number of answers from the run, by default 3.
        continue_from: a position from which the teacher generates a different ending.
        max_tokens: the token limit of the answer and of the ending.
        tokenizer: the tokenizer of models that are objects.
        workspace: the folder in which runs are found.
    """
    if max_tokens < 1:
        raise marks_max_tokens(max_tokens=max_tokens)
    if worst is not None and worst < 1:
        raise marks_worst(worst=worst)
    home, is_run = Path(workspace), isinstance(student, store.Run)
    if isinstance(student, store.Run):
        home, student = student.path.parents[1], student.name
    if prompt is None and (teacher, answer, continue_from) == (None, None, None):
        return Marks(**vars(worst_marks(str(student), home, 3 if worst is None else worst)))
    if prompt is None:
        raise marks_without_prompt()
    if worst is not None:
        raise marks_and_prompt(worst=worst)
    pair = {"student": student, "teacher": teacher}
    with precision_kept(), given_models(pair, tokenizer=tokenizer) as (texts, _, _):
        name = f"run:{texts['student']}" if is_run else texts["student"]
        recipe = recipe_of_pair(name, texts["teacher"], home)
        objective = objective_of(recipe)
        sheet = mark_prompt(recipe, objective, prompt, answer, continue_from=continue_from, max_tokens=max_tokens)
        return Marks(**vars(sheet))


def _one_run(given: Sequence[object], workspace: Path) -> store.Run | None:
    """The run if the only argument is a run, its name or its folder; None for anything else."""
    if len(given) != 1 or not isinstance(given[0], str | Path | store.Run):
        return None
    if isinstance(given[0], store.Run):
        return given[0]
    text = _at_home(str(given[0]), workspace)
    is_run = text.startswith("run:") or (Path(text) / "events.jsonl").is_file()
    return store.Run.find(workspace, text.removeprefix("run:")) if is_run and "@" not in text else None


def _at_home(text: str, workspace: Path) -> str:
    """A model's name; the name of a run of the workspace becomes that of its final model."""
    return f"run:{text}" if (workspace / "runs" / text / "events.jsonl").is_file() else text


def _text_of(model: Any) -> Any:
    """The name of a run's final model; anything else unchanged."""
    return f"run:{model.name}" if isinstance(model, store.Run) else model


def _log_to(listen: Listener) -> Callable[..., None]:
    return lambda kind, **fields: listen({"kind": kind, **fields})
