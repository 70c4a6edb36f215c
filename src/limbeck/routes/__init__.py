"""The ways to train, each in a file of its own, and which one a recipe names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from limbeck.data.chat import Prompt
from limbeck.data.targets import Targets
from limbeck.recipe.schema import Recipe
from limbeck.routes import off_policy, on_policy, supervised
from limbeck.teachers.signal import Teacher
from limbeck.training.state import StepRecord, TrainState

__all__ = ["Lesson", "train"]


@dataclass(frozen=True)
class Lesson:
    """What a route learns from: prompts to practise on, a teacher that scores, answers to learn, people's own answers.

    `targets` are the teacher's answers, on the supervised route those of the prompts' own rows.
    """

    prompts: tuple[Prompt, ...]
    teacher: Teacher | None
    targets: Targets | None
    own: Targets | None


def train(state: TrainState, lesson: Lesson, recipe: Recipe) -> Iterator[StepRecord]:
    """Step until the recipe's last step, by its route."""
    if recipe.route == "on-policy":
        assert lesson.teacher is not None
        return on_policy.train(state, lesson.teacher, lesson.prompts, recipe, targets=lesson.targets, own=lesson.own)
    assert lesson.targets is not None
    if recipe.route == "off-policy":
        return off_policy.train(state, lesson.teacher, lesson.targets, recipe, own=lesson.own)
    return supervised.train(state, lesson.targets, recipe)
