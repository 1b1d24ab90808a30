"""Many p at once: the relevance of several prunings in one tensor, over the activations and denominators of one trace.

The batch is stacked up, a copy per pruning: sample k · batch + n is sample n under pruning k. Layers that follow single
neurons take the stack as one large batch and read the activations of the one that is recorded. Whatever has no such
form goes copy by copy through the ordinary code. It pays where few neurons live, and the walk itself is what costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from plrp.composites import Composite, resolve
from plrp.explanation import Explanation, Walk, check_pruning, described, explain_trace, wanted_layers
from plrp.pruning import Arrived, Pruning, Site, by_neurons, prune, prune_neurons
from plrp.rules import Booking, Branch, Handed
from plrp.tape.operations import Family
from plrp.tape.trace import Trace
from plrp.tape.values import Op
from plrp.targets import own, start

from . import native
from .neurons import Neurons, Relevance, dense

# Prunings below this p leave so many neurons that dense propagation is faster, and that a stack would fill the memory.
STACKED_FROM = 0.15
# As many samples as a stack may have: beyond, larger steps gain nothing.
MOST = 16


def stackable(pruning: Pruning | None) -> bool:
    """Whether a pruning leaves few neurons everywhere, and needs nothing of a layer's first pass afterwards."""
    if not isinstance(pruning, Pruning) or pruning.p is None or pruning.sparsity_gain is not None:
        return False
    smallest = min(p for p in (pruning.p, pruning.p_negative, *(pruning.layers or {}).values()) if p is not None)
    return pruning.redistribution == "lambda" and pruning.conserve and smallest >= STACKED_FROM


def explain_many(
    found: Trace,
    prunings: Iterable[Pruning | None],
    *,
    target: Any,
    composite: str | Composite,
    layers: bool | Sequence[str],
) -> Iterator[Explanation]:
    """One explanation per pruning, in their order; the arguments are checked now, not when the first is asked for."""
    if prunings is None or isinstance(prunings, Pruning | int | float | str):
        raise TypeError(f"prunings is a list of plrp.Pruning, got one {type(prunings).__name__}: write sweep([…]).")
    prunings, chosen, target = list(prunings), resolve(composite), own(target)
    chosen.check(found)
    wanted_layers(found, layers)
    for pruning in prunings:
        check_pruning(pruning)
        if pruning is not None and pruning.layers:
            pruning.plan(found)  # refuses unknown layers
    if not callable(target):
        start(found, target, torch.float32)
    return _in_order(found, prunings, target=target, composite=chosen, layers=layers)


def _in_order(
    found: Trace, prunings: Sequence[Pruning | None], *, target: Any, composite: Composite, layers: bool | Sequence[str]
) -> Iterator[Explanation]:
    """Neighbours that can be stacked are walked together."""
    waiting: list[Pruning] = []
    size = MOST // max(1, found.batch)
    on_cpu = all(value.data.is_cpu for value in found.inputs)
    options: dict[str, Any] = {"target": target, "composite": composite, "layers": layers}
    for pruning in prunings:
        if pruning is not None and size > 1 and native.available() and on_cpu and stackable(pruning):
            waiting.append(pruning)
            if len(waiting) < size:
                continue
        elif not waiting:
            yield explain_trace(found, pruning=pruning, **options)
            continue
        yield from _together(found, waiting, **options)
        if waiting[-1] is not pruning:
            yield explain_trace(found, pruning=pruning, **options)
        waiting = []
    if waiting:
        yield from _together(found, waiting, **options)


def _together(
    found: Trace, prunings: Sequence[Pruning], *, target: Any, composite: Composite, layers: bool | Sequence[str]
) -> Iterator[Explanation]:
    if len(prunings) == 1:
        yield explain_trace(found, pruning=prunings[0], target=target, composite=composite, layers=layers)
        return
    walk = StackedWalk(found, target, composite, prunings, wanted_layers(found, layers))
    with torch.inference_mode(False), torch.no_grad():
        relevance = walk.run()
    for k, pruning in enumerate(prunings):
        own = [r.chunk(len(prunings))[k].clone() for r in relevance]
        own_layers = {name: r.chunk(len(prunings))[k].clone() for name, r in walk.layers.items()}
        yield described(walk, own, own_layers, pruning, target)


class StackedWalk(Walk):
    """The ways of several prunings down one tape, in one."""

    def __init__(
        self, found: Trace, target: Any, composite: Composite, prunings: Sequence[Pruning], wanted: set[str]
    ) -> None:
        super().__init__(found, target, composite, prunings[0], wanted, ledger=False)
        self.prunings = prunings
        self.copies = len(prunings)
        self.plans = [pruning.plan(found) for pruning in prunings]
        self.relevance = {id(self.start.value): torch.cat([self.start.relevance] * self.copies)}

    def _copies(self, relevance: Relevance) -> Sequence[Relevance]:
        """The relevance of each copy."""
        batch = relevance.shape[0] // self.copies
        if isinstance(relevance, Neurons):
            samples = torch.arange(relevance.shape[0], device=relevance.positions.device)
            return [relevance.only(part) for part in samples.split(batch)]
        return dense(relevance).chunk(self.copies)

    def _prune(
        self, relevance: Relevance, site: Site, arrived: Arrived | None, book: Booking
    ) -> tuple[Relevance, dict[str, Any]]:
        sites = [plan[id(site.value)] for plan in self.plans]
        assert self.pruning is not None
        if by_neurons(relevance, site, self.pruning, arrived):
            p, p_negative = (
                torch.tensor(each, dtype=torch.float64).repeat_interleave(site.value.shape[0])
                for each in zip(*(one.shares for one in sites), strict=True)
            )
            stacked = replace(site, p=p, p_negative=p_negative)
            found = prune_neurons(relevance, stacked, self.pruning, arrived, book)
            assert found is not None
            return found
        parts = zip(self._copies(relevance), sites, self.prunings, strict=True)
        return torch.cat([dense(prune(part, one, pruning, None, book)[0]) for part, one, pruning in parts]), {}

    def _pass_on(self, op: Op, given: Sequence[Relevance | None], book: Booking) -> Sequence[Relevance | None]:
        if op.family is Family.PASS and op.rule is None and op.inputs[0].shape == op.output.shape:
            return [given[0]]
        split = [[None] * self.copies if r is None else self._copies(r) for r in given]
        taken = [super(StackedWalk, self)._pass_on(op, one, book) for one in zip(*split, strict=True)]
        return [_joined(parts) for parts in zip(*taken, strict=True)]

    def _through_dense_layer(
        self,
        op: Op,
        branches: Sequence[Branch],
        denominators: Sequence[Tensor | None],
        x: Tensor,
        given: Relevance,
        epsilon: float,
        book: Booking,
    ) -> tuple[Tensor, list[Handed]]:
        alone = super()._through_dense_layer
        if len(x) == given.shape[0]:  # samples that were split off, each with what it read
            return alone(op, branches, denominators, x, given, epsilon, book)
        taken = [alone(op, branches, denominators, x, part, epsilon, book)[0] for part in self._copies(given)]
        joined = _joined(taken)
        assert joined is not None
        return joined, []


def _joined(parts: Sequence[Relevance | None]) -> Tensor | None:
    found = [dense(part) for part in parts if part is not None]
    return torch.cat(found) if found else None
