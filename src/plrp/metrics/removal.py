"""Remove what is most and what is least relevant, and watch the score: deletion, insertion, ROAD, relevance gain.

`pixel_flipping` (faithfulness.py) overwrites regions one by one with what a baseline holds there. Here are the
settings of it that have names of their own, and the two metrics whose removed parts are made up from what is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from .faithfulness import FlippingCurve, mean_height, pixel_flipping, ranking
from .feature_rows import Pooling, as_map, check_finite, pool_channels, wide_dtype
from .imputation import Imputer, impute
from .replacements import Perturbation
from .scores import Model, Target, chunks, fix_target, for_rows, predict, score


def deletion(
    model: Model,
    inputs: Tensor,
    relevance: Any,
    *,
    target: Target = None,
    perturbation: Perturbation = "zeros",
    score_as: Literal["logit", "probability"] = "probability",
    steps: int = 20,
    **options: Any,
) -> Tensor:
    """Area under the target's probability while the most relevant pixels are deleted (Petsiuk et al., 2018).

    Lower is better. float64 (batch,). The curve is `pixel_flipping` without normalisation; further options are its own
    (`region`, `channels`, `ties`, …).
    """
    how = {"perturbation": perturbation, "score_as": score_as, "steps": steps, "normalise": False, **options}
    return pixel_flipping(model, inputs, relevance, target=target, order="most", **how).auc


def insertion(
    model: Model,
    inputs: Tensor,
    relevance: Any,
    *,
    target: Target = None,
    perturbation: Perturbation = "blur",
    score_as: Literal["logit", "probability"] = "probability",
    steps: int = 20,
    **options: Any,
) -> Tensor:
    """Area under the target's probability while the most relevant pixels return to a blurred image (Petsiuk, 2018).

    Higher is better. float64 (batch,). An image that has its k most relevant pixels back lacks the others, so this is
    the flipping curve with the least relevant first, read from its end.
    """
    how = {"perturbation": perturbation, "score_as": score_as, "steps": steps, "normalise": False, **options}
    return pixel_flipping(model, inputs, relevance, target=target, order="least", **how).auc


def road(
    model: Model,
    inputs: Tensor,
    relevance: Any,
    *,
    target: Target = None,
    shares: Sequence[float] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9),
    channels: Pooling = "sum",
    imputer: Imputer = "linear",
    noise: float = 0.01,
    ties: Literal["stable", "random"] = "random",
    score_as: Literal["logit", "probability"] = "probability",
    seed: int = 0,
    batch_size: int = 64,
) -> FlippingCurve:
    """Remove and debias (ROAD, Rong et al., 2022): pixels in the order of relevance, imputed from those that are left.

    Overwriting with a constant shows the model *where* something was removed. Noisy linear imputation hides that.
    Inputs are (batch, channel, *space), whole pixels are removed: at each point the share `shares` of them, most
    relevant first (`curve`) and least relevant first (`least_first`). The scores are the target's, not normalised;
    ROAD's own is whether the target still wins: `score_as="probability"` is its smooth counterpart.
    """
    place = torch.arange(inputs[0, 0].numel(), device=inputs.device).reshape(1, *inputs.shape[2:])
    return symmetric_relevance_gain(
        model, inputs, relevance, regions=place.expand(len(inputs), *place.shape[1:]), target=target, shares=shares,
        channels=channels, aggregate="sum", imputer=imputer, noise=noise, ties=ties, score_as=score_as, seed=seed,
        batch_size=batch_size,
    )  # fmt: skip


def symmetric_relevance_gain(
    model: Model,
    inputs: Tensor,
    relevance: Any,
    *,
    regions: int | Tensor = 100,
    target: Target = None,
    shares: Sequence[float] | None = None,
    channels: Pooling = "sum",
    aggregate: Literal["sum", "mean"] = "mean",
    imputer: Imputer = "image-mean",
    noise: float = 0.01,
    ties: Literal["stable", "random"] = "random",
    score_as: Literal["logit", "probability"] = "logit",
    seed: int = 0,
    batch_size: int = 64,
) -> FlippingCurve:
    """Flip regions most and least relevant first and take the area between both curves (SRG, Blücher et al., 2024).

    Either curve alone depends on how much the imputer disturbs the model; their difference hardly does, so that gains
    under different imputers and region counts can be compared.

    Parameters
    ----------
    regions
        About how many regions an input (batch, channel, *space) is cut into, as equal tiles; or the number of every
        pixel's region, integers (batch, *space), such as superpixels.
    shares
        Shares of the regions that are removed at the points of the curve, rising; None is ten even steps to 1.
    aggregate
        How the relevance of a region's pixels becomes one number; the paper ranks superpixels by their mean.
    imputer, noise
        What takes the place of removed regions: see `plrp.metrics.imputation.impute`.

    Returns a `FlippingCurve`; `symmetric_relevance_gain` (batch,) is in the units of the score, higher is better, 0 is
    chance. NaN or infinite relevance is a ValueError.
    """
    if inputs.ndim < 3:
        raise ValueError(f"inputs of shape {tuple(inputs.shape)} have no space: expected (batch, channel, *space).")
    inputs = inputs.detach()
    wide = wide_dtype(inputs)
    number = _numbers(inputs, regions)
    values = _per_pixel(relevance, inputs, channels)
    target = fix_target(model, inputs, target, batch_size)
    points = torch.tensor([0.0, *_rising(shares)], device=inputs.device, dtype=wide)
    curves = {which: inputs.new_empty(len(inputs), len(points), dtype=wide) for which in ("most", "least")}
    tied = torch.zeros(len(inputs), device=inputs.device, dtype=wide)
    for row in range(len(inputs)):
        per_region = _per_region(values[row], number[row], aggregate)
        order = ranking(per_region[None], ties, seed)
        tied[row] = order["tied"][0]
        removed = (points * len(per_region)).round().long()
        for which, curve in curves.items():
            rank = order[which][0][number[row]]
            for part in chunks(len(points), batch_size, inputs.device):
                missing = rank[None, None] < removed[part].reshape(-1, *[1] * (rank.ndim + 1))
                several = inputs[row].expand(len(part), *inputs.shape[1:])
                imputed = impute(several, missing, imputer, noise=noise, seed=seed)
                same = for_rows(target, torch.full((len(part),), row, device=inputs.device))
                curve[row, part] = score(predict(model, imputed), same, score_as)
    areas = {which: mean_height(curve, points) for which, curve in curves.items()}
    return FlippingCurve(
        flipped=points,
        curve=curves["most"],
        auc=areas["most"],
        aopc=(curves["most"][:, :1] - curves["most"]).mean(1),
        tied=tied,
        least_first=curves["least"],
        symmetric_relevance_gain=areas["least"] - areas["most"],
    )


def _per_pixel(relevance: Any, inputs: Tensor, channels: Pooling) -> Tensor:
    """Relevance of every pixel, (batch, *space)."""
    values = as_map(relevance, None).to(inputs.device)
    if values.shape == inputs.shape:
        values = pool_channels(values, channels)
    if values.shape != (len(inputs), *inputs.shape[2:]):
        raise ValueError(
            f"relevance of shape {tuple(values.shape)} does not fit inputs of shape {tuple(inputs.shape)}: it needs "
            "their shape, or (batch, *space) with channels pooled."
        )
    values = values.to(wide_dtype(values))
    check_finite(values.flatten(1).sum(1))
    return values


def _per_region(values: Tensor, number: Tensor, aggregate: str) -> Tensor:
    """Relevance of every region of a sample, (regions,); `values` and `number` are those of its pixels, (*space)."""
    if aggregate not in ("sum", "mean"):
        raise ValueError(f"unknown aggregate {aggregate!r}: choose 'sum' or 'mean'.")
    regions = int(number.max()) + 1
    sums = values.new_zeros(regions).index_add_(0, number.flatten(), values.flatten())
    if aggregate == "sum":
        return sums
    return sums / torch.bincount(number.flatten(), minlength=regions).clamp(min=1)


def _rising(shares: Sequence[float] | None) -> list[float]:
    """The shares of the regions that are removed; ten even steps where none are given."""
    found = [k / 10 for k in range(1, 11)] if shares is None else list(shares)
    if not found or found[0] <= 0 or found[-1] > 1 or sorted(set(found)) != found:
        raise ValueError(f"shares must rise within (0, 1]; got {found}.")
    return found


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
    along = max(1, round(regions ** (1 / len(space))))  # tiles along each axis
    number = torch.zeros((1,) * len(space), dtype=torch.long, device=inputs.device)
    for axis, length in enumerate(space):
        tiles = min(along, length)
        index = torch.arange(length, device=inputs.device) * tiles // length
        number = number * tiles + index.reshape([-1 if a == axis else 1 for a in range(len(space))])
    return number.expand(len(inputs), *space)
