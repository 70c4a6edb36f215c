"""Which architectures write in slots, found out by asking them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import transformers

from builders import tiny_tokenizer
from limbeck.errors import Refusal
from limbeck.fast.gated import FAMILIES
from limbeck.models.attention import LayerKinds, kinds_of
from limbeck.models.load import logit_transform
from limbeck.rollouts.engine import Engine
from limbeck.rollouts.plain import TransformersGenerator
from limbeck.rollouts.request import GenerationRequest
from limbeck.rollouts.sampling import GREEDY
from limbeck.training.generation import choose_method
from pairs import language_model, random_prompts, tiny_model

SMALL = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": 2,
}
WITHOUT_GROUPS = {key: value for key, value in SMALL.items() if key != "num_key_value_heads"}

SERVED = {
    "llama": (transformers.LlamaConfig, SMALL),
    "qwen2": (transformers.Qwen2Config, SMALL),
    "qwen3": (transformers.Qwen3Config, {**SMALL, "head_dim": 8}),
    "gpt2": (
        transformers.GPT2Config,
        {"vocab_size": 300, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 256, "initializer_range": 0.3},
    ),
    "gpt_neox": (transformers.GPTNeoXConfig, WITHOUT_GROUPS),
    "phi3": (transformers.Phi3Config, SMALL),
    "smollm3": (transformers.SmolLM3Config, SMALL),
    "granite": (transformers.GraniteConfig, {**SMALL, "logits_scaling": 4.0, "attention_multiplier": 0.2}),
    "mistral": (transformers.MistralConfig, {**SMALL, "sliding_window": 12}),
    "qwen2-sliding": (
        transformers.Qwen2Config,
        {**SMALL, "use_sliding_window": True, "sliding_window": 12, "max_window_layers": 1},
    ),
    "gemma2": (transformers.Gemma2Config, {**SMALL, "head_dim": 8, "sliding_window": 12, "query_pre_attn_scalar": 8}),
    "gemma3": (
        transformers.Gemma3TextConfig,
        {**SMALL, "head_dim": 8, "sliding_window": 12, "query_pre_attn_scalar": 8},
    ),
}


def model_of(config_class, settings):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = transformers.AutoModelForCausalLM.from_config(config_class(**settings)).float()
    model = language_model(module, tiny_tokenizer())
    return replace(model, head=replace(model.head, **logit_transform(module.config)))


@pytest.mark.parametrize("name", SERVED)
def test_these_architectures_write_in_slots(name):
    model = model_of(*SERVED[name])
    method = choose_method(model, max_length=64, pad_id=0)
    assert method.decoder == ("lean" if name in FAMILIES else "slots"), method
    assert method.share
    assert method.gap_nats < 1e-4


@pytest.mark.parametrize("name", ["mistral", "qwen2-sliding", "gemma2", "gemma3"])
def test_a_sliding_window_matters_in_the_probe(name, monkeypatch):
    """Without its window the same architecture is found out: the probe is longer than the window."""
    model = model_of(*SERVED[name])
    layers = kinds_of(model.module.config)
    assert layers.window == 12
    monkeypatch.setattr("limbeck.rollouts.slots.kinds_of", lambda config: LayerKinds(layers.kinds, 10**6))
    method = choose_method(model, max_length=64, pad_id=0)
    assert method.decoder == "generate"
    assert "slots differs" in method.fallback


def test_an_architecture_without_such_a_cache_takes_generate_and_says_so():
    model = model_of(
        transformers.BloomConfig,
        {"vocab_size": 300, "hidden_size": 32, "n_layer": 2, "n_head": 4, "initializer_range": 0.3},
    )
    method = choose_method(model, max_length=64, pad_id=0)
    assert method.decoder == "generate"
    assert "slots: it counts positions itself" in method.fallback
    requests = [GenerationRequest(prompt.ids, row, 6) for row, prompt in enumerate(random_prompts(5))]
    batched = Engine(model, stop_ids=(), pad_id=0, num_slots=4, decoder=TransformersGenerator(model)).generate(
        requests, GREEDY
    )
    alone = [
        Engine(model, stop_ids=(), pad_id=0, num_slots=1, decoder=TransformersGenerator(model)).generate(
            [request], GREEDY
        )[0]
        for request in requests
    ]
    assert [answer.ids for answer in batched] == [answer.ids for answer in alone]


def test_a_model_that_agrees_with_itself_in_no_way_is_refused(monkeypatch):
    model = tiny_model()
    plain_forward = model.module.model.forward

    def forward(*args, attention_mask=None, **kwargs):
        output = plain_forward(*args, attention_mask=attention_mask, **kwargs)
        if attention_mask is not None:
            output.last_hidden_state = output.last_hidden_state * 1.1
        return output

    monkeypatch.setattr(model.module.model, "forward", forward)
    with pytest.raises(Refusal, match="compared with a plain forward pass"):
        choose_method(model, max_length=64, pad_id=0)


def test_a_deep_bf16_model_is_not_refused_for_its_rounding():
    config = transformers.LlamaConfig(**{**SMALL, "num_hidden_layers": 36, "initializer_range": 0.2})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    assert choose_method(language_model(module, tiny_tokenizer()), max_length=64, pad_id=0).decoder != "generate"


def test_running_out_of_memory_is_not_taken_for_an_architecture(monkeypatch):
    def exhausted(self, requests, sampling):
        raise torch.OutOfMemoryError("no memory left")

    monkeypatch.setattr(Engine, "generate", exhausted)
    with pytest.raises(torch.OutOfMemoryError):
        choose_method(tiny_model(), max_length=64, pad_id=0)
