"""The error tree. Every error that a user can meet is one of these, and each is also a standard type.

    LimbeckError
    ├── UsageError        ValueError        exit 2   the command or the recipe cannot be meant
    │   ├── RecipeError                              a key or value of a recipe
    │   ├── DataError                                a file, row or field of prompts
    │   └── ModelError                               a model that cannot be found, read or used
    ├── Refusal           ValueError        exit 3   a guard refused: it would run, and be wrong
    │   └── VocabularyMismatch                       the two models do not split text alike
    ├── Diverged          ArithmeticError   exit 4   a loss or gradient is not finite
    ├── Unmet             RuntimeError      exit 4   a measure is below the limit that was asked for
    └── Stopped           RuntimeError      exit 75  stopped before the end, resumable

A message has three parts: what was given (with its value), what is needed and why, what to do next.
`code` is stable: scripts and documentation may rely on it.
"""

from __future__ import annotations

__all__ = [
    "DataError",
    "Diverged",
    "LimbeckError",
    "ModelError",
    "RecipeError",
    "Refusal",
    "Stopped",
    "Unmet",
    "UsageError",
    "VocabularyMismatch",
]


class LimbeckError(Exception):
    """An error with a stable code and a message in three parts."""

    exit_code = 1

    def __init__(self, code: str, *, given: str, needed: str, fix: str) -> None:
        self.code = code
        self.given = given
        self.needed = needed
        self.fix = fix
        super().__init__(f"{given} {needed} {fix} [{code}]")


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
