"""The demo as a newcomer runs it: its own numbers, within its own promises."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import transformers

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    workspace = tmp_path_factory.mktemp("demo")
    done = subprocess.run(
        [sys.executable, "-c", "from limbeck.cli import main; main()", "demo", "--json", "--workspace", str(workspace)],
        capture_output=True, text=True, check=False, env={"PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_half_of_the_gap_is_recovered(demo):
    result = demo[-1]
    assert result["kind"] == "result"
    for name in ("student", "teacher", "distilled"):
        assert result[name]["n"] == 300
        assert result[name]["low"] <= result[name]["estimate"] <= result[name]["high"]
    assert result["teacher"]["estimate"] >= 0.95
    assert 0.20 <= result["student"]["estimate"] <= 0.40
    assert result["gap_recovered"]["estimate"] >= 0.5
    before, after, ceiling = (result[name]["estimate"] for name in ("student", "distilled", "teacher"))
    assert result["gap_recovered"]["estimate"] == pytest.approx((after - before) / (ceiling - before))


def test_both_held_out_divergences_fall(demo):
    evaluations = [event for event in demo if event["kind"] == "evaluation"]
    for name in ("teacher_text_loss", "student_text_loss"):
        assert evaluations[-1][name] < 0.7 * evaluations[0][name]


def test_the_run_lies_where_the_demo_says_and_its_model_loads(demo):
    run = Path(demo[-1]["run"])
    assert (run / "events.jsonl").is_file()
    transformers.AutoModelForCausalLM.from_pretrained(run / "model")
