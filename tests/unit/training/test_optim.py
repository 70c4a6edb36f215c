"""The learning rate against literal values, and AdamW against its formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from limbeck.routes.on_policy import step
from limbeck.teachers.local import LocalTeacher
from limbeck.training.optim import learning_rate_at, make_optimizer
from pairs import random_prompts, recipe_of, state_of, tiny_model


@pytest.mark.parametrize(
    ("warmup_steps", "decay_share", "rates"),
    [
        (4, 0.5, [0.5, 1.0, 1.5, 2.0, 2.0, 2.0, 1.6, 1.2, 0.8, 0.4]),
        (0, 0.3, [2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 4 / 3, 2 / 3]),
        (5, 0.0, [0.4, 0.8, 1.2, 1.6, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0]),
        (0, 0.0, [2.0] * 10),
        (1, 0.1, [2.0] * 10),
        # where the two meet, the lower one counts
        (8, 1.0, [0.25, 0.5, 0.75, 1.0, 1.2, 1.0, 0.8, 0.6, 0.4, 0.2]),
    ],
)
def test_the_rate_rises_stays_and_falls(warmup_steps, decay_share, rates):
    recipe = recipe_of(steps=10, learning_rate=2e-3, warmup_steps=warmup_steps, decay_share=decay_share)
    found = [1e3 * learning_rate_at(number, recipe) for number in range(10)]
    assert found == pytest.approx(rates, abs=1e-12)


def adamw(weights, gradients, rates, *, decay, betas=(0.9, 0.95), epsilon=1e-8):
    """Algorithm 2 of Loshchilov and Hutter (2019), with the decay times the rate, over steps of given gradients."""
    first, second = np.zeros_like(weights), np.zeros_like(weights)
    for number, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), start=1):
        first = betas[0] * first + (1 - betas[0]) * gradient
        second = betas[1] * second + (1 - betas[1]) * gradient**2
        direction = (first / (1 - betas[0] ** number)) / (np.sqrt(second / (1 - betas[1] ** number)) + epsilon)
        weights = weights - rate * decay * weights - rate * direction
    return weights


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_adamw_takes_the_steps_of_its_formulas(decay):
    """Gradients of very different sizes from step to step: there each beta shows."""
    rng = np.random.default_rng(0)
    weights, gradients = rng.normal(size=7), rng.normal(size=(5, 7)) * np.array([1.0, 10.0, 0.1, 3.0, 0.01])[:, None]
    parameter = nn.Parameter(torch.tensor(weights))
    optimizer = make_optimizer([parameter], recipe_of(learning_rate=1e-2, weight_decay=decay))
    for gradient in gradients:
        parameter.grad = torch.tensor(gradient)
        optimizer.step()
    expected = adamw(weights, gradients, [1e-2] * 5, decay=decay)
    np.testing.assert_allclose(parameter.detach().numpy(), expected, rtol=0, atol=1e-12)


def test_one_pass_updates_all_weights():
    (group,) = make_optimizer([nn.Parameter(torch.zeros(3))], recipe_of()).param_groups
    assert group["fused"]


@pytest.mark.parametrize(("max_grad_norm", "clips"), [(0.05, True), (1e9, False)])
def test_training_steps_clip_decay_and_follow_the_schedule(max_grad_norm, clips):
    """Three whole steps in float64: the weights are those of numpy from the gradients as they were before clipping."""
    recipe = recipe_of(
        steps=3, prompts_per_step=4, max_practice_tokens=6, learning_rate=1e-2, warmup_steps=2, decay_share=0.5,
        weight_decay=0.2, max_grad_norm=max_grad_norm,
    )  # fmt: skip
    student = tiny_model(dtype=torch.float64)
    state, teacher = state_of(student, recipe), LocalTeacher(tiny_model(seed=1, dtype=torch.float64))
    parameters = list(state.weights.named.values())
    before = torch.cat([parameter.detach().flatten() for parameter in parameters]).numpy().copy()
    clipped, norms, own_step = [], [], state.optimizer.step

    def catching_step():
        clipped.append(torch.cat([parameter.grad.flatten() for parameter in parameters]).numpy().copy())
        own_step()

    state.optimizer.step = catching_step
    for _ in range(3):
        norms.append(step(state, teacher, random_prompts(4), recipe).grad_norm)
        state.step += 1
    for gradient, norm in zip(clipped, norms, strict=True):
        left = np.linalg.norm(gradient)
        assert left == pytest.approx(max_grad_norm if clips else norm, rel=1e-4)
        assert norm > max_grad_norm or not clips
    # rising 1/2, 1; falling 1.5 steps at the end: 3/1.5, 2/1.5, 1/1.5
    expected = adamw(before, clipped, [5e-3, 1e-2, 2e-2 / 3], decay=0.2)
    after = torch.cat([parameter.detach().flatten() for parameter in parameters]).numpy()
    np.testing.assert_allclose(after, expected, rtol=0, atol=1e-12)
