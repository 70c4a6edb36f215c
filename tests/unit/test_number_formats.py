"""Which number formats a run computes in: chosen by the machine where the recipe leaves it to it, and then kept."""

from __future__ import annotations

import os
import signal

import pytest

from limbeck import api, machine
from limbeck.cli import run_cli
from limbeck.driver import generate_answers_run, resume_run, train_run
from limbeck.errors import Stopped
from limbeck.recipe.files import load_recipe
from limbeck.runs.store import Run
from pairs import write_pair


def machine_whose_bf16_is(monkeypatch, speed):
    monkeypatch.setattr(machine, "_bf16_speed", lambda: speed)


def first(run, kind):
    return next(event for event in run.read_events() if event["kind"] == kind)


def slower_notes(run):
    return [
        event["text"] for event in run.read_events() if event["kind"] == "note" and "in bfloat16 take" in event["text"]
    ]


@pytest.mark.parametrize(("speed", "precision"), [(4.0, "bf16-mixed"), (0.02, "float32")])
def test_auto_becomes_what_is_faster_here_and_a_run_that_goes_on_keeps_it(tmp_path, monkeypatch, speed, precision):
    def interrupt(event):
        if event["kind"] == "step" and event["step"] == 2:
            os.kill(os.getpid(), signal.SIGINT)

    machine_whose_bf16_is(monkeypatch, speed)
    recipe = write_pair(tmp_path, precision="auto", steps=4)
    with pytest.raises(Stopped):
        train_run(load_recipe(recipe, [], {}), interrupt)
    halted = Run.open(tmp_path / "runs" / "tiny")
    start = first(halted, "start")
    assert start["settings"]["precision"] == precision
    assert start["machine"]["bf16_speed"] == speed
    # on another machine, of the other kind
    machine_whose_bf16_is(monkeypatch, 1 / speed)
    done = resume_run(halted)
    assert load_recipe(done.recipe_path, [], {}).recipe.precision == precision
    starts = [event for event in done.read_events() if event["kind"] == "start"]
    assert [event["settings"]["precision"] for event in starts] == [precision] * 2
    assert starts[0]["teacher_dtype"] == starts[1]["teacher_dtype"]
    # which is then the slower one, and said where it is
    assert len(slower_notes(done)) == (1 if precision == "bf16-mixed" else 0)


def test_bfloat16_that_is_slower_here_is_done_and_said_at_the_start(tmp_path, monkeypatch, capsys):
    machine_whose_bf16_is(monkeypatch, 0.02)
    path = write_pair(tmp_path, precision="bf16-mixed", steps=1)
    told = "take 50 times as long as in float32"
    assert run_cli(["train", str(path), "--dry-run"]) == 0
    assert told in " ".join(capsys.readouterr().out.split())
    report = api.check(path)
    assert any(told in note and "precision: bf16-mixed" in note for note in report.notes)
    run = train_run(load_recipe(path, [], {}))
    assert first(run, "start")["settings"]["precision"] == "bf16-mixed"
    (note,) = slower_notes(run)
    assert told in note
    assert "teacher_dtype: bfloat16" in note


@pytest.mark.parametrize("settings", [{}, {"precision": "auto"}, {"precision": "auto", "lora": {"rank": 2}}])
def test_nothing_is_said_where_nobody_asked_for_bfloat16(tmp_path, monkeypatch, settings):
    machine_whose_bf16_is(monkeypatch, 0.02)
    run = train_run(load_recipe(write_pair(tmp_path, steps=1, **settings), [], {}))
    assert slower_notes(run) == []
    assert first(run, "start")["settings"]["precision"] == "float32"


def test_answers_are_written_in_the_format_of_this_machine(tmp_path, monkeypatch):
    machine_whose_bf16_is(monkeypatch, 0.02)
    settings = {"route": "off-policy", "objective": "divergence", "precision": "auto", "max_teacher_tokens": 8}
    run = generate_answers_run(load_recipe(write_pair(tmp_path, **settings), [], {}))
    assert load_recipe(run.recipe_path, [], {}).recipe.teacher_dtype == "float32"
