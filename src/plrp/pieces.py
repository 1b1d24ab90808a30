"""A batch explained in pieces, so that memory is bounded by a piece and not by the batch: `micro_batch=`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .tape.refusals import check_inputs
from .tape.values import replaced, tensors_in

Given = Tensor | Sequence[Tensor]


def pieces(inputs: Given, size: int) -> list[tuple[slice, Given]]:
    """The inputs of at most `size` samples each, and which samples these are; an empty batch is one piece."""
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(f"micro_batch is a number of samples, 1 or more, got {size!r}.")
    batch = check_inputs(inputs)[0].shape[0]
    parts = [slice(begin, begin + size) for begin in range(0, max(batch, 1), size)]
    return [(part, some(inputs, part)) for part in parts]


def some(inputs: Given, samples: slice | Tensor) -> Given:
    """The inputs of some samples of the batch."""
    return inputs[samples] if isinstance(inputs, Tensor) else tuple(x[samples] for x in inputs)


def joined_structure(parts: Sequence[Any]) -> Any:
    """The same nested structure with each tensor joined along the batch axis."""
    columns = zip(*(tensors_in(part) for part in parts), strict=True)
    tensors = iter([torch.cat(column) if column[0].dim() else column[0] for column in columns])
    return replaced(parts[0], lambda _: next(tensors), of=Tensor)
