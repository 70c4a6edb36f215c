"""Runs that are interrupted and go on: as if nothing had happened, or with what changed told, or not at all."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
from safetensors.torch import load_file

from builders import CHATML, prompt_row, tiny_llama, tiny_tokenizer, write_rows
from limbeck import api, driver
from limbeck.cli import run_cli
from limbeck.data import templates
from limbeck.driver import resume_run, train_run
from limbeck.errors import Refusal, Stopped, UsageError
from limbeck.models.adapters import ADAPTER
from limbeck.recipe.files import load_recipe
from limbeck.runs.store import Run
from limbeck.training.batches import PromptOrder
from limbeck.training.checkpoint import NUM_KEPT, latest_checkpoint
from pairs import write_pair

LORA = {"lora": {"rank": 2, "alpha": 4}, "learning_rate": 1e-2}
SUPERVISED = {"route": "supervised"}


def written(folder, **settings):
    folder.mkdir(exist_ok=True)
    return write_pair(folder, **settings)


def run(recipe, *overrides, listen=lambda event: None):
    return train_run(load_recipe(recipe, list(overrides), {}), listen)


def of_kind(run, kind):
    return [event for event in run.read_events() if event["kind"] == kind]


def weights_of(run):
    return of_kind(run, "done")[-1]["weights"]


def losses_of(run):
    return {event["step"]: event["loss"] for event in of_kind(run, "step")}


def notes_of(run):
    return [event["text"] for event in of_kind(run, "note")]


def stopped_at(step):
    def interrupt(event):
        if event["kind"] == "step" and event["step"] == step:
            os.kill(os.getpid(), signal.SIGINT)

    return interrupt


def stopped(folder, step, **settings):
    """A run in `folder` that was asked to stop after a step."""
    with pytest.raises(Stopped):
        run(written(folder, **settings), listen=stopped_at(step))
    return Run.open(folder / "runs" / "tiny")


def answered_rows(num=14):
    return [{**prompt_row(f"question {number}", id=number), "answer": f"answer {number}"} for number in range(num)]


# ------------------------------------------------------------------------------------------------- damaged checkpoints


def damaged(path, how):
    if how == "empty":
        path.write_bytes(b"")
    elif how == "cut":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif how == "zeros":
        path.write_bytes(bytes(path.stat().st_size))
    else:
        path.unlink()


@pytest.mark.report("CR-01", "CR-08")
@pytest.mark.parametrize(
    ("name", "how", "told"),
    [
        ("student.safetensors", "gone", "student.safetensors is missing"),
        ("student.safetensors", "empty", "student.safetensors has 0 bytes instead of"),
        ("optimizer.safetensors", "cut", "optimizer.safetensors has"),
        ("student.safetensors", "zeros", "student.safetensors differs from its hash"),
        ("MANIFEST.json", "gone", "no readable MANIFEST.json"),
        ("MANIFEST.json", "empty", "no readable MANIFEST.json"),
        ("MANIFEST.json", "zeros", "no readable MANIFEST.json"),
    ],
)
def test_a_damaged_checkpoint_is_passed_over_with_its_name_and_the_run_ends_as_if_undisturbed(
    tmp_path, whole, name, how, told
):
    halted = stopped(tmp_path / "run", 5, steps=6, evaluate_every=2)
    damaged(halted.checkpoints_path / "step-00000005" / name, how)
    done = resume_run(halted)
    (note,) = [text for text in notes_of(done) if "is damaged and skipped" in text]
    assert note.startswith(f"Checkpoint step-00000005 is damaged and skipped: {told}")
    assert of_kind(done, "start")[-1]["step"] == 4
    assert weights_of(done) == weights_of(whole)
    assert losses_of(done) == losses_of(whole)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run that was never disturbed."""
    return run(written(tmp_path_factory.mktemp("whole"), steps=6, evaluate_every=2))


@pytest.mark.report("CR-08")
def test_the_newest_checkpoints_are_passed_over_one_by_one_and_the_good_one_outlives_the_next(tmp_path, whole):
    halted = stopped(tmp_path / "run", 3, steps=6, evaluate_every=2)
    good = halted.checkpoints_path / "step-00000003"
    for step, (name, how) in enumerate(
        [("optimizer.safetensors", "cut"), ("student.safetensors", "empty"), ("student.safetensors", "empty")], start=4
    ):
        newer = good.with_name(f"step-{step:08d}")
        shutil.copytree(good, newer)
        manifest = json.loads((newer / "MANIFEST.json").read_text())
        (newer / "MANIFEST.json").write_text(json.dumps({**manifest, "step": step}))
        damaged(newer / name, how)
    found = latest_checkpoint(halted.checkpoints_path)
    assert (found.step, len(found.passed_over)) == (3, 3)
    assert [re.search(r"step-0+(\d)", told)[1] for told in found.passed_over] == ["6", "5", "4"]
    with pytest.raises(Stopped):
        resume_run(halted, stopped_at(4))  # between the good one and the damaged ones
    assert latest_checkpoint(halted.checkpoints_path).step == 4
    assert len(list(halted.checkpoints_path.iterdir())) <= NUM_KEPT
    assert weights_of(resume_run(halted)) == weights_of(whole)


@pytest.mark.report("CR-01")
def test_with_no_checkpoint_left_it_is_said_what_is_wrong_with_each(tmp_path):
    halted = stopped(tmp_path / "run", 5, steps=6, evaluate_every=2)
    for path in halted.checkpoints_path.iterdir():
        damaged(path / "student.safetensors", "empty")
    with pytest.raises(Refusal) as caught:
        resume_run(halted)
    assert caught.value.given.count("student.safetensors has 0 bytes") == 2
    assert halted.status().state == "stopped"


KILLED = """
import sys
sys.path[:0] = [{tests!r}]
from limbeck import api
api.{call}
"""


@pytest.mark.slow
@pytest.mark.report("CR-01")
def test_a_run_that_is_killed_twenty_times_goes_on_by_itself_each_time(tmp_path, request):
    """Half a MiB of weights and moments for each step, so that many of the kills come while they are written."""
    tokenizer = tiny_tokenizer()
    models = {
        "student": tiny_llama(tokenizer, hidden_size=64, num_layers=4),
        "teacher": tiny_llama(tokenizer, hidden_size=64, num_layers=4, seed=1),
    }
    settings = {**models, "steps": 200, "evaluate_every": 2, "held_out": 1}
    undisturbed = run(written(tmp_path / "whole", **settings))
    path = written(tmp_path / "run", **settings)
    folder, tests = path.parent / "runs" / "tiny", str(request.config.rootpath / "tests")
    for number in range(20):
        if not (folder / "checkpoints").exists() or latest_checkpoint(folder / "checkpoints") is None:
            shutil.rmtree(folder, ignore_errors=True)  # killed before its first checkpoint: there is nothing to keep
            call, num_starts = f"train({str(path)!r})", 0
        else:
            call, num_starts = f"resume({str(folder)!r})", len(of_kind(Run(folder), "start"))
        with subprocess.Popen([sys.executable, "-c", KILLED.format(tests=tests, call=call)]) as process:
            while process.poll() is None and not (folder.exists() and len(of_kind(Run(folder), "start")) > num_starts):
                time.sleep(0.02)
            num_steps, draw = len(of_kind(Run(folder), "step")), random.Random(number)
            more = draw.randrange(7)
            while process.poll() is None and len(of_kind(Run(folder), "step")) < num_steps + more:
                time.sleep(0.002)
            time.sleep(draw.uniform(0, 0.02))
            process.kill()
        assert process.returncode == -signal.SIGKILL
    done = resume_run(Run.open(folder))
    assert weights_of(done) == weights_of(undisturbed)
    assert losses_of(done) == losses_of(undisturbed)
    assert len(list(done.checkpoints_path.iterdir())) == NUM_KEPT


def test_what_a_killed_process_left_of_a_checkpoint_goes_with_the_next(tmp_path):
    halted = stopped(tmp_path / "run", 3, steps=6, evaluate_every=2)
    left = halted.checkpoints_path / ".step-00000005-unfinished"
    left.mkdir()
    (left / "student.safetensors").write_bytes(b"half")
    done = resume_run(halted)
    assert sorted(path.name for path in done.checkpoints_path.iterdir()) == ["step-00000004", "step-00000006"]


# --------------------------------------------------------------------------------------------------------- same weights


@pytest.mark.report("CR-04")
def test_adapters_are_after_resuming_what_was_saved_and_there_is_one_set_of_them(tmp_path, monkeypatch):
    settings = {**LORA, "steps": 20, "evaluate_every": 20}
    whole = run(written(tmp_path / "whole", **settings))
    halted = stopped(tmp_path / "run", 10, **settings)
    saved = load_file(latest_checkpoint(halted.checkpoints_path).path / "student.safetensors")
    seen = []
    own_train = driver.training_steps

    def watched(state, *rest):
        seen.append({name: parameter.detach().clone() for name, parameter in state.weights.named.items()})
        layers = [layer for layer in state.student.module.modules() if hasattr(layer, "lora_A")]
        assert {tuple(layer.lora_A) for layer in layers} == {(ADAPTER,)}
        yield from own_train(state, *rest)

    monkeypatch.setattr(driver, "training_steps", watched)
    done = resume_run(halted)
    assert seen[0].keys() == saved.keys()
    assert all(torch.equal(seen[0][name], tensor) for name, tensor in saved.items())
    assert any(tensor.abs().max() > 0 for name, tensor in saved.items() if "lora_B" in name)
    assert losses_of(done)[11] == losses_of(whole)[11]
    assert weights_of(done) == weights_of(whole)


@pytest.mark.report("CR-06")
def test_every_row_comes_once_per_epoch_in_the_same_order_however_often_a_run_is_interrupted(tmp_path, monkeypatch):
    read = []
    own = PromptOrder.of_step

    def watched(self, step, num_prompts):
        chosen = own(self, step, num_prompts)
        read.append((step + 1, tuple(prompt.extra["id"] for prompt in chosen)))
        return chosen

    monkeypatch.setattr(PromptOrder, "of_step", watched)
    settings = {
        **SUPERVISED,
        "rows": answered_rows(),
        "held_out": 2,
        "steps": 18,
        "prompts_per_step": 2,
        "evaluate_every": 18,
    }
    run(written(tmp_path / "whole", **settings))
    undisturbed, read[:] = list(read), []
    ids = [number for _, step in undisturbed for number in step]
    epochs = [sorted(ids[start : start + 12]) for start in (0, 12, 24)]
    assert epochs[0] == epochs[1] == epochs[2]
    assert len(set(epochs[0])) == 12
    halted = stopped(tmp_path / "run", 4, **settings)
    for step in (6, 8, 9, 12, 14):
        with pytest.raises(Stopped):
            resume_run(halted, stopped_at(step))
    resume_run(halted)
    assert read == undisturbed


@pytest.mark.report("CR-07")
def test_samples_after_resuming_in_a_new_process_are_those_of_the_undisturbed_run(tmp_path):
    """Also where the model's own settings have dropout, which never acts here: the student that writes is trained."""

    student = tiny_llama(tiny_tokenizer(), scale=4.0)
    student.config.attention_dropout = 0.1
    settings = {**LORA, "steps": 10, "evaluate_every": 8}
    whole = run(written(tmp_path / "whole", student=student, **settings))
    halted = stopped(tmp_path / "run", 7, student=student, **settings)
    script = "from limbeck.cli import main; main()"
    subprocess.run([sys.executable, "-c", script, "resume", str(halted.path)], check=True, capture_output=True)
    for name in ("held-out-step-000008", "held-out-step-000010"):
        assert halted.read_answers(name) == whole.read_answers(name)
    for mine, theirs in zip(of_kind(halted, "step"), of_kind(whole, "step"), strict=True):
        for name in ("step", "loss", "grad_norm", "num_completion_tokens", "mean_length", "worst_tokens"):
            assert mine[name] == theirs[name]
    assert weights_of(halted) == weights_of(whole)


class _Later(templates.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2031, 5, 17)


@pytest.mark.report("CR-06", "CR-07")
def test_a_run_that_goes_on_another_day_reads_the_date_of_its_first(tmp_path, monkeypatch):
    dated = "{{ 'Today is ' + strftime_now('%d %b %Y') + '. ' }}" + CHATML
    settings = {"tokenizer": tiny_tokenizer(chat_template=dated), "steps": 4, "evaluate_every": 4}
    halted = stopped(tmp_path / "run", 3, **settings)
    before = halted.read_answers("prompts-train")
    whole = run(written(tmp_path / "whole", **settings))
    monkeypatch.setattr("limbeck.training.material.datetime", _Later)
    done = resume_run(halted)
    assert losses_of(done) == losses_of(whole)
    assert weights_of(done) == weights_of(whole)
    new = run(written(tmp_path / "new", **settings))
    assert "17 May 2031" in new.read_answers("prompts-train")[0]["prompt"]
    assert "2031" not in before[0]["prompt"]


# ------------------------------------------------------------------------------------------------------------- changes

APPLIED = [
    ("learning_rate=0.0005", "learning_rate from 0.001 to 0.0005"),
    ("steps=8", "steps from 6 to 8"),
    ("slots=2", "slots from 32 to 2"),
]
REFUSED = [
    ("lora.rank=4", "lora.rank from 2 to 4"),
    ("beta=0.5", "beta from 1.0 to 0.5"),
    ("prompts_per_step=2", "prompts_per_step from 4 to 2"),
    ("seed=7", "seed from 0 to 7"),
    ("sampling.top_p=0.5", "sampling.top_p from 1.0 to 0.5"),
    ("held_out=3", "held_out from 6 to 3"),
    ("max_practice_tokens=4", "max_practice_tokens from 8 to 4"),
    ("teacher_dtype=bfloat16", 'teacher_dtype from "float32" to "bfloat16"'),
    ("steps=2", "step 3 is done, and steps is 2"),
]


@pytest.fixture(scope="module")
def halted(tmp_path_factory):
    """Stopped after 3 of 6 steps; copied before a test changes it."""
    return stopped(tmp_path_factory.mktemp("halted"), 3, steps=6, **{**LORA, "learning_rate": 1e-3})


def copied(halted, tmp_path):
    shutil.copytree(halted.path, tmp_path / "runs" / "tiny")
    return Run.open(tmp_path / "runs" / "tiny")


@pytest.mark.report("CR-05")
@pytest.mark.parametrize(("change", "told"), APPLIED)
def test_a_setting_that_may_change_is_applied_and_told_with_both_values(halted, tmp_path, change, told):
    done = resume_run(copied(halted, tmp_path), overrides=[change])
    assert f"Changed from step 4 on: {told}." in notes_of(done)
    name, _, value = change.partition("=")
    first, last = (event["settings"][name] for event in of_kind(done, "start"))
    assert (first, last) == (load_recipe(halted.recipe_path, [], {}).recipe.settings()[name], json.loads(value))
    assert load_recipe(done.recipe_path, [], {}).recipe.settings()[name] == last
    if name == "learning_rate":
        assert of_kind(done, "step")[3]["learning_rate"] == 5e-4
    if name == "steps":
        assert of_kind(done, "done")[0]["step"] == 8


@pytest.mark.report("CR-05", "LE-07")
@pytest.mark.parametrize(("change", "told"), REFUSED)
def test_a_setting_that_defines_the_run_is_refused_with_both_values(halted, tmp_path, capsys, change, told):
    going_on = copied(halted, tmp_path)
    before = going_on.events_path.read_bytes()
    assert run_cli(["resume", str(going_on.path), "--set", change]) == 3
    assert told in " ".join(capsys.readouterr().err.split())
    assert going_on.events_path.read_bytes() == before
    # an edit of the run's own recipe is noticed in the same way
    name, _, value = change.partition("=")
    text = going_on.recipe_path.read_text()
    line = next(line for line in text.splitlines() if line.split(":")[0].strip() == name.rpartition(".")[2])
    going_on.recipe_path.write_text(text.replace(f"\n{line}\n", f"\n{line.partition(':')[0]}: {value}\n"))
    with pytest.raises(Refusal, match=re.escape(told)):
        api.resume(going_on.path)


@pytest.mark.report("CR-05")
def test_a_change_is_told_once_and_holds_for_later_sessions(halted, tmp_path):
    going_on = copied(halted, tmp_path)
    with pytest.raises(Stopped):
        resume_run(going_on, stopped_at(4), overrides=["learning_rate=0.0005"])
    done = resume_run(going_on)
    assert sum("learning_rate from" in text for text in notes_of(done)) == 1
    assert of_kind(done, "step")[4]["learning_rate"] <= 5e-4


@pytest.mark.report("CR-05", "DC-07")
@pytest.mark.parametrize("what", ["held-out", "examples"])
def test_files_beside_the_prompts_are_known_by_content_too(tmp_path, what):
    folder = tmp_path / "run"
    folder.mkdir()
    held = write_rows(folder / "held.jsonl", [prompt_row(f"held {number}", answer="x") for number in range(4)])
    few = write_rows(folder / "few.jsonl", [prompt_row("show", answer="as we do")])
    settings = {"route": "off-policy", "max_teacher_tokens": 200, "teacher_examples": str(few), "held_out": str(held)}
    halted = stopped(folder, 2, **settings)
    if what == "held-out":
        write_rows(held, [prompt_row(f"hold {number}", answer="x") for number in range(4)])
    else:
        write_rows(few, [prompt_row("show", answer="otherwise")])
    with pytest.raises(Refusal, match=r"its (prompts|teacher_examples) changed"):
        resume_run(halted)


# ---------------------------------------------------------------------------------------------------- two at one time


@pytest.mark.report("CR-09")
def test_of_two_starts_at_one_moment_one_gets_the_folder_and_the_other_is_told(tmp_path):
    for name in ("tiny", None):
        results, barrier = [], threading.Barrier(8)

        def start(name=name, results=results, barrier=barrier):
            barrier.wait()
            try:
                results.append(Run.create(tmp_path, name).name)
            except UsageError as error:
                results.append(error.code)

        threads = [threading.Thread(target=start) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if name is None:
            names = [result for result in results if result != "run.exists"]
            assert len(set(names)) == len(names) > 0
        else:
            assert sorted(results) == ["run.exists"] * 7 + ["tiny"]


@pytest.mark.report("CR-09")
def test_a_run_that_is_being_written_is_neither_started_over_nor_resumed_and_a_finished_one_stays(tmp_path):
    recipe = written(tmp_path, steps=6)
    refused = []

    def meddle(event):
        if event["kind"] == "step" and event["step"] == 3:
            for attempt in (lambda: run(recipe), lambda: resume_run(Run.open(tmp_path / "runs" / "tiny"))):
                with pytest.raises((UsageError, Refusal)) as caught:
                    attempt()
                refused.append(caught.value)

    done = run(recipe, listen=meddle)
    assert [error.code for error in refused] == ["run.exists", "run.locked"]
    assert f"process {os.getpid()}" in refused[1].given
    before = weights_of(done)
    assert run_cli(["train", str(recipe), "--set", "beta=0.5"]) == 2
    assert weights_of(done) == before
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"tiny"}
    assert len(of_kind(done, "start")) == 1
