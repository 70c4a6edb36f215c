"""One text for one prompt, wherever it is read: by student and teacher, in training, evaluation and export."""

from __future__ import annotations

import pytest
import transformers

from builders import CHATML, CHATML_WITH_DEFAULT_SYSTEM, prompt_row, tiny_tokenizer, write_rows
from limbeck import api
from limbeck.cli import run_cli
from limbeck.driver import train_run
from limbeck.errors import DataError
from limbeck.recipe.evaluation import EvaluationOptions
from limbeck.recipe.files import load_recipe
from limbeck.rollouts.engine import Engine
from limbeck.teachers.local import LocalTeacher
from limbeck.training.material import prepare_material
from pairs import write_pair

SUPERVISED = {"route": "supervised"}
# long enough that a teacher drawn at random ends some of its answers by itself
OFF_POLICY = {"route": "off-policy", "max_teacher_tokens": 200, "answers_per_prompt": 4, "teacher_temperature": 1.0}
STRICT = CHATML.replace(
    "{% for message in messages %}",
    "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}",
)


def run(recipe, *overrides):
    return train_run(load_recipe(recipe, list(overrides), {}))


def of_kind(run, kind):
    return [event for event in run.read_events() if event["kind"] == kind]


def notes_of(run):
    return [event["text"] for event in of_kind(run, "note")]


def material_of(recipe, *overrides):
    return prepare_material(load_recipe(recipe, list(overrides), {}).recipe)


def systems(num, word="question"):
    """Rows without a system turn, with an empty one, and with one of their own."""
    return [
        prompt_row(f"{word} {number}", system=(None, "", "Be brief.")[number % 3], answer="ten")
        for number in range(num)
    ]


def rows_of(batch):
    """The whole rows of a batch, with what they begin with."""
    rows = [ids[:length] for ids, length in zip(batch.ids_BT.tolist(), batch.length_B.tolist(), strict=True)]
    if batch.context is None:
        return rows
    beginnings = rows_of(batch.context.batch)
    return [beginnings[place] + row for place, row in zip(batch.context.row_B.tolist(), rows, strict=True)]


@pytest.fixture
def seen(monkeypatch):
    """What is asked of the writers, by the name of the model, and what the teacher reads before its answers."""
    found = {"student": set(), "teacher": set(), "model": set(), "scored": set()}
    own_write, own_score = Engine.stream, LocalTeacher.score

    def write(self, requests, sampling):
        found.setdefault(self.model.name.rpartition("/")[2], set()).update(each.prompt_ids for each in requests)
        return own_write(self, requests, sampling)

    def score(self, batch):
        nums = batch.row_N.bincount(minlength=len(batch.length_B)).tolist()
        found["scored"].update(tuple(row[: len(row) - num]) for row, num in zip(rows_of(batch), nums, strict=True))
        return own_score(self, batch)

    monkeypatch.setattr(Engine, "stream", write)
    monkeypatch.setattr(LocalTeacher, "score", score)
    return found


WITH_BOS = {"bos_token": "<|endoftext|>", "writes_bos": True}


@pytest.mark.parametrize(
    "tokenizer",
    [
        pytest.param({"chat_template": CHATML_WITH_DEFAULT_SYSTEM}, marks=pytest.mark.report("CT-01")),
        pytest.param({"chat_template": "{{ bos_token }}" + CHATML, **WITH_BOS}, marks=pytest.mark.report("CT-07")),
        pytest.param({"chat_template": CHATML, **WITH_BOS}, marks=pytest.mark.report("CT-07")),
    ],
    ids=["default system", "start token of the template", "start token of the tokenizer"],
)
def test_the_ids_of_a_prompt_are_the_same_in_every_place(tmp_path, seen, tokenizer):
    tokenizer = tiny_tokenizer(**tokenizer)
    write_rows(tmp_path / "held.jsonl", systems(6, "held"))
    settings = {"tokenizer": tokenizer, "rows": systems(6), "held_out": "held.jsonl", "prompts_per_step": 6}
    practised = run(write_pair(tmp_path, **settings))
    train, held = (
        {row["source"]: tuple(row["ids"]) for row in practised.read_answers(f"prompts-{part}")}
        for part in ("train", "held-out")
    )
    assert set(train.values()) | set(held.values()) == seen["scored"]
    assert set(train.values()) | set(held.values()) <= seen["student"]
    assert set(held.values()) <= seen["teacher"]
    given = run(write_pair(tmp_path, **settings, **SUPERVISED), "name=given")
    assert {row["source"]: tuple(row["ids"]) for row in given.read_answers("prompts-train")} == train
    for asked in seen.values():
        asked.clear()
    api.evaluate(practised.name, workspace=tmp_path)
    assert seen["teacher"] >= set(held.values()) <= seen["student"]
    exported = transformers.AutoTokenizer.from_pretrained(api.export(practised.path, output=tmp_path / "out"))
    for number, row in enumerate(systems(6), start=1):
        turns = exported.apply_chat_template(row["prompt"], add_generation_prompt=True, return_dict=False)
        assert tuple(turns) == train[f"rows.jsonl:{number}"]
        text = tokenizer.decode(turns)
        if tokenizer.bos_token is None:
            # what the template adds stands once, and an empty system text stays as it was given
            assert text.count("You are a helpful assistant.") == (number % 3 == 1)
            assert text.startswith("<|im_start|>system\n<|im_end|>") == (number % 3 == 2)
        else:
            assert (text.count("<|endoftext|>"), turns[0]) == (1, tokenizer.bos_token_id)
    if tokenizer.bos_token is None:
        assert any("adds a system message to 2 rows" in note for note in notes_of(practised))
        learnt = [tokenizer.decode(ids) for ids in material_of(tmp_path / "recipe.yaml").targets.answers.values()]
        assert learnt == ["ten<|im_end|>"] * 6


# ------------------------------------------------------------------------------------------------ no template, a file


@pytest.mark.report("CT-05")
@pytest.mark.parametrize("verb", ["check", "train", "worth"])
def test_a_base_model_without_a_template_is_named_before_a_weight_is_read(tmp_path, capsys, verb):
    path = write_pair(tmp_path, tokenizer=tiny_tokenizer(chat_template=None))
    for model in ("student", "teacher"):
        (tmp_path / model / "model.safetensors").write_bytes(b"no weights")
    assert run_cli([verb, str(path)]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "recipe.template-missing" in told
    assert "student has no chat template" in told
    assert "template: FILE with a Jinja template, or template: none if each prompt is one plain text" in told


@pytest.mark.report("CT-05")
@pytest.mark.parametrize("settings", [SUPERVISED, {}, OFF_POLICY], ids=["supervised", "on-policy", "off-policy"])
def test_plain_texts_are_read_untouched_without_a_template(tmp_path, settings):
    tokenizer = tiny_tokenizer(chat_template=None, eos_token="<|endoftext|>")
    rows = [{"prompt": f"  one plus {number} is", "completion": f" {number + 1}"} for number in range(12)]
    done = run(write_pair(tmp_path, tokenizer=tokenizer, rows=rows, template="none", **settings))
    stored = done.read_answers("prompts-train")
    assert all(row["prompt"] == rows[int(row["source"].split(":")[1]) - 1]["prompt"] for row in stored)
    assert all(row["ids"] == tokenizer(row["prompt"])["input_ids"] for row in stored)
    if settings is SUPERVISED:
        targets = material_of(tmp_path / "recipe.yaml").targets
        whole = [tokenizer.decode([*prompt.ids, *targets.answer_to(prompt)]) for prompt in targets.prompts]
        texts = [f"{row['prompt']}{row['completion']}<|endoftext|>" for row in rows]
        assert set(whole) <= set(texts)
    saved = transformers.AutoTokenizer.from_pretrained(done.model_path)
    asked = [{"role": "user", "content": stored[0]["prompt"]}]
    assert saved.apply_chat_template(asked, add_generation_prompt=True, return_dict=False) == stored[0]["ids"]
    result = api.evaluate(done.name, workspace=tmp_path, options=EvaluationOptions(max_tokens=8)).result()
    assert result["prompts"]["num"] == len(done.read_answers("prompts-held-out"))


@pytest.mark.report("CT-06")
def test_the_template_of_a_file_is_in_everything_that_a_run_leaves(tmp_path):
    template = CHATML.replace("<|im_end|>", "<|endoftext|>")
    (tmp_path / "chat.jinja").write_text(template)
    base = {"tokenizer": tiny_tokenizer(chat_template=None), "template": "chat.jinja"}
    rows = [prompt_row("What?", system="Be brief."), *systems(11)]
    full = run(write_pair(tmp_path, **base, rows=rows), "name=full", "held_out=2")
    lora = run(tmp_path / "recipe.yaml", "name=lora", "held_out=2", "lora.rank=2")
    folders = [full.model_path, lora.model_path, lora.adapter_path]
    folders += [api.export(full.path, "merged", tmp_path / "a"), api.export(lora.path, "merged", tmp_path / "b")]
    folders += [api.export(lora.path, "adapter", tmp_path / "c")]
    stored = [row for part in ("train", "held-out") for row in full.read_answers(f"prompts-{part}")]
    ids = next(row["ids"] for row in stored if row["source"] == "rows.jsonl:1")
    stop_ids = of_kind(full, "start")[0]["stop_ids"]
    assert set(tiny_tokenizer().convert_ids_to_tokens(stop_ids)) == {"<|im_end|>", "<|endoftext|>"}
    for folder in folders:  # by transformers alone
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        assert tokenizer.chat_template == template
        assert tokenizer.apply_chat_template(rows[0]["prompt"], add_generation_prompt=True, return_dict=False) == ids
        assert transformers.GenerationConfig.from_pretrained(folder).eos_token_id == stop_ids


# -------------------------------------------------------------------------------------------------- what is supervised


@pytest.mark.report("CT-10")
def test_a_template_without_markers_of_the_answer_loses_no_supervised_token(tmp_path):
    tokenizer = tiny_tokenizer(chat_template=CHATML_WITH_DEFAULT_SYSTEM)
    assert "generation %}" not in CHATML_WITH_DEFAULT_SYSTEM
    settings = {"tokenizer": tokenizer, "rows": systems(8), "held_out": 2, "steps": 2, "prompts_per_step": 6}
    done = run(write_pair(tmp_path, **settings, **SUPERVISED))
    num_tokens = len(tokenizer("ten", add_special_tokens=False)["input_ids"]) + 1
    assert [event["num_completion_tokens"] for event in of_kind(done, "step")] == [6 * num_tokens] * 2
    assert f"Training uses 6 reference answers with {6 * num_tokens} tokens, stop tokens included." in notes_of(done)


TURNS = [("user", "a"), ("assistant", "first"), ("user", "b"), ("assistant", "second"), ("user", "c")]
TALK = [{"role": role, "content": text} for role, text in (*TURNS, ("assistant", "third"))]


@pytest.mark.report("DC-08")
@pytest.mark.parametrize("where", ["supervised", "own answers"])
@pytest.mark.parametrize(("which", "learnt"), [("last_turn", ["third"]), ("all_turns", ["first", "second", "third"])])
def test_the_turns_that_are_asked_for_and_no_others_are_learnt_each_with_its_end(
    tmp_path, capsys, where, which, learnt
):
    rows = [{"messages": TALK}, *systems(6)]
    write_rows(tmp_path / "held.jsonl", systems(2, "held"))
    write_rows(tmp_path / "own.jsonl", rows[:1])
    settings = SUPERVISED if where == "supervised" else {"own_answers": {"file": "own.jsonl"}}
    path = write_pair(tmp_path, rows=rows, held_out="held.jsonl", train_on=which, **settings)
    material = material_of(path)
    targets = material.targets if where == "supervised" else material.own
    found = {prompt.source: material.dialogue.tokenizer.decode(targets.answer_to(prompt)) for prompt in targets.prompts}
    name = "rows" if where == "supervised" else "own"
    assert [text for source, text in found.items() if source.startswith(f"{name}.jsonl:1")] == [
        f"{text}<|im_end|>" for text in learnt
    ]
    num, num_tokens = len(targets.answers), sum(map(len, targets.answers.values()))
    assert run_cli(["train", str(path), "--dry-run"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    answers = "1 reference answer" if num == 1 else f"{num} reference answers"
    assert f"Training uses {answers} with {num_tokens} tokens, stop tokens included." in told


# --------------------------------------------------------------------------------------------------- another template

THINKING = CHATML_WITH_DEFAULT_SYSTEM.replace("You are a helpful assistant.", "Think step by step.")


@pytest.mark.report("CT-11")
@pytest.mark.parametrize(
    ("settings", "asked_in"),
    [({}, "student"), ({**OFF_POLICY, "objective": "divergence"}, "student"), (OFF_POLICY, "teacher")],
    ids=["on-policy", "off-policy by token", "off-policy by text"],
)
def test_a_teacher_with_another_template_is_told_with_both_texts_and_can_be_made_alike(
    tmp_path, seen, settings, asked_in
):
    path = write_pair(tmp_path, rows=[prompt_row(f"question {number}") for number in range(12)], **settings)
    tiny_tokenizer(chat_template=THINKING).save_pretrained(tmp_path / "teacher")
    done = run(path)
    added = "<|im_start|>system\nThink step by step.<|im_end|>\n"
    stored = [row for part in ("train", "held-out") for row in done.read_answers(f"prompts-{part}")]
    tokenizer = tiny_tokenizer()
    own = {tuple(tokenizer(added + row["prompt"])["input_ids"]) for row in stored}
    alike = {tuple(row["ids"]) for row in stored}
    read = seen["teacher"] | seen["scored"]
    assert read & own == (own if asked_in == "teacher" else set())
    assert (alike <= read) == (asked_in == "student")
    (note,) = [text for text in notes_of(done) if "has another chat template" in text]
    assert 'it has "system\\nThink step by step.<|im_end|>\\n<|im_start|>" where the student\'s has "".' in note
    assert ("Each model uses its own template" in note) == (asked_in == "teacher")
    assert ("Both models use the student's template" in note) == (asked_in == "student")
    assert "with template: teacher both use the teacher's" in note
    for asked in seen.values():
        asked.clear()
    equal = run(path, "template=teacher", "name=equal")
    assert not any("has another chat template" in text for text in notes_of(equal))
    stored = [row for part in ("train", "held-out") for row in equal.read_answers(f"prompts-{part}")]
    assert all(row["prompt"].startswith(added) for row in stored)
    assert {tuple(row["ids"]) for row in stored} <= seen["teacher"] | seen["scored"]


# ------------------------------------------------------------------------------------------------------------ bad rows


def with_bad_rows():
    """A thousand rows in which a strict template refuses two, and a third has nothing to learn."""
    rows = [{**prompt_row(f"question {number}", id=f"t{number}"), "answer": "ten"} for number in range(1, 1001)]
    user, system = {"role": "user", "content": "a"}, {"role": "system", "content": "s"}
    answer = {"role": "assistant", "content": "b"}
    rows[16] = {"id": "t17", "messages": [user, user, answer]}
    rows[499] = {"id": "t500", "messages": [system, user, answer]}
    rows[998] = {"id": "t999", "messages": [user]}
    return rows


@pytest.mark.report("CT-08", "DC-04")
def test_bad_rows_are_listed_in_one_go_before_training_or_left_out_on_request_and_counted(tmp_path, capsys):
    tokenizer = tiny_tokenizer(chat_template=STRICT)
    settings = {"tokenizer": tokenizer, "rows": with_bad_rows(), "held_out": 10, "steps": 2}
    path = write_pair(tmp_path, **settings, **SUPERVISED)
    for verb in ("check", "train"):
        assert run_cli([verb, str(path)]) == 2
        told = " ".join(capsys.readouterr().err.split())
        assert "rows.jsonl has 3 invalid rows (3 errors)" in told
        assert 'rows.jsonl:17 (id "t17"), messages[1] (user): the template fails with "roles must alternate"' in told
        assert (
            'rows.jsonl:500 (id "t500"), messages[0] (system): the template fails with "roles must alternate"' in told
        )
        assert 'rows.jsonl:999 (id "t999"): the row has no answer' in told
        assert "or set bad_rows: skip to leave them out" in told
    assert not (tmp_path / "runs").exists()
    done = run(path, "bad_rows=skip")
    counts = of_kind(done, "start")[0]["prompts"]
    assert (counts["train"] + counts["held_out"], counts["skipped"]) == (997, 3)
    (note,) = [text for text in notes_of(done) if text.startswith("Skipped 3 of 1,000 rows:")]
    for place in ("rows.jsonl:17 ", "rows.jsonl:500 ", "rows.jsonl:999 "):
        assert place in note
    stored = {row["source"] for part in ("train", "held-out") for row in done.read_answers(f"prompts-{part}")}
    assert not {"rows.jsonl:17", "rows.jsonl:500", "rows.jsonl:999"} & stored


@pytest.mark.report("DC-04")
def test_with_no_usable_row_there_is_no_run_whatever_the_choice(tmp_path, capsys):
    rows = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": None}]}] * 5
    path = write_pair(tmp_path, rows=rows, held_out=2, **SUPERVISED)
    for choice in ("refuse", "skip"):
        with pytest.raises(DataError, match=r"5 invalid rows \(5 errors\)") as raised:
            run(path, f"bad_rows={choice}")
        assert ("set bad_rows: skip" in raised.value.fix) == (choice == "refuse")
        assert run_cli(["train", str(path), "--set", f"bad_rows={choice}"]) == 2
    write_rows(tmp_path / "rows.jsonl", [prompt_row(f"a {number}") for number in range(5)])
    with pytest.raises(DataError, match="the row has no answer"):
        run(path, "bad_rows=skip")
    assert "rows.jsonl:1" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
