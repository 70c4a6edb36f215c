"""Axes: B sequences, T positions."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from limbeck.errors import UsageError
from limbeck.objectives import divergence, masked_mean, token_weights


def test_golden_token_mean(golden: dict[str, Any]) -> None:
    golden = golden["reduction"]
    values_BT = torch.zeros(2, 3, dtype=torch.float64)
    mask_BT = torch.zeros(2, 3, dtype=torch.bool)
    for row, answer in enumerate(golden["answers"]):
        for position, token in enumerate(answer):
            values_BT[row, position] = golden["per_token_reverse_kl"][token]
            mask_BT[row, position] = True
    mean = masked_mean(values_BT, mask_BT, 4)
    assert mean.item() == pytest.approx(golden["token_mean"], abs=1e-12)
    # Weighing the values gives the same; a mean of the answers' means would give .420931.
    assert (token_weights(4, 4, dtype=torch.float64) * values_BT[mask_BT]).sum().item() == pytest.approx(mean.item())


def test_golden_per_token_values(golden: dict[str, Any]) -> None:
    teacher = torch.tensor(golden["teacher"], dtype=torch.float64).log()
    students = torch.tensor(
        [golden["student"], [0.7, 0.1, 0.1, 0.05, 0.05], golden["teacher"]], dtype=torch.float64
    ).log()
    values = divergence(students, teacher.expand(3, 5), 1)
    expected = torch.tensor(golden["reduction"]["per_token_reverse_kl"], dtype=torch.float64)
    torch.testing.assert_close(values, expected, atol=1e-10, rtol=0)


@pytest.mark.report("LM-04")
def test_a_step_cut_into_micro_batches_gives_the_same_sum_and_gradient() -> None:
    generator = torch.Generator().manual_seed(0)
    lengths = [5, 60, 1, 17]
    values = [torch.randn(length, generator=generator, dtype=torch.float64) for length in lengths]
    whole = torch.zeros(4, 60, dtype=torch.float64)
    mask = torch.arange(60) < torch.tensor(lengths)[:, None]
    whole[mask] = torch.cat(values)
    whole.requires_grad_()
    one = masked_mean(whole, mask, sum(lengths))
    parts = [masked_mean(whole[rows], mask[rows], sum(lengths)) for rows in (slice(0, 1), slice(1, 4))]
    assert one.item() == pytest.approx(sum(value.sum().item() for value in values) / sum(lengths), rel=1e-12)
    assert one.item() == pytest.approx(sum(part.item() for part in parts), rel=1e-12)
    gradients = [torch.autograd.grad(loss, whole)[0] for loss in (one, parts[0] + parts[1])]
    torch.testing.assert_close(gradients[0], gradients[1])
    torch.testing.assert_close(gradients[0], mask.double() / sum(lengths))


def test_what_lies_outside_the_mask_never_counts() -> None:
    values = torch.tensor([[1.0, torch.nan], [3.0, torch.inf]], requires_grad=True)
    mask = torch.tensor([[True, False], [True, False]])
    loss = masked_mean(values, mask, 2)
    assert loss.item() == 2
    assert torch.equal(torch.autograd.grad(loss, values)[0], torch.tensor([[0.5, 0.0], [0.5, 0.0]]))


def test_no_tokens_is_zero_not_nan() -> None:
    values = torch.ones(2, 3, requires_grad=True)
    loss = masked_mean(values, torch.zeros(2, 3, dtype=torch.bool), 0)
    assert loss.item() == 0
    assert torch.equal(torch.autograd.grad(loss, values)[0], torch.zeros(2, 3))
    assert token_weights(0, 0).shape == (0,)
    assert token_weights(10, 0).shape == (0,)


def test_weights_are_shares_of_the_whole_step() -> None:
    weights = token_weights(8, 3, dtype=torch.float64)
    assert weights.dtype == torch.float64
    assert weights.tolist() == [0.125] * 3


def test_counts_and_masks_that_cannot_be_are_refused() -> None:
    with pytest.raises(UsageError, match="part of 5 tokens belongs to a step of 4"):
        token_weights(4, 5)
    with pytest.raises(UsageError, match="part of -1"):
        token_weights(4, -1)
    with pytest.raises(UsageError, match="part of 2 tokens belongs to a step of 1"):
        masked_mean(torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool), 1)
    with pytest.raises(UsageError, match="bool"):
        masked_mean(torch.ones(1, 2), torch.ones(1, 2), 2)
    with pytest.raises(UsageError, match="shape"):
        masked_mean(torch.ones(1, 2), torch.ones(2, dtype=torch.bool), 2)
