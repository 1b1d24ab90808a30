"""The grid of a page: one forward pass explained for every p, method and target, and the survivors of each layer.

Maps are numbered target by target: LRP first, then p by p for each method.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from plrp.composites import Composite
from plrp.explanation import Explanation
from plrp.health import unwarned
from plrp.pruning import Pruning
from plrp.tape.maps import Convolution
from plrp.tape.trace import Trace
from plrp.tape.values import Op

PROPORTIONS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9)
TARGETS = 3
METHODS = ("lambda", "M-sign")
CHANNELS = 8  # of each layer, in a saved page


@dataclass(frozen=True)
class Grid:
    """The explanations of a page: `targets` × (LRP + `methods` × `proportions`).

    `asked` is the pruning that the user asked for; the slider starts there, with a mark. Its other settings
    (`p_negative`, `sparsity_gain`, p of single layers) hold for all explanations.
    """

    targets: tuple[Any, ...]
    methods: tuple[str, ...]
    proportions: tuple[float, ...]
    asked: Pruning | None
    target: int = 0  # the one asked for, as an index into `targets`

    @classmethod
    def around(
        cls,
        asked: Pruning | None,
        targets: Sequence[Any],
        target: int = 0,
        proportions: Sequence[float] = PROPORTIONS,
        methods: Sequence[str] = METHODS,
    ) -> Grid:
        """The grid that holds the explanation asked for."""
        ps, names = set(proportions), list(methods)
        if asked is not None:
            if not asked.p and (asked.p is None or asked.p_negative or any((asked.layers or {}).values())):
                raise ValueError(
                    f"A page has a slider for p, and {asked} has no p above 0 to start at: explain with some p > 0."
                )
            ps |= {asked.p} if asked.p else set()
            names += [asked.redistribution] * (asked.redistribution not in names)
        if not ps or not all(0 < p < 1 for p in ps):
            raise ValueError(f"the proportions of a page are shares of mass, 0 < p < 1, not {sorted(ps)}.")
        return cls(tuple(targets), tuple(names), tuple(sorted(ps)), asked, target)

    @property
    def prunings(self) -> list[Pruning | None]:
        """LRP, then every method at every p."""
        base = self.asked or Pruning()
        return [None, *(replace(base, p=p, redistribution=m) for m in self.methods for p in self.proportions)]

    def __len__(self) -> int:
        return len(self.targets) * len(self.prunings)

    def number(self, target: int, method: int, p: int | None) -> int:
        """The number of a map; p None is LRP."""
        inner = 0 if p is None else 1 + method * len(self.proportions) + p
        return target * len(self.prunings) + inner

    @property
    def start(self) -> tuple[int, int, int | None]:
        """Target, method and p asked for, as indices; p None is LRP."""
        if self.asked is None or not self.asked.p:
            method = self.asked.redistribution if self.asked is not None else self.methods[0]
            return self.target, self.methods.index(method), None
        return self.target, self.methods.index(self.asked.redistribution), self.proportions.index(self.asked.p)

    def facts(self) -> dict[str, Any]:
        """For the page: p, the methods with their labels, and where to start."""
        target, method, p = self.start
        base = self.asked or Pruning()
        labels = {name: replace(base, redistribution=name).label for name in self.methods}
        return {
            "p": list(self.proportions),
            "methods": [{"key": name, "label": label} for name, label in labels.items()],
            "start": {"target": target, "method": method, "p": p},
        }

    def explain(self, trace: Trace, composite: Composite) -> Iterator[tuple[int, Explanation]]:
        """Number and explanation of every map, with the relevance of the layers; warnings are left to the page."""
        for place, target in enumerate(self.targets):
            explanations = trace.sweep(self.prunings, target=target, composite=composite, layers=True)
            for inner in range(len(self.prunings)):
                with unwarned():
                    explanation = next(explanations)
                yield place * len(self.prunings) + inner, explanation


def layer_inputs(trace: Trace) -> list[Op]:
    """The conv and linear layers from the output down; only the first of several that read one tensor."""
    seen: dict[int, Op] = {}
    for op in trace.layers:
        seen.setdefault(id(op.inputs[0]), op)
    return list(seen.values())[::-1]


def by_channel(explanation: Explanation, op: Op, sample: int) -> Tensor:
    """Relevance of one sample at a layer's input, channels first: (channel, *places).

    If the input is (batch · windows, …), the windows are places, too.
    """
    batch = len(explanation.score)
    if batch > 1 and op.name in explanation._scattered:
        raise ValueError(
            f"The input of layer '{op.name}' does not hold one sample after the other: explain one sample at a time."
        )
    own = channels_of(explanation.layers[op.name], op, batch, sample)
    return own[:, 0] if own.dim() > 1 and own.shape[1] == 1 else own


def channels_of(relevance: Tensor, op: Op, batch: int, sample: int) -> Tensor:
    """A view of one sample's part of a layer's input, channels first: (channel, rows of the sample, …)."""
    return relevance.unflatten(0, (batch, -1))[sample].movedim(_channel_axis(op), 0)


def _channel_axis(op: Op) -> int:
    """The axis of the channels in a layer's input (rows, …)."""
    dims = len(op.inputs[0].shape)
    axis = None if op.map is None else op.map.channel_axis(dims)
    return min(1, dims - 1) if axis is None else axis


def layer_facts(trace: Trace) -> list[dict[str, Any]]:
    """For the page: each layer's name, operation, and the channels and places of its input."""
    rows = []
    for op in layer_inputs(trace):
        given = op.inputs[0]
        windows = given.shape[0] // max(given.samples.batch, 1)
        shape = [*([windows] if windows > 1 else []), *given.shape[1:]]
        channels = given.shape[_channel_axis(op)]
        neurons = int(np.prod(shape))
        row = {"name": op.name, "op": op.kind, "shape": shape, "channels": channels, "neurons": neurons}
        row["places"] = neurons // max(channels, 1)
        rows.append({**row, "first": op.first})
    return rows


def lattice_sentence(layers: int) -> str:
    """The page's sentence about `layers` skipping layers, for a terminal."""
    return (
        f"A grid of dots is partly the network's own: {layers} of its layers step over pixels that they do not read. "
        "Pruning overstates it; compare with LRP."
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
        channels = by_channel(explanation, op, sample)
        alive = channels.reshape(len(channels), -1).ne(0)
        rows.append((int(alive.sum()), int(alive.any(1).sum()), int(alive.any(0).sum())))
    return np.array(rows, np.uint32).reshape(-1, 3)


def strongest_channels(relevance: Tensor, count: int = CHANNELS) -> list[tuple[int, float]]:
    """The channels of (channel, places) with most mass |R|, and their share of all mass; no channel without mass."""
    mass = relevance.abs().sum(1, dtype=torch.float64)
    total = float(mass.sum())
    order = mass.argsort(descending=True, stable=True)[:count].tolist()
    return [(channel, float(mass[channel]) / total) for channel in order if mass[channel] > 0]
