"""Graded models for tests, made of numbers: one prompt a number, None where there is no grade."""

from __future__ import annotations

from collections.abc import Sequence

from limbeck.evaluation.deciding.comparison import GradedAnswer, GradedModel
from limbeck.evaluation.grading.graders import Grade


def graded_model(
    name: str,
    values: Sequence[float | None],
    lengths: Sequence[int] = (),
    *,
    template: str = "Q: {}",
    **settings: object,
) -> GradedModel:
    answers = []
    for number, value in enumerate(values):
        grade = Grade(None, "the server failed") if value is None else Grade(float(value))
        length = None if value is None else lengths[number] if lengths else 10
        answers.append(GradedAnswer(f"key-{number}", f"p.jsonl:{number + 1}", template.format(number), grade, length))
    return GradedModel(name, tuple(answers), settings)


def pair_of_counts(num_first: int, num_second: int, both_good: int, both_bad: int) -> tuple[GradedModel, GradedModel]:
    """Two models graded 0 or 1, with so many prompts where only the first, only the second, both or none is good."""
    first = [1] * num_first + [0] * num_second + [1] * both_good + [0] * both_bad
    second = [0] * num_first + [1] * num_second + [1] * both_good + [0] * both_bad
    return graded_model("first", first), graded_model("second", second)
