"""An explanation method as a function of the input, for metrics that explain perturbed inputs or models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from .scores import Target, winner

if TYPE_CHECKING:
    import plrp


@dataclass(frozen=True)
class Explainer:
    """plrp's relevance of a model as a function `explain(inputs, target) -> relevance`.

    Robustness metrics ask how the explanation *of one decision* moves with the input. They therefore keep the
    target at the unperturbed input's winning class when handed an `Explainer`; were it left free, a
    perturbation that tips the decision would compare the explanations of two classes.
    """

    model: nn.Module
    composite: str | plrp.Composite = "epsilon-plus-flat"
    pruning: plrp.Pruning | None = None

    def __call__(self, inputs: Tensor, target: Target = None) -> Tensor:
        """Relevance of `inputs` (batch, ...), same shape; `target=None` is each sample's winner."""
        import plrp

        options: dict[str, Any] = {"composite": self.composite, "pruning": self.pruning}
        return plrp.explain(self.model, inputs, target=target, **options).relevance

    def winner(self, inputs: Tensor) -> Tensor:
        """Each sample's winning class, int64 (batch,)."""
        return winner(self.model, inputs)
