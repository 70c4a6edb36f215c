"""Models from folders: what is read, what is refused before anything of it can run, and that the head is understood."""

from __future__ import annotations

import json
import pickle

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from builders import save_model, tiny_llama, tiny_tokenizer
from limbeck.errors import ModelError, Refusal
from limbeck.models.load import load_generation_config, load_model
from limbeck.models.resolve import parse_ref
from limbeck.models.save import save_model as save_trained
from limbeck.models.save import weights_hash

CPU = torch.device("cpu")


def load(folder, **options):
    ref = parse_ref(str(folder), workspace=folder.parent)
    return load_model(ref, **{"trainable": False, "dtype": torch.float32, "device": CPU, **options})


@pytest.fixture
def folder(tmp_path):
    tokenizer = tiny_tokenizer()
    return save_model(tmp_path / "model", tiny_llama(tokenizer), tokenizer)


def test_a_folder_gives_the_saved_model(folder):
    model = load(folder)
    own = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.tensor([[5, 9, 17]])
    positions, mask = torch.arange(3)[None], torch.ones(1, 3, dtype=torch.long)
    torch.testing.assert_close(model.head.logits(model.hidden(ids, positions, mask))[0], own(ids).logits[0])
    assert not any(parameter.requires_grad for parameter in model.module.parameters())
    assert all(parameter.requires_grad for parameter in load(folder, trainable=True).module.parameters())


def test_the_dtype_is_the_one_asked_for(folder):
    assert load(folder, dtype=torch.bfloat16).dtype == torch.bfloat16
    assert load(folder, dtype=torch.float32).dtype == torch.float32


ARCHITECTURES = {
    "granite": (transformers.GraniteConfig, {"logits_scaling": 8.0}),
    "cohere": (transformers.CohereConfig, {"logit_scale": 0.3}),
    "gemma2": (transformers.Gemma2Config, {"final_logit_softcapping": 3.0, "head_dim": 8, "query_pre_attn_scalar": 8}),
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_scale_and_softcap_of_an_architecture_are_part_of_its_head(tmp_path, name):
    config_class, more = ARCHITECTURES[name]
    config = config_class(
        vocab_size=300, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, initializer_range=0.5, pad_token_id=None, bos_token_id=None, eos_token_id=2, **more,
    )  # fmt: skip
    torch.manual_seed(0)
    save_model(tmp_path / name, transformers.AutoModelForCausalLM.from_config(config), tiny_tokenizer())
    model = load(tmp_path / name)  # the load itself compares head and architecture
    assert (model.head.scale, model.head.softcap) in {(1 / 8, None), (0.3, None), (1.0, 3.0)}


def test_an_architecture_that_changes_its_logits_in_an_unknown_way_is_refused(folder, monkeypatch):
    forward = transformers.LlamaForCausalLM.forward

    def bent(self, *args, **kwargs):
        output = forward(self, *args, **kwargs)
        output.logits = output.logits * 1.01
        return output

    monkeypatch.setattr(transformers.LlamaForCausalLM, "forward", bent)
    with pytest.raises(Refusal, match=r"differ from its output head .* by 9\.9e-03"):
        load(folder)


class Touch:
    """Unpickled, it leaves a mark."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pkl", "training_args.bin", "optimizer.pt"])
def test_pickled_files_are_never_opened(folder, tmp_path, name):
    mark = tmp_path / "touched"
    (folder / name).write_bytes(pickle.dumps(Touch(mark)))
    load(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="safetensors"):
        load(folder)
    assert not mark.exists()


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_code_of_a_repository_is_refused_before_it_can_run(folder, tmp_path, name):
    mark = tmp_path / "touched"
    (folder / "modeling_own.py").write_text(f"open({str(mark)!r}, 'w')\n")
    settings = json.loads((folder / name).read_text())
    settings["auto_map"] = {
        "AutoConfig": "modeling_own.Own",
        "AutoModelForCausalLM": "modeling_own.Own",
        "AutoTokenizer": ["modeling_own.Own", None],
    }
    (folder / name).write_text(json.dumps(settings))
    with pytest.raises(Refusal, match="its own Python code") as caught:
        load(folder)
    assert caught.value.exit_code == 3
    assert not mark.exists()


def test_missing_weights_are_never_filled_with_random_numbers(folder):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lack 1 tensor; the first is .*up_proj"):
        load(folder)


@pytest.mark.parametrize("damage", ["cut", "text"])
def test_a_damaged_file_is_an_error_of_the_model(folder, damage):
    path = folder / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] if damage == "cut" else b"no weights at all")
    with pytest.raises(ModelError, match="could not be read") as raised:
        load(folder)
    assert raised.value.code == "model.weights-unreadable"


@pytest.mark.parametrize(
    ("name", "given"), [("openai:gpt-x", "a model at a hosted API"), ("vllm:http://localhost:8000", "a scoring server")]
)
def test_a_remote_model_cannot_be_loaded(tmp_path, name, given):
    with pytest.raises(ModelError, match=given) as raised:
        load_model(parse_ref(name, workspace=tmp_path), trainable=False, dtype=torch.float32, device=CPU)
    assert raised.value.code == "model.not-local"


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("tokenizer.json", "model.tokenizer-unreadable"),
        ("generation_config.json", "model.generation-config-unreadable"),
        ("config.json", "model.configuration-unreadable"),
    ],
)
def test_a_damaged_text_file_is_named_by_its_part_of_the_model(folder, name, code):
    (folder / name).write_text("{")
    with pytest.raises(ModelError) as raised:
        load(folder)
    assert raised.value.code == code


def test_without_a_generation_config_the_stop_ids_are_those_of_the_config(folder):
    (folder / "generation_config.json").unlink()
    assert (
        load_generation_config(parse_ref(str(folder), workspace=folder.parent)).eos_token_id
        == tiny_tokenizer().eos_token_id
    )


def test_the_saved_result_loads_in_plain_transformers(folder, tmp_path):
    model = load(folder, trainable=True)
    own = model.module.generation_config
    own.temperature, own.do_sample, own.top_p = 0.2, True, 0.5
    rows = model.module.get_input_embeddings().num_embeddings
    save_trained(model, tmp_path / "result", chat_template="{{ 'X' }}", stop_ids=(2, 5), pad_id=0)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "result")
    assert again.dtype == torch.float32
    assert json.loads((tmp_path / "result/config.json").read_text())["dtype"] == "float32"
    assert again.get_input_embeddings().num_embeddings == rows
    assert again.generation_config.eos_token_id == [2, 5]
    assert again.generation_config.pad_token_id == 0
    assert again.generation_config.temperature in (None, 1.0)
    assert not again.generation_config.do_sample
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "result").chat_template == "{{ 'X' }}"
    assert weights_hash(again) == weights_hash(model.module)
    assert {file.suffix for file in (tmp_path / "result").iterdir()} <= {".json", ".safetensors", ".jinja"}


def test_the_hash_is_of_the_contents(folder):
    one, other = load(folder), load(folder)
    assert weights_hash(one.module) == weights_hash(other.module)
    with torch.no_grad():
        other.module.model.norm.weight[0] += 1e-6
    assert weights_hash(one.module) != weights_hash(other.module)
