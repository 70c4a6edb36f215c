"""What is said of graders that the caller holds as functions."""

from __future__ import annotations

from limbeck.errors import Text, UsageError, error

__all__ = ["function_elsewhere"]


@error(UsageError, "grader.function-elsewhere")
def function_elsewhere(*, name: str) -> Text:
    return Text(
        given="The grader {name} was given as a function, and is not at hand here.",
        needed="A function that no module holds is not stored.",
        fix="Pass it on: limbeck.resume(run, grader={name}), or limbeck.evaluate(run, grader={name}). A grader in a "
        "module is found by itself: grader='module:function'.",
    )
