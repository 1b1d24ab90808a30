"""Localization: slow restatements, ties by expectation, empty masks, absent channel axes."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plrp.metrics import pointing_game, relevance_mass_accuracy, relevance_rank_accuracy, top_k_intersection

FUNCTIONS = [
    relevance_mass_accuracy,
    relevance_rank_accuracy,
    pointing_game,
    lambda r, m, **options: top_k_intersection(r, m, 2, **options),
]


@st.composite
def small_cases(draw):
    """Maps of few features and few values (so ties abound) with a mask."""
    n = draw(st.integers(1, 6))
    relevance = draw(st.lists(st.integers(-2, 2), min_size=n, max_size=n))
    mask = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    return relevance, mask


def expected_share(relevance: list[int], mask: list[bool], k: int) -> float:
    """Mean over every order that sorts the map: how much of its first k lies in the mask."""
    orders = [
        order
        for order in itertools.permutations(range(len(relevance)))
        if all(relevance[a] >= relevance[b] for a, b in itertools.pairwise(order))
    ]
    return math.fsum(sum(mask[i] for i in order[:k]) / k for order in orders) / len(orders)


@settings(max_examples=80, deadline=None)
@given(small_cases())
def test_ranks_score_the_expectation_over_random_tie_breaking(case) -> None:
    relevance, mask = case
    r, m = torch.tensor([relevance]), torch.tensor([mask])
    if not any(mask):
        assert relevance_rank_accuracy(r, m).isnan().all()
        assert top_k_intersection(r, m, 1).isnan().all()
        assert pointing_game(r, m).isnan().all()
        return
    assert relevance_rank_accuracy(r, m).item() == pytest.approx(expected_share(relevance, mask, sum(mask)))
    for k in range(1, len(mask) + 1):
        assert top_k_intersection(r, m, k).item() == pytest.approx(expected_share(relevance, mask, k))
    assert pointing_game(r, m).item() == pytest.approx(expected_share(relevance, mask, 1))
    tops = [inside for value, inside in zip(relevance, mask, strict=True) if value == max(relevance)]
    assert pointing_game(r, m, ties="any").item() == any(tops)
    assert pointing_game(r, m, ties="all").item() == all(tops)


@settings(max_examples=80, deadline=None)
@given(small_cases())
def test_mass_accuracy_versions(case) -> None:
    relevance, mask = case
    r, m = torch.tensor([relevance]), torch.tensor([mask])
    for version, mass in (
        ("positive", lambda v: max(v, 0)),
        ("absolute", abs),
        ("signed", lambda v: v),
    ):
        total = sum(mass(v) for v in relevance)
        inside = sum(mass(v) for v, i in zip(relevance, mask, strict=True) if i)
        score = relevance_mass_accuracy(r, m, version=version).item()
        if not any(mask) or (total == 0 and inside == 0):
            assert math.isnan(score)
        elif total == 0:
            assert math.isinf(score)
        else:
            assert score == pytest.approx(inside / total)


def test_mass_accuracy_default_is_the_positive_part() -> None:
    relevance, mask = torch.tensor([[3.0, 1.0, -6.0]]), torch.tensor([[True, False, False]])
    assert relevance_mass_accuracy(relevance, mask).item() == 0.75
    assert relevance_mass_accuracy(relevance, mask, version="absolute").item() == pytest.approx(0.3)
    assert relevance_mass_accuracy(relevance, mask, version="signed").item() == -1.5  # why it is not the default


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_score_depends_on_its_own_sample_alone_and_inputs_stay(function) -> None:
    generator = torch.Generator().manual_seed(1)
    relevance = torch.randn(6, 9, 9, generator=generator)
    relevance[0] *= 1e6
    relevance[3] = relevance[3].round()
    mask = torch.rand(6, 9, 9, generator=generator) < 0.3
    before = relevance.clone(), mask.clone()
    together = function(relevance, mask)
    alone = torch.cat([function(relevance[i : i + 1], mask[i : i + 1]) for i in range(6)])
    assert torch.equal(together, alone)
    assert together.dtype == torch.float64
    assert torch.equal(relevance, before[0])
    assert torch.equal(mask, before[1])


@pytest.mark.parametrize("function", FUNCTIONS)
def test_edges(function) -> None:
    mask = torch.tensor([[True, False, False, True]])
    assert function(torch.zeros(0, 4), torch.zeros(0, 4, dtype=torch.bool)).shape == (0,)
    assert function(torch.ones(1, 4), torch.zeros(1, 4, dtype=torch.bool)).isnan().all()
    assert function(torch.ones(1, 4), mask).item() == pytest.approx(0.5)  # a constant map is at chance
    zero = function(torch.zeros(1, 4), mask).item()
    assert math.isnan(zero) if function is relevance_mass_accuracy else zero == pytest.approx(0.5)
    with pytest.raises(ValueError, match=r"sample\(s\) \[0\]"):
        function(torch.tensor([[1.0, torch.nan, 0.0, 0.0]]), mask)


def test_masks_per_pixel_per_base_and_per_feature() -> None:
    relevance = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    mask = torch.rand(2, 4, 5) < 0.5
    pooled = relevance_mass_accuracy(relevance.sum(1), mask)
    assert torch.equal(relevance_mass_accuracy(relevance, mask, channels="sum"), pooled)
    assert torch.equal(relevance_mass_accuracy(relevance, mask[:, None], channels="sum"), pooled)
    assert torch.equal(relevance_mass_accuracy(relevance.sum(1, keepdim=True), mask), pooled)
    assert relevance_mass_accuracy(relevance, mask[:, None].expand_as(relevance)).shape == (2,)
    bases = torch.randn(2, 4, 30)
    motif = np.zeros((2, 30), dtype=np.uint8)
    motif[:, 10:15] = 1
    expected = relevance_rank_accuracy(bases.sum(1), motif.astype(bool))
    assert torch.equal(relevance_rank_accuracy(bases, motif, channels="sum"), expected)


@pytest.mark.parametrize("mask_shape", [(2, 4, 5), (4, 5), (1, 3, 4, 5), (2, 4, 4), (2, 1, 4, 5)])
def test_a_mask_that_needs_a_guess_is_refused(mask_shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="channels='sum'"):
        relevance_mass_accuracy(torch.ones(2, 3, 4, 5), torch.ones(mask_shape, dtype=torch.bool))


def test_a_mask_of_other_numbers_is_refused() -> None:
    with pytest.raises(ValueError, match="mask > 0"):
        relevance_mass_accuracy(torch.ones(1, 4), torch.tensor([[0, 255, 0, 255]]))


def test_unknown_options_are_refused() -> None:
    relevance, mask = torch.ones(1, 4), torch.ones(1, 4, dtype=torch.bool)
    with pytest.raises(ValueError, match="choose 'positive'"):
        relevance_mass_accuracy(relevance, mask, version="net")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="choose 'share'"):
        pointing_game(relevance, mask, ties="first")  # type: ignore[arg-type]
    for k in (0, 5):
        with pytest.raises(ValueError, match="number of features, 4"):
            top_k_intersection(relevance, mask, k)
