"""Weights derived from a layer's own, W⁺ and BatchNorms folded in, remembered from one explanation to the next.

They live as long as the memory of the weights they were derived from, and are never taken on trust: each row has a
fingerprint of what it was derived from, which is compared before an explanation reads it. A step of an optimiser,
`load_state_dict`, a write through `.data`, which torch itself does not notice: whatever changes a weight is seen.
Fingerprints are keyed at random, once per process, so that nobody can make weights that share one.
Reading the weights once is a fraction of what it costs to make others from them in fresh memory.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import NamedTuple

import torch
from torch import Tensor

from .channels_last import empty_last

# Beyond so many bytes in all nothing more is remembered: the next explanation derives it itself.
MOST = 1 << 29


class Derived(NamedTuple):
    """Rows derived from some weight, one per output channel."""

    rows: Tensor  # in the shape of the weight; in memory each with its inputs last, or as the weight has them
    fingerprints: Tensor  # int64: of what each row was derived from, 0 where it is not filled in yet

    @property
    def nbytes(self) -> int:
        """The memory that it takes."""
        return self.rows.nbytes + self.fingerprints.nbytes


_Key = tuple[int, torch.Size, int, bool]
_cache: dict[int, dict[_Key, Derived]] = {}  # by the memory of the weights
_lock = threading.RLock()  # memory may be freed, and `_forget` called, at any moment


def derived(raw: Tensor, part: int, last: bool, outdated: Derived | None = None) -> Derived:
    """What was derived from a weight, of which sign (1, −1; 0: both) and whether with inputs last; or room for it.

    `outdated`: what the cache has was derived from other numbers, so it is replaced. Who reads it goes on to do so.
    """
    storage = raw.untyped_storage()
    key = (int(raw.storage_offset()), raw.shape, part, last)
    with _lock:
        known = _cache.get(id(storage))
        if known is not None and key in known and known[key] is not outdated:
            return known[key]
        new = derived_once(raw, last)
        if (known is not None and key in known) or size() + new.nbytes <= MOST:
            if known is None:
                known = _cache[id(storage)] = {}
                weakref.finalize(storage, _forget, id(storage)).atexit = False
            known[key] = new
    return new


def derived_once(raw: Tensor, last: bool) -> Derived:
    """Room for what is derived from a weight, for one explanation alone."""
    rows = empty_last(raw.shape, raw) if last and raw.dim() > 2 else torch.empty_like(raw)
    return Derived(rows, torch.zeros(len(raw), dtype=torch.int64, device="cpu"))


def size() -> int:
    """The bytes that are in use."""
    with _lock:
        return sum(one.nbytes for known in list(_cache.values()) for one in list(known.values()))


def clear() -> None:
    """Forget everything."""
    with _lock:
        for known in list(_cache.values()):
            known.clear()


def _unlock() -> None:
    """In a forked process: whoever held the lock is not there."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)


def _forget(storage: int) -> None:
    with _lock:
        _cache.pop(storage, None)
