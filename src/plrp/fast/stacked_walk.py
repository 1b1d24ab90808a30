"""Many p at once: the relevance of several prunings in one tensor, over the activations and denominators of one trace.

The batch is stacked up, a copy per pruning: sample k · batch + n is sample n under pruning k. Layers that follow single
neurons take the stack as one large batch and read the activations of the one that is recorded. Whatever has no such
form goes copy by copy through the ordinary code. It pays where few neurons live, and the walk itself is what costs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from plrp import pruning
from plrp.composites import Composite
from plrp.ledger import Booking
from plrp.pruning import Arrived, Pruning, Site
from plrp.rules import Branch, Rule
from plrp.tape.operations import Family
from plrp.tape.samples import Samples
from plrp.tape.trace import Trace
from plrp.tape.values import Op, Value

from . import limits, native
from .fast_walk import FastWalk
from .neuron_pruning import by_neurons, prune_neurons
from .neurons import Neurons, Relevance, dense
from .selection import cut


def stackable(how: Pruning | None) -> bool:
    """Whether a pruning leaves few neurons everywhere, and needs nothing of a layer's first pass afterwards."""
    if how is None or how.p is None or how.sparsity_gain is not None or not how.by_neuron:
        return False
    smallest = min(p for p in (how.p, how.p_negative, *(how.layers or {}).values()) if p is not None)
    return how.redistribution == "lambda" and how.conserve and smallest >= limits.STACKED_FROM


def walked_together(trace: Trace, prunings: Sequence[Pruning | None]) -> Iterator[list[Pruning | None]]:
    """Neighbours that can be stacked, as many as a stack may have; all others one by one."""
    size = limits.STACKED_SAMPLES // max(1, trace.batch)
    possible = size > 1 and native.available()
    waiting: list[Pruning | None] = []
    for how in prunings:
        stacks = possible and stackable(how)
        if waiting and (not stacks or len(waiting) == size):
            yield waiting
            waiting = []
        if stacks:
            waiting.append(how)
        else:
            yield [how]
    if waiting:
        yield waiting


class StackedWalk(FastWalk):
    """The ways of several prunings down one tape, in one."""

    def __init__(
        self, trace: Trace, target: Any, composite: Composite, prunings: Sequence[Pruning], wanted: set[str]
    ) -> None:
        super().__init__(trace, target, composite, prunings[0], wanted, False)
        self.prunings = prunings
        self.copies = len(prunings)
        self.plans = [how.plan(trace) for how in prunings]
        self.relevance = {id(self.start.value): torch.cat([self.start.relevance] * self.copies)}

    def of_pruning(self, number: int, stacked: Sequence[Tensor]) -> tuple[list[Tensor], dict[str, Tensor]]:
        """The relevance of the inputs, and of the layers wanted, under one of the prunings."""
        layers = {name: r.chunk(self.copies)[number].clone() for name, r in self.layers.items()}
        return [r.chunk(self.copies)[number].clone() for r in stacked], layers

    def _copies(self, relevance: Relevance) -> Sequence[Relevance]:
        """The relevance of each copy."""
        batch = relevance.shape[0] // self.copies
        if isinstance(relevance, Neurons):
            samples = torch.arange(relevance.shape[0], device=relevance.positions.device)
            return [relevance.only(part) for part in samples.split(batch)]
        return dense(relevance).chunk(self.copies)

    def size(self, relevance: Relevance, samples: Samples) -> Tensor:
        """As in `Walk`, of the first copy: above the first pruned tensor all copies are the same."""
        return super().size(self._copies(relevance)[0], samples)

    def input_relevance(self, value: Value) -> Tensor:
        """As in `Walk`, of all copies."""
        found = super().input_relevance(value)
        return found if len(found) == self.copies * value.shape[0] else torch.cat([found] * self.copies)

    def prune(
        self, relevance: Relevance, site: Site, arrived: Arrived | None, book: Booking
    ) -> tuple[Relevance, dict[str, Any]]:
        """Each copy with its own p; where single neurons are kept, all at once."""
        sites = [plan[id(site.value)] for plan in self.plans]
        assert self.pruning is not None
        if by_neurons(relevance, site, self.pruning, arrived):
            p, p_negative = (
                torch.tensor(each, dtype=torch.float64).repeat_interleave(site.value.shape[0])
                for each in zip(*(one.shares for one in sites), strict=True)
            )
            found = prune_neurons(relevance, (p, p_negative), self.pruning, arrived, book)
            assert found is not None
            return found
        parts = zip(self._copies(relevance), sites, self.prunings, strict=True)
        return torch.cat([pruning.prune(dense(part), one, how, None, book, cut)[0] for part, one, how in parts]), {}

    def pass_tensors(self, op: Op, given: Sequence[Relevance | None], book: Booking) -> Sequence[Relevance | None]:
        """Copy by copy, since the tape has one."""
        if op.family is Family.PASS and op.rule is None and op.inputs[0].shape == op.output.shape:
            return [given[0]]
        split = [[None] * self.copies if r is None else self._copies(r) for r in given]
        handed = [super(StackedWalk, self).pass_tensors(op, one, book) for one in zip(*split, strict=True)]
        return [_joined(parts) for parts in zip(*handed, strict=True)]

    def _whole_tensors(self, op: Op, given: Sequence[Relevance | None], book: Booking) -> list[Tensor | None] | None:
        return None

    def _through_tensors(
        self, op: Op, rule: Rule, branches: Sequence[Branch], x: Tensor, given: Relevance, book: Booking
    ) -> tuple[Tensor, list[Any]]:
        alone = super()._through_tensors
        if len(x) == given.shape[0]:  # samples that were split off, each with what it read
            return alone(op, rule, branches, x, given, book)
        handed = [alone(op, rule, branches, x, part, book)[0] for part in self._copies(given)]
        joined = _joined(handed)
        assert joined is not None
        return joined, []


def _joined(parts: Sequence[Relevance | None]) -> Tensor | None:
    found = [dense(part) for part in parts if part is not None]
    return torch.cat(found) if found else None
