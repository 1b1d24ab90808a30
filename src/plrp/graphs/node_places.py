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
from plrp.tape.maps import Replayed
from plrp.tape.operations import Family
from plrp.tape.samples import Samples
from plrp.tape.values import Op, Value, reached, replaced

AGGREGATES = ("scatter_add", "scatter_reduce", "index_add", "index_reduce")


class NodePlace(NamedTuple):
    """A tensor with a row for every node: along `axis`, node i is row i. A virtual node may come last."""

    value: Value
    axis: int


class _Rows(NamedTuple):
    """Whose the rows of a tensor are, at this depth."""

    depth: int
    axis: int
    ids: Tensor | None  # the node of each row, `NOBODY` for a constant's; None where rows are of several nodes
    mixed: bool = False  # whether this tensor is the output of a message-passing layer


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
        cuts = [v for v in here if _is_place(rows[id(v)], nodes.shape[0]) and above[id(v)] * below[id(v)] == ways]
        if ways and not cuts:
            raise ValueError(
                f"After {depth} message-passing layers no single tensor holds all relevance of the nodes (two branches "
                "run side by side), so walks cannot be followed: explain without walks."
            )
        if ways:  # else relevance goes around this depth
            best = min(reversed(cuts), key=lambda v: v.shape.numel())
            chosen.append(NodePlace(best, rows[id(best)].axis))
    return chosen


def _is_place(rows: _Rows, nodes: int) -> bool:
    """Whether the rows of a tensor are the nodes in order; constants (a virtual node to begin with) may follow."""
    if rows.ids is None or len(rows.ids) < nodes:
        return False
    order = torch.arange(len(rows.ids), device=rows.ids.device)
    return bool(((rows.ids == order) | ((order >= nodes) & (rows.ids == NOBODY))).all())


def _rows_of_all(way: Sequence[Op], nodes: Value, products: str | None) -> dict[int, _Rows]:
    """The rows of every tensor that depends on the nodes, by the id of its value."""
    count = nodes.shape[0]
    rows = {id(nodes): _Rows(0, 0, torch.arange(count, device=nodes.data.device))}
    sizes = {count}  # of tensors whose rows are the nodes
    for op in way:
        inputs = [value for value in op.receivers(products) if id(value) in rows]
        if not inputs:
            continue
        depth = max(rows[id(value)].depth for value in inputs)
        tops = [value for value in inputs if rows[id(value)].depth == depth]
        axis = rows[id(tops[0])].axis
        for value, line in zip(op.outputs, _lines(op, tops, rows, count), strict=True):
            new = _new_axis(op, value, tops[0], axis, sizes)
            if new is not None and _mixes(op, [rows[id(v)] for v in tops], line):
                order = torch.arange(value.shape[new], device=value.data.device)
                rows[id(value)] = _Rows(depth + 1, new, order, mixed=True)
            elif line is None:
                rows[id(value)] = _Rows(depth, max(0, min(axis, len(value.shape) - 1)), None)
            else:
                rows[id(value)] = _Rows(depth, *line)
                if _is_place(rows[id(value)], count):
                    sizes.add(len(line[1]))
    return rows


def _new_axis(op: Op, value: Value, source: Value, axis: int, sizes: set[int]) -> int | None:
    """The axis of the receiving nodes in an output with as many rows as there are nodes; None: it has no such axis.

    It is that of the input's rows, or, where these are reduced (a maximum over dense neighbours), another one before
    the features.
    """
    if op.family is Family.REARRANGE:
        return None
    if len(value.shape) == len(source.shape):
        return axis if axis < len(value.shape) and value.shape[axis] in sizes else None
    others = [a for a, size in enumerate(source.shape[:-1]) if a != axis and size in sizes]
    reduces = op.family in (Family.SPLIT, Family.WINNER) and len(value.shape) == len(source.shape) - 1
    return others[0] - (others[0] > axis) if others and reduces else None


def _mixes(op: Op, tops: Sequence[_Rows], line: tuple[int, Tensor] | None) -> bool:
    """Whether an operation makes new rows out of these: an aggregation, or a sum of tensors whose rows differ."""
    if op.kind in AGGREGATES or (line is None and (isinstance(op.map, Replayed) or op.operation.contracts)):
        return True
    return line is None and any(rows.ids is not None for rows in tops)


def _lines(op: Op, tops: Sequence[Value], rows: dict[int, _Rows], count: int) -> list[tuple[int, Tensor] | None]:
    """The axis of the nodes in each output, and whose each row is; None where nodes are mixed."""
    if any(rows[id(value)].ids is None for value in tops):
        return [None] * len(op.outputs)
    probes = {}
    for value in tops:
        _, axis, ids, _ = rows[id(value)]
        assert ids is not None
        size = max(count, int(ids.max()) + 1) if ids.numel() else count
        owners = torch.where(ids == NOBODY, size, ids)  # constants as one more node
        probes[id(value)] = Value(value.data, Samples(size + 1, axis, owners)), size
    args, kwargs = replaced((op.args, op.kwargs), lambda v: probes[id(v)][0] if id(v) in probes else v.data)
    probe = dataclasses.replace(op, args=args, kwargs=kwargs, inputs=[probes[id(v)][0] for v in tops])
    size = probes[id(tops[0])][1]
    lines = owned_rows(probe, [value.data for value in op.outputs])
    return [line and (line[0], torch.where(line[1] == size, NOBODY, line[1])) for line in lines]


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
