"""The fused form against the dense one: values, gradients, chunks, types.

Axes: N tokens, V vocabulary rows, H hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from fused_pair import NUM_REAL, NUM_TOKENS, Pair, fused, make_pair
from naive_divergence import EVERY_OBJECTIVE, name_of
from torch import Tensor, nn

from limbeck.errors import UsageError, VocabularyMismatch
from limbeck.objectives.divergence import objective_per_token
from limbeck.objectives.fused import (
    CHUNK_BUFFER_BYTES,
    default_chunk_tokens,
    fused_divergence,
    fused_with_statistics,
)
from limbeck.objectives.head import Head
from limbeck.objectives.objective import Objective
from limbeck.objectives.reduce import token_weights


def dense(pair: Pair, objective: Objective) -> tuple[Tensor, Tensor]:
    """The same by hand: whole logits, the dense function, autograd."""

    def logits(hidden: Tensor, head: Head) -> Tensor:
        result = nn.functional.linear(hidden, head.weight_VH, head.bias_V) * head.scale
        result = result if head.softcap is None else head.softcap * torch.tanh(result / head.softcap)
        return result[:, :NUM_REAL]

    values_N = objective_per_token(
        objective, logits(pair.student_NH, pair.head()), logits(pair.teacher_NH, pair.teacher_head)
    )
    return (pair.weights_N.to(values_N.dtype) * values_N).sum(), values_N.detach()


def assert_same(got: Tensor, wanted: Tensor, relative: float) -> None:
    assert got.dtype == wanted.dtype
    assert (got - wanted).norm() <= relative * wanted.norm()


@pytest.fixture
def highest_precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.report("LM-11")
@pytest.mark.usefixtures("highest_precision")
@pytest.mark.parametrize("plain", [True, False], ids=["plain", "bias-scale-softcap"])
@pytest.mark.parametrize("objective", EVERY_OBJECTIVE, ids=name_of)
def test_fused_is_dense(objective: Objective, plain: bool) -> None:
    for dtype, relative in ((torch.float64, 1e-12), (torch.float32, 1e-6)):
        pair = make_pair(dtype=dtype, plain=plain)
        wanted_sum, wanted_N = dense(pair, objective)
        wanted = torch.autograd.grad(wanted_sum, pair.inputs())
        for chunk_tokens in (1, 3, NUM_TOKENS, 100, None):
            got_sum, got_N = fused(pair, objective, chunk_tokens)
            assert not got_N.requires_grad
            assert_same(got_sum, wanted_sum, 2 * relative)
            assert_same(got_N, wanted_N, relative)
            for got, expected in zip(torch.autograd.grad(got_sum, pair.inputs()), wanted, strict=True):
                assert_same(got, expected, 2 * relative)


def test_gradient_is_that_of_finite_differences() -> None:
    pair = make_pair()

    def total(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return fused(replace(pair, student_NH=hidden, weight_VH=weight, bias_V=bias), Objective(beta=0.3), 2)[0]

    # along random directions: 322 inputs one by one take a second and say no more
    assert torch.autograd.gradcheck(total, tuple(pair.inputs()), fast_mode=True)


def test_padded_rows_take_no_part_and_get_no_gradient() -> None:
    pair = make_pair()
    before = fused(pair, Objective())[0]
    before.backward()
    assert pair.weight_VH.grad is not None
    assert pair.weight_VH.grad.shape == (40, 6)
    assert (pair.weight_VH.grad[NUM_REAL:] == 0).all()
    assert (pair.weight_VH.grad[:NUM_REAL] != 0).all()
    with torch.no_grad():
        pair.weight_VH[NUM_REAL:] = 1e6
        pair.teacher_head.weight_VH[NUM_REAL:] = torch.nan
    assert torch.equal(fused(pair, Objective())[0], before)


def test_backward_multiplies_and_is_repeatable() -> None:
    pair = make_pair()
    total, _ = fused(pair, Objective())
    first = torch.autograd.grad(total, pair.inputs(), retain_graph=True)
    second = torch.autograd.grad(-2.5 * total, pair.inputs())
    for one, other in zip(first, second, strict=True):
        torch.testing.assert_close(other, -2.5 * one)
    with pytest.raises(UsageError, match="differentiated once"):
        torch.autograd.grad(fused(pair, Objective())[0], pair.student_NH, create_graph=True)


def test_only_what_trains_gets_a_gradient() -> None:
    pair = make_pair()
    pair.teacher_NH.requires_grad_()
    pair.teacher_head.weight_VH.requires_grad_()
    wanted = torch.autograd.grad(fused(pair, Objective())[0], pair.inputs())
    for trains in ((True, False, False), (False, True, False), (False, False, True)):
        for tensor, required in zip(pair.inputs(), trains, strict=True):
            tensor.grad = None
            tensor.requires_grad_(required)
        fused(pair, Objective())[0].backward()
        for tensor, required, expected in zip(pair.inputs(), trains, wanted, strict=True):
            assert (tensor.grad is not None) == required
            if tensor.grad is not None:
                torch.testing.assert_close(tensor.grad, expected)
    assert pair.teacher_NH.grad is None
    assert pair.teacher_head.weight_VH.grad is None


def test_a_frozen_head_costs_no_buffer_and_no_product(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = make_pair()
    pair.weight_VH.requires_grad_(False)
    shapes: list[tuple[int, ...]] = []
    zeros_like = torch.zeros_like

    def counting(tensor: Tensor, **options: object) -> Tensor:
        shapes.append(tuple(tensor.shape))
        return zeros_like(tensor, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(torch, "zeros_like", counting)
    fused(pair, Objective())
    assert (NUM_TOKENS, 6) in shapes
    assert (40, 6) not in shapes


def test_nothing_of_all_tokens_by_vocabulary_is_ever_made(monkeypatch: pytest.MonkeyPatch) -> None:
    # Largest single tensor that the logits of 64 tokens make, seen at the one place that makes logits.
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(64, 4, generator=generator).requires_grad_()
    head = Head(torch.randn(300, 4, generator=generator), None, 300)
    rows: list[int] = []
    logits = Head.logits

    def counting(self: Head, hidden_NH: Tensor) -> Tensor:
        rows.append(hidden_NH.shape[0])
        return logits(self, hidden_NH)

    monkeypatch.setattr(Head, "logits", counting)
    fused_divergence(hidden, head, hidden.detach() + 1, head, token_weights(64, 64), Objective(), chunk_tokens=10)
    # each side once a chunk: 6 chunks of 10, one of 4
    assert rows == [10, 10] * 6 + [4, 4]


def test_under_no_grad_only_the_values() -> None:
    pair = make_pair()
    with torch.no_grad():
        total, values = fused(pair, Objective())
    assert not total.requires_grad
    torch.testing.assert_close(values, dense(pair, Objective())[1])


@pytest.mark.report("LM-12")
def test_another_teacher_gives_another_gradient() -> None:
    pair, other = make_pair(), make_pair(seed=1)
    for objective in EVERY_OBJECTIVE[::9]:
        (one,) = torch.autograd.grad(fused(pair, objective)[0], pair.student_NH)
        swapped = replace(pair, teacher_NH=other.teacher_NH)
        (two,) = torch.autograd.grad(fused(swapped, objective)[0], pair.student_NH)
        assert (one - two).norm() > 0.05 * one.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_student_against_itself_is_exactly_nothing(dtype: torch.dtype) -> None:
    pair = make_pair(dtype=dtype)
    for objective in EVERY_OBJECTIVE[::5]:
        total, values = fused_divergence(
            pair.student_NH, pair.head(), pair.student_NH, pair.head(), pair.weights_N, objective, chunk_tokens=3
        )
        assert total.item() == 0
        assert (values == 0).all()
        for gradient in torch.autograd.grad(total, pair.inputs()):
            assert (gradient == 0).all()


def test_no_tokens_give_zero_with_zero_gradients() -> None:
    pair = make_pair(dtype=torch.float32)
    hidden = torch.zeros(0, 6, requires_grad=True)
    total, readings = fused_with_statistics(
        hidden,
        pair.head(),
        pair.teacher_NH[:0],
        pair.teacher_head,
        token_weights(0, 0),
        Objective(),
        torch.zeros(0, dtype=torch.long),
    )
    assert total.item() == 0
    assert readings.divergence_N.shape == readings.agree_N.shape == (0,)
    total.backward()
    assert hidden.grad is not None
    assert hidden.grad.shape == (0, 6)
    assert pair.weight_VH.grad is not None
    assert (pair.weight_VH.grad == 0).all()


@pytest.mark.parametrize("at_once", [0, 2**20])
@pytest.mark.parametrize("frozen", [True, False])
def test_half_types_are_widened_before_the_product(at_once: int, frozen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # A slice of the head at a time: 10 rows of 6 float32 values here.
    monkeypatch.setattr("limbeck.objectives.head.WIDENED_BYTES", 10 * 6 * 4)
    monkeypatch.setattr("limbeck.objectives.head.WIDENED_AT_ONCE_BYTES", at_once)
    pair = make_pair(dtype=torch.bfloat16)
    pair.weight_VH.requires_grad_(not frozen)
    wide = replace(
        pair,
        student_NH=pair.student_NH.detach().float().requires_grad_(),
        weight_VH=pair.weight_VH.detach().float().requires_grad_(not frozen),
        bias_V=None if pair.bias_V is None else pair.bias_V.detach().float().requires_grad_(),
        teacher_NH=pair.teacher_NH.float(),
        teacher_head=replace(
            pair.teacher_head,
            weight_VH=pair.teacher_head.weight_VH.float(),
            bias_V=None if pair.teacher_head.bias_V is None else pair.teacher_head.bias_V.float(),
        ),
    )
    total, values = fused(pair, Objective(beta=0.5), 3)
    wide_total, wide_values = fused(wide, Objective(beta=0.5), 3)
    assert values.dtype == torch.float32
    torch.testing.assert_close(values, wide_values, rtol=1e-5, atol=1e-7)
    total.backward()
    wide_total.backward()
    for tensor, wide_tensor in zip(pair.inputs(), wide.inputs(), strict=True):
        if tensor.grad is None:
            assert frozen
            continue
        assert wide_tensor.grad is not None
        assert tensor.grad.dtype == torch.bfloat16
        torch.testing.assert_close(tensor.grad, wide_tensor.grad.bfloat16(), rtol=1e-2, atol=1e-6)


def test_autocast_does_not_reach_the_products() -> None:
    pair = make_pair(dtype=torch.float32)
    total, values = fused(pair, Objective())
    gradients = torch.autograd.grad(total, pair.inputs())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast_total, cast_values = fused(pair, Objective())
    assert torch.equal(cast_values, values)
    for one, other in zip(gradients, torch.autograd.grad(cast_total, pair.inputs()), strict=True):
        assert torch.equal(one, other)


def test_not_finite_hidden_states_show() -> None:
    pair = make_pair()
    with torch.no_grad():
        pair.student_NH[2, 0] = torch.nan
    total, values = fused(pair, Objective())
    assert torch.isfinite(values).tolist() == [True, True, False, True, True, True, True]
    assert not torch.isfinite(total)


def test_what_does_not_fit_is_refused() -> None:
    pair = make_pair()
    shorter = replace(pair.teacher_head, num_real=NUM_REAL - 1)
    with pytest.raises(VocabularyMismatch, match="37 rows, the teacher's 36"):
        fused(replace(pair, teacher_head=shorter), Objective())
    with pytest.raises(UsageError, match="teacher's hidden states"):
        fused(replace(pair, teacher_NH=pair.student_NH.detach()), Objective())
    with pytest.raises(UsageError, match="student's hidden states"):
        fused(replace(pair, student_NH=pair.student_NH[None]), Objective())
    with pytest.raises(UsageError, match="7 student positions, 6 teacher positions"):
        fused(replace(pair, teacher_NH=pair.teacher_NH[:6]), Objective())
    with pytest.raises(UsageError, match=r"weights of shape \[1\]"):
        fused(replace(pair, weights_N=pair.weights_N[:1]), Objective())
    with pytest.raises(UsageError, match="chunk_tokens is 0"):
        fused(pair, Objective(), 0)
    sides = (pair.student_NH, pair.head(), pair.teacher_NH, pair.teacher_head, pair.weights_N, Objective())
    for ids in (torch.full((NUM_TOKENS,), NUM_REAL), torch.full((NUM_TOKENS,), -1), torch.zeros(3, dtype=torch.long)):
        with pytest.raises(UsageError, match="Token ids"):
            fused_with_statistics(*sides, ids)


def test_chunks_keep_a_buffer_within_its_bound() -> None:
    for num_vocabulary in (32, 8192, 49_152, 151_936, 10**8):
        tokens = default_chunk_tokens(num_vocabulary, torch.float32)
        assert tokens >= 1
        assert tokens == 1 or tokens * num_vocabulary * 4 <= CHUNK_BUFFER_BYTES
    assert default_chunk_tokens(49_152, torch.float32) > 128
    assert default_chunk_tokens(49_152, torch.float64) == default_chunk_tokens(2 * 49_152, torch.float32)
