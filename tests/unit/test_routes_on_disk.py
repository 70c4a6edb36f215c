"""Whole runs off-policy and supervised, of mixtures and warm-ups: what is stored, learnt and resumed."""

from __future__ import annotations

import json
import os
import shutil
import signal

import pytest
import torch

from builders import CORPUS, OTHER_CORPUS, prompt_row, save_model, tiny_llama, tiny_tokenizer, write_rows
from limbeck.driver import resume_run, train_run
from limbeck.errors import DataError, Refusal, Stopped
from limbeck.recipe.files import load_recipe
from limbeck.runs.store import Run
from limbeck.teachers.writer import LocalGenerator, TeacherAnswer
from limbeck.training.checkpoint import latest_checkpoint
from pairs import write_pair

OFF_POLICY = {"route": "off-policy", "max_teacher_tokens": 10, "answers_per_prompt": 2, "teacher_temperature": 1.0}
SOFT = {**OFF_POLICY, "objective": "soft_targets", "temperature": 2.0}
SUPERVISED = {"route": "supervised"}
WARM_UP = {"warmup": {"steps": 2, "answers_per_prompt": 2}, "max_teacher_tokens": 10, "teacher_temperature": 1.0}


def own_rows(num=24):
    return [
        {**prompt_row(f"{CORPUS[number % len(CORPUS)][: 12 + number]}"), "answer": CORPUS[-1][: 6 + number]}
        for number in range(num)
    ]


def run(recipe, *overrides, listen=lambda event: None):
    return train_run(load_recipe(recipe, list(overrides), {}), listen)


def of_kind(run, kind):
    return [event for event in run.read_events() if event["kind"] == kind]


def weights_of(run):
    return of_kind(run, "done")[0]["weights"]


def losses_of(run):
    return [event["loss"] for event in of_kind(run, "step")]


class Canned:
    """A teacher that says the same things to every question."""

    def __init__(self, texts, cut_off=()):
        self.texts, self.cut_off, self.questions = texts, cut_off, []

    def generate(self, questions):
        self.questions += questions
        return [
            TeacherAnswer(self.texts[place % len(self.texts)], place % len(self.texts) in self.cut_off)
            for place in range(len(questions))
        ]


def with_writer(monkeypatch, writer):
    monkeypatch.setattr("limbeck.training.answers.make_answer_generator", lambda *given, **more: writer)
    return writer


def test_an_off_policy_run_stores_what_the_teacher_wrote_and_learns_it(tmp_path):
    done = run(write_pair(tmp_path, **OFF_POLICY))
    answers = done.read_answers("teacher")
    assert len(answers) == 18 * 2
    told = of_kind(done, "answers")[0]
    assert told["written"] == 36
    assert told["learnt"] + sum(told["left_out"].values()) == 36
    assert told["learnt"] == len(done.read_answers("targets")) > 0
    assert sum(row["label"] == "cut-off" for row in answers) == told["left_out"]["cut-off"]
    step = of_kind(done, "step")[0]
    assert step["loss"] > 0
    assert step["teacher_entropy"] is step["score_s"] is step["engine_gap"] is None
    first, last = of_kind(done, "evaluation")[0], of_kind(done, "evaluation")[-1]
    assert first["student_text_loss"] is None
    assert last["teacher_text_loss"] < first["teacher_text_loss"]
    assert "cross-entropy" in of_kind(done, "start")[0]["objective"]
    assert any("WARNING: only 18 prompts" in event["text"] for event in of_kind(done, "note"))


@pytest.mark.parametrize("objective", ["divergence", "soft_targets", "kl_mix"])
def test_soft_off_policy_reads_the_teachers_distribution_of_its_own_tokens(tmp_path, objective):
    done = run(write_pair(tmp_path, **OFF_POLICY, objective=objective, steps=12, learning_rate=5e-3))
    first, last = of_kind(done, "evaluation")[0], of_kind(done, "evaluation")[-1]
    assert last["teacher_text_loss"] < first["teacher_text_loss"]
    assert last["student_text_loss"] is not None
    assert of_kind(done, "step")[0]["teacher_entropy"] > 0


def test_cross_entropy_on_stored_answers_is_a_supervised_run_on_the_same_rows_bit_for_bit(tmp_path):
    off = run(write_pair(tmp_path, **OFF_POLICY, held_out=str(held_out_file(tmp_path))))
    rows = [{**row, "source": "ignored"} for row in off.read_answers("targets")]
    (tmp_path / "again").mkdir()
    path = write_pair(tmp_path / "again", rows=rows, **SUPERVISED, held_out=str(held_out_file(tmp_path)))
    supervised = run(path)
    assert losses_of(supervised) == losses_of(off)
    assert weights_of(supervised) == weights_of(off)


def held_out_file(folder):
    return write_rows(
        folder / "held.jsonl", [{**prompt_row(f"a held-out question {n}"), "answer": "ten"} for n in range(4)]
    )


def test_teacher_and_student_of_different_families_and_templates(tmp_path):
    path = write_pair(tmp_path, **OFF_POLICY, steps=30, learning_rate=1e-2)
    template = (
        "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}<|endoftext|>{% endfor %}"
        "{% if add_generation_prompt %}[assistant] {% endif %}"
    )
    other = tiny_tokenizer(corpus=OTHER_CORPUS, num_entries=290, chat_template=template, eos_token="<|endoftext|>")
    shutil.rmtree(tmp_path / "teacher")
    save_model(tmp_path / "teacher", tiny_llama(other, scale=4.0, seed=1), other)
    done = run(path)
    stored = [row for row in done.read_answers("teacher") if row["label"] is None]
    assert all(other.decode(row["ids"][:-1]) == row["answer"] for row in stored)
    assert losses_of(done)[-1] < 0.6 * losses_of(done)[0]
    # what is learnt are the student's own tokens for that text, and its own stop token
    tokenizer = tiny_tokenizer()
    held = done.read_answers("held-out-teacher")
    assert all(row["ids"][-1] == tokenizer.eos_token_id for row in held if not row["cut_off"])
    for row in held:
        assert tokenizer.decode(row["ids"], skip_special_tokens=True) == row["answer"]


def test_unfit_answers_are_stored_labelled_counted_and_not_learnt(tmp_path, monkeypatch):
    texts = [
        "open the settings",
        "open the settings ",
        " \n",
        "half of it",
        "I'm sorry, but I can't help with that.",
        "it <|im_end|> again",
    ]
    writer = with_writer(monkeypatch, Canned(texts, cut_off={3}))
    done = run(write_pair(tmp_path, **{**OFF_POLICY, "answers_per_prompt": 6}, num_prompts=8))
    labels = [row["label"] for row in done.read_answers("teacher")]
    assert labels[:6] == [None, "duplicate", "empty", "cut-off", "refused", "stop-inside"]
    assert of_kind(done, "answers")[0]["left_out"] == dict.fromkeys(sorted(set(labels) - {None}), 2)
    assert [row["answer"] for row in done.read_answers("targets")] == ["open the settings"] * 2
    assert of_kind(done, "step")[0]["num_answers"] == 4
    assert len({question.key for question in writer.questions}) == len(writer.questions)


def test_a_teacher_that_writes_nothing_fit_ends_the_run_with_the_reason(tmp_path, monkeypatch):
    with_writer(monkeypatch, Canned([" "]))
    with pytest.raises(Refusal, match="None of the teacher's 36 answers"):
        run(write_pair(tmp_path, **OFF_POLICY))


def test_examples_are_shown_to_the_teacher_and_never_learnt_and_held_out_rows_are_none(tmp_path, monkeypatch):
    writer = with_writer(monkeypatch, Canned(["yes"]))
    held = held_out_file(tmp_path)
    examples = [
        {**prompt_row("show me"), "answer": "as we do"},
        {**prompt_row("a held-out question 2"), "answer": "ten"},
    ]
    write_rows(tmp_path / "few.jsonl", examples)
    done = run(write_pair(tmp_path, **OFF_POLICY, held_out=str(held), teacher_examples=str(tmp_path / "few.jsonl")))
    for question in writer.questions:
        assert [turn.content for turn in question.messages[:2]] == ["show me", "as we do"]
        assert len(question.messages) == 3
    assert all(row["prompt"][0]["content"] != "show me" for row in done.read_answers("targets"))
    assert any("held out" in event["text"] and "few.jsonl:2" in event["text"] for event in of_kind(done, "note"))


def test_a_supervised_run_learns_the_answers_and_needs_no_teacher(tmp_path):
    done = run(write_pair(tmp_path, rows=own_rows(), **SUPERVISED, steps=40, learning_rate=1e-2))
    start = of_kind(done, "start")[0]
    assert start["teacher"] is None
    evaluations = of_kind(done, "evaluation")
    assert evaluations[-1]["teacher_text_loss"] < 0.5 * evaluations[0]["teacher_text_loss"]
    fresh = evaluations[-1]["fresh_student_text"]
    assert fresh["cut_off_share"] < 0.5  # it has learnt to stop
    assert not {"teacher", "targets", "held-out-teacher"} & set(done.answer_sets())


def test_rows_without_an_answer_cannot_be_learnt(tmp_path):
    rows = own_rows()
    del rows[3]["answer"]
    with pytest.raises(DataError, match=r"rows\.jsonl:4"):
        run(write_pair(tmp_path, rows=rows, **SUPERVISED))


MIXTURES = {
    "cross-entropy": OFF_POLICY,
    "soft": SOFT,
    "supervised": SUPERVISED,
    "warm-up": WARM_UP,
    "share": {**WARM_UP, "on_policy_share": 0.5},
    "own answers": {"own_answers": {"file": "own.jsonl", "weight": 0.5}},
    "off-policy and own answers": {**OFF_POLICY, "own_answers": {"file": "own.jsonl"}},
}


def prepare(folder, name, **settings):
    folder.mkdir()
    write_rows(folder / "own.jsonl", own_rows(9))
    return write_pair(folder, rows=own_rows(), steps=6, **MIXTURES[name], **settings)


# They go through the same code as the others, in other mixtures.
SLOW = ("off-policy and own answers", "own answers", "share", "soft")


def stopped_at(step):
    def interrupt(event):
        if event["kind"] == "step" and event["step"] == step:
            os.kill(os.getpid(), signal.SIGINT)

    return interrupt


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in MIXTURES]
)
def test_every_route_goes_on_bit_for_bit(tmp_path, name):
    whole = run(prepare(tmp_path / "whole", name))
    path = prepare(tmp_path / "halves", name)
    with pytest.raises(Stopped):
        run(path, listen=stopped_at(3))
    asked = []
    done = resume_run(Run.open(tmp_path / "halves" / "runs" / "tiny"), asked.append)
    assert weights_of(done) == weights_of(whole)
    assert losses_of(done) == losses_of(whole)
    assert [event["own_answers_loss"] for event in of_kind(done, "step")] == [
        event["own_answers_loss"] for event in of_kind(whole, "step")
    ]
    assert of_kind(done, "evaluation")[-1]["teacher_text_loss"] == of_kind(whole, "evaluation")[-1]["teacher_text_loss"]
    assert not any("writes" in str(event.get("phase")) for event in asked)


def test_answers_that_were_written_are_not_written_again_after_an_early_kill(tmp_path, monkeypatch):
    def dies(event):
        if event["kind"] == "step":
            raise KeyboardInterrupt

    path = prepare(tmp_path / "early", "cross-entropy")
    with pytest.raises(KeyboardInterrupt):
        run(path, listen=dies)
    stopped = Run.open(tmp_path / "early" / "runs" / "tiny")
    assert latest_checkpoint(stopped.checkpoints_path).step == 0
    monkeypatch.setattr(LocalGenerator, "generate", None)
    assert resume_run(stopped).status().state == "done"


def test_changed_own_answers_are_another_run(tmp_path):
    path = prepare(tmp_path / "own", "own answers")
    with pytest.raises(Stopped):
        run(path, listen=stopped_at(2))
    write_rows(tmp_path / "own" / "own.jsonl", own_rows(8))
    with pytest.raises(Refusal, match="own_answers changed"):
        resume_run(Run.open(tmp_path / "own" / "runs" / "tiny"))


def test_a_warm_up_reads_and_then_the_student_practises(tmp_path):
    steps = of_kind(run(prepare(tmp_path / "warm", "warm-up")), "step")
    assert [event["practice_limit"] for event in steps] == [None, None, 8, 8, 8, 8]
    assert [event["engine_gap"] is None for event in steps] == [True, True, False, False, False, False]
    assert all(event["score_s"] is not None for event in steps)


def test_a_share_of_each_step_is_read_and_the_rest_practised(tmp_path):
    steps = of_kind(run(prepare(tmp_path / "share", "share", prompts_per_step=6)), "step")
    assert all(event["num_answers"] == 6 for event in steps)
    # lengths are those of the practice answers
    assert all(event["max_length"] <= 8 for event in steps[2:])


def test_own_answers_pull_by_their_weight(tmp_path):
    weights = {}
    for number, weight in enumerate((1e-9, 2.0)):
        path = prepare(tmp_path / str(number), "own answers")
        done = run(path, f"own_answers.weight={weight}")
        weights[weight] = [event["own_answers_loss"] for event in of_kind(done, "step")]
        assert all(event["own_answers_loss"] > 0 for event in of_kind(done, "step"))
    assert weights[2.0][-1] < weights[1e-9][-1]
    assert weights[2.0][0] == weights[1e-9][0]


def test_held_out_rows_are_never_own_answers(tmp_path):
    held = held_out_file(tmp_path)
    write_rows(tmp_path / "own.jsonl", [{**prompt_row("a held-out question 1"), "answer": "ten"}])
    with pytest.raises(DataError, match=r"held-out prompts: 1 of 1; the first is own\.jsonl:1\."):
        run(write_pair(tmp_path, held_out=str(held), own_answers={"file": "own.jsonl"}))


def test_answers_of_a_run_are_plain_json(tmp_path):
    done = run(write_pair(tmp_path, **OFF_POLICY))
    for line in done.answers("targets").read_text().splitlines():
        assert set(json.loads(line)) == {"prompt", "answer"}
    assert torch.isfinite(torch.tensor(losses_of(done))).all()
