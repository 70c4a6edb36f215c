"""Answers as targets: whose turn, which tokens, and that nothing held out is among them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import CHATML, prompt_row, tiny_tokenizer, write_rows
from limbeck.data.chat import render_prompts
from limbeck.data.dialogue import Dialogue
from limbeck.data.prompt import Message, PromptRow, content_hash
from limbeck.data.row_errors import RowErrors
from limbeck.data.rows import read_rows
from limbeck.data.stops import StopSet
from limbeck.data.targets import make_targets, target_rows, targets_from_references, without_held_out
from limbeck.data.templates import choose_template
from limbeck.errors import DataError
from pairs import prompt_of

TOKENIZER = tiny_tokenizer()
END = TOKENIZER.eos_token_id
STOP = StopSet((END,), END, ())
TEMPLATE = choose_template("student", TOKENIZER, None, student_name="s", teacher_name="t")
DIALOGUE = Dialogue(TOKENIZER, TEMPLATE, {}, STOP, END, len(TOKENIZER))


def row_of(*turns, reference=None, source="rows.jsonl:1"):
    messages = tuple(Message(role, content) for role, content in turns)
    return PromptRow(messages, reference, source)


def rendered(rows, tokenizer=TOKENIZER, template=CHATML):
    tokenizer.chat_template = template
    chosen = choose_template("student", tokenizer, None, student_name="s", teacher_name="t")
    return render_prompts(rows, tokenizer, chosen, options={}, max_prompt_tokens=4096, on_long="refuse").prompts


TALK = row_of(
    ("system", "be brief"), ("user", "one"), ("assistant", "two"), ("user", "three"), reference="four", source="f:7"
)


@pytest.mark.report("DC-08")
def test_all_turns_are_rows_of_their_own_and_each_prompt_ends_where_its_answer_begins():
    rows = target_rows([TALK], "all_turns")
    assert [(row.reference, row.source) for row in rows] == [("two", "f:7 turn 3"), ("four", "f:7")]
    assert rows[0].messages == TALK.messages[:2]
    assert rows[0].content_hash == content_hash(TALK.messages[:2])
    assert target_rows([TALK], "last_turn") == (TALK,)


@pytest.mark.report("DC-08", "CT-10")
def test_the_answer_alone_is_learnt_and_the_stop_token_with_it():
    targets = targets_from_references(rendered(target_rows([TALK], "all_turns")), DIALOGUE)
    texts = [TOKENIZER.decode([*prompt.ids, *targets.answer_to(prompt)]) for prompt in targets.prompts]
    assert texts[0].endswith("<|im_start|>assistant\ntwo<|im_end|>")
    assert texts[1].endswith("three<|im_end|>\n<|im_start|>assistant\nfour<|im_end|>")
    assert [TOKENIZER.decode(targets.answer_to(prompt)) for prompt in targets.prompts] == [
        "two<|im_end|>",
        "four<|im_end|>",
    ]


def test_an_answer_that_was_cut_off_has_no_end():
    rows = [row_of(("user", "a"), reference="b"), row_of(("user", "c"), reference="d")]
    targets = make_targets(rendered(rows), DIALOGUE, [True, False])
    assert [targets.answer_to(prompt)[-1] == END for prompt in targets.prompts] == [False, True]


@given(st.lists(st.text(min_size=1, max_size=40).filter(str.strip), min_size=1, max_size=5))
@settings(max_examples=60, deadline=None)
def test_any_text_comes_back_from_its_target_after_any_prompt(texts):
    texts = [text for text in texts if "<|" not in text]
    rows = [row_of(("user", "same"), reference=text, source=f"f:{place}") for place, text in enumerate(texts)]
    if not rows:
        return
    targets = make_targets(rendered(rows), DIALOGUE, [False] * len(rows))
    assert len(targets.answers) == len(rows)  # repeated prompts stay apart
    for prompt, text in zip(targets.prompts, texts, strict=True):
        answer = targets.answer_to(prompt)
        assert answer[-1] == END
        assert TOKENIZER.decode(answer[:-1]) == text


def test_where_the_answer_would_melt_into_the_prompt_the_prompt_stays_as_it_is():
    """The prompt's last characters and the answer's first make one token together; in production the prompt ends."""
    ids = tuple(TOKENIZER("on", add_special_tokens=False)["input_ids"])
    assert tuple(TOKENIZER("one", add_special_tokens=False)["input_ids"])[: len(ids)] != ids
    prompt = replace(prompt_of(ids), text="on", reference="e")
    targets = make_targets([prompt], DIALOGUE, [True])
    assert TOKENIZER.decode(targets.answer_to(prompt)) == "e"


def test_a_stop_token_inside_an_answer_is_refused_with_its_row():
    rows = [row_of(("user", "a"), reference="well<|im_end|> then", source="f:3")]
    with pytest.raises(DataError, match="f:3"):
        targets_from_references(rendered(rows), DIALOGUE)


@pytest.mark.report("DC-04")
def test_rows_without_answers_are_all_named(tmp_path):
    write_rows(tmp_path / "r.jsonl", [{**prompt_row("a"), "answer": "b"}, prompt_row("c"), prompt_row("d", answer=" ")])
    rows = read_rows(tmp_path / "r.jsonl").rows
    with pytest.raises(
        DataError,
        match=r"r\.jsonl has 2 invalid rows \(2 errors\):\n  r\.jsonl:2: the row has no answer; .*\n  r\.jsonl:3: ",
    ) as raised:
        target_rows(rows, "last_turn")
    assert raised.value.code == "data.answer-missing"
    errors = RowErrors("r.jsonl")
    assert target_rows(rows, "last_turn", errors) == rows[:1]
    assert errors.num_rows == 2


@pytest.mark.report("DC-07")
def test_what_is_held_out_is_no_target_not_even_as_an_earlier_turn():
    held = row_of(("system", "be brief"), ("user", "one"))
    other = row_of(("user", "five"), reference="six", source="f:8")
    kept, notes = without_held_out([TALK, other], [held])
    assert kept == (other,)
    assert "f:7" in notes[0]
    assert without_held_out([TALK], [other]) == ((TALK,), ())


@pytest.mark.report("DC-07")
@pytest.mark.parametrize(
    ("num_turns", "kept"),
    # every beginning of a conversation is something that it asks or has asked, and the whole of it
    [(1, False), (2, False), (3, False), (4, False)],
)
def test_a_conversation_is_held_out_by_each_of_its_beginnings(num_turns, kept):
    held = replace(TALK, messages=TALK.messages[:num_turns])
    assert (without_held_out([TALK], [held])[0] == (TALK,)) == kept


def test_the_last_turn_alone_and_a_longer_conversation_are_other_prompts():
    alone = replace(TALK, messages=TALK.messages[-1:])
    longer = replace(TALK, messages=(*TALK.messages, Message("assistant", "four"), Message("user", "five")))
    rows = (TALK,)
    assert without_held_out(rows, [alone]) == (rows, ())
    assert without_held_out(rows, [longer]) == (rows, ())
    kept, notes = without_held_out([longer, replace(alone, source="f:9")], [TALK])
    assert [row.source for row in kept] == ["f:9"]
    assert notes == ("Left out because their prompts are held out: 1 row (f:7).",)


def test_targets_know_their_longest_answer_and_count_each_token_once():
    rows = [row_of(("user", text), reference=text) for text in ("a", "bcd efg hij", "cd")]
    targets = make_targets(rendered(rows), DIALOGUE, [True] * 3)
    assert targets.longest_answer == max(len(TOKENIZER(row.reference)["input_ids"]) for row in rows) > 3
    assert targets.weight == 1.0


def test_rows_of_several_files_without_answers_are_named_under_the_first():
    rows = [row_of(("user", text), source=f"{text}.jsonl:3") for text in "ab"]
    with pytest.raises(DataError, match=r"a\.jsonl has 2 invalid rows .*:\n  a\.jsonl:3: .*\n  b\.jsonl:3: "):
        target_rows(rows, "last_turn")
