"""Many conditions in one walk, over the activations and denominators of one trace.

Down to the topmost conditioned layer there is one relevance. There it is stacked up, a copy per condition: sample
k · batch + n is sample n under condition k. Conv and linear layers take the stack as one large batch; other operations,
which may know the size of the batch, take it copy by copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .conditions import Condition, ConditionedWalk, Mask, Passage
from .ledger import Booking
from .pruning import Arrived, Site
from .rules import Branch, Pass
from .tape.operations import Family
from .tape.samples import Samples
from .tape.trace import Trace
from .tape.values import Op, Value

STACKED_SAMPLES = 16
"""As many samples as a stack has: beyond, larger steps gain nothing, and memory grows."""


def walked_together(trace: Trace, conditions: Sequence[Condition]) -> Iterator[Sequence[Condition]]:
    """The conditions in groups that one walk takes."""
    size = 1 if trace.samples is None else max(1, STACKED_SAMPLES // max(1, trace.batch))
    for begin in range(0, len(conditions), size):
        yield conditions[begin : begin + size]


class StackedConditionsWalk(ConditionedWalk):
    """The ways under several conditions down one tape, in one. It keeps no ledger."""

    def __init__(self, *arguments: Any, passages: Sequence[Passage]) -> None:
        super().__init__(*arguments, passage=passages[0])
        self.passages = passages
        self.conditioned = {key for one in passages for key in one.masks}
        self.stack = 1  # copies: one until the first conditioned layer
        self.stacked_layers: set[str] = set()  # those of `layers` that hold a stack

    def of_condition(self, number: int, stacked: Sequence[Tensor]) -> tuple[list[Tensor], dict[str, Tensor]]:
        """The relevance of the inputs, and of the layers wanted, under one of the conditions."""
        layers = {
            name: (r.chunk(self.stack)[number] if name in self.stacked_layers else r).clone()
            for name, r in self.layers.items()
        }
        return [r.chunk(self.stack)[number].clone() for r in stacked], layers

    def first_of(self, number: int) -> Tensor | None:
        """‖R‖₁ that the first layer on the way handed down under one of the conditions."""
        first = self.first_mass
        return first if first is None or len(first) == self.trace.batch else first.chunk(self.stack)[number]

    def input_relevance(self, value: Value) -> Tensor:
        """As in `Walk`, of all copies."""
        found = super().input_relevance(value)
        return found if len(found) == self.stack * value.shape[0] else torch.cat([found] * self.stack)

    def size(self, relevance: Any, samples: Samples) -> Tensor:
        """As in `Walk`, of all copies."""
        return torch.cat([super(StackedConditionsWalk, self).size(r, samples) for r in self._each(relevance)])

    def collect(self, value: Value) -> Any:
        """As in `Walk`; of a conditioned layer's output, what may pass under each of the conditions."""
        if id(value) in self.conditioned and self.stack == 1:
            self._stack_up()
        relevance = super(ConditionedWalk, self).collect(value)
        if self.stack > 1:
            self.stacked_layers.update(self.wanted.get(id(value), ()))
        if id(value) not in self.conditioned:
            return relevance
        masks = [one.masks.get(id(value)) for one in self.passages]
        if self.passage.only_through:
            self.relevance = {key: self._without(r, masks) for key, r in self.relevance.items()}
        if relevance is None:
            return None
        return torch.cat(
            [r if mask is None else r * mask.keep for r, mask in zip(self._each(relevance), masks, strict=True)]
        )

    def _stack_up(self) -> None:
        self.stack = len(self.passages)
        self.relevance = {key: torch.cat([self.tensor(r)] * self.stack) for key, r in self.relevance.items()}

    def _without(self, relevance: Any, masks: Sequence[Mask | None]) -> Tensor:
        """What has gone around a layer, without the copies in which it is conditioned."""
        parts = zip(self._each(relevance), masks, strict=True)
        return torch.cat([r if mask is None else torch.zeros_like(r) for r, mask in parts])

    def _each(self, relevance: Any) -> Sequence[Any]:
        """The relevance of each copy."""
        return [relevance] if self.stack == 1 else self.tensor(relevance).chunk(self.stack)

    # --- the steps ----------------------------------------------------------------------------------------------------

    def prune(self, relevance: Any, site: Site, arrived: Arrived | None, book: Booking) -> tuple[Any, dict[str, Any]]:
        """Each neuron of each copy times its factor without conditions."""
        parts = [super(StackedConditionsWalk, self).prune(r, site, arrived, book)[0] for r in self._each(relevance)]
        return parts[0] if self.stack == 1 else torch.cat(parts), {}

    def through_layer(self, op: Op, given: Any, book: Booking) -> tuple[Any, list[Any]]:
        """All copies as one batch, each with the activations of the one pass; denominators are computed once."""
        rule, alone = self.composite.rule(op), super().through_layer
        if self.stack == 1 or isinstance(rule, Pass):
            return alone(op, given, book)
        value = op.inputs[0]
        if not (op.output.samples.ordinary and value.samples.ordinary):
            return torch.cat([self.tensor(alone(op, r, book)[0]) for r in self._each(given)]), []
        x = value.data.to(self.dtype)
        branches = [
            self._stacked(branch, self.denominator(op, rule, number, branch))
            for number, branch in enumerate(self.branches(op, rule, self.map(op, rule), x))
        ]
        return self.through_branches(op, rule, branches, self._repeated(x), self.tensor(given), book)

    def samples_of(self, op: Op, relevance: Tensor) -> Samples:
        """As in `Walk`; a stack is one large batch."""
        alone = len(relevance) == op.output.shape[0]
        return super().samples_of(op, relevance) if alone else Samples.first_axis(len(relevance))

    def _stacked(self, branch: Branch, denominator: Tensor) -> Branch:
        """A branch for the copies of the batch."""
        parts = tuple(part if part.unit else part._replace(input=self._repeated(part.input)) for part in branch.parts)
        share = self._repeated(branch.share) if isinstance(branch.share, Tensor) else branch.share
        return replace(branch, parts=parts, share=share, denominator=self._repeated(denominator))

    def _repeated(self, tensor: Tensor) -> Tensor:
        """A tensor of the batch for all copies; one that is the same for every sample as it is."""
        if len(tensor) == 1 and self.trace.batch > 1:
            return tensor
        return tensor.repeat(self.stack, *(1,) * (tensor.dim() - 1))

    def pass_operation(self, op: Op, given: Sequence[Any], book: Booking) -> Sequence[Any]:
        """Copy by copy, since the tape has one."""
        alone = super().pass_operation
        if self.stack == 1:
            return alone(op, given, book)
        if op.family is Family.PASS and op.rule is None and op.inputs[0].shape == op.output.shape:
            return [given[0]]
        split = [[None] * self.stack if r is None else self._each(r) for r in given]
        handed = [alone(op, one, book) for one in zip(*split, strict=True)]
        return [
            None if parts[0] is None else torch.cat([self.tensor(part) for part in parts])
            for parts in zip(*handed, strict=True)
        ]
