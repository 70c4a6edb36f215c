"""Attention written out: the same numbers and gradients as torch's own, and used only where it stands for it."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from builders import tiny_llama, tiny_tokenizer
from limbeck.fast import short_attention as module
from limbeck.fast.short_attention import patch_short_attention, short_attention
from limbeck.models.attention import LayerKinds, attention_mask


def asked(dtype, *, rows=3, heads=4, groups=2, queries=5, keys=7, size=8, window=None):
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()  # noqa: E731
    positions = torch.arange(keys - queries, keys).expand(rows, -1)
    mask = attention_mask(positions, torch.arange(keys).expand(rows, -1), dtype, LayerKinds(frozenset(), window))
    tensors = draw(rows, heads, queries, size), draw(rows, groups, keys, size), draw(rows, groups, keys, size)
    return tensors, mask


def by_torch(query, key, value, mask, scale):
    repeated = (tensor.repeat_interleave(query.shape[1] // tensor.shape[1], dim=1) for tensor in (key, value))
    return scaled_dot_product_attention(query, *repeated, attn_mask=mask, scale=scale)


def with_gradients(attend, tensors, mask):
    out = attend(*tensors, mask, 0.3)
    seed = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).reshape(out.shape).to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, tensors, seed)]


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("group_bytes", [1, 16 * 2**20])
def test_value_and_gradients_are_torchs(monkeypatch, groups, group_bytes):
    monkeypatch.setattr(module, "GROUP_BYTES", group_bytes)
    tensors, mask = asked(torch.float64, groups=groups)
    found, wanted = (with_gradients(attend, tensors, mask) for attend in (short_attention, by_torch))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(lambda *sides: short_attention(*sides, mask, 0.3), tensors)


def test_in_bfloat16_it_is_at_least_as_precise_as_torchs_own():
    halves, mask = asked(torch.bfloat16, rows=4, heads=6, groups=2, queries=40, keys=52, size=32)
    exact = [tensor.detach().double().requires_grad_() for tensor in halves]
    true = with_gradients(by_torch, exact, mask.double())
    errors = {
        attend: [
            ((one.double() - other).norm() / other.norm()).item()
            for one, other in zip(with_gradients(attend, halves, mask), true, strict=True)
        ]
        for attend in (short_attention, by_torch)
    }
    assert max(errors[short_attention]) < 5e-3
    assert max(errors[short_attention]) <= 1.1 * max(errors[by_torch])


def test_a_model_learns_by_it_on_short_texts_and_by_its_own_function_else(monkeypatch):
    model = tiny_llama(tiny_tokenizer()).double()
    model.set_attn_implementation("sdpa")
    ids, padded = torch.randint(0, 20, (3, 9)), torch.ones(3, 9, dtype=torch.long)
    padded[1, 6:] = 0

    def gradients():
        model.zero_grad()
        model(input_ids=ids, attention_mask=padded).logits[padded.bool()].square().mean().backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    wanted = gradients()
    calls = []
    original = module.short_attention
    monkeypatch.setattr(module, "short_attention", lambda *sides: calls.append(1) or original(*sides))
    patch_short_attention(model)
    for one, other in zip(gradients(), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
    assert len(calls) == model.config.num_hidden_layers
    with torch.no_grad():
        model(input_ids=ids, attention_mask=padded)
    monkeypatch.setattr(module, "SHORT", 9)
    gradients()
    assert len(calls) == model.config.num_hidden_layers
    assert "limbeck" not in str(model.config.to_dict())
