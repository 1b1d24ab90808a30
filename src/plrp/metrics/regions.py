"""The tiles of an image, or windows of a sequence, that pixel flipping ranks and overwrites."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from .feature_rows import Pooling, as_map, check_finite, pick, pool_channels, wide_dtype


@dataclass(frozen=True)
class Regions:
    """Regions by the number of every position's region, int64; tiles are counted row by row.

    `number` has the shape of the space, or one that is larger by `before` and `after`, with an entry per axis, where
    the borders were completed by reflection.
    """

    number: Tensor
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    @cached_property
    def count(self) -> int:
        """How many regions there are."""
        return int(self.number.max()) + 1

    def reduced(self, values: Tensor, how: Literal["sum", "mean", "amax"]) -> Tensor:
        """Sum, mean or maximum per tile: (batch, channel, *space) to (batch, channel, tiles)."""
        padding = [side for pair in reversed(list(zip(self.before, self.after, strict=True))) for side in pair]
        flat = (F.pad(values, padding, mode="reflect") if any(padding) else values).flatten(2)
        start = flat.new_full((*flat.shape[:2], self.count), -torch.inf if how == "amax" else 0.0)
        return start.scatter_reduce_(2, self.number.flatten().expand_as(flat), flat, how, include_self=False)

    def aggregate(self, values: Tensor, how: str) -> Tensor:
        """One number per tile, (batch, tiles), of values (batch, 1, *space)."""
        options: dict[str, Literal["sum", "mean", "amax"]] = {"sum": "sum", "mean": "mean", "max": "amax"}
        return self.reduced(values, pick("aggregate", how, options))[:, 0]

    def spread(self, per_tile: Tensor) -> Tensor:
        """Each tile's value at each of its positions: (batch, channel, tiles) to (batch, channel, *space)."""
        values = per_tile[..., self.number]
        for axis, (before, after) in enumerate(zip(self.before, self.after, strict=True), start=2):
            values = values.narrow(axis, before, values.shape[axis] - before - after)  # without completed borders
        return values


def tile(
    space: Sequence[int], size: int | Sequence[int], edges: Literal["partial", "reflect"], device: torch.device
) -> Regions:
    """Cut `space` into tiles of `size` (one int for all axes).

    Where the size does not divide the space, `"partial"` leaves the last tiles smaller; `"reflect"` completes
    them with mirrored values on both sides, half before and half after, as iNNvestigate does.
    """
    sizes = (size,) * len(space) if isinstance(size, int) else tuple(size)
    if len(sizes) != len(space) or any(not 1 <= s <= n for s, n in zip(sizes, space, strict=False)):
        raise ValueError(
            f"region {size!r} does not fit inputs with space {tuple(space)}: one size, from 1 up, per axis."
        )
    completed = pick("edges", edges, {"partial": False, "reflect": True})
    missing = [-n % s if completed else 0 for n, s in zip(space, sizes, strict=True)]
    lengths = [n + m for n, m in zip(space, missing, strict=True)]
    along = [torch.arange(n, device=device) // s for n, s in zip(lengths, sizes, strict=True)]
    return Regions(row_by_row(along), tuple(m // 2 for m in missing), tuple(m - m // 2 for m in missing))


def row_by_row(along: Sequence[Tensor]) -> Tensor:
    """Every position's tile number, (*space), from its tile along each axis."""
    number = torch.zeros_like(along[0][0])
    for index in along:
        number = number[..., None] * (index[-1] + 1) + index
    return number


class Layout:
    """Inputs of any axes as (batch, channel, *space), with their regions."""

    def __init__(
        self,
        inputs: Tensor,
        region: int | Sequence[int],
        channels: Pooling | None,
        edges: Literal["partial", "reflect"] = "partial",
    ) -> None:
        self.batch, *shape = inputs.shape
        self.shape = tuple(shape)
        self.channels = channels
        self.has_channels = len(shape) > 1
        if self.has_channels and channels is not None:
            self.folded, sizes = self.shape, region
        else:  # every entry is ranked by itself: all axes are space, under a single channel
            self.folded = (1, *shape)
            per_axis = (region,) * max(1, len(shape) - 1) if isinstance(region, int) else tuple(region)
            sizes = (1, *per_axis) if self.has_channels else per_axis
        self.regions = tile(self.folded[1:], sizes, edges, inputs.device)

    def fold(self, inputs: Tensor) -> Tensor:
        """The inputs (batch, ...) as (batch, channel, *space)."""
        return inputs.reshape(len(inputs), *self.folded)

    def positions(self, relevance: Any) -> Tensor:
        """The relevance of every position, (batch, 1, *space), in the wide dtype; NaN and infinity are refused."""
        values = as_map(relevance, None)
        values = values.to(self.regions.number.device, wide_dtype(values))
        if len(values) != self.batch:
            raise ValueError(f"{len(values)} relevance maps for {self.batch} inputs: pass one per sample.")
        space = self.folded[1:]
        if tuple(values.shape[1:]) == self.shape and self.has_channels and self.channels is not None:
            values = pool_channels(values, self.channels)[:, None]
        elif tuple(values.shape[1:]) == self.shape:
            values = self.fold(values)
        elif self.channels is not None and tuple(values.shape[1:]) in (space, (1, *space)):
            values = values.reshape(len(values), 1, *space)
        else:
            raise ValueError(
                f"relevance of shape {tuple(values.shape)} does not fit samples of shape {self.shape}: "
                "it needs the inputs' shape, or (batch, *space) with channels pooled."
            )
        check_finite(values.flatten(1).sum(1))
        return values

    def per_region(self, relevance: Any, aggregate: str = "sum") -> Tensor:
        """One number per region, (batch, regions), in the wide dtype."""
        return self.regions.aggregate(self.positions(relevance), aggregate)
