"""γ and z⁺ for inputs of any sign, without bias and ε, in one branch: the rules of differences to a reference."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from plrp.rules import Branch, Gamma, Rule, SignedZPlus
from plrp.tape.maps import LinearMap


@dataclass(kw_only=True)
class SignedBranch(Branch):
    """Contributions n = xw + g σ|xw|, σ the sign of each output z: those of γ for g = γ / (2 + γ), of z⁺ for g = 1.

    Up to a factor, which cancels in n/d, they are xw + γ(xw)⁺ where z > 0 and xw + γ(xw)⁻ where z < 0. The parts are
    x, W and |x|, g|W|. With Σ_j xw = z known, d takes one convolution and relevance two; the two branches of
    `rules.Gamma`, of two parts each, take four and four.
    """

    z: Tensor  # the layer's output

    def contributions(self, mask: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        """d = z + σ Σ_j g|xw|."""
        assert mask is None
        size = self.parts[1]
        return self.map.apply(size.input, size.weight.full).mul_(self.z.sign()).add_(self.z)

    def hand(self, s: Tensor, like: Tensor, mask: Tensor | None = None) -> Tensor:
        """x Wᵀs + |x| g|W|ᵀ(σs)."""
        whole, size = self.parts
        received = self.map.hand(s, whole.weight.full, whole.input, like)
        return received.add_(self.map.hand(s * self.z.sign(), size.weight.full, size.input, like))


def share(rule: Rule, layer: LinearMap) -> float | None:
    """g, where a rule has this form for a layer."""
    if rule.epsilon != 0 or layer.bias is not None:
        return None
    return rule.gamma / (2 + rule.gamma) if type(rule) is Gamma else 1.0 if type(rule) is SignedZPlus else None
