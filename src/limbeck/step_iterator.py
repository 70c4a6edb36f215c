"""Training steps for the caller's own loop, without a run folder, checkpoints or evaluations."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack
from typing import Self

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from limbeck.machine import precision_kept
from limbeck.messages import steps_hosted
from limbeck.models.adapters import merge_adapters
from limbeck.models.lent import lent
from limbeck.models.memory import MemoryModel, known, lend
from limbeck.planning.check import plan_recipe
from limbeck.planning.memory import refuse_if_too_large
from limbeck.recipe.recipe import Recipe
from limbeck.routes.loop import TrainingData, training_steps
from limbeck.teachers.local import LocalTeacher
from limbeck.teachers.writer import generate_answers
from limbeck.training.answers import label_unfit, targets_from_answers
from limbeck.training.material import Material
from limbeck.training.setup import Models, load_models, make_answer_generator, make_state
from limbeck.training.state import StepRecord, TrainState

__all__ = ["Steps", "take_steps"]

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
Schedule = Callable[[int], float]


class Steps(Iterator[StepRecord]):
    """An iterator of training steps. Between two steps you can log the record, save the student, or stop.

        with limbeck.steps(student, teacher, rows, steps=100) as steps:
            for record in steps:
                print(record.step, record.loss)
        steps.student.save_pretrained("distilled")

    After the last step, after `close` and at the end of a `with` block the student is a plain transformers
    model: adapters are merged, and Limbeck's changes to the module are undone.
    """

    def __init__(self, state: TrainState, records: Generator[StepRecord | None], notes: tuple[str, ...]) -> None:
        self.notes = notes
        """Notes about models and prompts from the start."""
        self._state = state
        self._records = records

    @property
    def student(self) -> PreTrainedModel:
        """The model that is trained: a copy of the caller's, or with `in_place=True` the caller's own."""
        return self._state.student.module

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The student's tokenizer."""
        return self._state.student.tokenizer

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of the run's trainable weights."""
        return self._state.optimizer

    def __next__(self) -> StepRecord:
        record = next(self._records)
        assert record is not None, "every record after the first yield is a StepRecord"
        return record

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop training. Further calls have no effect."""
        self._records.close()


def take_steps(
    recipe: Recipe,
    held: Iterable[MemoryModel] = (),
    *,
    optimizer: MakeOptimizer | None = None,
    schedule: Schedule | None = None,
    watch: Callable[[str], None] = lambda phase: None,
) -> Steps:
    """Load the models and prepare the first step, which the first `next` runs.

    Args:
        held: the models in memory that the recipe refers to.
        optimizer: makes an optimizer from the trainable parameters, instead of AdamW.
        schedule: the learning rate of a step, counted from 0, instead of the recipe's.
        watch: called with the phase of a step whenever it changes.

    Raises:
        LimbeckError: as for a run.
        Refusal: the teacher is a model of a hosted API.
    """
    if recipe.teacher is not None and recipe.teacher.startswith("openai:"):
        raise steps_hosted(teacher=recipe.teacher)
    models_held = list(held)
    stack = ExitStack()
    try:
        with precision_kept():
            stack.enter_context(lend(models_held))
            with known(models_held):
                plan = plan_recipe(recipe)
                refuse_if_too_large(plan.memory)
                models = load_models(plan.material, recipe, plan.machine)
                patches = stack.enter_context(ExitStack())
                patches.enter_context(lent(models.student.module))
                state = make_state(models, plan.material, recipe, watch)
                if optimizer is not None:
                    state.optimizer = optimizer(list(models.weights.named.values()))
                state.schedule = schedule
                data = _training_data(models, plan.material, recipe)
    except BaseException:
        stack.close()
        raise
    records = _records(state, data, recipe, plan.machine.matmul_precision, stack, patches)
    next(records)  # run to the first yield, so that close() runs the cleanup
    return Steps(state, records, (*plan.material.notes, *models.notes))


def _training_data(models: Models, material: Material, recipe: Recipe) -> TrainingData:
    """The data that the route trains on; the teacher generates its answers here if the route needs them."""
    targets = material.targets
    if recipe.answers_written:
        generator = make_answer_generator(models, material, recipe, account="steps", log=lambda kind, **fields: None)
        prompts = material.train.prompts
        rows = generate_answers(
            generator, prompts, material.examples, num_answers=recipe.answers_written, seed=recipe.seed
        )
        label_unfit(rows, material, recipe)
        targets = targets_from_answers(rows, material, recipe)
    teacher = None if models.teacher is None or not recipe.scores else LocalTeacher(models.teacher)
    return TrainingData(material.train.prompts, teacher, targets, material.own)


def _records(
    state: TrainState, data: TrainingData, recipe: Recipe, precision: str, stack: ExitStack, patches: ExitStack
) -> Generator[StepRecord | None]:
    """None, then a record for each step; between steps the caller's matmul precision is restored."""
    steps = training_steps(state, data, recipe)
    try:
        yield None
        while True:
            with precision_kept(precision):
                record = next(steps, None)
            if record is None:
                return
            yield record
    finally:
        patches.close()
        state.weights.widen()
        if recipe.lora is not None:
            merge_adapters(state.student)
        stack.close()
