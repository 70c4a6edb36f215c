"""Numbers with their intervals. Everything here is numpy, seeded, and says how many rows it stands on.

Shapes  R = resamples, P = prompts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Interval", "gap_recovered", "mean_per_token", "share"]

CONFIDENCE = 0.95
NUM_RESAMPLES = 10_000
RESAMPLES_PER_BLOCK = 500
Z_95 = 1.959963984540054


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % interval and the number of prompts behind it."""

    estimate: float
    low: float
    high: float
    n: int


def share(flags: Sequence[bool]) -> Interval:
    """The share of true flags with Wilson's interval (Wilson 1927), which stays within 0 and 1 at any n.

    Raises:
        ValueError: no flags.
    """
    n = len(flags)
    if n == 0:
        raise ValueError("a share needs at least one row")
    estimate = sum(flags) / n
    centre = (estimate + Z_95**2 / (2 * n)) / (1 + Z_95**2 / n)
    half = Z_95 / (1 + Z_95**2 / n) * np.sqrt(estimate * (1 - estimate) / n + Z_95**2 / (4 * n * n))
    # at 0 and 1 the bound is exact, not a rounding beside it
    low = 0.0 if estimate == 0 else float(centre - half)
    high = 1.0 if estimate == 1 else float(centre + half)
    return Interval(estimate, low, high, n)


def mean_per_token(sums: Sequence[float], num_tokens: Sequence[int], *, seed: int = 0) -> Interval:
    """A mean over all tokens, with a percentile bootstrap over prompts (tokens of one answer are not independent).

    Args:
        sums: for each prompt, the sum over its tokens.
        num_tokens: for each prompt, its tokens.
        seed: of the resampling.
    """
    sums_P, tokens_P = np.asarray(sums, dtype=np.float64), np.asarray(num_tokens, dtype=np.float64)
    means_R = np.concatenate(
        [sums_P[picks_RP].sum(axis=1) / tokens_P[picks_RP].sum(axis=1) for picks_RP in _resamples(len(sums_P), seed)]
    )
    low, high = np.quantile(means_R, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(float(sums_P.sum() / tokens_P.sum()), float(low), float(high), len(sums_P))


def gap_recovered(
    student: Sequence[bool], teacher: Sequence[bool], distilled: Sequence[bool], *, seed: int = 0
) -> Interval | None:
    """(distilled - student) / (teacher - student), paired over prompts by a percentile bootstrap.

    Returns:
        None when the gap itself may be 0 (it is in some resample): a share of nothing is undefined.
    """
    flags_3P = np.asarray([student, teacher, distilled], dtype=np.float64)
    means_3R = np.concatenate(
        [flags_3P[:, picks_RP].mean(axis=2) for picks_RP in _resamples(flags_3P.shape[1], seed)], axis=1
    )
    student_R, teacher_R, distilled_R = means_3R
    gap_R = teacher_R - student_R
    if gap_R.min() <= 0:
        return None
    before, ceiling, after = flags_3P.mean(axis=1)
    low, high = np.quantile((distilled_R - student_R) / gap_R, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(float((after - before) / (ceiling - before)), float(low), float(high), flags_3P.shape[1])


def _resamples(num_rows: int, seed: int) -> Iterator[np.ndarray]:
    """Row numbers of all resamples [R, P], a block at a time, since 10,000 times 10,000 numbers take 800 MB."""
    generator = np.random.default_rng(seed)
    for _ in range(NUM_RESAMPLES // RESAMPLES_PER_BLOCK):
        yield generator.integers(num_rows, size=(RESAMPLES_PER_BLOCK, num_rows))
