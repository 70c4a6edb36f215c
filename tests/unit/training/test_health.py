"""When an answer counts as going in circles."""

from __future__ import annotations

import pytest

from limbeck.training.health import is_repetitive


def answer(num_different, length):
    """Tokens that differ, then one token over and over: that many 4-grams differ, and one more."""
    return [*range(100, 100 + num_different), *[7] * (length - num_different)]


@pytest.mark.parametrize(
    ("num_different", "length", "repetitive"),
    [
        # 61 4-grams among the last 64 tokens: fewer than 24.4 distinct ones
        (23, 64, True),
        (24, 64, False),
        # 25 4-grams: exactly 10 are 40 %, and not fewer
        (8, 28, True),
        (9, 28, False),
        # under 16 tokens nothing is called so
        (0, 15, False),
        (0, 16, True),
        (4, 16, True),  # 5 of 13
        (5, 16, False),  # 6 of 13
    ],
)
def test_an_answer_repeats_itself_below_40_percent_of_distinct_4_grams(num_different, length, repetitive):
    assert is_repetitive(answer(num_different, length)) == repetitive


def test_only_the_last_64_tokens_count():
    assert is_repetitive([*range(1000, 1500), *answer(23, 64)])
    assert not is_repetitive([*[7] * 500, *answer(24, 64)[::-1]])
    assert is_repetitive([*[7] * 500, *answer(23, 64)[::-1]])


def test_four_tokens_in_turn_are_four_4_grams():
    assert is_repetitive([1, 2, 3, 4] * 4)  # 4 of 13
    assert not is_repetitive([1, 2, 3, 4, 5, 6] * 2 + [1, 2, 3, 4])  # 6 of 13
