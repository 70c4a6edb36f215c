"""Where floating point bites: near-equal models, -inf, extreme logits, values that are not finite.

Axes: N positions, V vocabulary.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_divergence import BETAS, EVERY_OBJECTIVE, naive, name_of
from torch import Tensor

from limbeck.objectives import divergence as divergence_module
from limbeck.objectives.divergence import divergence, kl_mix, objective_per_token, value_and_gradient
from limbeck.objectives.forms import FLOOR_NATS
from limbeck.objectives.objective import Objective

EXTREME = [Objective(beta=beta) for beta in (2e-9, 1e-4, 1 - 1e-4, 1 - 2e-9)]
MANY = [*EVERY_OBJECTIVE[::4], *EXTREME]


def random_logits(*shape: int, seed: int, spread: float = 3.0, dtype: torch.dtype = torch.float32) -> Tensor:
    return (spread * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)).to(dtype)


@pytest.mark.parametrize("objective", MANY, ids=name_of)
def test_equal_logits_diverge_by_exactly_nothing(objective: Objective) -> None:
    student = random_logits(5, 1000, seed=0).requires_grad_()
    value = objective_per_token(objective, student, student)
    assert torch.equal(value, torch.zeros(5))
    (gradient,) = torch.autograd.grad(value.sum(), student)
    assert torch.equal(gradient, torch.zeros(5, 1000))


@pytest.mark.parametrize("gap", [1e-3, 1e-4])
@pytest.mark.parametrize("objective", [*EVERY_OBJECTIVE[1::9], *EXTREME], ids=name_of)
def test_near_equal_models_keep_their_precision_in_float32(objective: Objective, gap: float) -> None:
    student = random_logits(3, 49_152, seed=1)
    # Rows spread over many tokens, and one with nearly all on one token, where no errors average out.
    student[2, 7] += 30
    teacher = student + gap * random_logits(3, 49_152, seed=2, spread=1.0)
    teacher[2, 7] = student[2, 7] + gap
    exact, exact_gradient = value_and_gradient(objective, student.double(), teacher.double(), True)
    # The reference for the reference: in float64 the naive formula still has about eight digits here.
    if gap >= 1e-3 and 1e-3 < objective.beta < 1 - 1e-3:
        torch.testing.assert_close(exact[:2], naive(objective, student, teacher)[:2], rtol=1e-6, atol=0)
    value, gradient = value_and_gradient(objective, student, teacher, True)
    assert gradient is not None
    assert exact_gradient is not None
    torch.testing.assert_close(value.double(), exact, rtol=1e-3, atol=0)
    error = (gradient.double() - exact_gradient).norm(dim=-1) / exact_gradient.norm(dim=-1)
    assert error.max() < 2e-3


def test_the_gain_of_the_stable_form_is_real() -> None:
    # The same pair through the plain formula in float32 loses every digit; so the test above can fail.
    student = random_logits(1, 49_152, seed=1)
    teacher = student + 1e-4 * random_logits(1, 49_152, seed=2, spread=1.0)
    lq, lp = torch.log_softmax(student, -1), torch.log_softmax(teacher, -1)
    plain = (lq.exp() * (lq - lp)).sum()
    exact = divergence(student.double(), teacher.double(), 1)
    assert abs(plain.item() / exact.item() - 1) > 0.1
    assert divergence(student, teacher, 1).item() == pytest.approx(exact.item(), rel=1e-3)


@pytest.mark.parametrize("objective", MANY, ids=name_of)
def test_series_and_direct_form_meet(objective: Objective) -> None:
    # Two tokens whose log-ratio sweeps through the change of form. A smooth function has small second differences;
    # a gap between the forms would stand out as a jump.
    steps = torch.linspace(0.05, 0.08, 301, dtype=torch.float64)
    student = torch.stack([steps, torch.zeros_like(steps)], dim=-1)
    value = objective_per_token(objective, student, torch.zeros_like(student)) / steps**2
    jumps = value[2:] - 2 * value[1:-1] + value[:-2]
    assert jumps.abs().max() < 1e-8 * value.max()


@pytest.mark.parametrize("beta", [2e-9, 1e-4, 0.3, 1 - 1e-4, 1 - 2e-9])
def test_unit_scale_is_precise_and_runs_into_the_ends(beta: float) -> None:
    student, teacher = random_logits(4, 100, seed=3), random_logits(4, 100, seed=4)
    value, gradient = value_and_gradient(Objective(beta=beta), student, teacher, True)
    exact, exact_gradient = value_and_gradient(Objective(beta=beta), student.double(), teacher.double(), True)
    assert gradient is not None
    assert exact_gradient is not None
    torch.testing.assert_close(value.double(), exact, rtol=1e-5, atol=0)
    torch.testing.assert_close(gradient.double(), exact_gradient, rtol=0, atol=1e-5)
    if min(beta, 1 - beta) < 1e-8:
        end, end_gradient = value_and_gradient(
            Objective(beta=float(round(beta))), student.double(), teacher.double(), True
        )
        assert end_gradient is not None
        torch.testing.assert_close(exact, end, rtol=1e-5, atol=0)
        torch.testing.assert_close(exact_gradient, end_gradient, rtol=0, atol=2e-4)


@pytest.mark.parametrize("objective", EVERY_OBJECTIVE, ids=name_of)
def test_float32_on_ordinary_logits(objective: Objective) -> None:
    student, teacher = random_logits(6, 3000, seed=5), random_logits(6, 3000, seed=6)
    value, gradient = value_and_gradient(objective, student, teacher, True)
    exact, exact_gradient = value_and_gradient(objective, student.double(), teacher.double(), True)
    assert gradient is not None
    assert exact_gradient is not None
    torch.testing.assert_close(value.double(), exact, rtol=2e-6, atol=0)
    assert (gradient.double() - exact_gradient).norm() < 8e-6 * exact_gradient.norm()


@pytest.mark.parametrize("objective", MANY, ids=name_of)
@pytest.mark.parametrize("where", ["student", "teacher", "both"])
def test_minus_infinity_keeps_value_and_gradient_finite(objective: Objective, where: str) -> None:
    student, teacher = random_logits(3, 9, seed=7).double(), random_logits(3, 9, seed=8).double()
    masked = torch.zeros(3, 9, dtype=torch.bool)
    masked[0, 0] = masked[1, 3] = masked[1, 4] = True
    if where != "teacher":
        student[masked] = -torch.inf
    if where != "student":
        teacher[masked] = -torch.inf
    student.requires_grad_()
    value = objective_per_token(objective, student, teacher)
    (gradient,) = torch.autograd.grad(value.sum(), student)
    assert torch.isfinite(value).all()
    assert torch.isfinite(gradient).all()
    assert (value >= 0).all()
    # A masked logit is a constant; and as constants the two sides equal their floored copies.
    if where != "teacher":
        assert (gradient[masked] == 0).all()
    floor = (student.detach().amax(-1, keepdim=True) - FLOOR_NATS * objective.temperature).expand(3, 9)
    teacher_floor = (teacher.amax(-1, keepdim=True) - FLOOR_NATS * objective.temperature).expand(3, 9)
    free = student.detach().clone().requires_grad_()
    floored = torch.where(free == -torch.inf, floor, free)
    expected = naive(objective, floored, torch.where(teacher == -torch.inf, teacher_floor, teacher))
    if 0 < objective.beta < 1 and (where == "both" or min(objective.beta, 1 - objective.beta) < 1e-6):
        return  # the naive mixture takes 0 · log 0, or divides its rounding errors by beta(1-beta)
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected.sum(), free)[0], rtol=1e-9, atol=1e-9)


def test_masked_on_both_sides_is_left_out() -> None:
    student, teacher = random_logits(4, 9, seed=9), random_logits(4, 9, seed=10)
    kept = torch.tensor([True, False, True, True, False, True, True, True, False])
    masked_student, masked_teacher = student.masked_fill(~kept, -torch.inf), teacher.masked_fill(~kept, -torch.inf)
    for objective in MANY:
        torch.testing.assert_close(
            objective_per_token(objective, masked_student, masked_teacher),
            objective_per_token(objective, student[:, kept], teacher[:, kept]),
            rtol=1e-5,
            atol=1e-6,
        )


def test_between_the_ends_an_impossible_token_costs_what_the_formula_says() -> None:
    # teacher (1, 0), student (0, 1): m = (b, 1-b), D = -b log b - (1-b) log(1-b)
    never = -torch.inf
    student, teacher = torch.tensor([never, 0.0], requires_grad=True), torch.tensor([0.0, never])
    for beta in (0.1, 0.5, 0.9):
        value = divergence(student, teacher, beta)
        expected = -beta * math.log(beta) - (1 - beta) * math.log(1 - beta)
        assert value.item() == pytest.approx(expected, rel=2e-6)
        assert torch.equal(torch.autograd.grad(value, student)[0], torch.zeros(2))
    assert divergence(student, teacher, 0).item() == pytest.approx(FLOOR_NATS)
    assert kl_mix(student, teacher, 0.5).item() == pytest.approx(FLOOR_NATS)


@pytest.mark.parametrize("bad", [math.nan, math.inf, "all -inf"])
@pytest.mark.parametrize("side", ["student", "teacher"])
@pytest.mark.parametrize("objective", MANY, ids=name_of)
def test_what_is_not_finite_shows_in_its_own_token_only(objective: Objective, side: str, bad: float | str) -> None:
    student, teacher = random_logits(3, 6, seed=11), random_logits(3, 6, seed=12)
    spoiled = student if side == "student" else teacher
    if isinstance(bad, str):
        spoiled[1] = -torch.inf
    else:
        spoiled[1, 2] = bad
    value = objective_per_token(objective, student.requires_grad_(), teacher)
    assert torch.isfinite(value).tolist() == [True, False, True]
    (gradient,) = torch.autograd.grad(value.sum(), student)
    assert torch.isfinite(gradient[[0, 2]]).all()
    assert not torch.isfinite(gradient[1]).all()


logit = st.one_of(
    st.floats(-20, 20, width=32),
    st.floats(-(2.0**127), 2.0**127, width=32),
    st.sampled_from([-math.inf, -1e30, 0.0, 1e4, -1e4]),
)


@settings(max_examples=100, deadline=None)
@given(
    pairs=st.lists(st.tuples(logit, logit), min_size=1, max_size=12),
    beta=st.one_of(st.sampled_from(BETAS), st.floats(2e-9, 1 - 2e-9)),
    temperature=st.sampled_from([0.5, 1.0, 3.0]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_never_negative_never_nan(
    pairs: list[tuple[float, float]], beta: float, temperature: float, dtype: torch.dtype
) -> None:
    student = torch.tensor([pair[0] for pair in pairs], dtype=dtype)
    teacher = torch.tensor([pair[1] for pair in pairs], dtype=dtype)
    if student.max() == -math.inf or teacher.max() == -math.inf:
        return  # no distribution at all
    # Logits near the largest float32 overflow once divided by a temperature below 1.
    if temperature < 1 and max(student.max().abs(), teacher.max().abs(), (student - teacher).abs().max()) > 1e38:
        return
    for objective in (Objective(beta=beta, temperature=temperature), Objective(kind="kl_mix", temperature=temperature)):
        value, gradient = value_and_gradient(objective, student[None], teacher[None], True)
        assert gradient is not None
        assert value.item() >= 0
        assert math.isfinite(value.item())
        assert torch.isfinite(gradient).all()


@settings(max_examples=40, deadline=None)
@given(
    shifts=st.tuples(st.floats(-1000, 1000), st.floats(-1000, 1000)),
    beta=st.sampled_from(BETAS),
    seed=st.integers(0, 1000),
)
def test_a_constant_added_to_the_logits_changes_nothing(shifts: tuple[float, float], beta: float, seed: int) -> None:
    student = random_logits(2, 30, seed=seed, dtype=torch.float64)
    teacher = random_logits(2, 30, seed=seed + 1, dtype=torch.float64)
    student[0, 0] = -torch.inf
    value, gradient = value_and_gradient(Objective(beta=beta), student, teacher, True)
    moved, moved_gradient = value_and_gradient(Objective(beta=beta), student + shifts[0], teacher + shifts[1], True)
    torch.testing.assert_close(moved, value, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(moved_gradient, gradient, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("beta", BETAS)
def test_gradient_sums_to_nothing(beta: float) -> None:
    student, teacher = random_logits(4, 2000, seed=13), random_logits(4, 2000, seed=14)
    _, gradient = value_and_gradient(Objective(beta=beta), student, teacher, True)
    assert gradient is not None
    assert gradient.double().sum(-1).abs().max() < 3e-6


def test_many_rows_are_worked_through_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    num_vocabulary, num_rows = 500, 23
    monkeypatch.setattr(divergence_module, "CPU_BLOCK_ELEMENTS", 10 * num_vocabulary // torch.get_num_threads())
    student, teacher = (
        random_logits(num_rows, num_vocabulary, seed=15),
        random_logits(num_rows, num_vocabulary, seed=16),
    )
    objective = Objective(beta=0.5)
    value, gradient = value_and_gradient(objective, student, teacher, True)
    assert gradient is not None
    for row in (0, num_rows // 2, num_rows - 1):
        alone, alone_gradient = value_and_gradient(objective, student[row : row + 1], teacher[row : row + 1], True)
        torch.testing.assert_close(value[row : row + 1], alone, rtol=1e-6, atol=0)
        torch.testing.assert_close(gradient[row : row + 1], alone_gradient, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_the_gradient_may_take_the_place_of_the_teacher(beta: float) -> None:
    student, teacher = random_logits(7, 50, seed=17), random_logits(7, 50, seed=18)
    _, expected = value_and_gradient(Objective(beta=beta), student, teacher, True)
    kept = student.clone()
    _, gradient = value_and_gradient(Objective(beta=beta), student, teacher, True, out_NV=teacher)
    assert gradient is teacher
    assert torch.equal(teacher, expected)  # type: ignore[arg-type]
    assert torch.equal(student, kept)


def test_only_a_share_of_forward_kl_reaches_an_impossible_token() -> None:
    # The teacher wants the first token, to which the student gives e^-30 of the rest.
    student = torch.tensor([-30.0, 0.0, 0.1], dtype=torch.float64, requires_grad=True)
    teacher = torch.tensor([3.0, 0.0, 0.0], dtype=torch.float64)
    push = {
        name: torch.autograd.grad(value, student)[0][0].item()
        for name, value in {
            "forward": divergence(student, teacher, 0),
            "mix": kl_mix(student, teacher, 0.5),
            "between": divergence(student, teacher, 0.1, scale="unit"),
            "reverse": divergence(student, teacher, 1),
        }.items()
    }
    assert push["forward"] == pytest.approx(-torch.softmax(teacher, -1)[0].item(), rel=1e-6)
    assert push["mix"] == pytest.approx(push["forward"] / 2, rel=1e-6)
    assert abs(push["between"]) < 1e-9
    assert abs(push["reverse"]) < 1e-9


@pytest.mark.parametrize(("beta", "spreads"), [(0.0, True), (1.0, False)])
def test_a_student_of_one_peak_covers_at_zero_and_commits_at_one(beta: float, spreads: bool) -> None:
    # Teacher: two peaks at 10 and 30 of 41 ids, the first a little higher. Student: one Gaussian over the ids.
    ids = torch.arange(41, dtype=torch.float64)
    first, second = math.log(0.55) - (ids - 10) ** 2 / 8, math.log(0.45) - (ids - 30) ** 2 / 8
    teacher = torch.logaddexp(first, second)
    mean = torch.tensor(14.0, dtype=torch.float64, requires_grad=True)
    log_width = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([mean, log_width], lr=0.1)
    for _ in range(800):
        optimizer.zero_grad()
        divergence(-((ids - mean) ** 2) / (2 * (2 * log_width).exp()), teacher, beta).backward()
        optimizer.step()
    student = torch.softmax(-((ids - mean) ** 2) / (2 * (2 * log_width).exp()), -1).detach()
    average = (student * ids).sum().item()
    variance = (student * (ids - average) ** 2).sum().item()
    if spreads:  # the moments match: .55 · 10 + .45 · 30 = 19 and 4 + .55 · .45 · 20² = 103
        assert average == pytest.approx(19, abs=0.3)
        assert variance == pytest.approx(103, abs=3)
    else:  # the higher peak, with its own width
        assert average == pytest.approx(10, abs=0.01)
        assert variance == pytest.approx(4, abs=0.01)
