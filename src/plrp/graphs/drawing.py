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

    nodes = max(
        [int(edge_index.max()) + 1 if edge_index.numel() else 0, len(labels or ()), *(max(w) + 1 for w in walks.nodes)]
    )
    check_edges(edge_index, nodes)
    graph = networkx.Graph()
    graph.add_nodes_from(range(nodes))
    graph.add_edges_from(edge_index.T.tolist())
    graph.remove_edges_from(list(networkx.selfloop_edges(graph)))
    places = layout or networkx.kamada_kawai_layout(graph)
    at = np.array([places[node] for node in range(nodes)], dtype=float)
    near = float(np.median([float(np.linalg.norm(at[a] - at[b])) for a, b in graph.edges] or [1.0]))
    figure = Figure(figsize=(size, size), layout="constrained")
    axes = figure.add_subplot()
    networkx.draw_networkx_edges(graph, at, ax=axes, edge_color="#cccccc", width=1.5)
    networkx.draw_networkx_nodes(graph, at, ax=axes, node_color="white", edgecolors="#888888", node_size=180)
    networkx.draw_networkx_labels(graph, at, dict(enumerate(labels or map(str, range(nodes)))), font_size=8, ax=axes)
    strongest = float(walks.relevance.abs().max()) if len(walks) else 1.0
    for number, (walk, relevance) in reversed(list(enumerate(zip(walks.nodes, walks.relevance.tolist(), strict=True)))):
        strength = abs(relevance) / strongest
        line = _line(at, walk, near, number)
        colour = POSITIVE if relevance > 0 else NEGATIVE
        axes.plot(*line.T, color=colour, linewidth=0.6 + 3 * strength, alpha=0.15 + 0.55 * strength, zorder=0.5)
    axes.set_axis_off()
    axes.set_aspect("equal")
    axes.set_title(f"{len(walks)} walks, {walks.share:.0%} of the score {walks.score:.3g}", fontsize=10)
    return figure


def _line(at: np.ndarray, walk: Sequence[int], near: float, number: int) -> np.ndarray:
    """The line of a walk: through its nodes, a little beside them so that walks do not hide one another."""
    angle = 2.4 * number  # the golden angle: neighbours in the list go to different sides
    aside = 0.05 * near * np.array([np.cos(angle), np.sin(angle)])
    turn = np.linspace(0, 2 * np.pi, 25)
    points: list[np.ndarray] = []
    for place, node in enumerate(walk):
        centre = at[node] + aside
        if place and walk[place - 1] == node:
            radius = 0.22 * near
            middle = centre + radius * np.array([np.cos(angle), np.sin(angle)])
            points += [middle - radius * np.array([np.cos(angle + t), np.sin(angle + t)]) for t in turn]
        points.append(centre)
    return np.array(points)
