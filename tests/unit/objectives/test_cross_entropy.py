"""Cross-entropy through the head: known values, the dense form, chunks, and what it reads of each token."""

from __future__ import annotations

import math

import pytest
import torch
from fused_pair import NUM_REAL, make_pair
from torch import nn

from limbeck.errors import UsageError
from limbeck.objectives.cross_entropy import fused_cross_entropy
from limbeck.objectives.head import Head

# The student of the golden example, over PDF, CSV, file, link, zip.
Q = torch.tensor([0.40, 0.28, 0.17, 0.05, 0.10], dtype=torch.float64)
TEXT = torch.tensor([0, 3, 36, 7, 7, 12, 1])


def golden():
    """Hidden states that are the logits themselves: the head is the identity."""
    return Q.log().repeat(5, 1).requires_grad_(), Head(torch.eye(5, dtype=torch.float64), None, 5)


def test_value_and_gradient_of_each_token_are_those_by_hand():
    logits_NV, head = golden()
    weights_N = torch.tensor([0.5, 0.1, 0.1, 0.1, 0.2], dtype=torch.float64)
    loss, readings = fused_cross_entropy(logits_NV, head, torch.arange(5), weights_N)
    loss.backward()
    assert readings.divergence_N.tolist() == pytest.approx([-math.log(q) for q in Q.tolist()], abs=1e-12)
    assert loss.item() == pytest.approx(
        sum(-w * math.log(q) for w, q in zip(weights_N.tolist(), Q.tolist(), strict=True)), abs=1e-12
    )
    by_hand = weights_N[:, None] * (Q[None] - torch.eye(5, dtype=torch.float64))  # w (q - onehot)
    torch.testing.assert_close(logits_NV.grad, by_hand, rtol=0, atol=1e-12)
    assert readings.student_entropy_N.tolist() == pytest.approx([1.404224468083] * 5, abs=1e-11)
    assert readings.agree_N.tolist() == [True, False, False, False, False]
    assert readings.teacher_entropy_N.abs().sum() == readings.teacher_logp_N.abs().sum() == 0


def test_weighted_by_a_teacher_it_is_the_golden_cross_entropy():
    logits_NV, head = golden()
    p = torch.tensor([0.86, 0.07, 0.04, 0.02, 0.01], dtype=torch.float64)
    loss, _ = fused_cross_entropy(logits_NV, head, torch.arange(5), p)
    assert loss.item() == pytest.approx(1.030936396797, abs=1e-11)


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "bias-scale-softcap"])
@pytest.mark.parametrize("chunk_tokens", [None, 1, 3])
def test_it_is_the_dense_form_with_any_chunk(plain, chunk_tokens):
    for dtype, relative in ((torch.float64, 1e-12), (torch.float32, 2e-6)):
        ours, dense = make_pair(dtype=dtype, plain=plain), make_pair(dtype=dtype, plain=plain)
        loss, readings = fused_cross_entropy(
            ours.student_NH, ours.head(), TEXT, ours.weights_N, chunk_tokens=chunk_tokens
        )
        logits_NV = dense.head().logits(dense.student_NH)
        dense_N = nn.functional.cross_entropy(logits_NV, TEXT, reduction="none")
        (dense.weights_N.to(dtype) * dense_N).sum().backward()
        (3 * loss).backward()
        assert (readings.divergence_N - dense_N.detach()).norm() <= relative * dense_N.norm()
        assert torch.equal(readings.agree_N, logits_NV.argmax(-1) == TEXT)
        for mine, theirs in zip(ours.inputs(), dense.inputs(), strict=True):
            assert (mine.grad - 3 * theirs.grad).norm() <= relative * 3 * theirs.grad.norm()
        assert ours.weight_VH.grad[NUM_REAL:].abs().sum() == 0  # padded rows take no part


def test_a_frozen_head_and_no_tokens_at_all():
    pair = make_pair()
    frozen = Head(pair.weight_VH.detach(), None, NUM_REAL)
    loss, _ = fused_cross_entropy(pair.student_NH, frozen, TEXT, pair.weights_N)
    loss.backward()
    assert pair.student_NH.grad.norm() > 0
    empty_NH = torch.zeros(0, 6, dtype=torch.float64, requires_grad=True)
    loss, readings = fused_cross_entropy(empty_NH, frozen, TEXT[:0], torch.zeros(0))
    loss.backward()
    assert loss.item() == 0
    assert len(readings.divergence_N) == 0
    with torch.no_grad():
        assert not fused_cross_entropy(pair.student_NH, frozen, TEXT, pair.weights_N)[0].requires_grad


def test_a_token_past_the_real_vocabulary_is_refused():
    pair = make_pair()
    with pytest.raises(UsageError, match=f"0 to {NUM_REAL - 1}"):
        fused_cross_entropy(pair.student_NH, pair.head(), TEXT + 1, pair.weights_N)
    with pytest.raises(UsageError, match="One hidden state"):
        fused_cross_entropy(pair.student_NH, pair.head(), TEXT[:5], pair.weights_N)


def test_impossible_tokens_of_a_masked_class_leave_entropy_and_the_others_finite():
    hidden_NH = torch.tensor([[0.0, 1.0]], dtype=torch.float64, requires_grad=True)
    head = Head(torch.eye(3, 2, dtype=torch.float64), torch.tensor([0.0, 0.0, -torch.inf], dtype=torch.float64), 3)
    loss, readings = fused_cross_entropy(hidden_NH, head, torch.tensor([1]), torch.ones(1))
    loss.backward()
    assert torch.isfinite(readings.student_entropy_N).all()
    assert torch.isfinite(hidden_NH.grad).all()


@pytest.mark.parametrize("tokens", [[0, 5], [-1, 0], [5, -1]])
def test_a_token_without_a_row_in_the_head_is_refused(tokens: list[int]) -> None:
    head = Head(torch.zeros(7, 3), None, 5)  # two rows of padding
    with pytest.raises(UsageError, match="tokens from 0 to 4"):
        fused_cross_entropy(torch.zeros(2, 3), head, torch.tensor(tokens), torch.ones(2))
    total, _ = fused_cross_entropy(torch.zeros(2, 3), head, torch.tensor([0, 4]), torch.ones(2))
    assert total.item() == pytest.approx(2 * math.log(5), rel=1e-6)
