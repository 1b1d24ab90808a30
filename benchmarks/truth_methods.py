"""The methods of the bench of truth. A composite, a pruning or a peer more is a line in its table."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

import plrp
from plrp import pruning as cutting
from plrp.composites import is_any, is_conv
from plrp.ledger import signed_mass
from plrp.pruning import Cut, Site, signed_parts, threshold
from plrp.rules import Centred, Epsilon, Flat, Gamma, Rule
from truth_networks import MEAN, STD, Case, VisionTransformer

BOXES = {
    "images": (((0 - MEAN) / STD).reshape(1, 3, 1, 1), ((1 - MEAN) / STD).reshape(1, 3, 1, 1)),
    "sequences": (torch.tensor(0.0), torch.tensor(1.0)),
}


def gamma(value: float, *, first: Rule | None = None) -> plrp.Composite:
    """γ for convolutions (0: ε), ε for linear layers, and a rule of their own for first layers or not."""
    rule = Gamma(value) if value else Epsilon()
    return plrp.Composite([(is_conv, rule), (is_any, Epsilon())], first=first, name=f"gamma {value:g}")


def named(name: str, **settings: Any) -> Callable[[str], plrp.Composite]:
    return lambda kind: plrp.composite(name, **settings)


def box(kind: str) -> plrp.Composite:
    low, high = BOXES[kind]
    return plrp.composite("epsilon-gamma-box", low=low, high=high)


IMAGES, SEQUENCES, HYBRIDS = ("images",), ("sequences",), ("hybrids",)
ATTENTION = ("attention", *HYBRIDS)
BOTH = IMAGES + SEQUENCES
COMPOSITES: dict[str, tuple[tuple[str, ...], Callable[[str], plrp.Composite]]] = {
    "epsilon-plus-flat": (BOTH, named("epsilon-plus-flat")),
    "epsilon-plus": (BOTH, named("epsilon-plus")),
    "epsilon-alpha2-beta1-flat": (BOTH, named("epsilon-alpha2-beta1-flat")),
    "epsilon-alpha2-beta1": (BOTH, named("epsilon-alpha2-beta1")),
    "epsilon-gamma-box": (BOTH, box),
    "epsilon": (BOTH, named("epsilon")),
    "epsilon-gamma": (BOTH, named("epsilon-gamma")),
    "gamma 0.1": (SEQUENCES, lambda kind: gamma(0.1)),
    "gamma 0.25": (BOTH, lambda kind: gamma(0.25)),
    "gamma 1": (BOTH, lambda kind: gamma(1.0)),
    "gamma 0.25, flat": (IMAGES, lambda kind: gamma(0.25, first=Flat())),
    "gamma 1, flat": (IMAGES, lambda kind: gamma(1.0, first=Flat())),
    "epsilon, centred": (SEQUENCES, lambda kind: gamma(0.0, first=Centred())),
    "epsilon-gamma-centred": (SEQUENCES, named("epsilon-gamma-centred")),
    "gamma 0.25, centred": (SEQUENCES, lambda kind: gamma(0.25, first=Centred())),
    "gamma 1, centred": (SEQUENCES, lambda kind: gamma(1.0, first=Centred())),
    "epsilon-plus-flat, sums γ 1": (IMAGES, named("epsilon-plus-flat", residual_gamma=1.0)),
    "epsilon, sums γ 1": (BOTH, named("epsilon", residual_gamma=1.0)),
    "epsilon-gamma, sums γ 1": (SEQUENCES, named("epsilon-gamma", residual_gamma=1.0)),
    "attnlrp": (ATTENTION, named("attnlrp")),
    "cp-lrp": (ATTENTION, named("cp-lrp")),
    "attnlrp, sums γ 0.25": (ATTENTION, named("attnlrp", residual_gamma=0.25)),
    "attnlrp, sums γ 1": (ATTENTION, named("attnlrp", residual_gamma=1.0)),
    "cp-lrp, sums γ 0.25": (ATTENTION, named("cp-lrp", residual_gamma=0.25)),
    "cp-lrp, sums γ 1": (ATTENTION, named("cp-lrp", residual_gamma=1.0)),
    "attnlrp, γ 0.25": (ATTENTION, named("attnlrp", gamma=0.25)),
    "cp-lrp, γ 0.25": (ATTENTION, named("cp-lrp", gamma=0.25)),
}
"""Which composites there are, and the kinds of network each is tried on."""
ALL_PRUNINGS = {
    "images": ("epsilon-plus-flat",),
    "sequences": ("epsilon-plus", "epsilon-gamma", "epsilon-gamma-centred"),
    "attention": ("attnlrp", "cp-lrp"),
    "hybrids": ("attnlrp", "cp-lrp"),
}  # composites that every pruning is tried on; the others only get FEW
SHARES = (0.01, 0.02, 0.05, 0.1, 0.15, 0.3, 0.5)
PRUNINGS: dict[str, plrp.Pruning | None] = {
    "LRP": None,
    **{f"λ {p}": plrp.Pruning(p, unit="neuron") for p in SHARES},
    **{f"λ by position {p}": plrp.Pruning(p, unit="position") for p in (0.05, 0.15, 0.3)},
    **{f"λ by channel {p}": plrp.Pruning(p, unit="channel") for p in (0.05, 0.15, 0.3)},
    **{f"M {p}": plrp.Pruning(p, redistribution="M", unit="neuron") for p in (0.05, 0.15)},
    **{f"M± {p}": plrp.Pruning(p, redistribution="M-sign", unit="neuron") for p in (0.05, 0.15)},
    "λ gain 1": plrp.Pruning(None, sparsity_gain=1.0, unit="neuron"),
}
FEW = ("LRP", "λ 0.05")
NEURON = {"unit": "neuron"}
THINNED: dict[str, plrp.Pruning | None] = {
    "LRP": None,
    **{f"λ {p}": plrp.Pruning(p, **NEURON) for p in (0.05, 0.1, 0.2, 0.3)},
    **{f"M± {p}": plrp.Pruning(p, redistribution="M-sign", **NEURON) for p in (0.05, 0.1)},
    **{f"λ by position {p}": plrp.Pruning(p, unit="position") for p in (0.05, 0.15, 0.3)},
}
"""The prunings of differences to a reference; `DIFFERENCES` says which are tried where."""
BY_DEPTH = {f"λ {p}, {where}": (p, where == "more above") for p in (0.1, 0.2) for where in ("more above", "more below")}
"""p that grows (or falls) evenly from 0 to twice this share, from the lowest pruned tensor to the highest."""
NEARBY = {f"λ {p}, per 50 bases": p for p in (0.1, 0.2, 0.3)}
"""A threshold for each stretch of 50 positions, so that a weak signal far off is not measured by a strong one."""
LAMBDA, M_SIGN = ("λ 0.05", "λ 0.1", "λ 0.2", "λ 0.3"), ("M± 0.05", "M± 0.1")
ALL = ("LRP", *LAMBDA, *M_SIGN)
DEEP = {"sequences": ("epsilon-gamma", "rescale against zeros"), "images": (), "attention": (), "hybrids": ()}
TOKENS = ("λ by position 0.05", "λ by position 0.15", "λ by position 0.3")
DIFFERENCES: dict[str, dict[str, dict[str, tuple[str, ...]]]] = {
    "images": {
        "blur:8": {"rescale": ("LRP", "λ 0.05", "λ 0.1", "λ 0.2", "M± 0.05"), "rescale-gamma": ("LRP", *LAMBDA)},
        "grey": {"rescale-gamma": ("LRP",)},
        "zeros": {"rescale": FEW, "rescale-gamma": FEW},
    },
    "sequences": {
        "zeros": {
            "rescale": ALL, "rescale-gamma": ("LRP", *LAMBDA), "rescale-gamma 1": ("LRP",), "rescale-plus": FEW,
        },
        "shuffled:4": {
            "rescale": ("LRP", *LAMBDA, "M± 0.1"), "rescale-gamma": ("LRP", "λ 0.1"), "rescale-plus": ("LRP",),
        },
        "ten orders of its bases": {"rescale": ("LRP",)},  # those of Captum's row
    },
    "hybrids": {
        reference: {"rescale": (*ALL, *TOKENS), "rescale-gamma": FEW} for reference in ("zeros", "shuffled:4")
    },
    "attention": {
        "zeros": {"rescale": (*ALL, *TOKENS), "rescale-gamma": ("LRP",)},
        "blur:4": {"rescale": ("LRP", *TOKENS)},
    },
}  # fmt: skip
"""Composites of the difference to a reference, by kind of network and reference, with the prunings of each."""
DEFAULTS = {
    "images": ("epsilon-plus-flat | LRP", "epsilon-plus-flat | λ 0.05", "epsilon-plus-flat | λ 0.15"),
    "sequences": ("epsilon-gamma | LRP", "epsilon-gamma | λ 0.05", "epsilon-plus | LRP", "epsilon-plus | λ 0.15"),
    "hybrids": ("attnlrp | LRP", "attnlrp | λ by position 0.05", "attnlrp | λ by position 0.15", "cp-lrp | LRP"),
    "attention": (
        *(f"{composite} | {pruning}" for composite in ALL_PRUNINGS["attention"] for pruning in (
            "LRP", "λ 0.05", "λ 0.15", "λ by position 0.05", "λ by position 0.15", "λ by channel 0.05",
            "λ by channel 0.15",
        )),
        "attnlrp, sums γ 1 | LRP", "cp-lrp, sums γ 1 | LRP",
    ),
}  # fmt: skip
"""What goes on to the finals in any case: the defaults of today, the paper's, and what a default is chosen from."""


DEFAULT = {
    "images": "epsilon-plus-flat | LRP",
    "sequences": "epsilon-gamma | LRP",
    "attention": "attnlrp | LRP",
    "hybrids": "attnlrp | LRP",
}
"""The default of today, unpruned: tables say how far a row is from it."""


@dataclass(frozen=True)
class Method:
    """A composite with a pruning, with or without a reference, or a peer (`pruning` is None)."""

    name: str
    pruning: str | None = None
    reference: str | None = None

    @property
    def label(self) -> str:
        name = self.name if self.reference is None else f"{self.name} against {self.reference}"
        return name if self.pruning is None else f"{name} | {self.pruning}"


def methods(kind: str) -> list[Method]:
    """All methods for a kind of network."""
    found = [
        Method(composite, pruning)
        for composite, (kinds, _) in COMPOSITES.items()
        for pruning in PRUNINGS
        if kind in kinds
        if composite in ALL_PRUNINGS[kind] or pruning in FEW
    ]
    found += [
        Method(composite, pruning, reference)
        for reference, composites in DIFFERENCES[kind].items()
        for composite, prunings in composites.items()
        for pruning in prunings
    ]
    for composite in DEEP[kind]:
        name, _, reference = composite.partition(" against ")
        found += [Method(name, pruning, reference or None) for pruning in (*BY_DEPTH, *NEARBY)]
    return [*found, *(Method(peer) for peer, (kinds, _) in PEERS.items() if kind in kinds)]


def pruning_of(name: str, trace: plrp.Trace) -> plrp.Pruning | None:
    """A pruning by its name; p by depth needs to know the network's layers."""
    if name in BY_DEPTH:
        p, above = BY_DEPTH[name]
        sites = list(plrp.Pruning().plan(trace).values())  # input first
        layers = {
            op.name: 2 * p * (n if above else len(sites) - 1 - n) / (len(sites) - 1)
            for n, site in enumerate(sites)
            for op in site.readers
        }
        return plrp.Pruning(p, unit="neuron", layers=layers)
    if name in NEARBY:
        return plrp.Pruning(NEARBY[name], unit="neuron")
    return THINNED[name] if name in THINNED else PRUNINGS[name]


# --- peers, through Captum --------------------------------------------------------------------------------------------


def baseline(case: Case, count: int = 1) -> Tensor:
    """The mean colour for images (0 after normalisation), a quarter of every letter for sequences."""
    return torch.full_like(case.input, 0.25 if case.one_hot else 0.0).expand(count, *case.input.shape[1:])


def gradient_times_input(model: nn.Module, case: Case) -> Tensor:
    from captum.attr import InputXGradient

    return InputXGradient(model).attribute(case.input.clone().requires_grad_(), target=case.target)


def integrated_gradients(model: nn.Module, case: Case) -> Tensor:
    """32 steps from the baseline."""
    from captum.attr import IntegratedGradients

    how = {"n_steps": 32, "internal_batch_size": 8}
    return IntegratedGradients(model).attribute(case.input, baseline(case), target=case.target, **how)


def smooth_grad(model: nn.Module, case: Case) -> Tensor:
    """Gradient × input, averaged over 16 inputs with noise of 15% of the input's range."""
    from captum.attr import InputXGradient, NoiseTunnel

    torch.manual_seed(0)
    spread = 0.15 * float(case.input.max() - case.input.min())
    how = {"nt_type": "smoothgrad", "nt_samples": 16, "nt_samples_batch_size": 4, "stdevs": spread}
    return NoiseTunnel(InputXGradient(model)).attribute(case.input.clone(), target=case.target, **how)


def deep_lift(model: nn.Module, case: Case) -> Tensor:
    """Rescale rule; for images from the mean colour, for sequences the mean over ten of their own shuffles."""
    from captum.attr import DeepLift

    method = DeepLift(with_modules(model))
    if not case.one_hot:
        return method.attribute(case.input.clone(), baseline(case), target=case.target)
    total = torch.zeros_like(case.input)
    for reference in ten_orders(case.input):
        total += method.attribute(case.input.clone(), reference, target=case.target).detach()
    return total / 10


def ten_orders(x: Tensor) -> Tensor:
    """A sequence with its bases in ten random orders, (10, 1, 4, length)."""
    generator = torch.Generator().manual_seed(0)
    return torch.stack([x[:, :, torch.randperm(x.shape[2], generator=generator)] for _ in range(10)])


def deep_lift_zeros(model: nn.Module, case: Case) -> Tensor:
    """Rescale rule, from no letter at all."""
    from captum.attr import DeepLift

    return DeepLift(with_modules(model)).attribute(case.input.clone(), torch.zeros_like(case.input), target=case.target)


def deep_lift_blur(model: nn.Module, case: Case) -> Tensor:
    """Rescale rule, from the blurred photograph."""
    from captum.attr import DeepLift

    blurred = plrp.references.blur(8)(case.input)
    return DeepLift(with_modules(model)).attribute(case.input.clone(), blurred, target=case.target)


def grad_cam(model: nn.Module, case: Case) -> Tensor:
    """At the end of the convolutions, where pytorch-grad-cam's README takes it; without a sign."""
    from captum.attr import LayerAttribution, LayerGradCam

    layer = (model.layer4 if hasattr(model, "layer4") else model.features)[-1]
    found = LayerGradCam(model, layer).attribute(case.input, target=case.target, relu_attributions=True)
    whole = LayerAttribution.interpolate(found, tuple(case.input.shape[2:]), "bilinear")
    return whole.expand_as(case.input) / case.input.shape[1]


_WITH_MODULES: dict[int, tuple[nn.Module, nn.Module]] = {}


def with_modules(model: nn.Module) -> nn.Module:
    """A copy in which every ReLU is a module of its own: DeepLIFT's hooks see modules only, each once."""
    if id(model) not in _WITH_MODULES:
        try:
            graph = fx.symbolic_trace(copy.deepcopy(model))
        except Exception:  # control flow that depends on the input
            graph = None
        if graph is not None:
            named = dict(graph.named_modules())
            for number, node in enumerate(list(graph.graph.nodes)):
                function = node.op == "call_function" and node.target in (torch.relu, nn.functional.relu)
                if function or (node.op == "call_module" and isinstance(named[node.target], nn.ReLU)):
                    graph.add_submodule(f"own_relu_{number}", nn.ReLU())
                    with graph.graph.inserting_before(node):
                        fresh = graph.graph.call_module(f"own_relu_{number}", (node.args[0],))
                    node.replace_all_uses_with(fresh)
                    graph.graph.erase_node(node)
            graph.recompile()
        _WITH_MODULES[id(model)] = (model, model if graph is None else graph.eval())
    return _WITH_MODULES[id(model)][1]


def attention_rollout(model: nn.Module, case: Case) -> Tensor:
    """The product of the blocks' attention, heads averaged, half of it the skip; the class token's row, per patch."""
    assert isinstance(model, VisionTransformer)
    tokens = model.tokens(case.input)
    flow = torch.eye(tokens.shape[1])
    for block in model.transformer.layers:
        weights = block.self_attn(tokens, tokens, tokens)[1][0]
        flow = (weights + torch.eye(len(weights))) / 2 @ flow
        tokens = block(tokens)
    side = case.input.shape[-1] // case.tile
    per_patch = flow[0, 1:].reshape(1, 1, side, side) / case.input[0, :, : case.tile, : case.tile].numel()
    return nn.functional.interpolate(per_patch, scale_factor=case.tile).expand_as(case.input)


EVERYWHERE = BOTH + ATTENTION
PEERS: dict[str, tuple[tuple[str, ...], Callable[[nn.Module, Case], Tensor]]] = {
    "gradient × input": (EVERYWHERE, gradient_times_input),
    "integrated gradients": (EVERYWHERE, integrated_gradients),
    "SmoothGrad × input": (EVERYWHERE, smooth_grad),
    "DeepLIFT": (BOTH, deep_lift),  # its hooks do not see inside attention
    "DeepLIFT from zeros": (SEQUENCES, deep_lift_zeros),
    "DeepLIFT from blur:8": (IMAGES, deep_lift_blur),
    "Grad-CAM": (IMAGES, grad_cam),
    "attention rollout": (("attention",), attention_rollout),
    "random": (
        EVERYWHERE,
        lambda model, case: torch.randn(case.input.shape, generator=torch.Generator().manual_seed(0)),
    ),
}


@contextmanager
def per_stretch(width: int = 50) -> Iterator[None]:
    """Within this block, maps over a sequence are cut by a threshold for each stretch of `width` positions."""

    def decide(relevance: Tensor, site: Site, how: plrp.Pruning) -> Cut:
        whole = usual(relevance, site, how)
        if relevance.dim() != 3 or site.channel_axis != 1:
            return whole
        batch, channels, length = relevance.shape
        padded = nn.functional.pad(relevance, (0, -length % width)).unflatten(2, (-1, width)).transpose(1, 2)
        parts = signed_parts(padded.flatten(0, 1).flatten(1))  # (batch · stretches, channels · width)
        stays = torch.zeros_like(parts[0], dtype=torch.bool)
        for part, p in zip(parts, site.shares, strict=True):
            stays |= part > threshold(part, p)[:, None]
        stays = stays.view(batch, -1, channels, width).transpose(1, 2).flatten(2)[..., :length]
        rows, stays = site.value.samples.rows(relevance), site.value.samples.rows(stays)
        surviving = torch.where(stays, rows, 0.0)
        counts = rows.count_nonzero(1), surviving.count_nonzero(1)
        zero = torch.zeros_like(whole.theta[0])
        return Cut((zero, zero), signed_mass(rows), signed_mass(surviving), counts, stays)

    usual = cutting.decide
    cutting.decide = decide
    try:
        with plrp.plain_walk():
            yield
    finally:
        cutting.decide = usual


REFERENCES: dict[str, Any] = {"ten orders of its bases": ten_orders}
COMPOSITES_AGAINST: dict[str, Callable[[], plrp.Composite]] = {
    "rescale": lambda: plrp.composite("rescale"),
    "rescale-gamma": lambda: plrp.composite("rescale-gamma"),
    "rescale-gamma 1": lambda: plrp.composite("rescale-gamma", gamma=1.0),
    "rescale-plus": lambda: plrp.composite("rescale-plus"),
}


class Traces:
    """The recorded passes of one case: without a reference, and against each, recorded when first asked for."""

    def __init__(self, model: nn.Module, case: Case, kind: str) -> None:
        self.model, self.case, self.kind = model, case, kind
        self.known: dict[str | None, plrp.Trace] = {}

    def against(self, reference: str | None) -> plrp.Trace:
        if reference not in self.known:
            given = REFERENCES.get(reference or "", reference)
            self.known[reference] = plrp.trace(self.model, self.case.input, reference=given)
        return self.known[reference]

    def explained(self, method: Method) -> Any:
        """The relevance of the case by a method, in the input's shape."""
        if method.pruning is None:
            return PEERS[method.name][1](self.model, self.case).detach()
        trace = self.against(method.reference)
        against = method.reference is not None
        composite = COMPOSITES_AGAINST[method.name]() if against else COMPOSITES[method.name][1](self.kind)
        pruning = pruning_of(method.pruning, trace)
        with per_stretch() if method.pruning in NEARBY else nullcontext():
            return trace.explain(target=self.case.target, composite=composite, pruning=pruning).relevance

    @staticmethod
    def passes(method: Method) -> int:
        """Forward passes made before the walk: on the input, and on the (first) reference."""
        return 0 if method.pruning is None else 1 if method.reference is None else 2
