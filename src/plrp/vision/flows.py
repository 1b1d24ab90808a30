"""Relevance between output and input: how it thins layer by layer, and which channels it takes.

`thinning` counts survivors per layer. `flow` follows the strongest channels: the relevance of one channel alone is sent
down to the next layer by the very rules and cuts of the explanation, so that the flows into a channel, over all
channels above, add up to its relevance. `token_depths` measures the patches and heads of a vision transformer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from plrp.composites import Composite
from plrp.conditions import channel_axis, keeps_channels
from plrp.explanation import Explanation
from plrp.pruning import Pruning
from plrp.request import Request
from plrp.spelling import nearest
from plrp.survey import Survey
from plrp.tape.operations import Family
from plrp.tape.trace import Trace
from plrp.tape.values import Op, Value

INPUT = "input"
MOST_EXTRA = 8  # class tokens and registers in front of the patches
T = TypeVar("T")


@dataclass(frozen=True)
class Thinning:
    """How much of one layer's input holds relevance.

    `neurons`, `channels`: how many there are, and how many of them hold relevance. `strongest`: the share of the mass
    ‖R‖₁ in the ten strongest channels. `space`: relevance summed over channels (height, width), where there is space.
    `passage`: whether all relevance passes here; inside a residual block only a part does.
    """

    layer: str
    neurons: int
    surviving_neurons: int
    channels: int
    surviving_channels: int
    strongest: float
    space: Tensor | None
    passage: bool


@dataclass(frozen=True)
class Level:
    """A tensor that all relevance passes on its way down, by channel.

    `relevance` is the explanation's, (channel, *space); `unpruned` LRP's. `shown`: the channels drawn as nodes, the
    strongest first; `pruned`: of the channels that lost all relevance, the strongest under LRP. `source`: the layer
    whose output channels these are, one to one (behind activations, norms and pools); "" behind a residual sum.
    """

    layer: str
    relevance: Tensor
    unpruned: Tensor
    shown: tuple[int, ...]
    pruned: tuple[int, ...]
    source: str = ""

    @property
    def by_channel(self) -> Tensor:
        """Relevance per channel, (channel,)."""
        return _rows(self.relevance).sum(1)

    @property
    def surviving(self) -> int:
        """Number of channels that hold relevance."""
        return int(_rows(self.relevance).ne(0).any(1).sum())

    @property
    def coverage(self) -> float:
        """The share of the level's mass in the channels shown."""
        mass = _mass(self.relevance)
        return float(mass[list(self.shown)].sum() / mass.sum()) if mass.sum() > 0 else 0.0

    def share(self, channel: int) -> float:
        """A channel's share of the level's mass, for the size of its node."""
        mass = _mass(self.relevance)
        total = float(mass.sum())
        return float(mass[channel]) / total if total > 0 and math.isfinite(total) else 0.0


@dataclass(frozen=True)
class Flow:
    """Relevance from level to level, from the output down.

    `edges[i][a, b]` is the relevance that channel `levels[i].shown[a]` handed to channel b of the next level,
    over all of its channels; `faded[i]` the same for LRP, from `shown + pruned` above.
    """

    levels: tuple[Level, ...]
    edges: tuple[Tensor, ...]
    faded: tuple[Tensor, ...]
    score: float


def thinning(trace: Trace, explanation: Explanation, sample: int = 0) -> list[Thinning]:
    """One entry per conv and linear layer of an explanation with `layers=True`, from the output to the input."""
    through = {id(value) for value in passages(trace, explanation.composite.products)}
    rows: dict[int, Thinning] = {}
    for op in trace.layers:  # a tensor read twice, by a block and its skip, is one level: named by its first reader
        given = id(op.inputs[0])
        if op.name not in explanation.layers or given in rows:
            continue
        relevance = _by_channel(explanation.layers[op.name][sample], op)
        alive, mass = _rows(relevance).ne(0), _mass(relevance)
        rows[given] = Thinning(
            layer=op.name,
            neurons=relevance.numel(),
            surviving_neurons=int(alive.sum()),
            channels=len(relevance),
            surviving_channels=int(alive.any(1).sum()),
            strongest=float(mass.topk(min(10, len(mass))).values.sum() / mass.sum()) if mass.sum() > 0 else 0.0,
            space=relevance.sum(0) if relevance.dim() == 3 else None,
            passage=given in through,
        )
    return list(rows.values())[::-1]


def passages(trace: Trace, products: str | None) -> list[Value]:
    """The inputs of layers that all relevance passes, from the output down: inside a residual block there is none."""
    values: list[Value] = []
    pending = {id(trace.value_of(trace.output))}

    def arrive(value: Value) -> None:
        if pending == {id(value)} and any(reader.is_layer for reader in value.readers):
            values.append(value)
        pending.discard(id(value))

    for op in reversed(trace.ops):
        if any(id(value) in pending for value in op.outputs):
            for value in op.outputs:
                arrive(value)
            pending.update(id(value) for value in op.receivers(products))
    for value in trace.inputs:
        arrive(value)
    return values


def flow(
    trace: Trace,
    *,
    target: Any = None,
    composite: str | Composite = "auto",
    pruning: Pruning | None = None,
    layers: Sequence[str] | None = None,
    levels: int = 7,
    nodes: int = 6,
    pruned: int = 3,
) -> Flow:
    """Follow the strongest channels of a trace of one sample from the output to the input.

    layers: names of the layers whose inputs are the levels. All relevance must pass a level, so inside a residual block
        there is none; by default one level per tensor shape, at most `levels` of them.
    nodes: strongest surviving channels to follow per level; `pruned`: channels that pruning emptied, drawn faded.
    """
    if trace.batch != 1:
        raise ValueError(f"flow follows one sample; the trace holds {trace.batch}.")
    request = Request(target=target, composite=composite, pruning=pruning).bound(trace)
    chosen = _chosen_passages(trace, request.composite.products, layers, levels)
    parts = Survey(trace, request, chosen)
    unpruned = parts if pruning is None else Survey(trace, replace(request, pruning=None), chosen)
    made = [_level(value, parts, unpruned, nodes, pruned) for value in chosen]
    edges, faded = [], []
    for (upper, lower), above in zip(pairwise(chosen), made, strict=False):
        edges.append(_handed(parts, upper, lower, above.shown))
        faded.append(_handed(unpruned, upper, lower, above.shown + above.pruned))
    return Flow(tuple(made), tuple(edges), tuple(faded), float(parts.start.score[0]))


def _chosen_passages(trace: Trace, products: str | None, layers: Sequence[str] | None, count: int) -> list[Value]:
    """The levels to draw, from the output down."""
    through = passages(trace, products)
    if layers is not None:
        names = {op.name: value for value in through for op in value.readers if op.is_layer}
        for layer in layers:
            if layer not in names:
                raise ValueError(f"'{layer}' is no layer that all relevance passes{nearest(layer, list(names))}.")
        wanted = {id(names[layer]) for layer in layers}
        return [value for value in through if id(value) in wanted]
    unique: dict[tuple[int, ...], Value] = {}
    for value in through:
        unique.setdefault(tuple(value.shape), value)
    return spread(list(unique.values()), count)


def spread(items: list[T], count: int) -> list[T]:
    """At most `count` items, evenly spread, first and last among them."""
    if len(items) <= count:
        return items
    return [items[round(i * (len(items) - 1) / max(count - 1, 1))] for i in range(count)]


def _level(value: Value, parts: Survey, plain: Survey, nodes: int, pruned: int) -> Level:
    reader = _reader(value)
    relevance, unpruned = (_by_channel(_relevance(walk, value)[0], reader) for walk in (parts, plain))
    mass, mass_before = _mass(relevance), _mass(unpruned)
    order = [int(c) for c in mass.argsort(descending=True, stable=True) if mass[c] > 0]
    lost = [int(c) for c in mass_before.argsort(descending=True, stable=True) if mass[c] == 0 and mass_before[c] > 0]
    name = INPUT if value.producer is None else reader.name
    return Level(name, relevance, unpruned, tuple(order[:nodes]), tuple(lost[:pruned]), source_of(value))


def source_of(value: Value) -> str:
    """The layer whose output channels a layer's input has, one to one; "" where there is none.

    Behind it there may be operations that keep channels apart: activations, norms, pools, gates, and a flattening of
    one place.
    """
    axis = input_channel_axis(_reader(value))
    size = value.shape[axis]
    while (op := value.producer) is not None:
        if op.is_layer:
            same = channel_axis(op) == axis and op.output.shape[axis] == size
            return op.name if same else ""
        below = op.signal if op.family is Family.GATE else op.inputs[0] if len(op.inputs) == 1 else None
        if below is None:
            return ""
        one_place = (
            op.kind in ("flatten", "view", "reshape", "squeeze")
            and axis == 1
            and below.shape[:2] == value.shape[:2]
            and below.shape.numel() == value.shape[0] * size
        )
        if not (keeps_channels(op, below, axis) or one_place):
            return ""
        value = below
    return ""


def _relevance(parts: Survey, value: Value) -> Tensor:
    """The relevance of a level; all relevance passes it, so there is some."""
    relevance = parts.at(value)
    assert relevance is not None
    return relevance


def _handed(parts: Survey, upper: Value, lower: Value, channels: Sequence[int]) -> Tensor:
    """The relevance from each of these channels of a level to every channel of the next, (channels, channels below)."""
    relevance = _relevance(parts, upper)
    axis = input_channel_axis(_reader(upper))
    each = (_alone(relevance, axis, channel) for channel in channels)
    rows = []
    for (arrived,) in parts.send(each, upper, [lower]):
        arrived = torch.zeros_like(lower.data) if arrived is None else arrived
        rows.append(_rows(_by_channel(arrived[0], _reader(lower))).sum(1))
    width = lower.shape[input_channel_axis(_reader(lower))]
    return torch.stack(rows) if rows else torch.zeros(0, width)


def _alone(relevance: Tensor, axis: int, channel: int) -> Tensor:
    """The relevance of one channel, zero elsewhere."""
    alone = torch.zeros_like(relevance)
    alone.select(axis, channel).copy_(relevance.select(axis, channel))
    return alone


def _rows(relevance: Tensor) -> Tensor:
    """One row per channel, (channel, places)."""
    return relevance.reshape(len(relevance), -1)


def _mass(relevance: Tensor) -> Tensor:
    """Σ|R| of each channel, (channel,)."""
    return _rows(relevance).abs().sum(1)


def _reader(value: Value) -> Op:
    return next(op for op in value.readers if op.is_layer)


def input_channel_axis(op: Op) -> int:
    """The axis of the channels in a layer's input (samples, …): the one that the layer mixes."""
    dims = len(op.inputs[0].shape)
    axis = None if op.map is None else op.map.channel_axis(dims)
    return min(1, dims - 1) if axis is None else axis


def _by_channel(relevance: Tensor, op: Op) -> Tensor:
    """Relevance of one sample with its channels first: (channel, *space)."""
    return relevance.detach().movedim(input_channel_axis(op) - 1, 0)


# --- vision transformers ----------------------------------------------------------------------------------------------
# Attention is recognised on the tape, not by names: its output projection reads a rearranged matrix product, attention
# (tokens × tokens) · values (tokens × channels of a head).


class TokenDepth(NamedTuple):
    """One attention of a picture's transformer, for one sample.

    layer: its output projection. tokens: Σ|R| over the channels of the attention's input, (tokens,). heads: relevance
    of the heads' outputs, (heads,). whole: whether all tokens attend to each other; if not, they lie window by window.
    """

    layer: str
    tokens: Tensor
    heads: Tensor
    whole: bool = True

    @property
    def grid(self) -> Tensor | None:
        """The patches as a square map, without class token and registers; None if they form no square."""
        side = math.isqrt(len(self.tokens))
        extra = len(self.tokens) - side**2
        return self.tokens[extra:].view(side, side) if self.whole and side > 1 and extra <= MOST_EXTRA else None


def token_depths(trace: Trace, explanation: Explanation) -> list[TokenDepth]:
    """The attentions of a trace of one picture, from the input up; the explanation was made with `layers=True`."""
    depths = []
    for before, op in pairwise(trace.layers):
        count, together = _heads(op)
        if count and op.name in explanation.layers and before.name in explanation.layers:
            read, heads = explanation.layers[before.name], explanation.layers[op.name]
            by_head = heads.reshape(-1, count, heads.shape[-1] // count)
            tokens = read.reshape(-1, read.shape[-1]).abs().sum(-1)
            whole = len(tokens) == together
            depths.append(TokenDepth(op.name, tokens.float().cpu(), by_head.sum((0, 2)).float().cpu(), whole))
    return depths


def _heads(op: Op) -> tuple[int, int]:
    """How many heads a layer reads side by side, and of how many tokens; (0, 0) if it reads no heads."""
    below = op.inputs[0].producer
    while below is not None and below.family is Family.REARRANGE and len(below.inputs) == 1:
        below = below.inputs[0].producer
    if below is None or below.kind not in ("matmul", "bmm") or len(below.inputs) != 2:
        return 0, 0
    shape, width = below.output.shape, op.inputs[0].shape[-1]
    count = width // shape[-1]
    fits = op.kind == "linear" and count * shape[-1] == width and shape[-3] % count == 0
    return (count, shape[-2]) if fits else (0, 0)
