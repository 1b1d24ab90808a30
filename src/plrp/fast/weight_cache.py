"""Weights made from a layer's own, W⁺ and BatchNorms folded in, kept from one explanation to the next.

They live as long as the memory of the weights they were made from, and are never taken on trust: each row has a
fingerprint of what it was made of, which is compared before an explanation reads it. A step of an optimiser,
`load_state_dict`, a write through `.data`, which torch itself does not notice: whatever changes a weight is seen.
Reading the weights once is a fraction of what it costs to make others from them in fresh memory.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import NamedTuple

import torch
from torch import Tensor

from .whole_tensors import empty_last

# Beyond so many bytes in all nothing more is kept: the next explanation makes it again.
MOST = 1 << 29


class Made(NamedTuple):
    """Rows made from some weight, one per output channel."""

    rows: Tensor  # in the shape of the weight; in memory each with its inputs last, or as the weight has them
    marks: Tensor  # int64: the fingerprint of what each row was made of, 0 where it is not made yet

    @property
    def nbytes(self) -> int:
        """The memory that it takes."""
        return self.rows.nbytes + self.marks.nbytes


_Key = tuple[int, torch.Size, int, bool]
_kept: dict[int, dict[_Key, Made]] = {}  # by the memory of the weights
_lock = threading.RLock()  # memory may be freed, and `_forget` called, at any moment


def made(raw: Tensor, part: int, last: bool, outdated: Made | None = None) -> Made:
    """What was made from a weight, of which sign (1, −1; 0: both) and whether with inputs last; or room for it.

    `outdated`: what is kept was made of other numbers, so it is replaced. Who reads it goes on to do so.
    """
    storage = raw.untyped_storage()
    key = (int(raw.storage_offset()), raw.shape, part, last)
    with _lock:
        mine = _kept.get(id(storage))
        if mine is not None and key in mine and mine[key] is not outdated:
            return mine[key]
        found = unkept(raw, last)
        if (mine is not None and key in mine) or size() + found.nbytes <= MOST:
            if mine is None:
                mine = _kept[id(storage)] = {}
                weakref.finalize(storage, _forget, id(storage)).atexit = False
            mine[key] = found
    return found


def unkept(raw: Tensor, last: bool) -> Made:
    """Room for what is made from a weight, for one explanation alone."""
    rows = empty_last(raw.shape, raw) if last and raw.dim() > 2 else torch.empty_like(raw)
    return Made(rows, torch.zeros(len(raw), dtype=torch.int64, device="cpu"))


def size() -> int:
    """The bytes that are kept."""
    with _lock:
        return sum(one.nbytes for mine in list(_kept.values()) for one in list(mine.values()))


def clear() -> None:
    """Keep nothing of what is kept now."""
    with _lock:
        for mine in list(_kept.values()):
            mine.clear()


def _unlock() -> None:
    """In a forked process: whoever held the lock is not there."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)


def _forget(storage: int) -> None:
    with _lock:
        _kept.pop(storage, None)
