"""The minimal loop stays a true twin of the package's step: same loss, and it runs."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch

import limbeck
from pairs import write_pair

PATH = Path(__file__).parent.parent / "examples" / "minimal_loop.py"


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
