"""Confidence intervals: they cover what they say, they are the same every time, and know when there is none."""

from __future__ import annotations

import numpy as np
import pytest

from plrp.experiments.aligned_scores import difference_of
from plrp.experiments.intervals import bootstrap, expanded_tail, student_quantile


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 9, 30, 500])
def test_students_quantiles(freedom) -> None:
    stats = pytest.importorskip("scipy.stats")
    for probability in (0.9, 0.95, 0.975):
        assert student_quantile(probability, freedom) == pytest.approx(stats.t.ppf(probability, freedom), rel=2e-3)


@pytest.mark.parametrize("count", [6, 20])
def test_intervals_cover_the_mean_as_often_as_they_say(count) -> None:
    rng = np.random.default_rng(1)
    draws = rng.normal(3, 2, size=(count, 1500))
    low, high = bootstrap(draws)
    covered = ((low <= 3) & (high >= 3)).mean()
    assert 0.91 <= covered <= 0.97  # the plain percentile bootstrap: 0.851 of 6 samples, 0.927 of 20
    assert (low <= draws.mean(0)).all()
    assert (high >= draws.mean(0)).all()


@pytest.mark.parametrize(("count", "least", "most"), [(4, 0.82, 0.88), (8, 0.90, 0.93), (25, 0.925, 0.955)])
def test_few_samples_cover_less(count: int, least: float, most: float) -> None:
    """The figures of docs/how-to/should-i-believe-this.md: symmetric, skewed, and like agreements."""
    rng, covered = np.random.default_rng(0), []
    agreements = lambda size: np.tanh(rng.normal(0.6, 0.5, size=size))  # noqa: E731
    draws = [(lambda size: rng.normal(size=size), 0.0), (lambda size: rng.exponential(size=size), 1.0)]
    for draw, true in (*draws, (agreements, agreements(1_000_000).mean())):
        low, high = bootstrap(draw((count, 2000)))
        covered.append(((low <= true) & (true <= high)).mean())
    assert least - 0.012 <= min(covered) <= max(covered) <= most + 0.012


def test_what_rounding_leaves_of_zero_has_no_sign() -> None:
    """Few samples differ at all, so that some resamples hold none of them: that end is zero, not 1e-19."""
    values = np.zeros(200)
    values[:3] = 0.1 + 0.2, 1 / 3, 0.1
    low, high = bootstrap(values)
    assert low == 0 < high
    assert difference_of(values).sign == 0
    assert difference_of(-values).sign == 0


def test_intervals_are_seeded_and_follow_shifts_and_scales() -> None:
    values = np.random.default_rng(0).exponential(size=15)
    low, high = bootstrap(values)
    assert (low, high) == bootstrap(values)
    assert bootstrap(values, seed=1) != (low, high)
    shifted = bootstrap(1000 + values)
    np.testing.assert_allclose(shifted, (1000 + low, 1000 + high), rtol=1e-9)
    np.testing.assert_allclose(bootstrap(-2 * values), (-2 * high, -2 * low), rtol=2e-2)
    assert low >= values.min()
    assert high <= values.max()


def test_a_column_has_the_interval_it_has_alone() -> None:
    values = np.random.default_rng(0).normal(size=(12, 4))
    values[3, 1] = np.nan
    values[2:, 2] = np.nan
    values[1:, 3] = np.nan
    low, high = bootstrap(values)
    for column in range(3):
        alone = bootstrap(values[:, column])
        np.testing.assert_allclose((low[column], high[column]), alone, rtol=1e-6)
    known = values[:, 1][np.isfinite(values[:, 1])]
    np.testing.assert_allclose((low[1], high[1]), bootstrap(known), rtol=1e-6)
    assert np.isnan([low[3], high[3]]).all()  # one sample alone
    assert (low[2], high[2]) == pytest.approx((values[:2, 2].min(), values[:2, 2].max()))  # all that lies between two
    assert bootstrap(np.full(7, 0.3)) == (0.3, 0.3)


def test_the_expanded_tail_nears_the_nominal_one() -> None:
    tails = [expanded_tail(n) for n in (2, 5, 10, 100, 10_000)]
    assert tails == sorted(tails)
    assert tails[-1] == pytest.approx(0.025, abs=1e-4)
