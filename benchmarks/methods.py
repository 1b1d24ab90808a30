"""The methods that are compared. A method is bound to a model and its input outside the timing; calling it explains."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torchvision
from torch import Tensor, nn

import plrp

Run = Callable[[], Any]
Method = Callable[[nn.Module, Tensor], Run]


def bound(explain: Callable[[nn.Module, Tensor], Any]) -> Method:
    """A method that has nothing to prepare."""
    return lambda model, x: partial(explain, model, x)


def forward(model: nn.Module, x: Tensor) -> Tensor:
    """What everything is measured in."""
    with torch.no_grad():
        return model(x)


def ours(pruning: plrp.Pruning | None, composite: str = "epsilon-plus-flat") -> Method:
    """A one-shot explanation, the recording of the forward pass included."""
    return bound(lambda model, x: plrp.explain(model, x, pruning=pruning, composite=composite).relevance)


def zennit(model: nn.Module, x: Tensor) -> Tensor:
    """Zennit's EpsilonPlusFlat with its canonizers; the target is found in the same pass, so none is wasted."""
    from zennit.composites import EpsilonPlusFlat
    from zennit.torchvision import ResNetCanonizer, VGGCanonizer

    canonizer = ResNetCanonizer() if isinstance(model, torchvision.models.ResNet) else VGGCanonizer()
    return by_zennit(model, x, EpsilonPlusFlat(canonizers=[canonizer]))


def by_zennit(model: nn.Module, x: Tensor, composite: Any) -> Tensor:
    """The relevance of the winning class's score by a composite of Zennit."""
    from zennit.attribution import Gradient

    with Gradient(model=model, composite=composite) as attributor:
        return attributor(x, lambda logits: torch.eye(logits.shape[1])[logits.argmax(1)] * logits.detach())[1]


def captum(model: nn.Module, x: Tensor) -> Tensor:
    """Captum's LRP, with z⁺ (its Alpha1Beta0) for convolutions."""
    from captum.attr import LRP
    from captum.attr._utils.lrp_rules import Alpha1_Beta0_Rule, EpsilonRule

    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.rule = Alpha1_Beta0_Rule()
        elif isinstance(module, nn.Linear | nn.BatchNorm2d | nn.AdaptiveAvgPool2d | nn.AvgPool2d | nn.MaxPool2d):
            module.rule = EpsilonRule()
    try:
        with torch.no_grad():
            target = model(x).argmax(1)
        return LRP(model).attribute(x, target=target)
    finally:
        for module in model.modules():
            if hasattr(module, "rule"):
                del module.rule


def autolrp(model: nn.Module, x: Tensor) -> Tensor:
    """autoLRP's composite: z⁺ for convolutions, ε elsewhere."""
    import autolrp as package

    wrapped = package.tensor(x)
    scores = model(wrapped)
    scores.max(1).values.sum().lrp(config=package.LRPConfig.composite())
    return wrapped.relevance


def gradient_times_input(model: nn.Module, x: Tensor) -> Tensor:
    """One backward pass by autograd, to the input only."""
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(leaf).max(1).values.sum(), leaf)
    return gradient * x


def conv_floor(model: nn.Module, x: Tensor) -> Run:
    """The model's forward pass, and one F and one B per convolution on the inputs it read, and nothing else.

    F is the convolution, B its gradient with respect to the input. Any LRP that hands relevance through every
    convolution with a denominator of its own does this much. Inputs and weights are recorded here, outside the timing;
    what F returns is handed to B.
    """
    calls: list[tuple[Tensor, nn.Conv1d | nn.Conv2d]] = []

    def record(module: Any, args: tuple[Tensor, ...]) -> None:
        calls.append((args[0].detach().clone(), module))

    convs = [m for m in model.modules() if isinstance(m, nn.Conv1d | nn.Conv2d)]
    if any(conv.padding_mode != "zeros" or isinstance(conv.padding, str) for conv in convs):
        raise NotImplementedError("The conv floor knows convolutions padded by a number of zeros only.")
    hooks = [conv.register_forward_pre_hook(record) for conv in convs]
    try:
        forward(model, x)
    finally:
        for hook in hooks:
            hook.remove()

    def run() -> None:
        with torch.no_grad():
            model(x)
            for value, conv in calls:
                how = conv.stride, conv.padding, conv.dilation, False, (0,) * len(conv.stride), conv.groups
                y = torch.ops.aten.convolution.default(value, conv.weight, None, *how)
                torch.ops.aten.convolution_backward.default(y, value, conv.weight, None, *how, (True, False, False))

    return run


METHODS: dict[str, Method] = {
    "plrp LRP": ours(None),
    "plrp λ 0.2": ours(plrp.Pruning(0.2)),
    "plrp λ 0.5": ours(plrp.Pruning(0.5)),
    "plrp M 0.2": ours(plrp.Pruning(0.2, redistribution="M")),
    "Zennit": bound(zennit),
    "Captum": bound(captum),
    "autoLRP": bound(autolrp),
    "grad × input": bound(gradient_times_input),
    "conv floor": conv_floor,
}
