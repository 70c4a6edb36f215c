"""The examples run; and the minimal loop stays a true twin of the package's step, with the same loss."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import limbeck
from pairs import write_pair

FOLDER = Path(__file__).parent.parent / "examples"
PATH = FOLDER / "minimal_loop.py"
# What makes an example quick enough for a test: what stands in it, and what stands there instead.
QUICK = {
    "models_in_memory": (("num=4000", "num=40"), ('"held_out": 200, "steps": 60', '"held_out": 12, "steps": 2')),
    "hf_dataset": (("1, 1000", "1, 40"), ("test_size=60", "test_size=8"), ("steps=20", "steps=2"), ("=10,", "=1,")),
    "own_loop": (("num=400", "num=40"), ("STEPS, PEAK = 12", "STEPS, PEAK = 2")),
    "run_in_pandas": (("num=2000", "num=40"), ('"held_out": 60, "steps": 30', '"held_out": 12, "steps": 2')),
}
QUICKER = (('"prompts_per_step": 64', '"prompts_per_step": 4'), ("warmup_steps=10", "warmup_steps=1"))
QUICKER += (("warmup_steps=5", "warmup_steps=1"), ("prompts_per_step=32", "prompts_per_step=4"))
SAYS = {
    "models_in_memory": "95% CI",
    "hf_dataset": "after step 2:",
    "own_loop": "step 2:",
    "run_in_pandas": "of 12 answers became better",
}
NEEDS = {"hf_dataset": "datasets", "run_in_pandas": "pandas"}


@pytest.mark.parametrize("name", sorted(QUICK))
def test_an_example_runs(name, tmp_path):
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")
    text = (FOLDER / f"{name}.py").read_text()
    for before, now in QUICK[name]:
        assert before in text, f"{name}.py has no {before}"
        text = text.replace(before, now)
    for before, now in QUICKER:
        text = text.replace(before, now)
    script = tmp_path / f"{name}.py"
    script.write_text(text)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert SAYS[name] in done.stdout


def test_a_pair_is_distilled_and_judged_in_fifteen_lines():
    cell = (FOLDER / "models_in_memory.py").read_text().split("# %%")[2]
    lines = [line for line in cell.splitlines()[1:] if line.strip()]
    assert lines[0].startswith("from transformers")
    assert "verdict" in lines[-1]
    assert len(lines) <= 15


def test_every_example_is_run_and_is_cells():
    names = {path.stem for path in FOLDER.glob("*.py")}
    assert names == {*QUICK, "minimal_loop"}
    for name in QUICK:
        assert (FOLDER / f"{name}.py").read_text().startswith("# %% [markdown]\n# # ")


def minimal_loop():
    spec = importlib.util.spec_from_file_location("minimal_loop", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_its_loss_is_the_packages_loss():
    generator = torch.Generator().manual_seed(0)
    student, teacher = (torch.randn(5, 40, generator=generator) * 3 for _ in range(2))
    ours = limbeck.divergence(student, teacher, beta=1.0)
    torch.testing.assert_close(minimal_loop().reverse_kl(student, teacher), ours)


def test_it_runs_on_folders(tmp_path, capsys, monkeypatch):
    write_pair(tmp_path)
    loop = minimal_loop()
    monkeypatch.setattr(loop, "STEPS", 2)
    monkeypatch.setattr(loop, "LONGEST_ANSWER", 6)
    loop.main(str(tmp_path / "student"), str(tmp_path / "teacher"), "hello", "good morning")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["step 1", "step 2"]
    assert all("nats per token" in line for line in lines)


def test_it_stays_short():
    assert PATH.read_text().count("\n") < 120
