from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from graded import pair_of_counts

from limbeck.evaluation.deciding.comparison import Comparison, compare
from limbeck.evaluation.deciding.statistics import Interval, difference, share_interval
from limbeck.evaluation.deciding.verdict import (
    Decision,
    Reason,
    decide_after,
    decide_before,
    prompts_needed,
    verdict_text,
)


@cache
def compared(num_first: int, num_second: int, both_good: int, both_bad: int) -> Comparison:
    return compare(*pair_of_counts(num_first, num_second, both_good, both_bad))


def decisions(num, effect, share_apart, *, num_sets, seed) -> list[Decision]:
    """Verdicts on sets drawn with a planted effect, where `share_apart` of the prompts are good for one model alone."""
    won, lost = (share_apart + effect) / 2, (share_apart - effect) / 2
    sets = np.random.default_rng(seed).multinomial(num, [won, lost, 1 - share_apart], size=num_sets).tolist()
    return [decide(*counts) for counts in sets]


@cache
def decide(first: int, second: int, ties: int) -> Decision:
    """The verdict on 0/1 grades, which are known by how many prompts only the first, or only the second, has good."""
    values = np.concatenate([np.ones(first), -np.ones(second), np.zeros(ties)])
    found = difference(values, np.zeros_like(values))
    return decide_before(of((found.estimate, found.low, found.high), n=found.n)).decision


def of(difference: tuple[float, float, float], *, n: int = 200) -> Comparison:
    """A comparison of which only the difference counts."""
    estimate, low, high = difference
    return replace(compared(50, 30, 60, 60), difference=Interval(estimate, low, high, n))


@pytest.mark.parametrize(
    ("difference", "decision"),
    [
        *(((0.2, 0.1, 0.3), Decision.DISTIL), ((0.1, 0.001, 0.2), Decision.DISTIL)),
        *(((0.0999, 0.001, 0.2), Decision.NOT_SURE), ((0.2, 0.0, 0.4), Decision.NOT_SURE)),
        *(((0.05, 0.01, 0.0999), Decision.DONT), ((0.0, -0.1, 0.1), Decision.NOT_SURE)),
        *(((0.0, -0.09, 0.09), Decision.DONT), ((-0.3, -0.4, -0.2), Decision.DONT)),
    ],
)
def test_the_rule_before(difference, decision):
    found = decide_before(of(difference))
    assert found.decision == decision
    assert found.gap == of(difference).difference
    assert (found.more_prompts is not None) == (decision == Decision.NOT_SURE and difference[0] != 0.0999)


def test_the_band_is_a_setting():
    assert decide_before(of((0.07, 0.02, 0.12)), band=0.05).decision == Decision.DISTIL
    assert decide_before(of((0.07, 0.02, 0.12)), band=0.2).decision == Decision.DONT


def test_what_ties_say():
    assert Reason.BOTH_BAD in decide_before(compared(10, 5, 10, 75)).reasons
    assert Reason.BOTH_GOOD in decide_before(compared(10, 5, 75, 10)).reasons
    assert decide_before(compared(50, 10, 20, 20)).reasons == (Reason.CLEAR_GAP,)
    assert decide_before(compared(10, 50, 20, 20)).reasons == (Reason.STUDENT_AHEAD,)


@pytest.mark.parametrize("share_apart", [0.1, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("num", [60, 200, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_teacher_no_better_seldom_gets_distil(num, share_apart):
    found = decisions(num, 0.0, share_apart, num_sets=10_000, seed=1)
    assert found.count(Decision.DISTIL) / len(found) <= 0.035


def test_a_planted_gap_of_20_points_gets_distil_at_200_prompts():
    found = decisions(200, 0.2, 0.4, num_sets=500, seed=2)
    assert found.count(Decision.DISTIL) / len(found) >= 0.98
    assert found.count(Decision.DONT) == 0
    assert decide_before(compared(60, 20, 60, 60)).decision == Decision.DISTIL


@pytest.mark.parametrize(
    ("effect", "share_apart", "decision"),
    [
        *((0.3, 0.5, Decision.DISTIL), (0.2, 0.4, Decision.DISTIL), (0.15, 0.4, Decision.DISTIL)),
        *((0.0, 0.2, Decision.DONT), (-0.1, 0.5, Decision.DONT), (0.03, 0.2, Decision.DONT)),
    ],
)
def test_the_proposed_number_of_prompts_settles_it_in_80_of_100_sets(effect, share_apart, decision):
    num = prompts_needed(effect, math.sqrt(share_apart - effect**2))
    assert num is not None
    found = decisions(num, effect, share_apart, num_sets=2000, seed=3)
    assert 0.7 <= 1 - found.count(Decision.NOT_SURE) / len(found) <= 0.9
    assert found.count(decision) / len(found) >= 0.68


def test_how_many_prompts_are_needed():
    # far above the band only the interval counts: effect = (1.96 + 0.84) deviation / sqrt(N), nearly
    assert prompts_needed(0.2, 0.6) == pytest.approx((2.8 * 0.6 / 0.2) ** 2, rel=0.1)
    # below the band: 0.1 - effect = (1.96 + 0.84) deviation / sqrt(N)
    assert prompts_needed(0.05, 0.6) == pytest.approx((2.8 * 0.6 / 0.05) ** 2, rel=0.05)
    assert prompts_needed(0.1, 0.6) is None
    assert prompts_needed(0.2, 0.6, num_now=500) == pytest.approx(501, abs=3)
    assert prompts_needed(0.0, 0.0) < 60


@pytest.mark.slow
def test_asking_more_prompts_once_hardly_raises_the_false_rate():
    # 3.0 % by the closed form; four standard errors of 1,500 sets above it
    rng = np.random.default_rng(4)
    num, chances = 60, [0.25, 0.25, 0.5]
    num_wrong = 0
    for counts in rng.multinomial(num, chances, size=1500).tolist():
        decision = decide(*counts)
        more = decide_before(compared(*counts, 0)).more_prompts
        if more is not None and more <= 3000:
            decision = decide(*(np.array(counts) + rng.multinomial(more, chances)).tolist())
        num_wrong += decision == Decision.DISTIL
    assert num_wrong / 1500 <= 0.048


CLEAR, NOTHING, WIDE = (0.3, 0.2, 0.4), (0.0, -0.05, 0.05), (0.05, -0.05, 0.15)


@pytest.mark.parametrize(
    ("gain", "left", "decision", "reason"),
    [
        (CLEAR, NOTHING, Decision.SHIP, Reason.NEAR_TEACHER),
        (CLEAR, CLEAR, Decision.MORE_TRAINING, Reason.FAR_FROM_TEACHER),
        (CLEAR, WIDE, Decision.NOT_SURE, Reason.UNSETTLED),
        (CLEAR, (-0.1, -0.2, -0.01), Decision.CHECK, Reason.ABOVE_TEACHER),
        (NOTHING, CLEAR, Decision.BACK_TO_PLAN, Reason.SMALL_GAIN),
        ((-0.2, -0.3, -0.1), CLEAR, Decision.BACK_TO_PLAN, Reason.WORSE),
        (WIDE, CLEAR, Decision.NOT_SURE, Reason.UNSETTLED),
        ((0.05, 0.02, 0.08), NOTHING, Decision.SHIP, Reason.CLEAR_GAIN),
    ],
)
def test_the_rule_after(gain, left, decision, reason):
    found = decide_after(of(gain), of(left), None)
    assert found.decision == decision
    assert reason in found.reasons
    assert (found.more_prompts is not None) == (decision == Decision.NOT_SURE)


def test_style_comes_next_when_many_answers_are_right_in_the_wrong_style():
    style = share_interval([True] * 14 + [False] * 26)
    assert decide_after(of(CLEAR), of(NOTHING), None, right_wrong_style=style).decision == Decision.STYLE_NEXT
    assert decide_after(of(CLEAR), of(CLEAR), None, right_wrong_style=style).decision == Decision.STYLE_NEXT
    assert decide_after(of(NOTHING), of(CLEAR), None, right_wrong_style=style).decision == Decision.BACK_TO_PLAN
    few = share_interval([True] * 10 + [False] * 30)
    assert decide_after(of(CLEAR), of(NOTHING), None, right_wrong_style=few).decision == Decision.SHIP


def test_the_verdict_comes_first_and_has_its_interval():
    text = verdict_text(decide_before(of((0.31, 0.24, 0.38))))
    assert text == [
        "Distilling is worth it: the teacher is better than the original student (+31 points, 95% CI +24 to +38). "
        "200 prompts."
    ]
    assert (text[0].code, text[0].parameters) == (
        "evaluation.worth-it",
        {"points": 31, "low": 24, "high": 38, "num": 200},
    )
    unsure = verdict_text(decide_before(of((0.12, -0.02, 0.26), n=60)))
    assert [each.code for each in unsure] == ["evaluation.worth-undecided", "evaluation.more-prompts"]
    assert unsure[0].parameters["band"] == 10
    assert unsure[1].startswith("About 630 more prompts would probably settle it")
    never = verdict_text(decide_before(of((0.1, 0.0, 0.2))))
    assert [each.code for each in never] == ["evaluation.worth-undecided", "evaluation.never-settled"]
    assert [each.code for each in verdict_text(decide_before(of((-0.2, -0.3, -0.1))))] == ["evaluation.student-ahead"]
    assert [each.code for each in verdict_text(decide_before(compared(0, 0, 5, 195)))] == [
        "evaluation.not-worth-it",
        "evaluation.both-bad",
    ]


@pytest.mark.parametrize(
    ("gain", "left", "code"),
    [
        (CLEAR, NOTHING, "better-and-near-teacher"),
        (CLEAR, CLEAR, "better-and-far-from-teacher"),
        (CLEAR, WIDE, "better-rest-undecided"),
        (CLEAR, (-0.1, -0.2, -0.01), "above-teacher"),
        (NOTHING, CLEAR, "not-better"),
        ((-0.2, -0.3, -0.1), CLEAR, "worse"),
        (WIDE, CLEAR, "gain-undecided"),
    ],
)
def test_each_decision_after_training_has_its_sentence(gain, left, code):
    first, second, *_ = verdict_text(decide_after(of(gain), of(left), None))
    shown = tuple(-value for value in (left[0], left[2], left[1])) if code == "above-teacher" else gain
    assert first.code == f"evaluation.{code}"
    numbers = [first.parameters[name] for name in ("points", "low", "high")]
    assert numbers == pytest.approx([100 * value for value in shown])
    assert second.code == ("evaluation.gain" if code == "above-teacher" else "evaluation.teacher-lead")


def test_the_share_of_the_gap_is_shown_for_ten_prompts_and_more():
    def text(recovered):
        return verdict_text(decide_after(of(CLEAR), of(NOTHING), recovered))

    done = text(Interval(0.79, 0.58, 1.01, 200))
    assert done == [
        "The distilled student is better than before (+30 points, 95% CI +20 to +40) and within 10 points of the "
        "teacher. 200 prompts.",
        "Teacher compared with the distilled student: +0 points (95% CI -5 to +5, 200 prompts).",
        "Share of the gap recovered: 79% (95% CI 58% to 101%).",
    ]
    assert text(None)[2].code == "evaluation.recovered-undefined"
    assert len(text(Interval(0.79, 0.58, 1.01, 10))) == 3
    assert len(text(Interval(0.79, 0.58, 1.01, 9))) == 2
    style = share_interval([True] * 14 + [False] * 26)
    (first, *_) = verdict_text(decide_after(of(CLEAR), of(NOTHING), None, right_wrong_style=style))
    assert first.code == "evaluation.better-in-wrong-style"


@pytest.mark.parametrize(
    ("left", "decision"),
    [
        # above the teacher by the whole interval, and not by the estimate alone
        ((-0.2, -0.3, -0.001), Decision.CHECK),
        ((-0.2, -0.4, 0.0), Decision.SHIP),
        ((-0.01, -0.02, 0.05), Decision.SHIP),
    ],
)
def test_above_the_teacher_means_the_whole_interval(left, decision):
    assert decide_after(of(CLEAR), of(left), None).decision == decision


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (1, "1 more prompt"),
        (37, "37 more prompts"),
        (99, "99 more prompts"),
        (101, "110 more prompts"),
        (630, "630 more prompts"),
        (1234, "1,300 more prompts"),
    ],
)
def test_more_prompts_are_rounded_up_to_two_digits(more, said):
    verdict = replace(decide_before(of((0.12, -0.02, 0.26))), more_prompts=more)
    last = verdict_text(verdict)[-1]
    assert last.code == "evaluation.more-prompts"
    assert last.startswith(f"About {said} would probably settle it")


@pytest.mark.parametrize(
    ("effect", "deviation", "band"),
    [(0.3, 0.5, 0.1), (0.5, 0.4, 0.1), (-0.2, 0.3, 0.1), (0.15, 0.05, 0.1), (0.4, 0.3, 0.3)],
)
def test_the_number_of_prompts_is_the_first_at_which_four_of_five_sets_settle(effect, deviation, band):
    """By integrating the rule itself over the estimate: two imaginary prompts at 1 and -1 are in every interval."""

    def settled(num):
        values = effect + deviation * np.sqrt(num / max(1, num - num % 2)) * np.resize([1.0, -1.0], num)
        values += effect - values.mean() if num % 2 else 0.0
        values = effect + (values - effect) * (deviation / values.std() if values.std() else 1.0)
        with_both = np.concatenate([values, [1.0, -1.0]])
        half = 1.959964 * with_both.std() / math.sqrt(num + 2)
        shift = num / (num + 2)  # the interval stands around the mean with both, the estimate is the plain mean
        spread = deviation / math.sqrt(num)
        means = np.linspace(effect - 8 * spread, effect + 8 * spread, 200_001)
        density = np.exp(-0.5 * ((means - effect) / spread) ** 2)
        distil = (means * shift - half > 0) & (means >= band)
        dont = means * shift + half < band
        return ((distil | dont) * density).sum() / density.sum()

    num = prompts_needed(effect, deviation, band)
    assert num > 3
    assert settled(num) >= 0.79
    assert settled(num - 1) <= 0.81
    assert settled(num - 2) < 0.8


def test_ties_are_mentioned_when_they_are_more_than_half():
    assert decide_before(compared(55, 45, 100, 0)).reasons == (Reason.UNSETTLED,)
    assert decide_before(compared(55, 44, 101, 0)).reasons == (Reason.UNSETTLED, Reason.BOTH_GOOD)
    assert decide_before(compared(55, 45, 0, 100)).reasons == (Reason.UNSETTLED,)
    assert decide_before(compared(55, 44, 0, 101)).reasons == (Reason.UNSETTLED, Reason.BOTH_BAD)
