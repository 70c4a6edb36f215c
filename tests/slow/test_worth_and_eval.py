"""`limbeck worth` and `limbeck eval` on the real pair and three graded tasks on the CPU: few prompts, short answers."""

from __future__ import annotations

import json

import pytest
import reasoning_gym

from limbeck.cli import run_cli

pytestmark = pytest.mark.slow
TASKS = ("chain_sum", "letter_counting", "spell_backward")
NUM_EACH = 8


@pytest.fixture(scope="module")
def held_out(tmp_path_factory):
    """Questions with what their own scorers need."""
    path = tmp_path_factory.mktemp("tasks") / "tasks.jsonl"
    rows = [
        {
            "prompt": entry["question"], "answer": entry["answer"], "grader": "reasoning-gym", "task": task,
            "question": entry["question"], "metadata": entry["metadata"],
        }
        for task in TASKS
        for entry in reasoning_gym.create_dataset(task, size=NUM_EACH, seed=1)
    ]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def result_of(capsys, *arguments):
    assert run_cli([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_worth_and_eval_from_end_to_end(cache, held_out, tmp_path, capsys):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"student: {cache / 'student'}\nteacher: {cache / 'teacher'}\nworkspace: {tmp_path}\n"
        f"prompts: {cache / 'prompts' / 'on_policy.jsonl'}\nheld_out: {held_out}\nmax_practice_tokens: 24\n"
    )
    before = result_of(capsys, "worth", recipe, "--by", "task")
    assert before["kind"] == "worth"
    assert before["measure"]["name"] == "reasoning-gym"
    assert before["verdict"]["decision"] in ("distil", "don't", "not sure")
    for model in before["models"]:
        assert (model["num_answered"], model["num_not_graded"]) == (24, 0)
        assert model["score"]["n"] == 24
        assert model["tokens_per_s"] > 1
    assert {each["value"]: each["difference"]["n"] for each in before["slices"]} == dict.fromkeys(TASKS, NUM_EACH)
    assert before["models"][0]["divergence_to_teacher"]["estimate"] > 0.01
    roles = [f"{role}={cache / name}" for role, name in (("teacher", "teacher"), ("student", "student"))]
    roles.append(f"distilled={cache / 'student'}")
    after = result_of(
        capsys, "eval", *roles, "--prompts", held_out, "--workspace", tmp_path, "--max-tokens", 24, "--slots", 32
    )
    assert after["kind"] == "after"
    scores = {model["alias"]: model["score"] for model in after["models"]}
    assert scores["distilled"] == scores["student"]
    assert scores["teacher"] == before["models"][1]["score"]
    assert after["gap_recovered"] is None or after["gap_recovered"]["estimate"] == 0
