"""Lengths, numbers of rows and stop tokens of whole runs: what does not fit is refused with its numbers."""

from __future__ import annotations

import pytest
import torch
import transformers
from test_driver import of_kind, result_of, run
from test_routes_on_disk import Canned, with_writer

from builders import CHATML, prompt_row, save_model, tiny_llama, tiny_tokenizer, write_rows
from limbeck import api
from limbeck.cli import run_cli
from limbeck.conversation import Conversation
from limbeck.errors import DataError, ModelError, RecipeError, UsageError
from limbeck.models.save import weights_hash
from limbeck.recipe.evaluation import EvaluationOptions
from limbeck.rollouts.sampling import GREEDY
from pairs import write_pair

ROUTES = {
    "on-policy": {"max_practice_tokens": 4},
    "off-policy": {"route": "off-policy", "max_teacher_tokens": 40, "answers_per_prompt": 8, "teacher_temperature": 1},
    "supervised": {"route": "supervised"},
}
QUICK = {"steps": 2, "evaluate_every": 2, "held_out_sample": 2}


def answered(texts):
    return [prompt_row(text, answer="one two") for text in texts]


def notes_of(done):
    return [event["text"] for event in of_kind(done, "note")]


@pytest.fixture
def no_weights(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a weight was read")

    monkeypatch.setattr("limbeck.training.setup.load_model", refuse)
    monkeypatch.setattr("limbeck.evaluation.answering.answers.load_model", refuse)


# -- prompts over the limit ------------------------------------------------------------------------


@pytest.mark.report("LT-03")
@pytest.mark.parametrize("name", ROUTES)
def test_a_prompt_over_the_limit_is_left_out_or_refused_by_name_on_every_route(tmp_path, name):
    texts = [f"question {number}" for number in range(50)]
    texts[36] = "a longer question " * 60
    settings = {**ROUTES[name], **QUICK, "max_prompt_tokens": 128, "held_out": 10, "prompts_per_step": 40}
    recipe = write_pair(tmp_path, rows=answered(texts), **settings)
    with pytest.raises(DataError, match=r"max_prompt_tokens \(128\): 1 of \d\d\.\s+rows\.jsonl:37: \d{4} tokens\n"):
        run(recipe)
    assert not (tmp_path / "runs").exists()
    with pytest.raises(RecipeError, match=r"long_prompts.*refuse.*skip"):
        run(recipe, "long_prompts=cut")
    done = run(recipe, "long_prompts=skip")
    prompts = of_kind(done, "start")[0]["prompts"]
    assert prompts["train"] + prompts["held_out"] == 49
    (said,) = [text for text in notes_of(done) if text.startswith("Skipped")]
    assert "longer than max_prompt_tokens (128): 1 row (rows.jsonl:37: " in said
    sources = {row["source"] for part in ("train", "held-out") for row in done.read_answers(f"prompts-{part}")}
    assert sources == {f"rows.jsonl:{number}" for number in range(1, 51) if number != 37}
    assert done.status().state == "done"


@pytest.mark.report("LT-03")
def test_own_answers_and_a_held_out_file_keep_to_the_same_limit(tmp_path):
    rows = answered([f"question {number}" for number in range(8)])
    long = [*answered(["fine"]), prompt_row("a longer question " * 60, answer="one")]
    for name, settings in (
        ("own.jsonl", {"own_answers": {"file": "own.jsonl"}, "held_out": 2}),
        ("held.jsonl", {"held_out": "held.jsonl"}),
    ):
        write_rows(tmp_path / name, long)
        recipe = write_pair(tmp_path, rows=rows, max_prompt_tokens=128, **QUICK, **settings)
        with pytest.raises(DataError, match=rf"{name}:2: \d{{4}} tokens"):
            run(recipe)
        done = run(recipe, "long_prompts=skip", f"name={name.removesuffix('.jsonl')}")
        assert done.status().state == "done"


# -- what the models hold --------------------------------------------------------------------------


@pytest.mark.report("LT-04")
@pytest.mark.parametrize(
    ("student", "teacher", "named"), [(256, 64, "teacher"), (512, 128, "teacher"), (128, 512, "student")]
)
def test_prompt_and_answer_fit_into_both_models_or_are_refused_at_the_start(
    tmp_path, no_weights, student, teacher, named
):
    tokenizer = tiny_tokenizer()
    models = {"student": tiny_llama(tokenizer, max_positions=student)}
    models["teacher"] = tiny_llama(tokenizer, max_positions=teacher, seed=1)
    rows = [prompt_row("x" * (86 + number)) for number in range(8)]  # about a hundred tokens with what is around it
    recipe = write_pair(tmp_path, tokenizer=tokenizer, rows=rows, max_practice_tokens=64, held_out=2, **models)
    most = rf"\S*{named} has {min(student, teacher)} positions"
    told = rf"max_practice_tokens \(64\) (need 1\d\d positions|exceed the context length); {most}"
    with pytest.raises(ModelError, match=told):
        run(recipe)
    answer = "" if min(student, teacher) <= 86 else " and an answer has up to 64"  # a prompt alone is too long
    told = rf"longest prompt has 1\d\d tokens{answer}; \S*{named} has {min(student, teacher)} positions"
    with pytest.raises(ModelError, match=told):
        api.worth(recipe, EvaluationOptions(max_tokens=64))
    assert not (tmp_path / "runs").exists()


def learned_positions(num):
    """A model whose positions are a table: one more is an error of indices."""
    config = transformers.GPT2Config(
        vocab_size=300, n_positions=num, n_embd=16, n_layer=2, n_head=2, bos_token_id=None, eos_token_id=2
    )
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(config)


@pytest.mark.report("LT-04")
@pytest.mark.parametrize("who", ["student", "teacher"])
def test_positions_are_known_under_the_name_that_gpt2_gives_them(tmp_path, who):
    recipe = write_pair(tmp_path, **{who: learned_positions(64)})
    with pytest.raises(ModelError, match=rf"{who} has 64 positions"):
        run(recipe, "max_practice_tokens=60")
    done = run(recipe, "max_practice_tokens=6")
    assert done.status().state == "done"
    assert "resid_pdrop 0.1" in " ".join(notes_of(done)) or who == "teacher"


@pytest.mark.report("LT-04")
def test_a_conversation_and_a_marked_answer_beyond_the_positions_are_refused(tmp_path):
    write_pair(tmp_path, student=learned_positions(64), teacher=learned_positions(64))
    student, teacher = str(tmp_path / "student"), str(tmp_path / "teacher")
    conversation = Conversation(student, workspace=tmp_path, sampling=GREEDY, max_tokens=10)
    assert "".join(conversation.reply("hi"))
    with pytest.raises(DataError, match="tokens"):
        list(conversation.reply("x" * 60))
    asked = {"prompt": "hi", "answer": "x" * 20, "workspace": tmp_path}
    assert api.mark(student, teacher, **asked, max_tokens=8, continue_from=3).continued is not None
    for more in ({"answer": "x" * 70}, {"continue_from": 18, "max_tokens": 40}):
        with pytest.raises(ModelError, match="has 64 positions"):
            api.mark(student, teacher, **{**asked, **more})


@pytest.mark.report("LT-05")
@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("max_practice_tokens=0", "max_practice_tokens.*1 or more"),
        ("max_practice_tokens=-1", "max_practice_tokens.*1 or more"),
        ("max_practice_tokens=64.5", "max_practice_tokens.*whole number"),
        ("max_prompt_tokens=0", "max_prompt_tokens.*1 or more"),
        ("max_length=64", "max_length"),
        ("max_new_tokens=64", "max_new_tokens"),
        ("max_teacher_tokens=64", "max_teacher_tokens.*warmup"),
    ],
)
def test_a_limit_that_leaves_no_answer_or_is_none_is_refused(tmp_path, no_weights, setting, told):
    with pytest.raises(RecipeError, match=told):
        run(write_pair(tmp_path), setting)


@pytest.mark.report("LT-05")
@pytest.mark.parametrize("limit", [64, 80])
def test_an_answer_as_long_as_the_model_leaves_no_room_for_a_prompt(tmp_path, no_weights, limit):
    student = tiny_llama(tiny_tokenizer(), max_positions=64)
    with pytest.raises(ModelError) as refused:
        run(write_pair(tmp_path, student=student), f"max_practice_tokens={limit}", "max_prompt_tokens=5000")
    num_prompt, num_total = refused.value.parameters["num_prompt"], refused.value.parameters["num_total"]
    assert num_prompt + limit == num_total
    assert f"{num_prompt} tokens and max_practice_tokens ({limit}) need {num_total} positions" in refused.value.given
    assert "has 64 positions" in refused.value.given
    assert "max_practice_tokens to at most" in refused.value.fix
    assert "max_prompt_tokens" in refused.value.fix


@pytest.mark.report("LT-05")
@pytest.mark.parametrize("num", ["0", "-1"])
def test_every_command_refuses_an_answer_of_no_tokens(tmp_path, capsys, num):
    recipe = write_pair(tmp_path)
    student, teacher = str(tmp_path / "student"), str(tmp_path / "teacher")
    for command in (
        ["chat", student],
        ["mark", student, teacher, "--prompt", "hi"],
        ["worth", str(recipe)],
        ["eval", student, teacher, "--prompts", str(tmp_path / "rows.jsonl"), "--workspace", str(tmp_path)],
    ):
        assert run_cli([*command, "--max-tokens", num]) == 2
        assert "fix" in capsys.readouterr().err


# -- few rows --------------------------------------------------------------------------------------


@pytest.mark.report("TH-02")
@pytest.mark.parametrize("name", ROUTES)
def test_fewer_rows_than_a_step_takes_are_trained_on_with_a_note(tmp_path, monkeypatch, name):
    with_writer(monkeypatch, Canned(["yes", "no", "perhaps"]))  # the off-policy teacher
    write_rows(tmp_path / "held.jsonl", answered(["held out"]))
    settings = {**ROUTES[name], **QUICK, "held_out": "held.jsonl", "prompts_per_step": 8}
    done = run(write_pair(tmp_path, rows=answered(["a", "b", "c"]), **settings))
    assert [event["num_answers"] for event in of_kind(done, "step")] == [8, 8]
    assert "A step takes 8 prompts, but there are only 3: a step uses them repeatedly." in notes_of(done)
    assert of_kind(done, "done")[0]["weights"] != of_kind(done, "start")[0]["student"]["weights"]


@pytest.mark.report("TH-02")
def test_what_is_left_of_twenty_rows_is_trained_on_and_counted(tmp_path):
    texts = [("a long question " * 30 if number < 18 else "short ") + str(number) for number in range(20)]
    write_rows(tmp_path / "held.jsonl", [prompt_row("held out")])
    settings = {"held_out": "held.jsonl", "max_prompt_tokens": 64, "long_prompts": "skip", "prompts_per_step": 8}
    recipe = write_pair(tmp_path, rows=[prompt_row(text) for text in texts], **{**QUICK, **settings})
    done = run(recipe)
    assert of_kind(done, "start")[0]["prompts"]["train"] == 2
    said = " ".join(notes_of(done))
    assert "Skipped because they are longer than max_prompt_tokens (64): 18 rows" in said
    assert "A step takes 8 prompts, but there are only 2: " in said
    with pytest.raises(DataError, match=r"max_prompt_tokens \(5\): 20 of 20\."):
        run(recipe, "max_prompt_tokens=5", "name=none")


@pytest.mark.report("TH-02")
def test_a_step_in_many_micro_batches_takes_more_prompts_than_there_are(tmp_path):
    rows = [prompt_row(f"row {number}") for number in range(12)]
    done = run(write_pair(tmp_path, rows=rows, prompts_per_step=16, held_out=2, micro_batch_tokens=1, **QUICK))
    assert of_kind(done, "start")[0]["prompts"]["train"] == 10
    assert [event["num_answers"] for event in of_kind(done, "step")] == [16, 16]


@pytest.mark.report("TH-02")
@pytest.mark.parametrize("steps", ["0", "-1"])
def test_a_run_of_no_step_is_refused(tmp_path, capsys, steps):
    assert run_cli(["train", str(write_pair(tmp_path)), "--set", f"steps={steps}"]) == 2
    assert "1 or more" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.report("TH-02")
def test_rows_that_are_all_held_out_are_refused_with_the_numbers(tmp_path):
    with pytest.raises(UsageError, match="held_out: 3 leaves 0 of 3 rows for training"):
        run(write_pair(tmp_path, rows=[prompt_row(text) for text in "abc"], held_out=3))


# -- stop tokens -----------------------------------------------------------------------------------


def without_stop(tokenizer, seed=0):
    model = tiny_llama(tokenizer, scale=4.0, seed=seed)
    model.config.eos_token_id = model.generation_config.eos_token_id = None
    return model


@pytest.mark.report("EP-05")
@pytest.mark.parametrize("own", ["<|im_end|>", None])
def test_a_student_without_a_configured_stop_token_stops_at_another_and_says_so_once(tmp_path, own):
    tokenizer = tiny_tokenizer(eos_token=own)
    recipe = write_pair(tmp_path, tokenizer=tokenizer, student=without_stop(tokenizer), **QUICK)
    (tmp_path / "student" / "generation_config.json").unlink()
    done = run(recipe)
    assert of_kind(done, "start")[0]["stop_ids"] == [2]
    said = [text for text in notes_of(done) if "stop token" in text]
    assert len(said) == 1
    assert (
        "The tokenizer's is used: <|im_end|> (id 2)." if own else "template's end of a turn is used: <|im_end|> (id 2)."
    ) in said[0]
    assert result_of(done).generation_config.eos_token_id == [2]
    assert weights_hash(result_of(done)) == of_kind(done, "done")[0]["weights"]


@pytest.mark.report("EP-05")
def test_with_no_stop_token_anywhere_every_command_says_so(tmp_path, capsys, no_weights):
    tokenizer = tiny_tokenizer(eos_token=None, chat_template=CHATML.replace("<|im_end|>", "<done>"))
    models = {"student": without_stop(tokenizer), "teacher": without_stop(tokenizer, seed=1)}
    recipe = write_pair(tmp_path, tokenizer=tokenizer, **models)
    save_model(tmp_path / "lone", without_stop(tokenizer), tokenizer)
    for command in (
        ["train", str(recipe)],
        ["check", str(recipe)],
        ["worth", str(recipe)],
        ["chat", str(tmp_path / "lone")],
    ):
        assert run_cli(command) == 2
        told = capsys.readouterr().err
        assert "model.stop-missing" in told
        assert "the chat template specify no token that ends an answer" in " ".join(told.split())
    assert not (tmp_path / "runs").exists()
