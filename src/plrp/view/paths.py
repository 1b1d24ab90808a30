"""Ways through the network: what one channel alone hands down to the input, and the strongest channels as a graph.

Both send a part of the explanation's relevance down again with its pruning held fixed (`plrp.survey`), so
that all channels of a layer that all relevance passes add up to the explanation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from plrp.composites import Composite
from plrp.pruning import Pruning
from plrp.request import Request
from plrp.survey import Survey
from plrp.tape.trace import Trace
from plrp.vision.flows import Flow, channel_share, flow

from .bundle import finite
from .grid import channels_of, layer_inputs

Pool = Callable[[Tensor], Tensor]
"""From the relevance of one sample's input to its map."""


class Paths:
    """One explanation of a trace, ready to be followed through any channel at the input of any layer."""

    def __init__(self, trace: Trace, target: Any, composite: Composite, pruning: Pruning | None, sample: int) -> None:
        self.sample, self.trace = sample, trace
        self.ops = {op.name: op for op in layer_inputs(trace)}
        inputs = [op.inputs[0] for op in self.ops.values()]
        request = Request(target=target, composite=composite, pruning=pruning).bound(trace)
        self.parts = Survey(trace, request, inputs)

    def through(self, layer: str, channel: int, pool: Pool) -> Tensor:
        """The map of what reaches the input through one channel of a layer's input, and through nothing else."""
        op = self.ops.get(layer)
        if op is None:
            raise ValueError(f"The model has no layer {layer!r} with an input of its own.")
        upper, lower, batch = op.inputs[0], self.trace.inputs[0], len(self.parts.start.score)
        whole = self.parts.at(upper)
        sent: Tensor | None = None
        if whole is not None:  # else no relevance comes this way
            sent = _alone(whole, op, batch, self.sample, channel)
        if sent is not None and upper is not lower:
            (sent,) = self.parts.send(sent, upper, [lower])
        return pool((torch.zeros(lower.shape) if sent is None else sent)[self.sample])


def _alone(whole: Tensor, op: Any, batch: int, sample: int, channel: int) -> Tensor:
    """The relevance of one channel of one sample, zero elsewhere."""
    relevance = torch.zeros_like(whole)
    rows = channels_of(whole, op, batch, sample)
    if not 0 <= channel < len(rows):
        raise ValueError(f"The input of layer {op.name!r} has channels 0 to {len(rows) - 1}, not {channel}.")
    channels_of(relevance, op, batch, sample)[channel] = rows[channel]
    return relevance


def flow_facts(trace: Trace, target: Any, composite: Composite, pruning: Pruning | None) -> dict[str, Any] | None:
    """For the page: levels of channels from the output down, and the relevance handed from one to the next.

    None where no level between output and input carries all relevance, or the trace holds several samples.
    """
    if trace.batch != 1:
        return None
    with torch.inference_mode(False), torch.no_grad():
        layer_flow = flow(trace, target=target, composite=composite, pruning=pruning, nodes=8, pruned=3)
    return _flow_of(layer_flow) if len(layer_flow.levels) > 1 else None


def _flow_of(layer_flow: Flow) -> dict[str, Any]:
    levels = []
    for level in layer_flow.levels:
        by_channel = level.by_channel
        nodes = [
            {"channel": c, "relevance": finite(float(by_channel[c])), "share": channel_share(level, c)}
            for c in level.shown
        ]
        lost = [{"channel": c, "relevance": 0.0, "share": 0.0} for c in level.pruned]
        row = {"layer": level.layer, "channels": len(by_channel), "surviving": level.surviving}
        levels.append({**row, "coverage": finite(level.coverage), "nodes": nodes, "pruned": lost})
    edges = []
    for number, (handed, faded) in enumerate(zip(layer_flow.edges, layer_flow.faded, strict=True)):
        upper, lower = layer_flow.levels[number], layer_flow.levels[number + 1]
        for a, source in enumerate((*upper.shown, *upper.pruned)):
            for b, sink in enumerate((*lower.shown, *lower.pruned)):
                strong = a < len(upper.shown) and b < len(lower.shown)
                value = float(handed[a, sink]) if strong else float(faded[a, sink])
                if value and math.isfinite(value):
                    edges.append({"level": number, "from": source, "to": sink, "relevance": value, "lost": not strong})
    return {"levels": levels, "edges": edges, "score": finite(layer_flow.score)}
