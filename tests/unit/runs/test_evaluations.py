"""An evaluation is a folder beside the runs: what was asked, the answers as they came, and the result."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from limbeck.errors import DataError, Refusal, UsageError
from limbeck.runs.evaluations import RESULT_KEYS, Evaluation, list_evaluations, open_evaluation
from limbeck.runs.lines import FORMAT

ASKED = {"prompts": {"hash": "a", "num": 2}, "models": ["teacher", "student"]}

EMPTY_RESULT = dict.fromkeys(RESULT_KEYS)


def begun(workspace: Path, name: str) -> Evaluation:
    evaluation = Evaluation.create(workspace, name)
    with evaluation:
        evaluation.begin(ASKED)
    return evaluation


def test_answers_and_result_come_back_as_written(tmp_path: Path) -> None:
    with Evaluation.create(tmp_path, "first") as evaluation:
        evaluation.begin(ASKED)
        assert evaluation.read_answers("teacher") == []
        evaluation.append_answer("teacher", {"key": "k/0", "answer": "y\u2028"})
        evaluation.append_answer("teacher", {"key": "k/1", "answer": None})
        with pytest.raises(UsageError, match="no result yet"):
            evaluation.result()
        evaluation.write_answers("teacher", [{**row, "grade": 1.0} for row in evaluation.read_answers("teacher")])
        evaluation.write_result({**EMPTY_RESULT, "kind": "worth", "share": float("nan")})
    found = Evaluation.find(tmp_path, "first")
    assert [(row["answer"], row["grade"]) for row in found.read_answers("teacher")] == [("y\u2028", 1.0), (None, 1.0)]
    assert found.result() == {**EMPTY_RESULT, "kind": "worth", "share": "NaN"}
    assert found.path == tmp_path / "evaluations" / "first"
    assert Evaluation.find(tmp_path / "elsewhere", str(found.path)).name == "first"


def test_a_continued_evaluation_is_the_same_or_refused(tmp_path: Path) -> None:
    evaluation = begun(tmp_path, "first")
    with evaluation:
        evaluation.begin(dict(reversed(ASKED.items())))
        with pytest.raises(Refusal, match=r'prompts was .*"a".*, is .*"b"') as caught:
            evaluation.begin({**ASKED, "prompts": {"hash": "b", "num": 2}})
        assert caught.value.code == "evaluation.changed"
        evaluation.learn("teacher", {"weights": "a"})
        evaluation.learn("teacher", {"weights": "a"})
        with pytest.raises(Refusal, match=r'weights of teacher was "a", is "b"'):
            evaluation.learn("teacher", {"weights": "b"})
        evaluation.begin(ASKED)
    assert evaluation.asked() == {**FORMAT, **ASKED, "facts": {"teacher": {"weights": "a"}}}


def test_without_a_name_a_stopped_evaluation_of_the_same_question_goes_on(tmp_path: Path) -> None:
    stopped = begun(tmp_path, "stopped")
    assert open_evaluation(tmp_path, None, ASKED).name == "stopped"
    assert open_evaluation(tmp_path, None, {**ASKED, "seed": 1}).name != "stopped"
    assert open_evaluation(tmp_path, "other", ASKED).name == "other"
    with stopped:
        stopped.write_result({"kind": "worth"})
    assert open_evaluation(tmp_path, None, ASKED).name != "stopped"
    assert open_evaluation(tmp_path, "stopped", ASKED).finished


@pytest.mark.usefixtures("impatient")
def test_one_writer_at_a_time_and_names_stay_inside(tmp_path: Path) -> None:
    with begun(tmp_path, "first"), pytest.raises(Refusal, match="first is in use by process") as refused:
        Evaluation(tmp_path / "evaluations" / "first").__enter__()
    assert (refused.value.code, refused.value.parameters["pid"]) == ("run.locked", os.getpid())
    with pytest.raises(UsageError, match="exists"):
        Evaluation.create(tmp_path, "first")
    for hostile in ("../x", ".x", ""):
        with pytest.raises(UsageError):
            Evaluation.create(tmp_path, hostile)
        with pytest.raises(UsageError):
            Evaluation.find(tmp_path, hostile or "none")


def test_only_evaluations_are_listed_and_a_broken_one_says_so(tmp_path: Path) -> None:
    assert list_evaluations(tmp_path) == []
    evaluation = begun(tmp_path, "first")
    Evaluation.create(tmp_path, "never-begun")
    (tmp_path / "evaluations" / "link").symlink_to(evaluation.path)
    assert [found.name for found in list_evaluations(tmp_path)] == ["first"]
    evaluation.asked_path.write_text("[1")
    with pytest.raises(DataError, match="does not contain what Limbeck wrote") as broken:
        evaluation.asked()
    assert broken.value.code == "evaluation.unreadable"
    assert broken.value.parameters["file"] == evaluation.asked_path
