"""Robustness: exact where the constant is known, the same for any batch, defined at the edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from plrp.metrics import local_lipschitz, max_sensitivity
from plrp.metrics.seeded import Draws

BOTH = [local_lipschitz, max_sensitivity]


def gradient_times_input(net: nn.Module):
    def explain(inputs: torch.Tensor, target: torch.Tensor | None = None) -> torch.Tensor:
        x = inputs.clone().requires_grad_()
        out = net(x)
        chosen = out.max(1).values if target is None else out.gather(1, target[:, None])[:, 0]
        (gradient,) = torch.autograd.grad(chosen.sum(), x)
        return (gradient * x).detach()

    return explain


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 16, 3)).double()


@pytest.fixture
def inputs() -> torch.Tensor:
    return torch.randn(5, 1, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("noise", ["ball", "box", "gaussian"])
def test_linear_explanations_have_their_own_constant(noise) -> None:
    x = torch.randn(3, 4, 5, dtype=torch.float64)
    assert local_lipschitz(lambda v: -3 * v, x, noise=noise).tolist() == pytest.approx([3] * 3)
    assert local_lipschitz(torch.ones_like, x, noise=noise).tolist() == [0] * 3


@pytest.mark.parametrize("noise", ["ball", "box", "gaussian"])
def test_slow_restatement(net, inputs, noise) -> None:
    explain = gradient_times_input(net)
    lipschitz, sensitivity = [], []
    for x in inputs:
        e = explain(x[None])[0].numpy()
        ratios, changes = [], []
        for k in range(6):
            shift = Draws(0.2, noise=noise, seed=3).shift(k, x[None])
            moved = (x + shift)[None]
            change = np.linalg.norm(explain(moved)[0].numpy() - e)
            ratios.append(change / np.linalg.norm((moved[0] - x).numpy()))
            changes.append(change / np.linalg.norm(e))
        lipschitz.append(max(ratios))
        sensitivity.append(max(changes))
    options = {"radius": 0.2, "samples": 6, "noise": noise, "seed": 3}
    assert local_lipschitz(explain, inputs, **options).tolist() == pytest.approx(lipschitz, rel=1e-9)
    assert max_sensitivity(explain, inputs, **options).tolist() == pytest.approx(sensitivity, rel=1e-9)


@pytest.mark.parametrize("metric", BOTH)
def test_batch_mates_place_and_batch_size_do_not_matter(metric, net, inputs) -> None:
    explain = gradient_times_input(net)
    reference = metric(explain, inputs, samples=7)
    for batch_size in (1, 2, 3, 35, 100):
        torch.testing.assert_close(metric(explain, inputs, samples=7, batch_size=batch_size), reference)
    loud = inputs.clone()
    loud[0] *= 1000
    order = torch.tensor([4, 0, 2, 1, 3])
    torch.testing.assert_close(metric(explain, loud[order], samples=7)[[0, 2, 3, 4]], reference[[4, 2, 1, 3]])


@pytest.mark.parametrize("metric", BOTH)
def test_memory_is_bounded_by_the_batch_size(metric, inputs) -> None:
    sizes = []

    def explain(x: torch.Tensor) -> torch.Tensor:
        sizes.append(len(x))
        return x

    metric(explain, inputs, samples=4, batch_size=3)
    assert max(sizes) <= 3
    assert sum(sizes) == 5 + 5 * 4  # the originals once, every pair once


@pytest.mark.parametrize("metric", BOTH)
def test_seeded_and_inputs_and_global_state_stay(metric, net, inputs) -> None:
    explain = gradient_times_input(net)
    before, state, numpy_state = inputs.clone(), torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    first = metric(explain, inputs, seed=1)
    assert torch.equal(metric(explain, inputs, seed=1), first)
    assert not torch.equal(metric(explain, inputs, seed=2), first)
    assert torch.equal(inputs, before)
    assert torch.equal(torch.get_rng_state(), state)
    np.testing.assert_array_equal(np.random.get_state()[1], numpy_state)  # noqa: NPY002


def test_the_target_stays_with_its_sample(inputs) -> None:
    seen = []

    def explain(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        seen.extend(target.tolist())
        return x * (1 + target).reshape(-1, 1, 1, 1)

    scores = local_lipschitz(explain, inputs, target=[0, 1, 2, 3, 4], samples=3, batch_size=2)
    assert scores.tolist() == pytest.approx([1, 2, 3, 4, 5])
    assert sorted(seen) == sorted([0, 1, 2, 3, 4] * 4)


@pytest.mark.parametrize(("normalise", "size"), [("max", 4.0), ("mass", 7.0), ("norm", 5.0)])
def test_normalised_maps_compare_methods_of_any_scale(normalise, size) -> None:
    x = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    options = {"radius": 1e-3, "samples": 50, "normalise": normalise}
    small, large = (local_lipschitz(lambda v, s=s: s * v, x, **options) for s in (1, 1e6))
    torch.testing.assert_close(small, large)
    assert 0 < small.item() < 2 / size
    assert local_lipschitz(torch.zeros_like, x, **options).item() == 0  # a zero map stays zero


def test_draws_fill_the_ball() -> None:
    like = torch.zeros(1, 2, 3, dtype=torch.float64)
    lengths = torch.stack([Draws(2.0, noise="ball").shift(k, like).norm() for k in range(2000)])
    assert lengths.max() < 2.0
    # P(length < t) = (t/2)^6: the median lies at 2 · 0.5^(1/6)
    assert lengths.median().item() == pytest.approx(2 * 0.5 ** (1 / 6), abs=0.02)
    box = torch.stack([Draws(2.0, noise="box").shift(k, like) for k in range(500)])
    assert 1.9 < box.abs().max() < 2.0
    gauss = torch.stack([Draws(2.0, noise="gaussian").shift(k, like) for k in range(500)])
    assert gauss.std().item() == pytest.approx(2.0, abs=0.1)


@pytest.mark.parametrize("metric", BOTH)
def test_edges(metric) -> None:
    x = torch.ones(2, 3)
    assert metric(lambda v: v, x[:0]).shape == (0,)
    with pytest.raises(ValueError, match="must be positive"):
        metric(lambda v: v, x, radius=0)
    with pytest.raises(ValueError, match="must be positive"):
        metric(lambda v: v, x, samples=0)
    with pytest.raises(ValueError, match="vanishes in the rounding"):
        metric(lambda v: v, 1e6 * x, radius=1e-6)
    with pytest.raises(ValueError, match=r"the explanation has NaN or infinite values in sample\(s\) \[0, 1\]"):
        metric(lambda v: v / 0, x)
    with pytest.raises(ValueError, match="cannot be perturbed"):
        metric(lambda v: v, torch.ones(2, 3, dtype=torch.long))
    with pytest.raises(ValueError, match="unknown noise"):
        metric(lambda v: v, x, noise="laplace")
    with pytest.raises(ValueError, match="unknown normalise"):
        metric(lambda v: v, x, normalise="sum")


def test_max_sensitivity_of_zero_maps() -> None:
    x = torch.ones(1, 3)
    assert max_sensitivity(torch.zeros_like, x).item() == 0
    assert math.isinf(max_sensitivity(lambda v: v - 1, x).item())
