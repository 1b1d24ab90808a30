"""The inside of the network on a page: its layers, their strongest channels, and the ways of relevance through them.

A way sends a part of the explanation's relevance down again with its pruning held fixed (`plrp.survey`). So
all channels of a layer that all relevance passes add up to the explanation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from plrp.composites import Composite
from plrp.concepts.channel_figures import Reading
from plrp.conditions import Projection
from plrp.explanation import Explanation, explain_trace
from plrp.ledger import BOOKED
from plrp.pruning import Pruning
from plrp.request import Request
from plrp.survey import Survey
from plrp.tape.maps import Convolution
from plrp.tape.trace import Trace
from plrp.tape.values import Op
from plrp.vision.flows import flow, input_channel_axis, source_of
from plrp.vision.heatmaps import limits_of

from .bundle import Bundle, data_address, finite, quantise

CHANNELS = 8  # of each layer, in a saved page
PATHS = 160
"""About how many channels are followed in a page: of a deep network, only the strongest of each layer."""

COUNT = 3  # patches of a channel
SIDE = 72  # pixels of a patch

Rows = list[list[dict[str, Any]]]
"""The strongest channels of each layer: `facts["channels"]`."""
Report = Callable[[int, int], None]
"""Called with the number of finished maps (or patches) and the number of all."""
Pool = Callable[[Tensor], Tensor]
"""From the relevance of one sample's input to its map."""
PathMaps = tuple[list[npt.NDArray[np.int8]], list[float]]
"""The relevance that flows through single channels: quantised maps, and the largest relevance of each."""


def layer_inputs(trace: Trace) -> list[Op]:
    """The conv and linear layers from the output down; only the first of several that read one tensor."""
    seen: dict[int, Op] = {}
    for op in trace.layers:
        seen.setdefault(id(op.inputs[0]), op)
    return list(seen.values())[::-1]


def _channels_of(relevance: Tensor, op: Op, batch: int, sample: int) -> Tensor:
    """A view of one sample's part of a layer's input, channels first: (channel, rows of the sample, …)."""
    return relevance.unflatten(0, (batch, -1))[sample].movedim(input_channel_axis(op), 0)


def _by_channel(explanation: Explanation, op: Op, sample: int) -> Tensor:
    """Relevance of one sample at a layer's input, channels first: (channel, *places).

    If the input is (batch · windows, …), the windows are places, too.
    """
    batch = len(explanation.score)
    if batch > 1 and op.name in explanation._scattered:
        raise ValueError(
            f"The input of layer '{op.name}' does not hold one sample after the other: explain one sample at a time."
        )
    own = _channels_of(explanation.layers[op.name], op, batch, sample)
    return own[:, 0] if own.dim() > 1 and own.shape[1] == 1 else own


# --- layers -----------------------------------------------------------------------------------------------------------


def layer_facts(trace: Trace) -> list[dict[str, Any]]:
    """For the page: each layer's name, operation, and the channels and places of its input."""
    rows = []
    for op in layer_inputs(trace):
        given = op.inputs[0]
        windows = given.shape[0] // max(given.samples.batch, 1)
        shape = [*([windows] if windows > 1 else []), *given.shape[1:]]
        channels, neurons = given.shape[input_channel_axis(op)], math.prod(shape)
        row = {"name": op.name, "op": op.kind, "shape": shape, "channels": channels, "neurons": neurons}
        rows.append({**row, "places": neurons // max(channels, 1), "first": op.first})
    return rows


def lattice_sentence(layers: int) -> str:
    """The page's sentence about `layers` skipping layers, for a terminal."""
    return (
        "If you see a regular grid of dots: it comes from the network, not from the photograph. "
        f"{layers} of its layers read only every second pixel or fewer, and no relevance reaches those between. "
        "Pruning makes the grid stronger than it is; compare with LRP."
    )


def skipping_layers(trace: Trace) -> int:
    """How many convolutions step over places without reading them: relevance gathers on the lattice of the others."""
    maps = [op.map for op in trace.layers if isinstance(op.map, Convolution) and not op.map.transposed]
    return sum(any(step > size for step, size in zip(m.stride, m.weight.shape[2:], strict=True)) for m in maps)


def survivors(trace: Trace, explanation: Explanation, sample: int = 0) -> npt.NDArray[np.uint32]:
    """How much of each layer's input holds relevance: (layer, 3), neurons, channels and places (or tokens)."""
    rows = []
    for op in layer_inputs(trace):
        if op.name not in explanation.layers:  # no relevance comes this way
            rows.append((0, 0, 0))
            continue
        channels = _by_channel(explanation, op, sample)
        alive = channels.reshape(len(channels), -1).ne(0)
        rows.append((int(alive.sum()), int(alive.any(1).sum()), int(alive.any(0).sum())))
    return np.array(rows, np.uint32).reshape(-1, 3)


def ledger_facts(explanation: Explanation, sample: int = 0) -> list[dict[str, Any]]:
    """Where the mass of one sample went, entry by entry from the output down."""
    rows = []
    for record in explanation.ledger:
        if record["sample"] != sample:
            continue
        entering, leaving = (record[f"mass_{way}_positive"] - record[f"mass_{way}_negative"] for way in ("in", "out"))
        row = {name: record[name] for name in ("layer", "op", "rule")}
        row |= {"in": finite(entering), "out": finite(leaving)}
        row |= {n: finite(record[n]) for n in BOOKED}
        if record["neurons_before"] is not None:
            mass = record["mass_in_positive"] + record["mass_in_negative"]
            cut = sum(record[f"p_{s}"] * record[f"mass_in_{s}"] for s in ("positive", "negative"))
            row["pruned"] = finite(cut / mass) if mass else 0.0
        rows.append(row)
    return rows


# --- channels ---------------------------------------------------------------------------------------------------------


class Paths:
    """One explanation of a trace, ready to be followed through any channel at the input of any layer."""

    def __init__(self, trace: Trace, target: Any, composite: Composite, pruning: Pruning | None, sample: int) -> None:
        self.sample, self.trace = sample, trace
        self.ops = {op.name: op for op in layer_inputs(trace)}
        inputs = [op.inputs[0] for op in self.ops.values()]
        request = Request(target=target, composite=composite, pruning=pruning).bound(trace)
        self.parts = Survey(trace, request, inputs)

    def through(self, layer: str, channel: int, pool: Pool) -> Tensor:
        """The map of the relevance that reaches the input through one channel of a layer's input, and no other way."""
        return next(self.through_each(layer, [channel], pool))

    def through_each(self, layer: str, channels: Sequence[int], pool: Pool) -> Iterator[Tensor]:
        """Such a map of each channel, of which many are walked at once."""
        op = self.ops.get(layer)
        if op is None:
            raise ValueError(f"The model has no layer {layer!r} with an input of its own.")
        upper, lower = op.inputs[0], self.trace.inputs[0]
        each = [self._alone(op, channel) for channel in channels]
        parts = [part for part in each if part is not None]
        sent = iter(parts if upper is lower else (r for (r,) in self.parts.send(parts, upper, [lower])))
        for part in each:
            arrived = None if part is None else next(sent)
            yield pool((torch.zeros(lower.shape) if arrived is None else arrived)[self.sample])

    def _alone(self, op: Op, channel: int) -> Tensor | None:
        """The relevance of one channel of a layer's input, zero elsewhere; None where no relevance comes this way."""
        whole, batch = self.parts.at(op.inputs[0]), len(self.parts.start.score)
        if whole is None:
            return None
        rows = _channels_of(whole, op, batch, self.sample)
        if not 0 <= channel < len(rows):
            raise ValueError(f"The input of layer {op.name!r} has channels 0 to {len(rows) - 1}, not {channel}.")
        alone = torch.zeros_like(whole)
        _channels_of(alone, op, batch, self.sample)[channel] = rows[channel]
        return alone


def strongest(
    trace: Trace,
    explanation: Explanation,
    sample: int = 0,
    paths: Paths | None = None,
    pool: Pool = lambda relevance: relevance,
    report: Callable[[int], None] = lambda layers: None,
) -> tuple[Rows, npt.NDArray[np.int8], PathMaps]:
    """For each layer its strongest channels; their maps, where the layer has places, lie one after the other.

    With `paths`, also the relevance that each of these channels alone hands down to the input (of deep networks, each
    of the strongest): maps with their scales, to which the rows point by number. `report` is called after each layer
    with the number of finished layers.
    """
    rows: Rows = []
    maps, offset = [], 0
    through: PathMaps = ([], [])
    layers = layer_inputs(trace)
    followed = channels_followed(len(layers)) if paths is not None else 0
    for number, op in enumerate(layers, 1):
        rows.append([])
        relevance = torch.zeros(0)
        if op.name in explanation.layers:
            relevance = _drawn(_by_channel(explanation, op, sample).detach().cpu())
        shape = list(relevance.shape[1:])
        if len(shape) > 2:  # drawn as a picture, window below window
            shape = [math.prod(shape[:-1]), shape[-1]]
        channels = relevance.reshape(len(relevance), math.prod(shape))
        heaviest = _most_mass(channels)
        sent = paths.through_each(op.name, [c for c, _ in heaviest[:followed]], pool) if paths is not None else iter(())
        for rank, (channel, share) in enumerate(heaviest):
            one: dict[str, Any] = {"channel": channel, "share": share}
            one["relevance"] = finite(float(channels[channel].sum()))
            if math.prod(shape) > 1:
                levels, one["largest"] = quantise(channels[channel].numpy())
                one |= {"shape": shape, "offset": offset}
                maps.append(levels)
                offset += levels.size
            if paths is not None and rank < followed:
                levels, largest, one["limit"] = path_levels(next(sent))
                one["through"] = len(through[0])
                through[0].append(levels)
                through[1].append(largest)
            rows[-1].append(one)
        report(number)
    return rows, np.concatenate(maps) if maps else np.zeros(0, np.int8), through


def _most_mass(relevance: Tensor) -> list[tuple[int, float]]:
    """The channels of (channel, places) with most mass |R|, and their share of all mass; no channel without mass."""
    mass = relevance.abs().sum(1, dtype=torch.float64)
    total = float(mass.sum())
    order = mass.argsort(descending=True, stable=True)[:CHANNELS].tolist()
    return [(channel, float(mass[channel]) / total) for channel in order if mass[channel] > 0]


def channels_followed(layers: int) -> int:
    """How many channels of each layer are followed down to the input."""
    return max(1, min(CHANNELS, PATHS // max(1, layers)))


def path_levels(sent: Tensor) -> tuple[npt.NDArray[np.int8], float, float]:
    """The map of a path, quantised: levels, the largest relevance, and the end of its colour scale."""
    values = _drawn(sent)
    return *quantise(values.numpy()), float(limits_of(values.reshape(1, 1, -1).numpy())[0])


def _drawn(relevance: Tensor) -> Tensor:
    """Relevance as a page draws it: zero where it is not finite; the page says elsewhere that it is not."""
    return torch.nan_to_num(relevance, 0.0, 0.0, 0.0)


def flow_facts(trace: Trace, target: Any, composite: Composite, pruning: Pruning | None) -> dict[str, Any] | None:
    """For the page: levels of channels from the output down, and the relevance handed from one to the next.

    None where no level between output and input carries all relevance, or the trace holds several samples.
    """
    if trace.batch != 1:
        return None
    with torch.inference_mode(False), torch.no_grad():
        layer_flow = flow(trace, target=target, composite=composite, pruning=pruning, nodes=8, pruned=3)
    if len(layer_flow.levels) < 2:
        return None
    levels = []
    for level in layer_flow.levels:
        by_channel = level.by_channel
        nodes = [
            {"channel": c, "relevance": finite(float(by_channel[c])), "share": level.share(c)} for c in level.shown
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


# --- patches of channels ----------------------------------------------------------------------------------------------
# Parts of the inputs that gave a channel most relevance in a search made before. A page shows the channels that a layer
# reads; a search has the channels that a layer makes, so each layer is looked up by the layer below it (`source_of`).


@dataclass(frozen=True)
class ChannelPatches:
    """Draws patches for the channels of pages, each once: a server hands out many pages."""

    reading: Reading
    drawn: dict[tuple[str, int], list[dict[str, str]]] = field(default_factory=dict, repr=False)

    def layers(
        self, channels: Rows, trace: Trace, report: Report | None = None
    ) -> Iterator[tuple[int, dict[int, list[dict[str, str]]]]]:
        """The number of each layer that was searched, and by channel its patches with captions.

        `report` is called with the numbers of drawn patches and of all patches of a layer.
        """
        for number, (op, rows) in enumerate(zip(layer_inputs(trace), channels, strict=True)):
            source = source_of(op.inputs[0])
            if source not in self.reading.exemplars or self.reading.exemplars.unit != "channel":
                continue
            wanted = [row["channel"] for row in rows]
            missing = [channel for channel in wanted if (source, channel) not in self.drawn]
            self.draw(source, missing, report)
            yield number, {channel: self.drawn[source, channel] for channel in wanted if self.drawn[source, channel]}

    def draw(self, layer: str, channels: Sequence[int], report: Report | None = None) -> None:
        """Draw the patches of channels or subspaces of a layer, with captions."""
        for channel, shown in self.reading.patches(layer, channels, COUNT, report).items():
            drawn = self.drawn[layer, channel] = []
            for one, pixels in shown:
                name = f"input {one.name}" if one.name.isdecimal() else one.name.rsplit("/", 1)[-1]
                caption = f"{name}: gave {self.reading.exemplars.unit} {channel} {one.value:.1%} of the relevance"
                drawn.append({"picture": data_address(pixels, SIDE, "JPEG", quality=80), "caption": caption})

    def show_subspaces(
        self, bundle: Bundle, trace: Trace, explained: Request, to_map: Callable[[Explanation], Tensor]
    ) -> None:
        """Add rows of subspaces beside the channels of their layer, with their share of the input's relevance."""
        (layer,), bases = self.reading.exemplars, self.reading.exemplars.settings["subspaces"]
        layers = [source_of(op.inputs[0]) for op in layer_inputs(trace)]
        if layer not in layers:  # after a residual sum there is no single layer below
            return
        self.draw(layer, range(len(bases)))
        whole = to_map(explain_trace(trace, explained))
        for k, basis in enumerate(bases):
            condition = {layer: Projection(torch.tensor(basis))}
            sent = to_map(explain_trace(trace, replace(explained, condition=condition)))
            levels, largest, limit = path_levels(sent)
            row = {"channel": f"subspace {k}", "share": finite(float(sent.sum() / whole.sum())) or 0.0, "limit": limit}
            row |= {"through": len(bundle.arrays["through"]), "exemplars": self.drawn[layer, k]}
            bundle.arrays["through"] = np.concatenate([bundle.arrays["through"], levels[None]])
            bundle.facts["largest"]["through"].append(largest)
            bundle.facts["channels"][layers.index(layer)].append(row)

    def show(self, channels: Rows, trace: Trace, report: Report | None = None) -> None:
        """Write the patches into the rows of a page."""
        for number, patches in self.layers(channels, trace, report):
            for row in channels[number]:
                if row["channel"] in patches:
                    row["exemplars"] = patches[row["channel"]]
