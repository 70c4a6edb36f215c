from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from limbeck.embedded import task
from limbeck.embedded.task import CURRENCIES, CUSTOMERS, TOPICS, examples, grade, set_of, write_prompts

if TYPE_CHECKING:
    from pathlib import Path

FIELDS = ["topic", "customer", "contact", "invoice", "amount", "currency", "date"]


def test_same_seed_gives_the_same_examples_and_another_seed_gives_others() -> None:
    assert examples(7, 50) == examples(7, 50)
    assert examples(7, 50) == examples(7, 80)[:50]
    assert not {each.message for each in examples(7, 50)} & {each.message for each in examples(8, 50)}


def test_the_example_in_the_documentation_is_one_that_the_task_makes() -> None:
    shown = [line for line in (task.__doc__ or "").splitlines() if line.startswith(("Dear all", '{"topic"'))]
    assert shown in [[each.message, each.answer] for each in examples(3, 10)]


def test_thousands_of_prompts_are_distinct() -> None:
    assert len({each.message for each in examples(1, 5000)}) == 5000


def test_training_and_held_out_share_no_message_whatever_the_seeds() -> None:
    # The same seed on both sides draws the same stream, so a shared message would show at once.
    train = {each.message for each in examples(3, 2000)}
    held_out = {each.message for each in examples(3, 300, split="held-out")}
    assert len(held_out) == 300
    assert not train & held_out
    assert {set_of(message) for message in train} == {"train"}
    assert {set_of(message) for message in held_out} == {"held-out"}


def test_answers_are_compact_json_with_every_field_of_the_right_form() -> None:
    for each in examples(4, 500):
        answer = json.loads(each.answer)
        assert list(answer) == FIELDS
        assert answer["topic"] in TOPICS
        assert answer["customer"] in CUSTOMERS
        assert answer["currency"] in CURRENCIES
        assert " " not in each.answer
        # The amount keeps two decimals in the text; everything else is what a JSON writer would write.
        amount = f"{answer['amount']:.2f}"
        assert each.answer == json.dumps({**answer, "amount": 0}, separators=(",", ":")).replace(
            '"amount":0', f'"amount":{amount}'
        )


def test_answers_can_be_read_off_the_message() -> None:
    for each in examples(5, 500):
        answer = json.loads(each.answer)
        for field in ("customer", "contact", "invoice"):
            assert answer[field] in each.message
        assert f"{answer['amount']:.2f}" in each.message
        month, day = (int(part) for part in answer["date"].split("-"))
        name = task.MONTHS[month - 1]
        written = (f"{day} {name}", f"{name} {day}", f"{day} {name[:3]}", f"{month:02d}/{day:02d}")
        assert any(date in each.message for date in written)


def test_every_topic_currency_and_customer_occurs() -> None:
    answers = [json.loads(each.answer) for each in examples(6, 2000)]
    assert {answer["topic"] for answer in answers} == set(TOPICS)
    assert {answer["currency"] for answer in answers} == set(CURRENCIES)
    assert {answer["customer"] for answer in answers} == set(CUSTOMERS)


def test_every_wording_names_each_of_the_three_facts_once() -> None:
    for wordings in TOPICS.values():
        for wording in wordings:
            assert [wording.count(slot) for slot in ("{invoice}", "{amount}", "{date}")] == [1, 1, 1]


def test_grader_wants_every_character_and_ignores_white_space_around() -> None:
    expected = examples(1, 1)[0].answer
    assert grade(expected, expected)
    assert grade(f" {expected}\n", expected)
    for place in range(len(expected)):
        assert not grade(expected[:place] + "#" + expected[place + 1 :], expected)
    assert not grade("", expected)
    assert not grade(expected[:-1], expected)
    assert not grade(expected + expected, expected)


@pytest.mark.parametrize("split", ["train", "held-out"])
def test_prompt_rows_carry_the_message_as_chat_and_the_answer_beside_it(tmp_path: Path, split: task.Side) -> None:
    path = tmp_path / "prompts.jsonl"
    write_prompts(path, 20, seed=9, split=split)
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert rows == [
        {"prompt": [{"role": "user", "content": each.message}], "answer": each.answer}
        for each in examples(9, 20, split=split)
    ]
