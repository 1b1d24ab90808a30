"""How one operation hands its relevance down.

A rule for a layer states its *branches*: contributions n_jk of input j to output k, the bias's part of their sum,
and which share of R_k the branch hands down. Everything else is common to all rules:

    d_k = Σ_j n_jk + bias_k        R_j = Σ_k n_jk · share_k R_k / (d_k + ε sign d_k)

The contributions of a branch are sums of parts, n_jk = Σ input_j · weight_jk, so that a part costs one `apply` and one
`transpose` of the layer's map. Relevance that does not reach the inputs is booked: to the bias, to ε, or as created.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .tape.maps import Convolution, Dense, LinearMap, Replayed, Weight

__all__ = [
    *("AlphaBeta", "Centred", "Epsilon", "Flat", "Gamma", "Pass", "Rule", "SignedZPlus", "WSquare", "ZBox", "ZPlus"),
    "Zero",
]

Bound = float | Tensor | None
EPSILON = 1e-6
ORPHANED = 1e-6  # a neuron is orphaned if its contributions cancel to this share of their magnitudes
EPSILON_HALF = 1e-3  # activations in half precision are that coarse


class Part(NamedTuple):
    """One summand of a branch's contributions: n_jk = input_j · weight_jk."""

    input: Tensor
    weight: Weight
    unit: bool = False  # the input is all ones: nothing to multiply with


@dataclass
class Branch:
    """Contributions, and how much relevance they share out."""

    map: LinearMap
    parts: tuple[Part, ...]
    bias: Tensor | None = None
    share: Tensor | float = 1.0
    one_sign: bool = False  # all contributions and the bias are ≥ 0: so is the denominator
    denominator: Tensor | None = None  # where it is known without computing

    def contributions(self, mask: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        """Σ_j n_jk, over the survivors alone if a mask is given, plus a bias if one is given."""
        inputs = [part.input if mask is None else part.input * mask for part in self.parts]
        total = self.map.apply(inputs[0], self.parts[0].weight.full, bias)
        for source, part in zip(inputs[1:], self.parts[1:], strict=True):
            total = total + self.map.apply(source, part.weight.full)
        return total

    def magnitudes(self, mask: Tensor) -> Tensor:
        """Σ_j mask_j |n_jk|: the scale of a sum of contributions."""
        # The parts of a branch of mixed sign never share an input (x⁺ and x⁻), so |n| is the sum of theirs.
        return sum(self.map.apply((p.input * mask).abs(), p.weight.full.abs()) for p in self.parts)  # type: ignore[return-value]

    def by_sign(self) -> tuple[Branch, Branch]:
        """The positive contributions and the negative ones, each as a branch of its own, without the bias."""
        sides = [
            (part.weight, side, one_side)
            for part in self.parts
            for side, one_side in ((1, part.input.clamp(min=0)), (-1, part.input.clamp(max=0)))
            # A side without inputs contributes nothing; to ask is free on a CPU, and elsewhere waits for the device.
            if (side > 0 and part is self.parts[0]) or not one_side.is_cpu or one_side.any()
        ]
        positive, negative = (
            Branch(self.map, tuple(Part(one_side, weight.cut(sign * side)) for weight, side, one_side in sides))
            for sign in (1, -1)
        )
        return positive, negative

    def part_of(self, relevance: Tensor) -> Tensor:
        """share_k R_k: the relevance of this branch."""
        return relevance if isinstance(self.share, float) and self.share == 1.0 else relevance * self.share

    def hand(self, s: Tensor, like: Tensor, mask: Tensor | None = None) -> Tensor:
        """Σ_k n_jk s_k, in the shape of the layer's input."""
        total: Any = None
        for part in self.parts:
            weight = part.weight.full
            term = self.map.transpose(s, weight, like) if part.unit else self.map.hand(s, weight, part.input, like)
            total = term if total is None else total + term
        return total if mask is None else total * mask


@dataclass
class FirstPass:
    """The numbers of a branch in the first pass: PLRP-M's second pass starts from them."""

    branch: Branch
    given: Tensor  # share_k R_k
    s: Tensor  # given_k / stabilised d_k
    denominator: Tensor  # d_k
    epsilon: float


def stabilise(d: Tensor, epsilon: float, one_sign: bool) -> Tensor:
    """d + ε sign(d), with sign(0) = +1. (Where d = −0.0 all contributions are zero, so its sign does not matter.)"""
    if one_sign:
        return d + epsilon
    return d + torch.copysign(torch.full_like(d, epsilon), d)


def quotient(relevance: Tensor, d: Tensor, epsilon: float, one_sign: bool) -> Tensor:
    """R / (d + ε sign d); where ε = 0 and d = 0 nothing is handed down."""
    if epsilon == 0:
        s = (relevance / d).nan_to_num_(0.0, 0.0, 0.0)  # to compare d with 0 would cost six times that
        return s.add_(relevance, alpha=0)  # a relevance that is no number stays none
    return relevance / stabilise(d, epsilon, one_sign)


class Rule(ABC):
    """How a conv or linear layer hands its relevance down."""

    epsilon: float | None = None  # None: 1e-6, larger in half precision
    needs_output = False  # whether branches() reads the layer's output

    def __init__(self, epsilon: float | None = None) -> None:
        if epsilon is not None:  # else the class may have one
            self.epsilon = nonnegative("epsilon", epsilon)

    @abstractmethod
    def branches(self, map: LinearMap, x: Tensor, z: Tensor | None, nonnegative: bool) -> list[Branch]:
        """The branches of this rule for a layer that read x and gave z; `nonnegative`: x ≥ 0 is known."""

    @property
    def key(self) -> tuple[Any, ...]:
        """The identity of a rule: its type and settings, tensors by their id."""
        settings = ((k, id(v) if isinstance(v, Tensor) else v) for k, v in vars(self).items())
        return (type(self), *settings)

    @property
    def name(self) -> str:
        """How the rule is called in tables."""
        return repr(self)

    def __repr__(self) -> str:
        shown = ", ".join(f"{k}={_short(v)}" for k, v in vars(self).items() if v is not None)
        return f"{type(self).__name__}({shown})"


class Epsilon(Rule):
    """LRP-ε: n = xw, bias in the denominator (Bach et al. 2015)."""

    needs_output = True

    def branches(self, map: LinearMap, x: Tensor, z: Tensor | None, nonnegative: bool) -> list[Branch]:
        """One branch; its denominator is the layer's output."""
        return [Branch(map, (Part(x, map.whole),), map.bias, denominator=z)]


class Zero(Epsilon):
    """LRP-0: ε = 0. Outputs that are exactly zero hand nothing down."""

    def __init__(self) -> None:
        super().__init__(0.0)

    def __repr__(self) -> str:
        return "Zero()"


class ZPlus(Rule):
    """LRP-z⁺: positive contributions only, n = (xw)⁺, bias b⁺ (Montavon et al. 2017)."""

    def branches(self, map: LinearMap, x: Tensor, z: Tensor | None, nonnegative: bool) -> list[Branch]:
        """One branch of positive contributions."""
        return [_positive(map, x, nonnegative)]


class SignedZPlus(ZPlus):
    """LRP-z⁺ for outputs of either sign: z > 0 hands down to the contributions (xw)⁺ and b⁺, z < 0 to (xw)⁻ and b⁻.

    It takes the place of z⁺ below an activation that is not zero at zero (sigmoid, softplus, exp). There an output
    z < 0 carries relevance, which z⁺ would hand to the inputs that speak against it.
    """

    needs_output = True

    def branches(self, map: LinearMap, x: Tensor, z: Tensor | None, nonnegative: bool) -> list[Branch]:
        """A branch for outputs above zero and one for those below."""
        assert z is not None
        positive, negative = _positive(map, x, nonnegative), _negative(map, x, nonnegative)
        positive.share, negative.share = (z > 0).to(x.dtype), (z < 0).to(x.dtype)
        return [positive, negative]


class AlphaBeta(Rule):
    """LRP-αβ: positive contributions times α, negative ones times −β, α − β = 1 (Bach et al. 2015)."""

    def __init__(self, alpha: float = 2.0, beta: float = 1.0, epsilon: float | None = None) -> None:
        if beta < 0 or abs(alpha - beta - 1) > 1e-9:
            raise ValueError(f"AlphaBeta needs alpha − beta = 1 and both ≥ 0, got {alpha} and {beta}.")
        self.alpha, self.beta = float(alpha), float(beta)
        super().__init__(epsilon)

    def branches(self, map: LinearMap, x: Tensor, z: Tensor | None, nonnegative: bool) -> list[Branch]:
        """A branch of positive and one of negative contributions."""
        positive = _positive(map, x, nonnegative)
        positive.share = self.alpha
        if self.beta == 0:
            return [positive]
        negative = _negative(map, x, nonnegative)
        negative.share = -self.beta
        return [positive, negative]


class Gamma(Rule):
    """LRP-γ, for inputs and outputs of any sign (Montavon et al. 2019, Andéol et al. 2021).

    Outputs z > 0 favour positive contributions, n = xw + γ(xw)⁺; outputs z < 0 negative ones; bias likewise.
    """

    needs_output = True

    def __init__(self, gamma: float = 0.25, epsilon: float | None = None) -> None:
        if not gamma >= 0:
            raise ValueError(f"Gamma needs gamma ≥ 0, got {gamma}.")
        self.gamma = float(gamma)
        super().__init__(epsilon)

    def branches(self, map: LinearMap, x: Tensor, z: Tensor | None, nonnegative: bool) -> list[Branch]:
        """A branch for outputs above zero and one for those below."""
        assert z is not None
        up = Weight(torch.add(map.weight, map.positive.full, alpha=self.gamma))
        down = Weight(torch.add(map.weight, map.negative.full, alpha=self.gamma))
        both = []
        for sign, toward, away in ((1, up, down), (-1, down, up)):
            live = (z > 0) if sign > 0 else (z < 0)
            bias = map.bias
            if bias is not None:
                bias = bias + self.gamma * (bias.clamp(min=0) if sign > 0 else bias.clamp(max=0))
            both.append(Branch(map, _sided(x, nonnegative, toward, away), bias, share=live.to(x.dtype)))
        return both


class Centred(Epsilon):
    """LRP-ε for one-hot inputs, relative to the mean letter: n = x(w − w̄), w̄ the mean of w over the letters.

    Where a position holds one letter, a number added to the weights of all letters is a bias and nothing else. So how
    much ε gives to a letter is arbitrary; its difference to the mean letter is not, and agrees with the effect of
    an exchange of the letter (Majdandzic et al. 2023 correct gradients so). The mean letter's share, Σ xw̄, is booked
    with the bias. Letters are axis 1 of a convolution's input; in any other layer this is LRP-ε.
    """

    def branches(self, map: LinearMap, x: Tensor, z: Tensor | None, nonnegative: bool) -> list[Branch]:
        """One branch; its denominator is the layer's output."""
        assert z is not None
        letters = isinstance(map, Convolution) and not map.transposed and map.groups == 1 and x.shape[1] > 1
        if not letters:
            return super().branches(map, x, z, nonnegative)
        centred = Weight(map.weight - map.weight.mean(1, keepdim=True))
        return [Branch(map, (Part(x, centred),), z - map.apply(x, centred.full), denominator=z)]


class ZBox(Rule):
    """LRP-z^B for inputs in a box: n = (x − low)w⁺ + (x − high)w⁻ (Montavon et al. 2017).

    `low` and `high` are numbers or tensors that broadcast against the input; left out, they are each sample's own
    smallest and largest value. An input one rounding outside the box lies on its edge.
    """

    def __init__(self, low: Bound = None, high: Bound = None, epsilon: float | None = None) -> None:
        self.low, self.high = low, high
        super().__init__(epsilon)

    def branches(self, map: LinearMap, x: Tensor, z: Tensor | None, nonnegative: bool) -> list[Branch]:
        """One branch of two parts, both ≥ 0 and exactly zero at their edge of the box."""
        low = _bound(self.low, x, torch.amin)
        high = _bound(self.high, x, torch.amax)
        rounding = torch.finfo(x.dtype).eps * torch.maximum(low.abs(), high.abs())
        if (x < low - rounding).any() or (x > high + rounding).any():
            raise ValueError(
                f"ZBox: the input leaves the box [{_short(self.low)}, {_short(self.high)}] "
                f"(it spans {x.min():.4g} to {x.max():.4g}); give the bounds of your data."
            )
        above, below = (x - low).clamp(min=0), (x - high).clamp(max=0)
        return [Branch(map, (Part(above, map.positive), Part(below, map.negative)), one_sign=True)]


class WSquare(Rule):
    """LRP-w²: n = w², whatever the input; b² in the denominator (Montavon et al. 2017, as Zennit has it)."""

    def branches(self, map: LinearMap, x: Tensor, z: Tensor | None, nonnegative: bool) -> list[Branch]:
        """One branch that looks at the weights alone."""
        bias = None if map.bias is None else map.bias**2
        return [Branch(map, (Part(map.ones(x).contiguous(), Weight(map.weight**2), unit=True),), bias, one_sign=True)]


class Flat(Rule):
    """LRP-♭: every input of a neuron receives the same, n = 1 (Lapuschkin et al. 2019)."""

    def branches(self, map: LinearMap, x: Tensor, z: Tensor | None, nonnegative: bool) -> list[Branch]:
        """One branch with all weights one."""
        return [Branch(map.flat, (Part(map.ones(x), map.flat.whole, unit=True),), one_sign=True)]


class Pass(Rule):
    """Relevance stays where it is; for layers whose output has the shape of their input."""

    def __init__(self) -> None:
        super().__init__()

    def branches(self, map: LinearMap, x: Tensor, z: Tensor | None, nonnegative: bool) -> list[Branch]:
        """No branch: relevance is handed through as it is."""
        return []


class Differences(Rule):
    """A rule on the differences of a linear layer's outputs, z_t − z_k = Σ_j x_j (w_jt − w_jk) + b_t − b_k.

    Log-odds are explained on this layer (Montavon et al. 2019). `rule` is the layer's own, `classes` t of each sample.
    """

    def __init__(self, rule: Rule, classes: Tensor) -> None:
        super().__init__(rule.epsilon)
        self.rule, self.classes = rule, tuple(classes.tolist())

    @property
    def name(self) -> str:
        """The name of the layer's own rule: pieces of a batch have different classes and the same rules."""
        return self.rule.name

    def branches(self, map: LinearMap, x: Tensor, z: Tensor | None, nonnegative: bool) -> list[Branch]:
        """The rule's own branches, of a layer with these weights: one for all samples if they share t."""
        t = torch.tensor(self.classes[:1] if len(set(self.classes)) == 1 else self.classes)
        weight, bias = (
            map.weight[t][:, None] - map.weight,
            None if map.bias is None else map.bias[t][:, None] - map.bias,
        )
        layer: LinearMap = Replayed(weight, bias, _each)
        if len(t) == 1:
            layer = Dense(weight[0], None if bias is None else bias[0])
        z = layer.apply(x, layer.weight, layer.bias) if self.rule.needs_output else None
        return self.rule.branches(layer, x, z, nonnegative)


def _each(x: Tensor, weight: Tensor) -> Tensor:
    """Each sample x (batch, in) by its own weight (samples, out, in); a batch may hold the samples several times."""
    return torch.einsum("cbj,bkj->cbk", x.unflatten(0, (-1, len(weight))), weight).flatten(0, 1)


def _positive(map: LinearMap, x: Tensor, nonnegative: bool) -> Branch:
    """n = (xw)⁺ = x⁺w⁺ + x⁻w⁻."""
    bias = None if map.bias is None else map.bias.clamp(min=0)
    return Branch(map, _sided(x, nonnegative, map.positive, map.negative), bias, one_sign=True)


def _negative(map: LinearMap, x: Tensor, nonnegative: bool) -> Branch:
    """n = (xw)⁻ = x⁺w⁻ + x⁻w⁺."""
    bias = None if map.bias is None else map.bias.clamp(max=0)
    return Branch(map, _sided(x, nonnegative, map.negative, map.positive), bias)


def _sided(x: Tensor, nonnegative: bool, up: Weight, down: Weight) -> tuple[Part, ...]:
    """n = x⁺ · up + x⁻ · down; x⁻ is left out where x ≥ 0 is known."""
    return (Part(x, up),) if nonnegative else (Part(x.clamp(min=0), up), Part(x.clamp(max=0), down))


def _bound(bound: Bound, x: Tensor, extreme: Any) -> Tensor:
    if bound is None:
        return extreme(x.flatten(1), 1).view(-1, *(1,) * (x.dim() - 1)).expand_as(x)
    return torch.as_tensor(bound, dtype=x.dtype, device=x.device).expand_as(x)


def nonnegative(name: str, value: float | None) -> float | None:
    """A setting as a float ≥ 0, or None; refused otherwise."""
    if isinstance(value, str):
        raise TypeError(f"{name} is a number ≥ 0, got {value!r}.")
    if value is not None and not value >= 0:
        raise ValueError(f"{name} must be ≥ 0, got {value}.")
    return None if value is None else float(value)


def _short(value: Any) -> str:
    if isinstance(value, Tensor):
        return "tensor" if value.numel() > 1 else f"{value.item():g}"
    return "own extreme" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
