"""What earlier versions stored: a workspace of format 1 is listed, shown, resumed, and its ledger still answers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from limbeck import __version__, api
from limbeck.cli import run_cli
from limbeck.errors import DataError
from limbeck.recipe.evaluating import Evaluating
from limbeck.runs.evaluations import Evaluation
from limbeck.runs.marks import read_marks
from limbeck.runs.store import Run
from limbeck.teachers.ledger import Cost, Ledger, LedgerRequest

FORMAT_1 = Path(__file__).parent.parent / "fixtures" / "format-1"
# A weight moves by about the learning rate in a step, so other kernels, which round a gradient to 1e-6 of its size,
# move the three steps that are left by some 1e-6 of their length; a prompt or a setting that differs, by a tenth.
ROUNDING = 1e-3


@pytest.fixture
def old(tmp_path, monkeypatch):
    """A copy of the old workspace, which is the current folder."""
    shutil.copytree(FORMAT_1, tmp_path / "old")
    monkeypatch.chdir(tmp_path / "old")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "old"


def said(capsys, *arguments):
    assert run_cli(list(arguments)) == 0
    captured = capsys.readouterr()
    return captured.out


def moved(old):
    """The settings of a run whose workspace lies elsewhere than when it began."""
    return [f"workspace={old}", f"prompts={old / 'pair' / 'rows.jsonl'}"]


def test_old_runs_are_listed_and_shown(old, capsys):
    listed = [json.loads(line) for line in said(capsys, "runs", "--json").splitlines()]
    assert {(row["run"], row["state"], row["step"], row["steps"], row["checkpoint"]) for row in listed} == {
        ("stopped", "stopped", 3, 6, 3),
        ("finished", "done", 2, 2, None),
        ("hosted", "done", 2, 2, None),
    }
    shown = said(capsys, "show", "finished")
    assert "done after step 2 of 2" in shown
    assert "0.5" in shown
    assert "stopped after step 3 of 6" in said(capsys, "show", "stopped")
    tree = said(capsys, "lineage", "finished")
    assert "pair/student" in tree
    assert "pair/teacher" in tree


def test_old_marks_are_shown(old, capsys):
    (row,) = [json.loads(line) for line in said(capsys, "mark", "finished", "--worst", "1", "--json").splitlines()]
    assert row
    sheet = read_marks(old / "runs" / "finished" / "marks" / "step-000002.safetensors")
    assert (sheet.student, sheet.step, sheet.beta) == ("run:finished@2", 2, 0.5)
    assert len(sheet.answers) == 10
    assert "step 2" in said(capsys, "mark", "finished", "--worst", "1")


def test_an_old_evaluation_is_read_and_reported(old, capsys):
    result = Evaluation.named(old, "finished").result()
    assert [model["alias"] for model in result["models"]] == ["student", "teacher", "distilled"]
    assert said(capsys, "report", "finished", "-o", "page.html")
    assert "pair/teacher" in (old / "page.html").read_text(encoding="utf-8")


def test_an_old_ledger_knows_what_was_spent(old):
    ledger = Ledger(old, "http://127.0.0.1:1/v1", "tiny-api", account="hosted")
    # 16 prompts twice and 6 that are held out, 12 tokens each
    assert ledger.spent() == Cost(calls=38, tokens=38 * 12)


def test_old_answers_of_a_hosted_teacher_are_learnt_without_asking(old, capsys):
    """Nobody answers at the address in the recipe, so every answer comes from the old ledger."""
    done = api.train("recipes/hosted.yaml", overrides=["name=again", f"workspace={old}"])
    first = Run.named(old, "hosted")
    assert done.read_answers("teacher") == first.read_answers("teacher")
    assert distance(done.model_path / "model.safetensors", first.model_path / "model.safetensors", old) < ROUNDING


def distance(one, other, old):
    """How far two students are apart, as a share of the way from the untrained one to the second."""
    start, mine, its = (load_file(path) for path in (old / "pair" / "student" / "model.safetensors", one, other))

    def length(first, second):
        return torch.cat([(first[name] - second[name]).double().flatten() for name in second]).norm().item()

    return length(mine, its) / length(start, its)


def test_an_old_run_goes_on_to_where_it_would_have_come_undisturbed(old, capsys):
    done = api.resume("stopped", overrides=moved(old))
    assert done.status().state == "done"
    assert done.status().step == 6
    assert distance(done.model_path / "model.safetensors", old / "undisturbed.safetensors", old) < ROUNDING
    checkpoint = FORMAT_1 / "runs" / "stopped" / "checkpoints" / "step-00000003" / "student.safetensors"
    assert distance(checkpoint, old / "undisturbed.safetensors", old) > 100 * ROUNDING, "three steps are far more"


# ------------------------------------------------------------------------------------------------- formats of later


HEADED = ("runs/finished/events.jsonl", "evaluations/finished/evaluation.json", "teachers/tiny-api/ledger.jsonl")


def of_format(path, number):
    """Let a file say that a later version wrote it."""
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("{", f'{{"format": {number}, "limbeck": "9.1.0", ', 1), encoding="utf-8")


def opened(old, name):
    if name.startswith("runs"):
        return Run.named(old, "finished").read_events()
    if name.startswith("evaluations"):
        return Evaluation.named(old, "finished").result()
    return Ledger(old, "http://127.0.0.1:1/v1", "tiny-api")


@pytest.mark.parametrize("name", HEADED)
def test_format_1_may_be_said_and_a_later_one_is_refused_with_the_version_that_wrote_it(old, name):
    as_it_was = (old / name).read_text(encoding="utf-8")
    assert '"format"' not in as_it_was
    of_format(old / name, 1)
    opened(old, name)
    (old / name).write_text(as_it_was, encoding="utf-8")
    of_format(old / name, 2)
    with pytest.raises(DataError, match=r"format 2, written by Limbeck 9\.1\.0.*reads formats 1 to 1") as refused:
        opened(old, name)
    assert refused.value.code == "run.format-unknown"


@pytest.mark.parametrize("number", ['"1"', "0", "null", "1.5"])
def test_what_is_no_format_is_refused(old, number):
    of_format(old / HEADED[0], number)
    with pytest.raises(DataError, match="has format"):
        Run.named(old, "finished").read_events()


def test_one_run_of_a_later_format_hides_no_other(old, capsys):
    of_format(old / HEADED[0], 2)
    assert run_cli(["runs"]) == 0
    captured = capsys.readouterr()
    assert "stopped" in captured.out
    assert "9.1.0" in captured.err
    assert run_cli(["show", "finished"]) == 2
    assert "run.format-unknown" in capsys.readouterr().err


def test_what_is_written_now_bears_its_format(old):
    done = api.train("recipes/finished.yaml", overrides=["name=new", f"workspace={old}"])
    first, *others = done.read_events()
    assert first["format"] == 1
    assert first["limbeck"] == __version__
    assert not any("format" in event for event in others)
    asked = api.evaluate("new", options=Evaluating(name="new", grader="contains"))
    assert asked.asked()["format"] == 1
    again = api.evaluate("new", options=Evaluating(name="new", grader="contains"))
    assert again.result() == asked.result(), "the header is no part of the question"
    ledger = Ledger(old, "http://127.0.0.1:1/v1", "new")
    for sample in range(2):
        ledger.intend(LedgerRequest({"model": "tiny"}, sample, 20, Cost(1, 20, 0)), 5.0)
    lines = [json.loads(line) for line in ledger.path.read_text(encoding="utf-8").splitlines()]
    assert [line.get("format") for line in lines] == [1, None]
