"""On-policy distillation: the student writes, the teacher reads what it wrote, a divergence pulls them together.

    loss = sum over completion tokens of D(student, teacher) / completion tokens of the whole step      [nats per token]

Source: Agarwal et al. 2024 (GKD), equation 4 with lambda = 1; the sampled text is data, nothing is differentiated
through the sampling. Their mixture with the teacher's text is `on_policy_share`, off by default; a `warmup` of
off-policy steps may come first, and people's `own_answers` beside it all, the only text with a cross-entropy. Left
out: value functions, importance ratios (there is exactly one update per answer, so the student that wrote is the
student that trains).

Run it with `limbeck train RECIPE`; the same step without this package's rooms is examples/minimal_loop.py.

Shapes  N = completion tokens of a micro-batch, H = hidden.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from limbeck.data.prompt import Prompt
from limbeck.objectives.divergence import Objective
from limbeck.objectives.fused import Readings, fused_with_readings
from limbeck.objectives.reduce import token_weights
from limbeck.recipe.recipe import Recipe
from limbeck.rollouts.request import Request, prompt_requests
from limbeck.rollouts.sampling import Purpose, Sampling
from limbeck.routes.off_policy import objective_of
from limbeck.routes.supervised import NOTHING, Text, count_tokens, learn_text, update
from limbeck.teachers.signal import Teacher
from limbeck.training.batches import MicroBatch
from limbeck.training.health import refuse_non_finite_loss
from limbeck.training.record import make_record
from limbeck.training.state import StepRecord, TrainState

__all__ = ["objective_of", "practice_limit_at", "practice_requests", "sampling_of", "step", "warmup_objective"]


def step(
    state: TrainState,
    teacher: Teacher,
    prompts: Sequence[Prompt],
    recipe: Recipe,
    *,
    read: Text = NOTHING,
    own: Text = NOTHING,
) -> StepRecord:
    """Let the student practise on `prompts` once and learn from what the teacher says of it.

    `read` is text that the teacher wrote, which it says as much of; `own` are people's answers.
    """
    student, clock = state.student, state.clock()
    objective, limit = objective_of(recipe), practice_limit_at(state.step, recipe)
    readings: list[tuple[MicroBatch, Readings]] = []
    # -------------------------------------------------------------------------------------- one training step
    with clock.phase("writing"):
        asked = [prompt for prompt in prompts for _ in range(recipe.answers_per_prompt)]
        answers = state.engine.generate(practice_requests(asked, state.step, recipe), sampling_of(recipe))
    state.practised = asked, answers
    asked, answers = [*asked, *read[0]], [*answers, *read[1]]
    num_tokens = count_tokens((asked, answers, 1.0), own)  # of the whole step, before anything is weighted
    for batch in state.micro_batches(asked, answers, recipe.micro_batch_tokens):
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
            refuse_non_finite_loss(loss, reading, batch, asked, state)
            loss.backward()
        readings.append((batch, reading))
    own_readings = learn_text(state, own, num_tokens, recipe, clock)
    grad_norm = update(state, asked, recipe, clock)  # clip, step, schedule
    # -------------------------------------------------------------------------------------- end of the step
    return make_record(
        state, recipe, clock, asked, answers, readings, grad_norm, practice_limit=limit, own=own_readings
    )


def warmup_objective(recipe: Recipe) -> Objective:
    """The forward KL: the one end that also teaches tokens which the student thinks impossible."""
    return Objective(beta=0.0, temperature=recipe.temperature)


def sampling_of(recipe: Recipe) -> Sampling:
    return Sampling(recipe.sampling.temperature, recipe.sampling.top_p, recipe.sampling.top_k)


def practice_limit_at(step: int, recipe: Recipe) -> int:
    """The longest practice answer of a step, in tokens: constant, or growing linearly to `max_practice_tokens`."""
    growth = recipe.practice_growth
    if growth is None:
        return recipe.max_practice_tokens
    progress = min(1.0, step / (growth.until * recipe.steps))
    return max(1, round(recipe.max_practice_tokens * (growth.start + (1 - growth.start) * progress)))


def practice_requests(asked: Sequence[Prompt], step: int, recipe: Recipe) -> list[Request]:
    """A request for each prompt; one that is asked several times gets other random numbers each time."""
    limit = practice_limit_at(step, recipe)
    return prompt_requests(asked, limit, purpose=Purpose.TRAINING, seed=recipe.seed, step=step)
