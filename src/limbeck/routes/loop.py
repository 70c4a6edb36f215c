"""The ways to train, the step of each in a file of its own, and the loop that takes these steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from limbeck.data.prompt import Prompt, Targets
from limbeck.recipe.recipe import Recipe
from limbeck.routes import off_policy, on_policy, supervised
from limbeck.teachers.signal import Teacher
from limbeck.training.batches import PromptOrder
from limbeck.training.state import StepRecord, TrainState

__all__ = ["Lesson", "train"]


@dataclass(frozen=True)
class Lesson:
    """What a run learns from: prompts to practise on, a teacher that scores, answers to learn, people's own answers.

    `targets` are the teacher's answers, on the supervised route those of the prompts' own rows.
    """

    prompts: tuple[Prompt, ...]
    teacher: Teacher | None = None
    targets: Targets | None = None
    own: Targets | None = None


def train(state: TrainState, lesson: Lesson, recipe: Recipe) -> Iterator[StepRecord]:
    """Step until the recipe's last step. Whoever saves between two records saves a finished step.

    Without a teacher that scores, a step learns the text of the targets. With one, it reads them off-policy and in a
    warm-up; else the student practises, on all prompts of the step or on a share, and the others are read.
    """
    num, teacher = recipe.prompts_per_step, lesson.teacher
    order = PromptOrder(lesson.prompts, recipe.seed)
    read = supervised.reader_of(lesson.targets, recipe)
    read_own = supervised.reader_of(lesson.own, recipe)
    num_warmup = 0 if recipe.warmup is None else recipe.warmup.steps
    num_practised = max(1, round(recipe.on_policy_share * num))
    while state.step < recipe.steps:
        own = read_own(state.step, num)
        if teacher is None:
            record = supervised.step(state, read(state.step, num), recipe, own=own)
        elif recipe.route == "off-policy":
            text, objective = read(state.step, num), off_policy.objective_of(recipe)
            record = off_policy.step(state, teacher, text, objective, recipe, own=own)
        elif state.step < num_warmup:
            text, objective = read(state.step, num), on_policy.warmup_objective(recipe)
            record = off_policy.step(state, teacher, text, objective, recipe, own=own)
        else:
            practised, text = order.of_step(state.step, num_practised), read(state.step, num - num_practised)
            record = on_policy.step(state, teacher, practised, recipe, read=text, own=own)
        state.step += 1
        yield record
