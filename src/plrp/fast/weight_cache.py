"""Weights derived from a layer's own, W⁺ and BatchNorms folded in, remembered from one explanation to the next.

They live as long as the memory of the weights they were derived from, and are never taken on trust: each row has a
fingerprint of its source, which is compared before an explanation reads it. A step of an optimiser,
`load_state_dict`, a write through `.data`, which torch itself does not notice: whatever changes a weight is seen.
Fingerprints are keyed at random, once per process, so that nobody can make weights that share one.
Reading the weights once costs a fraction of making others from them in fresh memory.
"""

from __future__ import annotations

import os
import threading
import weakref
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from plrp.tape.maps import Weight

from . import native
from .channels_last import empty_last

# Beyond so many bytes in all nothing more is remembered: the next explanation derives it itself.
MOST = 1 << 29


class Derived(NamedTuple):
    """Rows derived from some weight, one per output channel."""

    rows: Tensor  # in the shape of the weight; in memory each with its inputs last, or as the weight has them
    fingerprints: Tensor  # int64: of the source of each row, 0 where the row is not filled in yet

    @property
    def nbytes(self) -> int:
        """The memory that it takes."""
        return self.rows.nbytes + self.fingerprints.nbytes


_Key = tuple[int, torch.Size, int, bool]
_cache: dict[int, dict[_Key, Derived]] = {}  # by the memory of the weights
_lock = threading.RLock()  # memory may be freed, and `_forget` called, at any moment


def derived(raw: Tensor, part: int, last: bool, outdated: Derived | None = None) -> Derived:
    """Weights derived from another, of which sign (1, −1; 0: both) and whether with inputs last; or room for it.

    `outdated`: the cached weights were derived from other numbers, so they are replaced. Who reads it goes on to do so.
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
    """Room for the weights derived from another, for one explanation alone."""
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


# --- weights made by the compiled loops -------------------------------------------------------------------------------


class FastWeight(Weight):
    """A layer's weight (outputs, inputs / groups, *kernel), raw · scale, cut to a sign (1, −1; 0: whole).

    `full` serves dense propagation, with inputs last in memory if `last`; `inputs_last` that of single neurons, with
    only the channels asked for filled in. `cached`: `raw` outlives the explanation, so its derived weights are
    remembered for the next.
    """

    def __init__(
        self, raw: Tensor, scale: Tensor | None = None, part: int = 0, *, cached: bool = False, last: bool = False
    ) -> None:
        super().__init__(raw, scale, part)
        self.cached, self.last = cached, last
        self._derived: dict[bool, tuple[Derived, Tensor | None]] = {}  # by layout; and which rows are known to be right

    @cached_property
    def full(self) -> Tensor:
        """The weight, multiplied out."""
        return self._rows(None, self.last) if self._compiled else super().full

    @property
    def _compiled(self) -> bool:
        """Whether the compiled loop can make it: scales are one number per output (not in transposed convolutions)."""
        scales = () if self.scale is None else (self.scale,)
        fits = self.raw.dim() > 1 and all(scale.numel() == len(self.raw) for scale in scales)
        return fits and native.available(self.raw, *scales)

    def inputs_last(self, channels: Tensor) -> Tensor:
        """The weight, in memory (outputs, taps, inputs / groups); the rows of these output channels are filled in."""
        if self._compiled:
            return self._rows(channels, last=True)
        return self.full.movedim(1, -1).contiguous().movedim(-1, 1)

    def _rows(self, channels: Tensor | None, last: bool) -> Tensor:
        """The weight, of which the rows of these output channels (None: all) are filled in unless they are there."""
        outputs, inputs, taps = self.raw.shape[0], self.raw.shape[1], self.raw.shape[2:].numel()
        last = last and taps > 1  # else it is all the same
        if self.part == 0 and self.scale is None and not last:
            return self.raw
        sizes = (outputs, inputs, taps, self.part) if last else (outputs, inputs * taps, 1, self.part)
        wanted = outputs if channels is None else len(channels)
        derivation, ready = self._derived.get(last) or self._begin(last)
        while True:
            if ready is None and channels is not None:
                ready = torch.zeros(outputs, dtype=torch.uint8, device="cpu")
                self._derived[last] = derivation, ready
            fingerprints = derivation.fingerprints if self.cached else None
            arguments = channels, wanted, ready, derivation.rows, fingerprints, native.threads()
            if not native.call("weights", self.raw, self.scale, *sizes, *arguments):
                return derivation.rows
            derivation, ready = self._begin(last, outdated=derivation)

    def _begin(self, last: bool, outdated: Derived | None = None) -> tuple[Derived, Tensor | None]:
        derivation = derived(self.raw, self.part, last, outdated) if self.cached else derived_once(self.raw, last)
        self._derived[last] = derivation, None
        return self._derived[last]


def fast_weight(weight: Weight) -> FastWeight:
    """A rule's weight for the compiled loops; the same one however often it is asked for."""
    if isinstance(weight, FastWeight):
        return weight
    made: FastWeight = weight.__dict__.setdefault("fast", FastWeight(weight.full))
    return made
