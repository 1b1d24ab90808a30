"""Several metrics of several explanations in one tidy table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .faithfulness import pixel_flipping
from .localization import pointing_game, relevance_mass_accuracy, relevance_rank_accuracy, top_k_intersection
from .robustness import Explainer, local_lipschitz, max_sensitivity, relevance_of
from .scores import GivenTarget, Model, fix_target
from .sparsity import entropy, gini, hoyer, nonzero


def _by_name(*metrics: Callable[..., Tensor]) -> dict[str, Callable[..., Tensor]]:
    return {metric.__name__: metric for metric in metrics}


SPARSITY = _by_name(gini, entropy, hoyer, nonzero)
LOCALIZATION = _by_name(relevance_mass_accuracy, relevance_rank_accuracy, pointing_game, top_k_intersection)
ROBUSTNESS = _by_name(local_lipschitz, max_sensitivity)
FAITHFULNESS = "pixel_flipping"


def evaluate(
    model: Model | None,
    inputs: Tensor,
    explanations: Any,
    *,
    masks: Any = None,
    metrics: Sequence[str | tuple[str, Mapping[str, Any]]] | None = None,
    target: GivenTarget = None,
    channels: str | None = "sum",
    batch_size: int = 64,
) -> list[dict[str, Any]]:
    """Score explanations of the same inputs; one row per sample and metric, ready for pandas or polars.

    - `model`: needed by `pixel_flipping`, and to find the winning class; None where neither is wanted.
    - `explanations`: relevance (batch, ...), a `plrp.Explanation`, or a function `explain(inputs) -> relevance` such as
      an `Explainer` (which the robustness metrics need); or a mapping from names to any of these.
    - `masks`: ground truth per sample, for localization; see `relevance_mass_accuracy`.
    - `metrics`: names, or (name, options) with the options of the function of that name. None is Gini, entropy, Hoyer
      and the non-zero share, and with masks also relevance mass and rank accuracy and the pointing game.
    - `target`: the same for all metrics. None is an `Explanation`'s own target, or else each sample's winning class.
    - `channels`: how the channel axis of relevance (batch, channel, *space) is pooled before sparsity and localization
      are measured; a metric's own options take precedence. Ignored where there is no channel axis.

    Returns a list of `{"sample": int, "explanation": str, "metric": str, "value": float}`. `pixel_flipping`
    has the rows `pixel_flipping.auc`, `.aopc`, `.tied` and, with `order="both"`, `.symmetric_relevance_gain`.

    >>> evaluate(None, torch.ones(1, 3), torch.tensor([[0.0, 0.0, 2.0]]), metrics=["nonzero"])
    [{'sample': 0, 'explanation': 'relevance', 'metric': 'nonzero', 'value': 0.3333333333333333}]
    """
    named = dict(explanations) if isinstance(explanations, Mapping) else {"relevance": explanations}
    if metrics is None:
        metrics = [*SPARSITY, *(list(LOCALIZATION)[:3] if masks is not None else ())]
    requested = [(entry, {}) if isinstance(entry, str) else (entry[0], dict(entry[1])) for entry in metrics]
    known = (*SPARSITY, *LOCALIZATION, *ROBUSTNESS, FAITHFULNESS)
    for metric, _ in requested:
        if metric not in known:
            raise ValueError(f"unknown metric {metric!r}: choose from {', '.join(known)}.")
        if metric in LOCALIZATION and masks is None:
            raise ValueError(f"{metric} compares relevance with a ground truth: pass masks=.")

    rows: list[dict[str, Any]] = []
    for name, explanation in named.items():
        subject = _Subject(model, inputs, explanation, target, batch_size)
        for metric, options in requested:
            for label, values in subject.scores(metric, masks, channels, options).items():
                rows += [
                    {"sample": sample, "explanation": name, "metric": label, "value": value}
                    for sample, value in enumerate(values.tolist())
                ]
    return rows


class _Subject:
    """One explanation of the inputs; relevance and target are computed once, when first needed."""

    def __init__(
        self, model: Model | None, inputs: Tensor, explanation: Any, target: GivenTarget, batch_size: int
    ) -> None:
        self.model = model
        self.inputs = inputs
        self.explain = explanation if callable(explanation) else None
        self.target = getattr(explanation, "target", None) if target is None and not self.explain else target
        self.batch_size = batch_size
        self._relevance = None if self.explain else torch.as_tensor(getattr(explanation, "relevance", explanation))
        if self._relevance is not None and len(self._relevance) != len(inputs):
            raise ValueError(f"{len(self._relevance)} explanations for {len(inputs)} inputs: pass one per sample.")

    def scores(self, metric: str, masks: Any, channels: str | None, options: dict[str, Any]) -> dict[str, Tensor]:
        if metric in ROBUSTNESS:
            if self.explain is None:
                raise ValueError(
                    f"{metric} explains perturbed inputs: pass a function (such as plrp.metrics.Explainer) "
                    "in place of the finished explanation."
                )
            options = {"batch_size": self.batch_size, "target": self.explained_target(), **options}
            return {metric: ROBUSTNESS[metric](self.explain, self.inputs, **options)}
        relevance = self.relevance()
        if metric == FAITHFULNESS:
            if self.model is None:
                raise ValueError("pixel_flipping scores perturbed inputs: pass the model.")
            options = {"batch_size": self.batch_size, "target": self.fixed_target(), **options}
            curve = pixel_flipping(self.model, self.inputs, relevance, **options)
            parts = {part: getattr(curve, part) for part in ("auc", "aopc", "tied", "symmetric_relevance_gain")}
            return {f"{metric}.{part}": values for part, values in parts.items() if values is not None}
        if relevance.ndim > 2 and relevance.ndim == self.inputs.ndim:
            options = {"channels": channels, **options}
        if metric in SPARSITY:
            return {metric: SPARSITY[metric](relevance, **options)}
        return {metric: LOCALIZATION[metric](relevance, masks, **options)}

    def fixed_target(self) -> GivenTarget:
        model = self.explain.model if isinstance(self.explain, Explainer) else self.model
        if self.target is None and model is None:
            raise ValueError("there is neither a target nor a model to find the winning class with: pass one of them.")
        self.target = fix_target(model, self.inputs, self.target, self.batch_size)  # type: ignore[arg-type]
        return self.target

    def explained_target(self) -> GivenTarget:
        """The target to call the explanation function with; a function other than an `Explainer` may need none."""
        return self.fixed_target() if isinstance(self.explain, Explainer) or self.target is not None else None

    def relevance(self) -> Tensor:
        if self._relevance is None:
            assert self.explain is not None
            self._relevance = relevance_of(self.explain, self.inputs, self.explained_target(), self.batch_size)
        return self._relevance
