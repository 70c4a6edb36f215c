"""Two decisions with their intervals: is it worth distilling (before), and did it work (after).

Both stand on one rule about a difference and a band, the smallest difference that is worth the work (0.1: 10 points).
The difference matters when its interval lies above 0 and the estimate reaches the band; it does not when the interval
ends below the band; else nobody can say yet, and about N more prompts would tell.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist

import numpy as np

from limbeck.evaluation.deciding.comparison import Comparison
from limbeck.evaluation.deciding.statistics import Z_95, Interval

__all__ = ["Decision", "Reason", "Verdict", "after", "before", "points", "prompts_needed", "words"]

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
    CLEAR_GAP = "The teacher is clearly better."
    SMALL_GAP = "The teacher is not better by as much as the band."
    STUDENT_AHEAD = "The plain student is clearly better than the teacher."
    UNSETTLED = "The interval allows both answers."
    BOTH_BAD = "Mostly neither answers well, so there is little to transfer: train on answers of your own first."
    BOTH_GOOD = "Mostly both answer well: the student can be used as it is today."
    ABOVE_TEACHER = (
        "The distilled student is clearly above its teacher: a weak grader or leaked prompts look like this."
    )
    CLEAR_GAIN = "Distilling clearly helped."
    SMALL_GAIN = "Distilling did not help by as much as the band."
    WORSE = "Distilling clearly harmed."
    NEAR_TEACHER = "What is left to the teacher is less than the band."
    FAR_FROM_TEACHER = "The teacher is still clearly better."
    STYLE = "Many answers are right and in the wrong style."


@dataclass(frozen=True)
class Verdict:
    """A decision, why, and what it stands on: `gap` is teacher - student; after distilling, `gain` is distilled -
    student, `left` is teacher - distilled, `recovered` the share of the gap.

    `more_prompts` is for "not sure" alone; there, None says that no number of prompts would settle it.
    """

    decision: Decision
    reasons: tuple[Reason, ...]
    band: float
    gap: Interval | None = None
    gain: Interval | None = None
    left: Interval | None = None
    recovered: Interval | None = None
    more_prompts: int | None = None


def before(teacher_and_student: Comparison, *, band: float = BAND) -> Verdict:
    """Distil, don't, or not sure; `teacher_and_student` has the teacher as its first model."""
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


def after(
    distilled_and_student: Comparison,
    teacher_and_distilled: Comparison,
    recovered: Interval | None,
    *,
    right_wrong_style: Interval | None = None,
    band: float = BAND,
) -> Verdict:
    """What next. The rule asks whether the gain matters, then whether what is left to the teacher does.

    `right_wrong_style` is the share of answers that people called right but in the wrong style, where they voted.
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
    """The fewest prompts, more than `num_now`, at which the rule settles with probability 0.8 if the effect is true.

    `effect` and `deviation` are the mean and standard deviation of the differences between prompts. A normal
    approximation, with the imaginary prompts of `statistics.difference`. None when 100,000 prompts would not do: the
    effect lies at the band, and which side to take is a matter of taste.
    """
    normal = NormalDist()
    for num in np.unique(np.geomspace(1, MAX_PROMPTS, 4000).astype(int)).tolist():
        mean = effect * num / (num + 2)
        variance = (num * (deviation**2 + effect**2) + 2) / (num + 2) - mean**2
        # half an interval, and the estimate's spread, both on the scale of the plain mean
        half = Z_95 * math.sqrt(variance * (num + 2)) / num
        spread = max(deviation, 1e-9) / math.sqrt(num)
        distil = 1 - normal.cdf((max(band, half) - effect) / spread)
        dont = normal.cdf((band * (num + 2) / num - half - effect) / spread)
        if num > num_now and distil + dont >= SETTLED_SHARE:
            return num
    return None


def words(verdict: Verdict) -> list[str]:
    """The verdict in sentences for people: the decision with its numbers, the reasons, and how many more prompts."""
    measured = {
        "teacher against student": verdict.gap,
        "distilled against student": verdict.gain,
        "teacher against distilled": verdict.left,
    }
    numbers = [f"{name} {points(interval)}" for name, interval in measured.items() if interval is not None]
    if verdict.gain is not None:
        share = verdict.recovered
        text = "undefined" if share is None else f"{share.estimate:.0%} ({share.low:.0%} to {share.high:.0%})"
        numbers.append(f"share of the gap recovered {text}")
    lines = [f"{verdict.decision.capitalize()}: {', '.join(numbers)}.", *verdict.reasons]
    if verdict.more_prompts is not None:
        step = 10 ** max(0, len(str(verdict.more_prompts)) - 2)
        about = -(-verdict.more_prompts // step) * step
        lines.append(
            f"If it is as it looks now, about {about:,} more prompts settle it in 4 of 5 cases. Answer all of them "
            "before looking again."
        )
    elif verdict.decision is Decision.NOT_SURE:
        lines.append(f"It lies so near the band of {100 * verdict.band:g} points that no number of prompts settles it.")
    return lines


def points(interval: Interval) -> str:
    """+31 points (+24 to +38, 200 prompts)."""
    low, high = 100 * interval.low, 100 * interval.high
    return f"{round(100 * interval.estimate):+d} points ({round(low):+d} to {round(high):+d}, {interval.n} prompts)"


def _rule(interval: Interval, band: float) -> Decision:
    if interval.low > 0 and interval.estimate >= band:
        return Decision.DISTIL
    return Decision.DONT if interval.high < band else Decision.NOT_SURE


def _more_prompts(compared: Comparison, band: float) -> int | None:
    now = compared.difference
    needed = prompts_needed(now.estimate, compared.deviation, band, num_now=now.n)
    return None if needed is None else needed - now.n
