"""Whole tokens: pruned, and left out of linear layers where they hold nothing, as the plain formulas have it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from plrp import pruning
from plrp.fast.maps import fast_map
from plrp.fast.pruning import prune_positions
from plrp.ledger import Booking
from plrp.pruning import Pruning, Site
from plrp.tape.maps import Dense
from plrp.tape.samples import Samples

ONE_SAMPLE = Samples(1, 0, torch.zeros(7, dtype=torch.long))  # tokens first, as in nn.MultiheadAttention


@pytest.mark.parametrize("p", [0.0, 0.2, 0.6])
@pytest.mark.parametrize(
    ("shape", "samples"),
    [((3, 7, 5), Samples.first_axis(3)), ((2, 3, 4, 5), Samples.first_axis(2)), ((7, 1, 5), ONE_SAMPLE)],
    ids=["tokens", "windows", "tokens-first"],
)
def test_tokens_are_pruned_as_by_the_formulas(shape: tuple[int, ...], samples: Samples, p: float) -> None:
    torch.manual_seed(0)
    relevance = torch.randn(shape) * torch.rand(*shape[:-1], 1) ** 3
    value = SimpleNamespace(samples=samples, shape=relevance.shape)
    site = Site(value, [], p, None, len(shape) - 1)  # type: ignore[arg-type]
    how = Pruning(p, unit="position")
    expected, _ = pruning.prune(relevance, site, how, None, Booking(False))
    found = prune_positions(relevance, site, how, Booking(False))
    assert found is not None
    assert torch.equal(found == 0, expected == 0)
    assert bool((found == 0).any()) == (p > 0)
    assert torch.allclose(found, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("live", [0, 1, 3, 6])
def test_tokens_without_relevance_are_left_out_of_a_linear_layer(live: int) -> None:
    torch.manual_seed(0)
    weight = torch.randn(4, 3)
    s = torch.randn(2, 3, 4)
    s.view(6, 4)[live:] = 0
    layer = fast_map(Dense(weight, None))
    found = layer.transpose(s, weight, torch.zeros(2, 3, 3))
    assert found.shape == (2, 3, 3)
    assert torch.allclose(found, s @ weight, atol=1e-6)
