from __future__ import annotations

import numpy as np
import pytest

from limbeck.evaluation.statistics import gap_recovered, mean_per_token, share


def test_share_is_wilsons_interval():
    # Wilson 1927 for 8 of 10: centre (0.8 + z²/20) / (1 + z²/10), z = 1.96: 0.4902 and 0.9433
    interval = share([True] * 8 + [False] * 2)
    assert interval.estimate == 0.8
    assert (interval.low, interval.high) == pytest.approx((0.490162, 0.943318), abs=1e-5)
    assert interval.n == 10


def test_share_stays_within_0_and_1():
    assert share([False] * 5).low == 0
    assert share([True] * 5).high == 1
    assert share([True] * 5).low == pytest.approx(1 / (1 + 1.959964**2 / 5), abs=1e-6)
    with pytest.raises(ValueError, match="at least one"):
        share([])


@pytest.mark.parametrize("true_share", [0.05, 0.3, 0.5])
def test_share_covers_the_truth_in_about_95_of_100_sets(true_share):
    rng = np.random.default_rng(0)
    covered = [
        (interval := share(list(rng.random(100) < true_share))).low <= true_share <= interval.high for _ in range(2000)
    ]
    assert 0.93 <= np.mean(covered) <= 0.98


def test_mean_per_token_weighs_answers_by_their_tokens():
    interval = mean_per_token([10.0, 1.0], [10, 90])
    assert interval.estimate == pytest.approx(11 / 100)
    assert interval.n == 2


def test_mean_per_token_covers_the_truth():
    rng = np.random.default_rng(1)
    covered = []
    for _ in range(200):
        tokens = rng.integers(5, 40, size=60)
        level = rng.gamma(2.0, 0.5, size=60)  # answers differ: tokens of one answer go together
        interval = mean_per_token(level * tokens, tokens, seed=int(rng.integers(1000)))
        covered.append(interval.low <= 1.0 <= interval.high)
    assert 0.88 <= np.mean(covered) <= 0.99


def test_gap_recovered_of_known_answers():
    student = [True] * 30 + [False] * 70
    teacher = [True] * 100
    distilled = [True] * 65 + [False] * 35
    interval = gap_recovered(student, teacher, distilled)
    assert interval.estimate == pytest.approx(35 / 70)
    assert 0.35 < interval.low < 0.5 < interval.high < 0.65


def test_nothing_is_recovered_and_everything_is():
    student, teacher = [True] * 30 + [False] * 70, [True] * 90 + [False] * 10
    assert gap_recovered(student, teacher, student).estimate == 0
    assert gap_recovered(student, teacher, teacher).estimate == 1


def test_a_share_of_no_gap_is_undefined():
    same = [True, False] * 50
    assert gap_recovered(same, same, [True] * 100) is None
    rng = np.random.default_rng(2)
    student, teacher = rng.random(40) < 0.5, rng.random(40) < 0.55
    assert gap_recovered(list(student), list(teacher), list(teacher)) is None


def test_a_gap_that_vanishes_in_a_resample_gives_no_bounds_that_are_no_numbers():
    student, teacher, distilled = [False] * 20, [True] * 4 + [False] * 16, [True] * 2 + [False] * 18
    assert gap_recovered(student, teacher, distilled) is None


def test_intervals_are_reproducible():
    sums, tokens = [1.0, 2.0, 5.0, 3.3, 0.7, 8.1, 2.2], [3, 4, 5, 7, 2, 9, 4]
    assert mean_per_token(sums, tokens, seed=3) == mean_per_token(sums, tokens, seed=3)
    assert mean_per_token(sums, tokens, seed=3) != mean_per_token(sums, tokens, seed=4)
