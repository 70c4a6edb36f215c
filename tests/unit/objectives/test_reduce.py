from __future__ import annotations

from typing import Any

import pytest
import torch

from limbeck.errors import UsageError
from limbeck.objectives.divergence import divergence
from limbeck.objectives.reduce import token_weights


def test_golden_token_mean(golden: dict[str, Any]) -> None:
    golden = golden["reduction"]
    values = [golden["per_token_reverse_kl"][token] for answer in golden["answers"] for token in answer]
    weights = token_weights(len(values), len(values), dtype=torch.float64)
    # A mean of the answers' means would give .420931.
    mean = weights @ torch.tensor(values, dtype=torch.float64)
    assert mean.item() == pytest.approx(golden["token_mean"], abs=1e-12)


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
    values = torch.randn(83, generator=generator, dtype=torch.float64).requires_grad_()

    def loss(*lengths: int) -> torch.Tensor:
        parts = values.split(lengths)
        return sum(part @ token_weights(83, len(part), dtype=torch.float64) for part in parts)  # type: ignore[return-value]

    whole, cut = loss(83), loss(5, 60, 0, 1, 17)
    assert whole.item() == pytest.approx(values.mean().item(), rel=1e-12)
    assert cut.item() == pytest.approx(whole.item(), rel=1e-12)
    gradients = [torch.autograd.grad(each, values)[0] for each in (whole, cut)]
    torch.testing.assert_close(gradients[0], gradients[1])


def test_no_tokens_have_no_weights() -> None:
    assert token_weights(0, 0).shape == (0,)
    assert token_weights(10, 0).shape == (0,)


def test_weights_are_shares_of_the_whole_step() -> None:
    weights = token_weights(8, 3, dtype=torch.float64)
    assert weights.dtype == torch.float64
    assert weights.tolist() == [0.125] * 3


def test_counts_that_cannot_be_are_refused() -> None:
    with pytest.raises(UsageError, match="micro-batch of 5 tokens is part of a step of 4 tokens"):
        token_weights(4, 5)
    with pytest.raises(UsageError, match="micro-batch of -1"):
        token_weights(4, -1)
