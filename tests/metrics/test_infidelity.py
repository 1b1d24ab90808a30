"""Infidelity against Captum and its formula; compactness against scipy's spanning tree."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from plrp.metrics import infidelity, spanning_tree_compactness
from plrp.metrics.seeded import Draws


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double().eval()


@pytest.mark.parametrize("multiplied", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
def test_infidelity_against_captum(net, multiplied, scaled) -> None:
    captum = pytest.importorskip("captum.metrics")
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 6, generator=generator, dtype=torch.float64)
    r = torch.randn(4, 6, generator=generator, dtype=torch.float64)
    x[0, 2] = 0  # where relevance cannot be divided by the input
    drawn = iter(range(5))

    @captum.infidelity_perturb_func_decorator(multiplied)
    def perturb(inputs: torch.Tensor, baselines: object = None) -> torch.Tensor:
        shift = Draws(0.2, noise="gaussian", seed=3).shift(next(drawn), x)
        return inputs - shift

    theirs = captum.infidelity(
        net, perturb, x, r, target=1, n_perturb_samples=5, max_examples_per_batch=4, normalize=scaled
    )
    ours = infidelity(net, x, r, target=1, samples=5, radius=0.2, seed=3, multiplied=multiplied, scaled=scaled)
    assert torch.allclose(ours, theirs)


def test_the_gradient_of_a_linear_model_is_without_fault() -> None:
    weights = nn.Linear(5, 1).double()
    x = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    contributions = x * weights.weight.detach()
    assert infidelity(weights, x, contributions, target=0).max() < 1e-20
    assert infidelity(weights, x, 3 * contributions, target=0).min() > 1e-4
    assert infidelity(weights, x, 3 * contributions, target=0, scaled=True).max() < 1e-16
    with pytest.raises(ValueError, match="one value per entry"):
        infidelity(weights, x, contributions[:, :2], target=0)


def test_compactness_against_scipy() -> None:
    graphs = pytest.importorskip("scipy.sparse.csgraph")
    distance = pytest.importorskip("scipy.spatial.distance")
    maps = torch.randn(3, 2, 12, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ours = spanning_tree_compactness(maps, channels="sum", share=0.2)
    for i, one in enumerate(maps.sum(1).abs().numpy()):
        count = int(np.ceil(0.2 * one.size))
        points = np.stack(np.unravel_index(np.argsort(-one, axis=None)[:count], one.shape), 1)
        length = graphs.minimum_spanning_tree(distance.squareform(distance.pdist(points))).sum()
        assert ours[i].item() == pytest.approx((count - 1) / length)


def test_compactness_of_a_blob_a_lattice_and_nothing() -> None:
    blob, lattice = torch.zeros(2, 1, 16, 16)
    blob[0, 4:8, 4:8] = 1
    lattice[0, ::4, ::4] = 1
    assert spanning_tree_compactness(torch.stack([blob, lattice])[:, 0], share=1.0).tolist() == [1.0, 0.25]
    assert spanning_tree_compactness(torch.zeros(1, 4, 4)).isnan().all()
    with pytest.raises(ValueError, match="share"):
        spanning_tree_compactness(torch.ones(1, 4, 4), share=0.0)
