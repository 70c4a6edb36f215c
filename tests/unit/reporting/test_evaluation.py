"""The page of an evaluation in a terminal: the verdict first, within 80 columns, with nothing hidden."""

from __future__ import annotations

import io
from typing import Any

import pytest

from limbeck.console import Printer
from limbeck.errors import Unmet, UsageError
from limbeck.recipe.evaluation import EvaluationOptions, check_limit
from limbeck.reporting.evaluation import axis, show_evaluation


def interval(estimate: float, low: float, high: float, n: int = 200) -> dict[str, Any]:
    return {"estimate": estimate, "low": low, "high": high, "n": n}


def model(alias: str, score: float) -> dict[str, Any]:
    return {
        "alias": alias, "role": alias, "ref": f"org/{alias}-instruct\x1b[2J", "weights": "a", "dtype": "float32",
        "score": interval(score, score - 0.05, score + 0.05), "num_asked": 200, "num_answered": 194, "num_failed": 6,
        "num_cut_off": 12, "num_empty": 1, "num_not_graded": 6,
        "length": {"mean": 211.4, "median": 180.0, "p90": 611.0},
        "length_ratio": 1.2, "tokens_per_s": 1234.5, "latency_p50_s": 12.34, "latency_p95_s": 45.6,
        "cost_per_1000": {"amount": 1234.5, "currency": "EUR"}, "divergence_to_teacher": interval(0.871, 0.8, 0.9),
        "agreement": 0.7,
    }  # fmt: skip


def compared(first: str, second: str) -> dict[str, Any]:
    return {
        "first": first, "second": second, "difference": interval(0.31, 0.24, 0.38), "deviation": 0.5,
        "first_better": interval(0.43, 0.36, 0.5), "second_better": interval(0.12, 0.08, 0.17),
        "both_good": interval(0.36, 0.3, 0.43), "both_bad": interval(0.09, 0.06, 0.14),
        "longer_won": interval(0.58, 0.4, 0.7, 50), "num_asked": 200, "num_not_graded": [0, 6],
        "notes": ["temperature: 0 for teacher, 1 for student"], "seed": 0, "num_resamples": 10_000,
    }  # fmt: skip


RESULT: dict[str, Any] = {
    "kind": "after", "name": "calm-otter-17", "prompts": {"files": ["p.jsonl"], "num": 200, "hash": "a"},
    "settings": {"slots": 32}, "measure": {"name": "exact", "kind": "grader", "text": "An answer scores 0 or 1."},
    "models": [model("student", 0.4), model("teacher", 0.9), model("distilled", 0.8)],
    "team_length": {"mean": 40.0, "median": 38.0, "p90": 60.0},
    "comparisons": [compared("distilled", "student"), compared("teacher", "distilled")],
    "gap_recovered": interval(0.79, 0.58, 1.01), "gap_recovered_reason": None,
    "slices": [{"column": "topic", "value": "refunds\u202e", "first": "teacher", "second": "student",
                "difference": interval(0.44, 0.2, 0.6, 31)}],
    "verdict": {"decision": "ship", "band": 0.1, "gain": interval(0.31, 0.24, 0.38),
                "words": ["Ship: distilled against student +31 points.", "Distilling clearly helped."]},
    "next_step": {"text": "Take the model out.", "command": "limbeck export runs/calm-otter-17"},
    "notes": ["teacher: 6 of 200 questions failed and have no answer."],
}  # fmt: skip


def shown(result: dict[str, Any]) -> list[str]:
    out = io.StringIO()
    show_evaluation(Printer(out=out, err=io.StringIO()), result)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_the_page_fits_into_80_columns_and_hides_nothing() -> None:
    lines = shown(RESULT)
    assert lines[0].startswith("Did it work? calm-otter-17, 200 prompts")
    assert lines[1] == "Ship: distilled against student +31 points."
    wide = [line for line in lines if len(line) > 80]
    assert not wide
    text = " ".join(" ".join(lines).split())
    for told in ("194/200", "211", "1,234.50 EUR", "human-written", "both bad", "58% (40 to 70) of 50 prompts",
                 "refunds\\u202e",
                 "200 of 200", "6 of 200 questions failed", "limbeck export runs/calm-otter-17"):  # fmt: skip
        assert told in text
    assert "\x1b" not in text


@pytest.mark.report("TU-05")
@pytest.mark.parametrize("number", ["NaN", "Infinity", float("nan")])
def test_a_number_that_is_none_is_shown_as_such(number) -> None:
    models = [
        {**each, "tokens_per_s": number, "divergence_to_teacher": interval(number, number, number)}
        for each in RESULT["models"]
    ]
    models[0] |= {"cost_per_1000": {"amount": number, "currency": "EUR"}, "latency_p50_s": number}
    lines = shown({**RESULT, "models": models})
    assert " ".join(lines).lower().count(str(float(number))) == 8


def test_what_is_not_known_is_left_out_or_a_dash() -> None:
    bare = {**model("student", 0.4), "score": None, "cost_per_1000": None, "tokens_per_s": None, "latency_p50_s": None,
            "latency_p95_s": None, "divergence_to_teacher": None}  # fmt: skip
    result = {**RESULT, "models": [bare], "comparisons": [{**compared("a", "b"), "both_good": None, "both_bad": None,
              "tied": interval(0.45, 0.3, 0.5)}], "verdict": None, "slices": [], "team_length": None}  # fmt: skip
    text = "\n".join(shown(result))
    assert "tied" in text
    for absent in ("both good", "tokens/s", "nats", "Slices", "None"):
        assert absent not in text


def test_the_axis_shows_estimate_interval_and_band() -> None:
    drawn = axis(interval(0.5, 0.25, 0.75), 0.1)
    line = drawn[5:46]
    assert len(line) == 41
    assert line[20] == "|"
    assert line[30] == "●"
    assert line[25:36].replace("●", "━") == "━" * 11
    assert line[18:23] == "░░|░░"
    assert drawn.endswith("+100   +50 (+25 to +75)")
    assert axis(interval(-1, -1, -0.9), None)[5] == "●"


def test_a_limit_is_about_the_lower_end() -> None:
    check_limit("net=24", RESULT)
    check_limit("recovered=58", RESULT)
    with pytest.raises(Unmet, match=r"is 31\.0 points, and the lower end of its interval is 24\.0") as caught:
        check_limit("net=25", RESULT)
    assert caught.value.exit_code == 4
    with pytest.raises(Unmet, match="does not contain the share of the gap recovered"):
        check_limit("recovered=1", {**RESULT, "gap_recovered": None})
    for wrong in ("net", "gain=3", "net=much"):
        with pytest.raises(UsageError):
            check_limit(wrong, RESULT)


@pytest.mark.parametrize("given", [{"samples": 2}, {"band": 0}, {"max_tokens": 0}, {"slots": 0}, {"temperature": -1.0}])
def test_options_that_cannot_be_meant_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        EvaluationOptions(**given)
    for wrong in ("teacher", "teacher=1", "teacher=a,b"):
        with pytest.raises(UsageError):
            EvaluationOptions(price=(wrong,)).prices()
    assert EvaluationOptions(price=("teacher=1,2",)).prices() == {"teacher": (1.0, 2.0)}
    with pytest.raises(UsageError, match="A grader is one of exact, normalised"):
        EvaluationOptions(grader="exactly").grader_settings()
