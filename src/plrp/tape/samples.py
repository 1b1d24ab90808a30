"""Which part of a tensor belongs to which sample of the batch.

Thresholds, masses and ledgers are per sample, so the tape must know where a sample lies even after a model has moved or
merged the batch axis: (batch, time, …) → (batch · time, …) → (time, batch, …). Nearly always it is the first axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .operations import Family

if TYPE_CHECKING:
    from .values import Op


NOBODY = -1.0  # the number of a sample where a constant stands


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples lie along `axis`; position i is sample `ids[i]` (sample i where `ids` is None)."""

    batch: int
    axis: int = 0
    ids: Tensor | None = None
    mixed: bool = False  # an operation has mixed the samples: relevance must not pass it
    whole: bool = False  # there is no batch axis: every tensor is of the one sample

    @staticmethod
    @lru_cache(maxsize=64)
    def first_axis(batch: int) -> Samples:
        """The ordinary case: one sample per position of the first axis."""
        return Samples(batch)

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
        return self.ids.sort(stable=True).values, numbers

    def rows(self, tensor: Tensor) -> Tensor:
        """The tensor as (batch, everything else of that sample), zeros after what is shorter than the longest."""
        if self.whole:
            return tensor.reshape(1, -1)
        if self.batch == 0:
            return tensor.reshape(0, max(1, _product(tensor.shape[1:])))
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
        if self.whole:
            return per_sample.view((1,) * dims)
        if self.batch <= 1 and self.ids is None:
            return per_sample.view(per_sample.shape[0], *(1,) * (dims - 1))
        chosen = per_sample if self.ids is None else per_sample[self.ids]
        return chosen.view(*(1,) * self.axis, -1, *(1,) * (dims - self.axis - 1))

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum per sample, (batch,)."""
        return self.rows(tensor).sum(1)

    @staticmethod
    def through(op: Op, outputs: Sequence[Tensor]) -> list[Samples]:
        """Where the samples lie in an operation's outputs."""
        layout = op.inputs[0].samples
        batch = layout.batch
        if layout.whole:
            return [Samples.of_whole(t) for t in outputs]
        if any(v.samples.mixed for v in op.inputs):
            return [Samples(batch, mixed=True)] * len(outputs)
        if batch <= 1:
            return [_of_one(batch, t) for t in outputs]
        if op.family is Family.EMBEDDING:  # new axes come last
            return [layout] * len(outputs)
        ordinary = all(v.samples.ordinary for v in op.inputs)
        if ordinary and not _moves_first_axis(op) and all(t.shape[:1] == (batch,) for t in outputs):
            return [layout] * len(outputs)
        if op.family in (Family.REARRANGE, Family.SPLIT, Family.WINNER) and op.kind not in (
            "add",
            "sub",
            "rsub",
        ):
            found = _moved(op, outputs)
        else:
            found = [_unmoved(op, t) for t in outputs]
        return [Samples(batch, mixed=True) if f is None else f for f in found]


_TAKES_APART = frozenset(
    """getitem select unbind narrow index_select split split_with_sizes chunk tensor_split vsplit take masked_select
    gather take_along_dim topk""".split()
)


def mixing_reason(op: Op) -> str:
    """Why relevance cannot pass an operation after which samples do not lie side by side."""
    if op.kind in _TAKES_APART:
        return "it takes some samples out of the batch, whose relevance could not be told apart"
    return "it mixes the samples of the batch"


def _of_one(batch: int, tensor: Tensor) -> Samples:
    """The layout where there is one sample at most: all of the tensor is its own, whatever the axes are."""
    if batch == 1 and tensor.dim() and tensor.shape[0] != 1:
        return Samples(batch, 0, torch.zeros(tensor.shape[0], dtype=torch.long, device=tensor.device))
    return Samples.first_axis(batch)


_MOVERS = frozenset(
    """permute transpose t T mT H mH adjoint swapaxes swapdims movedim moveaxis flip flipud roll rot90 getitem
    index_select gather take_along_dim stack cat unbind chunk split split_with_sizes tensor_split vstack hstack
    sort topk setitem repeat repeat_interleave tile select narrow vsplit unsqueeze""".split()
)


def _moves_first_axis(op: Op) -> bool:
    """Whether a rearrangement may move samples although the first axis keeps its length."""
    if op.kind not in _MOVERS:
        return False
    dims = len(op.outputs[0].shape) if op.outputs else len(op.inputs[0].shape)
    if op.kind == "setitem" and not isinstance(op.args[2], type(op.inputs[0])):
        return False  # a constant is assigned: nothing moves
    if op.kind in ("getitem", "setitem"):
        index = op.args[1] if isinstance(op.args[1], tuple) else (op.args[1],)
        return not (index and (index[0] is Ellipsis or (isinstance(index[0], slice) and index[0] == slice(None))))
    if op.kind in ("cat", "stack", "chunk", "split", "unbind", "split_with_sizes", "tensor_split"):
        position = {"cat": 1, "stack": 1, "unbind": 1}.get(op.kind, 2)
        return _axis(op.argument(position, "dim", 0), dims) == 0
    if op.kind in ("transpose", "swapaxes", "swapdims"):
        return 0 in (_axis(op.args[1], dims), _axis(op.args[2], dims)) if len(op.args) > 2 else True
    if op.kind == "permute":
        order = op.args[1] if len(op.args) == 2 and isinstance(op.args[1], list | tuple) else op.args[1:]
        return not (len(order) > 0 and _axis(order[0], dims) == 0)
    return True


def _axis(dim: Any, dims: int) -> int:
    return dim % dims if isinstance(dim, int) and dims else 0


_MOVED: dict[Any, list[Samples | None]] = {}  # by the form of an operation and where the samples lay
_MOST_MOVED = 4096


def _moved(op: Op, outputs: Sequence[Tensor]) -> list[Samples | None]:
    """Where an operation takes the samples, tried out once for each form of it: models repeat their blocks."""
    from .values import gathered, replaced

    if gathered(op.args, op.kwargs):  # constants decide too
        return [_locate(ids, op.inputs[0].samples.batch) for ids in _probed(op, outputs)]
    places = {id(value): place for place, value in enumerate(op.inputs)}
    form = repr(replaced((op.args, op.kwargs), lambda value: places[id(value)] + 0.5))  # no index is a half
    layouts = tuple((value.shape, value.samples) for value in op.inputs)
    key = op.kind, op.family, op.operation.replay, form, layouts, outputs[0].device, len(outputs)
    found = _MOVED.get(key)
    if found is None:
        if len(_MOVED) >= _MOST_MOVED:
            _MOVED.clear()
        found = _MOVED[key] = [_locate(ids, op.inputs[0].samples.batch) for ids in _probed(op, outputs)]
    return found


def _probed(op: Op, outputs: Sequence[Tensor]) -> list[Tensor]:
    """The operation applied to a tensor of sample numbers: whose number arrives where."""

    def run(inside: Sequence[Tensor]) -> list[Tensor]:
        from .values import tensors_in

        return [t for t in tensors_in(op.call(inside)) if t.is_floating_point()]

    numbers, ones = [], []
    for value in op.inputs:
        data, layout = value.data, value.samples
        ids = torch.arange(layout.batch, device=data.device) if layout.ids is None else layout.ids
        shape = [1] * data.dim()
        shape[layout.axis] = -1
        numbers.append(ids.double().view(shape).expand(data.shape))
        ones.append(torch.ones((), dtype=torch.float64, device=data.device).expand(data.shape))
    found = run(numbers)
    if op.family is Family.SPLIT:  # sums of numbers: divide by how many were summed
        found = [total / count for total, count in zip(found, run(ones), strict=True)]
    elif op.family is Family.REARRANGE:  # a constant among them is nobody's: it does not change with the numbers
        others = run([n + 1 for n in numbers])
        found = [torch.where(a == b, NOBODY, a) for a, b in zip(found, others, strict=True)]
    return found[: len(outputs)]


def _locate(ids: Tensor, batch: int) -> Samples | None:
    """The axis along which sample numbers change, if there is exactly one."""
    for axis in range(ids.dim()):
        line = ids.movedim(axis, 0).reshape(ids.shape[axis], -1)
        if not line.numel():
            return None
        numbers = line.amax(1)
        if not bool(((line == numbers[:, None]) | (line == NOBODY)).all()) or bool((numbers == NOBODY).any()):
            continue
        whole = numbers.round().long()
        if not torch.allclose(whole.double(), numbers) or not bool((whole.bincount(minlength=batch) > 0).all()):
            return None
        plain = torch.equal(whole, torch.arange(batch, device=ids.device))
        return Samples(batch, axis, None if plain else whole)
    return None


def _unmoved(op: Op, output: Tensor) -> Samples | None:
    """The layout of an input that the output still has: the operation works on other axes."""
    for value in op.inputs:
        layout = value.samples
        if len(value.shape) == output.dim() and value.shape[layout.axis] == output.shape[layout.axis]:
            return layout
    return None


def _product(sizes: Sequence[int]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total
