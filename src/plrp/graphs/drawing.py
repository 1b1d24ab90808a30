"""A picture of a graph with its walks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from .graph_relevance import check_edges

if TYPE_CHECKING:
    from .relevant_walks import Walks

POSITIVE, NEGATIVE = "#c0392b", "#2c6fbb"


def walk_figure(
    walks: Walks,
    edge_index: Tensor,
    *,
    labels: Sequence[str] | None = None,
    layout: Mapping[int, Sequence[float]] | None = None,
    size: float = 6.0,
) -> Any:
    """A matplotlib figure: the graph in grey, each walk as a line through its nodes, red where it speaks for the score.

    Walks against it are blue. Lines are as wide and as dark as walks are strong; where a walk stays at a node, it makes
    a loop. `labels` are the names of the nodes, `layout` their positions (default: networkx's `kamada_kawai_layout`);
    `size` is in inches.
    """
    import networkx

    from plrp.figure import Figure

    nodes = 1 + max([-1, len(labels or ()) - 1, *edge_index.flatten().tolist(), *(n for w in walks.nodes for n in w)])
    check_edges(edge_index, nodes)
    for name, given in (("labels", labels), ("layout", layout)):
        if given is not None and len(given) < nodes:
            raise ValueError(f"{name} has {len(given)} entries: the graph has {nodes} nodes.")
    graph = networkx.Graph()
    graph.add_nodes_from(range(nodes))
    graph.add_edges_from((a, b) for a, b in edge_index.T.tolist() if a != b)
    at = layout or networkx.kamada_kawai_layout(graph)
    points = np.array([complex(*at[node]) for node in range(nodes)])
    near = float(np.median([abs(points[a] - points[b]) for a, b in graph.edges] or [1.0]))
    figure = Figure(figsize=(size, size), layout="constrained")
    axes = figure.add_subplot()
    networkx.draw_networkx_edges(graph, at, ax=axes, edge_color="#cccccc", width=1.5)
    networkx.draw_networkx_nodes(graph, at, ax=axes, node_color="white", edgecolors="#888888", node_size=180)
    networkx.draw_networkx_labels(graph, at, dict(enumerate(labels or range(nodes))), font_size=8, ax=axes)
    strengths = (walks.relevance / walks.relevance.abs().max()).tolist() if len(walks) else []
    for number, (walk, strength) in enumerate(zip(walks.nodes, strengths, strict=True)):
        line, colour, size = _line(points, walk, near, number), POSITIVE if strength > 0 else NEGATIVE, abs(strength)
        axes.plot(
            line.real, line.imag, color=colour, linewidth=0.6 + 3 * size, alpha=0.15 + 0.55 * size, zorder=size / 2
        )
    axes.set_axis_off()
    axes.set_aspect("equal")
    axes.set_title(f"{len(walks)} walks, {walks.share:.0%} of the score {walks.score:.3g}", fontsize=10)
    return figure


def _line(points: np.ndarray, walk: Sequence[int], near: float, number: int) -> np.ndarray:
    """The line of a walk in the complex plane: a little beside its nodes, so that walks do not hide one another."""
    aside = near * np.exp(2.4j * number)  # by the golden angle: neighbours in the list go to different sides
    loop = 0.22 * aside * (1 - np.exp(2j * np.pi * np.linspace(0, 1, 25)))
    stays = [place > 0 and walk[place - 1] == node for place, node in enumerate(walk)]
    parts = [points[node] + 0.05 * aside + (loop if loops else 0) for node, loops in zip(walk, stays, strict=True)]
    return np.concatenate([np.atleast_1d(part) for part in parts])
