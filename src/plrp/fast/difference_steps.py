"""Operations of a difference to a reference at less cost, as `plrp/differences.py` states them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from plrp.composites import Composite
from plrp.differences import keeps_digits
from plrp.ledger import Booking
from plrp.passing import winners_of
from plrp.rules import quotient
from plrp.tape.difference import DifferenceOp, DifferenceValue, difference
from plrp.tape.operations import Family
from plrp.tape.values import Op

from .neuron_layers import pool_geometry
from .neurons import Neurons, Relevance, dense
from .propagation import to_winners
from .whole_tensors import through_max_pool


def pass_on(
    op: Op, given: Sequence[Relevance | None], book: Booking, composite: Composite
) -> list[Relevance | None] | None:
    """The relevance of an operation's inputs: where it stays, of max pools, of sums of single neurons; else None."""
    relevance = given[0]
    assert isinstance(op, DifferenceOp)
    if op.rule is not None or len(given) != 1 or relevance is None:
        return None
    if op.family is Family.PASS:
        return [relevance] if keeps_digits(op) and op.inputs[0].shape == op.output.shape else None
    if op.family is Family.WINNER and (geometry := pool_geometry(op)) is not None and _note_winners(op):
        if isinstance(relevance, Neurons):
            return [to_winners(op, relevance)]
        return [through_max_pool(op, dense(relevance), geometry)]
    plain = op.kind == "add" and len(op.inputs) == 2 and op.kwargs.get("alpha", 1) == 1
    if not plain or composite.residual_gamma or not isinstance(relevance, Neurons):
        return None
    if any(value.shape != op.output.shape for value in op.inputs):
        return None
    m = quotient(relevance.values, _delta(op.output, relevance), 0.0, one_sign=False)
    return [relevance.holding(m * _delta(value, relevance)) for value in op.inputs]


def _delta(value: DifferenceValue, neurons: Neurons) -> Tensor:
    return difference(*(neurons.at(tensor) for tensor in value.pair(neurons.values.dtype)))


def _note_winners(op: DifferenceOp) -> bool:
    """Note the winners of a max pool, of each output that of the pass in which it is larger; False: there are none."""
    if op.winners is None:
        now, before = _winners(op.now), _winners(op.before)
        if now is not None and before is not None:
            op.winners = torch.where(op.now.output.data >= op.before.output.data, now, before)
    return op.winners is not None


def _winners(op: Op) -> Tensor | None:
    if op.winners is not None or op.kind not in ("max_pool1d", "max_pool3d"):
        return op.winners
    return winners_of(op, getattr(F, op.kind), op.inputs[0].data)
