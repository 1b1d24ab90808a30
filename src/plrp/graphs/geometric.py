"""plrp as an explanation algorithm of PyTorch Geometric, so that its metrics and plots take our explanations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.explain import Explanation
from torch_geometric.explain.algorithm import ExplainerAlgorithm
from torch_geometric.explain.config import MaskType, ModelMode, ModelTaskLevel

from plrp.composites import Composite
from plrp.pruning import Pruning
from plrp.tape.verification import trace

from .graph_relevance import check_edges, relevance


class PLRPExplainer(ExplainerAlgorithm):
    """For `torch_geometric.explain.Explainer(model, algorithm=PLRPExplainer(), …)`.

    Masks are relevance above 0, divided by its maximum, so that they lie in 0…1 as PyTorch Geometric's metrics expect;
    `signed=True` leaves relevance as it is. The explained score is the sum of the target class's outputs at `index`, of
    several classes less their mean: so a winning class has a score above 0, and its evidence is positive.
    """

    def __init__(
        self, composite: str | Composite | None = None, pruning: Pruning | None = None, signed: bool = False
    ) -> None:
        super().__init__()
        self.composite, self.pruning, self.signed = composite, pruning, signed

    def forward(
        self, model: Any, x: Any, edge_index: Any, *, target: Tensor, index: Tensor | None = None, **kwargs: Any
    ) -> Explanation:
        """The explanation of a graph, with a mask of nodes and of edges as the explainer's settings ask."""
        if isinstance(x, dict) or isinstance(edge_index, dict):
            raise ValueError(
                "PLRPExplainer takes graphs of one kind of nodes; explain a heterogeneous model with plrp.explain, the "
                "features of each kind as one input."
            )
        check_edges(edge_index, len(x))
        relevances = relevance(
            trace(lambda features: model(features, edge_index, **kwargs), x, samples=None),
            None if self.explainer_config.edge_mask_type is None else edge_index,
            target=lambda output: self._score(output, target, index),
            composite=self.composite,
            pruning=self.pruning,
        )
        masks = {
            MaskType.object: relevances.nodes[:, None],
            MaskType.attributes: relevances.explanation.relevance,
            MaskType.common_attributes: relevances.features[None],
        }
        kind = self.explainer_config.node_mask_type
        return Explanation(node_mask=self._mask(masks.get(kind)), edge_mask=self._mask(relevances.edges))

    def supports(self) -> bool:
        """Graphs and nodes are explained; edges (links) are not."""
        return self.model_config.task_level != ModelTaskLevel.edge

    def _mask(self, relevance: Tensor | None) -> Tensor | None:
        if relevance is None or self.signed:
            return relevance
        above = relevance.clamp(min=0)
        return above / above.max().clamp(min=torch.finfo(above.dtype).tiny)

    def _score(self, output: Tensor, target: Tensor, index: Tensor | None) -> Tensor:
        """One score: of each explained row, the target class's output, or the row itself; a binary 0 turns the sign."""
        if index is not None:
            output, target = output[index], target[index]
        if self.model_config.mode == ModelMode.multiclass_classification:
            return (output - output.mean(-1, keepdim=True)).gather(-1, target.long()[:, None]).sum()
        if self.model_config.mode == ModelMode.binary_classification:
            return (output.flatten() * (2 * target.flatten().to(output) - 1)).sum()
        return output.sum()
