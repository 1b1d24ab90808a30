"""Whether the model uses the regions that relevance names: remove them one by one and watch the score fall.

`pixel_flipping` overwrites regions with the values of a baseline; `deletion` and `insertion` are settings of it with
names of their own. `road` and `symmetric_relevance_gain` impute removed regions from the remaining ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from .feature_rows import Pooling, pick, wide_dtype
from .regions import Layout, Regions, row_by_row
from .replacements import Imputer, PerturbationSettings, impute
from .scores import GivenTarget, Model, ScoreKind, chunks, scorer

Ties: TypeAlias = Literal["stable", "random"]
ORDERS = {"most": ("most",), "least": ("least",), "both": ("most", "least")}
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9)
ROAD: dict[str, Any] = {"shares": SHARES, "aggregate": "sum", "imputer": "linear", "score_as": "probability"}
AREA: dict[str, Any] = {"score_as": "probability", "normalise": False}  # of deletion and insertion

INNVESTIGATE: dict[str, Any] = {"region": 9, "channels": "mean", "aggregate": "mean", "edges": "reflect"}
"""Options by which `pixel_flipping` ranks and flips as iNNvestigate does (Alber et al., 2019).

Tiles of 9 x 9, borders completed by reflection, relevance averaged over colours and over a tile. Its four
perturbations are `perturbation="zeros"`, `"mean"` (of the tile, per colour), `"gaussian"` (N(0, 0.3²) instead of
the values) and `"inversion"`. On colour images iNNvestigate itself overwrites the first colour only, because
its mask has one channel; add `flip_channels=[0]` for the same numbers.
"""


@dataclass(frozen=True)
class FlippingSettings(PerturbationSettings):
    """The keyword arguments of `pixel_flipping`: `PerturbationSettings`, and how regions are ranked.

    - `channels`: how the relevance of a pixel's channels becomes one number; all channels of a region are then flipped
      together. None ranks and flips the entries of each channel separately.
    - `aggregate`: how the relevance of a region's positions becomes one number.
    - `edges`: regions at the border, where `region` does not divide the space, are smaller or completed by reflection.
    - `steps`, `spacing`, `until`: `steps` points after the unperturbed one, up to the share `until` of all regions,
      evenly spaced in their number or its logarithm (fewer points where rounding makes them coincide); or the numbers
      of flipped regions themselves.
    - `ties`: regions of equal relevance: in the order of their position, or in a random order from `seed`.
    - `normalise`: divide the score by its unperturbed value. Where that value is not positive the quotient has no
      meaning: the sample's curve is NaN.
    """

    channels: Pooling | None = "sum"
    aggregate: Literal["sum", "mean", "max"] = "sum"
    edges: Literal["partial", "reflect"] = "partial"
    order: Literal["most", "least", "both"] = "most"
    steps: int | Sequence[int] = 20
    spacing: Literal["linear", "logarithmic"] = "linear"
    until: float = 1.0
    ties: Ties = "stable"
    normalise: bool = True

    def __post_init__(self) -> None:
        pick("order", self.order, ORDERS)

    @property
    def passes(self) -> int:
        """At most this many forward passes per sample."""
        return (1 + (self.steps if isinstance(self.steps, int) else len(self.steps))) * len(ORDERS[self.order])

    def counts(self, regions: int) -> list[int]:
        """Numbers of flipped regions along the curve, rising, starting with 0."""
        steps, until = self.steps, self.until
        if not isinstance(steps, int):
            counts = [0, *(int(count) for count in steps if count != 0)]
            if len(counts) < 2 or counts[-1] > regions or any(b <= a for a, b in pairwise(counts)):
                raise ValueError(f"steps must rise within 1 to {regions}, the number of regions; got {list(steps)}.")
            return counts
        last = round(until * regions)
        if steps < 1 or not 0 < until <= 1 or last < 1:
            raise ValueError(
                f"steps must be positive, `until` a share in (0, 1] of {regions} regions; got {steps}, {until}."
            )
        linear, logarithmic = np.linspace(0, last, steps + 1), np.geomspace(last, 1, steps)
        places = pick("spacing", self.spacing, {"linear": linear, "logarithmic": logarithmic})
        return sorted({0, *np.rint(places).astype(int).tolist()})


@dataclass(frozen=True)
class FlippingCurve:
    """The result of `pixel_flipping`; tensors are float64.

    - `flipped`: (points,) share of the regions that are overwritten at each point, rising from 0; (batch, points) where
      samples have different numbers of regions.
    - `curve`: (batch, points) score, the unperturbed one first; most relevant regions first, or as `order` says.
    - `auc`: (batch,) area under `curve` over `flipped`, divided by the width flipped: the mean height of the curve.
    - `aopc`: (batch,) area over the perturbation curve (Samek et al., 2016): the mean of curve[0] − curve[k] over k.
    - `tied`: (batch,) share of the regions whose relevance equals another's, so that tie-breaking decides their order.
    - `least_first`, `symmetric_relevance_gain`: with `order="both"`: the curve with the least relevant regions first,
      and its `auc` minus `auc` (Blücher et al., 2024), which is positive for an explanation better than chance.
    """

    flipped: Tensor
    curve: Tensor
    auc: Tensor
    aopc: Tensor
    tied: Tensor
    least_first: Tensor | None = None
    symmetric_relevance_gain: Tensor | None = None

    @classmethod
    def from_scores(cls, flipped: Tensor, curves: Mapping[str, Tensor], tied: Tensor) -> FlippingCurve:
        """From the scores (batch, points) of one order, or of the orders `"most"` and `"least"`."""
        width = flipped[..., -1] - flipped[..., 0]
        areas = [torch.trapezoid(curve, flipped, dim=1) / width for curve in curves.values()]
        first, *second = curves.values()
        both = (second[0], areas[1] - areas[0]) if second else ()
        return cls(flipped, first, areas[0], (first[:, :1] - first).mean(1), tied, *both)


def pixel_flipping(
    model: Model, inputs: Tensor, relevance: Any, *, target: GivenTarget = None, batch_size: int = 64, **settings: Any
) -> FlippingCurve:
    """Overwrite regions in the order of their relevance and record the target's score (Bach et al., 2015).

    A quick drop with the most relevant regions first speaks for the explanation. Regions are overwritten cumulatively,
    each with the replacement computed from the *unperturbed* input. At most `batch_size` perturbed inputs exist at a
    time. A module with dropout or batch norm in training mode is refused.

    - `inputs`: (batch, channel, *space), or (batch, features).
    - `relevance`: like the inputs, or (batch, *space) with channels pooled already; NaN or infinity is a ValueError. A
      zero map is one large tie: `tied` is 1, and `ties` alone decides the order.
    - `target`: as in `plrp.explain`; None is each sample's winning class at the unperturbed input.
    - `settings`: the fields of `FlippingSettings`: `region`, `perturbation`, `order`, `steps`, `score_as` and others.

    >>> model = torch.nn.Linear(4, 1, bias=False)
    >>> _ = torch.nn.init.ones_(model.weight)
    >>> x = torch.tensor([[4.0, 3.0, 2.0, 1.0]])
    >>> pixel_flipping(model, x, x, steps=4).curve
    tensor([[1.0000, 0.6000, 0.3000, 0.1000, 0.0000]], dtype=torch.float64)
    """
    how = FlippingSettings(**settings)
    if not inputs.is_floating_point() or inputs.ndim < 2:
        raise ValueError(f"inputs must be a floating tensor (batch, ...); got {inputs.dtype}, {tuple(inputs.shape)}.")
    if batch_size < 1:
        raise ValueError(f"batch_size must be positive; got {batch_size}.")
    inputs = inputs.detach()
    layout = Layout(inputs, how.region, how.channels, how.edges)
    ranks = ranking(layout.per_region(relevance, how.aggregate), how.ties, how.seed)
    how.check(layout, inputs)
    counts = torch.tensor(how.counts(layout.regions.count), device=inputs.device)
    scored = scorer(model, inputs, target, how.score_as, batch_size)

    wide = wide_dtype(inputs)
    curves = {which: inputs.new_empty(len(inputs), len(counts), dtype=wide) for which in ORDERS[how.order]}
    for rows in chunks(len(inputs), batch_size, inputs.device):
        original = layout.fold(inputs[rows])
        written = layout.fold(how.overwritten(inputs[rows], layout, rows))

        def without(
            one: Tensor, missing: Tensor, rows: Tensor = rows, before: Tensor = original, after: Tensor = written
        ) -> Tensor:
            return scored(torch.where(missing, after[one], before[one]).reshape(-1, *layout.shape), rows[one])

        for which, curve in curves.items():
            rank = layout.regions.spread(ranks[which][rows, None])
            curve[rows] = scores_along(without, rank, counts, batch_size)
    if how.normalise:
        curves = {which: torch.where(c[:, :1] > 0, c / c[:, :1], torch.nan) for which, c in curves.items()}
    return FlippingCurve.from_scores(counts.to(wide) / layout.regions.count, curves, ranks["tied"])


def deletion(model: Model, inputs: Tensor, relevance: Any, *, target: GivenTarget = None, **settings: Any) -> Tensor:
    """Area under the target's probability while the most relevant pixels are deleted (Petsiuk et al., 2018).

    Lower is better. The curve is that of `pixel_flipping`, whose `settings` it takes, without normalisation.
    """
    how = {**AREA, "perturbation": "zeros", **settings}
    return pixel_flipping(model, inputs, relevance, target=target, order="most", **how).auc


def insertion(model: Model, inputs: Tensor, relevance: Any, *, target: GivenTarget = None, **settings: Any) -> Tensor:
    """Area under the target's probability while the most relevant pixels return to a blurred image (Petsiuk, 2018).

    Higher is better. An image that has its k most relevant pixels back lacks the others, so this is the flipping curve
    with the least relevant first, read from its end.
    """
    how = {**AREA, "perturbation": "blur", **settings}
    return pixel_flipping(model, inputs, relevance, target=target, order="least", **how).auc


@dataclass(frozen=True)
class RemovalSettings:
    """The keyword arguments of `symmetric_relevance_gain` and `road`: which regions are removed, in which steps.

    - `regions`: about how many regions an input (batch, channel, *space) is cut into, as equal tiles; or the number of
      every pixel's region, integers (batch, *space), such as superpixels. Numbers that no pixel has do not count.
    - `shares`: shares of the regions that are removed at the points of the curve, rising; None is ten even steps to 1.
      They are rounded to whole regions: `FlippingCurve.flipped` holds the shares that were removed.
    - `channels`, `aggregate`: how the relevance of a pixel's channels, and of a region's pixels, becomes one number;
      the paper ranks superpixels by their mean.
    - `imputer`, `noise`: the values that replace removed regions: see `plrp.metrics.impute`.
    - `ties`: regions of equal relevance: in the order of their position, or in a random order from `seed`.
    - `score_as`: the target's logit or probability.
    """

    regions: int | Tensor = 100
    shares: Sequence[float] | None = None
    channels: Pooling = "sum"
    aggregate: Literal["sum", "mean"] = "mean"
    imputer: Imputer = "image-mean"
    noise: float = 0.01
    ties: Ties = "random"
    score_as: ScoreKind = "logit"
    seed: int = 0

    def points(self) -> list[float]:
        """The shares of the regions that are removed along the curve, from 0."""
        shares = [k / 10 for k in range(1, 11)] if self.shares is None else list(self.shares)
        if not shares or shares[0] <= 0 or shares[-1] > 1 or sorted(set(shares)) != shares:
            raise ValueError(f"shares must rise within (0, 1]; got {shares}.")
        return [0.0, *shares]


def road(
    model: Model, inputs: Tensor, relevance: Any, *, target: GivenTarget = None, batch_size: int = 64, **settings: Any
) -> FlippingCurve:
    """Remove and debias (ROAD, Rong et al., 2022): pixels in the order of relevance, imputed from the remaining ones.

    Overwriting with a constant shows the model *where* something was removed. Noisy linear imputation hides that.
    Inputs are (batch, channel, *space), whole pixels are removed: at each point the share `shares` of them (by default
    0.1 to 0.5, 0.7 and 0.9), most relevant first (`curve`) and least relevant first (`least_first`). The scores are
    the target's, not normalised; ROAD's own is whether the target still wins: `score_as="probability"`, the default,
    is its smooth counterpart. Further settings are the fields of `RemovalSettings`.
    """
    pixels = torch.arange(math.prod(inputs.shape[2:]), device=inputs.device).reshape(inputs.shape[2:])
    settings = {"regions": pixels.expand(len(inputs), *pixels.shape), **ROAD, **settings}
    return symmetric_relevance_gain(model, inputs, relevance, target=target, batch_size=batch_size, **settings)


def symmetric_relevance_gain(
    model: Model, inputs: Tensor, relevance: Any, *, target: GivenTarget = None, batch_size: int = 64, **settings: Any
) -> FlippingCurve:
    """Flip regions most and least relevant first and take the area between both curves (SRG, Blücher et al., 2024).

    Either curve alone depends on how much the imputer disturbs the model; their difference hardly does, so that gains
    under different imputers and region counts can be compared. `settings` are the fields of `RemovalSettings`.

    Returns a `FlippingCurve`; `symmetric_relevance_gain` (batch,) is in the units of the score, higher is better, 0 is
    chance. NaN or infinite relevance is a ValueError.
    """
    how = RemovalSettings(**settings)
    if inputs.ndim < 3:
        raise ValueError(f"inputs of shape {tuple(inputs.shape)} have no space: expected (batch, channel, *space).")
    inputs = inputs.detach()
    wide = wide_dtype(inputs)
    values = Layout(inputs, 1, how.channels).positions(relevance)
    number = _numbers(inputs, how.regions)
    points = torch.tensor(how.points(), device=inputs.device, dtype=wide)
    flipped = points.repeat(max(1, len(inputs)), 1)
    scored = scorer(model, inputs, target, how.score_as, batch_size)
    curves = {which: inputs.new_empty(len(inputs), len(points), dtype=wide) for which in ORDERS["both"]}
    tied = torch.zeros(len(inputs), device=inputs.device, dtype=wide)
    for row in range(len(inputs)):
        present, where = number[row].unique(return_inverse=True)
        regions = Regions(where)
        order = ranking(regions.aggregate(values[row : row + 1], how.aggregate), how.ties, how.seed)
        tied[row] = order["tied"][0]
        removed = (points * len(present)).round().long()
        if not removed[-1]:
            raise ValueError(f"shares remove none of the {len(present)} regions of sample {row}: give larger shares.")
        flipped[row] = removed / len(present)

        def without(rows: Tensor, missing: Tensor, row: int = row) -> Tensor:
            sample = inputs[row].expand(len(rows), *inputs.shape[1:])
            return scored(impute(sample, missing, how.imputer, noise=how.noise, seed=how.seed), rows + row)

        for which, curve in curves.items():
            rank = order[which][0][where][None, None]
            curve[row] = scores_along(without, rank, removed, batch_size)
    alike = bool((flipped == flipped[0]).all())
    return FlippingCurve.from_scores(flipped[0] if alike else flipped, curves, tied)


def _numbers(inputs: Tensor, regions: int | Tensor) -> Tensor:
    """Every pixel's region, int64 (batch, *space)."""
    space = inputs.shape[2:]
    if isinstance(regions, Tensor):
        if regions.shape != (len(inputs), *space) or regions.is_floating_point() or bool((regions < 0).any()):
            raise ValueError(
                f"regions of shape {tuple(regions.shape)} do not number the pixels of inputs of shape "
                f"{tuple(inputs.shape)}: pass integers from 0, (batch, *space)."
            )
        return regions.to(inputs.device, torch.long)
    if regions < 1:
        raise ValueError(f"regions is how many an input is cut into, at least 1; got {regions}.")
    most = max(1, round(regions ** (1 / len(space))))  # tiles along each axis
    tiles = [torch.arange(n, device=inputs.device) * min(most, n) // n for n in space]
    return row_by_row(tiles).expand(len(inputs), *space)


def ranking(per_region: Tensor, ties: Ties, seed: int) -> dict[str, Tensor]:
    """For each order, every region's place in it (batch, regions); and `tied`, the share of ties (batch,)."""
    count = per_region.shape[1]
    random = np.random.default_rng([seed, count]).permutation(count)
    tried = pick("ties", ties, {"stable": np.arange(count), "random": random})
    first = torch.from_numpy(tried).to(per_region.device)  # the regions in the order in which ties are broken
    places = torch.arange(count, device=per_region.device).expand_as(per_region)
    result: dict[str, Tensor] = {}
    for which, descending in (("most", True), ("least", False)):
        ordered, at = per_region[:, first].sort(dim=1, descending=descending, stable=True)
        result[which] = torch.empty_like(at).scatter_(1, first[at], places)
    same = ordered[:, 1:] == ordered[:, :-1]
    none = same.new_zeros(len(same), 1)
    result["tied"] = (torch.cat([same, none], 1) | torch.cat([none, same], 1)).to(per_region.dtype).mean(1)
    return result


def scores_along(scored: Callable[[Tensor, Tensor], Tensor], rank: Tensor, counts: Tensor, batch_size: int) -> Tensor:
    """Scores (batch, points) of inputs without the regions that are ranked below counts[k] at point k.

    rank: the place in the order of every position's region, (batch, 1, *space). `scored(rows, missing)` scores the
    inputs of some rows, given where they lack a region, (row, 1, *space).
    """
    scores = []
    for pairs in chunks(len(rank) * len(counts), batch_size, rank.device):
        rows, points = pairs // len(counts), pairs % len(counts)
        missing = rank[rows] < counts[points].reshape(-1, *[1] * (rank.ndim - 1))
        scores.append(scored(rows, missing))
    return torch.cat(scores).reshape(len(rank), len(counts))
