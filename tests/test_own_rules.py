"""Rules and maps that users write, and numbers as they give them, on the fast paths: what held without them holds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import plrp
from plrp import rules
from plrp.tape.maps import LinearMap, Weight


def _small() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 9, 3), nn.ReLU(), nn.Conv2d(9, 4, 1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(5)).eval()


def _both(model: nn.Module, x: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    model(x)
    found = plrp.explain(model, x, **options).relevance
    with plrp.reference():
        return found, plrp.explain(model, x, **options).relevance


@pytest.mark.parametrize("epsilon", [1, torch.tensor(0.1), 0.25])
@pytest.mark.parametrize("rule", [rules.ZPlus, rules.Epsilon])
def test_any_number_is_an_epsilon(rule: Any, epsilon: Any) -> None:
    everywhere = plrp.Composite([(plrp.composites.is_any, rule(epsilon))], name="one")
    found, expected = _both(_small(), torch.rand(2, 3, 12, 12), composite=everywhere)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


class Constant(rules.Rule):
    """Contributions of a constant in place of the input, one for all samples."""

    def branches(self, map: Any, x: Tensor, z: Tensor | None, nonnegative: bool) -> list[rules.Branch]:
        part = rules.Part(torch.full_like(x[:1], 2.0), Weight(map.weight.abs()))
        return [rules.Branch(map, (part,), one_sign=True)]


class Viewing(rules.ZPlus):
    """Looks at its input in the layout that the model gave it."""

    def branches(self, map: Any, x: Tensor, z: Tensor | None, nonnegative: bool) -> list[rules.Branch]:
        assert x.view(x.shape[0], -1).shape[0] == x.shape[0]
        return super().branches(map, x, z, nonnegative)


@pytest.mark.parametrize("rule", [Constant(), Viewing()])
def test_rules_of_users_get_what_they_got(rule: rules.Rule) -> None:
    x = torch.rand(3, 3, 12, 12)
    middle = plrp.Composite([(lambda op: op.name == "2", rule), (plrp.composites.is_any, rules.ZPlus())], name="own")
    found, expected = _both(_small(), x, composite=middle)
    assert found.shape == x.shape
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    first = plrp.Composite([(plrp.composites.is_any, rules.ZPlus())], first=rule, name="own")
    found, expected = _both(_small(), x, composite=first)
    assert found.shape == x.shape
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


class Same(LinearMap):
    """A map that returns what it is given."""

    def apply(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return x

    def transpose(self, s: Tensor, weight: Tensor, like: Tensor) -> Tensor:
        return s.clone()

    def with_parameters(self, weight: Tensor, bias: Tensor | None) -> LinearMap:
        return Same(weight, bias)


class Identical(rules.Rule):
    """Contributions of the input itself."""

    def branches(self, map: Any, x: Tensor, z: Tensor | None, nonnegative: bool) -> list[rules.Branch]:
        return [rules.Branch(Same(map.weight, None), (rules.Part(x, map.whole),))]


def test_nothing_that_others_hold_is_written_over() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 36, 4)).eval()
    x = torch.randn(2, 3, 6, 6)
    before = x.clone()
    composite = plrp.Composite([(plrp.composites.is_any, rules.Epsilon())], first=Identical(), name="same")
    found, expected = _both(model, x, composite=composite)
    assert torch.equal(x, before)
    assert torch.equal(found, expected)


class Weighted(nn.Module):
    """A product of a transposed map with a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.vector = nn.Conv1d(4, 6, 3), nn.Parameter(torch.randn(6))

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).relu().transpose(1, 2) @ self.vector


@pytest.mark.parametrize("rule", [rules.ZPlus(), rules.AlphaBeta(), rules.WSquare(), rules.Gamma()])
def test_weights_of_any_number_of_axes_are_left_in_their_layout(rule: rules.Rule) -> None:
    torch.manual_seed(0)
    everywhere = plrp.Composite([(plrp.composites.is_any, rule)], name="one")
    found, expected = _both(Weighted().eval(), torch.rand(2, 4, 20), composite=everywhere)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_kept_layers_can_be_viewed_as_vectors() -> None:
    model, x = _small(), torch.rand(2, 3, 12, 12)
    model(x)
    explanation = plrp.explain(model, x, layers=True)
    for relevance in explanation.layers.values():
        assert relevance.view(2, -1).shape[0] == 2


class Silent(rules.Rule):
    """States nothing."""

    def branches(self, map: Any, x: Tensor, z: Tensor | None, nonnegative: bool) -> list[rules.Branch]:
        return []


def test_a_rule_without_branches_is_named_with_its_layer() -> None:
    model, x = _small(), torch.rand(1, 3, 12, 12)
    model(x)
    composite = plrp.Composite([(plrp.composites.is_conv, Silent()), (plrp.composites.is_any, rules.Epsilon())])
    with pytest.raises(ValueError, match=r"Silent\(\) has no branches for layer '4'"):
        plrp.explain(model, x, composite=composite)


def test_words_are_no_epsilon() -> None:
    with pytest.raises(TypeError, match="epsilon is a number"):
        rules.Epsilon("a")  # type: ignore[arg-type]


def test_steps_without_a_choice_of_rule_are_told_from_unknown_names() -> None:
    model, x = _small(), torch.rand(1, 3, 12, 12)
    model(x)
    with pytest.raises(ValueError, match="'relu' is no conv or linear layer"):
        plrp.explain(model, x, layers=["relu"])
    with pytest.raises(ValueError, match="no layer 'rulu'"):
        plrp.explain(model, x, layers=["rulu"])
