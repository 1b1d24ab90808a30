"""Operations of a difference to a reference at less cost: neuron by neuron, and max pools by winners on the tape.

The formulas stand in `plrp/differences.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from plrp.composites import Composite
from plrp.differences import by_midpoint, keeps_digits
from plrp.rules import quotient
from plrp.tape.difference import DifferenceOp, DifferenceValue, difference
from plrp.tape.operations import Family
from plrp.tape.values import Op, gathered

from .neuron_layers import pool_geometry
from .neurons import Neurons, Relevance, dense
from .propagation import to_winners
from .whole_tensors import through_max_pool


def pass_on(op: DifferenceOp, given: Sequence[Relevance | None], composite: Composite) -> list[Any] | None:
    """The relevance of an operation's inputs, given that of its output; None where this has no form for it."""
    relevance = given[0]
    if op.rule is not None or len(given) != 1 or relevance is None:
        return None
    if op.family is Family.PASS and op.inputs[0].shape == op.output.shape:
        if keeps_digits(op):
            return [relevance]
        return _at_midpoints(op, relevance) if isinstance(relevance, Neurons) else None
    if op.family is Family.WINNER and (geometry := pool_geometry(op)) is not None:
        if not _note_winners(op):
            return None
        if isinstance(relevance, Neurons):
            return [to_winners(op, relevance)]
        return [through_max_pool(op, dense(relevance), geometry)]
    plain = op.kind == "add" and len(op.inputs) == 2 and op.kwargs.get("alpha", 1) == 1
    if isinstance(relevance, Neurons) and plain and not composite.residual_gamma:
        return _sum(op, relevance)
    return None


def _pair(value: DifferenceValue, neurons: Neurons) -> tuple[Tensor, Tensor]:
    """a and a⁰ at some neurons."""
    now, before = (neurons.at(tensor) for tensor in value.pair(neurons.values.dtype))
    return now, before


def _at_midpoints(op: DifferenceOp, relevance: Neurons) -> list[Any] | None:
    """y = φ(z) at some neurons, of a φ that reads nothing else."""
    if gathered(op.now.args, op.now.kwargs) or len(op.inputs) > 1:
        return None
    z, y = _pair(op.inputs[0], relevance), _pair(op.output, relevance)
    return [relevance.holding(by_midpoint(op, relevance.values, z, y))]


def _sum(op: DifferenceOp, relevance: Neurons) -> list[Any] | None:
    """a + b at some neurons: in proportion to Δa and Δb."""
    if any(value.shape != op.output.shape for value in op.inputs):
        return None
    m = quotient(relevance.values, difference(*_pair(op.output, relevance)), 0.0, one_sign=False)
    return [relevance.holding(m * difference(*_pair(value, relevance))) for value in op.inputs]


def _note_winners(op: DifferenceOp) -> bool:
    """Note the winners of a max pool, of each output that of the pass in which it is larger; False: there are none."""
    if op.winners is None:
        now, before = _winners(op.now), _winners(op.before)
        if now is not None and before is not None:
            op.winners = torch.where(op.now.output.data >= op.before.output.data, now, before)
    return op.winners is not None


def _winners(op: Op) -> Tensor | None:
    """The place in the plane of each winner of a max pool, in one pass."""
    if op.winners is not None or op.kind not in ("max_pool1d", "max_pool3d"):
        return op.winners
    names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
    given = {name: op.argument(position, name) for position, name in enumerate(names, 1)}
    given = {name: option for name, option in given.items() if option is not None}
    places: Tensor = getattr(F, op.kind)(op.inputs[0].data, return_indices=True, **given)[1]
    return places
