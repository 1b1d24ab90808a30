"""Several walks down one tape in one: the cases of a sweep, which differ in their target, pruning or passage.

Down to the first tensor at which the cases part there is one relevance. There the batch is stacked up, a copy per case:
sample k · batch + n is sample n under case k. Layers take the stack as one large batch and read the activations and
denominators of the recorded one; so do other operations as far as they follow single neurons. All else goes copy by
copy, since it may depend on the size of the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from plrp.differences import keeps_digits
from plrp.ledger import Booking
from plrp.passage import Case, CaseResult, Mask, Passage
from plrp.pruning import Arrived, Site
from plrp.references import References
from plrp.request import Request
from plrp.tape.difference import DifferenceOp, repeated
from plrp.tape.operations import Family
from plrp.tape.seam import tape_bytes
from plrp.tape.trace import Trace
from plrp.tape.values import Op, Value
from plrp.targets import Computed, Seed, start
from plrp.walk import Walk

from . import difference_steps, limits, native, propagation
from .fast_walk import FastWalk
from .neuron_pruning import by_neurons, prune_neurons
from .neurons import Neurons, Relevance, Rows, dense
from .selection import prune_tensor


def stackable(case: Case, targets: bool) -> bool:
    """Whether a case gains by a stack: it has constraints, its pruning leaves few neurons in every layer, or it is one
    of several `targets` that start at the output.

    Relevance is projected by the plain formulas, which know one batch: such cases go one by one. A stack has no use for
    the first pass of a layer, so its prunings are those of PLRP-λ.
    """
    how, target = case.request.pruning, case.request.target
    if case.passage is not None:
        return not case.passage.watched
    if targets and (isinstance(target, Computed) or (isinstance(target, Seed) and target.name == "log_odds")):
        return False
    if how is None:
        return targets
    if how.p is None or how.sparsity_gain is not None or not how.by_neuron or not native.available():
        return False
    smallest = min(p for p in how.shares.values() if p is not None)
    return how.redistribution == "lambda" and how.conserve and (targets or smallest >= limits.STACKED_FROM)


def grouped(trace: Trace, cases: Sequence[Case]) -> Iterator[Sequence[Case]]:
    """Neighbours that can be stacked, as many as a stack may have; all others one by one."""
    size, targets = 1, _by_target(cases)
    if trace.samples == 0:
        size = max(limits.STACKED_SAMPLES // max(1, trace.batch), limits.STACKED_BYTES // max(1, tape_bytes(trace)))
    for stacks, neighbours in groupby(cases, lambda case: size > 1 and stackable(case, targets)):
        group, step = list(neighbours), size if stacks else 1
        yield from (group[first : first + step] for first in range(0, len(group), step))


def grouped_references(now: Trace, references: References, request: Request) -> list[References]:
    """The references in groups of which each is recorded as one batch, beside as many copies of the inputs.

    Each alone where code of the user, a mask or a layer may hold for the batch, and where the model is for one size.
    """
    own = not isinstance(now._recorder.model, nn.Module) or bool(now._recorder.rules.given)
    own = own or isinstance(request.target, Computed) or request.composite_holds_tensors
    own = own or bool(request.layers) or request.condition is not None or now.samples is None
    groups = references.grouped(1 if own else max(1, limits.STACKED_BYTES // max(1, tape_bytes(now))))
    sizes = {len(group) for group in groups} - {1}
    return groups if all(_repeats(now, size) for size in sizes) else references.grouped(1)


def _repeats(now: Trace, copies: int) -> bool:
    """Whether the model gives the copies of a batch the same output as the batch."""
    try:
        parts = repeated(now, copies).output.chunk(copies)
        close = 1e-4 * float(now.output.abs().max())
        return all(torch.allclose(part, now.output, rtol=1e-4, atol=close) for part in parts)
    except Exception:  # the model is for one size of batch, returns more than one tensor, or nothing
        return False


def _by_target(cases: Sequence[Case]) -> bool:
    """Whether the cases have one pruning and several targets."""
    first = cases[0].request if cases else None
    alike = first is not None and all(case.request.pruning == first.pruning for case in cases)
    return alike and any(case.request.target is not first.target for case in cases if first is not None)


class StackedWalk(FastWalk):
    """The walks of several cases in one. It keeps no ledger."""

    def __init__(self, trace: Trace, cases: Sequence[Case]) -> None:
        passages = [case.passage for case in cases if case.passage is not None]
        masks = _stacked_masks(passages)
        passage = replace(passages[0], masks={key: mask for key, (mask, _) in masks.items()}) if passages else None
        super().__init__(trace, cases[0].request, passage=passage)
        self.prunings = [case.request.pruning for case in cases if case.request.pruning is not None]
        self.conditioned = {key: which for key, (_, which) in masks.items()}  # the copies with a mask, by value
        self.parting = set(masks) if passages else set(self.sites)  # where the cases begin to differ
        self.cases = len(cases)
        self.starts = [self.start] * self.cases
        if _by_target(cases):
            self.copies = self.cases
            self.starts[1:] = [start(trace, case.request.target, self.dtype) for case in cases[1:]]
            self.relevance = {id(self.start.value): torch.cat([one.relevance for one in self.starts])}

    def results(self, relevance: list[Tensor]) -> list[CaseResult]:
        """The result of each case, given the relevance of the inputs of the stack."""
        rows = {op.name: op.inputs[0].shape[0] for op in self.trace.layers}

        def result(number: int) -> CaseResult:
            def of(stacked: Tensor, rows: int) -> Tensor:
                return (stacked if len(stacked) == rows else stacked.narrow(0, number * rows, rows)).clone()

            inputs = [of(r, value.shape[0]) for r, value in zip(relevance, self.trace.inputs, strict=True)]
            layers = {name: of(r, rows[name]) for name, r in self.layers.items()}
            return CaseResult(inputs, layers, start=self.starts[number])

        return [result(number) for number in range(self.cases)]

    def send(self, relevance: Tensor, upper: Value, ends: Sequence[Value]) -> list[Tensor | None]:
        """As in `Walk`, of as many parts of the relevance of `upper` as there are here, one after the other."""
        self.copies = len(relevance) // upper.shape[0]
        return super().send(relevance, upper, ends)

    def collect(self, value: Value) -> Any:
        """As in `Walk`; at the first tensor where the cases part, all relevance is stacked up."""
        if self.copies == 1 and id(value) in self.parting:
            self.copies = self.cases
            self.relevance = {key: torch.cat([self.tensor(r)] * self.copies) for key, r in self.relevance.items()}
        return super().collect(value)

    def scaled(self, relevance: Relevance, factor: Tensor) -> Relevance:
        """As in `Walk`; the factors are those of the stack, or of the batch and the same for every copy."""
        if not isinstance(relevance, Tensor) or len(factor) == len(relevance):
            return super().scaled(relevance, factor)
        return (relevance.unflatten(0, (self.copies, -1)) * factor).flatten(0, 1)

    def withhold(self, relevance: Any, mask: Mask) -> Any:
        """As in `Walk`; relevance that goes around the layer is dropped in the copies that have a mask there."""
        assert self.passage is not None
        if self.passage.only_through:
            for key, waiting in self.relevance.items():
                passes = ~self.conditioned[id(mask.value)].repeat_interleave(waiting.shape[0] // self.copies)
                self.relevance[key] = dense(waiting) * passes.view(-1, *(1,) * (len(waiting.shape) - 1))
        return None if relevance is None else self.scaled(relevance, mask.keep)

    def prune(
        self, relevance: Relevance, site: Site, arrived: Arrived | None, book: Booking
    ) -> tuple[Relevance, dict[str, Any]]:
        """Each copy with its own p; where single neurons are kept, all at once."""
        sites = [how.plan(self.trace)[id(site.value)] for how in self.prunings]
        if by_neurons(relevance, site, self.prunings[0], arrived):
            p, p_negative = (
                torch.tensor(each, dtype=torch.float64).repeat_interleave(site.value.shape[0])
                for each in zip(*(one.shares for one in sites), strict=True)
            )
            neurons = prune_neurons(relevance, (p, p_negative), self.prunings[0], arrived, book)
            assert neurons is not None
            return neurons
        parts = zip(self._copies(relevance), sites, self.prunings, strict=True)
        return torch.cat([prune_tensor(dense(part), one, how, None, book)[0] for part, one, how in parts]), {}

    def through_layer(self, op: Op, given: Relevance, book: Booking) -> tuple[Relevance, list[Any]]:
        """The stack as one large batch; copy by copy where the first axis is not the batch."""
        if self.copies == 1 or (op.output.samples.ordinary and op.inputs[0].samples.ordinary):
            return super().through_layer(op, given, book)
        parts = [super(StackedWalk, self).through_layer(op, part, book)[0] for part in self._copies(given)]
        return torch.cat([dense(part) for part in parts]), []

    def pass_operation(self, op: Op, given: Sequence[Relevance | None], book: Booking) -> Sequence[Relevance | None]:
        """Neurons of the whole stack as neurons; else copy by copy, since the tape has one batch."""
        alone = super().pass_operation
        if self.copies == 1:
            return alone(op, given, book)
        pointwise = op.family is Family.PASS and op.rule is None and op.inputs[0].shape == op.output.shape
        if pointwise and (not isinstance(op, DifferenceOp) or keeps_digits(op)):
            return given
        steps = difference_steps if isinstance(op, DifferenceOp) else propagation
        stacked = steps.pass_on(op, given, book, self.composite) if isinstance(given[0], Neurons | Rows) else None
        if stacked is not None:
            return stacked
        if op.rule is None and op.output.shape.numel() < limits.SMALL:
            return self._together(op, given, book)
        split = [[None] * self.copies if r is None else self._copies(r) for r in given]
        handed = [alone(op, one, book) for one in zip(*split, strict=True)]
        return [
            None if parts[0] is None else torch.cat([dense(part) for part in parts if part is not None])
            for parts in zip(*handed, strict=True)
        ]

    def _together(self, op: Op, given: Sequence[Relevance | None], book: Booking) -> Sequence[Relevance | None]:
        """All copies in one call, by the plain formulas."""
        there = [n for n, r in enumerate(given) if r is not None]
        reached: list[int] = []

        def plain(*parts: Tensor) -> tuple[Tensor, ...]:
            one: list[Tensor | None] = [None] * len(given)
            for n, part in zip(there, parts, strict=True):
                one[n] = part
            handed = Walk.pass_operation(self, op, one, book)
            reached[:] = [n for n, r in enumerate(handed) if r is not None]
            return tuple(r for r in handed if r is not None)

        stacked = [dense(r).unflatten(0, (self.copies, -1)) for r in given if r is not None]
        handed = torch.vmap(plain)(*stacked)
        parts = dict(zip(reached, handed, strict=True))
        return [parts[n].flatten(0, 1) if n in parts else None for n in range(len(op.inputs))]

    def _copies(self, relevance: Relevance) -> Sequence[Relevance]:
        """The relevance of each copy."""
        if self.copies == 1:
            return [relevance]
        if isinstance(relevance, Neurons):
            samples = torch.arange(relevance.shape[0], device=relevance.positions.device)
            return [relevance.only(part) for part in samples.chunk(self.copies)]
        return dense(relevance).chunk(self.copies)


def _stacked_masks(passages: Sequence[Passage]) -> dict[int, tuple[Mask, Tensor]]:
    """The masks of several walks for a batch that is stacked up, one copy per walk, by the id of their value.

    With each mask comes a vector that says which of the copies have one there; the others let everything pass.
    """
    stacked = {}
    for mask in {key: mask for one in passages for key, mask in one.masks.items()}.values():
        masks = [one.masks.get(id(mask.value)) for one in passages]
        shape, everything = mask.value.shape, torch.ones_like(mask.keep[:1])
        keep = torch.cat([(everything if m is None else m.keep).expand(shape) for m in masks])
        conditioned = torch.tensor([m is not None for m in masks], device=keep.device)
        stacked[id(mask.value)] = Mask(mask.name, mask.value, keep, mask.label), conditioned
    return stacked
