"""An explanation method as a function of the input, for metrics that explain perturbed inputs or models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from plrp.explanation import explain

from .scores import GivenTarget, chunks, for_rows

if TYPE_CHECKING:
    from plrp.composites import Composite
    from plrp.pruning import Pruning


@dataclass(frozen=True)
class Explainer:
    """plrp's relevance of a model as a function `explain(inputs, target) -> relevance`.

    Robustness metrics ask how the explanation *of one decision* moves with the input. Given an `Explainer`, they
    therefore fix the target to the unperturbed input's winning class: otherwise a perturbation that tips the decision
    would compare the explanations of two classes.
    """

    model: nn.Module
    composite: str | Composite = "auto"
    pruning: Pruning | None = None

    def __call__(self, inputs: Tensor, target: GivenTarget = None) -> Tensor:
        """Relevance of `inputs` (batch, ...), same shape; `target=None` is each sample's winner."""
        return explain(self.model, inputs, target=target, composite=self.composite, pruning=self.pruning).relevance


def relevance_of(explain: Callable[..., Tensor], inputs: Tensor, target: GivenTarget, batch_size: int) -> Tensor:
    """Relevance of all inputs, `batch_size` at a time, by `explain(inputs)`, or `explain(inputs, target)` if given."""
    parts = [
        explain(inputs[rows]) if target is None else explain(inputs[rows], for_rows(target, rows))
        for rows in chunks(len(inputs), batch_size, inputs.device)
    ]
    return torch.cat(parts).detach() if parts else torch.zeros_like(inputs)
