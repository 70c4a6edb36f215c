"""Values and gradients against the golden numbers and the plain definitions; shapes, types and errors.

Axes: N positions, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from naive_divergence import BETAS, EVERY_OBJECTIVE, naive, name_of
from torch import Tensor

from limbeck.errors import UsageError, VocabularyMismatch
from limbeck.objectives.divergence import divergence, kl_mix, objective_per_token, soft_targets
from limbeck.objectives.objective import Objective

DOUBLE = {"atol": 1e-10, "rtol": 0.0}
SINGLE = {"atol": 2e-6, "rtol": 0.0}
TYPES = pytest.mark.parametrize(("dtype", "near"), [(torch.float64, DOUBLE), (torch.float32, SINGLE)])


def logits_of(golden: dict[str, Any], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    student, teacher = (torch.tensor(golden[side], dtype=torch.float64).log() for side in ("student", "teacher"))
    return student.to(dtype).requires_grad_(), teacher.to(dtype)


def expect(value: Tensor, student: Tensor, number: float, gradient: list[float] | None, near: dict[str, float]) -> None:
    torch.testing.assert_close(value, torch.tensor(number, dtype=student.dtype), **near)
    if gradient is not None:
        (got,) = torch.autograd.grad(value, student)
        torch.testing.assert_close(got, torch.tensor(gradient, dtype=student.dtype), **near)


def random_logits(*shape: int, seed: int, spread: float = 3.0) -> Tensor:
    return spread * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@TYPES
@pytest.mark.parametrize("scale", ["gkd", "unit"])
def test_golden_betas(golden: dict[str, Any], dtype: torch.dtype, near: dict[str, float], scale: Any) -> None:
    assert [row["beta"] for row in golden["betas"]] == list(BETAS)
    for row in golden["betas"]:
        student, teacher = logits_of(golden, dtype)
        value = divergence(student, teacher, row["beta"], scale=scale)
        expect(value, student, row[scale], row[f"grad_{scale}"], near)


@TYPES
def test_golden_kl_mix(golden: dict[str, Any], dtype: torch.dtype, near: dict[str, float]) -> None:
    student, teacher = logits_of(golden, dtype)
    ends = {row["beta"]: row["grad_gkd"] for row in golden["betas"]}
    mixed = [(a + b) / 2 for a, b in zip(ends[0], ends[1], strict=True)]
    expect(kl_mix(student, teacher, 0.5), student, golden["kl_mix_0.5"], mixed, near)


@TYPES
def test_golden_soft_targets(golden: dict[str, Any], dtype: torch.dtype, near: dict[str, float]) -> None:
    for row in golden["soft_targets"]:
        student, teacher = logits_of(golden, dtype)
        expect(soft_targets(student, teacher, row["T"]), student, row["T2_kl"], row["grad_T2"], near)
        # T² is in soft_targets alone
        plain = divergence(student, teacher, 0, temperature=row["T"])
        gradient = [value / row["T"] ** 2 for value in row["grad_T2"]]
        expect(plain, student, row["kl_T"], gradient, near)


@pytest.mark.parametrize(("dtype", "relative"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_golden_hard_case(golden: dict[str, Any], dtype: torch.dtype, relative: float) -> None:
    hard = golden["hard"]
    for beta, expected in hard["gkd"].items():
        student = torch.tensor(hard["student_logits"], dtype=dtype, requires_grad=True)
        value = divergence(student, torch.tensor(hard["teacher_logits"], dtype=dtype), float(beta))
        assert value.item() == pytest.approx(expected, rel=relative)
        (gradient,) = torch.autograd.grad(value, student)
        assert torch.isfinite(gradient).all()


@pytest.mark.report("LM-01")
def test_each_end_is_the_kl_it_is_named_after() -> None:
    # .9 ln(.9/.4) + .05 ln(.05/.4) + .05 ln(.05/.2) = .5566 and .4 ln(.4/.9) + .4 ln(.4/.05) + .2 ln(.2/.05) = .7847
    teacher = torch.tensor([0.9, 0.05, 0.05]).log()
    student = torch.tensor([0.4, 0.4, 0.2]).log()
    assert divergence(student, teacher, 0).item() == pytest.approx(0.5566, abs=5e-5)
    assert divergence(student, teacher, 1).item() == pytest.approx(0.7847, abs=5e-5)
    # Near the ends the unit scale comes close to the same two numbers, so the sides cannot be exchanged between them.
    assert divergence(student, teacher, 0.001, scale="unit").item() == pytest.approx(0.5566, abs=1e-3)
    assert divergence(student, teacher, 0.999, scale="unit").item() == pytest.approx(0.7847, abs=1e-3)


@pytest.mark.parametrize("objective", EVERY_OBJECTIVE, ids=name_of)
def test_value_and_gradient_are_those_of_the_definition(objective: Objective) -> None:
    student = random_logits(4, 17, seed=1).requires_grad_()
    teacher = random_logits(4, 17, seed=2)
    weights = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
    value, expected = objective_per_token(objective, student, teacher), naive(objective, student, teacher)
    torch.testing.assert_close(value, expected, atol=1e-11, rtol=1e-11)
    (got,) = torch.autograd.grad((weights * value).sum(), student)
    (wanted,) = torch.autograd.grad((weights * expected).sum(), student)
    torch.testing.assert_close(got, wanted, atol=1e-11, rtol=1e-11)


@pytest.mark.parametrize("objective", EVERY_OBJECTIVE[::5], ids=name_of)
def test_gradient_is_that_of_finite_differences(objective: Objective) -> None:
    student = random_logits(2, 3, 5, seed=3, spread=1.5).requires_grad_()
    teacher = random_logits(2, 3, 5, seed=4, spread=1.5)
    assert torch.autograd.gradcheck(lambda logits: objective_per_token(objective, logits, teacher), (student,))


@pytest.mark.parametrize("scale", ["gkd", "unit"])
@pytest.mark.parametrize("beta", BETAS)
def test_exchanging_the_models_is_exchanging_the_ends(beta: float, scale: Any) -> None:
    one, other = random_logits(6, 11, seed=5), random_logits(6, 11, seed=6)
    torch.testing.assert_close(
        divergence(one, other, beta, scale=scale), divergence(other, one, 1 - beta, scale=scale), rtol=1e-12, atol=1e-13
    )
    if beta != 0.5:
        gap = divergence(one, other, beta, scale=scale) - divergence(other, one, beta, scale=scale)
        assert gap.abs().min() > 1e-4


def test_result_has_the_leading_shape() -> None:
    for leading in [(), (3,), (2, 3), (2, 0, 4), (0,)]:
        student = torch.zeros(*leading, 7, requires_grad=True)
        value = divergence(student, torch.ones(*leading, 7), 0.5)
        assert value.shape == leading
        value.sum().backward()
        assert student.grad is not None
        assert student.grad.shape == student.shape


def test_transposed_logits_are_read_as_they_are_shaped() -> None:
    student, teacher = random_logits(5, 3, seed=7), random_logits(5, 3, seed=8)
    got = divergence(student.T, teacher.T, 0.25)
    assert torch.equal(got, divergence(student.T.contiguous(), teacher.T.contiguous(), 0.25))


def test_one_token_vocabulary_has_nothing_to_diverge() -> None:
    student = torch.randn(4, 1, generator=torch.Generator().manual_seed(0), requires_grad=True)
    for beta in (0, 0.5, 1):
        value = divergence(student, torch.zeros(4, 1), beta)
        assert torch.equal(value, torch.zeros(4))
        (gradient,) = torch.autograd.grad(value.sum(), student)
        assert torch.equal(gradient, torch.zeros(4, 1))


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_half_types_are_computed_in_float32(half: torch.dtype) -> None:
    student = random_logits(3, 50, seed=9).to(half).requires_grad_()
    teacher = random_logits(3, 50, seed=10).to(half)
    value = divergence(student, teacher, 0.5)
    assert value.dtype == torch.float32
    torch.testing.assert_close(
        value.double(), naive(Objective(beta=0.5, scale="gkd"), student, teacher), rtol=2e-6, atol=0
    )
    value.sum().backward()
    assert student.grad is not None
    assert student.grad.dtype == half


def test_widest_type_wins() -> None:
    student, teacher = random_logits(3, 50, seed=9).float(), random_logits(3, 50, seed=10)
    assert divergence(student, teacher, 0.5).dtype == torch.float64
    assert divergence(student, teacher.float(), 0.5).dtype == torch.float32


def test_the_teacher_never_gets_a_gradient() -> None:
    student, teacher = random_logits(3, 5, seed=1).requires_grad_(), random_logits(3, 5, seed=2).requires_grad_()
    divergence(student, teacher, 0.5).sum().backward()
    assert teacher.grad is None
    assert student.grad is not None
    assert not divergence(student.detach(), teacher, 0.5).requires_grad
    with torch.no_grad():
        assert not divergence(student, teacher, 0.5).requires_grad


@pytest.mark.report("LM-12")
def test_another_teacher_gives_another_gradient() -> None:
    student = random_logits(3, 5, seed=1).requires_grad_()
    for objective in EVERY_OBJECTIVE[::7]:
        grads = [
            torch.autograd.grad(objective_per_token(objective, student, random_logits(3, 5, seed=seed)).sum(), student)[
                0
            ]
            for seed in (2, 3)
        ]
        assert (grads[0] - grads[1]).norm() > 0.01 * grads[0].norm()


def test_a_second_derivative_is_refused_not_wrong() -> None:
    student = random_logits(3, 5, seed=1).requires_grad_()
    value = divergence(student, random_logits(3, 5, seed=2), 1)
    with pytest.raises(UsageError, match="differentiated once"):
        torch.autograd.grad(value.sum(), student, create_graph=True)


def test_backward_twice_over_a_kept_graph_gives_the_same() -> None:
    student = random_logits(3, 5, seed=1).requires_grad_()
    value = divergence(student, random_logits(3, 5, seed=2), 1).sum()
    (first,) = torch.autograd.grad(value, student, retain_graph=True)
    (second,) = torch.autograd.grad(3 * value, student)
    torch.testing.assert_close(second, 3 * first)


def test_the_inputs_are_left_alone() -> None:
    student, teacher = random_logits(3, 5, seed=1), random_logits(3, 5, seed=2)
    student[0, 0] = -torch.inf
    kept = student.clone(), teacher.clone()
    for objective in EVERY_OBJECTIVE[::3]:
        objective_per_token(objective, student.requires_grad_(), teacher).sum().backward()
    assert torch.equal(student.detach(), kept[0])
    assert torch.equal(teacher, kept[1])


def test_shapes_that_differ_are_refused() -> None:
    with pytest.raises(UsageError, match=r"\[3, 5\], the teacher's \[4, 5\]"):
        divergence(torch.zeros(3, 5), torch.zeros(4, 5), 1)
    with pytest.raises(UsageError, match="same leading shape"):
        divergence(torch.zeros(1, 3, 5), torch.zeros(3, 5), 1)
    with pytest.raises(UsageError, match="vocabulary as the last axis"):
        divergence(torch.tensor(1.0), torch.tensor(1.0), 1)
    with pytest.raises(VocabularyMismatch, match="shared vocabulary"):
        divergence(torch.zeros(3, 5), torch.zeros(3, 6), 1)
    with pytest.raises(VocabularyMismatch, match="0 columns"):
        divergence(torch.zeros(3, 0), torch.zeros(3, 0), 1)
    with pytest.raises(UsageError, match="floating-point"):
        divergence(torch.zeros(3, 5, dtype=torch.long), torch.zeros(3, 5), 1)


def test_settings_out_of_range_are_refused() -> None:
    logits = torch.zeros(3, 5)
    for call in (
        lambda: divergence(logits, logits, 1.5),
        lambda: divergence(logits, logits, 1, temperature=0),
        lambda: kl_mix(logits, logits, -0.1),
        lambda: soft_targets(logits, logits, -1),
    ):
        with pytest.raises(ValueError, match=r"objective\."):
            call()
