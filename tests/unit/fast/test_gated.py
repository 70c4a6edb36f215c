"""Gated layers that keep less for the backward pass: the same numbers to the bit, from less memory."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch.nn.functional import silu

from builders import tiny_tokenizer
from limbeck.fast.gated import FAMILIES, gated_down, patch_gated_mlp
from limbeck.models.adapters import attach_adapters
from pairs import language_model

SIZES = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
}


def model_of(family, dtype=torch.float32, **settings):
    config = transformers.AutoConfig.for_model(family, **SIZES, **settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return transformers.AutoModelForCausalLM.from_config(config).to(dtype)


def kept_bytes_and_gradients(module):
    """Bytes of all tensors kept for one backward pass, each storage once; and the gradients."""
    kept: dict[int, int] = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    module.zero_grad()
    ids = torch.arange(40).view(2, 20)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = module(input_ids=ids).logits.float().square().mean()
    loss.backward()
    named = module.named_parameters()
    return sum(kept.values()), {name: weight.grad for name, weight in named if weight.grad is not None}


def test_value_and_gradients():
    gate, up = (torch.randn(5, 3, 7, dtype=torch.float64, requires_grad=True) for _ in range(2))
    weight = torch.randn(4, 7, dtype=torch.float64, requires_grad=True)
    assert torch.equal(gated_down(gate, up, weight), (silu(gate) * up) @ weight.T)
    assert torch.autograd.gradcheck(gated_down, (gate, up, weight))
    assert torch.autograd.gradcheck(gated_down, (gate, up, weight.detach()))
    (first,) = torch.autograd.grad(gated_down(gate, up, weight).sum(), gate, create_graph=True)
    with pytest.raises(RuntimeError, match="derivative for aten::silu_backward is not implemented"):
        first.sum().backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_learns_the_same_from_less_memory(family, dtype):
    module = model_of(family, dtype)
    before, wanted = kept_bytes_and_gradients(module)
    patch_gated_mlp(module)
    after, found = kept_bytes_and_gradients(module)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    num_tokens, num_layers = 40, 2
    assert before - after == 2 * SIZES["intermediate_size"] * num_tokens * num_layers * dtype.itemsize


def adapted(change):
    """A model whose gated layers have adapters, then changed."""
    model = language_model(model_of("llama"), tiny_tokenizer())
    attach_adapters(model, rank=2, alpha=4, seed=0)
    change(model.module)
    return model.module


def test_an_adapter_learns_the_same():
    plain, less = (kept_bytes_and_gradients(adapted(change))[1] for change in (lambda module: None, patch_gated_mlp))
    assert any("up_proj" in name for name in less)
    assert all(torch.equal(less[name], plain[name]) for name in plain)


def test_others_stay_as_they_are():
    for module in (
        model_of("llama", hidden_act="gelu"),
        model_of("llama", mlp_bias=True),
        model_of("gemma"),
        adapted(lambda module: None),
    ):
        patch_gated_mlp(module)
        assert not any("forward" in vars(part) for part in module.modules())
