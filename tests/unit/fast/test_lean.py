"""The lean decoder writes what the model itself would write, for every family that it knows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import transformers

from builders import tiny_tokenizer
from limbeck.fast.gated import FAMILIES
from limbeck.fast.lean import LeanDecoder, is_lean
from limbeck.models.arena import move_together
from limbeck.rollouts.engine import Engine
from limbeck.rollouts.request import GenerationRequest
from limbeck.rollouts.sampling import GREEDY, Sampling
from limbeck.training.generation import choose_method
from pairs import decoder_of, language_model, random_prompts

SIZES = {
    "vocab_size": 300,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.25,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": 2,
}
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
ROTATION = {**LLAMA3, "original_max_position_embeddings": 32, "rope_theta": 10000.0}
LINEAR = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}

MODELS = {
    "llama": (transformers.LlamaConfig, {}),
    "llama, tied": (transformers.LlamaConfig, {"tie_word_embeddings": True}),
    "llama, one head for each key": (transformers.LlamaConfig, {"num_key_value_heads": 6}),
    "llama, biases": (transformers.LlamaConfig, {"attention_bias": True, "mlp_bias": True}),
    "llama, wide heads": (transformers.LlamaConfig, {"head_dim": 16}),
    "llama, rotation of llama 3": (transformers.LlamaConfig, {"rope_parameters": ROTATION}),
    "llama, linear rotation": (transformers.LlamaConfig, {"rope_parameters": LINEAR}),
    "llama, another activation": (transformers.LlamaConfig, {"hidden_act": "gelu"}),
    "qwen2": (transformers.Qwen2Config, {}),
    "qwen2, tied": (transformers.Qwen2Config, {"tie_word_embeddings": True}),
    "qwen3": (transformers.Qwen3Config, {"head_dim": 8}),
    "qwen3, tied": (transformers.Qwen3Config, {"head_dim": 16, "tie_word_embeddings": True}),
}


def model_of(name, *, together=True):
    config_class, settings = MODELS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = transformers.AutoModelForCausalLM.from_config(config_class(**{**SIZES, **settings})).float()
        for parameter in module.parameters():  # biases and norms that matter
            if parameter.ndim == 1:
                parameter.data.add_(0.2 * torch.randn_like(parameter))
    if together:
        move_together(module)
    return language_model(module, tiny_tokenizer())


def requests_of(prompts, longest=16):
    return [GenerationRequest(prompt.ids, 7919 * row + 5, longest) for row, prompt in enumerate(prompts)]


@torch.no_grad()
def greedy_by_transformers(model, prompt_ids, num_tokens):
    ids_1T = torch.tensor([prompt_ids])
    written_1T = model.module.generate(
        ids_1T,
        attention_mask=torch.ones_like(ids_1T),
        max_new_tokens=num_tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return tuple(written_1T[0, len(prompt_ids) :].tolist())


@pytest.mark.parametrize("num", [16, pytest.param(64, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", MODELS)
def test_greedy_answers_equal_those_of_transformers(name, num):
    model = model_of(name)
    assert is_lean(model)
    prompts = random_prompts(num, shortest=2, longest=40)
    engine = Engine(model, stop_ids=(), pad_id=0, num_slots=5, decoder=LeanDecoder(model))
    answers = engine.generate(requests_of(prompts, 8), GREEDY)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.ids == greedy_by_transformers(model, prompt.ids, 8)


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("name", ["llama, biases", "qwen2, tied", "qwen3"])
def test_log_probabilities_of_sampled_tokens_equal_the_models_own(name, together):
    model = model_of(name, together=together)
    prompts = random_prompts(12, longest=30)
    answers = Engine(model, stop_ids=(), pad_id=0, num_slots=5, decoder=LeanDecoder(model)).generate(
        requests_of(prompts), Sampling()
    )
    for prompt, answer in zip(prompts, answers, strict=True):
        with torch.no_grad():
            logits_TV = model.module(torch.tensor([[*prompt.ids, *answer.ids]])).logits[0, len(prompt.ids) - 1 : -1]
        own_T = logits_TV.log_softmax(-1).gather(1, torch.tensor(answer.ids)[:, None])[:, 0]
        assert (torch.tensor(answer.logprobs) - own_T).abs().max() < 2e-4


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_the_probe_admits_it(name):
    method = choose_method(model_of(name), max_length=64, pad_id=0)
    assert method.decoder == "lean"
    assert method.gap_nats < 1e-4


def test_a_planted_difference_is_found_at_load():
    """The configuration says Llama, but a layer does something of its own that the decoder cannot know of."""
    model = model_of("llama")
    model.module.model.layers[1].mlp.register_forward_hook(lambda module, given, output: output * 1.05)
    method = choose_method(model, max_length=64, pad_id=0)
    assert method.decoder == "slots"
    assert "lean differs from the plain forward pass" in method.fallback


@pytest.mark.parametrize(
    ("config_class", "settings"),
    [
        (transformers.MistralConfig, {}),
        (transformers.GraniteConfig, {"logits_scaling": 4.0}),
        (transformers.Qwen2Config, {"use_sliding_window": True, "sliding_window": 12, "max_window_layers": 1}),
        (transformers.LlamaConfig, {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}),
    ],
)
def test_other_shapes_take_the_general_way(config_class, settings):
    module = transformers.AutoModelForCausalLM.from_config(config_class(**{**SIZES, **settings}))
    assert not is_lean(language_model(module, tiny_tokenizer()))


def test_prompts_that_begin_alike_or_repeat_change_nothing():
    model = model_of("qwen2")
    start = tuple(range(5, 45))
    prompts = [start + prompt.ids for prompt in random_prompts(6)]
    keyed = [
        GenerationRequest(prompt, 31 * row, 10) for row, prompt in enumerate([*prompts, *prompts[:3], *prompts[:2]])
    ]
    for way in ("lean", "slots"):
        together = Engine(model, stop_ids=(), pad_id=0, num_slots=8, decoder=decoder_of(model, way)).generate(
            keyed, Sampling()
        )
        for request, answer in zip(keyed, together, strict=True):
            alone = Engine(model, stop_ids=(), pad_id=0, num_slots=1, decoder=decoder_of(model, way)).generate(
                [request], Sampling()
            )[0]
            assert answer.ids == alone.ids
            assert answer.logprobs == pytest.approx(alone.logprobs, abs=2e-5)


def test_a_head_that_is_scaled_or_cut_is_applied():
    model = model_of("llama")
    model = replace(model, head=replace(model.head, num_real=250, scale=0.5))
    requests = requests_of(random_prompts(4))
    lean, general = (
        Engine(model, stop_ids=(), pad_id=0, num_slots=4, decoder=decoder_of(model, way)).generate(requests, Sampling())
        for way in ("lean", "slots")
    )
    assert [answer.ids for answer in lean] == [answer.ids for answer in general]
    assert max(token for answer in lean for token in answer.ids) < 250


def test_every_family_is_tried_here():
    assert {model_of(name).module.config.model_type for name in MODELS} == set(FAMILIES)
