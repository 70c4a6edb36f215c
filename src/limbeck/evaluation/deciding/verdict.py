"""Two decisions with their intervals: is distilling worth it (before), and did it work (after).

Both use one rule with `band`, the smallest difference that matters (0.1: 10 points). A difference matters if its
interval is above 0 and its estimate is at least `band`. It does not matter if the interval ends below `band`.
Otherwise there is no decision yet, and the verdict estimates how many more prompts would settle it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist

import numpy as np

from limbeck.evaluation.deciding.comparison import Comparison
from limbeck.evaluation.deciding.statistics import FEWEST_FOR_SHARES, Z_95, Interval
from limbeck.evaluation.messages import verdicts as messages

__all__ = ["Decision", "Reason", "Verdict", "decide_after", "decide_before", "prompts_needed", "verdict_text"]

BAND = 0.1
SETTLED_SHARE = 0.8
MAX_PROMPTS = 100_000
HIGH_SHARE = 0.5
HIGH_STYLE_SHARE = 0.3


class Decision(StrEnum):
    DISTIL = "distil"
    DONT = "don't"
    NOT_SURE = "not sure"
    SHIP = "ship"
    STYLE_NEXT = "style next"
    MORE_TRAINING = "more training"
    BACK_TO_PLAN = "back to plan"
    CHECK = "check grader and leak"


class Reason(StrEnum):
    """Why a decision was made, as stored in a result."""

    CLEAR_GAP = "clear-gap"
    SMALL_GAP = "small-gap"
    STUDENT_AHEAD = "student-ahead"
    UNSETTLED = "unsettled"
    BOTH_BAD = "both-bad"
    BOTH_GOOD = "both-good"
    ABOVE_TEACHER = "above-teacher"
    CLEAR_GAIN = "clear-gain"
    SMALL_GAIN = "small-gain"
    WORSE = "worse"
    NEAR_TEACHER = "near-teacher"
    FAR_FROM_TEACHER = "far-from-teacher"
    STYLE = "wrong-style"


@dataclass(frozen=True)
class Verdict:
    """A decision, its reasons, and the differences behind it.

    `gap` is teacher - student. After distilling, `gain` is distilled - student, `left` is teacher - distilled, and
    `recovered` is the share of the gap recovered. `more_prompts` is set for "not sure" only; None there means that no
    number of prompts would settle it.
    """

    decision: Decision
    reasons: tuple[Reason, ...]
    band: float
    gap: Interval | None = None
    gain: Interval | None = None
    left: Interval | None = None
    recovered: Interval | None = None
    more_prompts: int | None = None


def decide_before(teacher_and_student: Comparison, *, band: float = BAND) -> Verdict:
    """Distil, don't, or not sure. The first model of `teacher_and_student` is the teacher."""
    compared, gap = teacher_and_student, teacher_and_student.difference
    decision = _rule(gap, band)
    reasons = {Decision.DISTIL: Reason.CLEAR_GAP, Decision.DONT: Reason.SMALL_GAP, Decision.NOT_SURE: Reason.UNSETTLED}
    found = [Reason.STUDENT_AHEAD if gap.high < 0 else reasons[decision]]
    if compared.both_bad is not None and compared.both_bad.estimate > HIGH_SHARE:
        found.append(Reason.BOTH_BAD)
    if compared.both_good is not None and compared.both_good.estimate > HIGH_SHARE:
        found.append(Reason.BOTH_GOOD)
    more = _more_prompts(compared, band) if decision is Decision.NOT_SURE else None
    return Verdict(decision, tuple(found), band, gap=gap, more_prompts=more)


def decide_after(
    distilled_and_student: Comparison,
    teacher_and_distilled: Comparison,
    recovered: Interval | None,
    *,
    right_wrong_style: Interval | None = None,
    band: float = BAND,
) -> Verdict:
    """What to do next: the rule is applied to the gain, then to what the teacher is still ahead.

    `right_wrong_style` is the share of answers that people voted to be right but in the wrong style.
    """
    gain, left = distilled_and_student.difference, teacher_and_distilled.difference
    gained, remains = _rule(gain, band), _rule(left, band)
    more = None
    if left.high < 0:
        decision, reasons = Decision.CHECK, (Reason.ABOVE_TEACHER,)
    elif gain.high < 0:
        decision, reasons = Decision.BACK_TO_PLAN, (Reason.WORSE,)
    elif gain.low <= 0 and gained is Decision.DONT:
        decision, reasons = Decision.BACK_TO_PLAN, (Reason.SMALL_GAIN,)
    elif gain.low <= 0:
        decision, reasons = Decision.NOT_SURE, (Reason.UNSETTLED,)
        more = _more_prompts(distilled_and_student, band)
    elif right_wrong_style is not None and right_wrong_style.estimate > HIGH_STYLE_SHARE:
        decision, reasons = Decision.STYLE_NEXT, (Reason.CLEAR_GAIN, Reason.STYLE)
    elif remains is Decision.DISTIL:
        decision, reasons = Decision.MORE_TRAINING, (Reason.CLEAR_GAIN, Reason.FAR_FROM_TEACHER)
    elif remains is Decision.DONT:
        decision, reasons = Decision.SHIP, (Reason.CLEAR_GAIN, Reason.NEAR_TEACHER)
    else:
        decision, reasons = Decision.NOT_SURE, (Reason.CLEAR_GAIN, Reason.UNSETTLED)
        more = _more_prompts(teacher_and_distilled, band)
    return Verdict(decision, reasons, band, gain=gain, left=left, recovered=recovered, more_prompts=more)


def prompts_needed(effect: float, deviation: float, band: float = BAND, *, num_now: int = 0) -> int | None:
    """The fewest prompts, more than `num_now`, at which the rule decides with probability 0.8 if `effect` is true.

    `effect` and `deviation` are the mean and the standard deviation of the difference over prompts. This is a normal
    approximation, with the imaginary prompts of `statistics.difference`. Returns None if 100,000 prompts are not
    enough, because the effect is too close to `band`.
    """
    normal = NormalDist()
    for num in np.unique(np.geomspace(1, MAX_PROMPTS, 4000).astype(int)).tolist():
        mean = effect * num / (num + 2)
        variance = (num * (deviation**2 + effect**2) + 2) / (num + 2) - mean**2
        # half the interval and the standard error of the estimate, both on the scale of the plain mean
        half = Z_95 * math.sqrt(variance * (num + 2)) / num
        spread = max(deviation, 1e-9) / math.sqrt(num)
        distil = 1 - normal.cdf((max(band, half) - effect) / spread)
        dont = normal.cdf((band * (num + 2) / num - half - effect) / spread)
        if num > num_now and distil + dont >= SETTLED_SHARE:
            return num
    return None


def verdict_text(verdict: Verdict) -> list[str]:
    """The verdict in sentences: the decision with its numbers first, then what else to know."""
    lines: list[str] = [_headline(verdict)]
    reasons = {Reason.BOTH_BAD: messages.both_bad, Reason.BOTH_GOOD: messages.both_good}
    lines += [reasons[reason]() for reason in verdict.reasons if reason in reasons]
    if verdict.gain is not None and verdict.left is not None:
        above = verdict.decision is Decision.CHECK
        lines.append(
            messages.gain(**_points(verdict.gain)) if above else messages.teacher_lead(**_points(verdict.left))
        )
        share = verdict.recovered
        if share is None:
            lines.append(messages.recovered_undefined())
        elif share.n >= FEWEST_FOR_SHARES:
            lines.append(messages.recovered(share=share.estimate, low=share.low, high=share.high))
    if verdict.more_prompts is not None:
        step = 10 ** max(0, len(str(verdict.more_prompts)) - 2)
        lines.append(messages.more_prompts(num=-(-verdict.more_prompts // step) * step))
    elif verdict.decision is Decision.NOT_SURE:
        lines.append(messages.never_settled(band=100 * verdict.band))
    return lines


def _headline(verdict: Verdict) -> str:
    reason, band = verdict.reasons[0], 100 * verdict.band
    if verdict.gap is not None:
        gap = _points(verdict.gap)
        if reason is Reason.SMALL_GAP:
            return messages.not_worth_it(**gap, band=band)
        if reason is Reason.UNSETTLED:
            return messages.worth_undecided(**gap, band=band)
        return messages.worth_it(**gap) if reason is Reason.CLEAR_GAP else messages.student_ahead(**gap)
    assert verdict.gain is not None
    assert verdict.left is not None
    gain = _points(verdict.gain)
    if reason is Reason.ABOVE_TEACHER:
        left = verdict.left
        return messages.above_teacher(**_points(Interval(-left.estimate, -left.high, -left.low, left.n)))
    if Reason.NEAR_TEACHER in verdict.reasons:
        return messages.better_and_near_teacher(**gain, band=band)
    if verdict.reasons == (Reason.CLEAR_GAIN, Reason.UNSETTLED):
        return messages.better_rest_undecided(**gain, band=band)
    sentences = {
        Reason.WORSE: messages.worse,
        Reason.SMALL_GAIN: messages.not_better,
        Reason.UNSETTLED: messages.gain_undecided,
        Reason.STYLE: messages.better_in_wrong_style,
        Reason.FAR_FROM_TEACHER: messages.better_and_far_from_teacher,
    }
    return sentences[verdict.reasons[-1]](**gain)


def _points(interval: Interval) -> dict[str, int]:
    """An interval as parameters of a message, in hundredths."""
    low, high = round(100 * interval.low), round(100 * interval.high)
    return {"points": round(100 * interval.estimate), "low": low, "high": high, "num": interval.n}


def _rule(interval: Interval, band: float) -> Decision:
    if interval.low > 0 and interval.estimate >= band:
        return Decision.DISTIL
    return Decision.DONT if interval.high < band else Decision.NOT_SURE


def _more_prompts(compared: Comparison, band: float) -> int | None:
    now = compared.difference
    needed = prompts_needed(now.estimate, compared.deviation, band, num_now=now.n)
    return None if needed is None else needed - now.n
