"""Where on the tape the nodes of a graph are: the places between its message-passing layers.

A message-passing layer is an operation whose rows mix: an entry of its output depends on several nodes. Probing finds
it (`tape/locating.py`), whatever it is called: `scatter_add`, a product with an adjacency matrix, a maximum over
neighbours, a virtual node. The depth of a tensor is the number of such operations below it. Between two of them
every row is one node's. There one tensor that all relevance passes is chosen as the *place* of that depth.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from plrp.tape.locating import NOBODY, owned_rows
from plrp.tape.operations import Family
from plrp.tape.samples import Samples
from plrp.tape.values import Op, Value, reached, replaced

AGGREGATES = ("scatter_add", "scatter_reduce", "index_add", "index_reduce")


class NodePlace(NamedTuple):
    """A tensor with a row for every node: along `axis`, node i is row i."""

    value: Value
    axis: int


class _Rows(NamedTuple):
    """Whose the rows of a tensor are, at this depth."""

    depth: int
    axis: int
    ids: Tensor | None  # the node of each row; None where rows are of several nodes, or constants
    mixed: bool = False  # whether this tensor is the output of a message-passing layer
    ordered: bool = False  # whether row i is node i, for all nodes


def node_places(ops: Sequence[Op], top: Value, nodes: Value, products: str | None) -> list[NodePlace]:
    """The places of every depth, the input `nodes` first, on the way of relevance from the tensor `top`.

    `products` says how the composite divides products of two signals.
    """
    way = reached(ops, [top], products)[::-1]
    rows = _rows_of_all(way, nodes, products)
    if id(top) not in rows:
        raise ValueError("The score does not depend on the node features: there are no walks.")
    below, above, entries = _paths(way, top, rows, products)
    chosen = [NodePlace(nodes, 0)]
    for depth in range(1, rows[id(top)].depth + 1):
        here = [v for op in way for v in op.outputs if id(v) in rows and rows[id(v)].depth == depth]
        ways = sum(entries[id(v)] * below[id(v)] for v in here)
        cuts = [v for v in here if rows[id(v)].ordered and above[id(v)] * below[id(v)] == ways]
        if ways and not cuts:
            raise ValueError(
                f"After {depth} message-passing layers no single tensor holds all relevance of the nodes (two branches "
                "run side by side), so walks cannot be followed: explain without walks."
            )
        if ways:  # else relevance goes around this depth
            best = min(reversed(cuts), key=lambda v: v.shape.numel())
            chosen.append(NodePlace(best, rows[id(best)].axis))
    return chosen


def _rows_of_all(way: Sequence[Op], nodes: Value, products: str | None) -> dict[int, _Rows]:
    """The rows of every tensor that depends on the nodes, by the id of its value."""
    order = torch.arange(nodes.shape[0], device=nodes.data.device)
    rows = {id(nodes): _Rows(0, 0, order, ordered=True)}
    for op in way:
        inputs = [value for value in op.receivers(products) if id(value) in rows]
        depth = max((rows[id(value)].depth for value in inputs), default=0)
        tops = [value for value in inputs if rows[id(value)].depth == depth]
        for value, line in zip(op.outputs, _lines(op, tops, rows, len(order)), strict=True) if tops else ():
            axis = rows[id(tops[0])].axis
            new = _new_axis(op, value, tops[0], axis, len(order))
            if new is not None and _mixes(op, [rows[id(v)] for v in tops], line):
                rows[id(value)] = _Rows(depth + 1, new, order, mixed=True, ordered=True)
            elif line is None:
                rows[id(value)] = _Rows(depth, max(0, min(axis, len(value.shape) - 1)), None)
            else:
                rows[id(value)] = _Rows(depth, *line, ordered=torch.equal(line[1], order))
    return rows


def _new_axis(op: Op, value: Value, source: Value, axis: int, nodes: int) -> int | None:
    """The axis of the receiving nodes in an output with as many rows as there are nodes; None: it has no such axis.

    It is that of the input's rows, or, where these are reduced (a maximum over dense neighbours), another one before
    the features.
    """
    if op.family is Family.REARRANGE:
        return None
    if len(value.shape) == len(source.shape):
        return axis if axis < len(value.shape) and value.shape[axis] == nodes else None
    others = [a for a, size in enumerate(source.shape[:-1]) if a != axis and size == nodes]
    reduces = op.family in (Family.SPLIT, Family.WINNER) and len(value.shape) == len(source.shape) - 1
    return others[0] - (others[0] > axis) if others and reduces else None


def _mixes(op: Op, tops: Sequence[_Rows], line: tuple[int, Tensor] | None) -> bool:
    """Whether an operation makes new rows out of these: an aggregation, or a sum of tensors whose rows differ."""
    if op.kind in AGGREGATES or (line is None and op.operation.contracts):
        return True
    return line is None and any(rows.ids is not None for rows in tops)


def _lines(op: Op, tops: Sequence[Value], rows: dict[int, _Rows], count: int) -> list[tuple[int, Tensor] | None]:
    """The axis of the nodes in each output, and whose each row is; None where nodes are mixed."""
    if any(rows[id(value)].ids is None for value in tops):
        return [None] * len(op.outputs)
    probes = {id(v): Value(v.data, Samples(count, rows[id(v)].axis, rows[id(v)].ids)) for v in tops}
    args, kwargs = replaced((op.args, op.kwargs), lambda v: probes.get(id(v), v.data))
    probe = dataclasses.replace(op, args=args, kwargs=kwargs, inputs=list(probes.values()))
    lines = owned_rows(probe, [value.data for value in op.outputs])
    return [None if line is None or bool((line[1] == NOBODY).any()) else line for line in lines]


def _paths(
    way: Sequence[Op], top: Value, rows: dict[int, _Rows], products: str | None
) -> tuple[Counter[int], Counter[int], Counter[int]]:
    """How many ways of relevance lead, within the depth of a tensor, from it down to a message-passing layer's inputs,
    from higher depths to it, and from higher depths to it at once; by the id of its value.

    Ways around the layer (skips) are not counted: they change no node.
    """
    steps = [
        (v, s) for op in way for v in op.outputs for s in op.receivers(products) if id(v) in rows and id(s) in rows
    ]
    inside = [rows[id(value)].depth == rows[id(source)].depth for value, source in steps]
    below, above, entries = Counter[int](), Counter[int]({id(top): 1}), Counter[int]({id(top): 1})
    for (value, source), same in zip(steps, inside, strict=True):
        below[id(value)] += below[id(source)] if same else rows[id(value)].mixed
    for (value, source), same in zip(reversed(steps), reversed(inside), strict=True):
        above[id(source)] += above[id(value)] if same else 1
        entries[id(source)] += not same
    return below, above, entries
