"""Weights derived from a layer's own, made by the compiled loops: W⁺, BatchNorms folded in, inputs last in memory."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from plrp.tape.maps import Weight

from . import native
from .weight_cache import Derived, derived, derived_once


class FastWeight(Weight):
    """A layer's weight (outputs, inputs / groups, *kernel), raw · scale, cut to a sign (1, −1; 0: whole).

    `full` serves dense propagation, with inputs last in memory if `last`; `inputs_last` that of single neurons, with
    only the channels asked for filled in. `cached`: `raw` outlives the explanation, so what is derived from it is
    remembered for the next (`weight_cache.py`).
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
        last = self.last and self.raw.dim() > 2
        if self.part == 0 and self.scale is None and not last:
            return self.raw
        if self._compiled:
            return self._rows(None, last)
        return super().full

    @property
    def _compiled(self) -> bool:
        """Whether the compiled loop can make it: scales are one number per output (not in transposed convolutions)."""
        if self.raw.dim() < 2:
            return False
        if self.scale is None:
            return native.available(self.raw)
        return self.scale.numel() == len(self.raw) and native.available(self.raw, self.scale)

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
