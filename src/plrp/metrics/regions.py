"""The tiles of an image, or windows of a sequence, that pixel flipping ranks and overwrites."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from .feature_rows import Pooling, as_map, check_finite, pool_channels, wide_dtype


@dataclass(frozen=True)
class Regions:
    """Every position's tile number; tiles are counted row by row.

    `number` has the shape of the tiled space, which is `space` itself, or larger by `before` and `after`
    where the borders were completed by reflection.
    """

    number: Tensor
    count: int
    space: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]

    def to_positions(self, values: Tensor) -> Tensor:
        """(batch, channel, *space) to (batch, channel, positions of the tiled space)."""
        padding = [side for pair in reversed(list(zip(self.before, self.after, strict=True))) for side in pair]
        padded = F.pad(values, padding, mode="reflect") if any(padding) else values
        return padded.flatten(2)

    def sums(self, values: Tensor) -> Tensor:
        """Sum per tile: (batch, channel, *space) to (batch, channel, tiles)."""
        flat = self.to_positions(values)
        return flat.new_zeros(*flat.shape[:2], self.count).index_add_(2, self.number.flatten(), flat)

    def means(self, values: Tensor) -> Tensor:
        """Mean per tile: (batch, channel, *space) to (batch, channel, tiles)."""
        sizes = torch.bincount(self.number.flatten(), minlength=self.count).clamp(min=1)
        return self.sums(values) / sizes.to(values.dtype)

    def aggregate(self, values: Tensor, how: str) -> Tensor:
        """One number per tile, (batch, tiles), of values (batch, 1, *space)."""
        if how == "sum":
            return self.sums(values)[:, 0]
        if how == "mean":
            return self.means(values)[:, 0]
        if how == "max":
            flat = self.to_positions(values)[:, 0]
            lowest = flat.new_full((len(flat), self.count), -torch.inf)
            return lowest.scatter_reduce_(1, self.number.flatten().expand_as(flat), flat, "amax")
        raise ValueError(f"unknown aggregate {how!r}: choose 'sum', 'mean' or 'max'.")

    def spread(self, per_tile: Tensor) -> Tensor:
        """Each tile's value at each of its positions: (batch, channel, tiles) to (batch, channel, *space)."""
        values = per_tile[..., self.number]
        for axis, (start, length) in enumerate(zip(self.before, self.space, strict=True), start=2):
            values = values.narrow(axis, start, length)  # without completed borders
        return values


def numbered(number: Tensor) -> Regions:
    """Regions of any shape, by the number of every position's region, int64 (*space)."""
    none = (0,) * number.ndim
    return Regions(number, int(number.max()) + 1, tuple(number.shape), none, none)


def tile(
    space: Sequence[int],
    size: int | Sequence[int],
    edges: Literal["partial", "reflect"],
    device: torch.device,
) -> Regions:
    """Cut `space` into tiles of `size` (one int for all axes).

    Where the size does not divide the space, `"partial"` leaves the last tiles smaller; `"reflect"` completes
    them with mirrored values on both sides, half before and half after, as iNNvestigate does.
    """
    space = tuple(space)
    sizes = (size,) * len(space) if isinstance(size, int) else tuple(size)
    if len(sizes) != len(space) or any(not 1 <= s <= n for s, n in zip(sizes, space, strict=False)):
        raise ValueError(f"region {size!r} does not fit inputs with space {space}: one size, from 1 up, per axis.")
    if edges == "partial":
        before = after = (0,) * len(space)
    elif edges == "reflect":
        missing = [-n % s for n, s in zip(space, sizes, strict=True)]
        before = tuple(m // 2 for m in missing)
        after = tuple(m - m // 2 for m in missing)
    else:
        raise ValueError(f"unknown edges {edges!r}: choose 'partial' or 'reflect'.")
    lengths = [n + b + a for n, b, a in zip(space, before, after, strict=True)]
    along = [torch.arange(n, device=device) // s for n, s in zip(lengths, sizes, strict=True)]
    counts = [math.ceil(n / s) for n, s in zip(lengths, sizes, strict=True)]
    return Regions(row_by_row(along, counts), math.prod(counts), space, before, after)


def row_by_row(along: Sequence[Tensor], counts: Sequence[int]) -> Tensor:
    """Every position's tile number, (*space), from its tile along each axis and the number of tiles there."""
    number = along[0].new_zeros((1,) * len(along))
    for axis, (index, count) in enumerate(zip(along, counts, strict=True)):
        number = number * count + index.reshape([-1 if a == axis else 1 for a in range(len(along))])
    return number


class Layout:
    """Inputs of any axes as (batch, channel, *space), with their regions."""

    def __init__(
        self,
        inputs: Tensor,
        region: int | Sequence[int],
        channels: Pooling | None,
        edges: Literal["partial", "reflect"],
    ) -> None:
        self.shape = tuple(inputs.shape[1:])
        self.channels = channels
        self.has_channels = len(self.shape) > 1
        if self.has_channels and channels is not None:
            self.folded = self.shape
            sizes = region
        else:  # every entry is ranked by itself: all axes are space, under a single channel
            self.folded = (1, *self.shape)
            per_axis = (region,) * max(1, len(self.shape) - 1) if isinstance(region, int) else tuple(region)
            sizes = (1, *per_axis) if self.has_channels else per_axis
        self.regions: Regions = tile(self.folded[1:], sizes, edges, inputs.device)

    def fold(self, inputs: Tensor) -> Tensor:
        """The inputs (batch, ...) as (batch, channel, *space)."""
        return inputs.reshape(len(inputs), *self.folded)

    def positions(self, relevance: Any, batch: int) -> Tensor:
        """The relevance of every position, (batch, 1, *space), in the wide dtype; NaN and infinity are refused."""
        values = as_map(relevance, None)
        values = values.to(self.regions.number.device, wide_dtype(values))
        if len(values) != batch:
            raise ValueError(f"{len(values)} relevance maps for {batch} inputs: pass one per sample.")
        space = self.folded[1:]
        if tuple(values.shape[1:]) == self.shape:
            pooled = self.has_channels and self.channels is not None
            values = pool_channels(values, self.channels)[:, None] if pooled else self.fold(values)  # type: ignore[arg-type]
        elif self.channels is not None and tuple(values.shape[1:]) in (space, (1, *space)):
            values = values.reshape(len(values), 1, *space)
        else:
            raise ValueError(
                f"relevance of shape {tuple(values.shape)} does not fit samples of shape {self.shape}: "
                "it needs the inputs' shape, or (batch, *space) with channels pooled."
            )
        check_finite(values.flatten(1).sum(1))
        return values


def relevance_of_regions(layout: Layout, relevance: Any, aggregate: str, batch: int) -> Tensor:
    """One number per region, (batch, regions), in the wide dtype."""
    return layout.regions.aggregate(layout.positions(relevance, batch), aggregate)
