"""What a run reads before its first step follows from the files as they are now, and nothing is remembered of them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from builders import CHATML, prompt_row, save_model, tiny_llama, tiny_tokenizer, write_rows
from limbeck import api
from limbeck.driver import resume_run, train_run
from limbeck.errors import DataError, Refusal
from limbeck.recipe.evaluation import EvaluationOptions
from limbeck.recipe.files import load_recipe
from limbeck.runs.store import Run
from limbeck.training.material import prepare_material
from pairs import write_pair

ROWS = [prompt_row(f"question {number} about one word", answer="one two") for number in range(12)]


def ids_of(recipe, *overrides):
    material = prepare_material(load_recipe(recipe, list(overrides), {}).recipe)
    return [prompt.ids for prompt in (*material.train.prompts, *material.held_out.prompts)]


def forget_merges(folder: Path, num: int) -> None:
    """The same tokens under the same ids, but the last merges are gone, so that texts are cut otherwise."""
    for name in ("student", "teacher"):
        path = folder / name / "tokenizer.json"
        settings = json.loads(path.read_text(encoding="utf-8"))
        settings["model"]["merges"] = settings["model"]["merges"][:-num]
        path.write_text(json.dumps(settings), encoding="utf-8")


@pytest.mark.report("DL-11")
def test_each_change_of_what_is_read_leads_to_other_ids_and_no_change_to_the_same(tmp_path):
    recipe = write_pair(tmp_path, rows=ROWS)
    seen = [ids_of(recipe)]
    assert ids_of(recipe) == seen[0]
    file = tmp_path / "rows.jsonl"
    before = file.stat()
    file.write_text(file.read_text(encoding="utf-8").replace("question 3 about one", "question 3 about two"), "utf-8")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    seen.append(ids_of(recipe))
    template = tmp_path / "own.jinja"
    for source in (CHATML, CHATML.replace("<|im_end|>' + '\n'", "<|im_end|>' + ' '")):
        template.write_text(source, encoding="utf-8")
        seen.append(ids_of(recipe, "template=own.jinja"))
    assert seen.pop(2) == seen[1], "the template that the student has, from a file"
    tokenizer = tiny_tokenizer(chat_template=CHATML.replace("assistant\n", "assistant \n"))
    for name in ("student", "teacher"):
        tokenizer.save_pretrained(tmp_path / name)
    seen.append(ids_of(recipe))
    forget_merges(tmp_path, 20)
    seen.append(ids_of(recipe))
    assert len({tuple(sorted(ids)) for ids in seen}) == len(seen) == 5
    longest = max(map(len, seen[-1]))
    with pytest.raises(DataError, match="longer than max_prompt_tokens"):
        ids_of(recipe, f"max_prompt_tokens={longest - 1}")


@pytest.mark.report("DL-11")
def test_what_is_learnt_follows_the_setting_of_now(tmp_path):
    turns = [("user", "one"), ("assistant", "two"), ("user", "three"), ("assistant", "four")]
    messages = [{"role": role, "content": text} for role, text in turns]
    rows = [{"messages": [*messages[:2], {"role": "user", "content": f"{n}"}, messages[3]]} for n in range(9)]
    recipe = write_pair(tmp_path, rows=rows, route="supervised", held_out=2)
    learnt = []
    for which in ("last_turn", "all_turns", "last_turn"):
        targets = prepare_material(load_recipe(recipe, [f"train_on={which}"], {}).recipe).targets
        learnt.append(sorted(targets.answer_to(prompt) for prompt in targets.prompts))
    assert [len(answers) for answers in learnt] == [7, 14, 7]
    assert learnt[0] == learnt[2]


@pytest.mark.report("DL-11")
def test_a_run_whose_tokenizer_changed_under_its_name_does_not_go_on(tmp_path):
    def dies(event):
        if event["kind"] == "evaluation" and event["step"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_run(load_recipe(write_pair(tmp_path, rows=ROWS), [], {}), dies)
    forget_merges(tmp_path, 20)
    with pytest.raises(Refusal, match="its prompts changed"):
        resume_run(Run.open(tmp_path / "runs" / "tiny"))


@pytest.mark.report("DL-11")
def test_a_run_whose_file_of_held_out_prompts_changed_does_not_go_on(tmp_path):
    def dies(event):
        if event["kind"] == "evaluation" and event["step"] == 2:
            raise KeyboardInterrupt

    held = write_rows(tmp_path / "held.jsonl", [prompt_row("held out")])
    with pytest.raises(KeyboardInterrupt):
        train_run(load_recipe(write_pair(tmp_path, rows=ROWS, held_out="held.jsonl"), [], {}), dies)
    write_rows(held, [prompt_row("held oat")])
    with pytest.raises(Refusal, match="its prompts changed"):
        resume_run(Run.open(tmp_path / "runs" / "tiny"))


@pytest.mark.report("DL-11")
def test_answers_of_an_evaluation_are_taken_over_only_to_the_same_ids(tmp_path):
    recipe, options = write_pair(tmp_path, rows=ROWS, held_out=4), EvaluationOptions(max_tokens=4, grader="contains")

    def asked():
        said = []
        return api.worth(recipe, options, listen=lambda event: said.append(event["phase"])), " ".join(said)

    first, _ = asked()
    again, said = asked()
    assert said.count(f"all answers are reused from the evaluation {first.name}") == 2
    assert again.read_answers("student") == first.read_answers("student")
    write_rows(tmp_path / "rows.jsonl", [{**row, "answer": "three", "topic": "new"} for row in ROWS])
    corrected, said = asked()
    assert said.count("all answers are reused from the evaluation") == 2
    rows = corrected.read_answers("student")
    assert {(row["reference"], row["labels"]["topic"]) for row in rows} == {("three", "new")}
    forget_merges(tmp_path, 20)
    other, said = asked()
    assert "answers are reused" not in said
    lengths = [sum(row["num_prompt_tokens"] for row in each.read_answers("student")) for each in (first, other)]
    assert lengths[1] > lengths[0]


@pytest.mark.report("LT-04")
def test_a_local_teacher_without_room_for_its_answer_is_refused_before_a_weight_is_read(tmp_path):
    """Cross-entropy asks the teacher by its own tokenizer; examples make its prompt longer than the student's."""
    teacher = tiny_llama(tiny_tokenizer(), max_positions=64)
    settings = {"rows": ROWS, "teacher": teacher, "route": "off-policy", "max_teacher_tokens": 8}
    recipe = load_recipe(write_pair(tmp_path, **settings), [], {}).recipe
    prepare_material(recipe)
    told = r"max_teacher_tokens \(60\).*teacher has 64 positions.*max_teacher_tokens to at most \d\d\b"
    with pytest.raises(ValueError, match=told):
        prepare_material(recipe.model_copy(update={"max_teacher_tokens": 60}))
    shown = write_rows(tmp_path / "examples.jsonl", [prompt_row(f"shown {n}", answer="one two " * 9) for n in range(2)])
    with pytest.raises(ValueError, match=r"A prompt of 1\d\d tokens and .*teacher has 64 positions"):
        prepare_material(recipe.model_copy(update={"teacher_examples": str(shown)}))
    save_model(tmp_path / "teacher", tiny_llama(tiny_tokenizer(), max_positions=512), tiny_tokenizer())
    prepare_material(recipe.model_copy(update={"teacher_examples": str(shown)}))
