"""What whole runs write: greedy where that is asked, different where it is not, the same again with the same seed."""

from __future__ import annotations

import pytest
import torch
from test_driver import of_kind, run, stopped_at

from builders import tiny_llama, tiny_tokenizer
from limbeck import api
from limbeck.driver import resume_run
from limbeck.errors import RecipeError, Stopped
from limbeck.models.language_model import LanguageModel
from limbeck.models.load import load_model
from limbeck.models.resolve import parse_ref
from limbeck.models.save import weights_hash
from limbeck.recipe.evaluation import EvaluationOptions
from limbeck.rollouts.engine import Engine
from limbeck.runs.store import Run
from pairs import write_pair

OFF_POLICY = {"route": "off-policy", "max_teacher_tokens": 6, "answers_per_prompt": 1}
QUICK = {"steps": 2, "evaluate_every": 2, "held_out_sample": 2}


@pytest.fixture
def practised(monkeypatch):
    """The practice answers of all steps, by prompt: those of 40 requests at once are practice and nothing else is."""
    written = []
    generate = Engine.generate

    def watching(self, requests, sampling):
        answers = generate(self, requests, sampling)
        if len(requests) == 40:
            written.append([(each.prompt_ids, answer.ids) for each, answer in zip(requests, answers, strict=True)])
        return answers

    monkeypatch.setattr(Engine, "generate", watching)
    return written


@pytest.mark.report("GS-03")
def test_samples_differ_within_a_step_and_between_epochs_and_the_run_repeats_exactly(tmp_path, practised):
    """Ten prompts, four answers to each in every step, so that a step is an epoch; the student hardly moves."""
    student = tiny_llama(tiny_tokenizer(), scale=0.1)
    settings = {"steps": 4, "evaluate_every": 4, "prompts_per_step": 10, "answers_per_prompt": 4, "held_out": 2}
    settings |= {"student": student, "num_prompts": 12, "learning_rate": 1e-9, "max_practice_tokens": 6}
    for name in ("whole", "again", "halves", "other"):
        (tmp_path / name).mkdir()
    run(write_pair(tmp_path / "whole", **settings))
    whole = list(practised)
    assert len(whole) == 4
    prompts = {prompt for prompt, _ in whole[0]}
    assert len(prompts) == 10
    for prompt in prompts:
        answers = [[answer for own, answer in step if own == prompt] for step in whole]
        assert [len(each) for each in answers] == [4] * 4
        assert len({answer for each in answers for answer in each}) == 16, "one answer came twice"
    practised.clear()
    run(write_pair(tmp_path / "again", **settings))
    assert practised == whole
    practised.clear()
    with pytest.raises(Stopped):
        run(write_pair(tmp_path / "halves", **settings), listen=stopped_at(2))
    resume_run(Run.open(tmp_path / "halves" / "runs" / "tiny"))
    assert practised == whole
    practised.clear()
    run(write_pair(tmp_path / "other", **settings, seed=1))
    assert not {answer for step in practised for _, answer in step} & {answer for step in whole for _, answer in step}


@pytest.mark.report("GS-02")
def test_a_local_teacher_at_temperature_0_writes_the_likeliest_whatever_the_seed(tmp_path):
    recipe = write_pair(tmp_path, **OFF_POLICY)

    def written(*overrides):
        found = api.answers(recipe, overrides=[*overrides, "name=null"])
        return [row["answer"] for row in found.read_answers("teacher")]

    greedy = written("teacher_temperature=0")
    for temperature in ("0", "1e-9", "0.0"):
        assert written(f"teacher_temperature={temperature}", "seed=5") == greedy
    sampled = written("teacher_temperature=1")
    assert sampled == written("teacher_temperature=1.0") != greedy
    with pytest.raises(RecipeError, match=r"same answer .* every time.*answers_per_prompt: 1") as refused:
        run(recipe, "teacher_temperature=0", "answers_per_prompt=2")
    assert refused.value.code == "recipe.answers-alike"
    with pytest.raises(RecipeError, match=r"teacher_temperature.*0 or more"):
        run(recipe, "teacher_temperature=-1")


@pytest.mark.report("GS-02")
def test_practice_at_temperature_0_or_next_to_it_is_greedy_whatever_the_seed(tmp_path):
    recipe = write_pair(tmp_path, **QUICK)

    def practised(temperature, seed, name):
        done = run(recipe, f"sampling.temperature={temperature}", f"seed={seed}", f"name={name}")
        assert all(0 < event["loss"] < 100 for event in of_kind(done, "step"))
        return [row["answer"] for row in done.read_answers("held-out-step-000000")]

    greedy = practised(0, 0, "zero")
    for number, (temperature, seed) in enumerate(((0, 3), (1e-9, 4), (1e-300, 5))):
        assert practised(temperature, seed, f"n{number}") == greedy
    assert practised(1, 0, "whole") == practised("1.0", 0, "float") != greedy


@pytest.mark.report("GS-02")
def test_an_evaluation_at_temperature_0_or_next_to_it_is_greedy(tmp_path):
    recipe = write_pair(tmp_path)
    found = []
    for number, options in enumerate(({}, {"seed": 9}, {"temperature": 1e-9, "seed": 4}, {"temperature": 1e-300})):
        asked = EvaluationOptions(name=f"n{number}", max_tokens=6, grader="contains", **options)
        evaluation = api.worth(recipe, asked)
        found.append([row["answer"] for alias in ("student", "teacher") for row in evaluation.read_answers(alias)])
    assert found[0] == found[1] == found[2] == found[3]
    assert api.chat(str(tmp_path / "student"), ["hi"], temperature=1e-300) == api.chat(
        str(tmp_path / "student"), ["hi"], temperature=0
    )


@pytest.mark.report("LM-10")
@pytest.mark.parametrize("shared", [False, True])
def test_models_with_dropout_are_never_in_training_mode_so_that_scores_repeat(tmp_path, monkeypatch, shared):
    """The student that is trained is the one that wrote: no pass of either model drops anything, and that is said.

    Once with two models, once with one that is the teacher without its adapters and the student with them.
    """
    modes, hidden = set(), LanguageModel.hidden

    def watched(self, *args, **options):
        modes.add((self.module.training, *{part.training for part in self.module.modules()}))
        return hidden(self, *args, **options)

    monkeypatch.setattr(LanguageModel, "hidden", watched)
    tokenizer = tiny_tokenizer()
    models = {"student": tiny_llama(tokenizer, scale=4.0), "teacher": tiny_llama(tokenizer, scale=4.0, seed=1)}
    for model in models.values():
        model.config.attention_dropout = 0.1
    settings = {"teacher": "student", "lora": {"rank": 2}} if shared else {}
    path = write_pair(tmp_path, tokenizer=tokenizer, **models, **QUICK)
    lines = [line for line in path.read_text().splitlines() if not shared or not line.startswith("teacher:")]
    path.write_text("\n".join([*lines, *(f"{key}: {value}" for key, value in settings.items())]))
    teacher = tmp_path / ("student" if shared else "teacher")
    before = {file.name: file.read_bytes() for file in teacher.iterdir()}
    done = run(path)
    assert modes == {(False, False)}
    (said,) = [event["text"] for event in of_kind(done, "note") if "dropout" in event["text"]]
    assert "attention_dropout 0.1" in said
    assert {file.name: file.read_bytes() for file in teacher.iterdir()} == before
    assert of_kind(done, "start")[0]["teacher"]["weights"] == weights_hash(models["student" if shared else "teacher"])
    again = run(path, "name=again")
    assert of_kind(again, "done")[0]["weights"] == of_kind(done, "done")[0]["weights"]


@pytest.mark.report("LM-10")
def test_dropout_would_be_seen_in_training_mode(tmp_path):
    tokenizer = tiny_tokenizer()
    model = tiny_llama(tokenizer, scale=4.0)
    model.config.attention_dropout = 0.1
    write_pair(tmp_path, student=model, tokenizer=tokenizer)
    loaded = load_model(
        parse_ref(str(tmp_path / "student"), workspace=tmp_path),
        trainable=True, dtype=torch.float32, device=torch.device("cpu"),
    )  # fmt: skip
    ids_BT = torch.arange(40)[None]
    read = [loaded.hidden(ids_BT, torch.arange(40)[None], torch.ones_like(ids_BT)) for _ in range(2)]
    assert torch.equal(*read)
    loaded.module.train()
    read = [loaded.hidden(ids_BT, torch.arange(40)[None], torch.ones_like(ids_BT)) for _ in range(2)]
    assert not torch.equal(*read)
