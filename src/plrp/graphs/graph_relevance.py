"""The relevance of a graph by node, by feature and by edge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from plrp.composites import Composite
from plrp.explanation import Explanation
from plrp.pruning import Pruning
from plrp.tape.trace import Trace

from .relevant_walks import Descent, falling_gamma


@dataclass
class GraphRelevance:
    """The relevance of a graph, summed up.

    - `nodes`: of each node, the sum over its features, (nodes,);
    - `features`: of each feature, the sum over all nodes, (features,);
    - `edges`: of each edge, (edges,): a walk's relevance is divided evenly over its steps, so that edges and the steps
      in which a walk stays at its node add up to the relevance of all walks. None without `edge_index`;
    - `explanation`: the whole; edge weights and edge features that are inputs of the model have their relevance there.
    """

    nodes: Tensor
    features: Tensor
    edges: Tensor | None
    explanation: Explanation


def relevance(
    trace: Trace,
    edge_index: Tensor | None = None,
    *,
    target: Any = None,
    composite: str | Composite | None = None,
    pruning: Pruning | None = None,
) -> GraphRelevance:
    """The relevance of nodes (the first input's rows), features and edges; `composite=None` is `falling_gamma`.

    `edge_index` (2, edges) names the edges from sender to receiver, as PyTorch Geometric does; it needs a trace of one
    graph, nodes and features do not.
    """
    nodes = trace.inputs[0].shape[0]
    if edge_index is not None:
        check_edges(edge_index, nodes)
    chosen = falling_gamma(trace) if composite is None else composite
    explanation = trace.explain(target=target, composite=chosen, pruning=pruning)
    first = explanation.relevance if trace.single else explanation.relevance[0]
    edges = None
    if edge_index is not None:
        steps = _steps(Descent(trace, target, chosen, pruning))
        places = edge_index[0].long() * nodes + edge_index[1].long()
        twice = places.bincount(minlength=nodes * nodes)[places]  # an edge that is there several times
        edges = steps.flatten()[places] / twice
    first = first.reshape(nodes, -1)
    return GraphRelevance(first.sum(1), first.sum(0), edges, explanation)


def check_edges(edge_index: Any, nodes: int) -> None:
    """Refuse edges that are not pairs of the graph's nodes."""
    if not isinstance(edge_index, Tensor) or edge_index.is_floating_point() or edge_index.shape[:-1] != (2,):
        raise ValueError("edge_index is a tensor (2, edges) of whole numbers: the senders, and the receivers.")
    lowest, highest = (int(x) for x in edge_index.aminmax()) if edge_index.numel() else (0, 0)
    if edge_index.numel() and not 0 <= lowest <= highest < nodes:
        raise ValueError(f"edge_index names nodes {lowest}…{highest}; the graph has {nodes}, from 0.")


def _steps(descent: Descent) -> Tensor:
    """Σ_W R_W · (how often W goes from J to K) / L, (J, K)."""
    start, ladder = descent.ladder()
    states, steps = [start], start.new_zeros(len(start), len(start))
    for down in ladder:
        below = start.new_zeros(len(start), down[0][1].shape[-1])
        for node, (reached, block) in enumerate(down):
            below[reached] += states[-1][node] @ block
        states.append(below)
    brings = torch.ones_like(states[-1])  # to the input, over all ways, by a unit at each neuron of a place
    for down, state in zip(reversed(ladder), states[-2::-1], strict=True):
        each = [torch.einsum("jkf,jf->jk", block, brings[reached]) for reached, block in down]
        for node, (reached, _) in enumerate(down):
            steps[reached, node] += each[node] @ state[node]
        brings = torch.stack([part.sum(0) for part in each])
    return steps / max(1, len(ladder))
