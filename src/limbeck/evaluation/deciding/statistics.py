"""Numbers with their intervals, computed with numpy and a seed; each has the number of prompts behind it.

Intervals of 0/1 shares are Wilson's. All others come from a bootstrap over prompts, so that models stay paired and all
values of one prompt stay together. The interval of a difference adds two imaginary prompts, see `difference`.

Shapes  R = resamples, P = prompts, K = kinds of prompts (equal in all columns), M = columns, V = values of a rater.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

__all__ = [
    "Interval",
    "difference",
    "difference_deviation",
    "gap_recovered",
    "kappa",
    "mean_per_token",
    "mean_score",
    "share_interval",
]

CONFIDENCE = 0.95
FEWEST_FOR_SHARES = 10  # prompts; a percentage of fewer looks more precise than it is
NUM_RESAMPLES = 10_000
PICKS_PER_BLOCK = 2_000_000
MAX_KINDS = 16
Z_95 = 1.959963984540054
TAILS = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % interval and the number of prompts behind it."""

    estimate: float
    low: float
    high: float
    n: int


def share_interval(flags: Sequence[bool]) -> Interval:
    """The share of true flags with Wilson's interval (Wilson 1927), which stays within 0 and 1 at any n.

    Raises:
        ValueError: no flags.
    """
    n = len(flags)
    if n == 0:
        raise ValueError("a share needs at least one flag")
    estimate = sum(flags) / n
    centre = (estimate + Z_95**2 / (2 * n)) / (1 + Z_95**2 / n)
    half = Z_95 / (1 + Z_95**2 / n) * np.sqrt(estimate * (1 - estimate) / n + Z_95**2 / (4 * n * n))
    # exact at 0 and 1, without a rounding error
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
    rows_P2 = np.column_stack([_column(sums), _column(num_tokens)])
    sums_R, tokens_R = _resampled_sums(rows_P2, seed).T
    low, high = np.quantile(sums_R / tokens_R, TAILS)
    total, num = rows_P2.sum(axis=0)
    return Interval(float(total / num), float(low), float(high), len(rows_P2))


def mean_score(scores: ArrayLike, *, seed: int = 0) -> Interval:
    """The mean of scores in [0, 1], with Wilson's interval if all are 0 or 1, else a percentile bootstrap over prompts.

    Raises:
        ValueError: no scores, or one that is not finite.
    """
    scores_P = _column(scores)
    if np.isin(scores_P, (0, 1)).all():
        return share_interval(scores_P.astype(bool).tolist())
    low, high = np.quantile(_resampled_sums(scores_P[:, None], seed) / len(scores_P), TAILS)
    return Interval(float(scores_P.mean()), float(low), float(high), len(scores_P))


def difference(first: ArrayLike, second: ArrayLike, *, seed: int = 0) -> Interval:
    """The mean of first - second over prompts, with a paired bootstrap that adds two imaginary prompts.

    The plain percentile bootstrap is slightly too narrow at 60 prompts and has no width if all differences are equal.
    So prompts are resampled together with two imaginary ones, one in favour of each model, whose difference is the
    largest of the real prompts (1 if all are 0). For 0/1 scores and many resamples this is the adjusted Wald interval
    of Bonett and Price (2012, Journal of Educational and Behavioral Statistics 37:479). The estimate is the plain mean.

    Raises:
        ValueError: no prompts, different numbers of them, or a score that is not finite.
    """
    difference_P, imaginary_P = _differences(first, second)
    rows_P = np.concatenate([difference_P, imaginary_P])
    low, high = np.quantile(_resampled_sums(rows_P[:, None], seed) / len(rows_P), TAILS)
    return Interval(float(difference_P.mean()), float(low), float(high), len(difference_P))


def difference_deviation(first: ArrayLike, second: ArrayLike) -> float:
    """The standard deviation of first - second over prompts, with the imaginary prompts of `difference`."""
    return float(np.concatenate(_differences(first, second)).std())


def gap_recovered(student: ArrayLike, teacher: ArrayLike, distilled: ArrayLike, *, seed: int = 0) -> Interval | None:
    """(distilled - student) / (teacher - student), paired over prompts by a percentile bootstrap.

    In a resample without a gap the share could be anything, so it counts towards both ends.

    Returns:
        None if the interval of the gap, teacher - student, reaches 0: the share is then undefined.
    """
    if difference(teacher, student, seed=seed).low <= 0:
        return None
    rows_P3 = np.column_stack([_column(scores) for scores in (student, teacher, distilled)])
    student_R, teacher_R, distilled_R = _resampled_sums(rows_P3, seed).T
    gap_R, gain_R = teacher_R - student_R, distilled_R - student_R
    exists_R = gap_R > 0
    share_R = np.divide(gain_R, gap_R, out=np.zeros_like(gain_R), where=exists_R)
    low = np.quantile(np.where(exists_R, share_R, -np.inf), TAILS[0], method="lower")
    high = np.quantile(np.where(exists_R, share_R, np.inf), TAILS[1], method="higher")
    if not (np.isfinite(low) and np.isfinite(high)):
        return None
    before, ceiling, after = rows_P3.mean(axis=0)
    return Interval(float((after - before) / (ceiling - before)), float(low), float(high), len(rows_P3))


def kappa(first: ArrayLike, second: ArrayLike, *, seed: int = 0) -> Interval | None:
    """Agreement of two raters beyond chance (Cohen 1960), with a percentile bootstrap over prompts.

    Prompts are resampled together with two imaginary ones, on which both raters agree by chance only, since agreement
    on a few prompts does not prove that raters always agree. A resample with a single rating counts towards both ends.

    Args:
        first: the rating of each prompt by one rater, as a number.
        second: the ratings of the other rater, on the same prompts.
        seed: of the resampling.

    Returns:
        None if both raters give the same single rating to all prompts: agreement beyond chance is then undefined.
    """
    ratings, codes_P = np.unique(np.concatenate([_column(first), _column(second)]), return_inverse=True)
    n, num_ratings = len(codes_P) // 2, len(ratings)
    cells_VV = np.bincount(codes_P[:n] * num_ratings + codes_P[n:], minlength=num_ratings**2).reshape(
        num_ratings, num_ratings
    )
    chance_VV = np.outer(cells_VV.sum(axis=1), cells_VV.sum(axis=0)) / n**2
    if num_ratings == 1:
        return None
    chances_K = ((cells_VV + 2 * chance_VV) / (n + 2)).ravel()
    samples_RK = np.random.default_rng(seed).multinomial(n + 2, chances_K, size=NUM_RESAMPLES)
    kappa_R = _kappas(samples_RK.reshape(-1, num_ratings, num_ratings) / (n + 2))
    low, high = (np.quantile(np.nan_to_num(kappa_R, nan=end), tail) for end, tail in zip((-1, 1), TAILS, strict=True))
    return Interval(float(_kappas(cells_VV[None] / n)[0]), float(low), float(high), n)


def _kappas(shares_RVV: np.ndarray) -> np.ndarray:
    """Cohen's kappa of each table of shares [R]; NaN if all prompts are in one cell."""
    agreed_R = np.trace(shares_RVV, axis1=1, axis2=2)
    chance_R = (shares_RVV.sum(axis=1) * shares_RVV.sum(axis=2)).sum(axis=1)
    return np.divide(agreed_R - chance_R, 1 - chance_R, out=np.full_like(agreed_R, np.nan), where=chance_R < 1 - 1e-12)


def _differences(first: ArrayLike, second: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """first - second [P], and those of the two imaginary prompts [2]."""
    first_P, second_P = _column(first), _column(second)
    if len(first_P) != len(second_P):
        raise ValueError(f"scores are paired by prompt, but there are {len(first_P)} and {len(second_P)}")
    difference_P = first_P - second_P
    reach = float(np.abs(difference_P).max()) or 1.0
    return difference_P, np.array([reach, -reach])


def _column(values: ArrayLike) -> np.ndarray:
    column_P = np.asarray(values, dtype=np.float64)
    if column_P.ndim != 1 or not len(column_P) or not np.isfinite(column_P).all():
        raise ValueError(
            "at least one row is required, and every number must be finite; leave out rows without a grade"
        )
    return column_P


def _resampled_sums(rows_PM: np.ndarray, seed: int) -> np.ndarray:
    """The sum of each column over each resample of the prompts [R, M].

    The number of times that each kind of prompt is sampled is multinomial, which is fast for few kinds, as with 0/1
    scores. For many kinds, rows are sampled one by one, in blocks of resamples to limit memory.
    """
    num_prompts = len(rows_PM)
    generator = np.random.default_rng(seed)
    kinds_KM, counts_K = np.unique(rows_PM, axis=0, return_counts=True)
    if len(kinds_KM) <= MAX_KINDS:
        counts_RK = generator.multinomial(num_prompts, counts_K / num_prompts, size=NUM_RESAMPLES)
        return counts_RK @ kinds_KM
    sums_RM = np.empty((NUM_RESAMPLES, rows_PM.shape[1]))
    block = max(1, PICKS_PER_BLOCK // num_prompts)
    for start in range(0, NUM_RESAMPLES, block):
        picks_RP = generator.integers(num_prompts, size=(min(block, NUM_RESAMPLES - start), num_prompts))
        for column in range(rows_PM.shape[1]):
            sums_RM[start : start + block, column] = rows_PM[:, column].take(picks_RP).sum(axis=1)
    return sums_RM
