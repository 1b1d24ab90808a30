"""Whether the model uses the regions that relevance names: overwrite them one by one and watch the score fall."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from .feature_rows import Pooling, pick, wide_dtype
from .regions import Layout
from .replacements import PerturbationSettings
from .scores import GivenTarget, Model, chunks, scorer

ORDERS = {"most": ("most",), "least": ("least",), "both": ("most", "least")}

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
    - `edges`: `"partial"` leaves regions at the border smaller where `region` does not divide the space; `"reflect"`
      completes them.
    - `order`: most or least relevant first, or both.
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
    ties: Literal["stable", "random"] = "stable"
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

    - `flipped`: (points,) share of the regions that are overwritten at each point, rising from 0.
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
        areas = [torch.trapezoid(curve, flipped, dim=1) / (flipped[-1] - flipped[0]) for curve in curves.values()]
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


def ranking(per_region: Tensor, ties: Literal["stable", "random"], seed: int) -> dict[str, Tensor]:
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
