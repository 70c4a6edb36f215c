"""On-policy distillation: the student generates answers, the teacher scores them, a divergence trains the student.

    loss = sum over completion tokens of D(student, teacher) / completion tokens of the whole step      [nats per token]

D compares the next-token distributions of the two models at each position of the student's own answers. Source:
Agarwal et al. 2024 (GKD, arXiv 2306.13649), equation 4 with lambda = 1. The sampled tokens are data: no gradient flows
through the sampling. GKD's mixture with answers of the teacher is `on_policy_share` (1, no mixture, by default);
off-policy steps may come first (`warmup`), and human-written answers may be mixed in (`own_answers`, the only term with
a cross-entropy).

Left out: value functions, advantages and importance ratios. Every answer is used for exactly one update, so the student
that generates is the student that trains.

Run it with `limbeck train RECIPE`. examples/minimal_loop.py has the same step without the modules of this package.

Shapes  N = completion tokens of a micro-batch, H = hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from limbeck.data.prompt import Prompt
from limbeck.objectives.divergence import Objective
from limbeck.objectives.fused import TokenStatistics, fused_with_statistics
from limbeck.objectives.reduce import token_weights
from limbeck.recipe.recipe import Recipe
from limbeck.rollouts.request import GenerationRequest, prompt_requests
from limbeck.rollouts.sampling import Purpose, Sampling
from limbeck.routes.off_policy import objective_of
from limbeck.routes.supervised import NO_ANSWERS, AnswerSet, accumulate_cross_entropy, update_weights
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
    teacher_answers: AnswerSet = NO_ANSWERS,
    own_answers: AnswerSet = NO_ANSWERS,
) -> StepRecord:
    """One optimizer step on the student's own answers to `prompts`.

    Args:
        state: the student, its optimizer and its engine; changed in place, except for the step counter.
        teacher: gives its distribution at every completion position.
        prompts: each is answered `answers_per_prompt` times.
        recipe: the settings.
        teacher_answers: answers of the teacher that the same divergence is computed on (`on_policy_share`).
        own_answers: human-written answers that add a weighted cross-entropy (`own_answers`).

    Raises:
        Diverged: the loss or the gradient norm is not finite; the weights are unchanged.
    """
    student, clock = state.student, state.clock()
    objective, limit = objective_of(recipe), practice_limit_at(state.step, recipe)
    stats: list[tuple[MicroBatch, TokenStatistics]] = []
    # -------------------------------------------------------------------------------------- one training step
    with clock.phase("generation"):
        prompts = [prompt for prompt in prompts for _ in range(recipe.answers_per_prompt)]
        completions = state.engine.generate(practice_requests(prompts, state.step, recipe), sampling_of(recipe))
    state.rollouts = AnswerSet(prompts, completions)
    answers = AnswerSet([*prompts, *teacher_answers.prompts], [*completions, *teacher_answers.completions])
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
    return make_record(state, recipe, clock, answers, stats, grad_norm, practice_limit=limit, own_stats=own_stats)


def warmup_objective(recipe: Recipe) -> Objective:
    """Forward KL: the end of the range that also trains tokens to which the student gives no probability."""
    return Objective(beta=0.0, temperature=recipe.temperature)


def sampling_of(recipe: Recipe) -> Sampling:
    """How practice answers are sampled."""
    return Sampling(recipe.sampling.temperature, recipe.sampling.top_p, recipe.sampling.top_k)


def practice_limit_at(step: int, recipe: Recipe) -> int:
    """The token limit of a step's practice answers: constant, or growing linearly to `max_practice_tokens`."""
    growth = recipe.practice_growth
    if growth is None:
        return recipe.max_practice_tokens
    progress = min(1.0, step / (growth.until * recipe.steps))
    return max(1, round(recipe.max_practice_tokens * (growth.start + (1 - growth.start) * progress)))


def practice_requests(prompts: Sequence[Prompt], step: int, recipe: Recipe) -> list[GenerationRequest]:
    """One request per prompt; each occurrence of the same prompt samples with other random numbers."""
    limit = practice_limit_at(step, recipe)
    return prompt_requests(prompts, limit, purpose=Purpose.TRAINING, seed=recipe.seed, step=step)
