"""Evaluations with a judge, with models behind a chat API, and with marks: what is asked, stored, counted and shown."""

from __future__ import annotations

import json

import pytest

from builders import prompt_row
from builders import write_rows as write_lines
from limbeck import api
from limbeck.cli import run_cli
from limbeck.data.prompt import Message, content_hash
from limbeck.errors import UsageError
from limbeck.recipe.evaluation import EvaluationOptions
from limbeck.reporting.rows import collect
from limbeck.runs.evaluations import Evaluation
from limbeck.runs.marks import read_marks
from misbehaving_server import FORMS, MisbehavingServer, completion, http
from pairs import write_pair

SEPARATOR = "\n@@@\n"
LABELS = {"length": "cut-off", "empty": "empty", "refusal field": "refused"}
FAILED = ("filtered", "400", "other model")


@pytest.fixture(autouse=True)
def own_approvals(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def held_out(folder, answers=None, num=12, **settings):
    recipe = write_pair(folder, held_out="held.jsonl", **settings)
    given = [{} if answers is None else {"answer": answers} for _ in range(num)]
    write_lines(folder / "held.jsonl", [prompt_row(f"question {n}", topic="ab"[n % 2], **given[n]) for n in range(num)])
    (folder / "rubric.txt").write_text(SEPARATOR.join(("{{ prompt }}", "{{ answer_a }}", "{{ answer_b }}")))
    return recipe


def verdict_of(seen):
    """Prefers the answer that sorts later; of question 0 it says nothing."""
    question, a, b = seen.prompt.split(SEPARATOR)
    return http(completion("I cannot say" if question == "question 0" else "A" if a > b else "B"))


def judged_options(folder, server, **more):
    hosted = (f"judge.base_url={server.url}", "judge.deadline_s=5")
    return EvaluationOptions(max_tokens=5, judge="openai:tiny", rubric=folder / "rubric.txt", hosted=hosted, **more)


def test_a_hosted_judge_decides_alone_and_is_asked_once(tmp_path, capsys):
    recipe = held_out(tmp_path, "nobody says this", grader="exact")
    with MisbehavingServer(verdict_of) as server:
        options = judged_options(tmp_path, server, name="first", by=("topic",))
        evaluation = api.worth(recipe, options)
        assert len(server.seen) == 24
        assert {seen.body["temperature"] for seen in server.seen} == {0}
        result = evaluation.result()
        assert result["measure"]["kind"] == "judge"
        assert [model["score"] for model in result["models"]] == [None, None]
        (compared,) = result["comparisons"]
        assert compared["both_good"] is compared["both_bad"] is None
        assert (compared["difference"]["n"], compared["num_not_graded"]) == (11, [1, 1])
        answers = {alias: evaluation.read_answers(alias) for alias in ("student", "teacher")}
        won = [two["answer"] > one["answer"] for one, two in zip(answers["student"], answers["teacher"], strict=True)]
        assert compared["first_better"]["estimate"] == pytest.approx(sum(won[1:]) / 11)
        assert result["verdict"] is not None
        assert sum(each["difference"]["n"] for each in result["slices"]) == 11
        notes = " ".join(result["notes"])
        assert "could not be parsed and were ignored: 2." in notes
        assert "Cohen's kappa" in notes
        assert {row["grade"] for row in answers["student"]} == {0.0}, "the grader's own word stays beside"
        rows = collect(result, answers)
        assert rows.size("first_better", 0) == sum(won[1:])
        assert (rows.size("not_compared", 0), rows.size("both_bad"), rows.size("not_graded")) == (1, 0, 0)
        api.worth(recipe, options)
        assert len(server.seen) == 24
    lines = [json.loads(line) for line in evaluation.judgements_path.read_text().splitlines()]
    assert {(line["judge"], line["reply"]) for line in lines[:2]} == {(f"openai:tiny at {server.url}", "I cannot say")}
    assert run_cli(["report", "first", "--workspace", str(tmp_path), "-o", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "Tied" in page
    for hidden in ("Both good", "not graded</span>", ">Score"):
        assert hidden not in page
    capsys.readouterr()


def test_a_judge_here_judges_what_has_no_reference_and_after_has_no_share_of_the_gap(tmp_path, capsys):
    held_out(tmp_path, num=4)
    folders = {"student": "student", "teacher": "teacher", "distilled": "student"}
    models = [f"{role}={tmp_path / name}" for role, name in folders.items()]
    options = ["--prompts", str(tmp_path / "held.jsonl"), "--workspace", str(tmp_path), "--max-tokens", "5"]
    judge = ["--judge", str(tmp_path / "teacher"), "--judge-tokens", "4"]
    rubric = ["--rubric", str(tmp_path / "rubric.txt")]
    assert run_cli(["eval", *models, *options, *judge, *rubric, "--name", "after"]) == 0
    assert "character overlap" not in capsys.readouterr().out
    assert run_cli(["eval", models[0], *options, *judge, *rubric]) == 2
    assert "only one model is evaluated" in " ".join(capsys.readouterr().err.split())
    assert run_cli(["eval", *models, *options, *judge]) == 2
    assert "A prompt of the judge cannot be rendered" in " ".join(capsys.readouterr().err.split()), (
        "the default rubric is too long for it"
    )
    evaluation = Evaluation.open(tmp_path / "evaluations" / "after")
    result = evaluation.result()
    assert (result["kind"], result["gap_recovered"]) == ("after", None)
    assert "no common scale" in result["gap_recovered_reason"]
    # two equal answers tie unasked, whatever the judge can say
    assert result["comparisons"][0]["tied"]["estimate"] == 1
    assert {row["grade"] for row in evaluation.read_answers("teacher")} == {None}


def test_options_about_nobody_are_refused(tmp_path):
    recipe = held_out(tmp_path)
    for options, told in (
        ({"hosted": ("judge.max_calls=3",)}, "No model of this evaluation"),
        ({"hosted": ("max_calls=3",)}, "No model of this evaluation"),
        ({"judge": "openai:x", "hosted": ("judge.max_cals=3",)}, "max_cals"),
        ({"judge": "openai:x", "hosted": ("judge.max_calls=many",)}, "max_calls"),
    ):
        with pytest.raises(UsageError, match=told):
            api.worth(recipe, EvaluationOptions(max_tokens=5, grader="exact", **options))
    with pytest.raises(UsageError, match="--judge"):
        EvaluationOptions(rubric=tmp_path)
    found = EvaluationOptions(judge="x", hosted=("judge.teacher_options.seed=null", "judge.max_cost=2", "t.alias=a"))
    assert found.hosted_settings("judge") == {"max_cost": 2, "parameters": {"seed": None}}


def test_a_hosted_teacher_is_asked_by_messages_and_nothing_that_failed_is_filled_in(tmp_path):
    hosted = {"deadline_s": 5.0, "input_price": 1000, "output_price": 2000}
    forms = ["good", *LABELS, *FAILED, "again"]
    healthy = []

    def script(seen):
        form = forms[int(seen.prompt.split()[1])]
        return FORMS["400"] if form == "again" and not healthy else FORMS.get(form, "good")

    with MisbehavingServer(script) as server:
        path = held_out(
            tmp_path,
            "You said",
            num=8,
            grader="contains",
            route="off-policy",
            hosted={"base_url": server.url, **hosted},
        )
        path.write_text(path.read_text().replace('teacher: "teacher"', "teacher: openai:tiny"))
        evaluation = api.worth(path, EvaluationOptions(name="w", max_tokens=5))
        assert {tuple(seen.body["messages"][0]) for seen in server.seen} == {("role", "content")}
        rows = {forms[int(row["source"].rpartition(":")[2]) - 1]: row for row in evaluation.read_answers("teacher")}
        assert {form: rows[form]["label"] for form in LABELS} == LABELS
        assert [rows[form]["answer"] for form in (*FAILED, "again")] == [None] * 4
        assert [rows[form]["failure"].partition(":")[0] for form in FAILED] == ["filtered", "rejected", "other-model"]
        assert json.loads(rows["good"]["prompt"]) == [{"role": "user", "content": "question 0"}]
        assert rows["good"]["key"] == content_hash((Message("user", "question 0"),))
        result = evaluation.result()
        teacher = next(model for model in result["models"] if model["role"] == "teacher")
        counts = ("num_asked", "num_answered", "num_failed", "num_cut_off", "num_empty", "num_not_graded")
        assert [teacher[name] for name in counts] == [8, 4, 4, 1, 1, 4]
        assert teacher["ref"] == f"openai:tiny at {server.url}"
        assert teacher["cost_per_1000"]["amount"] == pytest.approx(5 * 1 + 7 * 2)
        assert result["comparisons"][0]["difference"]["n"] == 4
        assert any("failed requests, which have no answer: 4 of 8." in note for note in result["notes"])
        healthy.append(True)
        num_asked = len(server.seen)
        again = api.worth(path, EvaluationOptions(name="w", max_tokens=5))
        assert len(server.seen) == num_asked + 2, "what was rejected is asked again, what is stored is not"
        assert sum(row["failure"] is not None for row in again.read_answers("teacher")) == 3


def test_the_worst_answers_are_marked_under_the_keys_of_their_rows(tmp_path, capsys):
    recipe = held_out(tmp_path, "x", num=12)
    evaluation = api.worth(recipe, EvaluationOptions(name="w", max_tokens=5, grader="exact"))
    (path,) = evaluation.marks_path.glob("*")
    sheet = read_marks(path)
    assert path.stem == "student"
    assert len(sheet.answers) == 5
    keys = {row["key"]: row["ids"] for row in evaluation.read_answers("student")}
    assert all(keys[answer.key] == answer.token_ids.tolist() for answer in sheet.answers)
    means = [sum(answer.nats(sheet.beta)) / len(answer) for answer in sheet.answers]
    assert means == sorted(means, reverse=True)
    whole = evaluation.result()["models"][0]["divergence_to_teacher"]["estimate"]
    assert means[0] > whole
    assert run_cli(["worth", str(recipe), "--name", "w", "--max-tokens", "5", "--grader", "exact"]) == 0
    assert f"limbeck report {evaluation.path}" in " ".join(capsys.readouterr().out.split())
    assert run_cli(["report", str(evaluation.path), "-o", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").read_text().count('class="marked"') == 5
