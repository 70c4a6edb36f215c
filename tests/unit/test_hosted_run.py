"""Whole runs off-policy whose teacher is behind a chat API: what is asked, stored, learnt, counted and gone on with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from test_routes_on_disk import losses_of, of_kind, weights_of

from builders import prompt_row, write_rows
from limbeck import api
from limbeck.cli import run_cli
from limbeck.errors import RecipeError, Refusal, Stopped
from limbeck.recipe.evaluation import EvaluationOptions
from limbeck.runs.store import Run
from misbehaving_server import FORMS, MisbehavingServer, completion, http
from pairs import write_pair

HOSTED = {"route": "off-policy", "max_teacher_tokens": 20, "answers_per_prompt": 2}


@pytest.fixture(autouse=True)
def own_approvals(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def recipe(folder, server, *, hosted=None, **settings):
    folder.mkdir(exist_ok=True)
    hosted = {"base_url": server.url, "deadline_s": 5.0, **(hosted or {})}
    path = write_pair(folder, **{**HOSTED, "hosted": hosted, "num_prompts": 12, **settings})
    path.write_text(path.read_text().replace('teacher: "teacher"', "teacher: openai:tiny"))
    return path


def told(seen):
    """An answer that differs from sample to sample, in words that no tokenizer of the tests has as one token."""
    return http(completion(f"Answer {seen.body['seed']} to {seen.prompt}"))


def run_of(folder, name="tiny"):
    return Run.open(folder / "runs" / name)


def test_a_hosted_teacher_of_another_family_teaches_and_is_asked_once(tmp_path):
    """Its tokenizer and template are its own affair: messages go out and text comes back."""
    rows = [{"prompt": [{"role": "user", "content": f"word {number}"}]} for number in range(12)]
    rows[0]["prompt"].insert(0, {"role": "system", "content": "Be brief."})
    with MisbehavingServer(told) as server:
        path = recipe(tmp_path, server, rows=rows, steps=8, evaluate_every=8, learning_rate=2e-2)
        done = api.train(path)
        assert len(server.seen) == 6 * 2 + 6  # six prompts twice, and six that are held out
        answers = done.read_answers("teacher")
        assert [row["label"] for row in answers] == [None] * 12
        assert len({row["answer"] for row in answers}) == 12
        bodies = [seen.body for seen in server.seen]
        assert {body["model"] for body in bodies} == {"tiny"}
        assert {(body["max_tokens"], body["temperature"]) for body in bodies} == {(20, 0.7)}
        assert any(body["messages"][0] == {"role": "system", "content": "Be brief."} for body in bodies)
        assert losses_of(done)[-1] < 0.7 * losses_of(done)[0]
        evaluations = of_kind(done, "evaluation")
        assert evaluations[-1]["teacher_text_loss"] < evaluations[0]["teacher_text_loss"]
        start = of_kind(done, "start")[0]
        assert start["teacher"] == {"name": f"openai:tiny at {server.url}", "weights": None}
        assert any("18 calls and 216 tokens" in event["text"] for event in of_kind(done, "note"))
        # another run of the workspace, here with another student, asks nothing
        again = api.train(path, overrides=["name=again"])
        other = api.train(path, overrides=["name=other", "student=run:tiny", "steps=1"])
        assert len(server.seen) == 18
        assert weights_of(again) == weights_of(done) != weights_of(other)
        assert again.read_answers("teacher") == answers
    api.train(path, overrides=["name=offline", "steps=1"])  # nor does it need the endpoint


def test_answers_alone_are_what_training_learns(tmp_path):
    with MisbehavingServer(told) as server:
        path = recipe(tmp_path, server)
        assert run_cli(["answers", str(path)]) == 0
        assert len(server.seen) == 12
        done = api.train(path)
        assert len(server.seen) == 12 + 6
    for name in ("teacher", "targets"):
        assert done.read_answers(name) == run_of(tmp_path, "tiny-answers").read_answers(name)


LABELS = {
    **{"length": "cut-off", "filtered": "filtered", "refusal field": "refused", "empty": "empty", "400": "rejected"},
    **{"polite refusal": "refused", "tool calls": "tool-call", "think unclosed": "unclosed-reasoning"},
}


@pytest.mark.report("HA-02", "HA-04", "HA-13")
def test_what_is_unfit_is_labelled_counted_by_name_and_not_learnt(tmp_path, capsys):
    """One prompt gets two whole answers, one the same twice; each other prompt gets another unfit reply."""
    forms = [*LABELS, "same", "good"]
    rows = [{"prompt": [{"role": "user", "content": f"say {form}"}]} for form in forms]
    held = tmp_path / "held.jsonl"
    held.write_text("".join(json.dumps({"prompt": f"say {form}"}) + "\n" for form in ("kept", "filtered it", "400 it")))

    def script(seen):
        form = seen.prompt.removeprefix("say ").removesuffix(" it")
        return FORMS[form] if form in FORMS else http(completion("Same.")) if form == "same" else told(seen)

    with MisbehavingServer(script) as server:
        path = recipe(tmp_path, server, rows=rows, held_out=str(held))
        assert run_cli(["train", str(path)]) == 0
    done = run_of(tmp_path)
    labels = {row["prompt"][0]["content"]: row["label"] for row in done.read_answers("teacher")}
    assert labels == {f"say {form}": LABELS[form] for form in LABELS} | {"say same": "duplicate", "say good": None}
    counted = of_kind(done, "answers")[0]
    assert counted["left_out"]["refused"] == 4
    assert counted["left_out"]["duplicate"] == 1
    assert counted["learnt"] == 3 == len(done.read_answers("targets"))
    rejected = of_kind(done, "unanswered")[0]["rows"]
    assert [(row["label"], row["source"].rpartition(":")[2]) for row in rejected] == [("rejected", "5")] * 2
    assert "maximum context length" in rejected[0]["why"]
    assert [row["prompt"].count("kept") for row in done.read_answers("held-out-teacher")] == [1]
    shown = " ".join(capsys.readouterr().err.split())
    assert "of 20 answers, 2 are missing" in shown
    assert "4 refused, 2 rejected" in shown
    assert "answer cannot be used: 2 of 3." in shown


@pytest.mark.report("DL-09")
def test_half_a_surrogate_pair_in_replies_is_labelled_and_breaks_no_file(tmp_path):
    """Every third reply ends within an emoji: it is stored and counted, nobody learns it, and every view opens."""
    halves = ("word 1", "word 4", "held 1")

    def script(seen):
        return http(completion("half \ud83d")) if seen.prompt in halves else told(seen)

    write_rows(tmp_path / "held.jsonl", [prompt_row(f"held {number}", answer="x") for number in range(3)])
    rows = [prompt_row(f"word {number}") for number in range(6)]
    with MisbehavingServer(script) as server:
        path = recipe(tmp_path, server, rows=rows, held_out=str(tmp_path / "held.jsonl"), answers_per_prompt=1)
        done = api.train(path)
        worth = api.worth(path, EvaluationOptions(name="asked", max_tokens=5, grader="contains"))
    assert done.status().state == "done"
    assert of_kind(done, "answers")[0]["left_out"] == {"bad-text": 2}
    assert [row["answer"] for row in done.read_answers("teacher") if row["label"]] == ["half \ud83d"] * 2
    assert len(done.read_answers("targets")) == 4
    assert len(done.read_answers("held-out-teacher")) == 2
    failures = [row["failure"] for row in worth.read_answers("teacher")]
    assert sorted(failures, key=str) == [None, None, "bad-text"]
    assert api.report("asked", tmp_path / "page.html", workspace=tmp_path).read_text(encoding="utf-8")
    assert run_cli(["show", "tiny", "--workspace", str(tmp_path)]) == 0


def test_without_any_text_to_held_out_prompts_there_is_nothing_to_measure(tmp_path):
    held = tmp_path / "held.jsonl"
    held.write_text(json.dumps({"prompt": "held out"}) + "\n")
    with (
        MisbehavingServer(lambda seen: "filtered" if seen.prompt == "held out" else told(seen)) as server,
        pytest.raises(Refusal, match="no-held-out-text"),
    ):
        api.train(recipe(tmp_path, server, held_out=str(held)))


@pytest.mark.report("HA-01")
@pytest.mark.parametrize("verb", ["train", "answers"])
def test_while_answers_are_missing_the_run_waits_and_going_on_asks_for_these_alone(tmp_path, capsys, verb):
    healed, bad = [], set()

    def script(seen):
        bad.update({seen.prompt} if seen.number == 2 else ())
        return told(seen) if healed or seen.prompt not in bad else "hang"

    with MisbehavingServer(script) as server:
        path = recipe(tmp_path, server, hosted={"deadline_s": 0.5, "attempt_s": 0.5})
        assert run_cli([verb, str(path)]) == 75
        unfinished = run_of(tmp_path, "tiny" if verb == "train" else "tiny-answers")
        assert unfinished.status().state == "stopped"
        missing = of_kind(unfinished, "unanswered")[0]["rows"]
        assert missing
        assert {row["label"] for row in missing} == {"failed"}
        assert all(row["why"].startswith("deadline: ") for row in missing)
        answers = "answer is" if len(missing) == 1 else "answers are"
        assert f"{len(missing)} {answers} missing out of 12" in capsys.readouterr().err.replace("\n", " ")
        assert "teacher" not in unfinished.answer_sets()
        healed.append(True)
        asked = len(server.seen)
        assert run_cli(["resume", str(unfinished.path)] if verb == "train" else ["answers", str(path)]) == 0
        num_held_out = 6 if verb == "train" else 0
        assert len(server.seen) - asked == len(missing) + num_held_out
        assert bad <= {seen.prompt for seen in server.seen[asked:]}
    assert len(unfinished.read_answers("targets")) == 12
    assert unfinished.status().state == "done"


@pytest.mark.parametrize(("form", "code"), [("401", 75), ("404", 75), ("429 quota", 75), ("redirect", 75)])
def test_what_all_questions_would_meet_stops_the_run_after_one_call(tmp_path, form, code):
    with MisbehavingServer(lambda seen: form) as server:
        assert run_cli(["train", str(recipe(tmp_path, server))]) == code
        assert len(server.seen) == 1
    assert run_of(tmp_path).status().state == "stopped"


def test_a_budget_holds_across_restarts_of_a_run_and_raising_it_goes_on(tmp_path):
    with MisbehavingServer(told) as server:
        path = recipe(tmp_path, server, hosted={"max_calls": 7})
        with pytest.raises(Stopped, match=r"teacher\.budget"):
            api.train(path)
        run = run_of(tmp_path)
        with pytest.raises(Stopped, match="has spent 7 calls"):
            api.resume(run.path)
        assert len(server.seen) == 7
        run.recipe_path.write_text(run.recipe_path.read_text().replace("max_calls: 7", "max_calls: 18"))
        assert api.resume(run.path).status().state == "done"
        assert len(server.seen) == 18


def test_an_endpoint_that_nobody_approved_gets_nothing_and_the_run_goes_on_once_it_is(tmp_path):
    with MisbehavingServer(told) as server:
        path = recipe(tmp_path, server, hosted={"base_url": "http://llm.example:8000/v1", "alias": "desk"})
        assert run_cli(["train", str(path)]) == 3
        run = run_of(tmp_path)
        assert run.status().state == "failed"
        run.recipe_path.write_text(run.recipe_path.read_text().replace("http://llm.example:8000/v1", server.url))
        assert api.resume(run.path).status().state == "done"  # the alias says that it is the same endpoint
        assert len(server.seen) == 18


@pytest.mark.report("HA-08")
def test_a_run_that_is_killed_while_its_teacher_writes_goes_on_without_asking_twice(tmp_path):
    killed = None
    with MisbehavingServer(lambda seen: "hang" if seen.number >= 20 and killed is None else told(seen)) as server:
        path = recipe(tmp_path, server, hosted={"concurrency": 2}, num_prompts=30, answers_per_prompt=2)
        command = [sys.executable, "-c", "from limbeck.cli import main; main()", "train", str(path)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=dict(os.environ))
        end = time.monotonic() + 300
        while len(server.seen) < 20:
            assert process.poll() is None, process.stderr.read().decode()
            assert time.monotonic() < end
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=300)
        killed = run_of(tmp_path)
        assert killed.status().state == "died"
        asked = len(server.seen)
        done = api.resume(killed.path)
        assert done.status().state == "done"
        questions = [(seen.prompt, seen.body["seed"]) for seen in server.seen]
        assert len(set(questions)) == 24 * 2 + 6
        assert len(questions) - len(set(questions)) <= 2  # those in flight
        assert len(questions) > asked
    assert len(done.read_answers("teacher")) == 48


@pytest.mark.report("HA-09")
def test_on_policy_a_hosted_teacher_is_refused_at_once_with_the_route_that_it_can_serve(tmp_path):
    with MisbehavingServer() as server:
        path = write_pair(tmp_path)
        path.write_text(path.read_text().replace('teacher: "teacher"', "teacher: openai:tiny"))
        with pytest.raises(RecipeError, match="A hosted API generates text but cannot score") as refused:
            api.train(path)
        assert refused.value.code == "recipe.model-remote"
        assert "route: off-policy" in refused.value.fix
        assert server.seen == []
    assert not (tmp_path / "runs").exists()


def test_a_recipe_with_a_hosted_teacher_is_checked_without_torch_and_planned_without_a_call(tmp_path, capsys):
    with MisbehavingServer() as server:
        path = recipe(tmp_path, server)
        script = (
            "import sys; from limbeck.cli import run_cli\n"
            f"assert run_cli(['recipe', 'show', {str(path)!r}]) == 0\n"
            "assert not {'torch', 'transformers', 'httpx2'} & set(sys.modules)"
        )
        subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
        assert run_cli(["train", str(path), "--dry-run"]) == 0
        assert "openai:tiny" in capsys.readouterr().out
        assert server.seen == []


def test_what_an_api_refuses_can_be_left_out_of_the_requests(tmp_path):
    options = {"temperature": None, "seed": None, "reasoning_effort": "low"}
    with MisbehavingServer(lambda seen: http(completion(f"Answer {seen.number}"))) as server:
        path = recipe(tmp_path, server, hosted={"limit_name": "max_completion_tokens"}, teacher_options=options)
        api.answers(path)
        body = server.seen[0].body
    assert body.keys() == {"model", "messages", "stream", "max_completion_tokens", "reasoning_effort"}
    assert len({row["answer"] for row in run_of(tmp_path, "tiny-answers").read_answers("teacher")}) == 12
