"""What is said about an evaluation is checked before any model answers."""

from __future__ import annotations

import pytest

from limbeck.errors import Unmet, UsageError
from limbeck.recipe.evaluation import EvaluationOptions, check_limit, read_limit


@pytest.mark.parametrize(
    "options",
    [
        {"band": float("nan")},
        {"band": float("inf")},
        {"temperature": float("inf")},
        {"seed": -1},
        {"max_tokens": 0},
        {"price": ("teacher=nan,1",)},
        {"price": ("teacher=1e308,1",)},
        {"price": ("teacher=-5,2",)},
        {"price": ("=1,1",)},
        {"price": ("teacher=1",)},
        {"grader": "a:b:c"},
        {"samples": 3},
    ],
)
def test_what_cannot_be_meant_is_told_at_once(options):
    with pytest.raises(UsageError):
        EvaluationOptions(**options)


@pytest.mark.parametrize("text", ["net=nan", "net=inf", "net", "nonsense", "recovered=", "gross=3"])
def test_a_limit_that_no_interval_can_miss_or_meet_is_no_limit(text):
    with pytest.raises(UsageError):
        read_limit(text)


def test_the_lower_end_decides():
    interval = {"estimate": 0.2, "low": 0.1, "high": 0.3}
    result = {"kind": "worth", "gap_recovered": None, "verdict": {"gap": interval}, "comparisons": []}
    check_limit("net=10", result)
    with pytest.raises(Unmet):
        check_limit("net=10.1", result)
    with pytest.raises(Unmet):
        check_limit("recovered=1", result)
