"""Which architectures write in slots, found out by asking them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import transformers

from builders import tiny_tokenizer
from limbeck.errors import Refusal
from limbeck.fast.gated import FAMILIES
from limbeck.models.attention import LayerKinds, layer_kinds
from limbeck.models.load import logit_transform
from limbeck.rollouts import probe
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
    layers = layer_kinds(model.module.config)
    assert layers.window == 12
    monkeypatch.setattr("limbeck.rollouts.slots.layer_kinds", lambda config: LayerKinds(layers.kinds, 10**6))
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


WAYS = ("lean", "slots", "generate")  # in the order of trying them


def with_gaps(monkeypatch, **gaps):
    """The probe finds these gaps where it measures: of each way to write, and of batches as training has them."""
    tried, read = [], []
    write, batched, gap_of = probe._generate, probe._batched, probe._gap

    def writing(*args):
        tried.append(WAYS[len(tried)])
        return write(*args)

    def reading(*args, **options):
        read.append(True)
        return batched(*args, **options)

    def gap(*args):
        found = gaps.get("batch" if read else tried[-1], gap_of(*args))
        read.clear()
        return found

    monkeypatch.setattr(probe, "_generate", writing)
    monkeypatch.setattr(probe, "_batched", reading)
    monkeypatch.setattr(probe, "_gap", gap)


@pytest.mark.parametrize(
    ("dtype", "lean_nats", "nats"),
    [(torch.float32, 2e-4, 1e-3), (torch.float64, 1e-6, 1e-6), (torch.bfloat16, 0.1, 0.1)],
)
def test_a_way_to_write_may_be_off_by_its_tolerance_and_no_more(monkeypatch, dtype, lean_nats, nats):
    model = tiny_model(dtype=dtype, scale=1.0)
    above = 1 + 1e-6
    cases = [({"lean": lean_nats}, "lean"), ({"lean": lean_nats * above, "slots": nats}, "slots")]
    if dtype != torch.float64:  # eager attention takes its softmax in float32, where a float64 mask is not finite
        cases.append(({"lean": lean_nats * above, "slots": nats * above, "generate": nats}, "generate"))
    for gaps, way in cases:
        with monkeypatch.context() as patch:
            with_gaps(patch, **gaps)
            method = choose_method(model, max_length=64, pad_id=0)
            assert (method.decoder, method.gap_nats) == (way, gaps[way])
    if dtype != torch.float64:
        with_gaps(monkeypatch, lean=lean_nats * above, slots=nats * above, generate=nats * above)
        with pytest.raises(Refusal, match="key/value cache"):
            choose_method(model, max_length=64, pad_id=0)


@pytest.mark.parametrize(("dtype", "nats"), [(torch.float32, 1e-3), (torch.float64, 1e-6), (torch.bfloat16, 0.1)])
def test_a_padded_batch_may_be_off_by_the_tolerance_and_no_more(monkeypatch, dtype, nats):
    model = tiny_model(dtype=dtype, scale=1.0)
    with monkeypatch.context() as patch:
        with_gaps(patch, batch=nats)
        assert choose_method(model, max_length=64, pad_id=0).share
    with_gaps(monkeypatch, batch=nats * (1 + 1e-6))
    with pytest.raises(Refusal, match="right-padded training batch"):
        choose_method(model, max_length=64, pad_id=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_way_that_writes_what_is_not_a_number_is_passed_over(monkeypatch, dtype):
    write, tried = probe._generate, []

    def broken(*args):
        answers = write(*args)
        tried.append(WAYS[len(tried)])
        if tried[-1] != "generate":
            answers[2] = replace(answers[2], logprobs=(torch.nan, *answers[2].logprobs[1:]))
        return answers

    monkeypatch.setattr(probe, "_generate", broken)
    method = choose_method(tiny_model(dtype=dtype), max_length=64, pad_id=0)
    assert method.decoder == "generate"
    for way in ("lean", "slots"):
        assert f"{way} differs from the plain forward pass by inf nats" in str(method)
