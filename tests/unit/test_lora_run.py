"""A whole run with adapters on disk: what it leaves, how it goes on, and that its exports say what it said."""

from __future__ import annotations

import json
import os
import signal

import pytest
import torch
import transformers
from peft import AutoPeftModelForCausalLM
from safetensors import safe_open

from builders import tiny_llama, tiny_tokenizer
from limbeck import api
from limbeck.cli import run_cli
from limbeck.driver import resume_run, train_run
from limbeck.errors import Refusal, Stopped, UsageError
from limbeck.machine import use_machine
from limbeck.models.load import load_generation_config, load_model
from limbeck.models.resolve import parse_ref
from limbeck.models.save import save_model, weights_hash
from limbeck.planning.check import plan_recipe
from limbeck.recipe.files import load_recipe
from limbeck.rollouts.engine import Engine
from limbeck.rollouts.request import GenerationRequest
from limbeck.rollouts.sampling import GREEDY
from limbeck.runs.store import Run
from limbeck.training.material import prepare_material
from limbeck.training.setup import load_models
from pairs import language_model, write_pair

SETTINGS = {"lora": {"rank": 2, "alpha": 4}, "learning_rate": 1e-2}


def write(folder, **settings):
    folder.mkdir(exist_ok=True)
    student = tiny_llama(tiny_tokenizer(), tie_embeddings=True)
    return write_pair(folder, student=student, **{**SETTINGS, **settings})


def train(recipe, *overrides, listen=lambda event: None):
    return train_run(load_recipe(recipe, list(overrides), {}), listen)


def of_kind(run, kind):
    return [event for event in run.read_events() if event["kind"] == kind]


def stopped_at(step):
    def interrupt(event):
        if event["kind"] == "step" and event["step"] == step:
            os.kill(os.getpid(), signal.SIGINT)

    return interrupt


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    return train(write(tmp_path_factory.mktemp("lora")))


@pytest.mark.report("LE-06", "LE-07")
def test_the_log_tells_what_trained_and_the_base_by_content(done):
    start = of_kind(done, "start")[0]
    base = transformers.AutoModelForCausalLM.from_pretrained(done.path.parent.parent / "student")
    assert start["student"]["weights"] == weights_hash(base)
    assert start["lora"]["modules"] == ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]
    assert start["lora"]["num_frozen"] == base.num_parameters()
    assert any("LoRA of rank 2 trains" in event["text"] for event in of_kind(done, "note"))
    with safe_open(done.adapter_path / "adapter_model.safetensors", framework="pt") as file:
        assert file.metadata()["base_sha256"] == weights_hash(base)


def test_model_is_the_base_with_the_adapter_and_its_tables_still_tied(done):
    ids = torch.tensor([[5, 9, 17, 200, 3, 44, 2, 7]])
    merged = transformers.AutoModelForCausalLM.from_pretrained(done.model_path)
    with torch.no_grad():
        by_adapter = AutoPeftModelForCausalLM.from_pretrained(done.adapter_path)(input_ids=ids).logits
        by_base = transformers.AutoModelForCausalLM.from_pretrained(done.path.parent.parent / "student")(ids).logits
        by_merged = merged(input_ids=ids).logits
    assert (by_merged - by_adapter).abs().max() < 1e-5
    assert (by_merged - by_base).abs().max() > 1e-2  # it did learn
    assert merged.lm_head.weight is merged.model.embed_tokens.weight
    assert weights_hash(merged) == of_kind(done, "done")[0]["weights"]


@pytest.mark.report("CR-04", "CR-07")
def test_a_stopped_run_goes_on_bit_for_bit(tmp_path):
    whole = train(write(tmp_path / "whole", steps=4))
    with pytest.raises(Stopped):
        train(write(tmp_path / "halves", steps=4), listen=stopped_at(2))
    going_on = resume_run(Run.open(tmp_path / "halves" / "runs" / "tiny"))
    assert of_kind(going_on, "done")[0]["weights"] == of_kind(whole, "done")[0]["weights"]
    assert [event["loss"] for event in of_kind(going_on, "step")] == [event["loss"] for event in of_kind(whole, "step")]


@pytest.mark.report("LE-07")
def test_a_run_does_not_go_on_from_another_base_or_with_other_adapters(tmp_path):
    with pytest.raises(Stopped):
        train(write(tmp_path / "run", steps=4), listen=stopped_at(1))
    stopped = Run.open(tmp_path / "run" / "runs" / "tiny")
    recipe = stopped.recipe_path.read_text()
    assert "alpha: 4" in recipe
    stopped.recipe_path.write_text(recipe.replace("alpha: 4", "alpha: 8"))
    with pytest.raises(Refusal, match=r"lora.alpha from 4 to 8"):
        resume_run(stopped)
    stopped.recipe_path.write_text(recipe)
    tiny_llama(tiny_tokenizer(), tie_embeddings=True, seed=7).save_pretrained(tmp_path / "run" / "student")
    with pytest.raises(Refusal, match="its student changed"):
        resume_run(stopped)


def test_the_students_base_as_teacher_is_held_once(tmp_path):
    recipe = load_recipe(write(tmp_path / "run"), [], {}).recipe
    recipe = recipe.model_copy(update={"teacher": recipe.student})
    models = load_models(prepare_material(recipe), recipe, use_machine("cpu"))
    held = {parameter.data_ptr() for parameter in models.student.module.parameters()}
    assert {parameter.data_ptr() for parameter in models.teacher.module.parameters()} < held
    assert plan_recipe(recipe).memory.components["teacher weights"] == 0


# -------------------------------------------------------------------------------------------------------------- export


@pytest.mark.report("LE-04", "LE-05")
def test_an_exported_model_is_asked_stopped_and_answers_as_in_the_run(done, tmp_path):
    folder = api.export(done.path, "merged", tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    start, rows = of_kind(done, "start")[0], done.read_answers("prompts-held-out")[:5]
    assert model.generation_config.eos_token_id == start["stop_ids"]
    assert (folder / "tokenizer.json").read_text() == (done.path.parent.parent / "student/tokenizer.json").read_text()

    ref = parse_ref("run:tiny", workspace=done.path.parent.parent)
    own = load_model(ref, trainable=False, dtype=torch.float32, device=torch.device("cpu"))
    stop_ids = load_generation_config(ref).eos_token_id
    engine = Engine(own, stop_ids=stop_ids, pad_id=start["pad_id"], num_slots=2)
    answers = engine.generate([GenerationRequest(tuple(row["ids"]), 0, 20) for row in rows], GREEDY)
    for row, answer in zip(rows, answers, strict=True):
        question = row["prompt"].partition("<|im_start|>user\n")[2].partition("<|im_end|>")[0]
        asked = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt"
        ).input_ids
        assert asked[0].tolist() == row["ids"]
        written = model.generate(asked, attention_mask=torch.ones_like(asked), max_new_tokens=20, do_sample=False)
        assert tuple(written[0, asked.shape[1] :].tolist()) == answer.ids


@pytest.mark.report("LE-04")
def test_added_tokens_are_saved_with_their_ids(tmp_path):
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["<|one|>", "<|two|>"])
    model = language_model(tiny_llama(tokenizer, vocab_size=320), tokenizer)
    save_model(model, tmp_path / "model", chat_template="{{ 'X' }}", stop_ids=(2,), pad_id=0)
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    assert again.get_vocab() == tokenizer.get_vocab()
    assert again("a<|one|> b<|two|>").input_ids == tokenizer("a<|one|> b<|two|>").input_ids


def test_an_exported_adapter_is_peft_s_with_the_runs_tokenizer(done, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run_cli(["export", str(done.path), "--to", "adapter"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert told == f"The result of {done.path} is in tiny-adapter."
    names = {file.name for file in (tmp_path / "tiny-adapter").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json", "generation_config.json"} <= names
    assert not {"model.safetensors", "config.json"} & names
    settings = json.loads((tmp_path / "tiny-adapter" / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == str((done.path.parent.parent / "student").resolve())
    AutoPeftModelForCausalLM.from_pretrained(tmp_path / "tiny-adapter")
    with pytest.raises(UsageError, match="exists"):
        api.export(done.path, "adapter")


def test_what_a_run_does_not_have_cannot_be_exported(tmp_path):
    with pytest.raises(Stopped):
        train(write(tmp_path / "run", steps=4, lora=None), listen=stopped_at(1))
    run = Run.open(tmp_path / "run" / "runs" / "tiny")
    with pytest.raises(UsageError, match=r"no model yet.*limbeck resume"):
        api.export(run.path, "merged", tmp_path / "out")
    resume_run(run)
    with pytest.raises(UsageError, match="trained all weights and has no adapter"):
        api.export(run.path, "adapter", tmp_path / "out")
    api.export(run.path, "merged", tmp_path / "out")
    assert (tmp_path / "out" / "config.json").is_file()
