"""Relevance and activation of the channels of some layers, of one batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from plrp.conditions import channel_axis
from plrp.engine import choose_walk
from plrp.passage import Record
from plrp.request import Request
from plrp.spelling import nearest
from plrp.tape.trace import Trace
from plrp.tape.values import Op

from .exemplar_results import LayerTotals


def checked_layers(trace: Trace, layers: Sequence[str] | None) -> list[str]:
    """The names asked for, or those of all layers; refuses a name that the model does not have."""
    names = [op.name for op in trace.layers]
    if isinstance(layers, str):
        raise TypeError(f"layers is a list of names: write layers=[{layers!r}].")
    for name in layers or ():
        if name not in names:
            raise ValueError(f"The model has no conv or linear layer '{name}'{nearest(name, names)}.")
    return names if layers is None else list(layers)


def measure(trace: Trace, layers: Sequence[str], request: Request) -> tuple[dict[str, LayerTotals], Any]:
    """The channels of some layers by name, over the inputs of one batch, and the explained classes."""
    ops = {op.name: op for op in trace.layers}
    record = Record([ops[name].output for name in layers], factors=False)
    walk = choose_walk(trace, request.bound(trace), record=record)
    walk.run()
    channels = {}
    for name in layers:
        op, output = ops[name], ops[name].output
        arrived = record.relevance.get(id(output))  # None if no relevance reached it
        both = (torch.zeros_like(output.data) if arrived is None else arrived, output.data)
        relevance, activation = (by_channel(one, op).flatten(2).detach().float() for one in both)
        columns = {
            "relevance": relevance.sum(2),
            "absolute": relevance.abs().sum(2),
            "activation": activation.amax(2),
            "relevant_at": relevance.argmax(2).int(),
            "active_at": activation.argmax(2).int(),
        }
        arrays = {column: values.cpu().numpy() for column, values in columns.items()}
        channels[name] = LayerTotals(**arrays, space=space_of(op))
    return channels, walk.start.target


def layer_named(trace: Trace, name: str) -> Op:
    """A conv or linear layer."""
    return next(op for op in trace.layers if op.name == name)


def space_of(op: Op) -> tuple[int, ...]:
    """The positions of a layer's output: (height, width), (length,), (tokens,); (1,) where it has none."""
    return tuple(by_channel(op.output.data, op).shape[2:])


def by_channel(x: Tensor, op: Op) -> Tensor:
    """A layer's output as (batch, channels, *positions)."""
    samples, axis = op.output.samples, channel_axis(op)
    if samples.whole or (samples.batch > 1 and not samples.in_order):
        raise ValueError(f"The output of layer '{op.name}' does not hold one sample after the other: leave it out.")
    if len(x) != samples.batch:  # (batch · windows, …)
        x, axis = x.unflatten(0, (samples.batch, -1)), axis + 1
    return x.movedim(axis, 1) if x.dim() > 2 else x[..., None]
