"""Imputation, ROAD, relevance gain, deletion and insertion, against explicit matrices and single passes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from plrp.metrics import (
    deletion,
    impute,
    insertion,
    linear_imputation,
    pixel_flipping,
    road,
    symmetric_relevance_gain,
)


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 4))
    return layers.double().eval()


@pytest.fixture(scope="module")
def inputs() -> torch.Tensor:
    return torch.randn(3, 3, 6, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.fixture(scope="module")
def relevance() -> torch.Tensor:
    return torch.randn(3, 3, 6, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def solved(x: np.ndarray, missing: np.ndarray) -> np.ndarray:
    """Rong et al.'s equations as one dense matrix: a row per missing pixel."""
    height, width = missing.shape
    holes = [tuple(p) for p in np.argwhere(missing)]
    matrix, right = np.zeros((len(holes), len(holes))), np.zeros((len(holes), len(x)))
    for i, (a, b) in enumerate(holes):
        for da in (-1, 0, 1):
            for db in (-1, 0, 1):
                near = (a + da, b + db)
                if (da, db) == (0, 0) or not (0 <= near[0] < height and 0 <= near[1] < width):
                    continue
                weight = 1 / 6 if 0 in (da, db) else 1 / 12
                matrix[i, i] += weight
                if missing[near]:
                    matrix[i, holes.index(near)] -= weight
                else:
                    right[i] += weight * x[:, near[0], near[1]]
    filled = x.copy()
    filled[:, missing] = np.linalg.solve(matrix, right).T
    return filled


def test_linear_imputation_solves_the_equations(inputs) -> None:
    generator = np.random.default_rng(0)
    missing = generator.random((3, 6, 8)) < np.array([0.1, 0.5, 0.9])[:, None, None]
    ours = linear_imputation(inputs, torch.from_numpy(missing)[:, None], tolerance=1e-12)
    for i in range(3):
        assert np.allclose(ours[i].numpy(), solved(inputs[i].numpy(), missing[i]), atol=1e-9)


def test_linear_imputation_against_quantus(inputs) -> None:
    quantus = pytest.importorskip("quantus")
    missing = torch.rand(6, 8, generator=torch.Generator().manual_seed(2)) < 0.4
    theirs = quantus.functions.perturb_func.noisy_linear_imputation(
        inputs[0].numpy(), missing.flatten().nonzero()[:, 0].numpy(), noise=0.0
    )
    ours = linear_imputation(inputs[:1], missing[None, None], tolerance=1e-12)
    assert np.allclose(ours[0].numpy(), theirs, atol=1e-9)


def test_linear_imputation_of_a_sequence_is_a_straight_line() -> None:
    x = torch.tensor([[[0.0, 9.0, 9.0, 9.0, 4.0, 7.0]]], dtype=torch.float64)
    missing = torch.tensor([[[False, True, True, True, False, False]]])
    expected = torch.tensor([[[0.0, 1.0, 2.0, 3.0, 4.0, 7.0]]], dtype=torch.float64)
    assert torch.allclose(linear_imputation(x, missing, tolerance=1e-12), expected)
    assert (linear_imputation(x, torch.ones_like(missing)) == 0).all()  # nothing is left to impute from


def test_imputers_change_what_is_missing_only(inputs) -> None:
    missing = torch.rand(3, 1, 6, 8, generator=torch.Generator().manual_seed(3)) < 0.5
    for imputer in ("linear", "histogram", "image-mean", "zeros", lambda x, m: x + 1):
        made = impute(inputs, missing, imputer)
        assert torch.equal(made[~missing.expand_as(made)], inputs[~missing.expand_as(made)])
        assert not torch.equal(made, inputs)
    pixels = {tuple(p) for p in inputs[1].flatten(1).T.tolist()}
    assert {tuple(p) for p in impute(inputs, missing, "histogram")[1].flatten(1).T.tolist()} <= pixels
    with pytest.raises(ValueError, match="unknown imputer"):
        impute(inputs, missing, "median")  # type: ignore[arg-type]


def test_road_removes_whole_pixels_in_order(net, inputs, relevance) -> None:
    found = road(net, inputs, relevance, shares=(0.25, 0.5), noise=0.0, ties="stable", score_as="logit")
    assert found.least_first is not None
    for i in range(3):
        winner = net(inputs[i : i + 1])[0].argmax()
        order = np.argsort(-relevance[i].sum(0).numpy(), axis=None)
        for curve, ranked in ((found.curve, order), (found.least_first, order[::-1])):
            for point, count in enumerate((0, 12, 24)):
                missing = np.zeros(48, bool)
                missing[ranked[:count]] = True
                made = solved(inputs[i].numpy(), missing.reshape(6, 8)) if count else inputs[i].numpy()
                expected = net(torch.from_numpy(made)[None])[0, winner].item()
                assert curve[i, point].item() == pytest.approx(expected, abs=1e-5)


def test_relevance_gain_on_tiles_is_that_of_pixel_flipping(net, inputs, relevance) -> None:
    flipped = pixel_flipping(
        net, inputs, relevance, region=(3, 4), perturbation="image-mean", order="both", steps=4, normalise=False
    )
    gain = symmetric_relevance_gain(
        net, inputs, relevance, regions=4, shares=(0.25, 0.5, 0.75, 1.0), aggregate="sum", imputer="image-mean"
    )
    assert torch.allclose(gain.curve, flipped.curve)
    assert gain.symmetric_relevance_gain is not None
    assert torch.allclose(gain.symmetric_relevance_gain, flipped.symmetric_relevance_gain)


def test_relevance_gain_of_superpixels_and_signs(net, inputs, relevance) -> None:
    """Regions of each sample's own shape; reversing the relevance reverses the gain."""
    labels = torch.randint(5, (3, 6, 8), generator=torch.Generator().manual_seed(4))
    one = symmetric_relevance_gain(net, inputs, relevance, regions=labels, imputer="histogram", ties="stable")
    other = symmetric_relevance_gain(net, inputs, -relevance, regions=labels, imputer="histogram", ties="stable")
    assert torch.allclose(one.symmetric_relevance_gain, -other.symmetric_relevance_gain)
    alone = symmetric_relevance_gain(net, inputs[1:2], relevance[1:2], regions=labels[1:2], imputer="histogram")
    assert torch.allclose(alone.curve[0], one.curve[1])  # no sample depends on the others
    with pytest.raises(ValueError, match="regions"):
        symmetric_relevance_gain(net, inputs, relevance, regions=labels[:2])
    with pytest.raises(ValueError, match="shares"):
        symmetric_relevance_gain(net, inputs, relevance, shares=(0.5, 0.2))


def test_deletion_and_insertion(net, inputs, relevance) -> None:
    """Areas of the probability, pixel by pixel; insertion begins with the baseline."""
    baseline = torch.zeros_like(inputs)
    gone = deletion(net, inputs, relevance, steps=48)
    back = insertion(net, inputs, relevance, steps=48, perturbation="zeros")
    for i in range(3):
        winner = net(inputs[i : i + 1])[0].argmax()
        order = np.argsort(-relevance[i].sum(0).numpy(), axis=None)
        deleted, inserted = [], []
        for count in range(49):
            top = torch.zeros(48, dtype=torch.bool)
            top[order[:count].copy()] = True
            top = top.reshape(6, 8)
            pair = torch.stack([torch.where(top, baseline[i], inputs[i]), torch.where(top, inputs[i], baseline[i])])
            chances = net(pair).softmax(1)[:, winner]
            deleted.append(chances[0].item())
            inserted.append(chances[1].item())
        assert gone[i].item() == pytest.approx(np.trapezoid(deleted) / 48)
        assert back[i].item() == pytest.approx(np.trapezoid(inserted) / 48)


def test_region_numbers_are_only_names(net, inputs, relevance) -> None:
    """Gaps between the numbers and another first number change nothing."""
    labels = torch.randint(5, (3, 6, 8), generator=torch.Generator().manual_seed(4))
    options = {"imputer": "zeros", "ties": "stable"}
    one = symmetric_relevance_gain(net, inputs, relevance, regions=labels, **options)
    for other in (labels * 10, labels + 1, labels * 1000 + 7):
        again = symmetric_relevance_gain(net, inputs, relevance, regions=other, **options)
        assert torch.equal(again.symmetric_relevance_gain, one.symmetric_relevance_gain)
        assert torch.equal(again.curve, one.curve)
        assert torch.equal(again.flipped, one.flipped)


def test_the_share_that_was_removed_is_reported(net, inputs, relevance) -> None:
    found = symmetric_relevance_gain(net, inputs, relevance, regions=4, shares=(0.1, 0.3, 0.6, 1.0))
    assert found.flipped.tolist() == [0.0, 0.0, 0.25, 0.5, 1.0]  # of 4 regions: 0, 0, 1, 2, 4
    assert torch.equal(found.curve[:, 0], found.curve[:, 1])
    most, least = (torch.trapezoid(curve, found.flipped) for curve in (found.curve, found.least_first))
    assert torch.allclose(found.symmetric_relevance_gain, least - most)
    labels = torch.zeros(3, 6, 8, dtype=torch.long)
    labels[0, 3:], labels[1, :, 4:], labels[1, 3:, :4] = 1, 1, 2  # 2, 3 and 1 regions
    each = symmetric_relevance_gain(net, inputs, relevance, regions=labels, shares=(0.5, 1.0)).flipped
    assert torch.allclose(each, torch.tensor([[0, 0.5, 1], [0, 2 / 3, 1], [0, 0, 1]], dtype=torch.float64))
    with pytest.raises(ValueError, match="none of the 4 regions of sample 0"):
        symmetric_relevance_gain(net, inputs, relevance, regions=4, shares=(0.1,))
