"""Figures of the hidden layers: how relevance thins on its way down, and which channels, patches and heads it takes."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from plrp.circuits import SCORE, Circuit, Neuron
from plrp.files import new_figure
from plrp.spelling import shortened

from .flows import INPUT, Flow, Level, Thinning, TokenDepth, spread
from .heatmaps import heatmap
from .photograph_figures import FAINT, INK, frame_panel, hide_empty, percent, set_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POSITIVE, NEGATIVE, PLAIN, FADED = "#d42a20", "#1f63b0", "#7d8791", "#c9ced3"
COLUMN, ROW, THUMBNAIL = 1.35, 0.98, 0.35  # inches: between nodes, and half a node's side
HALF, TALL = THUMBNAIL / COLUMN, THUMBNAIL / ROW  # half a node's width and height, in columns and rows
FAINTEST = 0.08  # of the strongest edge that leaves a column: a circuit's weaker ones are not drawn
CHANNEL_NAMES = ("red", "green", "blue")
Point = tuple[float, float]
T = TypeVar("T", bound=Hashable)


def thinning_figure(
    plain: Sequence[Thinning], pruned: Sequence[Thinning], *, name: str = "PLRP", title: str = "", maps: int = 6
) -> Figure:
    """Layer by layer from the output to the input: the share of neurons and channels that survive, and their places.

    plain, pruned: LRP and the pruned explanation, called `name`, for the same layers. Lines join the layers that all
    relevance passes; dots are layers inside residual blocks.
    """
    from matplotlib.lines import Line2D

    spaces = spread([i for i, row in enumerate(pruned) if row.space is not None and row.passage], maps)
    through = [i for i, row in enumerate(pruned) if row.passage]
    figure = new_figure((9, 6.2), layout="constrained")
    outer = figure.add_gridspec(2, 1, height_ratios=[1.15, 1])
    curves = outer[0].subgridspec(1, 3)
    for place, (heading, values) in enumerate(
        {
            "neurons with relevance": lambda row: row.surviving_neurons / row.neurons,
            "channels with relevance": lambda row: row.surviving_channels / row.channels,
            "mass in the 10 strongest channels": lambda row: row.strongest,
        }.items()
    ):
        ax = figure.add_subplot(curves[place])
        for rows, colour, label in ((plain, PLAIN, "LRP"), (pruned, POSITIVE, name)):
            shares = [100 * values(row) for row in rows]
            ax.plot(through, [shares[i] for i in through], color=colour, marker="o", ms=3.2, lw=1.4, label=label)
            inside = [i for i, row in enumerate(pruned) if not row.passage]
            ax.plot(inside, [shares[i] for i in inside], color=colour, marker=".", ms=2.5, lw=0, alpha=0.45)
        ticks = spread(through, 9)
        labels = [shortened(pruned[i].layer, 16) for i in ticks]
        ax.set_xticks(ticks, labels, rotation=55, ha="right", rotation_mode="anchor")
        ax.tick_params(labelsize=6.5, length=2, width=0.5)
        ax.grid(alpha=0.25, lw=0.5)
        ax.spines[["top", "right"]].set_visible(False)
        set_title(ax, heading)
        ax.set_ylabel("%", fontsize=7.5)
        if place == 0:
            if any(row.surviving_neurons for row in (*plain, *pruned)):
                ax.set_yscale("log")
            ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            lines = [*ax.get_lines()[::2]]
        else:
            ax.set_ylim(0, 104)
    strip = outer[1].subgridspec(2, max(1, len(spaces)))
    for column, index in enumerate(spaces):
        for line, (rows, label) in enumerate(((plain, "LRP"), (pruned, name))):
            ax = figure.add_subplot(strip[line, column])
            space = rows[index].space
            assert space is not None
            ax.imshow(heatmap(space, percentile=99.5).numpy(), interpolation="nearest")
            frame_panel(ax)
            if line == 0:
                set_title(ax, shortened(rows[index].layer, 18))
            if column == 0:
                ax.set_ylabel(label, fontsize=8, color=INK)
    labels = ["LRP", name]
    if len(through) < len(pruned):
        lines.append(Line2D([], [], color=FAINT, marker=".", ms=4, lw=0))
        labels.append("layers inside residual blocks, which only a part of the relevance passes")
    figure.legend(lines, labels, loc="outside lower center", ncols=3, fontsize=7.5, frameon=False)  # over no line
    if title:
        figure.suptitle(title, fontsize=10, color=INK, parse_math=False)
    return figure


def tokens_figure(depths: list[TokenDepth], *, title: str = "") -> Figure:
    """The patches at each depth, from the input on the left, and the heads by relevance.

    A grey patch holds no relevance.
    """
    maps = [(number, one) for number, one in enumerate(depths, 1) if one.grid is not None]
    columns = min(6, len(maps)) or 1
    rows = math.ceil(len(maps) / columns)
    figure = new_figure((1.35 * columns + 3.2, max(2.6, 1.55 * rows + 0.6)), layout="constrained")
    parts: Any = figure.subfigures(1, 2, width_ratios=[1.35 * columns, 3.0])
    left, right = parts
    axes = left.subplots(max(rows, 1), columns, squeeze=False)
    for axis, (number, one) in zip(axes.flat, maps, strict=False):
        grid = one.grid
        assert grid is not None
        alive, image = float((one.tokens > 0).float().mean()), grid.masked_fill(grid == 0, torch.nan)
        axis.set_facecolor("#d9d9d9")
        axis.imshow(image.numpy(), cmap="Reds", vmin=0, vmax=float(grid.max()) or 1.0, interpolation="nearest")
        axis.set_xticks([])
        axis.set_yticks([])
        axis.set_title(f"attention {number}\n{alive:.0%} of tokens", fontsize=7.5)
    hide_empty(axes)
    most = max(len(one.heads) for one in depths)
    heads = torch.full((len(depths), most), torch.nan)
    for number, one in enumerate(depths):
        heads[number, : len(one.heads)] = one.heads
    limit = float(heads.nan_to_num().abs().max()) or 1.0
    axis = right.subplots()
    axis.set_facecolor("#d9d9d9")
    drawn = axis.imshow(heads.numpy(), cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest")
    axis.set_yticks(range(len(depths)), range(1, len(depths) + 1), fontsize=7)
    ticks = range(0, most, max(1, most // 12))
    axis.set_xticks(ticks, ticks, fontsize=7)
    axis.set_ylabel("attention", fontsize=8)
    axis.set_xlabel("head", fontsize=8)
    axis.set_title("relevance of the heads", fontsize=8.5)
    axis.invert_yaxis()
    right.colorbar(drawn, ax=axis, shrink=0.7).ax.tick_params(labelsize=7)
    if title:
        figure.suptitle(title, fontsize=9, parse_math=False)
    return figure


def _canvas(last: float, rows: int, title: str, legend: str) -> tuple[Figure, Axes]:
    """A figure of nodes in columns 0 to `last` with at most `rows` nodes each, the title above, the legend below."""
    figure = new_figure((COLUMN * (last + 1) + 0.3, ROW * rows + 1.5))
    ax = figure.add_axes((0.01, 0.01, 0.98, 0.94))
    ax.set_xlim(-0.6, last + 0.6)
    ax.set_ylim(-0.75, rows + 0.5)
    ax.set_axis_off()
    if title:
        figure.suptitle(title, fontsize=10, color=INK, y=0.985, parse_math=False)
    figure.text(0.012, 0.012, legend, fontsize=6.5, color=FAINT)
    return figure, ax


def _label(ax: Axes, x: float, y: float, text: str, size: float = 6.3, colour: str = INK) -> None:
    """Lines of text that hang from a point."""
    at: dict[str, Any] = {"ha": "center", "va": "top", "linespacing": 1.3, "parse_math": False}
    ax.text(x, y, text, fontsize=size, color=colour, **at)


def flow_figure(
    flow: Flow,
    *,
    target: str = "",
    title: str = "",
    patches: Mapping[str, Mapping[int, npt.NDArray[np.uint8]]] | None = None,
) -> Figure:
    """How relevance flows through the network, output on the left: the paper's Figure 1(b), computed.

    Nodes are channels; a node shows where in the picture its relevance lies. Red edges carry positive and blue edges
    negative relevance, and their width is its amount. Grey nodes and edges are those of LRP that pruning cut off.

    patches: by layer and channel of its output, pixels (side, side, 3) of the channel's exemplar
        (`plrp.concepts.patches`), drawn beside the nodes of the levels whose `source` is this layer.
    """
    rows = max(len(level.shown) + len(level.pruned) for level in flow.levels)
    step = 1.5 if patches else 1.0  # room for a patch beside each node
    legend = "red, blue: positive, negative relevance; width: amount within a column; grey: LRP's, cut off by pruning"
    if patches:
        legend += "; beside a channel: its exemplar, of the pictures searched"
    if min(level.coverage for level in flow.levels) < 0.6:
        legend += (
            "\nmuch of the mass is in channels that are not drawn: prune by unit='channel' (--unit channel) to see more"
        )
    figure, ax = _canvas(step * len(flow.levels), rows, title, legend)
    places = [_places((*level.shown, *level.pruned), step * n, rows) for n, level in enumerate(flow.levels, 1)]
    ways = zip(pairwise(flow.levels), pairwise(places), flow.edges, flow.faded, strict=True)
    for (level, lower), (above, below), edges, faded in ways:
        widest = float(faded.abs().max()) if faded.numel() else 0.0
        for a, channel in enumerate((*level.shown, *level.pruned)):
            for other in (*lower.shown, *lower.pruned):
                width = abs(float(faded[a, other])) / widest if widest > 0 else 0.0
                if (channel in level.pruned or other in lower.pruned) and width > 0.01:
                    _curve(ax, above[channel], below[other], FADED, 0.4 + 1.2 * width, 0.7, 1)
        widest = float(edges[:, list(lower.shown)].abs().max()) if edges.numel() and lower.shown else 0.0
        for a, channel in enumerate(level.shown):
            for other in lower.shown:
                _edge(ax, above[channel], below[other], float(edges[a, other]), widest)
    first = flow.levels[0]
    strongest = max([abs(float(first.by_channel[c])) for c in first.shown] or [1.0])
    for channel in first.shown:
        _edge(ax, (0.0, rows / 2), places[0][channel], float(first.by_channel[channel]), strongest)
    for level, where in zip(flow.levels, places, strict=True):
        _draw_nodes(ax, level, where, (patches or {}).get(level.source, {}))
        column = next(iter(where.values()))[0] if where else 0
        shape = "×".join(str(side) for side in level.relevance.shape)
        _label(ax, column, rows + 0.36, shortened(level.layer, 16), 7.3)
        _label(ax, column, rows + 0.13, f"{percent(level.coverage)} of mass shown")
        _label(ax, column, -0.2, f"{shape}\n{level.surviving} of {len(level.relevance)} survive", colour=FAINT)
    _output_node(ax, target, flow.score, rows)
    return figure


def circuit_figure(
    circuit: Circuit, *, layers: Sequence[str] | None = None, levels: int = 7, nodes: int = 6, title: str = ""
) -> Figure:
    """A circuit, output on the left: its strongest neurons, and the relevance that they hand to one another.

    layers: the tensors to draw, named by the layers that read them; None takes at most `levels`, evenly spread. Edges
    lead through all tensors between two that are drawn. A frame is a map, and the dot in it the neuron's place.
    """
    names = spread(circuit.layers[::-1], levels) if layers is None else list(layers)
    edges = circuit.edges(layers=names, nodes=nodes)
    names = list(dict.fromkeys(name for name in circuit.layers[::-1] for e in edges if name == e.lower.layer))
    shown = {name: [Neuron(name, tuple(i)) for i in circuit.neurons[name].index[:nodes].tolist()] for name in names}
    rows = max([len(neurons) for neurons in shown.values()] or [1])
    legend = "red, blue: positive, negative relevance; width: amount among the edges that leave a column"
    figure, ax = _canvas(len(names), rows, title, legend)
    where = {Neuron(SCORE, ()): (0.0, rows / 2)}
    for column, neurons in enumerate(shown.values(), 1):
        where |= _places(neurons, column, rows)
    drawn = [edge for edge in edges if edge.upper in where and edge.lower in where]
    widest: dict[str, float] = {}
    for edge in drawn:
        widest[edge.upper.layer] = max(widest.get(edge.upper.layer, 0.0), abs(edge.relevance))
    for edge in drawn:
        if abs(edge.relevance) > FAINTEST * widest[edge.upper.layer]:
            _edge(ax, where[edge.upper], where[edge.lower], edge.relevance, widest[edge.upper.layer])
    for column, (name, neurons) in enumerate(shown.items(), 1):
        relevance = [circuit.relevance_of(neuron) for neuron in neurons]
        strongest = max([abs(r) for r in relevance] or [1.0])
        for neuron, own in zip(neurons, relevance, strict=True):
            _neuron(ax, neuron, circuit.shapes[name], where[neuron], own, strongest)
        mass = circuit.neurons[name].relevance.abs()
        share = sum(map(abs, relevance)) / float(mass.sum() or 1.0)
        reader, shape = name.split(", ")[0], [size for size in circuit.shapes[name] if size > 1]
        reader = reader if len(reader) <= 18 else "…" + reader[-17:]  # the end of a path tells layers apart
        _label(ax, column, rows + 0.36, reader, 7.3)
        _label(ax, column, rows + 0.13, "×".join(map(str, shape)), colour=FAINT)
        lines = f"{len(mass):,} of {circuit.sizes[name]:,}\nshown: {percent(share)} of mass"
        _label(ax, column, -0.2, lines, colour=FAINT)
    _output_node(ax, "", circuit.score, rows)
    return figure


def _neuron(ax: Axes, neuron: Neuron, shape: Sequence[int], centre: Point, relevance: float, strongest: float) -> None:
    """A neuron of a map as a dot at its place in a frame, any other as a disc; its size is its relevance."""
    x, y = centre
    colour, share = POSITIVE if relevance >= 0 else NEGATIVE, abs(relevance) / strongest if strongest else 0.0
    if len(shape) == 3 and min(shape[1:]) > 1:  # channel, row, column
        _frame(ax, centre, fc="white", ec=colour, lw=0.5 + share, zorder=4)
        channel, row, along = neuron.place
        across, down = (2 * along + 1) / shape[2] - 1, (2 * row + 1) / shape[1] - 1
        ax.scatter([x + HALF * across], [y - TALL * down], s=8 + 40 * share, color=colour, zorder=5, linewidths=0)
        label = f"{channel} at {row}, {along}"
    else:
        ax.scatter([x], [y], s=60 + 260 * share, color=colour, zorder=4, linewidths=0)
        label = " · ".join(str(i) for i, size in zip(neuron.place, shape, strict=True) if size > 1)
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.6}
    ax.text(x, y - 0.445, label, fontsize=6.3, ha="center", va="center", color=INK, zorder=6, bbox=box)


def _places(nodes: Sequence[T], column: float, rows: int) -> dict[T, Point]:
    """Where each node of a column stands, the first on top."""
    gap = (rows - len(nodes)) / 2
    return {node: (float(column), rows - 0.5 - gap - place) for place, node in enumerate(nodes)}


def _draw_nodes(ax: Axes, level: Level, where: dict[int, Point], patches: Mapping[int, npt.NDArray[np.uint8]]) -> None:
    """The channels of a level, each beside its patch; channels without relevance in grey."""
    strongest = max([level.share(channel) for channel in level.shown] or [1.0])
    for channel, (x, y) in where.items():
        alive = channel in level.shown
        relevance = (level.relevance if alive else level.unpruned)[channel]
        colour = FADED if not alive else POSITIVE if float(relevance.sum()) >= 0 else NEGATIVE
        left = x
        if channel in patches:
            _picture(ax, patches[channel], (x + HALF, y), colour)
            left = x - HALF
        if relevance.dim() == 2:
            pixels = heatmap(relevance, dilate=1 if min(relevance.shape) >= 28 else 0, percentile=99).numpy()
            if not alive:
                pixels = (255 - 0.45 * (255 - pixels[..., :3].mean(-1, keepdims=True))).repeat(3, -1).astype(np.uint8)
            _picture(ax, pixels, (left, y), colour)
        else:
            size = 60 + 260 * (level.share(channel) / strongest if alive else 0.15)
            inside = colour if alive else "white"
            ax.scatter([left], [y], s=size, color=inside, edgecolors=colour, zorder=4, linewidths=1)
        label = CHANNEL_NAMES[channel] if level.layer == INPUT and len(level.relevance) == 3 else str(channel)
        ax.text(x, y - 0.445, label, fontsize=6.3, ha="center", va="center", color=INK if alive else FAINT, zorder=6)


def _picture(ax: Axes, pixels: npt.NDArray[Any], centre: Point, colour: str) -> None:
    """A picture in a frame, at a node."""
    x, y = centre
    extent = (x - HALF, x + HALF, y - TALL, y + TALL)
    ax.imshow(pixels, extent=extent, zorder=4, interpolation="nearest", aspect="auto")
    _frame(ax, centre, fill=False, edgecolor=colour, lw=1.1, zorder=5)


def _frame(ax: Axes, centre: Point, **style: Any) -> None:
    from matplotlib.patches import Rectangle

    ax.add_patch(Rectangle((centre[0] - HALF, centre[1] - TALL), 2 * HALF, 2 * TALL, **style))


def _edge(ax: Axes, start: Point, end: Point, value: float, widest: float) -> None:
    share = abs(value) / widest if widest > 0 else 0.0
    if share > 0.004:
        _curve(ax, start, end, POSITIVE if value > 0 else NEGATIVE, 0.3 + 4.2 * share, 0.2 + 0.6 * share**0.5, 3)


def _curve(ax: Axes, start: Point, end: Point, colour: str, width: float, alpha: float, order: int) -> None:
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    middle = (start[0] + end[0]) / 2
    path = Path([start, (middle, start[1]), (middle, end[1]), end], [Path.MOVETO, *[Path.CURVE4] * 3])
    ax.add_patch(PathPatch(path, fill=False, edgecolor=colour, lw=width, alpha=alpha, zorder=order, capstyle="round"))


def _output_node(ax: Axes, target: str, score: float, rows: int) -> None:
    ax.scatter([0.0], [rows / 2], s=420, color=INK, zorder=5)
    ax.text(0.0, rows / 2, f"{score:.3g}", fontsize=6.6, color="white", ha="center", va="center", zorder=6)
    _label(ax, 0.0, rows / 2 - 0.5, shortened(target, 16), 7.3)
    _label(ax, 0.0, rows + 0.36, "score", 7.3)
