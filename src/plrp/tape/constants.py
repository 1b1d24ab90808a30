"""The constants that a forward pass reads: does another pass read the same?

A tensor that is made anew in every pass (a mask, a table of positions, a count) may come from the input by a way that
the tape does not see. So may a Python number, and the choice of a row of the model's own tensors. A pass that reads
others than a verified one is looked at again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from numbers import Number
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .values import Op, Value

FEW_VALUES = 16  # a factor with at most so many different numbers is known by these, wherever they stand


class Constant(NamedTuple):
    """A constant among an operation's arguments, the `number`th of them."""

    op: Op
    number: int
    data: Any
    place: int  # a hash of where on the tape it is read
    digests: list[int]  # of its content: one per sample where its first axis is the batch
    batch: int

    @property
    def keys(self) -> list[int]:
        """Hashes of its content at this place."""
        return [hash((self.place, digest)) for digest in self.digests]

    @property
    def values(self) -> set[int]:
        """Hashes of the different numbers of a factor, if they are few; of a size, how often it holds the batch."""
        if (
            isinstance(self.data, int)
            and not _reads_numbers(self.op)
            and self.batch > 1
            and self.data % self.batch == 0
        ):
            return {hash((self.place, "batch", self.data // self.batch))}
        if not isinstance(self.data, Tensor) or not self.op.operation.multiplies:
            return set()
        different = self.data.detach().unique()
        return {hash((self.place, value)) for value in different.tolist()} if len(different) <= FEW_VALUES else set()


def constants_read(ops: Sequence[Op], batch: int) -> Iterator[Constant]:
    """The constants of a tape that another pass may read otherwise: Python numbers, and tensors: those of the model are
    known by their place in memory, others by their content.
    """
    known: dict[Any, list[int]] = {}  # a mask is read by every layer
    for position, op in enumerate(ops):
        for number, data in enumerate(constants_of(op)):
            if not isinstance(data, Tensor):
                hashes = [hash((type(data), data)) if type(data) is int else hash(repr(data))]
            elif (op.suspect or op.map is None) and data.layout is torch.strided:
                memory = data.data_ptr(), data.dtype, data.shape, data.stride()
                hashes = known.get(memory) or (digests(data, batch) if op.fresh else [hash(memory)])
                known[memory] = hashes
            else:
                continue
            yield Constant(op, number, data, hash((position, number)), hashes, batch)


def digests(data: Tensor, batch: int) -> list[int]:
    """Hashes of a tensor's content, one per sample where its first axis is the batch.

    If it holds one number alone, it is known by this number, whatever its shape.
    """
    rows = data.detach().cpu().reshape(batch if data.dim() and len(data) == batch else 1, -1)
    alike = (rows == rows[:, :1]).all(1).tolist()
    raw = rows.clone(memory_format=torch.contiguous_format).view(torch.uint8).numpy()  # (n, 1) may have any strides
    return [
        hash(row[: data.element_size()].tobytes() if one else row.tobytes())
        for row, one in zip(raw, alike, strict=True)
    ]


def _reads_numbers(op: Op) -> bool:
    """Whether whole numbers among the arguments may enter the output: else most are axes and sizes."""
    return op.traits.elementwise or op.traits.constants is not None or op.traits.bounds is not None


def constants_of(op: Op) -> Iterator[Any]:
    """The tensors and numbers among an operation's arguments that do not come from the input."""
    if op.declared == "all":
        return iter(())
    read = op.args[1:] if op.kind == "copy" else op.args  # `copy_` writes over its target
    return _constants((*read, *op.kwargs.values()), op.declared != "numbers")


def _constants(items: Iterable[Any], numbers: bool) -> Iterator[Any]:
    for item in items:
        kind = item.__class__
        if kind is Value or kind is bool or item is None:
            continue
        if isinstance(item, Tensor) or (numbers and isinstance(item, Number)):
            yield item
        elif isinstance(item, list | tuple) and kind is not torch.Size:
            yield from _constants(item, numbers)
        elif isinstance(item, dict):
            yield from _constants(item.values(), numbers)
