"""The training loop: which step of which route comes next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from limbeck.data.prompt import Prompt, Targets
from limbeck.recipe.recipe import Recipe
from limbeck.routes import off_policy, on_policy, supervised
from limbeck.teachers.signal import Teacher
from limbeck.training.batches import PromptOrder
from limbeck.training.state import StepRecord, TrainState

__all__ = ["TrainingData", "training_steps"]


@dataclass(frozen=True)
class TrainingData:
    """What a run trains on.

    prompts       prompts that the student answers on-policy
    teacher       scores answers; None where training needs text alone
    targets       answers of the teacher or, on the supervised route, the reference answers of the rows
    own_answers   human-written answers that are mixed into every step
    """

    prompts: tuple[Prompt, ...]
    teacher: Teacher | None = None
    targets: Targets | None = None
    own_answers: Targets | None = None


def training_steps(state: TrainState, data: TrainingData, recipe: Recipe) -> Iterator[StepRecord]:
    """Take the steps from `state.step` to the recipe's last one; yields a record after each.

    Between two records the state is that of a finished step, so a checkpoint may be saved there.

        no teacher that scores        cross-entropy on the targets
        off-policy, warm-up           divergence on the teacher's answers
        on-policy                     divergence on the student's answers; with `on_policy_share` below 1 the rest of a
                                      step's answers are the teacher's
    """
    num, teacher = recipe.prompts_per_step, data.teacher
    order = PromptOrder(data.prompts, recipe.seed)
    targets_of = supervised.answers_by_step(data.targets, recipe)
    own_answers_of = supervised.answers_by_step(data.own_answers, recipe)
    num_warmup = 0 if recipe.warmup is None else recipe.warmup.steps
    num_on_policy = max(1, round(recipe.on_policy_share * num))
    while state.step < recipe.steps:
        own = own_answers_of(state.step, num)
        if teacher is None:
            record = supervised.step(state, targets_of(state.step, num), recipe, own_answers=own)
        elif recipe.route == "off-policy":
            answers, objective = targets_of(state.step, num), off_policy.objective_of(recipe)
            record = off_policy.step(state, teacher, answers, objective, recipe, own_answers=own)
        elif state.step < num_warmup:
            answers, objective = targets_of(state.step, num), on_policy.warmup_objective(recipe)
            record = off_policy.step(state, teacher, answers, objective, recipe, own_answers=own)
        else:
            prompts, mixed = order.of_step(state.step, num_on_policy), targets_of(state.step, num - num_on_policy)
            record = on_policy.step(state, teacher, prompts, recipe, teacher_answers=mixed, own_answers=own)
        state.step += 1
        yield record
