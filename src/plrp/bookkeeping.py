"""The notes of a walk: its ledger, the relevance of the layers a user wants to see, and the growth by PLRP-M."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from .composites import Composite
from .ledger import Booking, Ledger, Mass, signed_mass
from .passage import CaseResult, Mask
from .tape.operations import Family
from .tape.samples import Samples
from .tape.trace import Trace
from .tape.values import Op, Value

STILL = (Family.PASS, Family.REARRANGE, Family.EMBEDDING)
"""Operations that move no mass: they have no entry in the ledger unless something was booked."""


class Bookkeeper:
    """The books of one walk. No formula of an explanation depends on them."""

    def __init__(self, trace: Trace, wanted: Collection[str], ledger: bool) -> None:
        self.ledger = Ledger(trace.batch) if ledger else None
        self.masses: dict[int, Mass] = {}  # of relevance that was measured already, by the id of its value
        self.grown: Tensor | None = None  # the largest factor by which PLRP-M multiplied a tensor's ‖R‖₁
        self.names = [op.name for op in trace.layers]  # read now: a tape that is used once is gone after the walk
        self.wanted: dict[int, list[str]] = {}  # layers whose relevance the user wants, by the value they read
        for op in trace.layers:
            if op.name in wanted:
                self.wanted.setdefault(id(op.inputs[0]), []).append(op.name)
        self.layers: dict[str, Tensor] = {}
        self.scattered: set[str] = set()  # layers whose samples do not lie side by side

    def booking(self) -> Booking:
        """An empty page for one operation; it stays empty where nobody reads the ledger."""
        return Booking(self.ledger is not None)

    def tensor(self, relevance: Any) -> Tensor:
        """The relevance as an ordinary tensor, the user's own."""
        return relevance.contiguous()

    def mass(self, relevance: Any, samples: Samples) -> Mass:
        """The mass of the positive and of the negative part, per sample."""
        return signed_mass(samples.rows(relevance))

    def write_operation(
        self, op: Op, composite: Composite, given: Sequence[Any], handed: Sequence[Any], book: Booking
    ) -> Sequence[Mass | None]:
        """Enter an operation into the ledger if it moves mass; returns the mass that each input received."""
        if self.ledger is None:
            return [None] * len(op.inputs)
        if op.family in STILL and op.rule is None and not book.touched:
            alone = len(op.inputs) == len(op.outputs) == 1
            return [self.masses.pop(id(v), None) if alone else None for v in op.outputs[:1]] * len(op.inputs)
        into = [self._mass(v, r) for v, r in zip(op.outputs, given, strict=True) if r is not None]
        out = [None if r is None else self.mass(r, v.samples) for v, r in zip(op.inputs, handed, strict=True)]
        masses = {"mass_in": _total(into), "mass_out": _total([m for m in out if m is not None])}
        self.ledger.add(layer=op.name, op=op.kind, rule=composite.rule_name(op), **masses, book=book)
        return out

    def write_pruning(
        self, value: Value, layer: str, rule: str, before: Any, after: Any, book: Booking, columns: dict[str, Any]
    ) -> None:
        """Enter into the ledger that a tensor, which these layers read, was pruned."""
        if self.ledger is None:
            return
        mass_in = self._mass(value, before)
        mass_out = self.masses[id(value)] = self.mass(after, value.samples)
        self.ledger.add(layer=layer, op="prune", rule=rule, mass_in=mass_in, mass_out=mass_out, book=book, **columns)

    def write_withheld(self, mask: Mask, passes: Any, withheld: Sequence[tuple[Tensor, Value]]) -> None:
        """Enter into the ledger which relevance passed a mask, and which was withheld, tensor by tensor."""
        if self.ledger is None or not withheld:
            return
        positive, negative = _total([self.mass(relevance, value.samples) for relevance, value in withheld])
        nothing = torch.zeros_like(positive)
        out = (nothing, nothing) if passes is None else self.mass(passes, mask.value.samples)
        book = Booking()
        book.withheld = positive - negative
        into = out[0] + positive, out[1] + negative
        self.masses[id(mask.value)] = out
        self.ledger.add(layer=mask.name, op="condition", rule=mask.label, mass_in=into, mass_out=out, book=book)

    def write_growth(self, book: Booking) -> None:
        """Note by how much pruning multiplied ‖R‖₁ of a tensor."""
        if book.grown is not None:
            self.grown = book.grown if self.grown is None else torch.maximum(self.grown, book.grown)

    def store_layers(self, value: Value, relevance: Any) -> None:
        """Store the relevance of a tensor for the layers that read it, where the user wants to see it."""
        for name in self.wanted.get(id(value), ()):
            self.layers[name] = self.tensor(relevance)
            alone = value.samples.batch == 1 and value.shape[0] > 1  # one sample says nothing of how several would lie
            if alone or not value.samples.in_order:
                self.scattered.add(name)

    def results(self, relevance: list[Tensor]) -> list[CaseResult]:
        """The result of each case that the walk has taken, here of the one, given the relevance of the inputs."""
        return [CaseResult(relevance, self.layers, self.grown)]

    def remember(self, value: Value, mass: Mass | None) -> None:
        """The mass of a tensor's relevance is known, or (None) it is to be measured when it is asked for."""
        if mass is None:
            self.masses.pop(id(value), None)
        else:
            self.masses[id(value)] = mass

    def _mass(self, value: Value, relevance: Any) -> Mass:
        """The mass of a tensor's relevance, measured once."""
        known = self.masses.get(id(value))
        if known is None:
            known = self.masses[id(value)] = self.mass(relevance, value.samples)
        return known


def _total(masses: Sequence[Mass]) -> Mass:
    positive, negative = masses[0]
    for more in masses[1:]:
        positive, negative = positive + more[0], negative + more[1]
    return positive, negative
