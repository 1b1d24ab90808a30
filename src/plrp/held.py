"""Parts of a relevance down the tape, with the pruning of the whole held fixed.

Pruning is not linear: half of a relevance would be cut elsewhere than the whole. What it did to each neuron is a
factor, 0 where it cut and λ where it scaled; with that held, parts of a relevance add up to the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .composites import Composite
from .pruning import Pruning, factor
from .tape.trace import Trace
from .tape.values import Value
from .walk import Walk


class RecordingWalk(Walk):
    """A walk that keeps what every tensor held before and after its pruning, by the id of its value."""

    def __init__(self, trace: Trace, target: Any, composite: Composite, pruning: Pruning | None) -> None:
        super().__init__(trace, target, composite, pruning, set(), ledger=False)
        self.before: dict[int, Tensor] = {}
        self.after: dict[int, Tensor] = {}

    def collect(self, value: Value) -> Tensor | None:
        """As the walk does, and keep it."""
        before = self.relevance.get(id(value))
        after: Tensor | None = super().collect(value)
        if before is not None and after is not None:
            self.before[id(value)], self.after[id(value)] = before, after
        return after


class HeldWalk(Walk):
    """A part of a recorded walk again, with other relevance: every tensor is cut and scaled as it was."""

    def __init__(self, recorded: RecordingWalk) -> None:
        vars(self).update(vars(recorded), sites={}, redistributes=False)  # its score and rules, without its pruning
        self.recorded = recorded
        self.untouched = 0

    def send(self, relevance: Tensor, upper: Value, until: Sequence[Value]) -> list[Tensor | None]:
        """What `relevance` at `upper`, after its pruning, becomes at each of `until`, after theirs, where it stops.

        None where nothing arrives.
        """
        self.relevance, self.untouched = {id(upper): relevance}, id(upper)
        ends, arrived = {id(value) for value in until} - {id(upper)}, dict[int, Tensor]()
        for op in reversed(self.recorded.start.ops):
            if not self.relevance:
                break
            for value in op.outputs:
                if id(value) in ends and (found := self.collect(value)) is not None:
                    arrived[id(value)] = found
            given = [self.collect(value) for value in op.outputs]
            if any(r is not None for r in given):
                self.hand_down(op, given)
        for value in self.trace.inputs:
            if id(value) in ends and (found := self.collect(value)) is not None:
                arrived[id(value)] = found
        return [arrived.get(id(value)) for value in until]

    def collect(self, value: Value) -> Tensor | None:
        """The relevance of a tensor, each neuron times what pruning made of it in the recorded walk."""
        relevance = self.relevance.pop(id(value), None)
        if relevance is None or id(value) == self.untouched:
            return relevance
        before, after = self.recorded.before[id(value)], self.recorded.after[id(value)]
        if before is after:
            return relevance
        return relevance * factor(before, after, value.samples)
