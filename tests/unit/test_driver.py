"""A whole run on disk: what lies in its folder, what stops it, and what it must not depend on."""

from __future__ import annotations

import json
import os
import signal

import pytest
import torch
import transformers

from builders import CHATML, OTHER_CORPUS, prompt_row, tiny_llama, tiny_tokenizer
from limbeck import driver
from limbeck.driver import resume_run, train_run
from limbeck.errors import Diverged, LimbeckError, ModelError, RecipeError, Refusal, Stopped, VocabularyMismatch
from limbeck.models.save import weights_hash
from limbeck.recipe.files import load_recipe
from limbeck.rollouts.engine import Engine
from limbeck.runs.marks import read_marks
from limbeck.runs.store import Run
from limbeck.training.checkpoint import latest_checkpoint
from pairs import write_pair


def run(recipe, *overrides, listen=lambda event: None):
    return train_run(load_recipe(recipe, list(overrides), {}), listen)


def of_kind(run, kind):
    return [event for event in run.read_events() if event["kind"] == kind]


def result_of(run):
    return transformers.AutoModelForCausalLM.from_pretrained(run.model_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run as it comes, and the events that were heard of it."""
    heard = []
    return run(write_pair(tmp_path_factory.mktemp("whole")), listen=heard.append), heard


def test_a_run_leaves_a_folder_that_tells_everything(whole):
    done, heard = whole
    kinds = [event["kind"] for event in done.read_events()]
    assert [event["kind"] for event in heard] == kinds
    assert kinds.count("step") == 4
    assert kinds.count("evaluation") == 3  # before the first step, after the second and the last
    assert kinds[-1] == "done"
    assert done.status().state == "done"
    start = of_kind(done, "start")[0]
    assert start["prompts"]["train"] == 18
    assert start["prompts"]["held_out"] == 6
    assert "KL(student‖teacher)" in start["objective"]
    assert "beta 1" in start["objective"]
    assert start["student"]["weights"] != start["teacher"]["weights"]
    assert start["machine"]["libraries"]["torch"] == torch.__version__
    step = of_kind(done, "step")[0]
    for name in ("loss", "grad_norm", "write_us_per_token", "score_us_per_token", "cut_off_share", "memory_bytes"):
        assert step[name] >= 0
    assert all(isinstance(worst["text"], str) for worst in step["worst_tokens"])
    for event in of_kind(done, "evaluation"):
        for text in ("fixed_teacher_text", "fresh_student_text"):
            value = event[text]["divergence"]
            assert value["low"] <= value["estimate"] <= value["high"]
            assert value["n"] == 6
    assert set(done.answer_sets()) == {
        "held-out-step-000000", "held-out-step-000002", "held-out-step-000004", "held-out-teacher",
        "prompts-held-out", "prompts-train",
    }  # fmt: skip
    assert latest_checkpoint(done.checkpoints_path).step == 4
    assert all(
        file.suffix in {".json", ".jsonl", ".safetensors", ".yaml", ".jinja", ".lock"}
        for file in done.path.rglob("*")
        if file.is_file()
    )


def test_the_result_answers_in_plain_transformers(whole):
    done, _ = whole
    tokenizer = transformers.AutoTokenizer.from_pretrained(done.model_path)
    model = result_of(done)
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hello"}], add_generation_prompt=True, return_tensors="pt"
    ).input_ids
    answer = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=5)
    assert answer.shape[1] > ids.shape[1]
    assert weights_hash(model) == of_kind(done, "done")[0]["weights"]


def test_the_written_recipe_runs_again_and_gives_the_same_student(whole):
    first, _ = whole
    again = run(first.recipe_path, "name=again")
    assert of_kind(again, "done")[0]["weights"] == of_kind(first, "done")[0]["weights"]
    assert [event["loss"] for event in of_kind(again, "step")] == [event["loss"] for event in of_kind(first, "step")]


@pytest.mark.report("DC-05")
def test_rows_with_and_without_a_reference_answer_give_bit_identical_students(tmp_path):
    texts = [f"question {number}" for number in range(20)]
    with_answers = [{**prompt_row(text), "answer": f"the answer to {text}"} for text in texts]
    as_messages = [
        {"messages": [*prompt_row(text)["prompt"], {"role": "assistant", "content": "an answer"}]} for text in texts
    ]
    weights = set()
    for name, rows in (
        ("without", [prompt_row(text) for text in texts]),
        ("with", with_answers),
        ("chats", as_messages),
    ):
        folder = tmp_path / name
        folder.mkdir()
        done = run(write_pair(folder, rows=rows, steps=2))
        weights.add(of_kind(done, "done")[0]["weights"])
        said = [event["text"] for event in of_kind(done, "note") if "reference answer" in event["text"]]
        assert bool(said) == (name != "without")
    assert len(weights) == 1


def test_the_teacher_writes_nothing_but_the_held_out_answers_and_those_before_training(tmp_path, monkeypatch):
    written = []
    write = Engine.stream

    def watched(self, requests, sampling):
        written.append((self.model.name.rpartition("/")[2], [request.prompt_ids for request in requests]))
        return write(self, requests, sampling)

    monkeypatch.setattr(Engine, "stream", watched)
    monkeypatch.setattr(transformers.LlamaForCausalLM, "generate", _refuse)
    done = run(write_pair(tmp_path), listen=lambda event: written.append((event["kind"], [])))
    names = [name for name, _ in written]
    by_teacher = [place for place, name in enumerate(names) if name == "teacher"]
    held_out = {tuple(row["ids"]) for row in done.read_answers("prompts-held-out")}
    assert by_teacher[-1] < names.index("step")
    assert set(written[by_teacher[-1]][1]) == held_out
    # before that, only the probe of the architecture wrote: random ids, none of them a prompt of the run
    train = {tuple(row["ids"]) for row in done.read_answers("prompts-train")}
    assert not train & {prompt for place in by_teacher for prompt in written[place][1]}


def _refuse(*args, **kwargs):
    raise AssertionError("generate was called")


@pytest.mark.report("EP-04")
def test_a_tokenizer_without_a_pad_token_works_without_a_new_row(tmp_path):
    tokenizer = tiny_tokenizer(pad_token=None)
    rows = [prompt_row("one " * length) for length in (1, 2, 5, 9, 14, 20)]
    settings = {"rows": rows, "tokenizer": tokenizer, "held_out": 1, "steps": 2, "prompts_per_step": 3}
    together = run(write_pair(tmp_path, **settings))
    assert result_of(together).get_input_embeddings().num_embeddings == 300
    other = tmp_path / "other"
    other.mkdir()
    alone = run(write_pair(other, **settings), "micro_batch_tokens=1", "slots=1")
    losses = [[event["loss"] for event in of_kind(each, "step")] for each in (together, alone)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.report("VT-01")
@pytest.mark.parametrize(("beta", "rows"), [(0.0, (320, 384)), (0.5, (384, 320)), (1.0, (320, 384))])
def test_padded_heads_of_different_width_train(tmp_path, beta, rows):
    tokenizer = tiny_tokenizer()
    student, teacher = (
        tiny_llama(tokenizer, vocab_size=rows[0], scale=4.0),
        tiny_llama(tokenizer, vocab_size=rows[1], scale=4.0, seed=1),
    )
    done = run(write_pair(tmp_path, student=student, teacher=teacher, tokenizer=tokenizer, beta=beta))
    assert of_kind(done, "start")[0]["vocabulary"] == 300
    assert result_of(done).get_input_embeddings().num_embeddings == rows[0]
    assert all(event["loss"] > 0 for event in of_kind(done, "step"))


@pytest.mark.report("VT-06")
def test_the_same_size_with_another_id_map_is_refused_before_a_weight_is_read(tmp_path, monkeypatch):
    path = write_pair(tmp_path)
    tiny_tokenizer(corpus=OTHER_CORPUS).save_pretrained(tmp_path / "teacher")
    monkeypatch.setattr("limbeck.training.setup.load_model", _refuse)
    with pytest.raises(VocabularyMismatch, match=r"ids name different tokens: \d+ is '.*' and '.*'") as caught:
        run(path)
    assert caught.value.exit_code == 3
    assert not (tmp_path / "runs").exists()


def test_a_template_with_todays_date_is_frozen(tmp_path):
    dated = "{{ '<|im_start|>system\nToday is ' + strftime_now('%d %b %Y') + '<|im_end|>\n' }}"
    template = dated + CHATML
    tokenizer = tiny_tokenizer(chat_template=template)
    done = run(write_pair(tmp_path, tokenizer=tokenizer))
    stored = done.read_answers("prompts-train")
    assert all("Today is " in row["prompt"] for row in stored)
    assert len({row["prompt"].split("<|im_end|>")[0] for row in stored}) == 1
    assert [tokenizer.decode(row["ids"]) for row in stored] == [row["prompt"] for row in stored]
    assert any("date" in event["text"] for event in of_kind(done, "note"))


@pytest.mark.report("TH-01")
def test_a_broken_teacher_ends_the_run_as_failed_with_nothing_broken_saved(tmp_path):
    tokenizer = tiny_tokenizer()
    teacher = tiny_llama(tokenizer, scale=4.0, seed=1)
    with torch.no_grad():
        teacher.model.layers[1].mlp.up_proj.weight[0, 0] = torch.nan
    with pytest.raises((Diverged, Refusal)) as caught:
        run(write_pair(tmp_path, teacher=teacher))
    assert caught.value.exit_code in (3, 4)
    failed = Run.open(tmp_path / "runs" / "tiny")
    assert failed.status().state == "failed"
    assert not failed.model_path.exists()
    assert latest_checkpoint(failed.checkpoints_path) is None


@pytest.mark.report("TH-01")
def test_a_student_that_breaks_in_the_middle_leaves_the_last_healthy_checkpoint(tmp_path, monkeypatch):
    own_train = driver.training_steps

    def breaking_train(state, *rest):
        for record in own_train(state, *rest):
            if record.step == 12:
                with torch.no_grad():
                    state.student.module.model.layers[0].mlp.up_proj.weight[0, 0] = torch.inf
            yield record

    monkeypatch.setattr(driver, "training_steps", breaking_train)
    with pytest.raises(Diverged) as caught:
        run(write_pair(tmp_path, steps=30, evaluate_every=5))
    assert caught.value.exit_code == 4
    failed = Run.open(tmp_path / "runs" / "tiny")
    assert failed.status().state == "failed"
    assert latest_checkpoint(failed.checkpoints_path).step == 10
    assert not failed.model_path.exists()
    assert of_kind(failed, "step")[-1]["step"] == 12


@pytest.mark.report("EP-03")
def test_a_student_that_stops_elsewhere_than_the_template_is_named_and_stopped_at_both(tmp_path):
    tokenizer = tiny_tokenizer(eos_token="<|endoftext|>")
    student = tiny_llama(tokenizer, scale=4.0)
    student.generation_config.eos_token_id = tokenizer.eos_token_id
    recipe = write_pair(tmp_path, student=student, tokenizer=tokenizer)
    done = run(recipe)
    stops = tokenizer.convert_ids_to_tokens(of_kind(done, "start")[0]["stop_ids"])
    assert set(stops) == {"<|endoftext|>", "<|im_end|>"}
    assert any("<|im_end|>" in event["text"] and "<|endoftext|>" in event["text"] for event in of_kind(done, "note"))
    assert all("cut_off_share" in event for event in of_kind(done, "step"))


def test_ctrl_c_stops_after_the_step_and_keeps_it(tmp_path):
    def interrupt(event):
        if event["kind"] == "step" and event["step"] == 2:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Stopped) as caught:
        run(write_pair(tmp_path, steps=50, evaluate_every=50), listen=interrupt)
    assert caught.value.exit_code == 75
    stopped = Run.open(tmp_path / "runs" / "tiny")
    assert stopped.status().state == "stopped"
    assert latest_checkpoint(stopped.checkpoints_path).step == 2
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_ctrl_c_interrupts_at_once(tmp_path):
    def interrupt(event):
        if event["kind"] == "step" and event["step"] == 2:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(write_pair(tmp_path, steps=50, evaluate_every=50), listen=interrupt)
    assert Run.open(tmp_path / "runs" / "tiny").status().state == "stopped"


def test_a_full_disk_stops_the_run_with_75(tmp_path, monkeypatch):
    def full(*args, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(driver, "save_checkpoint", full)
    with pytest.raises(Stopped, match="No space left") as caught:
        run(write_pair(tmp_path))
    assert caught.value.exit_code == 75


def test_running_out_of_memory_names_the_settings(tmp_path, monkeypatch):
    def exhausted(self, batch):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(driver.LocalTeacher, "score", exhausted)
    with pytest.raises(Stopped, match="micro_batch_tokens"):
        run(write_pair(tmp_path))


def test_a_beta_that_is_nearly_an_end_is_refused_before_anything_is_read(tmp_path):
    with pytest.raises(LimbeckError, match="beta"):
        run(write_pair(tmp_path), "beta=1e-12")
    assert not (tmp_path / "runs").exists()


def test_a_pair_that_does_not_fit_is_refused_before_a_weight_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("limbeck.training.setup.load_model", _refuse)
    with pytest.raises(Refusal, match="GiB are free"):
        run(write_pair(tmp_path), "micro_batch_tokens=1000000000")


def test_a_hosted_teacher_is_refused_on_this_route(tmp_path):
    with pytest.raises(RecipeError, match="openai"):
        run(write_pair(tmp_path), "teacher=openai:gpt-x")


def test_learning_happens(tmp_path):
    """Forty steps on a tiny pair bring the student clearly nearer to its teacher, on both kinds of text."""
    done = run(
        write_pair(
            tmp_path, steps=40, evaluate_every=40, prompts_per_step=16, max_practice_tokens=12, learning_rate=0.01
        )
    )
    first, last = of_kind(done, "evaluation")
    for text in ("fixed_teacher_text", "fresh_student_text"):
        assert last[text]["divergence"]["estimate"] < 0.7 * first[text]["divergence"]["estimate"]
    agreement = [event["fresh_student_text"]["agreement"] for event in (first, last)]
    assert agreement[1] > agreement[0]
    assert json.dumps(first)  # plain values all through


@pytest.mark.report("LT-01", "LT-04")
def test_a_practice_limit_beyond_the_models_positions_is_refused_before_a_weight_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("limbeck.training.setup.load_model", _refuse)
    with pytest.raises(ModelError, match=r"has 512 positions.*max_practice_tokens to at most 4\d\d"):
        run(write_pair(tmp_path), "max_practice_tokens=600")


def stopped_at(step):
    def interrupt(event):
        if event["kind"] == "step" and event["step"] == step:
            os.kill(os.getpid(), signal.SIGINT)

    return interrupt


def test_a_stopped_run_goes_on_bit_for_bit(tmp_path):
    (tmp_path / "whole").mkdir()
    (tmp_path / "halves").mkdir()
    whole = run(write_pair(tmp_path / "whole", steps=6))
    with pytest.raises(Stopped):
        run(write_pair(tmp_path / "halves", steps=6), listen=stopped_at(3))
    done = resume_run(Run.open(tmp_path / "halves" / "runs" / "tiny"))
    assert done.status().state == "done"
    assert of_kind(done, "done")[0]["weights"] == of_kind(whole, "done")[0]["weights"]
    assert [event["loss"] for event in of_kind(done, "step")] == [event["loss"] for event in of_kind(whole, "step")]
    assert [event["step"] for event in of_kind(done, "start")] == [0, 3]
    last = [of_kind(each, "evaluation")[-1] for each in (done, whole)]
    assert last[0]["teacher_text_loss"] == last[1]["teacher_text_loss"]
    marks = [read_marks(each.path / "marks" / "step-000006.safetensors").answers for each in (done, whole)]
    for one, other in zip(*marks, strict=True):
        assert (one.key, one.text(), one.divergence.tolist()) == (other.key, other.text(), other.divergence.tolist())
    with pytest.raises(Refusal, match="is done"):
        resume_run(done)


@pytest.mark.report("TH-01")
def test_a_failed_run_goes_on_from_the_last_healthy_checkpoint(tmp_path, monkeypatch):
    own_train = driver.training_steps

    def breaking_train(state, *rest):
        for record in own_train(state, *rest):
            if record.step == 5:
                with torch.no_grad():
                    state.student.module.model.layers[0].mlp.up_proj.weight[0, 0] = torch.inf
            yield record

    with monkeypatch.context() as patch:
        patch.setattr(driver, "training_steps", breaking_train)
        with pytest.raises(Diverged):
            run(write_pair(tmp_path, steps=8, evaluate_every=2))
    done = resume_run(Run.open(tmp_path / "runs" / "tiny"))
    assert of_kind(done, "start")[-1]["step"] == 4
    assert done.status().state == "done"
    assert all(torch.isfinite(parameter).all() for parameter in result_of(done).parameters())


@pytest.mark.parametrize("what", ["prompts", "teacher"])
def test_a_run_whose_prompts_or_models_changed_does_not_go_on(tmp_path, what):
    with pytest.raises(Stopped):
        run(write_pair(tmp_path, steps=6), listen=stopped_at(2))
    if what == "prompts":
        with (tmp_path / "rows.jsonl").open("a") as file:
            file.write(json.dumps(prompt_row("a new question")) + "\n")
    else:
        tiny_llama(tiny_tokenizer(), scale=4.0, seed=7).save_pretrained(tmp_path / "teacher")
    with pytest.raises(Refusal, match=f"its {what} changed"):
        resume_run(Run.open(tmp_path / "runs" / "tiny"))


def test_a_run_without_a_checkpoint_cannot_go_on(tmp_path):
    tokenizer = tiny_tokenizer()
    teacher = tiny_llama(tokenizer, scale=4.0, seed=1)
    with torch.no_grad():
        teacher.lm_head.weight[5, 0] = torch.nan
    recipe = write_pair(tmp_path, teacher=teacher)
    with pytest.raises(LimbeckError):
        run(recipe)
    with pytest.raises(Refusal, match="no checkpoint"):
        resume_run(Run.open(tmp_path / "runs" / "tiny"))
