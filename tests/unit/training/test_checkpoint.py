from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from limbeck.errors import Diverged, Refusal
from limbeck.teachers.local import LocalTeacher
from limbeck.training.checkpoint import latest_checkpoint, load_checkpoint, save_checkpoint
from pairs import random_prompts, recipe_of, state_of, tiny_model, train

RECIPE = recipe_of(steps=6, prompts_per_step=4, max_practice_tokens=8, learning_rate=1e-3)


def trained_state(num_steps, state=None):
    state = state or state_of(tiny_model(), RECIPE)
    for record in train(state, LocalTeacher(tiny_model(seed=1)), random_prompts(10), RECIPE):
        if record.step == num_steps:
            break
    return state


def weights_of(state):
    return torch.cat([parameter.detach().flatten() for parameter in state.student.module.parameters()])


def test_a_run_that_continues_from_a_checkpoint_is_bit_identical(tmp_path):
    whole = trained_state(6)
    save_checkpoint(tmp_path, trained_state(3))
    continued = state_of(tiny_model(seed=9), RECIPE)
    load_checkpoint(latest_checkpoint(tmp_path), continued)
    assert continued.step == 3
    trained_state(6, continued)
    assert torch.equal(weights_of(whole), weights_of(continued))


def test_the_last_two_are_kept(tmp_path):
    state = state_of(tiny_model(), RECIPE)
    for state.step in (1, 2, 3):
        save_checkpoint(tmp_path, state)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000002", "step-00000003"]


def test_only_safetensors_and_json_are_written(tmp_path):
    path = save_checkpoint(tmp_path, trained_state(1))
    assert {file.suffix for file in path.iterdir()} == {".safetensors", ".json"}


@pytest.mark.report("TH-01")
def test_a_weight_that_is_not_finite_is_never_saved(tmp_path):
    state = trained_state(1)
    save_checkpoint(tmp_path, state)
    with torch.no_grad():
        next(state.student.module.parameters())[0, 0] = torch.inf
    state.step = 2
    with pytest.raises(Diverged, match="not finite after step 2"):
        save_checkpoint(tmp_path, state)
    assert latest_checkpoint(tmp_path).step == 1


@pytest.mark.report("CR-01", "CR-08")
@pytest.mark.parametrize("name", ["student.safetensors", "optimizer.safetensors"])
@pytest.mark.parametrize("damage", ["flipped", "cut", "missing"])
def test_a_damaged_checkpoint_is_passed_over_and_named(tmp_path, name, damage):
    state = trained_state(1)
    save_checkpoint(tmp_path, state)
    state.step = 2
    file = save_checkpoint(tmp_path, state) / name
    content = bytearray(file.read_bytes())
    if damage == "missing":
        file.unlink()
    else:
        content[len(content) // 2] ^= 1
        file.write_bytes(content[: len(content) // 2] if damage == "cut" else content)
    found = latest_checkpoint(tmp_path)
    assert found.step == 1
    assert name in found.passed_over[0]


@pytest.mark.report("CR-01")
def test_a_folder_without_its_manifest_does_not_count(tmp_path):
    path = save_checkpoint(tmp_path, trained_state(1))
    (path / "MANIFEST.json").unlink()
    assert latest_checkpoint(tmp_path) is None
    assert latest_checkpoint(tmp_path / "nowhere") is None


@pytest.mark.parametrize("text", ["[]", "{}", '{"step": 2, "files": {}}', '{"step": null, "files": []}', "null", '"x"'])
def test_whatever_stands_in_a_manifest_the_checkpoint_before_is_found(tmp_path, text):
    state = trained_state(1)
    save_checkpoint(tmp_path, state)
    state.step = 2
    (save_checkpoint(tmp_path, state) / "MANIFEST.json").write_text(text)
    found = latest_checkpoint(tmp_path)
    assert found.step == 1
    assert "MANIFEST.json" in found.passed_over[0]


@pytest.mark.report("CR-08")
def test_files_are_on_the_disk_before_their_folder_has_its_name(tmp_path, monkeypatch):
    calls = []
    own_sync, own_rename = os.fsync, Path.rename

    def sync(number):
        calls.append(str(Path(f"/proc/self/fd/{number}").readlink()))
        own_sync(number)

    def rename(path, target):
        calls.append("rename")
        return own_rename(path, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "rename", rename)
    save_checkpoint(tmp_path, trained_state(1))
    before = [Path(path).name for path in calls[: calls.index("rename")]]
    assert {"student.safetensors", "optimizer.safetensors", "MANIFEST.json"} <= set(before)
    assert before[-1] == ".step-00000001-unfinished"
    assert calls[-1] == str(tmp_path)


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    save_checkpoint(tmp_path, trained_state(1))
    with pytest.raises(Refusal, match="differ in"):
        load_checkpoint(latest_checkpoint(tmp_path), state_of(tiny_model(num_layers=3), RECIPE))


KILLED = """
import os, sys
sys.path[:0] = [{tests!r}]
from pathlib import Path
from pairs import recipe_of, state_of, tiny_model
from limbeck.training.checkpoint import save_checkpoint
state = state_of(tiny_model(), recipe_of())
folder, countdown = Path({folder!r}), {countdown}
state.step = 1
save_checkpoint(folder, state)
def hook(event, arguments):
    global countdown
    if event in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree"):
        countdown -= 1
        if countdown == 0:
            os._exit(9)
sys.addaudithook(hook)
state.step = 2
save_checkpoint(folder, state)
"""


@pytest.mark.slow
@pytest.mark.report("CR-01")
def test_a_kill_at_any_file_operation_leaves_the_old_or_the_new_step(tmp_path, request):
    seen = set()
    for countdown in range(1, 40):
        folder = tmp_path / str(countdown)
        script = KILLED.format(tests=str(request.config.rootpath / "tests"), folder=str(folder), countdown=countdown)
        done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True)
        assert done.returncode in (0, 9), done.stderr.decode()
        found = latest_checkpoint(folder)
        assert found.step in (1, 2)
        assert json.loads((found.path / "MANIFEST.json").read_text())["step"] == found.step
        seen.add(found.step)
        if done.returncode == 0:
            break
    assert seen == {1, 2}
    assert done.returncode == 0
