"""Other methods' maps of the same score, to be drawn beside ours: GradCAM, gradient × input, integrated gradients.

They are short, and written out here so that a picture needs no further package; the tests compare them with Captum's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plrp.explanation import explain

STEPS = 32  # of integrated gradients
AT_ONCE = 8  # steps in one forward pass

Score = Callable[[Tensor], Tensor]  # an output (batch, …) → one score per sample


def gradient(model: nn.Module, x: Tensor, score: Score) -> Tensor:
    """The gradient of the score at each sample of x, in its shape."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(score(model(x)).sum(), x)
    return slope


def gradient_input(model: nn.Module, x: Tensor, score: Score) -> Tensor:
    """x · ∂score/∂x."""
    return x * gradient(model, x, score)


def integrated_gradients(model: nn.Module, x: Tensor, score: Score) -> Tensor:
    """x · the mean gradient on the way from 0 (the mean colour) to x (Sundararajan 2017); midpoints of equal steps."""
    total = torch.zeros_like(x)
    for places in ((torch.arange(STEPS) + 0.5) / STEPS).to(x).split(AT_ONCE):
        points = places.reshape(-1, *(1,) * x.dim()) * x  # (places, batch, …)
        total += gradient(model, points.flatten(0, 1), score).reshape(points.shape).sum(0)
    return x * total / STEPS


def gradcam(model: nn.Module, x: Tensor, score: Score) -> Tensor:
    """Relu of the last convolution's maps, each weighted by its mean gradient (Selvaraju 2017), as large as x.

    One map per sample, (batch, 1, height, width).
    """
    outputs: list[Tensor] = []  # of every convolution, in the order of their calls

    def keep(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        outputs.append(output)

    hooks = [module.register_forward_hook(keep) for module in model.modules() if isinstance(module, nn.Conv2d)]
    try:
        with torch.enable_grad():
            total = score(model(x.detach().requires_grad_())).sum()
    finally:
        for hook in hooks:
            hook.remove()
    if not outputs:
        raise ValueError("GradCAM needs a model with convolutions, and this one has none: leave gradcam out.")
    maps = outputs[-1]
    (slope,) = torch.autograd.grad(total, maps)
    coarse = F.relu((slope.mean((2, 3), keepdim=True) * maps).sum(1, keepdim=True)).detach()
    return F.interpolate(coarse, x.shape[2:], mode="bilinear", align_corners=False)


def lrp(model: nn.Module, x: Tensor, score: Score) -> Tensor:
    """LRP by the usual rules, without a reference."""
    relevance: Tensor = explain(model, x, target=score).relevance
    return relevance


METHODS: dict[str, tuple[str, Callable[[nn.Module, Tensor, Score], Tensor]]] = {
    "gradcam": ("GradCAM", gradcam),
    "gradient-input": ("gradient × input", gradient_input),
    "ig": ("integrated gradients", integrated_gradients),
    "lrp": ("LRP, no reference", lrp),
}
"""Title and function of each method, by name."""


def check_methods(names: Iterable[str]) -> None:
    """Refuse a name that is not in `METHODS`."""
    for name in names:
        if name not in METHODS:
            raise ValueError(f"Unknown method {name!r}: beside ours, {', '.join(METHODS)} can be drawn.")


def maps_beside(model: nn.Module, x: Tensor, score: Score, names: Iterable[str]) -> dict[str, Tensor]:
    """The maps of other methods for one sample x (1, channels, height, width), by title: (channels, height, width)."""
    return {title: compute(model, x, score)[0].float().cpu() for title, compute in (METHODS[name] for name in names)}
