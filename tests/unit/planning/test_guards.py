from __future__ import annotations

from dataclasses import replace

import pytest

from limbeck.planning.guards import alerts_of
from limbeck.training.state import StepRecord

HEALTHY = StepRecord(
    step=1, loss=1.0, grad_norm=1.0, learning_rate=1e-4, practice_limit=64, num_answers=8, num_prompt_tokens=80,
    num_completion_tokens=160, generation_s=1.0, scoring_s=1.0, update_s=1.0, generation_us_per_token=1.0,
    scoring_us_per_token=1.0,
    mean_length=20.0, max_length=40, cut_off_share=0.1, empty_share=0.0, repetitive_share=0.0, student_entropy=1.0,
    teacher_entropy=0.8, agreement=0.5, student_logprob=-1.0, teacher_logprob=-1.2, engine_gap=1e-5, worst_tokens=(),
    peak_bytes={"update": 2**30},
)  # fmt: skip


def history(num_healthy, num_ill, **ill):
    records = [HEALTHY] * num_healthy + [replace(HEALTHY, **ill)] * num_ill
    return [replace(record, step=number + 1) for number, record in enumerate(records)]


def codes(records):
    return [alert.code for alert in alerts_of(records)]


def test_a_healthy_run_raises_nothing():
    assert all(not codes(history(number, 0)) for number in range(1, 30))


@pytest.mark.report("EP-03")
def test_answers_that_keep_reaching_the_limit_are_said_once():
    said = [codes(history(3, number, cut_off_share=0.95)) for number in range(1, 20)]
    assert said.count(["guard.cut-off"]) == 1
    assert said[4] == ["guard.cut-off"]  # after five such steps in a row
    text = alerts_of(history(3, 5, cut_off_share=0.95))[0].text
    assert "95%" in text
    assert "64 tokens" in text
    assert "stop tokens" in text


@pytest.mark.report("TH-03")
def test_an_unusual_share_of_empty_answers_is_reported():
    assert codes(history(3, 5, empty_share=0.4)) == ["guard.empty"]


@pytest.mark.parametrize(
    ("code", "sign"),
    [
        ("guard.repetition", {"repetitive_share": 0.1}),
        ("guard.entropy", {"student_entropy": 0.3}),
        ("guard.length", {"mean_length": 70.0}),
        ("guard.engine", {"engine_gap": 0.1}),
    ],
)
def test_each_guard_has_its_sign(code, sign):
    assert codes(history(6, 5, **sign)) == [code]
    assert codes(history(6, 4, **sign)) == []


def test_a_sign_that_went_and_came_back_is_said_again():
    ill = {"empty_share": 0.5}
    records = history(0, 5, **ill) + history(3, 5, **ill)
    assert codes(records) == ["guard.empty"]


def test_a_growing_limit_is_no_alarm():
    """Short limits cut most answers off by design, and longer limits make longer answers."""
    growing = [
        replace(
            HEALTHY, step=number + 1, practice_limit=16 + 4 * number, mean_length=16.0 + 4 * number, cut_off_share=1.0
        )
        for number in range(20)
    ]
    assert all(not codes(growing[: number + 1]) for number in range(20))
    full = growing + [replace(growing[-1], step=21 + number) for number in range(4)]
    assert codes(full) == ["guard.cut-off"]
