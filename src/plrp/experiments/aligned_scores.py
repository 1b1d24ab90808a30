"""Scores of a run as aligned numbers, the source of statements, figures and tables.

The store keeps tidy tables (a row per sample, variant, p and metric). Here they are arrays over the samples, so that
two methods can be compared sample by sample. numpy only: the genomics demo judges its findings with it as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .intervals import bootstrap

if TYPE_CHECKING:
    import pandas as pd

Values = npt.NDArray[np.float64]

BASELINE = "LRP"
PAPER = ("lambda", "lambda+gain", "M", "M+gain")
"""The paper's variants, which its statements are about."""
VARIANTS = (*PAPER, "M-sign", "M-sign+gain")
LABELS = {
    "LRP": "LRP",
    "lambda": "PLRP-λ",
    "lambda+gain": "PLRP-λ, gain",
    "M": "PLRP-M",
    "M+gain": "PLRP-M, gain",
    "M-sign": "PLRP-M±",
    "M-sign+gain": "PLRP-M±, gain",
}
"""The names of variants on pages and in figures."""


@dataclass(frozen=True)
class Method:
    """A variant at a proportion p."""

    variant: str = BASELINE
    p: float = 0.0

    def __str__(self) -> str:
        name = LABELS.get(self.variant, self.variant).removeprefix("PLRP-")
        return name if self.variant == BASELINE else f"{name} p = {self.p:g}"


LRP = Method()


@dataclass(frozen=True)
class Difference:
    """Mean over samples of one method's score minus another's, with its interval and standard error."""

    mean: float
    low: float
    high: float
    error: float
    count: int

    def __str__(self) -> str:
        return f"{signed(self.mean)} [{signed(self.low)}, {signed(self.high)}]"

    @property
    def sign(self) -> int:
        """−1 or 1 where the whole interval lies on that side of zero, else 0."""
        return 1 if self.low > 0 else -1 if self.high < 0 else 0


def difference_of(pairs: npt.ArrayLike) -> Difference:
    """Of paired differences, one per sample; NaN where a pair is not complete."""
    values = np.asarray(pairs, np.float64)
    values = values[np.isfinite(values)]
    if not values.size:
        return Difference(math.nan, math.nan, math.nan, math.nan, 0)
    low, high = bootstrap(values)
    error = float(values.std(ddof=1) / math.sqrt(values.size)) if values.size > 1 else math.nan
    return Difference(float(values.mean()), float(low), float(high), error, int(values.size))


@dataclass(frozen=True)
class Flipping:
    """Pixel-flipping curves of one method.

    share: (point,) of the regions overwritten, from 0. score: (sample, point) over the unperturbed score.
    """

    share: Values
    score: Values

    @property
    def mean(self) -> Values:
        """Over the samples that have a curve."""
        whole = self.score[np.isfinite(self.score).all(1)]
        return whole.mean(0) if len(whole) else np.full(len(self.share), np.nan)


@dataclass
class AlignedScores:
    """Scores of one run.

    samples: (n,) their numbers. values: scores (n,) by (metric, variant) and p, NaN where there is none.
    flipping: curves by (metric, order, variant, p), the metric being the area under them; rows as `samples`.
    """

    name: str
    samples: npt.NDArray[np.int64]
    values: dict[tuple[str, str], dict[float, Values]]
    flipping: dict[tuple[str, str, str, float], Flipping] = field(default_factory=dict)
    _bands: dict[tuple[str, str], tuple[Values, Values, Values]] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def from_tables(cls, name: str, scores: pd.DataFrame, curves: pd.DataFrame | None = None) -> AlignedScores:
        """From the tidy tables of a run (`Results.scores`, `Results.curves`)."""
        samples = np.unique(np.concatenate([scores["sample"], [] if curves is None else curves["sample"]]))
        samples = samples.astype(np.int64)
        values: dict[tuple[str, str], dict[float, Values]] = {}
        for key, part in scores.groupby(["metric", "variant", "p"], sort=True):
            metric, variant, p = key
            column = np.full(len(samples), np.nan)
            column[np.searchsorted(samples, part["sample"].to_numpy())] = part["value"].to_numpy(np.float64)
            values.setdefault((str(metric), str(variant)), {})[tidy(p)] = column
        flipping: dict[tuple[str, str, str, float], Flipping] = {}
        if curves is not None and len(curves):
            for key, part in curves.groupby(["metric", "order", "variant", "p"], sort=True):
                metric, order, variant, p = key
                table = part.pivot(index="sample", columns="step", values="score")
                share = part.groupby("step")["share"].first().reindex(table.columns)
                score = np.full((len(samples), table.shape[1]), np.nan)
                score[np.searchsorted(samples, table.index.to_numpy())] = table.to_numpy(np.float64)
                area = str(metric).replace("pixel_flipping", "pixel_flipping_auc", 1)
                flipping[area, str(order), str(variant), tidy(p)] = Flipping(share.to_numpy(np.float64), score)
        return cls(name, samples, values, flipping)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of the measured metrics, in alphabetical order."""
        return tuple(sorted({metric for metric, _ in self.values}))

    def shares(self, metric: str, *variants: str) -> tuple[float, ...]:
        """Every p above 0 at which all of `variants` were measured, ascending."""
        sets = [
            {p for p, column in self.values.get((metric, v), {}).items() if p > 0 and np.isfinite(column).any()}
            for v in variants
        ]
        return tuple(sorted(set.intersection(*sets))) if sets else ()

    def variants(self, metric: str, among: Iterable[str] = VARIANTS) -> tuple[str, ...]:
        """The pruned variants with this metric at some p above 0."""
        return tuple(v for v in among if self.shares(metric, v))

    def has(self, variant: str) -> bool:
        """Whether a variant was measured at some p above 0."""
        return any(self.shares(metric, variant) for metric in self.metrics)

    def at(self, metric: str, method: Method) -> Values:
        """Scores (n,) of a method; p = 0 of every variant is LRP."""
        variant = BASELINE if method.p == 0 else method.variant
        column = self.values.get((metric, variant), {}).get(tidy(method.p))
        if column is None and method.p == 0:  # a table that holds p = 0 under its variant
            column = self.values.get((metric, method.variant), {}).get(0.0)
            for other in VARIANTS if column is None else ():
                column = self.values.get((metric, other), {}).get(0.0, column)
        return np.full(len(self.samples), np.nan) if column is None else column

    def count(self, metric: str, method: Method = LRP) -> int:
        """Samples whose score is a number."""
        return int(np.isfinite(self.at(metric, method)).sum())

    def most(self, metric: str) -> int:
        """Samples whose score is a number, by the method that has most of them."""
        methods = [LRP, *(Method(v, p) for v in VARIANTS for p in self.shares(metric, v))]
        return max(self.count(metric, method) for method in methods)

    def mean(self, metric: str, method: Method = LRP) -> float:
        """Over the samples where it is defined (mass in the mask is not, where no positive relevance is left)."""
        column = self.at(metric, method)
        column = column[np.isfinite(column)]
        return float(column.mean()) if column.size else math.nan

    def means(self, metric: str, variant: str, shares: Sequence[float]) -> list[float]:
        """The mean at each p."""
        return [self.mean(metric, Method(variant, p)) for p in shares]

    def difference(self, metric: str, method: Method, other: Method) -> Difference:
        """Of two methods, sample by sample."""
        return difference_of(self.at(metric, method) - self.at(metric, other))

    def differences(self, metric: str, variant: str, other: str | None = None) -> dict[float, Difference]:
        """Of a variant and another one, or LRP, at every p above 0 where both were measured."""
        shares = self.shares(metric, variant, other or variant)
        return {p: self.difference(metric, Method(variant, p), Method(other, p) if other else LRP) for p in shares}

    def curve(self, metric: str, variant: str) -> tuple[tuple[float, ...], Values]:
        """Proportions from 0 (LRP, where it was measured), and scores (p, n)."""
        shares = self.shares(metric, variant)
        if self.count(metric):
            shares = (0.0, *shares)
        rows = [self.at(metric, Method(variant, p)) for p in shares]
        return shares, np.array(rows).reshape(len(shares), len(self.samples))

    def band(self, metric: str, variant: str) -> tuple[Values, Values, Values]:
        """Mean, lower and upper end of its interval at every p of `curve`, (p,) each."""
        if (metric, variant) not in self._bands:
            shares, scores = self.curve(metric, variant)
            low, high = bootstrap(scores.T)
            means = np.array([self.mean(metric, Method(variant, p)) for p in shares])
            self._bands[metric, variant] = means, low, high
        return self._bands[metric, variant]

    def flips(self, metric: str, order: str = "most") -> dict[Method, Flipping]:
        """The flipping curves under which `metric` is the area, by method."""
        return {
            Method(variant, p): curves
            for (name, way, variant, p), curves in self.flipping.items()
            if (name, way) == (metric, order)
        }


def nearest_share(p: float, shares: Iterable[float]) -> float | None:
    """Of some proportions the one closest to `p`, the lower of two equally close ones; None of none."""
    return min(shares, key=lambda q: (round(abs(q - p), 9), q), default=None)


def tidy(p: float) -> float:
    """A proportion without the last bits in which 0.05 · 3 and 0.15 differ."""
    return round(float(p), 6)


def signed(value: float) -> str:
    """A number with its sign and three digits that matter: +0.123, −4.5e-05."""
    if math.isnan(value):
        return "–"
    text = f"{value:+.3f}" if value == 0 or 1e-3 <= abs(value) < 1e3 else f"{value:+.2g}"
    return text.replace("-", "−", 1) if text.startswith("-") else text


def plain(value: float) -> str:
    """A number with three digits that matter."""
    if math.isnan(value):
        return "–"
    text = f"{value:.3f}" if value == 0 or 1e-2 <= abs(value) < 1e3 else f"{value:.3g}"
    return text.replace("-", "−", 1) if text.startswith("-") else text
