"""`limbeck runs` and `limbeck show` from a run's folder alone, whatever its log holds."""

from __future__ import annotations

import json
import math

import pytest

from limbeck.cli import run_cli
from limbeck.reporting.runs import BARS, sparkline
from limbeck.runs.store import Run


def written(folder, name, steps, **start):
    with Run.create(folder, name) as run:
        run.append_event({"kind": "start", "steps": 20, "objective": "KL", **start})
        for step in steps:
            run.append_event({"kind": "step", "step": step, "loss": 1 / step, "grad_norm": 1.0})
    return run


def shown(capsys, *arguments):
    assert run_cli([str(argument) for argument in arguments]) == 0
    told = capsys.readouterr()
    return told.out + told.err


@pytest.mark.report("TU-05")
def test_numbers_that_are_none_are_marked_and_hide_nothing(tmp_path, capsys):
    written(tmp_path, "healthy", range(1, 11))
    losses = {5: math.nan, 6: math.inf, 7: "text"}
    with Run.create(tmp_path, "broken") as run:
        run.append_event({"kind": "start", "steps": 10, "objective": "KL"})
        for step in range(1, 11):
            loss = losses.get(step, 1 / step)
            run.append_event({"kind": "step", "step": step, "loss": loss, "agreement": math.nan, "note": "text"})
        measure = {"divergence": dict.fromkeys(("estimate", "low", "high"), math.nan), "agreement": math.inf}
        measure |= {"mean_length": math.nan, "cut_off_share": math.nan, "num_tokens": 3}
        measure["divergence"]["n"] = 2
        texts = {"fixed_teacher_text": measure, "fresh_student_text": measure}
        run.append_event({"kind": "evaluation", "step": 10, **texts, "student_text_loss": math.nan})
    told = shown(capsys, "show", "broken", "--workspace", tmp_path)
    assert "█▄▃▂×××▁▁▁" in told
    assert "not a finite number at step 5, 6, 7." in told
    assert "nan (nan to nan)" in told
    assert shown(capsys, "runs", "--workspace", tmp_path).count("died") == 2
    for name in ("broken", "healthy"):
        lines = shown(capsys, "show", name, "--workspace", tmp_path, "--json").splitlines()
        for line in lines:
            json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    for line in shown(capsys, "runs", "--workspace", tmp_path, "--json").splitlines():
        json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


def test_a_curve_of_gaps_alone_is_gaps():
    assert sparkline([math.nan, math.inf, -math.inf]) == "×××"
    assert sparkline([0.0, 1.0]) == BARS[0] + BARS[-1]
    assert sparkline([2.0]) == BARS[0]


@pytest.mark.report("TU-02", "TU-06")
def test_a_run_that_died_tells_its_last_checkpoint_and_a_resumed_one_from_where_it_went_on(tmp_path, capsys):
    run = written(tmp_path, "killed", range(1, 16))
    (run.checkpoints_path / "step-00000010").mkdir(parents=True)
    told = shown(capsys, "show", "killed", "--workspace", tmp_path)
    assert "died after step 15 of 20" in told
    assert f"Last checkpoint: step 10. Continue with:\n  limbeck resume {run.path}\n" in told
    (row,) = [json.loads(line) for line in shown(capsys, "runs", "--workspace", tmp_path, "--json").splitlines()]
    assert (row["state"], row["step"], row["checkpoint"]) == ("died", 15, 10)
    with run:
        run.append_event({"kind": "start", "step": 10, "steps": 20, "objective": "KL"})
        for step in range(11, 21):
            run.append_event({"kind": "step", "step": step, "loss": 1 / step})
        run.append_event({"kind": "done", "step": 20})
    told = shown(capsys, "show", "killed", "--workspace", tmp_path)
    assert "done after step 20 of 20" in told
    assert told.count("Objective: KL") == 1
    assert told.count("Resumed from step 10 at ") == 1
    assert "Last checkpoint" not in told


@pytest.mark.report("TU-04")
def test_hostile_text_of_a_log_is_shown_and_obeyed_by_no_terminal(tmp_path, capsys):
    text = "<think>x</think> <script>alert(1)</script> &lt; \x1b]0;owned\x07\x1b[31m \u202e [red]markup[/red]"
    with Run.create(tmp_path, "hostile") as run:
        run.append_event({"kind": "start", "steps": 1, "objective": text})
        run.append_event({"kind": "alert", "step": 0, "text": text})
        run.append_event({"kind": "failed", "text": text})
    told = " ".join(shown(capsys, "show", "hostile", "--workspace", tmp_path).split())
    safe = "<think>x</think> <script>alert(1)</script> &lt; \\u202e [red]markup[/red]"
    assert told.count(safe) == 3
    assert "\x1b" not in told


@pytest.mark.report("TU-03")
@pytest.mark.parametrize("name", ["../outside", "..%2foutside", "/etc", "..", "a\\..\\b", "."])
def test_a_name_that_leads_out_opens_nothing(tmp_path, capsys, name):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.jsonl").write_text("SECRET")
    (tmp_path / "work" / "runs").mkdir(parents=True)
    for command in (["show", name], ["resume", name], ["report", name], ["chat", f"run:{name}"], ["lineage", name]):
        assert run_cli([*command, "--workspace", str(tmp_path / "work")]) == 2
        assert "SECRET" not in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outside", "work"]
