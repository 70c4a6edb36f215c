"""A run with a grader hands over the student that the grader liked best, also when it was stopped on the way."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from builders import prompt_row
from limbeck.driver import resume_run, train_run
from limbeck.errors import Refusal, Stopped
from limbeck.evaluation.grading import graders
from limbeck.evaluation.held_out import best_step
from limbeck.models.resolve import parse_ref
from limbeck.recipe.files import load_recipe
from limbeck.runs.store import Run
from pairs import write_pair

# Six answers are graded at each of seven evaluations. The start is the best, and no step; step 4 is as good as step 2.
GRADER = """
calls = []

def drawn(answer, row):
    calls.append(answer)
    return (0.9, 0.2, 0.8, 0.3, 0.8, 0.1, 0.4)[(len(calls) - 1) // 6 % 7]
"""
SETTINGS = {"grader": "drawn_grader:drawn", "steps": 6, "evaluate_every": 1, "learning_rate": 0.01}


def run(recipe, *overrides, listen=lambda event: None):
    return train_run(load_recipe(recipe, list(overrides), {}), listen)


def test_the_best_of_the_steps_and_the_later_of_two_alike():
    def graded(step, estimate):
        return {"kind": "evaluation", "step": step, "grade": estimate and {"estimate": estimate}}

    assert best_step([graded(0, 0.9), graded(2, 0.5), graded(4, 0.7), graded(6, 0.7), graded(8, 0.6)]) == 6
    assert best_step([graded(0, 0.9), graded(2, None)]) is None
    assert best_step([{"kind": "evaluation", "step": 2}]) is None


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    (tmp_path / "drawn_grader.py").write_text(GRADER)
    monkeypatch.chdir(tmp_path)
    graders._loaded.cache_clear()
    return write_pair(tmp_path, **SETTINGS)


@pytest.mark.parametrize("adapters", [False, True])
def test_the_model_is_that_of_the_best_step(recipe, adapters):
    done = run(recipe, *(["lora.rank=2"] if adapters else []))
    evaluations = [event for event in done.read_events() if event["kind"] == "evaluation"]
    assert [event["step"] for event in evaluations] == list(range(7))
    assert {event["num_not_graded"] for event in evaluations} == {0}
    best = 4
    end = done.read_events()[-1]
    assert (end["step"], end["kept_step"]) == (6, best)
    kept = load_file(done.checkpoints_path / f"step-{best:08d}" / "student.safetensors")
    folder, name = (done.adapter_path, "adapter_model") if adapters else (done.model_path, "model")
    saved = load_file(folder / f"{name}.safetensors")
    if adapters:
        assert sorted(float(tensor.sum()) for tensor in saved.values()) == pytest.approx(
            sorted(float(tensor.sum()) for tensor in kept.values())
        )
    else:
        assert all(torch.equal(saved[name], tensor) for name, tensor in kept.items() if name in saved)
        assert parse_ref("run:tiny", workspace=done.path.parents[1]).path == done.model_path
    assert "grade" in done.read_answers(f"held-out-step-{best:06d}")[0]


def test_a_run_that_dies_between_checkpoint_and_evaluation_keeps_the_same_step(recipe):
    whole = run(recipe, "name=whole")
    steps = []

    def die(event):
        if event["kind"] == "step":
            steps.append(event["step"])
        if event.get("phase") == "evaluating" and steps[-1:] == [4]:
            raise Stopped("test.killed", given="Killed.", needed="", fix="")

    with pytest.raises(Stopped):
        run(recipe, listen=die)
    again = resume_run(Run(whole.path.with_name("tiny")))
    graded = [
        [event["grade"] for event in done.read_events() if event["kind"] == "evaluation"] for done in (whole, again)
    ]
    assert graded[0] == graded[1]
    ends = [done.read_events()[-1] for done in (whole, again)]
    assert ends[0]["kept_step"] == ends[1]["kept_step"]
    assert ends[0]["weights"] == ends[1]["weights"]


def test_best_without_anything_to_grade_is_refused_before_the_run(tmp_path):
    recipe = write_pair(tmp_path, keep="best")
    with pytest.raises(Refusal, match="neither reference answers nor a grader"):
        run(recipe)
    assert not (tmp_path / "runs").exists()


def test_references_are_graded_and_choose_nothing_unless_asked(tmp_path):
    rows = [prompt_row(f"question {number}", answer="42") for number in range(20)]
    done = run(write_pair(tmp_path, rows=rows))
    graded = [event for event in done.read_events() if event["kind"] == "evaluation"]
    assert all(event["grade"]["n"] == 6 for event in graded)
    assert done.read_events()[-1]["kept_step"] == 4
