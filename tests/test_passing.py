"""Operations between the layers hand relevance down by the formulas of their families, and book the rest."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import plrp
from plrp.passing import ratio

MASK = torch.tensor([True, False, True, True, False, True])


class Between(nn.Module):
    """A step between two layers."""

    def __init__(self, step: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.below, self.above, self.step = nn.Linear(4, 6), nn.Linear(6, 3), step

    def forward(self, x: Tensor) -> Tensor:
        return self.above(self.step(self.below(x)))


def explained(step: Any, **options: Any) -> tuple[plrp.Explanation, Tensor, Tensor]:
    """The explanation, the input of the step and the relevance of its output."""
    model = Between(step).double().eval()
    x = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = plrp.explain(model, x, target=0, layers=True, **options)
    return found, model.below(x).detach(), found.layers["above"]


@pytest.mark.parametrize("kind", ["add", "sub"])
def test_epsilon_has_the_sign_of_a_sum_of_nonnegative_terms(kind: str) -> None:
    """ε takes R − z R / (z + ε sign z), z = a ± b, where a, b ≥ 0 but a − b need not be."""
    found, h, r = explained(
        lambda h: getattr(torch, kind)(h.relu(), (-h).relu().flip(1)), composite=plrp.composite("attnlrp", epsilon=0.5)
    )
    z = getattr(torch, kind)(h.relu(), (-h).relu().flip(1))
    expected = r - z * r / (z + torch.where(z < 0, -0.5, 0.5))
    rows = [row["absorbed_epsilon"] for row in found.ledger if row["op"] == kind]
    assert rows == pytest.approx(expected.sum(1).tolist(), rel=1e-9)
    assert (kind == "sub") == bool((z < 0).any())


def test_epsilon_of_the_composite_is_that_of_norms_too() -> None:
    found, h, r = explained(
        lambda h: nn.functional.layer_norm(h, (6,)), composite=plrp.composite("attnlrp", epsilon=0.5)
    )
    z = nn.functional.layer_norm(h, (6,))
    expected = r - z * r / (z + torch.where(z < 0, -0.5, 0.5))
    rows = [row["absorbed_epsilon"] for row in found.ledger if row["op"] == "layer_norm"]
    assert rows == pytest.approx(expected.sum(1).tolist(), rel=1e-9)


def test_a_ratio_over_zero_is_one() -> None:
    above, below = torch.tensor([3.0, 3.0, 0.0, 3.0]), torch.tensor([1.0, 2.0, 0.0, 0.0])
    assert ratio(above, below).tolist() == [3.0, 1.5, 1.0, 1.0]


@pytest.mark.parametrize("rule", [plrp.rules.Gamma(), plrp.rules.SignedZPlus(), plrp.rules.Zero()], ids=repr)
def test_the_relevance_of_an_output_of_zero_is_booked(rule: plrp.rules.Rule) -> None:
    """These rules hand nothing down where z = 0, and w² gives relevance to such an output."""
    below, above = nn.Linear(3, 2, bias=False).double(), nn.Linear(2, 1, bias=False).double()
    with torch.no_grad():
        below.weight[0] = torch.tensor([1.0, -1.0, 0.0])
    model, x = nn.Sequential(below, above).eval(), torch.rand(2, 3, dtype=torch.float64) + 0.5
    x[:, 1] = x[:, 0]  # contributions that cancel
    composite = plrp.composite("epsilon").with_layers({"0": rule, "1": plrp.rules.WSquare()})
    found = plrp.explain(model, x, target=0, composite=composite)
    share = (above.weight[0, 0] ** 2 / (above.weight**2).sum()).item()
    rows = [row["absorbed_epsilon"] for row in found.ledger if row["layer"] == "0"]
    assert rows == pytest.approx((found.score * share).tolist(), rel=1e-4)
    assert found.closing().max() < 1e-12


CONSTANTS: dict[str, tuple[Any, Any]] = {
    "where with a keyword": (lambda h: torch.where(MASK, input=h, other=0.5), lambda h, r: (r * ~MASK).sum(1)),
    "pad with a keyword": (
        lambda h: torch.nn.functional.pad(h[:, :4], (1, 1), value=0.5),
        lambda h, r: r[:, [0, 5]].sum(1),
    ),
    "a constant base": (
        lambda h: h.new_full((3, 6), 0.5).scatter_add(1, torch.arange(6).expand(3, 6), h),
        lambda h, r: (0.5 * r / (h + 0.5)).sum(1),
    ),
    "a constant minus": (lambda h: 0.5 - h, lambda h, r: (0.5 * r / (0.5 - h)).sum(1)),
    "a constant minus some": (
        lambda h: torch.rsub(h, 0.5, alpha=2),
        lambda h, r: (0.5 * r / (0.5 - 2 * h)).sum(1),
    ),
    "an integer in a cat": (lambda h: torch.cat([h[:, :5], torch.full((3, 1), 3)], 1), lambda h, r: r[:, 5]),
    "an integer by where": (lambda h: torch.where(MASK, h, torch.tensor(3)), lambda h, r: (r * ~MASK).sum(1)),
    "a shift beside a mask": (
        lambda h: h + torch.where(MASK, 0.5, -1e4),
        lambda h, r: (0.5 * r / (h + 0.5))[:, MASK].sum(1),
    ),
    "a large shift": (lambda h: h + torch.full((6,), -1e4), lambda h, r: (-1e4 * r / (h - 1e4)).sum(1)),
    "masked entries": (lambda h: h + torch.where(MASK, 0.0, -200.0), lambda h, r: torch.zeros(3).double()),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_constant_is_booked_its_share(name: str) -> None:
    step, share = CONSTANTS[name]
    found, h, r = explained(step, composite="epsilon")
    expected = share(h, r)
    assert found.booked.total("absorbed_constant").tolist() == pytest.approx(expected.tolist(), rel=1e-4, abs=1e-9)
    assert found.closing().max() < 1e-9


def test_pruning_by_lambda_neither_orphans_nor_flips() -> None:
    found, _, _ = explained(torch.relu, composite="epsilon", pruning=plrp.Pruning(p=0.3))
    rows = [row for row in found.ledger if row["op"] == "prune"]
    assert rows
    assert all(row[name] == 0 for row in rows for name in ("orphaned", "flipped", "flipped_mass"))


def test_a_product_of_two_vectors_gives_each_half() -> None:
    class Dot(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return a @ b

    torch.manual_seed(0)
    a, b = torch.randn(2, 5, dtype=torch.float64)
    found = plrp.explain(Dot().eval(), (a, b), samples=None, composite="attnlrp")
    for relevance in found.relevance:
        torch.testing.assert_close(relevance, a * b / 2, rtol=1e-4, atol=1e-9)


def test_both_factors_of_a_product_may_be_the_same_matrix() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 3, dtype=torch.float64)
    found = plrp.explain(lambda x: (x @ x).flatten(1), x, target=1, composite="attnlrp")
    expected = torch.zeros_like(x)  # y_01 = Σ_k x_0k x_k1
    for k in range(3):
        for place in ((0, k), (k, 1)):
            expected[(slice(None), *place)] += x[:, 0, k] * x[:, k, 1] / 2
    torch.testing.assert_close(found.relevance, expected, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize(("options", "dim"), [({}, 2), ({"dim": 1}, 1)])
def test_the_signal_of_a_glu_takes_all_and_its_gate_nothing(options: dict[str, int], dim: int) -> None:
    """glu(x) = a · σ(b), where a and b are the halves of x."""

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(12, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(nn.functional.glu(x, **options).flatten(1))

    torch.manual_seed(0)
    x = torch.randn(3, 4, 6, dtype=torch.float64)
    found = plrp.explain(Gated().double().eval(), x, target=0, composite="epsilon", layers=True)
    signal, gate = found.relevance.chunk(2, dim)
    assert torch.equal(signal, found.layers["head"].reshape(signal.shape))
    assert bool((signal != 0).all())
    assert not gate.any()


@pytest.mark.parametrize(
    "shift",
    [-101.0, -2e4, torch.tensor(-400.0), torch.tensor([-150.0, -150.0]), nn.Parameter(torch.tensor([-150.0, 3.0]))],
)
def test_a_negative_shift_of_a_score_is_no_mask(shift: Any) -> None:
    """An offset of a regression takes its share like the bias of the layer below it."""
    torch.manual_seed(0)
    below, last = nn.Linear(4, 6).double(), nn.Linear(6, 2).double()
    x = torch.randn(3, 4, dtype=torch.float64)
    shifted = plrp.explain(lambda x: last(below(x).relu()) + shift, x, target=0, composite="epsilon")
    with torch.no_grad():
        last.bias += shift
    biased = plrp.explain(lambda x: last(below(x).relu()), x, target=0, composite="epsilon")
    torch.testing.assert_close(shifted.relevance, biased.relevance, rtol=1e-4, atol=1e-9)
