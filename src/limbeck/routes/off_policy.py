"""Off-policy distillation: the teacher has written answers, once; the student learns from them.

    cross_entropy   sum over answer tokens of -log student(token)          / answer tokens of the whole step
    any other       sum over answer tokens of D(student, teacher)          / answer tokens of the whole step

in nats per token. The first needs the teacher's text alone, so teacher and student may be of different families, and
the teacher may be an interface: it is the supervised route on what the teacher wrote (Kim and Rush 2016). The second
reads the whole distribution of a teacher with the same vocabulary at each token of its own text, soft targets among
them (Hinton et al. 2015).

Run it with `limbeck train RECIPE` and `route: off-policy`.

Shapes  N = answer tokens of a micro-batch, H = hidden.
"""

from __future__ import annotations

import torch

from limbeck.objectives.divergence import Objective
from limbeck.objectives.fused import Readings, fused_with_readings
from limbeck.objectives.reduce import token_weights
from limbeck.recipe.recipe import Recipe
from limbeck.routes.supervised import NOTHING, Text, count_tokens, learn_text, update
from limbeck.teachers.signal import Teacher
from limbeck.training.batches import MicroBatch
from limbeck.training.health import refuse_non_finite_loss
from limbeck.training.record import make_record
from limbeck.training.state import StepRecord, TrainState

__all__ = ["describe_objective", "objective_of", "step"]


def step(
    state: TrainState, teacher: Teacher, text: Text, objective: Objective, recipe: Recipe, *, own: Text = NOTHING
) -> StepRecord:
    """Let the teacher read its own answers to some prompts, and learn from what it says of each token."""
    student, clock = state.student, state.clock()
    prompts, answers, _ = text
    readings: list[tuple[MicroBatch, Readings]] = []
    # -------------------------------------------------------------------------------------- one training step
    num_tokens = count_tokens(text, own)  # of the whole step, before anything is weighted
    for batch in state.micro_batches(prompts, answers, recipe.micro_batch_tokens):
        with clock.phase("reading"):
            signal = teacher.score(batch.tokens)
        with clock.phase("updating"):
            loss, reading = fused_with_readings(
                student.completion_hidden(batch.tokens),
                student.head,
                signal.hidden_NH,
                signal.head,
                token_weights(num_tokens, batch.tokens.num_tokens, dtype=torch.float64, device=student.device),
                objective,
                token_ids_N=batch.tokens.targets_N,
                chunk_tokens=recipe.chunk_tokens,
            )
            refuse_non_finite_loss(loss, reading, batch, prompts, state)
            loss.backward()
        readings.append((batch, reading))
    own_readings = learn_text(state, own, num_tokens, recipe, clock)
    grad_norm = update(state, prompts, recipe, clock)
    # -------------------------------------------------------------------------------------- end of the step
    return make_record(state, recipe, clock, prompts, answers, readings, grad_norm, own=own_readings)


def objective_of(recipe: Recipe) -> Objective:
    """The recipe's divergence, as the numbers that define it."""
    assert recipe.objective != "cross_entropy", "a text alone has no distribution to compare"
    return Objective(
        kind=recipe.objective,
        beta=recipe.beta,
        scale=recipe.scale,
        forward_weight=recipe.forward_weight,
        temperature=recipe.temperature,
    )


def describe_objective(recipe: Recipe) -> str:
    """One line for people."""
    if recipe.objective == "cross_entropy":
        return "cross-entropy -log student(token) of given answers, nats per token"
    return objective_of(recipe).describe()
