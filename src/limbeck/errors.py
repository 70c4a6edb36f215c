"""The error tree, and the catalogue entries that every message of the package is made from.

    LimbeckError
    ├── UsageError        ValueError        exit 2   the command or the recipe is invalid
    │   ├── RecipeError                              a key or value of a recipe
    │   ├── DataError                                a file, row or field of prompts
    │   └── ModelError                               a model that cannot be found, read or used
    ├── Refusal           ValueError        exit 3   a guard refused: it would run, with a wrong result
    │   └── VocabularyMismatch                       the two models tokenise text differently
    ├── Diverged          ArithmeticError   exit 4   a loss or gradient is not finite
    ├── Unmet             RuntimeError      exit 4   a result is below the required threshold
    └── Stopped           RuntimeError      exit 75  stopped before the end, resumable

Errors are also standard types, so that code that catches ValueError keeps working.

A message is written once, in the file `messages.py` of its folder, as a function that returns its text:

    @error(DataError, "data.file-empty")
    def file_empty(*, file: str, size: int) -> Text:
        return Text(
            given="{file} has no rows ({size:byte|bytes}).",
            needed="At least one prompt is needed.",
            fix='Add rows such as {{"prompt": "..."}}, one per line.',
        )

    raise file_empty(file=path.name, size=len(data))

Where one code has several texts, each has a variant as its third part ("data.field-type.prompt"); what is raised has
the code alone. The code is stable and the parameters are kept with the text (`LimbeckError.parameters`,
`Note.parameters`), so that scripts can rely on both and a message can be shown in another language.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, Self, TypeVar

__all__ = [
    "CATALOGUE",
    "DataError",
    "Diverged",
    "Fault",
    "FaultText",
    "LimbeckError",
    "ModelError",
    "Note",
    "RecipeError",
    "Refusal",
    "Stopped",
    "Text",
    "Unmet",
    "UsageError",
    "VocabularyMismatch",
    "error",
    "fault",
    "fill",
    "note",
]

P = ParamSpec("P")
E = TypeVar("E", bound="LimbeckError")


@dataclass(frozen=True)
class Text:
    """An error's template: what was given (with its value), what is needed and why, what to do next."""

    given: str
    needed: str
    fix: str


@dataclass(frozen=True)
class FaultText:
    """The template of a problem in the user's file: what was found, and what is expected."""

    given: str
    expected: str


@dataclass(frozen=True)
class Fault:
    """One problem in one place of a file; a file's problems are collected and reported together."""

    code: str
    given: str
    expected: str
    parameters: Mapping[str, object]


class LimbeckError(Exception):
    """An error with a stable code and a message in three parts. `parameters` are the values that the text shows."""

    exit_code = 1

    def __init__(
        self, code: str, *, given: str, needed: str, fix: str, parameters: Mapping[str, object] | None = None
    ) -> None:
        self.code = code
        self.given = given
        self.needed = needed
        self.fix = fix
        self.parameters = dict(parameters or {})
        super().__init__(f"{given} {needed} {fix} [{code}]")

    def with_code(self, code: str) -> Self:
        """The same message under a more specific code."""
        return type(self)(code, given=self.given, needed=self.needed, fix=self.fix, parameters=self.parameters)


class UsageError(LimbeckError, ValueError):
    exit_code = 2


class RecipeError(UsageError):
    pass


class DataError(UsageError):
    pass


class ModelError(UsageError):
    pass


class Refusal(LimbeckError, ValueError):
    exit_code = 3


class VocabularyMismatch(Refusal):
    pass


class Diverged(LimbeckError, ArithmeticError):
    exit_code = 4


class Unmet(LimbeckError, RuntimeError):
    exit_code = 4


class Stopped(LimbeckError, RuntimeError):
    exit_code = 75


class Note(str):
    """A sentence for users that is not an error: its English text, with a code and parameters."""

    code: str
    parameters: dict[str, object]

    def __new__(cls, text: str, code: str, parameters: Mapping[str, object]) -> Note:
        made = super().__new__(cls, text)
        made.code, made.parameters = code, dict(parameters)
        return made

    def __getnewargs__(self) -> tuple[str, str, Mapping[str, object]]:  # type: ignore[override]
        return str(self), self.code, self.parameters  # so that it can be copied


CATALOGUE: dict[str, Callable[..., Any]] = {}
"""All messages imported so far, by code: the undecorated functions, which return their templates."""


def error(kind: type[E], code: str) -> Callable[[Callable[P, Text]], Callable[P, E]]:
    """Turn a template into a function that takes the parameters and returns the error to raise."""

    def decorate(template: Callable[P, Text]) -> Callable[P, E]:
        _register(code, template)

        @wraps(template)
        def make(*args: P.args, **values: P.kwargs) -> E:
            text, known = template(*args, **values), _bound(template, args, values)
            parts = {name: fill(getattr(text, name), known) for name in ("given", "needed", "fix")}
            return kind(_stable(code), **parts, parameters=known)

        return make

    return decorate


def fault(code: str) -> Callable[[Callable[P, FaultText]], Callable[P, Fault]]:
    """Turn a template into a function that returns one problem of a file."""

    def decorate(template: Callable[P, FaultText]) -> Callable[P, Fault]:
        _register(code, template)

        @wraps(template)
        def make(*args: P.args, **values: P.kwargs) -> Fault:
            text, known = template(*args, **values), _bound(template, args, values)
            return Fault(_stable(code), fill(text.given, known), fill(text.expected, known), known)

        return make

    return decorate


def note(code: str) -> Callable[[Callable[P, str]], Callable[P, Note]]:
    """Turn a template into a function that returns a `Note`."""

    def decorate(template: Callable[P, str]) -> Callable[P, Note]:
        _register(code, template)

        @wraps(template)
        def make(*args: P.args, **values: P.kwargs) -> Note:
            known = _bound(template, args, values)
            return Note(fill(template(*args, **values), known), code, known)

        return make

    return decorate


def fill(template: str, values: Mapping[str, object]) -> str:
    """A template with its parameters, by the rules of `str.format` and two more.

    `{num:row|rows}` writes the number and the word that fits it, 1 row or 1,200 rows; a # stands for the number where
    it is not first, as in `{num:only # row is|# rows are}`. A list or tuple is written with commas.
    """
    return _FORMATTER.vformat(template, (), values)


class _Formatter(string.Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, (list, tuple)):
            return ", ".join(str(each) for each in value)
        if "|" not in format_spec:
            return super().format_field(value, format_spec)
        one, many = format_spec.split("|")
        chosen, number = one if value == 1 else many, f"{value:,}"
        return chosen.replace("#", number) if "#" in chosen else f"{number} {chosen}"


_FORMATTER = _Formatter()


def _stable(code: str) -> str:
    """A code without its variant."""
    return ".".join(code.split(".")[:2])


def _register(code: str, template: Callable[..., Any]) -> None:
    assert code not in CATALOGUE, f"{code} is the code of two messages"
    CATALOGUE[code] = template


def _bound(template: Callable[..., Any], args: tuple[Any, ...], values: Mapping[str, Any]) -> dict[str, Any]:
    bound = signature(template).bind(*args, **values)
    bound.apply_defaults()
    return dict(bound.arguments)
