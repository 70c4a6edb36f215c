"""Supervised training: the student learns given answers, token by token.

    loss = sum over answer tokens of -log student(token) / answer tokens of the whole step            [nats per token]

Only answers train: what a prompt says, or an earlier turn that is not a target, is read and not learnt. An answer ends
with the student's stop token. Answers of similar length share a forward pass, up to a budget of tokens.

Run it with `limbeck train RECIPE` and `route: supervised`. The off-policy route is this one on a teacher's answers
where its text is all there is.

Shapes  N = answer tokens of a micro-batch, H = hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from limbeck.data.prompt import Prompt, Targets
from limbeck.objectives.cross_entropy import fused_cross_entropy
from limbeck.objectives.fused import Readings
from limbeck.objectives.reduce import token_weights
from limbeck.recipe.recipe import Recipe
from limbeck.rollouts.request import Completion
from limbeck.training.batches import MicroBatch, PromptOrder
from limbeck.training.health import refuse_non_finite_gradient, refuse_non_finite_loss
from limbeck.training.record import make_record
from limbeck.training.state import PhaseClock, StepRecord, TrainState

__all__ = ["NOTHING", "Text", "count_tokens", "learn_text", "reader_of", "step", "update"]

Text = tuple[Sequence[Prompt], Sequence[Completion], float]
"""Prompts, given answers to them, and the weight of one of their tokens."""

NOTHING: Text = ((), (), 1.0)


def step(state: TrainState, text: Text, recipe: Recipe, *, own: Text = NOTHING) -> StepRecord:
    """Learn `text` once, and `own` answers of people beside it where there are any."""
    clock = state.clock()
    prompts, answers, _ = text
    # -------------------------------------------------------------------------------------- one training step
    num_tokens = count_tokens(text, own)  # of the whole step, before anything is weighted
    readings = learn_text(state, text, num_tokens, recipe, clock)
    own_readings = learn_text(state, own, num_tokens, recipe, clock)
    grad_norm = update(state, prompts, recipe, clock)
    # -------------------------------------------------------------------------------------- end of the step
    return make_record(state, recipe, clock, prompts, answers, readings, grad_norm, own=own_readings)


def learn_text(
    state: TrainState, text: Text, num_tokens: int, recipe: Recipe, clock: PhaseClock
) -> list[tuple[MicroBatch, Readings]]:
    """Add the gradient of a text's cross-entropy, over the `num_tokens` of the whole step; what each token said."""
    prompts, answers, weight = text
    student, readings = state.student, list[tuple[MicroBatch, Readings]]()
    for batch in state.micro_batches(prompts, answers, recipe.micro_batch_tokens):
        with clock.phase("updating"):
            weights_N = token_weights(num_tokens, batch.tokens.num_tokens, dtype=torch.float64, device=student.device)
            loss, reading = fused_cross_entropy(
                student.completion_hidden(batch.tokens),
                student.head,
                batch.tokens.targets_N,
                weight * weights_N,
                chunk_tokens=recipe.chunk_tokens,
            )
            refuse_non_finite_loss(loss, reading, batch, prompts, state)
            loss.backward()
        readings.append((batch, reading))
    return readings


def update(state: TrainState, prompts: Sequence[Prompt], recipe: Recipe, clock: PhaseClock) -> float:
    """Clip the gradients of the step to the recipe's joint norm and take it; their norm before that."""
    with clock.phase("updating"):
        grad_norm = nn.utils.clip_grad_norm_(state.weights.named.values(), recipe.max_grad_norm)
        refuse_non_finite_gradient(grad_norm, prompts, state)
        for group in state.optimizer.param_groups:
            group["lr"] = state.learning_rate(recipe)
        state.optimizer.step()
        state.optimizer.zero_grad(set_to_none=True)
        state.weights.publish()
    return grad_norm.item()


def count_tokens(*texts: Text) -> int:
    return sum(len(answer.ids) for text in texts for answer in text[1])


def reader_of(targets: Targets | None, recipe: Recipe) -> Callable[[int, int], Text]:
    """What a step reads, as a function of the step and of how many answers it reads: each answer once per epoch."""
    if targets is None:
        return lambda step, num: NOTHING
    order = PromptOrder(targets.prompts, recipe.seed)

    def read(step: int, num: int) -> Text:
        prompts = order.of_step(step, num)
        return prompts, [Completion(targets.answer_to(prompt), (), False) for prompt in prompts], targets.weight

    return read
