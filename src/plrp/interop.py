"""plrp's explanations behind the interfaces of other libraries: Quantus' `explain_func` and Captum's `attribute`.

Neither library is imported: Quantus calls a function of numpy arrays, Captum's tools an object with
`attribute`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .composites import Composite
from .explanation import explain
from .metrics.feature_rows import Pooling, pool_channels
from .pruning import Pruning
from .tape.refusals import device_of

__all__ = ["CaptumLRP", "explain_func"]


def explain_func(
    model: nn.Module,
    inputs: Any,
    targets: Any = None,
    *,
    composite: str | Composite = "auto",
    pruning: Pruning | None = None,
    channels: Pooling | None = None,
    device: str | torch.device | None = None,
) -> np.ndarray:
    """Relevance as a numpy array, with the signature that Quantus expects of an `explain_func`.

    Pass it as `explain_func=plrp.interop.explain_func` with `explain_func_kwargs={"pruning":
    plrp.Pruning(0.15)}`. `inputs` is (batch, ...), `targets` one class per sample (None: the winners). The
    result has the inputs' shape; `channels="sum"` pools axis 1 to length one, as for masks per pixel.
    Computed where the model is, or on `device`, which Quantus passes along.
    """
    numbers = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    place = device_of(model, device)
    batch = torch.as_tensor(inputs if isinstance(inputs, Tensor) else np.asarray(inputs)).to(place, numbers)
    classes = None if targets is None else torch.as_tensor(targets, device=place).long()
    relevance = explain(model, batch, target=classes, composite=composite, pruning=pruning).relevance
    if channels is not None:
        relevance = pool_channels(relevance, channels)[:, None]
    return relevance.cpu().numpy()


class CaptumLRP:
    """Relevance through the interface of Captum's methods: `CaptumLRP(model).attribute(inputs, target=3)`.

    Works where Captum takes any method with `attribute`, such as `captum.metrics.sensitivity_max` and `infidelity`.
    Unlike with Captum's own `LRP`, every operation has a rule or is refused by name, and the model gets no hooks.
    """

    multiplies_by_inputs = True  # as for Captum's own LRP: relevance already contains the input as a factor

    def __init__(
        self, model: nn.Module, *, composite: str | Composite = "auto", pruning: Pruning | None = None
    ) -> None:
        self.model = self.forward_func = model
        self.composite, self.pruning = composite, pruning

    def has_convergence_delta(self) -> bool:
        """Whether `attribute` can return how far the relevance's sum is from the score."""
        return True

    def attribute(
        self,
        inputs: Tensor | tuple[Tensor, ...],
        target: Any = None,
        additional_forward_args: Any = None,
        return_convergence_delta: bool = False,
    ) -> Any:
        """Relevance of each input, same shape; a tuple for a tuple.

        - `target`, as in Captum: an int, a tensor or list of ints, an index tuple into the output, or a list of such
          tuples, one per sample; None is each sample's winning class;
        - `additional_forward_args`: values that the model takes after the inputs; they get no relevance;
        - `return_convergence_delta`: also return score − Σ relevance, float (batch,): the mass that biases and ε
          absorbed (mass that αβ created counts negative).
        """
        extra = () if additional_forward_args is None else additional_forward_args
        extra = extra if isinstance(extra, tuple) else (extra,)
        model = _WithArguments(self.model, extra) if extra else self.model
        places = isinstance(target, list) and target and isinstance(target[0], tuple)
        asked = _at_places(target) if places else target
        explanation = explain(model, inputs, target=asked, composite=self.composite, pruning=self.pruning)
        if not return_convergence_delta:
            return explanation.relevance
        arrived = sum(part.flatten(1).sum(1) for part in explanation._inputs)
        return explanation.relevance, explanation.score - arrived


class _WithArguments(nn.Module):
    """The model with its further arguments fixed."""

    def __init__(self, model: nn.Module, extra: tuple[Any, ...]) -> None:
        super().__init__()
        self.model, self.extra = model, extra
        self.train(model.training)

    def forward(self, *inputs: Tensor) -> Any:
        return self.model(*inputs, *self.extra)


def _at_places(places: list[tuple[int, ...]]) -> Callable[[Tensor], Tensor]:
    """The score at one index tuple per sample."""
    index = [torch.tensor(axis) for axis in zip(*places, strict=True)]
    return lambda output: output[(torch.arange(len(output)), *index)]
