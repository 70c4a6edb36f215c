"""LoRA: where adapters stand, that they start at the base, and that merged, saved and reloaded they say the same."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
import transformers
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file
from torch import nn

from builders import save_model, tiny_llama, tiny_tokenizer
from limbeck.errors import ModelError, Refusal
from limbeck.models.adapters import (
    adapter_facts,
    attach_adapters,
    merge_adapters,
    merged_weight,
    save_adapters,
    without_adapters,
)
from limbeck.models.load import load_model
from limbeck.models.resolve import parse_ref
from limbeck.models.save import save_model as save_trained
from limbeck.models.save import weights_hash
from limbeck.rollouts.engine import Engine
from limbeck.rollouts.request import GenerationRequest
from limbeck.rollouts.sampling import GREEDY
from limbeck.teachers.local import LocalTeacher
from limbeck.training.checkpoint import latest_checkpoint, load_checkpoint, save_checkpoint
from limbeck.training.generation import choose_method
from pairs import decoder_of, language_model, random_prompts, recipe_of, state_of, tiny_model, train

CPU = torch.device("cpu")
IDS = torch.tensor([[5, 9, 17, 200, 3, 44, 2, 7]])


def logits_of(module):
    with torch.no_grad():
        return module(input_ids=IDS).logits


def hidden_of(model):
    with torch.no_grad():
        return model.hidden(IDS, torch.arange(8)[None], torch.ones_like(IDS))


def gap(one, other):
    return ((one - other).abs().max() / other.abs().max()).item()


def with_adapters(model, *, rank=4, alpha=8, seed=0):
    """A model whose adapters do something, as after training."""
    attach_adapters(model, rank=rank, alpha=alpha, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in model.module.modules():
            if isinstance(layer, LoraLayer):
                layer.lora_B["default"].weight.normal_(std=0.3, generator=generator)
    return model


def save_both(model, folder):
    """As a run does at its end."""
    save_adapters(model, folder / "adapter")
    merge_adapters(model)
    save_trained(model, folder / "model", chat_template="{{ 'X' }}", stop_ids=(2, 5), pad_id=0)


def folder_of(path, **options):
    tokenizer = tiny_tokenizer()
    return save_model(path, tiny_llama(tokenizer, scale=4.0, **options), tokenizer)


def load(folder, **options):
    ref = parse_ref(str(folder), workspace=folder.parent)
    return load_model(ref, **{"trainable": True, "dtype": torch.float32, "device": CPU, **options})


ARCHITECTURES = {
    "qwen2": (transformers.Qwen2Config, {"tie_word_embeddings": False}),
    "qwen2-tied": (transformers.Qwen2Config, {"tie_word_embeddings": True}),
    "phi3": (transformers.Phi3Config, {}),
    "gemma2": (transformers.Gemma2Config, {"head_dim": 8, "query_pre_attn_scalar": 8}),
    "gpt2": (transformers.GPT2Config, {"n_embd": 32, "n_layer": 2, "n_head": 4}),
    "gpt_neox": (transformers.GPTNeoXConfig, {}),
}


def architecture(name):
    config_class, more = ARCHITECTURES[name]
    sizes = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }  # fmt: skip
    if name == "gpt2":
        sizes = {}
    if name == "gpt_neox":
        del sizes["num_key_value_heads"]
    config = config_class(
        vocab_size=300, initializer_range=0.3, pad_token_id=None, bos_token_id=None, eos_token_id=2, **sizes, **more
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return transformers.AutoModelForCausalLM.from_config(config)


# ------------------------------------------------------------------------------------------------- where adapters stand


def test_adapters_start_at_the_base_and_leave_the_random_state_alone():
    model = tiny_model()
    before, state = hidden_of(model), torch.get_rng_state()
    attach_adapters(model, rank=4, alpha=8, seed=3)
    assert torch.equal(hidden_of(model), before)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_start_follows_from_the_seed():
    def start(seed):
        model = tiny_model()
        attach_adapters(model, rank=4, alpha=8, seed=seed)
        return torch.cat([each.detach().flatten() for each in model.module.parameters() if each.requires_grad])

    assert torch.equal(start(1), start(1))
    assert not torch.equal(start(1), start(2))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_linear_layer_of_the_body_has_one_and_nothing_else_trains(name):
    module = architecture(name)
    linear = {n for n, layer in module.base_model.named_modules() if isinstance(layer, nn.Linear)}
    if name == "gpt2":
        linear = {f"h.{layer}.{inner}" for layer in (0, 1)
                  for inner in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")}  # fmt: skip
    model = language_model(module)
    attach_adapters(model, rank=2, alpha=4, seed=0)
    assert {n for n, layer in module.base_model.named_modules() if isinstance(layer, LoraLayer)} == linear
    assert type(module.get_output_embeddings()) is nn.Linear
    assert not isinstance(module.get_input_embeddings(), LoraLayer)
    assert all(("lora_" in n) == parameter.requires_grad for n, parameter in module.named_parameters())
    assert not model.head.weight_VH.requires_grad


def test_the_facts_are_counted_by_hand():
    model = tiny_model()  # 2 layers of hidden size 16, MLP 32, 2 heads over 1 or 2 key/value heads
    num_base = model.num_parameters
    width = sum(sum(layer.weight.shape) for layer in model.module.model.modules() if isinstance(layer, nn.Linear))
    attach_adapters(model, rank=3, alpha=6, seed=0)
    facts = adapter_facts(model)
    assert (facts.rank, facts.alpha, facts.num_trained, facts.num_frozen) == (3, 6, 3 * width, num_base)
    assert facts.modules == ("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj")
    assert adapter_facts(tiny_model()) is None
    assert f"{3 * width:,} weights beside {num_base:,} frozen ones" in facts.describe()


# ----------------------------------------------------------------------------------------------- merging and the base


def test_a_merged_weight_is_the_formula():
    linear = with_adapters(tiny_model(), rank=4, alpha=8).module.model.layers[0].mlp.up_proj
    base = linear.base_layer.weight.double()
    a, b = linear.lora_A["default"].weight.double(), linear.lora_B["default"].weight.double()
    torch.testing.assert_close(merged_weight(linear).double(), base + 8 / 4 * b @ a, rtol=1e-6, atol=1e-6)
    plain = nn.Linear(3, 5)
    assert merged_weight(plain).data_ptr() == plain.weight.data_ptr()
    assert not merged_weight(plain).requires_grad


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_merged_is_the_adapter_and_a_plain_model(name):
    model = with_adapters(language_model(architecture(name)))
    layers = {n: layer for n, layer in model.module.named_modules() if isinstance(layer, LoraLayer)}
    weights = {n: merged_weight(layer) for n, layer in layers.items()}
    before = logits_of(model.module)
    merge_adapters(model)
    assert gap(logits_of(model.module), before) < 1e-5
    assert all(torch.equal(model.module.get_submodule(n).weight, weight) for n, weight in weights.items())
    assert {n for n, _ in model.module.named_parameters()} == {n for n, _ in architecture(name).named_parameters()}
    assert model.num_parameters == language_model(architecture(name)).num_parameters


def test_a_merge_that_computes_something_else_is_an_error(monkeypatch):
    model = with_adapters(tiny_model())
    monkeypatch.setattr("limbeck.models.adapters.merged_weight", lambda layer: layer.base_layer.weight.detach())
    with pytest.raises(ModelError, match="changes its hidden states by"):
        merge_adapters(model)


def test_the_base_is_a_second_view_that_costs_no_weight_and_that_nothing_disturbs():
    model = tiny_model()
    before, plain_hash = hidden_of(model), weights_hash(model.module)
    base = without_adapters(with_adapters(model))
    own = {parameter.data_ptr() for parameter in model.module.parameters()}
    assert {parameter.data_ptr() for parameter in base.module.parameters()} <= own
    assert not any(isinstance(layer, LoraLayer) for layer in base.module.modules())
    assert torch.equal(hidden_of(base), before)
    assert not torch.equal(hidden_of(model), before)
    assert plain_hash == weights_hash(base.module)
    merge_adapters(model)
    assert torch.equal(hidden_of(base), before)


def test_the_rollout_probe_holds_with_adapters_at_work():
    model, merged = (with_adapters(tiny_model(max_positions=128)) for _ in range(2))
    method = choose_method(model, max_length=64, pad_id=0)
    assert method.decoder == "lean"
    assert method.share
    assert method.gap_nats < 1e-4
    merge_adapters(merged)
    answers = [greedy(each, way) for each in (model, merged) for way in ("lean", "slots", "generate")]
    assert answers == answers[:1] * 6


def greedy(model, way):
    engine = Engine(model, stop_ids=(2,), pad_id=0, num_slots=2, decoder=decoder_of(model, way))
    requests = [GenerationRequest(prompt.ids, 7, 8) for prompt in random_prompts(3)]
    return [each.ids for each in engine.generate(requests, GREEDY)]


# ------------------------------------------------------------------------------------------------------------- on disk

READ_BACK = """
import sys, torch, transformers
from safetensors.torch import save_file
torch.set_num_threads(1)
for folder in sys.argv[1:]:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        save_file({{"logits": model(input_ids=torch.tensor({ids})).logits}}, folder + ".read")
"""


@pytest.mark.report("LE-01", "LE-02")
def test_merged_saved_and_reloaded_in_a_new_process_says_what_the_adapter_said(tmp_path):
    students, expected = {}, {}
    for tied in (True, False):
        folder = tmp_path / str(tied)
        folder.mkdir()
        tokenizer = tiny_tokenizer()
        students[tied] = with_adapters(
            load(save_model(folder / "base", tiny_llama(tokenizer, tie_embeddings=tied), tokenizer))
        )
        expected[tied] = logits_of(students[tied].module)
        save_both(students[tied], folder)

    script = READ_BACK.format(ids=IDS.tolist())
    folders = [str(tmp_path / str(tied) / "model") for tied in students]
    subprocess.run([sys.executable, "-c", script, *folders], check=True)
    for tied, student in students.items():
        model = tmp_path / str(tied) / "model"
        assert (load_file(f"{model}.read")["logits"] - expected[tied]).abs().max() < 1e-5
        tensors, base = (load_file(each / "model.safetensors") for each in (model, model.parent / "base"))
        assert tensors.keys() == base.keys()
        assert ("lm_head.weight" in tensors) != tied
        assert json.loads((model / "config.json").read_text())["tie_word_embeddings"] == tied
        assert torch.equal(tensors["model.embed_tokens.weight"], base["model.embed_tokens.weight"])
        assert weights_hash(transformers.AutoModelForCausalLM.from_pretrained(model)) == weights_hash(student.module)


@pytest.mark.parametrize("tied", [True, False])
def test_peft_reads_the_adapter_on_its_base(tmp_path, tied):
    trained = with_adapters(load(folder_of(tmp_path / "base", tie_embeddings=tied)))
    save_adapters(trained, tmp_path / "adapter")
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    assert torch.equal(logits_of(PeftModel.from_pretrained(base, tmp_path / "adapter")), logits_of(trained.module))
    assert {file.name for file in (tmp_path / "adapter").iterdir()} == {
        "adapter_config.json", "adapter_model.safetensors",
    }  # fmt: skip
    assert all(".lora_" in name for name in load_file(tmp_path / "adapter" / "adapter_model.safetensors"))


def test_saving_again_replaces_what_a_killed_process_left(tmp_path):
    for seed in (0, 1):
        model = with_adapters(load(folder_of(tmp_path / "base")), seed=seed)
        save_both(model, tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert weights_hash(again) == weights_hash(model.module)


# ------------------------------------------------------------------------------------------------------------ training

RECIPE = recipe_of(steps=6, prompts_per_step=4, max_practice_tokens=8, learning_rate=1e-2, lora={"rank": 2, "alpha": 4})


def lora_state(*, seed=0, rank=2):
    student = tiny_model()
    attach_adapters(student, rank=rank, alpha=4, seed=seed)
    return state_of(student, RECIPE)


def trained_state(num_steps, state=None):
    state = state or lora_state()
    for record in train(state, LocalTeacher(tiny_model(seed=1)), random_prompts(10), RECIPE):
        if record.step == num_steps:
            break
    return state


def trained_weights(state):
    return torch.cat([p.detach().flatten() for p in state.student.module.parameters() if p.requires_grad])


def test_training_moves_the_adapters_and_not_the_base():
    state = lora_state()
    before = trained_weights(state)
    trained_state(2, state)
    assert not torch.equal(trained_weights(state), before)
    assert weights_hash(without_adapters(state.student).module) == weights_hash(tiny_model().module)


@pytest.mark.report("CR-04")
def test_a_run_with_adapters_continues_bit_for_bit_from_a_checkpoint_of_adapters_alone(tmp_path):
    whole = trained_state(6)
    path = save_checkpoint(tmp_path, trained_state(3))
    tensors = load_file(path / "student.safetensors")
    assert all(".lora_" in name for name in tensors)
    assert sum(tensor.numel() for tensor in tensors.values()) == adapter_facts(whole.student).num_trained
    continued = lora_state(seed=9)
    load_checkpoint(latest_checkpoint(tmp_path), continued)
    trained_state(6, continued)
    assert torch.equal(trained_weights(whole), trained_weights(continued))


@pytest.mark.report("CR-04", "CR-05")
@pytest.mark.parametrize("rank", [1, 3])
def test_a_checkpoint_of_another_rank_is_refused(tmp_path, rank):
    save_checkpoint(tmp_path, trained_state(1))
    with pytest.raises(Refusal, match="differ in"):
        load_checkpoint(latest_checkpoint(tmp_path), lora_state(rank=rank))


def test_the_base_as_teacher_scores_without_the_adapters():
    state = lora_state()
    teacher = LocalTeacher(without_adapters(state.student))
    losses = [record.loss for record in train(state, teacher, random_prompts(10), RECIPE)]
    assert losses == pytest.approx([0.0] * 6, abs=1e-9)  # nothing to learn from itself, and nothing learned
