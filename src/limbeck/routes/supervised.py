"""Supervised training: the student is trained on reference answers, token by token.

    loss = sum over answer tokens of -log student(token) / answer tokens of the whole step            [nats per token]

Only answers are trained on: prompts, and earlier turns that are not targets, are context. The student's stop token is
the last token of every answer. Answers of similar length share a forward pass, up to a token budget.

Run it with `limbeck train RECIPE` and `route: supervised`. Off-policy distillation with cross-entropy is the same step
on answers that a teacher generated.

Shapes  N = answer tokens of a micro-batch, H = hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from limbeck.data.prompt import Prompt, Targets
from limbeck.objectives.cross_entropy import fused_cross_entropy
from limbeck.objectives.fused import TokenStatistics
from limbeck.objectives.reduce import token_weights
from limbeck.recipe.recipe import Recipe
from limbeck.rollouts.request import Completion
from limbeck.training.batches import AnswerSet, MicroBatch, PromptOrder
from limbeck.training.health import refuse_non_finite_gradient, refuse_non_finite_loss
from limbeck.training.record import make_record
from limbeck.training.state import PhaseClock, StepRecord, TrainState

__all__ = ["NO_ANSWERS", "AnswerSet", "accumulate_cross_entropy", "answers_by_step", "step", "update_weights"]

NO_ANSWERS = AnswerSet((), ())


def step(state: TrainState, answers: AnswerSet, recipe: Recipe, *, own_answers: AnswerSet = NO_ANSWERS) -> StepRecord:
    """One optimizer step on reference answers, and on human-written `own_answers` where the recipe adds them.

    Changes the student and its optimizer in place, except for the step counter.

    Raises:
        Diverged: the loss or the gradient norm is not finite; the weights are unchanged.
    """
    clock = state.clock()
    # -------------------------------------------------------------------------------------- one training step
    num_tokens = answers.num_tokens + own_answers.num_tokens  # of the whole step: the divisor of every micro-batch
    stats = accumulate_cross_entropy(state, answers, num_tokens, recipe, clock)
    own_stats = accumulate_cross_entropy(state, own_answers, num_tokens, recipe, clock)
    grad_norm = update_weights(state, answers.prompts, recipe, clock)
    # -------------------------------------------------------------------------------------- end of the step
    return make_record(state, recipe, clock, answers, stats, grad_norm, own_stats=own_stats)


def accumulate_cross_entropy(
    state: TrainState, answers: AnswerSet, num_tokens: int, recipe: Recipe, clock: PhaseClock
) -> list[tuple[MicroBatch, TokenStatistics]]:
    """Add the gradient of weight · sum of -log student(token) / `num_tokens`; returns the statistics of each token.

    `num_tokens` counts the answer tokens of the whole step.
    """
    student, stats = state.student, list[tuple[MicroBatch, TokenStatistics]]()
    for batch in state.micro_batches(answers.prompts, answers.completions, recipe.micro_batch_tokens):
        with clock.phase("update"):
            weights_N = token_weights(num_tokens, batch.tokens.num_tokens, dtype=torch.float64, device=student.device)
            loss, batch_stats = fused_cross_entropy(
                student.completion_hidden(batch.tokens),
                student.head,
                batch.tokens.targets_N,
                answers.weight * weights_N,
                chunk_tokens=recipe.chunk_tokens,
            )
            refuse_non_finite_loss(loss, batch_stats, batch, answers.prompts, state)
            loss.backward()
        stats.append((batch, batch_stats))
    return stats


def update_weights(state: TrainState, prompts: Sequence[Prompt], recipe: Recipe, clock: PhaseClock) -> float:
    """Clip the accumulated gradients to the joint norm `max_grad_norm`, set the learning rate and take an AdamW step.

    Returns the norm before clipping. Raises Diverged, naming `prompts`, if it is not finite.
    """
    with clock.phase("update"):
        grad_norm = nn.utils.clip_grad_norm_(state.weights.named.values(), recipe.max_grad_norm)
        refuse_non_finite_gradient(grad_norm, prompts, state)
        for group in state.optimizer.param_groups:
            group["lr"] = state.learning_rate(recipe)
        state.optimizer.step()
        state.optimizer.zero_grad(set_to_none=True)
        state.weights.publish()
    return grad_norm.item()


def answers_by_step(targets: Targets | None, recipe: Recipe) -> Callable[[int, int], AnswerSet]:
    """A function of the step and a number of answers that returns the answers of that step, each once per epoch.

    Without targets it always returns `NO_ANSWERS`.
    """
    if targets is None:
        return lambda step, num: NO_ANSWERS
    order = PromptOrder(targets.prompts, recipe.seed)

    def answers_of(step: int, num: int) -> AnswerSet:
        prompts = order.of_step(step, num)
        completions = [Completion(targets.answer_to(prompt), (), False) for prompt in prompts]
        return AnswerSet(prompts, completions, targets.weight)

    return answers_of
