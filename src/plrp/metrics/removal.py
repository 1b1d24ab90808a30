"""Remove the most or the least relevant regions and watch the score: deletion, insertion, ROAD, relevance gain.

`pixel_flipping` (faithfulness.py) overwrites regions one by one with the values of a baseline. This file has the
settings of it that have names of their own, and two metrics that impute removed regions from the remaining ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from .faithfulness import ORDERS, FlippingCurve, pixel_flipping, ranking, scores_along
from .feature_rows import Pooling, wide_dtype
from .regions import Layout, Regions, row_by_row
from .replacements import Imputer, impute
from .scores import GivenTarget, Model, ScoreKind, scorer

SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9)
ROAD: dict[str, Any] = {"shares": SHARES, "aggregate": "sum", "imputer": "linear", "score_as": "probability"}
AREA: dict[str, Any] = {"score_as": "probability", "normalise": False}  # of deletion and insertion


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
      every pixel's region, integers (batch, *space), such as superpixels.
    - `shares`: shares of the regions that are removed at the points of the curve, rising; None is ten even steps to 1.
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
    ties: Literal["stable", "random"] = "random"
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
    scored = scorer(model, inputs, target, how.score_as, batch_size)
    curves = {which: inputs.new_empty(len(inputs), len(points), dtype=wide) for which in ORDERS["both"]}
    tied = torch.zeros(len(inputs), device=inputs.device, dtype=wide)
    for row in range(len(inputs)):
        regions = Regions(number[row])
        order = ranking(regions.aggregate(values[row : row + 1], how.aggregate), how.ties, how.seed)
        tied[row] = order["tied"][0]
        removed = (points * regions.count).round().long()

        def without(rows: Tensor, missing: Tensor, row: int = row) -> Tensor:
            sample = inputs[row].expand(len(rows), *inputs.shape[1:])
            return scored(impute(sample, missing, how.imputer, noise=how.noise, seed=how.seed), rows + row)

        for which, curve in curves.items():
            rank = order[which][0][number[row]][None, None]
            curve[row] = scores_along(without, rank, removed, batch_size)
    return FlippingCurve.from_scores(points, curves, tied)


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
