"""A run is a folder: what lies in it, who may write it, and how it stands after any end."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from limbeck.errors import DataError, Refusal, Stopped, UsageError
from limbeck.runs.store import Run, current_events, list_runs


def events_of(run: Run) -> list[dict[str, object]]:
    return [{key: value for key, value in event.items() if key != "time"} for event in run.read_events()]


def test_a_new_run_is_a_private_folder(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        run = Run.create(tmp_path / "work", "support-2")
        with run:
            run.append_event({"kind": "start", "steps": 3})
            run.write_answers("teacher", [{"answer": "y"}])
    finally:
        os.umask(old)
    assert run.path == tmp_path / "work" / "runs" / "support-2"
    assert run.name == "support-2"
    assert run.path.stat().st_mode & 0o077 == 0, "others can read it"
    assert {path.name for path in run.path.iterdir()} == {"events.jsonl", "answers", "run.lock"}


def test_the_names_in_a_run_folder(tmp_path: Path) -> None:
    run = Run.create(tmp_path, "r")
    names = {
        "recipe.yaml": run.recipe_path,
        "events.jsonl": run.events_path,
        "answers/held-out.jsonl": run.answers("held-out"),
        "checkpoints": run.checkpoints_path,
        "model": run.model_path,
    }
    assert {str(path.relative_to(run.path)) for path in names.values()} == set(names)


def test_names_are_drawn_new_or_must_be_free(tmp_path: Path) -> None:
    names = {Run.create(tmp_path, None).name for _ in range(5)}
    assert len(names) == 5
    assert all(re.fullmatch(r"[a-z]+-[a-z]+-\d\d", name) for name in names)
    Run.create(tmp_path, "mine")
    with pytest.raises(UsageError) as caught:
        Run.create(tmp_path, "mine")
    assert caught.value.code == "run.exists"
    for hostile in ("../x", "a/b", ".x", "con", ""):
        with pytest.raises(UsageError) as refused:
            Run.create(tmp_path, hostile)
        assert refused.value.code == "names.not-allowed"


@pytest.mark.report("TU-03")
def test_runs_that_would_lie_outside_the_workspace_are_refused(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    workspace = tmp_path / "work"
    outside.mkdir()
    workspace.mkdir()
    (workspace / "runs").symlink_to(outside)
    with pytest.raises(UsageError) as caught:
        Run.create(workspace, "x")
    assert caught.value.code == "names.outside"
    assert list(outside.iterdir()) == []


def test_events_carry_time_and_kind_and_come_back_in_order(tmp_path: Path) -> None:
    with Run.create(tmp_path, None) as run:
        run.append_event({"kind": "start", "steps": 2, "step": 0})
        run.append_event({"kind": "step", "step": 1, "loss": 0.5, "text": "ü\u2028"})
        run.append_event({"kind": "step", "step": 2, "loss": math.nan})
        assert events_of(run)[1:] == [
            {"kind": "step", "step": 1, "loss": 0.5, "text": "ü\u2028"},
            {"kind": "step", "step": 2, "loss": "NaN"},
        ]
    for event in run.read_events():
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", str(event["time"]))
    assert b": NaN" not in run.events_path.read_bytes()


@pytest.mark.usefixtures("impatient")
def test_writing_needs_the_lock(tmp_path: Path) -> None:
    run = Run.create(tmp_path, None)
    with pytest.raises(AssertionError, match="with run"):
        run.append_event({"kind": "start"})
    with pytest.raises(AssertionError, match="with run"):
        run.write_answers("x", [])
    with run, pytest.raises(Refusal, match=f"process {os.getpid()}"), Run.open(run.path):
        pass
    with run, pytest.raises(AssertionError, match="kind"):
        run.append_event({"step": 1})


def test_a_second_writer_in_another_process_is_refused_and_writes_nothing(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from limbeck.runs.store import Run; from limbeck.errors import Refusal\n"
        "try:\n    with Run.open(Path(sys.argv[1])) as run: run.append_event({'kind': 'start'})\n"
        "except Refusal as error: sys.exit(str(error.exit_code) + ' ' + error.given)"
    )
    with Run.create(tmp_path, "mine") as run:
        run.append_event({"kind": "start", "steps": 2})
        before = run.events_path.read_bytes()
        done = subprocess.run(
            [sys.executable, "-c", script, str(run.path)], capture_output=True, text=True, check=False
        )
        assert done.stderr.startswith(f"3 The folder mine is in use by process {os.getpid()} on ")
        assert run.events_path.read_bytes() == before


def test_status_through_the_life_of_a_run(tmp_path: Path) -> None:
    run = Run.create(tmp_path, None)
    with run:
        run.append_event({"kind": "phase", "phase": "loading"})
        assert run.status().state == "running"
        run.append_event({"kind": "start", "steps": 10})
        run.append_event({"kind": "step", "step": 1})
        run.append_event({"kind": "evaluation", "step": 99})
        status = run.status()
        assert (status.state, status.step, status.steps) == ("running", 1, 10)
        assert status.holder is not None
        assert status.holder.pid == os.getpid()
        run.append_event({"kind": "stopped", "text": "asked to"})
    assert (run.status().state, run.status().text) == ("stopped", "asked to")
    with run:
        assert run.status().state == "running"
        run.append_event({"kind": "start", "step": 1, "steps": 10})
        run.append_event({"kind": "step", "step": 2})
        run.append_event({"kind": "failed", "text": "loss is nan"})
    assert (run.status().state, run.status().step, run.status().text) == ("failed", 2, "loss is nan")
    with run:
        run.append_event({"kind": "start", "step": 2, "steps": 10})
        run.append_event({"kind": "done", "step": 10})
        run.append_event({"kind": "verdict", "text": "ship"})
    status = run.status()
    assert (status.state, status.step, status.steps) == ("done", 2, 10)
    assert status.last_event == run.read_events()[-1]["time"]


def test_a_run_without_any_event_and_without_a_writer_has_died(tmp_path: Path) -> None:
    status = Run.create(tmp_path, None).status()
    assert (status.state, status.step, status.steps, status.last_event) == ("died", 0, None, None)


@pytest.mark.report("TU-02", "TU-07")
def test_a_killed_run_has_died_at_its_last_step_and_is_never_called_running(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from limbeck.runs.store import Run\n"
        "with Run.create(Path(sys.argv[1]), 'killed') as run:\n"
        "    run.append_event({'kind': 'start', 'steps': 100})\n"
        "    for step in range(1, 8): run.append_event({'kind': 'step', 'step': step, 'text': 'x' * 100_000})\n"
        "    print('on', flush=True); time.sleep(30)"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "on\n"
        run = Run.named(tmp_path, "killed")
        assert run.status().state == "running"
        process.send_signal(signal.SIGKILL)
    status = run.status()
    assert (status.state, status.step, status.steps) == ("died", 7, 100)
    assert status.holder is not None
    assert status.holder.pid == process.pid
    with run.events_path.open("ab") as file:
        file.write(b'{"kind": "step", "step": 8, "te')
    assert run.status().step == 7
    with run:
        run.append_event({"kind": "start", "step": 5, "steps": 100})
    assert [event["kind"] for event in run.read_events()][-2:] == ["step", "start"]


@pytest.mark.report("TU-06")
def test_continued_steps_are_in_the_run_once(tmp_path: Path) -> None:
    with Run.create(tmp_path, None) as run:
        run.append_event({"kind": "start", "steps": 4})
        for step in (1, 2, 3):
            run.append_event({"kind": "step", "step": step, "try": 1})
        run.append_event({"kind": "start", "steps": 4, "step": 2})
        for step in (3, 4):
            run.append_event({"kind": "step", "step": step, "try": 2})
        run.append_event({"kind": "done", "step": 4})
    steps = [(event["step"], event["try"]) for event in current_events(run.read_events()) if event["kind"] == "step"]
    assert steps == [(1, 1), (2, 1), (3, 2), (4, 2)]
    assert len(run.read_events()) == 8, "the log itself loses nothing"
    assert run.status().step == 4


@pytest.mark.report("TU-06")
def test_a_run_that_is_resumed_twice_has_one_value_for_each_step_and_no_alert_of_what_was_left(tmp_path: Path) -> None:
    """Steps 1 to 15, a crash; on from 10 to 17, a crash; on from 10 again, to 20."""
    run = Run.create(tmp_path, None)
    for first, last in ((0, 15), (10, 17), (10, 20)):
        with run:
            run.append_event({"kind": "start", "steps": 20, "step": first})
            for step in range(first + 1, last + 1):
                run.append_event({"kind": "step", "step": step, "loss": step, "num_completion_tokens": 7})
                if step == 14:
                    run.append_event({"kind": "alert", "step": step, "text": "long answers"})
    events = current_events(run.read_events())
    steps = [event for event in events if event["kind"] == "step"]
    assert [(event["step"], event["loss"]) for event in steps] == [(step, step) for step in range(1, 21)]
    assert sum(event["num_completion_tokens"] for event in steps) == 20 * 7
    assert [event["step"] for event in events if event["kind"] == "start"] == [0, 10, 10], "the history shows both"
    assert [event["step"] for event in events if event["kind"] == "alert"] == [14]
    assert (run.status().step, run.status().steps) == (20, 20)


WRITER = """
import sys, time
from pathlib import Path
from limbeck.runs.store import Run
with Run.create(Path(sys.argv[1]), sys.argv[2]) as run:
    run.append_event({"kind": "start", "steps": 100})
    print("on", flush=True)
    for step in range(1, 101):
        run.append_event({"kind": "step", "step": step, "loss": 1 / step, "text": "x" * 2000})
        time.sleep(0.004)
    run.append_event({"kind": "done", "step": 100})
"""


@pytest.mark.report("TU-01")
def test_three_writers_lose_nothing_whoever_reads_and_whoever_is_killed(tmp_path: Path) -> None:
    """A reader keeps the logs open all the time, another one looks at all runs again and again."""
    names = ("one", "two", "killed")
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), name], stdout=subprocess.PIPE, text=True)
        for name in names
    ]
    try:
        assert [writer.stdout is not None and writer.stdout.readline() for writer in writers] == ["on\n"] * 3
        held_open = [(tmp_path / "runs" / name / "events.jsonl").open("rb") for name in names]
        while Run.named(tmp_path, "killed").status().step < 20:
            assert {run.status().state for run in list_runs(tmp_path)} <= {"running", "done"}
        writers[2].send_signal(signal.SIGKILL)
        for writer in writers:
            writer.communicate(timeout=300)
    finally:
        for writer in writers:
            writer.kill()
    assert [writer.returncode for writer in writers] == [0, 0, -signal.SIGKILL]
    for name, file in zip(names, held_open, strict=True):
        events = Run.named(tmp_path, name).read_events()
        steps = [event["step"] for event in events if event["kind"] == "step"]
        assert steps == list(range(1, 101)) if name != "killed" else steps == list(range(1, len(steps) + 1))
        file.close()
    killed = Run.named(tmp_path, "killed")
    with killed:
        killed.append_event({"kind": "start", "step": 0, "steps": 100})
    assert killed.status().step == 0


@pytest.mark.report("TU-02", "TU-07")
def test_what_a_dead_process_left_behind_is_in_nobodys_way(tmp_path: Path) -> None:
    """Its lock file names a number that another process has now; its half-written files lie about."""
    with Run.create(tmp_path, "old") as run:
        run.append_event({"kind": "start", "steps": 9})
        run.append_event({"kind": "step", "step": 4})
    mine = {"host": socket.gethostname(), "pid": os.getpid(), "started": "2026-01-01T00:00:00+00:00"}
    (run.path / "run.lock").write_text(json.dumps(mine))
    (run.path / f".recipe.yaml.{os.getpid()}.tmp").write_text("half")
    (run.checkpoints_path / "step-00000003").mkdir(parents=True)
    (run.checkpoints_path / ".tmp-4-1").mkdir()
    (run.checkpoints_path / "step-copy").mkdir()
    status = run.status()
    assert (status.state, status.step, status.checkpoint) == ("died", 4, 3)
    with run:
        assert run.status().state == "running"
    with Run.create(tmp_path, "new"):
        assert [each.name for each in list_runs(tmp_path)] == ["old", "new"]


def test_answers_are_written_whole_and_read_back(tmp_path: Path) -> None:
    rows = [{"source": "t.jsonl:1", "answer": "ja\u2028\ud83d", "ids": [1, 2], "score": math.inf}, {"answer": ""}]
    with Run.create(tmp_path, None) as run:
        run.write_answers("held-out-step-000020", rows)
        run.write_answers("held-out-teacher", [])
        assert run.read_answers("held-out-step-000020") == [
            {**rows[0], "score": "Infinity"},
            {"answer": ""},
        ]
        assert run.read_answers("held-out-teacher") == []
        run.write_answers("held-out-step-000020", [{"answer": "new"}])
        assert run.read_answers("held-out-step-000020") == [{"answer": "new"}]
    assert run.answer_sets() == ["held-out-step-000020", "held-out-teacher"]
    with pytest.raises(DataError, match="nothing"):
        run.read_answers("nothing")
    with pytest.raises(UsageError, match="The answer set name"):
        run.read_answers("../events")


def test_runs_are_listed_newest_first_and_nothing_else_is(tmp_path: Path) -> None:
    assert list_runs(tmp_path) == []
    for name in ("first", "second", "third"):
        with Run.create(tmp_path, name) as run:
            run.append_event({"kind": "start"})
        time.sleep(0.005)
    folder = tmp_path / "runs"
    (folder / "empty").mkdir()
    (folder / ".hidden").mkdir()
    (folder / "file").write_text("x")
    (folder / "link").symlink_to(folder / "first")
    (folder / "first" / "events.jsonl").write_text(json.dumps({"kind": "x", "time": "1999-01-01T00:00:00.000Z"}) + "\n")
    assert [run.name for run in list_runs(tmp_path)] == ["third", "second", "first"]
    (folder / "second" / "events.jsonl").write_text("broken\n")
    assert {run.name for run in list_runs(tmp_path)} == {"first", "second", "third"}


@pytest.mark.report("TU-03")
def test_a_run_is_found_by_name_and_a_wrong_name_gets_the_nearest(tmp_path: Path) -> None:
    Run.create(tmp_path, "calm-otter-17")
    assert Run.named(tmp_path, "calm-otter-17").path == tmp_path / "runs" / "calm-otter-17"
    with pytest.raises(UsageError, match="Did you mean calm-otter-17") as caught:
        Run.named(tmp_path, "calm-oter-17")
    assert caught.value.code == "run.not-found"
    with pytest.raises(UsageError, match="x is not a run"):
        Run.named(tmp_path / "elsewhere", "x")
    with pytest.raises(UsageError, match="The run name"):
        Run.named(tmp_path, "../calm-otter-17")
    Run.create(tmp_path / "other", "x")
    (tmp_path / "other" / "runs" / "link").symlink_to(tmp_path / "runs" / "calm-otter-17")
    with pytest.raises(UsageError) as refused:
        Run.named(tmp_path / "other", "link")
    assert refused.value.code == "names.outside"
    with pytest.raises(UsageError, match="is not a run"):
        Run.open(tmp_path)


@pytest.mark.report("TU-03")
def test_a_folder_with_links_in_place_of_files_reads_and_writes_nothing_else(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text('{"kind": "start"}\n')
    run = Run.create(tmp_path, "hostile")
    run.events_path.unlink()
    run.events_path.symlink_to(secret)
    with pytest.raises(DataError):
        run.read_events()
    with pytest.raises(DataError):
        run.status()
    (run.path / "run.lock").symlink_to(secret)
    with pytest.raises(Stopped), run:
        run.append_event({"kind": "start"})
    assert secret.read_text() == '{"kind": "start"}\n'


def test_a_workspace_that_takes_no_files_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file where the folder should be")
    with pytest.raises(Stopped, match="could not be written") as caught:
        Run.create(tmp_path, "x")
    assert caught.value.code == "run.write-failed"
