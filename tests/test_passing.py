"""Operations between the layers hand relevance down by the formulas of their families, and book the rest."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import plrp

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
    "an integer in a cat": (lambda h: torch.cat([h[:, :5], torch.full((3, 1), 3)], 1), lambda h, r: r[:, 5]),
    "an integer by where": (lambda h: torch.where(MASK, h, torch.tensor(3)), lambda h, r: (r * ~MASK).sum(1)),
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
