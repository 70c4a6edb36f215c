from __future__ import annotations

import math
import tracemalloc
from functools import cache

import numpy as np
import pytest

from limbeck.evaluation.deciding import statistics
from limbeck.evaluation.deciding.statistics import (
    Interval,
    difference,
    difference_deviation,
    gap_recovered,
    kappa,
    mean_per_token,
    mean_score,
    share_interval,
)

SLOW_1000 = pytest.param(1000, marks=pytest.mark.slow)


@cache
def difference_of_counts(num: int, num_won: int, num_lost: int) -> Interval:
    """Paired 0/1 scores are known by how many prompts only the first, and only the second, answers well."""
    first, second = np.zeros(num), np.zeros(num)
    first[:num_won] = 1
    second[num_won : num_won + num_lost] = 1
    return difference(first, second)


def test_share_is_wilsons_interval():
    # Wilson 1927 for 8 of 10: centre (0.8 + z²/20) / (1 + z²/10), z = 1.96: 0.4902 and 0.9433
    interval = share_interval([True] * 8 + [False] * 2)
    assert interval.estimate == 0.8
    assert (interval.low, interval.high) == pytest.approx((0.490162, 0.943318), abs=1e-5)
    assert interval.n == 10


def test_share_stays_within_0_and_1():
    assert share_interval([False] * 5).low == 0
    assert share_interval([True] * 5).high == 1
    assert share_interval([True] * 5).low == pytest.approx(1 / (1 + 1.959964**2 / 5), abs=1e-6)
    with pytest.raises(ValueError, match="at least one"):
        share_interval([])


@pytest.mark.parametrize("true_share", [0.05, 0.3, 0.5])
def test_share_covers_the_truth_in_about_95_of_100_sets(true_share):
    rng = np.random.default_rng(0)
    covered = [
        (interval := share_interval(list(rng.random(100) < true_share))).low <= true_share <= interval.high
        for _ in range(2000)
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


def test_difference_is_bonett_and_prices_interval_for_0_and_1():
    # 12 won, 4 lost of 60: p = 13/62 and 5/62, 8/62 ± z sqrt((18/62 - (8/62)²) / 62)
    interval = difference_of_counts(60, 12, 4)
    centre, half = 8 / 62, 1.959964 * math.sqrt((18 / 62 - (8 / 62) ** 2) / 62)
    assert interval.estimate == pytest.approx(8 / 60)
    assert (interval.low, interval.high) == pytest.approx((centre - half, centre + half), abs=1 / 62)
    assert interval.n == 60


def test_models_that_always_agree_are_not_proven_equal():
    interval = difference_of_counts(60, 0, 0)
    assert interval.low < -0.02
    assert interval.high > 0.02
    assert difference_of_counts(1, 1, 0) == Interval(1.0, -1.0, 1.0, 1)


@pytest.mark.parametrize("num", [60, 200, SLOW_1000])
@pytest.mark.parametrize(
    ("effect", "share_apart"), [(0.0, 0.4), (0.0, 0.5), (0.1, 0.2), (0.1, 0.5), (0.3, 0.4), (0.3, 0.5)]
)
def test_difference_covers_the_truth_in_93_to_97_of_100_sets(num, effect, share_apart):
    won, lost = (share_apart + effect) / 2, (share_apart - effect) / 2
    rng = np.random.default_rng(11)
    sets = rng.multinomial(num, [won, lost, 1 - share_apart], size=2000)
    intervals = [difference_of_counts(num, *counts[:2]) for counts in sets.tolist()]
    assert 0.93 <= np.mean([interval.low <= effect <= interval.high for interval in intervals]) <= 0.97


@pytest.mark.parametrize("share_apart", [0.02, 0.05, 0.1])
def test_where_few_prompts_differ_the_interval_is_wide_rather_than_wrong(share_apart):
    rng = np.random.default_rng(12)
    sets = rng.multinomial(60, [share_apart / 2, share_apart / 2, 1 - share_apart], size=2000)
    intervals = [difference_of_counts(60, *counts[:2]) for counts in sets.tolist()]
    assert np.mean([interval.low <= 0 <= interval.high for interval in intervals]) >= 0.97


@pytest.mark.parametrize("num", [60, pytest.param(200, marks=pytest.mark.slow)])
def test_difference_of_scores_in_between_covers_the_truth(num):
    rng = np.random.default_rng(13)
    truth = 0.05
    sets = [np.clip(rng.normal(truth, 0.1, size=num), -1, 1) for _ in range(300)]
    intervals = [difference(scores, np.zeros(num)) for scores in sets]
    assert 0.92 <= np.mean([interval.low <= truth <= interval.high for interval in intervals]) <= 0.99


def test_scores_of_one_prompt_stay_paired():
    rng = np.random.default_rng(14)
    level = rng.random(100)
    paired = difference(level + 0.1, level)
    shuffled = difference(level + 0.1, rng.permutation(level))
    assert paired.high - paired.low < 0.2 * (shuffled.high - shuffled.low)


def test_few_kinds_and_many_kinds_are_resampled_alike(monkeypatch):
    counted = difference_of_counts(200, 50, 20)
    monkeypatch.setattr(statistics, "MAX_KINDS", 0)
    picked = difference([1] * 50 + [0] * 150, [0] * 50 + [1] * 20 + [0] * 130)
    assert (picked.low, picked.high) == pytest.approx((counted.low, counted.high), abs=0.006)


def test_resamples_of_many_prompts_take_little_memory():
    rng = np.random.default_rng(15)
    scores_3P = rng.random((3, 2000))
    scores_3P[1] += 0.3
    tokens_P = rng.integers(5, 300, size=2000)
    for statistic in (
        lambda: difference(scores_3P[0], scores_3P[1]),
        lambda: gap_recovered(*scores_3P),
        lambda: mean_score(scores_3P[0]),
        lambda: mean_per_token(scores_3P[0], tokens_P),
        lambda: kappa(scores_3P[0] > 0.5, scores_3P[1] > 0.5),
    ):
        assert statistic() is not None
    tracemalloc.start()
    gap_recovered(*scores_3P)
    difference(rng.random(30_000), rng.random(30_000))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 64 * 2**20


def test_deviation_is_that_of_the_differences_and_the_imaginary_prompts():
    # 12 won, 4 lost of 60, and one more of each: mean square 18/62, mean 8/62
    first, second = [1] * 12 + [0] * 48, [0] * 12 + [1] * 4 + [0] * 44
    assert difference_deviation(first, second) == pytest.approx(math.sqrt(18 / 62 - (8 / 62) ** 2))


@pytest.mark.parametrize("bad", [([], []), ([1.0], [1.0, 0.0]), ([math.nan], [0.0]), ([[1.0]], [[0.0]])])
def test_what_is_not_graded_is_never_a_number(bad):
    with pytest.raises(ValueError, match=r"paired by prompt|leave out rows without a grade"):
        difference(*bad)


def test_mean_score_is_wilsons_for_0_and_1_and_a_bootstrap_between():
    assert mean_score([1, 1, 0]) == share_interval([True, True, False])
    rng = np.random.default_rng(16)
    scores = rng.beta(2, 3, size=200)
    interval = mean_score(scores)
    half = 1.96 * scores.std() / math.sqrt(200)
    assert (interval.low, interval.high) == pytest.approx((scores.mean() - half, scores.mean() + half), abs=0.004)


@pytest.mark.parametrize("num", [60, pytest.param(200, marks=pytest.mark.slow), SLOW_1000])
@pytest.mark.parametrize("recovered", [0.5, 1.0])
def test_gap_recovered_covers_the_truth(num, recovered):
    rng = np.random.default_rng(17)
    student, teacher = 0.3, 0.8
    distilled = student + recovered * (teacher - student)
    covered = []
    for _ in range(200 if num == 60 else 600):
        flags_3P = rng.random((3, num)) < np.array([[student], [teacher], [distilled]])
        interval = gap_recovered(*flags_3P)
        covered.append(interval is None or interval.low <= recovered <= interval.high)
    assert 0.91 <= np.mean(covered) <= 0.985


def test_the_share_is_undefined_exactly_when_the_gaps_interval_reaches_0():
    rng = np.random.default_rng(18)
    seen = set()
    for _ in range(40):
        student, teacher, distilled = rng.random((3, 60)) < np.array([[0.4], [0.6], [0.5]])
        defined = gap_recovered(student, teacher, distilled) is not None
        assert defined == (difference(teacher, student).low > 0)
        seen.add(defined)
    assert seen == {True, False}


def test_kappa_of_a_known_table():
    # both yes 20, first alone 5, second alone 10, both no 15: agreed 0.7, by chance 0.5 x 0.6 + 0.5 x 0.4 = 0.5
    first, second = [1] * 25 + [0] * 25, [1] * 20 + [0] * 5 + [1] * 10 + [0] * 15
    interval = kappa(first, second)
    assert interval.estimate == pytest.approx(0.4)
    assert interval.low < 0.2 < 0.6 < interval.high
    assert interval.n == 50


def test_kappa_of_raters_that_always_agree_never_or_say_one_thing():
    assert kappa([0, 1, 2, 0], [0, 1, 2, 0]).estimate == 1
    assert kappa([0, 1, 2, 0], [0, 1, 2, 0]).low < 0.8
    assert kappa([0, 1], [1, 0]).estimate == -1
    assert kappa([1, 1, 1], [0, 1, 0]).estimate == 0
    assert kappa([1, 1], [1, 1]) is None


@pytest.mark.parametrize("num", [60, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("truth", [0.0, 0.4, 0.8])
def test_kappa_covers_the_truth(num, truth):
    # a share `truth` of the prompts is rated alike, the others by chance, with three things to say
    rng = np.random.default_rng(19)
    covered = []
    for _ in range(200):
        first, second = rng.choice(3, p=[0.4, 0.3, 0.3], size=(2, num))
        second = np.where(rng.random(num) < truth, first, second)
        interval = kappa(first, second)
        covered.append(interval.low <= truth <= interval.high)
    assert 0.91 <= np.mean(covered) <= 0.985


def test_the_imaginary_prompts_lie_as_far_apart_as_the_furthest_real_one():
    found = difference_deviation([0.9, 0.1, 0.0], [0.0, 0.0, 0.2])
    assert found == pytest.approx(np.std([0.9, 0.1, -0.2, 0.9, -0.9]), abs=1e-15)
    found = difference_deviation([0.0, 0.1, 0.0], [0.7, 0.0, 0.2])
    assert found == pytest.approx(np.std([-0.7, 0.1, -0.2, 0.7, -0.7]), abs=1e-15)
    assert difference_deviation([0.4, 0.8], [0.4, 0.8]) == pytest.approx(np.std([0, 0, 1, -1]), abs=1e-15)


def test_where_resamples_tell_nothing_apart_kappa_may_be_anything():
    # all six draws fall on the commonest answer in ((3 + 2 · 9/16) / 6)^6 = 11 of 100 resamples
    assert kappa([1, 1, 1, 0], [1, 1, 1, 0]) == Interval(1.0, -1.0, 1.0, 4)
