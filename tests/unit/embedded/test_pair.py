"""The pair as it ships: what transformers reads from the two folders, with no network."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from limbeck import embedded
from limbeck.embedded.task import examples
from limbeck.errors import ModelError

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "scripts"))

import build_demo_pair as build  # noqa: E402

FOLDER = Path(embedded.__file__).parent
SIDES = ("teacher", "student")
MEGABYTE = 1_000_000


def test_the_two_folders_together_stay_under_12_megabytes() -> None:
    num_bytes = sum(path.stat().st_size for side in SIDES for path in (FOLDER / side).iterdir())
    assert num_bytes < 12 * MEGABYTE


def test_both_models_have_the_same_tokenizer_and_it_is_the_one_that_the_script_builds() -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (FOLDER / "teacher" / name).read_bytes() == (FOLDER / "student" / name).read_bytes()
    shipped = AutoTokenizer.from_pretrained(FOLDER / "student", local_files_only=True)
    built = build.build_tokenizer()
    assert shipped.get_vocab() == built.get_vocab()
    for each in examples(24, 100):
        assert shipped.encode(each.message) == built.encode(each.message)


def test_recorded_figures_hold_the_promise() -> None:
    figures = json.loads((FOLDER / "figures.json").read_text("utf-8"))
    assert figures["num_held_out"] == 300
    assert figures["teacher_right"] >= 0.95 * 300
    assert 0.20 * 300 <= figures["student_right"] <= 0.40 * 300
    # The student's size is no obstacle: trained to the end it comes close to the teacher.
    assert figures["student_trained_long_right"] >= 0.95 * figures["teacher_right"]


@pytest.mark.parametrize("side", SIDES)
def test_a_folder_loads_by_the_auto_classes_and_names_one_stop_token(side: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(FOLDER / side, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(FOLDER / side, local_files_only=True)
    assert model.dtype == torch.bfloat16
    assert model.config.model_type == "llama"
    assert model.config.tie_word_embeddings
    assert model.config.vocab_size == len(tokenizer)
    assert tokenizer.convert_tokens_to_ids("<|im_end|>") == model.generation_config.eos_token_id
    settings = json.loads((FOLDER / side / "generation_config.json").read_text("utf-8"))
    assert set(settings) == {"eos_token_id", "pad_token_id", "transformers_version"}


def test_texts_survive_the_tokenizer_and_answers_have_20_to_60_tokens() -> None:
    tokenizer = AutoTokenizer.from_pretrained(FOLDER / "student", local_files_only=True)
    for each in examples(21, 300):
        for text in (each.message, each.answer):
            assert tokenizer.decode(tokenizer.encode(text)) == text
        assert 20 <= len(tokenizer.encode(each.answer)) + 1 <= 60
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert rendered == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_teacher_answers_right_where_the_student_mostly_does_not() -> None:
    chosen = examples(22, 40, split="held-out")
    tokenizer = build.build_tokenizer()
    right = {}
    for side in SIDES:
        model = build.LlamaForCausalLM.from_pretrained(FOLDER / side, dtype=torch.float32, local_files_only=True)
        right[side] = build.num_right(model, tokenizer, chosen)
    assert right["teacher"] >= 36
    assert 2 <= right["student"] <= 24


def test_supervised_loss_is_the_mean_over_answer_tokens_alone() -> None:
    tokenizer = build.build_tokenizer()
    model = build.new_model(build.Shape(layers=1, width=16, heads=2, inner=16), tokenizer, seed=3)
    batch = [build.encode(tokenizer, each) for each in examples(23, 3)]
    total, count = 0.0, 0
    with torch.no_grad():
        for sample in batch:
            ids = torch.tensor([[*sample.prompt_ids, *sample.answer_ids]])
            logp_TV = model(ids).logits[0].log_softmax(-1)
            first = len(sample.prompt_ids) - 1
            for offset, token in enumerate(sample.answer_ids):
                total -= float(logp_TV[first + offset, token])
                count += 1
    loss_nats = float(build._answer_loss(model, batch).detach())
    assert sum(len(sample.answer_ids) for sample in batch) == count
    assert loss_nats == pytest.approx(total / count, rel=1e-5)


def test_a_pair_outside_the_windows_is_refused() -> None:
    plan = build.Plan()
    build._refuse_outside({"num_held_out": 100, "teacher_right": 95, "student_right": 20}, plan)
    for teacher_right, student_right in ((94, 30), (99, 19), (99, 41)):
        figures = {"num_held_out": 100, "teacher_right": teacher_right, "student_right": student_right}
        with pytest.raises(ModelError, match=f"teacher is {teacher_right}.0% and the student {student_right}.0%"):
            build._refuse_outside(figures, plan)


@pytest.mark.slow
def test_the_script_writes_two_models_that_load(tmp_path: Path) -> None:
    figures = build.build_pair(tmp_path, build.QUICK, lambda text: None)
    assert {path.name for path in tmp_path.iterdir()} == set(SIDES)
    for side in SIDES:
        model = AutoModelForCausalLM.from_pretrained(tmp_path / side, local_files_only=True)
        assert model.num_parameters() == figures[f"{side}_parameters"]
