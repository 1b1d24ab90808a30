"""Quantus 0.6.0 beside plrp.metrics: the same numbers where Quantus is well-defined, and a test for each known fault.

Well-defined means: a batch of one, positive maps, no ties. Each fault is shown in Quantus first: a later
version that mends it makes the test fail, and the page on metrics can be corrected.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from plrp import metrics
from plrp.metrics.seeded import Draws

quantus = pytest.importorskip("quantus")
pytestmark = [pytest.mark.filterwarnings("ignore")]

N = 12
QUIET = {"disable_warnings": True}


@pytest.fixture
def image() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(1, 1, N, N)).astype(np.float32)


@pytest.fixture
def positive(image) -> np.ndarray:
    return np.random.default_rng(1).random((1, 1, N, N))


@pytest.fixture
def mask() -> np.ndarray:
    return np.random.default_rng(2).random((1, 1, N, N)) < 0.3


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(3 * (N - 2) ** 2, 4)).eval()


def of_maps(metric, inputs, relevance, masks=None) -> list[float]:
    """A Quantus metric that needs no model."""
    classes = np.zeros(len(inputs), dtype=int)
    return metric(None, inputs, classes, a_batch=relevance, s_batch=masks)


# --- agreement --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["uniform", "heavy-tailed"])
def test_gini_and_entropy(image, positive, shape) -> None:
    relevance = positive if shape == "uniform" else np.exp(3 * positive)
    (gini,) = of_maps(quantus.Sparseness(**QUIET), image, relevance)
    assert metrics.gini(relevance).item() == pytest.approx(gini, abs=1e-6)
    (entropy,) = of_maps(quantus.Complexity(**QUIET), image, relevance)
    assert metrics.entropy(relevance).item() == pytest.approx(entropy, abs=1e-6)


def test_localization(image, positive, mask) -> None:
    (mass,) = of_maps(quantus.RelevanceMassAccuracy(**QUIET), image, positive, mask)
    for version in ("positive", "absolute", "signed"):
        ours = metrics.relevance_mass_accuracy(positive, mask, version=version)
        assert ours.item() == pytest.approx(mass, abs=1e-6)
    (rank,) = of_maps(quantus.RelevanceRankAccuracy(**QUIET), image, positive, mask)
    assert metrics.relevance_rank_accuracy(positive, mask).item() == pytest.approx(rank, abs=1e-6)
    (top,) = of_maps(quantus.TopKIntersection(k=7, **QUIET), image, positive, mask)
    assert metrics.top_k_intersection(positive, mask, 7).item() == pytest.approx(top, abs=1e-6)
    (hit,) = of_maps(quantus.PointingGame(**QUIET), image, positive, mask)
    assert metrics.pointing_game(positive, mask).item() == hit


def test_mass_accuracy_of_signed_maps_is_the_signed_version(image, positive, mask) -> None:
    signed = positive - 0.3
    (mass,) = of_maps(quantus.RelevanceMassAccuracy(**QUIET), image, signed, mask)
    assert metrics.relevance_mass_accuracy(signed, mask, version="signed").item() == pytest.approx(mass, abs=1e-6)


def gradient_times_input(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    x = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(net(x)[:, 0].sum(), x)
    return (gradient * x).detach()


class SamePerturbations:
    """Quantus' perturb_func that hands out our draws, one after the other."""

    def __init__(self, noise: str, radius: float) -> None:
        self.noise, self.radius, self.index = noise, radius, 0

    def __call__(self, arr: np.ndarray, **_: object) -> np.ndarray:
        like = torch.zeros(1, 1, N, N)
        shift = Draws(self.radius, noise=self.noise).shift(self.index, like)
        self.index += 1
        return arr + shift.numpy().reshape(1, -1)


@pytest.mark.parametrize("noise", ["ball", "gaussian"])
@pytest.mark.parametrize("normalise", [False, True])
def test_lipschitz_with_the_same_perturbations(net, image, noise, normalise) -> None:
    def explain_func(model, inputs, targets, **_):
        return gradient_times_input(model, torch.as_tensor(inputs)).numpy()

    estimate = quantus.LocalLipschitzEstimate(
        nr_samples=6, normalise=normalise, perturb_func=SamePerturbations(noise, 0.3), **QUIET
    )
    (theirs,) = estimate(net, image, np.zeros(1, int), explain_func=explain_func)
    ours = metrics.local_lipschitz(
        lambda x: gradient_times_input(net, x),
        torch.from_numpy(image),
        radius=0.3,
        samples=6,
        noise=noise,
        normalise="max" if normalise else None,
    )
    assert ours.item() == pytest.approx(theirs, abs=1e-6)


def test_max_sensitivity_with_the_same_perturbations(net, image) -> None:
    def explain_func(model, inputs, targets, **_):
        return gradient_times_input(model, torch.as_tensor(inputs)).numpy()

    estimate = quantus.MaxSensitivity(nr_samples=6, perturb_func=SamePerturbations("box", 0.1), **QUIET)
    (theirs,) = estimate(net, image, np.zeros(1, int), explain_func=explain_func)
    ours = metrics.max_sensitivity(
        lambda x: gradient_times_input(net, x), torch.from_numpy(image), radius=0.1, samples=6
    )
    assert ours.item() == pytest.approx(theirs, abs=1e-6)


@pytest.mark.parametrize(("baseline", "perturbation"), [(0.0, "zeros"), (0.7, torch.tensor(0.7))])
@pytest.mark.parametrize("score_as", ["logit", "probability"])
def test_pixel_flipping_curves(net, image, positive, baseline, perturbation, score_as) -> None:
    flipping = quantus.PixelFlipping(features_in_step=12, perturb_baseline=baseline, **QUIET)
    (theirs,) = flipping(net, image, np.array([2]), a_batch=positive, softmax=score_as == "probability")
    ours = metrics.pixel_flipping(
        net,
        torch.from_numpy(image),
        positive,
        target=2,
        steps=range(12, N * N + 1, 12),
        perturbation=perturbation,
        score_as=score_as,
        normalise=False,
    )
    assert ours.curve[0, 1:].tolist() == pytest.approx(theirs, abs=1e-6)


def test_pixel_flipping_of_single_channel_entries(image) -> None:
    generator = np.random.default_rng(3)
    colours = generator.normal(size=(1, 3, 4, 4)).astype(np.float32)
    relevance = generator.normal(size=(1, 3, 4, 4))
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(48, 2)).eval()
    flipping = quantus.PixelFlipping(features_in_step=4, perturb_baseline=0.0, **QUIET)
    (theirs,) = flipping(net, colours, np.array([1]), a_batch=relevance, softmax=False)
    ours = metrics.pixel_flipping(
        net,
        torch.from_numpy(colours),
        relevance,
        target=1,
        channels=None,
        steps=range(4, 49, 4),
        normalise=False,
    )
    assert ours.curve[0, 1:].tolist() == pytest.approx(theirs, abs=1e-6)


# --- known faults -----------------------------------------------------------------------------------------------------


def test_fault_batch_mates_change_the_gini(image, positive) -> None:
    """Maps are divided by the maximum of the *batch* before 1e-7 is added: one with large values drowns the others."""
    pair, maps = np.repeat(image, 2, 0), np.concatenate([positive, 1e7 * positive])
    (alone,) = of_maps(quantus.Sparseness(**QUIET), image, positive)
    together = of_maps(quantus.Sparseness(**QUIET), pair, maps)[0]
    assert abs(together - alone) > 0.05
    assert metrics.gini(maps)[0] == metrics.gini(positive)[0]


def test_fault_batch_mates_change_the_lipschitz_estimate(net, image) -> None:
    """Every perturbed batch is divided by its own maximum."""

    def explain_func(model, inputs, targets, **_):
        return np.asarray(inputs)

    def estimate(batch: np.ndarray) -> float:
        np.random.seed(0)  # noqa: NPY002
        metric = quantus.LocalLipschitzEstimate(nr_samples=3, **QUIET)
        return metric(net, batch, np.zeros(len(batch), int), explain_func=explain_func)[0]

    loud = np.concatenate([image, 1000 * image])
    assert estimate(loud) < 0.1 * estimate(image)
    both, one = (
        metrics.local_lipschitz(lambda x: x, torch.from_numpy(batch), samples=3, normalise="max")
        for batch in (loud, image)
    )
    torch.testing.assert_close(both[:1], one)


def test_fault_zero_maps(image, positive, mask) -> None:
    """Refused alone; next to another sample Gini says 0, entropy and mass accuracy NaN, the pointing game 'hit'."""
    pair, maps = np.repeat(image, 2, 0), np.concatenate([positive, 0 * positive])
    masks = np.repeat(mask, 2, 0)
    with pytest.raises(AssertionError, match="all equal to zero"):
        of_maps(quantus.Sparseness(**QUIET), image, 0 * positive)
    assert of_maps(quantus.Sparseness(**QUIET), pair, maps)[1] == pytest.approx(0)
    assert math.isnan(of_maps(quantus.Complexity(**QUIET), pair, maps)[1])
    assert math.isnan(of_maps(quantus.RelevanceMassAccuracy(**QUIET), pair, maps, masks)[1])
    assert of_maps(quantus.PointingGame(**QUIET), pair, maps, masks)[1]

    zero = 0 * positive
    assert metrics.gini(zero).item() == 0
    assert metrics.entropy(zero).item() == pytest.approx(math.log(N * N))
    assert metrics.relevance_mass_accuracy(zero, mask).isnan().all()
    assert metrics.pointing_game(zero, mask).item() == pytest.approx(mask.mean())


def test_fault_ties_are_broken_by_position(image) -> None:
    """One relevant pixel, all others zero: rank accuracy depends on whether the mask lies above or below."""
    relevance = np.zeros((1, 1, N, N))
    relevance[..., N // 2, N // 2] = 1
    above, below = np.zeros((2, 1, 1, N, N), dtype=bool)
    above[..., :4, :] = True
    below[..., -4:, :] = True
    theirs = [of_maps(quantus.RelevanceRankAccuracy(**QUIET), image, relevance, m)[0] for m in (above, below)]
    assert abs(theirs[0] - theirs[1]) > 0.5
    ours = [metrics.relevance_rank_accuracy(relevance, m).item() for m in (above, below)]
    assert ours[0] == pytest.approx(ours[1])
    assert ours[0] == pytest.approx((48 - 1) / (N * N - 1))


def test_fault_an_empty_mask_is_a_hit(image, positive) -> None:
    """NaN is written into an array of booleans, where it reads as True."""
    empty = np.zeros((1, 1, N, N), dtype=bool)
    assert of_maps(quantus.PointingGame(**QUIET), image, positive, empty)[0]
    assert metrics.pointing_game(positive, empty).isnan().all()


def test_fault_weighted_pointing_game_crashes(image, positive) -> None:
    everything = np.ones((1, 1, N, N), dtype=bool)
    with pytest.raises((TypeError, ValueError)):
        of_maps(quantus.PointingGame(weighted=True, **QUIET), image, positive, everything)


@pytest.mark.parametrize("name", ["Sparseness", "Complexity"])
def test_fault_relevance_is_modified(image, positive, name) -> None:
    given = positive.copy()
    of_maps(getattr(quantus, name)(abs=False, normalise=False, **QUIET), image, given)
    assert not np.array_equal(given, positive)
    for ours in (metrics.gini, metrics.entropy, metrics.hoyer, metrics.nonzero):
        given = positive.copy()
        ours(given)
        assert np.array_equal(given, positive)


def test_fault_the_users_options_are_modified(net, image) -> None:
    options: dict[str, object] = {"channels": None}

    def explain_func(model, inputs, targets, **_):
        return np.asarray(inputs)

    metric = quantus.LocalLipschitzEstimate(nr_samples=1, **QUIET)
    metric(net, image, np.zeros(1, int), explain_func=explain_func, explain_func_kwargs=options, device="cpu")
    assert options == {"channels": None, "device": "cpu"}


def test_fault_flipping_to_the_mean_drifts() -> None:
    """The mean is taken of the input as perturbed so far: the second flip writes another value than the first."""
    from quantus.functions.perturb_func import batch_baseline_replacement_by_indices as replace

    once = replace(np.array([[10.0, 0, 0, 0]]), np.array([[0]]), perturb_baseline="mean")
    twice = replace(once, np.array([[1]]), perturb_baseline="mean")
    assert twice[0, :2].tolist() == [2.5, 0.625]
    x = torch.tensor([[10.0, 0, 0, 0]])
    seen = []
    metrics.pixel_flipping(
        lambda v: seen.append(v.clone()) or v, x, x, target=0, steps=2, perturbation="image-mean", normalise=False
    )
    assert torch.cat(seen)[-1].tolist() == [2.5] * 4


@pytest.mark.skipif(hasattr(np, "trapz"), reason="numpy < 2.4 still has trapz")
def test_fault_area_under_the_curve_crashes(net, image, positive) -> None:
    flipping = quantus.PixelFlipping(features_in_step=12, return_auc_per_sample=True, **QUIET)
    with pytest.raises(AttributeError, match="trapz"):
        flipping(net, image, np.array([0]), a_batch=positive)
    assert metrics.pixel_flipping(net, torch.from_numpy(image), positive).auc.isfinite().all()
