"""Confidence intervals of means over samples, by a seeded bootstrap.

The *expanded percentile* bootstrap (Hesterberg, The American Statistician 69, 2015): samples are drawn with
replacement, the mean is taken each time, and the interval lies between two percentiles of those means. The percentiles
correct the error of the plain bootstrap with few samples: its means spread by a factor √((n−1)/n)
too little, and normal quantiles stand where Student's belong. Unlike mean ± t · standard error it follows skewed scores
and does not leave their range.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

CONFIDENCE = 0.95
RESAMPLES = 2000
SEED = 0
METHOD = f"{CONFIDENCE:.0%} intervals: expanded percentile bootstrap over samples, {RESAMPLES} resamples, seed {SEED}"

Values = npt.NDArray[np.float64]


def bootstrap(
    values: npt.ArrayLike, *, confidence: float = CONFIDENCE, resamples: int = RESAMPLES, seed: int = SEED
) -> tuple[Values, Values]:
    """Lower and upper ends of the intervals of the means of `values`, (sample, …); each end is (…).

    Columns measured on the same samples meet the same draws. NaN is 'not measured' and left out of the means; a column
    with fewer than two numbers has no interval: NaN.
    """
    array = np.asarray(values, np.float64)
    rest = array.shape[1:]
    array = array.reshape(len(array), -1)
    known = np.isfinite(array)
    low, high = np.full(array.shape[1], np.nan), np.full(array.shape[1], np.nan)
    # Columns measured on the same samples are taken together; the result of one column does not depend on the others.
    patterns, group = np.unique(known, axis=1, return_inverse=True)
    for number in range(patterns.shape[1]):
        rows, columns = patterns[:, number], np.flatnonzero(group.ravel() == number)
        count = int(rows.sum())
        if count < 2:
            continue
        chosen = array[np.ix_(rows, columns)]
        centre = chosen.mean(0)  # equal scores keep an interval of no width
        means = _draws(count, resamples, seed) @ (chosen - centre) / count + centre
        tail = expanded_tail(count, confidence)
        ends = np.quantile(means, [tail, 1 - tail], axis=0)
        ends[np.abs(ends) < 1e-12 * np.abs(chosen).max(0)] = 0.0  # a zero up to rounding has no sign
        low[columns], high[columns] = ends
    return low.reshape(rest), high.reshape(rest)


@lru_cache(maxsize=2)
def _draws(count: int, resamples: int, seed: int) -> Values:
    """How often each sample occurs in each resample, (resample, sample)."""
    drawn = np.empty((resamples, count))
    rng = np.random.default_rng(seed)
    for row in drawn:
        row[:] = np.bincount(rng.integers(count, size=count), minlength=count)
    return drawn


def expanded_tail(count: int, confidence: float = CONFIDENCE) -> float:
    """The share of bootstrap means to leave out on either side, for `count` samples."""
    wide = math.sqrt(count / (count - 1)) * student_quantile(0.5 + confidence / 2, count - 1)
    return NormalDist().cdf(-wide)


def student_quantile(probability: float, freedom: int) -> float:
    """Quantile of Student's t: exact for one and two degrees of freedom, else Cornish and Fisher's expansion."""
    if freedom == 1:
        return math.tan(math.pi * (probability - 0.5))
    if freedom == 2:
        a = 2 * probability - 1
        return a * math.sqrt(2 / (1 - a * a))
    z = NormalDist().inv_cdf(probability)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return sum(term / freedom**power for power, term in enumerate(terms))
