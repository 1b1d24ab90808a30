"""Which part of a tensor belongs to which sample of the batch.

Thresholds, masses and ledgers are per sample, so the tape must know where a sample lies even after a model has moved or
merged the batch axis: (batch, time, …) → (batch · time, …) → (time, batch, …). Nearly always it is the first axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor


class Groups:
    """Samples that are groups of rows, as graphs are groups of nodes: a vector per input says whose each row is.

    Two of them are equal if their vectors are, so that they can be keys.
    """

    def __init__(self, vectors: Sequence[Tensor]) -> None:
        self.batch = 1 + max((int(ids.max()) for ids in vectors if ids.numel()), default=-1)
        self.vectors = tuple(ids.detach().clone() for ids in vectors)
        self.layouts = [Samples(self.batch, 0, in_turn(ids, self.batch), vectors=self.vectors) for ids in self.vectors]
        self._key = tuple(tuple(ids.tolist()) for ids in vectors)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Groups) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def in_turn(ids: Tensor, batch: int) -> Tensor | None:
    """Whose each row is; None where row i is sample i."""
    return None if torch.equal(ids, torch.arange(batch, device=ids.device)) else ids


Batch = int | None | Groups
"""Where the samples are in a model's inputs: 0, the first axis; None, there is one sample; or groups of rows."""


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples lie along `axis`; position i is sample `ids[i]` (sample i where `ids` is None)."""

    batch: int
    axis: int = 0
    ids: Tensor | None = None
    mixed: str = ""  # why the samples do not lie along an axis any more, so that relevance must not pass
    whole: bool = False  # there is no batch axis: every tensor belongs to the one sample
    vectors: tuple[Tensor, ...] = ()  # of groups: whose each row of the inputs is

    @staticmethod
    @lru_cache(maxsize=64)
    def first_axis(batch: int) -> Samples:
        """The ordinary case: one sample per position of the first axis."""
        return Samples(batch)

    @staticmethod
    def of_one(batch: int, tensor: Tensor) -> Samples:
        """The layout of a tensor of one sample at most: all of it is that sample's, whatever the axes are."""
        if batch == 1 and tensor.dim() and tensor.shape[0] != 1:
            return Samples(batch, 0, torch.zeros(tensor.shape[0], dtype=torch.long, device=tensor.device))
        return Samples.first_axis(batch)

    @staticmethod
    def of_whole(tensor: Tensor) -> Samples:
        """The layout of a tensor of a model that has no batch axis."""
        length = tensor.shape[0] if tensor.dim() else 1
        return Samples(1, 0, torch.zeros(length, dtype=torch.long, device=tensor.device), whole=True)

    @property
    def ordinary(self) -> bool:
        """Whether the first axis is the batch."""
        return self.axis == 0 and self.ids is None

    def leads(self, shape: Sequence[int]) -> bool:
        """Whether the first axis of a tensor of this shape is the batch and nothing else."""
        return self.ordinary and shape[0] == self.batch

    def same(self, other: Samples) -> bool:
        """Whether samples lie along the same axis in the same order."""
        if self is other:
            return True
        if self.axis != other.axis or (self.ids is None) != (other.ids is None):
            return False
        return self.ids is None or other.ids is None or torch.equal(self.ids, other.ids)

    @property
    def in_order(self) -> bool:
        """Whether one sample follows the other along the first axis, so that batches may be joined there."""
        if self.axis != 0:
            return False
        return self.ids is None or (self._places is None and bool((self.ids.diff() >= 0).all()))

    @cached_property
    def _places(self) -> tuple[Tensor, Tensor] | None:
        """Where samples have more positions or fewer (packed sequences): each position's sample and its number there.

        Positions are taken sample by sample. None where all samples have as many.
        """
        if self.ids is None:
            return None
        counts = self.ids.bincount(minlength=self.batch)
        if bool((counts == counts[0]).all()):
            return None
        starts = counts.cumsum(0) - counts
        numbers = torch.arange(len(self.ids), device=self.ids.device) - starts.repeat_interleave(counts)
        return self.ids.sort().values, numbers

    def rows(self, tensor: Tensor) -> Tensor:
        """The tensor as (batch, everything else of that sample); shorter samples are padded with zeros."""
        if self.whole:
            return tensor.reshape(1, -1)
        if self.batch == 0:
            return tensor.reshape(0, max(1, tensor.shape[1:].numel()))
        if not self.ordinary:
            tensor = tensor.movedim(self.axis, 0)
            if self.ids is not None:
                tensor = tensor[self.ids.argsort(stable=True)]
            if self._places is not None:
                whole = tensor.new_zeros(self.batch, int(self._places[1].max()) + 1, *tensor.shape[1:])
                whole[self._places] = tensor
                tensor = whole
        return tensor.reshape(self.batch, -1)

    def unrows(self, rows: Tensor, shape: torch.Size) -> Tensor:
        """The inverse of `rows`."""
        if self.ordinary or self.whole:
            return rows.reshape(shape)
        moved = [shape[self.axis], *(n for a, n in enumerate(shape) if a != self.axis)]
        if self._places is not None:
            tensor = rows.reshape(self.batch, -1, *moved[1:])[self._places]
        else:
            tensor = rows.reshape(moved)
        if self.ids is not None:
            tensor = tensor[self.ids.argsort(stable=True).argsort()]
        return tensor.movedim(0, self.axis)

    def spread(self, per_sample: Tensor, dims: int) -> Tensor:
        """One number per sample (batch,), in a shape that broadcasts against a tensor of this layout."""
        chosen = per_sample if self.ids is None else per_sample[self.ids]
        return chosen.view(*(1,) * self.axis, -1, *(1,) * (dims - self.axis - 1))

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum per sample, (batch,)."""
        return self.rows(tensor).sum(1)
