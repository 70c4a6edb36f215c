"""How a teacher is asked for answers, and the labels of what it says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from limbeck.data.prompt import Message, Row
from limbeck.teachers.writer import TeacherAnswer, generate_answers, rows_of
from pairs import prompt_of

PROMPTS = [
    replace(prompt_of([number]), messages=(Message("system", "s"), Message("user", f"q{number}")), source=f"f:{number}")
    for number in (1, 2)
]


class Echo:
    def __init__(self, answers):
        self.answers = answers

    def generate(self, questions):
        self.questions = list(questions)
        return self.answers[: len(self.questions)]


def labels(*answers):
    return [row["label"] for row in generate_answers(Echo(answers), PROMPTS[:1], (), num_answers=len(answers), seed=0)]


def test_every_prompt_is_asked_as_often_as_wanted_with_draws_of_its_own():
    echo = Echo([TeacherAnswer("a", False)] * 6)
    rows = generate_answers(echo, PROMPTS, (), num_answers=3, seed=0)
    assert [(row["source"], row["sample"]) for row in rows] == [(f"f:{n}", s) for n in (1, 2) for s in range(3)]
    keys = [question.key for question in echo.questions]
    assert len(set(keys)) == 6
    again, other = Echo([TeacherAnswer("a", False)] * 6), Echo([TeacherAnswer("a", False)] * 6)
    generate_answers(again, PROMPTS, (), num_answers=3, seed=0)
    generate_answers(other, PROMPTS, (), num_answers=3, seed=1)
    assert [question.key for question in again.questions] == keys
    assert not set(keys) & {question.key for question in other.questions}


def test_examples_stand_after_the_system_turn_and_are_not_stored():
    example = Row((Message("system", "x"), Message("user", "eq")), "ea", "e:1")
    echo = Echo([TeacherAnswer("a", False)])
    rows = generate_answers(echo, PROMPTS[:1], [example], num_answers=1, seed=0)
    assert [turn.content for turn in echo.questions[0].messages] == ["s", "eq", "ea", "q1"]
    assert [turn["content"] for turn in rows[0]["prompt"]] == ["s", "q1"]
    assert rows_of(rows)[0].reference == "a"
    assert rows_of(rows)[0].messages == PROMPTS[0].messages


def test_labels():
    assert labels(
        TeacherAnswer("x", False),
        TeacherAnswer(" x\n", False),
        TeacherAnswer("", False),
        TeacherAnswer("y", True),
    ) == [
        None,
        "duplicate",
        "empty",
        "cut-off",
    ]
    assert labels(TeacherAnswer("fine words", False, "refused")) == ["refused"]


@pytest.mark.parametrize(
    "text",
    [
        "I'm sorry, but I can't help with that.",
        "I\u2019m sorry, but I can\u2019t assist you.",
        "I cannot comply.",
        "As an AI language model, I have no opinion.",
        "I am unable to answer that.",
        "I cannot provide that.",
        "As an AI model, I am unable to assist.",
    ],
)
def test_refusals_in_words(text):
    assert labels(TeacherAnswer(text, False)) == ["refused"]


@pytest.mark.parametrize(
    "text",
    [
        "I'm sorry for the delay. Your refund is on its way.",
        "I can't find your order; which number does it have?",
        "Sorry, the invoice was wrong.",
        "You can't help it.",
        "I can help with that.",
        "Sorry to hear that! Restart it.",
        "I can't believe it: 7.",
    ],
)
def test_what_a_desk_says_every_day_is_no_refusal(text):
    assert labels(TeacherAnswer(text, False)) == [None]
