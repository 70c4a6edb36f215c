"""Two runs side by side: the same ones are called so, and of others the first step that differs is named."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import compare_runs  # noqa: E402

STOPPED = ROOT / "tests" / "fixtures" / "format-1" / "runs" / "stopped"


@pytest.fixture
def copy(tmp_path):
    shutil.copytree(STOPPED, tmp_path / "copy")
    return tmp_path / "copy"


def test_a_run_and_its_copy_are_the_same(copy, capsys):
    assert compare_runs.main([str(STOPPED), str(copy)]) == 0
    shown = capsys.readouterr().out
    assert "no difference in any step" in shown
    losses = [line for line in shown.splitlines() if " loss " in line]
    assert [line.split()[-1] for line in losses] == ["="] * 3


@pytest.mark.parametrize(
    ("kind", "name", "told"),
    [("step", "loss", "1.0e-12"), ("step", "grad_norm", "1.0e-12"), ("evaluation", "student_text_loss", "1.0e-12")],
)
def test_the_smallest_difference_has_its_step(copy, capsys, kind, name, told):
    lines = (copy / "events.jsonl").read_text(encoding="utf-8").splitlines()
    step = 2 if kind == "step" else 0
    where = next(
        number for number, line in enumerate(lines) if f'"kind": "{kind}"' in line and f'"step": {step},' in line
    )
    before, _, rest = lines[where].partition(f'"{name}": ')
    value, comma, rest = rest.partition(",")
    lines[where] = f'{before}"{name}": {float(value) * (1 + 1e-12)!r}{comma}{rest}'
    (copy / "events.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert compare_runs.main([str(STOPPED), str(copy)]) == 1
    shown = capsys.readouterr().out
    assert f"the first difference is at step {step}" in shown
    assert told in shown


def test_other_settings_are_named(capsys):
    assert compare_runs.main([str(STOPPED), str(STOPPED.parent / "finished")]) == 1
    shown = capsys.readouterr().out
    assert "beta: 1.0 | 0.5" in shown
    assert "steps: 6 | 2" in shown
    assert "name:" not in shown
    assert "on one side alone" in shown
