"""The context c of a layer's activations a, R = a ⊙ c, and the relevance of a subspace, a ⊙ U Uᵀ c (Chormai 2022).

The context is the quotient that the walk forms before it multiplies by a. It is not R / a, which is lost where a = 0.
Either walk hands over to the plain formulas here: they read only the relevance above the layer, from the walk's record.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from .conditions import Projection, by_channel, channel_axis, keeps_channels, label
from .ledger import Booking
from .passage import Mask
from .passing import epsilon_for, pass_on, transposed
from .rules import Pass, quotient
from .tape.operations import Family
from .tape.values import Op, Value
from .walk import Walk, branches_of

MISSING = 1e-3  # of the largest |R|: a ⊙ c differs from R by more only where a rule has no context


@dataclass
class ReadOutput:
    """A layer's output as the next layers read it: after activations, norms and pools.

    live: the ids of the operations that relevance reaches; products: see `PRODUCTS`.
    """

    layer: Op
    live: Collection[int]
    products: str | None

    @cached_property
    def value(self) -> Value:
        """The tensor."""
        value, axis = self.layer.output, channel_axis(self.layer)
        while len(readers := self._readers(value)) == 1 and keeps_channels(readers[0], value, axis):
            value = readers[0].output
        if not readers:
            raise ValueError(f"No layer reads '{self.layer.name}', so it has no subspaces: name a layer below it.")
        return value

    def _readers(self, value: Value) -> list[Op]:
        """The operations that hand relevance to a tensor."""
        live = [op for op in value.readers if id(op) in self.live]
        return [op for op in live if any(v is value for v in op.receivers(self.products))]

    def watched(self, value: Value) -> Iterator[Value]:
        """The tensors whose relevance `context` reads."""
        for op in self._readers(value):
            for output in op.outputs:
                if _follows(op):
                    yield from self.watched(output)
                else:
                    yield output

    def context(self, walk: Walk, value: Value) -> Tensor:
        """c of a tensor: the sum over its readers, times the factor of its pruning."""
        assert walk.record is not None
        factors = walk.record.factors if walk.passage is None else walk.passage.factors
        c = torch.zeros(value.shape, dtype=walk.dtype, device=value.data.device)
        for op in self._readers(value):
            c = c + self._through(walk, op, value)
        return c * (factors or {}).get(id(value), 1.0)

    def _through(self, walk: Walk, op: Op, value: Value) -> Tensor:
        """The context that one reader of a tensor hands to it; zero where its rule has none."""
        assert walk.record is not None
        if _follows(op):
            above = [self.context(walk, output) for output in op.outputs]
            if op.family is Family.PASS:
                return transposed(op, above, walk.dtype, [value])[0]
            handed = pass_on(op, list(above), Booking(False), walk.composite)
            return next(c for v, c in zip(op.inputs, handed, strict=True) if v is value and c is not None)
        given, x = walk.record.relevance.get(id(op.output)), value.data.to(walk.dtype)
        c = torch.zeros_like(x)
        if given is not None and op.is_layer and not isinstance(rule := walk.composite.rule(op), Pass):
            assert op.map is not None
            epsilon = epsilon_for(op.output) if rule.epsilon is None else rule.epsilon
            for number, branch in enumerate(branches_of(op, rule, op.map.to(walk.dtype), x)):
                d = Walk.denominator(walk, op, rule, number, branch)
                s = quotient(branch.part_of(given), d, epsilon, branch.one_sign)
                up, *down = (branch.map.transpose(s, part.weight.full, x) for part in branch.parts)
                c = c + (torch.where(x < 0, down[0], up) if down else up)  # n = x⁺ · up + x⁻ · down
        elif given is not None and op.family is Family.SPLIT and op.rule is None:
            epsilon = epsilon_for(op.output, *op.inputs, composite=walk.composite)
            s = quotient(given, op.output.data.to(walk.dtype), epsilon, one_sign=False)
            (c,) = transposed(op, [s], walk.dtype, [value])
        return c

    def vectors(self, walk: Walk, relevance: Tensor) -> tuple[Tensor, Tensor]:
        """a and c, when the walk has arrived with this relevance; both in the shape of the tensor."""
        a, c = self.value.data.to(walk.dtype), self.context(walk, self.value)
        if (a * c - relevance).abs().max() > MISSING * relevance.abs().max():
            readers = ", ".join(op.name if op.is_layer else op.kind for op in self._readers(self.value))
            raise ValueError(
                f"The relevance of '{self.layer.name}' is no product of its activations and a context, by the rules of "
                f"its readers ({readers}): choose another layer or composite."
            )
        return a, c

    def mask(self, wanted: Projection) -> Mask:
        """The constraint that a projection puts on a walk."""
        axis, name = channel_axis(self.layer), self.layer.name
        channels, (rows, _) = self.value.shape[axis], wanted.basis.shape
        if rows != channels:
            raise ValueError(f"The basis for '{name}' has {rows} rows: the layer has {channels} channels.")

        def replaced(walk: Walk, relevance: Tensor) -> Tensor:
            a, c = self.vectors(walk, relevance)
            basis = wanted.basis.to(c)
            part = a * (c.movedim(axis, -1) @ basis @ basis.mT).movedim(-1, axis)  # R^(k) = a ⊙ U_k U_kᵀ c
            part = relevance - part if wanted.residual else part
            if wanted.at is None:
                return part
            keep = torch.zeros_like(part)
            by_channel(keep, self.layer).movedim((0, 1), (-2, -1))[wanted.at] = 1.0
            return part * keep

        return Mask(name, self.value, torch.ones(1, dtype=torch.bool), label(wanted), replaced)


def _follows(op: Op) -> bool:
    """Whether a context passes an operation element by element, so that its own reader forms the quotient."""
    return op.family in (Family.PASS, Family.REARRANGE, Family.WINNER) and op.rule is None and not op.is_layer
