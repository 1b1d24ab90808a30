"""Relevance and activation of the channels of some layers, of one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from plrp.composites import Composite
from plrp.conditions import channel_axis
from plrp.engine import choose_walk
from plrp.passage import Record
from plrp.pruning import Pruning
from plrp.request import Request
from plrp.spelling import nearest
from plrp.tape.trace import Trace
from plrp.tape.values import Op


@dataclass(frozen=True)
class Channels:
    """Relevance and activation of the channels of a layer's output, each tensor (batch, channels).

    relevance: summed over the positions; absolute: Σ|R| over them; activation: the largest value; relevant_at,
    active_at: the position with the largest relevance or activation, an index into the flattened `space_of` the layer.
    """

    relevance: Tensor
    absolute: Tensor
    activation: Tensor
    relevant_at: Tensor
    active_at: Tensor


def checked_layers(trace: Trace, layers: Sequence[str] | None) -> list[str]:
    """The names asked for, or those of all layers; refuses a name that the model does not have."""
    names = [op.name for op in trace.layers]
    if isinstance(layers, str):
        raise TypeError(f"layers is a list of names: write layers=[{layers!r}].")
    for name in layers or ():
        if name not in names:
            raise ValueError(f"The model has no conv or linear layer '{name}'{nearest(name, names)}.")
    return names if layers is None else list(layers)


def measure(
    trace: Trace, layers: Sequence[str], target: Any, composite: Composite, pruning: Pruning | None
) -> tuple[dict[str, Channels], Any]:
    """The channels of some layers by name, and the explained classes."""
    ops = {op.name: op for op in trace.layers}
    record = Record([ops[name].output for name in layers], factors=False)
    request = Request(target=target, composite=composite, pruning=pruning).bound(trace)
    walk = choose_walk(trace, request, record=record)
    walk.run()
    channels = {}
    for name in layers:
        op = ops[name]
        relevance = record.relevance.get(id(op.output))  # None if no relevance reached it
        relevance = torch.zeros_like(op.output.data) if relevance is None else relevance
        channels[name] = _channels(by_channel(relevance, op).flatten(2), by_channel(op.output.data, op).flatten(2))
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


def _channels(relevance: Tensor, activation: Tensor) -> Channels:
    relevance, activation = relevance.detach().float(), activation.detach().float()
    return Channels(
        relevance.sum(2).cpu(),
        relevance.abs().sum(2).cpu(),
        activation.amax(2).cpu(),
        relevance.argmax(2).int().cpu(),
        activation.argmax(2).int().cpu(),
    )
