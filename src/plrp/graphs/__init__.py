"""Graph networks: the relevance of nodes, edges and walks. Needs the extra `plrp[graphs]`.

- `relevance`: of nodes, features and edges
- `walks`: the strongest walks through the message-passing layers, exactly
- `subgraph`: the relevance of all walks inside a set of nodes, without a list of them
- `falling_gamma`: the composite for graph networks
- `walk_figure`: the graph with its walks
- `PLRPExplainer`: for PyTorch Geometric's `Explainer`

Nodes are the rows of the model's first input. `plrp.trace(model, x, samples=None)` records a graph; for a batch of
graphs, `plrp.explain(model, x, samples=batch)` with the vector that names each node's graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plrp.lazy import lazily

if TYPE_CHECKING:
    from .drawing import walk_figure
    from .geometric import PLRPExplainer
    from .graph_relevance import GraphRelevance, relevance
    from .relevant_walks import Walks, falling_gamma, subgraph, walks

__all__ = [
    "GraphRelevance", "PLRPExplainer", "Walks", "falling_gamma", "relevance", "subgraph", "walk_figure", "walks",
]  # fmt: skip

__getattr__, __dir__ = lazily(__name__)
