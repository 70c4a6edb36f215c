"""What a head may be, and what the fused pass reads on the way.

Axes: N tokens, V vocabulary rows, H hidden size.
"""

from __future__ import annotations

import pytest
import torch
from fused_pair import fused, make_pair
from torch import nn

from limbeck.errors import Refusal, UsageError, VocabularyMismatch
from limbeck.objectives.fused import fused_with_statistics
from limbeck.objectives.head import Head, head_of
from limbeck.objectives.objective import Objective
from limbeck.objectives.reduce import token_weights


@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize("chunk_tokens", [1, 3, 100])
def test_readings(temperature: float, chunk_tokens: int) -> None:
    pair, objective = make_pair(), Objective(beta=0.5, temperature=temperature)
    with torch.no_grad():  # in one place both prefer the same token
        pair.teacher_NH[4] *= 0
        agreed = int(pair.head().logits(pair.student_NH[4:5]).argmax())
        assert pair.teacher_head.bias_V is not None
        pair.teacher_head.bias_V[agreed] = 9
    ids = torch.tensor([0, 5, 36, 7, 7, 1, 2])
    total, readings = fused_with_statistics(
        pair.student_NH,
        pair.head(),
        pair.teacher_NH,
        pair.teacher_head,
        pair.weights_N,
        objective,
        ids,
        chunk_tokens=chunk_tokens,
    )
    plain_total, plain_values = fused(pair, objective, chunk_tokens)
    assert torch.equal(total, plain_total)
    assert torch.equal(readings.divergence_N, plain_values)
    gradients = (torch.autograd.grad(loss, pair.inputs()) for loss in (total, plain_total))
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)
    # Entropies, agreement and log-probabilities are those of temperature 1, whatever the objective's.
    logp = torch.log_softmax(pair.head().logits(pair.student_NH), -1).detach()
    teacher_logp = torch.log_softmax(pair.teacher_head.logits(pair.teacher_NH), -1)
    near = {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(readings.student_entropy_N, -(logp.exp() * logp).sum(-1), **near)
    torch.testing.assert_close(readings.teacher_entropy_N, -(teacher_logp.exp() * teacher_logp).sum(-1), **near)
    torch.testing.assert_close(readings.student_logp_N, logp[range(7), ids], **near)
    torch.testing.assert_close(readings.teacher_logp_N, teacher_logp[range(7), ids], **near)
    assert torch.equal(readings.agree_N, logp.argmax(-1) == teacher_logp.argmax(-1))
    assert readings.agree_N[4]
    assert not readings.agree_N.all()
    assert not any(getattr(readings, name).requires_grad for name in readings.__dataclass_fields__)


def test_readings_of_certain_models() -> None:
    # Logits 0 and -200: entropy 0, log-probabilities 0 and -200; close seconds do not count as agreement.
    student = Head(torch.tensor([[0.0], [-200.0]]), None, 2)
    teacher = Head(torch.tensor([[20.0], [20.000002]]), None, 2)
    hidden = torch.ones(2, 1)
    _, readings = fused_with_statistics(
        hidden, student, hidden, teacher, token_weights(2, 2), Objective(), torch.tensor([0, 1])
    )
    assert readings.student_entropy_N.tolist() == [0, 0]
    assert readings.student_logp_N.tolist() == [0, -200]
    assert readings.teacher_entropy_N[0].item() == pytest.approx(0.693147, abs=1e-6)
    assert readings.agree_N.tolist() == [False, False]


def test_head_of_a_plain_linear_layer() -> None:
    layer = nn.Linear(4, 9)
    head = head_of(layer, num_real=8, scale=2.0, softcap=30.0)
    assert head.weight_VH is layer.weight
    assert head.bias_V is layer.bias
    assert (head.num_real, head.scale, head.softcap) == (8, 2.0, 30.0)
    hidden = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(head.logits(hidden), 30 * torch.tanh(2 * layer(hidden)[:, :8] / 30))


def test_a_head_that_is_more_than_a_linear_layer_is_refused() -> None:
    class Adapter(nn.Linear):
        """Computes more than its weight, as a LoRA layer does."""

    parametrised = nn.utils.parametrizations.weight_norm(nn.Linear(4, 9))
    for module in (Adapter(4, 9), parametrised, nn.Sequential(nn.Linear(4, 9)), nn.Embedding(9, 4)):
        with pytest.raises(Refusal, match=r"plain nn\.Linear.*merge the adapter first") as caught:
            head_of(module, num_real=9)
        assert caught.value.code == "head.not-plain"
    with pytest.raises(Refusal, match="plain"):
        Head(nn.Linear(4, 9), None, 9)  # type: ignore[arg-type]


def test_a_head_that_cannot_be_is_refused() -> None:
    weight = torch.zeros(9, 4)
    for num_real in (0, 10):
        with pytest.raises(VocabularyMismatch, match="9 rows"):
            Head(weight, None, num_real)
    with pytest.raises(UsageError, match="bias"):
        Head(weight, torch.zeros(8), 8)
    for scale, softcap in ((0.0, None), (float("nan"), None), (1.0, 0.0), (1.0, -3.0)):
        with pytest.raises(UsageError, match="softcap"):
            Head(weight, None, 9, scale, softcap)
