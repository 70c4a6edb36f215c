"""Objects passed by the caller (models, rows, graders) as values that a recipe can hold.

Neither pandas nor datasets is imported: their objects are recognised by their methods.
"""

from __future__ import annotations

import copy
import json
import numbers
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from limbeck.evaluation.grading.own_functions import held_functions, name_of
from limbeck.machine import precision_kept
from limbeck.messages import (
    grader_unusable,
    no_rows_of,
    recipe_form,
    row_form,
    row_value,
    settings_twice,
    teacher_not_needed,
    teacher_other,
)
from limbeck.models.load import load_tokenizer
from limbeck.models.memory import MemoryModel, fingerprint_in, hold, is_in_memory, memory_model
from limbeck.models.resolve import parse_ref
from limbeck.recipe.files import LoadedRecipe, load_recipe
from limbeck.recipe.keywords import load_settings
from limbeck.recipe.recipe import Recipe
from limbeck.runs.store import Run

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = [
    "NO_ENVIRONMENT",
    "AnyPrompts",
    "AnyRecipe",
    "Given",
    "Grader",
    "given_for_run",
    "given_models",
    "given_recipe",
    "given_settings",
    "grader_text",
    "model_text",
    "rows_file",
]

Grader = Callable[[str, Mapping[str, Any]], float]
AnyPrompts = str | Path | Iterable[Mapping[str, Any] | str]
AnyRecipe = str | Path | Mapping[str, Any] | Recipe
NO_ENVIRONMENT: Mapping[str, str] = MappingProxyType({})
CONVERSATIONS = ("prompt", "messages", "conversations")


@dataclass(frozen=True)
class Given:
    """A recipe and the objects that it refers to."""

    loaded: LoadedRecipe
    models: tuple[MemoryModel, ...]
    functions: Mapping[str, Grader]
    rows: Path

    @property
    def recipe(self) -> Recipe:
        return self.loaded.recipe


@contextmanager
def given_settings(
    settings: Mapping[str, Any],
    place: str,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    in_place: bool = False,
    trains: bool = True,
    lend: bool = True,
) -> Generator[Given]:
    """The recipe of settings that contain objects. Within the block it can be used like any other recipe.

    Args:
        settings: as in a recipe; student and teacher may be models, prompts, held_out, teacher_examples and the file
            of own_answers rows, grader a function.
        place: the function that messages refer to.
        tokenizer: the tokenizer of models that are objects, instead of their own.
        in_place: train the caller's student itself.
        trains: whether the student is trained; if not, both models are used unchanged.
        lend: undo changes to the caller's models at the end of the block; if False, the calling function does so.

    Raises:
        LimbeckError: a setting or an object cannot be used.
    """
    with TemporaryDirectory(prefix="limbeck-") as folder:
        values, models, functions = dict(settings), [], {}
        for name in ("prompts", "held_out", "teacher_examples"):
            values[name] = rows_file(values.get(name), name, Path(folder))
        own = values.get("own_answers")
        if isinstance(own, Mapping):
            values["own_answers"] = {**own, "file": rows_file(own.get("file"), "own_answers", Path(folder))}
        if "grader" in values:
            values["grader"] = grader_text(values["grader"], functions)
        if in_place and values.get("teacher") is values.get("student"):  # the teacher keeps the initial weights
            values["teacher"] = copy.deepcopy(values.get("teacher"))
        for role in ("student", "teacher"):
            values[role] = model_text(values.get(role), role, models, tokenizer=tokenizer)
        if trains and models and models[0].text == values["student"]:
            models[0] = replace(models[0], fingerprint=f"student-{models[0].fingerprint}", itself=in_place)
            values["student"] = models[0].text  # a teacher of equal weights differs from the first step on
        values = {name: value for name, value in values.items() if value is not None or name in settings}
        loaded = load_settings(values, place)
        if loaded.recipe.teacher_dtype != "float32":  # casting would change the caller's model
            models = [each if each.text != values["teacher"] else replace(each, itself=False) for each in models]
        given = Given(loaded, tuple(models), functions, Path(folder))
        with held_functions(functions):
            if not lend:
                yield given
                return
            with hold(models, given.rows):
                yield given


@contextmanager
def given_recipe(
    recipe: AnyRecipe,
    place: str,
    overrides: Sequence[str],
    environment: Mapping[str, str],
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    trains: bool = True,
) -> Generator[LoadedRecipe]:
    """A recipe in any form; within the block its objects can be used. Numerics settings are restored after it."""
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
        with given_settings(recipe, place, tokenizer=tokenizer, trains=trains) as known:
            yield known.loaded


@contextmanager
def given_models(
    models: Mapping[str, object],
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    grader: object = None,
    rows: object = None,
) -> Generator[tuple[dict[str, Any], Any, Any]]:
    """Models by role, a grader and prompts, as names that are valid within the block. No model is trained.

    Yields the models' names, the grader's name and the file of the prompts.
    """
    with TemporaryDirectory(prefix="limbeck-") as folder:
        found: list[MemoryModel] = []
        functions: dict[str, Grader] = {}
        texts = {role: model_text(model, role, found, tokenizer=tokenizer) for role, model in models.items()}
        name, file = grader_text(grader, functions), rows_file(rows, "prompts", Path(folder))
        with held_functions(functions), hold(found, Path(folder)):
            yield texts, name, file


@contextmanager
def given_for_run(
    run: Run,
    *,
    teacher: object = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    grader: object = None,
) -> Generator[Recipe]:
    """The recipe of a run that another process started; within the block its teacher and grader are these objects.

    Raises:
        Refusal: the run started with a different teacher.
        UsageError: the run did not start with a teacher or grader object.
    """
    recipe = load_recipe(run.recipe_path, [], {}).recipe
    functions: dict[str, Grader] = {}
    named = None if recipe.grader is None else recipe.grader.function
    if grader is not None:
        if not callable(grader) or named is None:
            raise grader_unusable(kind=type(grader).__name__)
        functions[named] = grader
    models: list[MemoryModel] = []
    if teacher is not None:
        text = str(recipe.teacher)
        if not is_in_memory(text):
            raise teacher_not_needed(run=run.name, teacher=text)
        models.append(memory_model(teacher, tokenizer or _tokenizer_for(run, recipe, teacher), what="teacher"))
        expected = fingerprint_in(text)
        if models[0].fingerprint != expected:
            raise teacher_other(run=run.name, expected=expected, found=models[0].fingerprint)
        models[0] = replace(models[0], itself=recipe.teacher_dtype == "float32")
    with held_functions(functions), hold(models):
        yield recipe


def _tokenizer_for(run: Run, recipe: Recipe, teacher: Any) -> PreTrainedTokenizerBase | None:
    """The student's tokenizer, saved in the run, if the teacher scores with it and has no tokenizer name of its own."""
    if not recipe.scores or getattr(getattr(teacher, "config", None), "_name_or_path", ""):
        return None
    return load_tokenizer(parse_ref(recipe.student, workspace=Path(recipe.workspace)))


def model_text(
    model: object,
    what: str,
    models: list[MemoryModel],
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> Any:
    """The name of a model; an object is added to `models`, to be used unchanged."""
    if model is None or isinstance(model, str | Path):
        return None if model is None else str(model)
    models.append(memory_model(model, tokenizer, what=what, itself=True))
    return models[-1].text


def grader_text(grader: object, functions: dict[str, Grader]) -> Any:
    """The name or settings of a grader; a function is added to `functions` under its name."""
    if grader is None or isinstance(grader, str | Mapping) or not callable(grader):
        if grader is None or isinstance(grader, str | Mapping) or hasattr(grader, "model_fields_set"):
            return grader
        raise grader_unusable(kind=type(grader).__name__)
    name = name_of(grader)
    functions[name] = grader
    return name


def rows_file(rows: Any, what: str, folder: Path) -> Any:
    """Write rows to a new file in `folder` and return its path; a path, a number or None is returned unchanged.

    Raises:
        DataError: the object does not contain rows, or a value cannot be written as JSON.
    """
    if rows is None or isinstance(rows, str | Path | numbers.Number):
        return str(rows) if isinstance(rows, Path) else rows
    lines: list[str] = []
    for place, row in enumerate(_each(rows, what)):
        plain = {"prompt": row} if isinstance(row, str) else row
        if not isinstance(plain, Mapping):
            raise row_form(what=what, place=place, kind=type(row).__name__)
        try:
            lines.append(json.dumps(_fields(plain), ensure_ascii=False, allow_nan=False, default=_plain) + "\n")
        except (TypeError, ValueError) as error:
            raise row_value(what=what, place=place, reason=str(error)) from error
    path = folder / f"{what}.jsonl"
    path.write_bytes("".join(lines).encode("utf-8", "surrogatepass"))
    return str(path)


def _each(rows: Any, what: str) -> Iterable[Any]:
    """The rows, or the records of a frame. A mapping of splits is rejected."""
    if hasattr(rows, "to_dict") and hasattr(rows, "columns"):
        return rows.to_dict("records")
    if isinstance(rows, Mapping) or not hasattr(rows, "__iter__"):
        raise no_rows_of(what=what, kind=type(rows).__name__)
    return rows


def _fields(row: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with values: None and NaN, with which frames and datasets fill columns, count as absent."""
    found = {f"{name}": value for name, value in row.items() if not _absent(value)}
    for name in CONVERSATIONS:
        turns = found.get(name)
        turns = turns.tolist() if hasattr(turns, "tolist") else turns
        if isinstance(turns, list | tuple):
            found[name] = [
                {key: value for key, value in turn.items() if not _absent(value)} if isinstance(turn, Mapping) else turn
                for turn in turns
            ]
    return found


def _absent(value: Any) -> bool:
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, numbers.Real) and value != value


def _plain(value: Any) -> Any:
    """Values that JSON does not have, as ones that it has: numpy's numbers and arrays, sets, dates."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if isinstance(value, Sequence | set | frozenset):
        return list(value)
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON")
