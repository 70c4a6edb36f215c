"""Axes: N positions, V vocabulary, K kept tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_divergence import BETAS
from torch import Tensor

from limbeck.errors import UsageError
from limbeck.objectives.divergence import divergence
from limbeck.objectives.topk import topk_divergence


def random_logits(*shape: int, seed: int, spread: float = 3.0) -> Tensor:
    return spread * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def top(teacher_logits: Tensor, num_kept: int) -> tuple[Tensor, Tensor]:
    logprobs, ids = torch.log_softmax(teacher_logits, -1).topk(num_kept, dim=-1)
    return ids, logprobs


def in_buckets(student: Tensor, ids: Tensor, logprobs: Tensor) -> tuple[Tensor, Tensor]:
    """Both sides as k+1 log-probabilities, by the definition: 1 minus the kept."""
    q = torch.softmax(student, -1).gather(-1, ids)
    p = logprobs.exp()
    return tuple(torch.cat([kept, 1 - kept.sum(-1, keepdim=True)], -1).log() for kept in (q, p))  # type: ignore[return-value]


@pytest.mark.parametrize(("dtype", "near"), [(torch.float64, 1e-10), (torch.float32, 2e-6)])
def test_golden_tail_bucket(golden: dict[str, Any], dtype: torch.dtype, near: float) -> None:
    student = torch.tensor(golden["student"], dtype=torch.float64).log().to(dtype)
    teacher = torch.tensor(golden["teacher"], dtype=torch.float64).log().to(dtype)
    for row in golden["tail_bucket"]:
        ids, logprobs = torch.arange(row["k"]), teacher[: row["k"]]
        for beta, name in ((0, "beta0"), (0.5, "gkd_0.5"), (1, "beta1")):
            assert topk_divergence(student, ids, logprobs, beta).item() == pytest.approx(row[name], abs=near)


@pytest.mark.parametrize("scale", ["gkd", "unit"])
@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("num_kept", [1, 3, 6])
def test_value_and_gradient_are_those_of_the_buckets(num_kept: int, beta: float, scale: Any) -> None:
    student = random_logits(2, 3, 7, seed=1).requires_grad_()
    ids, logprobs = top(random_logits(2, 3, 7, seed=2), num_kept)
    value = topk_divergence(student, ids, logprobs, beta, scale=scale)
    expected = divergence(*in_buckets(student, ids, logprobs), beta, scale=scale)
    torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-12)
    got, wanted = (torch.autograd.grad(loss.sum(), student, retain_graph=True)[0] for loss in (value, expected))
    torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-11)
    assert torch.autograd.gradcheck(lambda s: topk_divergence(s, ids, logprobs, beta, scale=scale), (student,))


@pytest.mark.parametrize("beta", BETAS)
def test_all_tokens_kept_is_the_full_divergence(beta: float) -> None:
    student, teacher = random_logits(4, 9, seed=3).requires_grad_(), random_logits(4, 9, seed=4)
    value = topk_divergence(student, *top(teacher, 9), beta)
    full = divergence(student, teacher, beta)
    torch.testing.assert_close(value, full, rtol=1e-12, atol=1e-13)
    got, wanted = (torch.autograd.grad(loss.sum(), student)[0] for loss in (value, full))
    torch.testing.assert_close(got, wanted, rtol=1e-11, atol=1e-13)


def test_the_bucket_bounds_the_full_divergence_from_below_and_grows_with_k() -> None:
    student, teacher = random_logits(50, 20, seed=5), random_logits(50, 20, seed=6)
    for beta in BETAS:
        values = torch.stack([topk_divergence(student, *top(teacher, k), beta) for k in (1, 2, 5, 10, 19, 20)])
        assert (values.diff(dim=0) >= -1e-9).all()
        torch.testing.assert_close(values[-1], divergence(student, teacher, beta))


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_where_the_truncated_sum_is_negative_the_bucket_still_teaches(beta: float) -> None:
    p = torch.tensor([0.5, 0.3, 0.1, 0.06, 0.04], dtype=torch.float64)
    q = torch.tensor([0.55, 0.40, 0.02, 0.02, 0.01], dtype=torch.float64)
    truncated = (p[:2] * (p[:2] / q[:2]).log()).sum()
    assert truncated.item() == pytest.approx(-0.13396, abs=1e-5)
    student = q.log().requires_grad_()
    value = topk_divergence(student, torch.arange(2), p[:2].log(), beta)
    assert value.item() > 0.01
    (gradient,) = torch.autograd.grad(value, student)
    # The student gives the tail a quarter of what the teacher gives it, so every tail logit is pushed up.
    assert (gradient[2:] < -1e-4).all()
    assert gradient[:2].sum() > 1e-3


def test_reverse_kl_does_not_empty_the_kept_tokens() -> None:
    student = random_logits(1, 30, seed=7, spread=1.0).requires_grad_()
    teacher = random_logits(1, 30, seed=8, spread=1.0)
    ids, logprobs = top(teacher, 5)
    before = torch.softmax(student, -1).gather(-1, ids).sum().item()
    optimizer = torch.optim.SGD([student], lr=2.0)
    for _ in range(50):
        optimizer.zero_grad()
        topk_divergence(student, ids, logprobs, 1).sum().backward()
        optimizer.step()
    after = torch.softmax(student, -1).gather(-1, ids).sum().item()
    assert after > before
    assert after == pytest.approx(logprobs.exp().sum().item(), abs=0.02)


def test_a_small_tail_of_the_student_is_summed_not_subtracted() -> None:
    # 152 000 tokens of which one has nearly everything: the tail of 3e-4 from 1 minus the rest is rounding in float32.
    num_vocabulary = 152_000
    student = torch.zeros(num_vocabulary)
    student[0] = 20.0
    ids, logprobs = torch.tensor([0]), torch.tensor([-1e-4])
    value = topk_divergence(student, ids, logprobs, 1)
    exact = topk_divergence(student.double(), ids, logprobs.double(), 1)
    assert value.item() == pytest.approx(exact.item(), rel=2e-3)
    tail = num_vocabulary / (num_vocabulary + torch.tensor(20.0, dtype=torch.float64).exp().item())
    assert 2e-4 < tail < 4e-4


def test_a_teacher_without_a_tail_leaves_it_one_rounding_unit() -> None:
    student = torch.zeros(5, requires_grad=True)
    for total in (1.0, 1 + 5e-7, 1 + 5e-4):
        logprobs = torch.tensor([0.75 * total, 0.25 * total]).log()
        for beta in (0, 0.5, 1):
            value = topk_divergence(student, torch.tensor([4, 1]), logprobs, beta)
            (gradient,) = torch.autograd.grad(value, student)
            assert 0 < value.item() < 20
            assert torch.isfinite(gradient).all()
    # KL(teacher‖student) with the student at .2 .2 and .6 for the rest: .75 ln(.75/.2) + .25 ln(.25/.2) = 1.0471
    value = topk_divergence(student, torch.tensor([4, 1]), torch.tensor([0.75, 0.25]).log(), 0)
    assert value.item() == pytest.approx(1.0471, abs=1e-4)


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_minus_infinity_is_finite_everywhere(beta: float) -> None:
    never = -torch.inf
    ids = torch.tensor([[0, 1], [0, 1], [2, 3], [0, 1]])
    logprobs = torch.tensor([[0.5, 0.25], [1.0, 0.0], [0.5, 0.25], [0.5, 0.25]]).log()
    student = torch.tensor(
        [[0.0, never, 1, 2], [0, 1, 2, 3], [never, never, 1, 1], [0, 1, never, never]], requires_grad=True
    )
    value = topk_divergence(student, ids, logprobs, beta)
    (gradient,) = torch.autograd.grad(value.sum(), student)
    assert torch.isfinite(value).all()
    assert (value >= 0).all()
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("side", ["student", "teacher"])
def test_nan_shows_in_its_own_token(side: str) -> None:
    student, (ids, logprobs) = random_logits(3, 6, seed=9), top(random_logits(3, 6, seed=10), 2)
    (student if side == "student" else logprobs)[1, 0] = torch.nan
    for beta in (0, 0.5, 1):
        assert torch.isfinite(topk_divergence(student, ids, logprobs, beta)).tolist() == [True, False, True]


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    num_kept=st.integers(1, 11),
    spread=st.sampled_from([1e-3, 1.0, 10.0, 100.0]),
    beta=st.sampled_from(BETAS),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_never_negative(seed: int, num_kept: int, spread: float, beta: float, dtype: torch.dtype) -> None:
    student = random_logits(3, 12, seed=seed, spread=spread).to(dtype).requires_grad_()
    ids, logprobs = top(random_logits(3, 12, seed=seed + 1, spread=spread).to(dtype), num_kept)
    value = topk_divergence(student, ids, logprobs, beta, scale="unit")
    assert (value >= 0).all()
    assert torch.isfinite(torch.autograd.grad(value.sum(), student)[0]).all()


def test_types_and_gradients() -> None:
    student = random_logits(2, 6, seed=11).bfloat16().requires_grad_()
    ids, logprobs = top(random_logits(2, 6, seed=12), 3)
    logprobs.requires_grad_()
    value = topk_divergence(student, ids.int(), logprobs.float(), 0.5)
    assert value.dtype == torch.float32
    value.sum().backward()
    assert student.grad is not None
    assert student.grad.dtype == torch.bfloat16
    assert logprobs.grad is None
    assert topk_divergence(torch.zeros(0, 6), torch.zeros(0, 2, dtype=torch.long), torch.zeros(0, 2), 1).shape == (0,)


def refusal(student: Tensor, ids: Tensor, logprobs: Tensor, beta: float = 1.0) -> str:
    with pytest.raises(UsageError) as caught:
        topk_divergence(student, ids, logprobs, beta)
    return caught.value.code


def test_what_does_not_fit_is_refused() -> None:
    student, logprobs = torch.zeros(2, 5), torch.full((2, 2), 0.25).log()
    ids = torch.tensor([[0, 1], [2, 3]])
    assert refusal(student, torch.tensor([[0, 1], [3, 3]]), logprobs) == "objective.topk-id-twice"
    assert refusal(student, torch.tensor([[0, 1], [2, 5]]), logprobs) == "objective.topk-id-range"
    assert refusal(student, torch.tensor([[0, 1], [-1, 2]]), logprobs) == "objective.topk-id-range"
    assert refusal(student, ids, torch.zeros(2, 2)) == "objective.topk-sum"
    assert refusal(student, ids, torch.tensor([[0.5, 0.25], [0.9, 0.2]]).log()) == "objective.topk-sum"
    assert refusal(student, ids[:1], logprobs[:1]) == "objective.topk-shape"
    assert refusal(student, ids, logprobs[:, :1]) == "objective.topk-shape"
    assert refusal(student, ids[:, :0], logprobs[:, :0]) == "objective.topk-shape"
    assert refusal(student[:, :1], ids, logprobs) == "objective.topk-shape"
    assert refusal(student, logprobs, ids.float()) == "objective.topk-type"
    assert refusal(student, ids, logprobs, beta=2.0) == "objective.beta"


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 1e-3), (torch.float32, 1e-3), (torch.bfloat16, 1e-2), (torch.float16, 1e-2)],
)
def test_a_sum_above_one_is_rounding_up_to_the_tolerance_of_its_type(dtype: torch.dtype, tolerance: float) -> None:
    """One kept token, so that its log-probability is the logarithm of the sum."""
    student, ids = torch.zeros(1, 5, dtype=torch.float64), torch.tensor([[2]])
    below = torch.tensor([[tolerance * 0.95]], dtype=torch.float64).to(dtype)
    assert torch.isfinite(topk_divergence(student, ids, below, 1.0)).all()
    above = torch.tensor([[tolerance * 1.05]], dtype=torch.float64).to(dtype)
    assert refusal(student, ids, above) == "objective.topk-sum"
