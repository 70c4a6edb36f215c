"""Off-policy distillation: the teacher has generated answers before training, and the student is trained on them.

    cross_entropy   sum over answer tokens of -log student(token)          / answer tokens of the whole step
    any other       sum over answer tokens of D(student, teacher)          / answer tokens of the whole step

in nats per token. Cross-entropy needs nothing but the teacher's text, so the two models may be of different families
and the teacher may be a hosted API: that is the supervised route on generated answers (sequence-level distillation, Kim
and Rush 2016) and runs in `supervised.step`. The step here is for the divergences, soft targets among them (Hinton et
al. 2015): a teacher with the same vocabulary scores every token of its own text.

Run it with `limbeck train RECIPE` and `route: off-policy`.

Shapes  N = answer tokens of a micro-batch, H = hidden size.
"""

from __future__ import annotations

import torch

from limbeck.objectives.divergence import Objective
from limbeck.objectives.fused import TokenStatistics, fused_with_statistics
from limbeck.objectives.messages import describe_cross_entropy
from limbeck.objectives.reduce import token_weights
from limbeck.recipe.recipe import Recipe
from limbeck.routes.supervised import NO_ANSWERS, AnswerSet, accumulate_cross_entropy, update_weights
from limbeck.teachers.signal import Teacher
from limbeck.training.batches import MicroBatch
from limbeck.training.health import refuse_non_finite_loss
from limbeck.training.record import make_record
from limbeck.training.state import StepRecord, TrainState

__all__ = ["describe_objective", "objective_of", "step"]


def step(
    state: TrainState,
    teacher: Teacher,
    answers: AnswerSet,
    objective: Objective,
    recipe: Recipe,
    *,
    own_answers: AnswerSet = NO_ANSWERS,
) -> StepRecord:
    """One optimizer step on the teacher's distributions over its own answers.

    Args:
        state: the student and its optimizer; changed in place, except for the step counter.
        teacher: gives its distribution at every answer position.
        answers: what the teacher generated before training.
        objective: which divergence (a warm-up has another one than the rest of its run).
        recipe: the settings.
        own_answers: human-written answers that add a weighted cross-entropy.

    Raises:
        Diverged: the loss or the gradient norm is not finite; the weights are unchanged.
    """
    student, clock = state.student, state.clock()
    stats: list[tuple[MicroBatch, TokenStatistics]] = []
    # -------------------------------------------------------------------------------------- one training step
    num_tokens = answers.num_tokens + own_answers.num_tokens  # of the whole step: the divisor of every micro-batch
    for batch in state.micro_batches(answers.prompts, answers.completions, recipe.micro_batch_tokens):
        with clock.phase("scoring"):
            signal = teacher.score(batch.tokens)  # no gradient
        with clock.phase("update"):
            loss, batch_stats = fused_with_statistics(
                student.completion_hidden(batch.tokens),
                student.head,
                signal.hidden_NH,
                signal.head,
                token_weights(num_tokens, batch.tokens.num_tokens, dtype=torch.float64, device=student.device),
                objective,
                token_ids_N=batch.tokens.targets_N,
                chunk_tokens=recipe.chunk_tokens,
            )
            refuse_non_finite_loss(loss, batch_stats, batch, answers.prompts, state)
            loss.backward()
        stats.append((batch, batch_stats))
    own_stats = accumulate_cross_entropy(state, own_answers, num_tokens, recipe, clock)
    grad_norm = update_weights(state, answers.prompts, recipe, clock)  # clip, schedule, AdamW
    # -------------------------------------------------------------------------------------- end of the step
    return make_record(state, recipe, clock, answers, stats, grad_norm, own_stats=own_stats)


def objective_of(recipe: Recipe) -> Objective:
    """The divergence that the recipe's settings define."""
    assert recipe.objective != "cross_entropy", "cross-entropy compares no distributions"
    return Objective(
        kind=recipe.objective,
        beta=recipe.beta,
        scale=recipe.scale,
        forward_weight=recipe.forward_weight,
        temperature=recipe.temperature,
    )


def describe_objective(recipe: Recipe) -> str:
    """The objective in one line, with its formula and unit."""
    return describe_cross_entropy() if recipe.objective == "cross_entropy" else objective_of(recipe).describe()
