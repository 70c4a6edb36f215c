"""Evaluations on disk, with tiny models: the same question to all, nothing filled in, and a verdict that is earned."""

from __future__ import annotations

import json

import pytest

from builders import CHATML_WITH_DEFAULT_SYSTEM, OTHER_CORPUS, prompt_row, save_model, tiny_llama, tiny_tokenizer
from builders import write_rows as write_lines
from limbeck import api
from limbeck.cli import run_cli
from limbeck.data.prompt import Message, PromptRow
from limbeck.errors import ModelError, Refusal, UsageError
from limbeck.evaluation.answering.evaluated import unique_prompts
from limbeck.recipe.evaluation import EvaluationOptions
from limbeck.runs.evaluations import Evaluation, list_evaluations
from pairs import write_pair

SHORT = EvaluationOptions(max_tokens=5, slots=64)
TEXTS = [f"question {number} about {'refunds' if number % 2 else 'dates'}" for number in range(200)]


def pair_with(folder, answers=None, num=200, **options):
    """A pair whose held-out file has these answers beside its prompts."""
    recipe = write_pair(folder, held_out="held.jsonl", **options)
    topics = ["refunds" if number % 2 else "dates" for number in range(num)]
    given = [{} if answers is None else {"answer": answer} for answer in answers or [None] * num]
    rows = [prompt_row(text, topic=topic, **more) for text, topic, more in zip(TEXTS, topics, given, strict=False)]
    write_lines(folder / "held.jsonl", rows)
    return recipe


def answers_of(evaluation, alias):
    return [row["answer"] for row in evaluation.read_answers(alias)]


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """A pair that has answered 200 prompts without reference answers."""
    folder = tmp_path_factory.mktemp("asked")
    recipe = pair_with(folder)
    return folder, recipe, api.worth(recipe, SHORT)


def plant(asked, num_teacher, num_student):
    """References that the teacher's answer meets on so many prompts, then the student's on so many; then nobody's."""
    folder, recipe, first = asked
    teacher, student = answers_of(first, "teacher"), answers_of(first, "student")
    planted = [
        teacher[row] if row < num_teacher else student[row] if row < num_teacher + num_student else "nobody says this"
        for row in range(200)
    ]
    assert sum(one == two for one, two in zip(teacher, student, strict=True)) == 0
    pair_with(folder, planted)
    return api.worth(recipe, EvaluationOptions(max_tokens=5, slots=64, grader="exact", by=("topic",)))


def test_without_references_likeness_is_shown_and_nothing_is_decided(asked):
    result = asked[2].result()
    assert result["measure"]["kind"] == "text"
    assert result["verdict"] is None
    assert result["models"][0]["role"] == "student"
    assert 0 < result["models"][0]["score"]["estimate"] < 1
    assert result["models"][1]["score"] is None, "the teacher is not compared with itself"
    assert result["models"][0]["divergence_to_teacher"]["estimate"] > 0
    assert "--grader" in result["next_step"]["command"]


def test_a_planted_gap_of_20_points_at_200_prompts_says_distil(asked):
    evaluation = plant(asked, 60, 20)
    result = evaluation.result()
    assert result["verdict"]["decision"] == "distil"
    assert result["verdict"]["gap"]["estimate"] == pytest.approx(0.2)
    assert result["next_step"]["command"] == f"limbeck train {asked[1]}"
    (compared,) = result["comparisons"]
    assert [compared[name]["estimate"] for name in ("first_better", "second_better", "both_bad")] == [0.3, 0.1, 0.6]
    assert {each["value"]: each["difference"]["n"] for each in result["slices"]} == {"refunds": 100, "dates": 100}
    # the question is the same as before, so nobody answered again
    assert answers_of(evaluation, "teacher") == answers_of(asked[2], "teacher")
    assert [row["seconds"] for row in evaluation.read_answers("teacher")] == [
        row["seconds"] for row in asked[2].read_answers("teacher")
    ]


@pytest.mark.parametrize(("num_teacher", "num_student", "decision"), [(30, 30, "don't"), (40, 30, "not sure")])
def test_a_teacher_that_is_no_better_does_not_say_distil(asked, num_teacher, num_student, decision):
    verdict = plant(asked, num_teacher, num_student).result()["verdict"]
    assert verdict["decision"] == decision
    assert (verdict["more_prompts"] is None) == (decision == "don't")


def test_a_teacher_that_is_the_student_says_dont(tmp_path):
    recipe = pair_with(tmp_path, ["nobody says this"] * 40, num=40, teacher=tiny_llama(tiny_tokenizer(), scale=4.0))
    result = api.worth(recipe, EvaluationOptions(max_tokens=5, slots=64, grader="exact")).result()
    assert result["verdict"]["decision"] == "don't"
    assert result["models"][0]["divergence_to_teacher"]["estimate"] == pytest.approx(0, abs=1e-6)


@pytest.mark.report("EV-03")
def test_a_killed_evaluation_asks_only_what_is_open_and_ends_as_if_undisturbed(tmp_path, monkeypatch):
    recipe = pair_with(tmp_path, ["x"] * 20, num=20)
    options = EvaluationOptions(max_tokens=5, slots=2, grader="contains")
    append, written = Evaluation.append_answer, []

    def killed(self, alias, row):
        if len(written) == 29:
            raise KeyboardInterrupt
        written.append((alias, row["key"]))
        append(self, alias, row)

    monkeypatch.setattr(Evaluation, "append_answer", killed)
    with pytest.raises(KeyboardInterrupt):
        api.worth(recipe, options)
    (stopped,) = list_evaluations(tmp_path)
    assert not stopped.finished

    def watched(self, alias, row):
        written.append((alias, row["key"]))
        append(self, alias, row)

    monkeypatch.setattr(Evaluation, "append_answer", watched)
    done = api.worth(recipe, options)
    assert done.name == stopped.name
    assert len(written) == len(set(written)) == 40
    (tmp_path / "again").mkdir()
    undisturbed = api.worth(pair_with(tmp_path / "again", ["x"] * 20, num=20), options).result()
    for name in ("comparisons", "verdict", "settings"):
        assert undisturbed[name] == done.result()[name]
    assert [each["score"] for each in undisturbed["models"]] == [each["score"] for each in done.result()["models"]]


@pytest.mark.report("EV-03")
def test_failed_answers_are_counted_and_scores_say_of_how_many(tmp_path):
    recipe = pair_with(tmp_path, ["x"] * 20, num=20)
    options = EvaluationOptions(name="first", max_tokens=5, grader="contains")
    evaluation = api.worth(recipe, options)
    rows = evaluation.read_answers("student")
    lost = {"answer": None, "ids": None, "length": None, "seconds": None, "engine_s": None, "failure": "server failed"}
    with evaluation:
        evaluation.write_answers(
            "student", [{**row, **(lost if number < 6 else {})} for number, row in enumerate(rows)]
        )
    result = api.worth(recipe, options).result()  # all is there, so it is graded and counted again
    student = result["models"][0]
    assert [student[name] for name in ("num_asked", "num_answered", "num_failed", "num_not_graded")] == [20, 14, 6, 6]
    assert student["score"]["n"] == 14
    (compared,) = result["comparisons"]
    assert (compared["difference"]["n"], compared["num_asked"], compared["num_not_graded"]) == (14, 20, [0, 6])
    assert any("failed requests, which have no answer: 6 of 20." in note for note in result["notes"])
    assert evaluation.read_answers("student")[0]["grade_reason"] == "server failed"


def test_a_changed_question_or_model_is_refused(tmp_path):
    recipe = pair_with(tmp_path, ["x"] * 8, num=8)
    api.worth(recipe, EvaluationOptions(name="first", max_tokens=5, grader="exact"))
    with pytest.raises(Refusal, match=r"settings was .*\"max_tokens\": 5.*, is .*\"max_tokens\": 6"):
        api.worth(recipe, EvaluationOptions(name="first", max_tokens=6, grader="exact"))
    save_model(tmp_path / "student", tiny_llama(tiny_tokenizer(), seed=5, scale=4.0), tiny_tokenizer())
    with pytest.raises(Refusal, match="weights of student was"):
        api.worth(recipe, EvaluationOptions(name="first", max_tokens=5, grader="exact"))
    with pytest.raises(ModelError, match="--max-tokens"):
        api.worth(recipe, EvaluationOptions(max_tokens=600))


@pytest.mark.report("EV-01", "EV-04")
def test_models_alike_get_the_same_text_and_others_are_flagged(tmp_path):
    tokenizer = tiny_tokenizer()
    save_model(tmp_path / "base", tiny_llama(tokenizer, scale=4.0), tokenizer)
    other = tiny_tokenizer(chat_template=CHATML_WITH_DEFAULT_SYSTEM)
    save_model(tmp_path / "tuned", tiny_llama(other, seed=1, scale=4.0), other)
    foreign = tiny_tokenizer(corpus=OTHER_CORPUS, chat_template=CHATML_WITH_DEFAULT_SYSTEM)
    save_model(tmp_path / "foreign", tiny_llama(foreign, seed=2, scale=4.0), foreign)
    rows = [prompt_row(text, ideal=[f"SECRET {text}", "other"]) for text in TEXTS[:10]]
    file = write_lines(tmp_path / "p.jsonl", rows)
    models = [f"student={tmp_path / 'base'}", str(tmp_path / "tuned"), f"teacher={tmp_path / 'foreign'}"]
    evaluation = api.evaluate(*models, prompts=file, workspace=tmp_path, options=SHORT)
    result = evaluation.result()
    prompts = {
        alias: [row["prompt"] for row in evaluation.read_answers(alias)] for alias in ("student", "model-2", "teacher")
    }
    assert prompts["student"] == prompts["model-2"] != prompts["teacher"]
    assert all(
        evaluation.read_answers(alias)[0]["messages"] == [{"role": "user", "content": TEXTS[0]}] for alias in prompts
    )
    assert "SECRET" not in json.dumps(prompts)
    notes = " ".join([*result["notes"], *(note for each in result["comparisons"] for note in each["notes"])])
    for flagged in (
        "model-2: its own chat template is not used",
        "teacher: it tokenises differently from student",
        "different text for 10 prompts",
    ):
        assert flagged in notes
    assert {model["alias"]: model["divergence_to_teacher"] for model in result["models"]} == dict.fromkeys(prompts)
    assert result["settings"]["temperature"] == 0
    with pytest.raises(UsageError, match="without prompts"):
        api.evaluate(*models, workspace=tmp_path)


@pytest.mark.report("GS-03")
def test_sampled_answers_have_n_rows_each_and_a_score_for_the_prompt(tmp_path):
    recipe = pair_with(tmp_path, ["a"] * 6, num=6)
    options = EvaluationOptions(max_tokens=5, temperature=1.0, samples=3, grader="contains")
    evaluation = api.worth(recipe, options)
    rows = evaluation.read_answers("student")
    assert [row["sample"] for row in rows] == [0, 1, 2] * 6
    assert len({row["answer"] for row in rows[:3]}) > 1
    (compared,) = evaluation.result()["comparisons"]
    assert compared["difference"]["n"] == 6
    assert answers_of(api.worth(recipe, EvaluationOptions(**{**vars(options), "slots": 3})), "student") == answers_of(
        evaluation, "student"
    )


def test_a_run_is_evaluated_with_its_own_student_and_teacher_and_the_record_is_found(tmp_path, capsys):
    recipe = pair_with(tmp_path, ["x"] * 12, num=12, grader="contains", keep="last")
    untold = api.train(recipe, overrides=["name=untold", "steps=1"])
    assert untold.read_events()[1]["worth"] is None
    worth = api.worth(recipe, EvaluationOptions(price=("teacher=0.5,2", "student=0.1,0.2")))
    models = {model["alias"]: model for model in worth.result()["models"]}
    read, written = (
        sum(row[name] for row in worth.read_answers("teacher")) / 12 for name in ("num_prompt_tokens", "length")
    )
    assert models["teacher"]["cost_per_1000"] == {"amount": pytest.approx(0.5 * read + 2 * written), "currency": "USD"}
    run = api.train(recipe)
    start = next(event for event in run.read_events() if event["kind"] == "start")
    assert start["worth"]["evaluation"] == worth.name
    assert start["worth"]["decision"] == worth.result()["verdict"]["decision"]
    for done, told in ((untold, "No baseline check yet"), (run, f"Baseline check {worth.name}: ")):
        assert any(told in event["text"] for event in done.read_events() if event["kind"] == "note")
    assert run_cli(["eval", "tiny", "--workspace", str(tmp_path), "--json", "--fail-under", "net=-100"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (result["event"], result["kind"]) == ("result", "after")
    assert [model["role"] for model in result["models"]] == ["student", "teacher", "distilled"]
    assert [(each["first"], each["second"]) for each in result["comparisons"]] == [
        ("distilled", "student"), ("teacher", "distilled"), ("teacher", "student"),
    ]  # fmt: skip
    assert result["gap_recovered"] is None
    assert result["gap_recovered_reason"].startswith("undefined")
    assert run_cli(["eval", "tiny", "--workspace", str(tmp_path), "--fail-under", "net=100"]) == 4
    told = capsys.readouterr()
    assert "evaluation.below" in told.err
    assert "Did it work?" in told.out


def test_a_repeated_prompt_is_asked_and_counted_once(tmp_path):
    recipe = write_pair(tmp_path, held_out="held.jsonl")
    texts = [TEXTS[0], TEXTS[1], TEXTS[0], TEXTS[2], TEXTS[0]]
    answers = ["one", "two", "one", "three", "uno"]
    rows = [prompt_row(text, answer=answer) for text, answer in zip(texts, answers, strict=True)]
    write_lines(tmp_path / "held.jsonl", rows)
    evaluation = api.worth(recipe, SHORT)
    result = evaluation.result()
    assert result["prompts"]["num"] == 3
    assert [model["num_asked"] for model in result["models"]] == [3, 3]
    assert result["comparisons"][0]["difference"]["n"] == 3, "an interval over five would be too narrow"
    assert "Rows that repeat the prompt of another row: 2 of 5. Each prompt is evaluated once." in result["notes"]
    assert any("different reference answers: 1" in note for note in result["notes"])


def test_each_reference_of_a_repeated_prompt_is_right():
    messages = (Message("user", "Say yes."),)
    rows = [
        PromptRow(messages, reference, f"rows.jsonl:{line}", others=others)
        for line, (reference, others) in enumerate([(None, ()), ("yes", ("yeah",)), ("aye", ("yes",))], start=1)
    ]
    (row,), notes = unique_prompts(rows)
    assert (row.reference, row.others, row.source) == ("yes", ("yeah", "aye"), "rows.jsonl:1")
    assert len(notes) == 2


def test_the_command_for_more_has_all_that_was_given(tmp_path):
    recipe = pair_with(tmp_path, num=10)
    options = EvaluationOptions(max_tokens=5, slots=64, name="named", by=("topic",), price=("teacher=0.3,1.2",), seed=3)
    result = api.worth(recipe, options, overrides=["beta=0.5"]).result()
    assert result["next_step"]["command"] == (
        f"limbeck worth {recipe} --set beta=0.5 --max-tokens 5 --seed 3 --slots 64 --by topic "
        "--price teacher=0.3,1.2 --grader NAME"
    )


def test_a_role_that_there_is_none_of_is_named(asked):
    folder = asked[0]
    with pytest.raises(UsageError, match=r"techer=.*teacher, student, distilled") as caught:
        api.evaluate("techer=x", f"student={folder / 'student'}", prompts=folder / "held.jsonl", workspace=folder)
    assert caught.value.code == "evaluation.role"


def test_a_note_that_holds_for_several_models_is_told_once(tmp_path):
    recipe = pair_with(tmp_path, num=6, tokenizer=tiny_tokenizer(chat_template=CHATML_WITH_DEFAULT_SYSTEM))
    notes = [note for note in api.worth(recipe, SHORT).result()["notes"] if "adds a system message" in note]
    assert len(notes) == 1
    assert notes[0].startswith("student, teacher: ")


def test_where_both_are_bad_the_next_step_is_answers_of_ones_own(tmp_path):
    result = api.worth(pair_with(tmp_path, ["nobody says this"] * 60, num=60), SHORT).result()
    assert result["verdict"]["decision"] == "don't"
    assert "human-written answers" in result["next_step"]["text"]
