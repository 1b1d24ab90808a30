"""Sparsity measures: their formulas slowly, their invariances, and the edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from plrp.metrics import entropy, gini, hoyer, nonzero, pool_channels

MEASURES = [gini, entropy, hoyer, nonzero]

maps = hnp.arrays(
    np.float64,
    hnp.array_shapes(min_dims=2, max_dims=4, min_side=1, max_side=5),
    elements=st.one_of(st.just(0.0), st.floats(-100, 100, allow_subnormal=False).filter(lambda v: abs(v) > 1e-6)),
)


def slow_gini(row: list[float]) -> float:
    """Mean absolute difference over all pairs, over twice the mean: Gini's own definition."""
    v = [abs(r) for r in row]
    n, total = len(v), math.fsum(v)
    if total == 0:
        return 0.0
    return math.fsum(abs(a - b) for a in v for b in v) / (2 * n * total)


def slow_entropy(row: list[float]) -> float:
    v = [abs(r) for r in row]
    total = math.fsum(v)
    if total == 0:
        return math.log(len(v))
    return -math.fsum(a / total * math.log(a / total) for a in v if a > 0)


def slow_hoyer(row: list[float]) -> float:
    v = [abs(r) for r in row]
    n, one, two = len(v), math.fsum(v), math.sqrt(math.fsum(a * a for a in v))
    if n == 1 or one == 0:
        return 0.0
    return (math.sqrt(n) - one / two) / (math.sqrt(n) - 1)


def slow_nonzero(row: list[float]) -> float:
    return sum(r != 0 for r in row) / len(row)


@settings(max_examples=60, deadline=None)
@given(maps)
def test_formulas(array: np.ndarray) -> None:
    rows = array.reshape(len(array), -1).tolist()
    for fast, slow in zip(MEASURES, [slow_gini, slow_entropy, slow_hoyer, slow_nonzero], strict=True):
        assert fast(torch.from_numpy(array)).tolist() == pytest.approx([slow(row) for row in rows], abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(maps, st.floats(0.01, 50), st.randoms(use_true_random=False))
def test_scale_sign_and_order_do_not_matter(array: np.ndarray, scale: float, random: object) -> None:
    relevance = torch.from_numpy(array).flatten(1)
    shuffled = relevance[:, torch.randperm(relevance.shape[1], generator=torch.Generator().manual_seed(0))]
    for measure in MEASURES:
        torch.testing.assert_close(measure(-scale * shuffled), measure(relevance), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("measure", MEASURES)
def test_a_score_depends_on_its_own_sample_alone(measure) -> None:
    generator = torch.Generator().manual_seed(0)
    relevance = torch.randn(7, 3, 5, 5, generator=generator)
    relevance[1] *= 1e6  # a sample with large values
    relevance[2] = 0
    together = measure(relevance)
    alone = torch.cat([measure(relevance[i : i + 1]) for i in range(7)])
    assert torch.equal(together, alone)


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64])
def test_any_dtype_in_float64_out_and_inputs_untouched(measure, dtype: torch.dtype) -> None:
    relevance = torch.tensor([[0, -3, 1, 2], [4, 0, 0, 0]]).to(dtype)
    before = relevance.clone()
    scores = measure(relevance)
    assert scores.dtype == torch.float64
    assert scores.shape == (2,)
    assert torch.equal(relevance, before)
    torch.testing.assert_close(scores, measure(relevance.double()), rtol=1e-6, atol=1e-6)


def test_numpy_arrays_and_non_contiguous_maps_are_fine_and_untouched() -> None:
    array = np.random.default_rng(0).normal(size=(2, 4, 6))
    copy = array.copy()
    assert gini(array.transpose(0, 2, 1)).tolist() == pytest.approx(gini(array).tolist(), abs=1e-12)
    np.testing.assert_array_equal(array, copy)
    column = torch.randn(3, 8, 2)[:, :, 0]
    assert torch.equal(gini(column), gini(column.clone()))


def test_zero_and_constant_maps_are_least_sparse() -> None:
    for value in (0.0, 3.0, -2.0):
        constant = torch.full((1, 10), value)
        assert gini(constant).item() == pytest.approx(0, abs=1e-12)
        assert entropy(constant).item() == pytest.approx(math.log(10), abs=1e-6)
        assert entropy(constant, normalised=True).item() == pytest.approx(1, abs=1e-6)
        assert hoyer(constant).item() == pytest.approx(0, abs=1e-9)
    assert nonzero(torch.zeros(1, 10)).item() == 0


def test_a_single_entry_is_most_sparse() -> None:
    one = torch.zeros(1, 10)
    one[0, 4] = -7
    assert gini(one).item() == pytest.approx(0.9)
    assert entropy(one).item() == 0
    assert hoyer(one).item() == pytest.approx(1)
    assert nonzero(one).item() == pytest.approx(0.1)


def test_one_feature() -> None:
    one = torch.tensor([[5.0], [0.0]])
    assert gini(one).tolist() == [0, 0]
    assert entropy(one, normalised=True).tolist() == [0, 0]
    assert hoyer(one).tolist() == [0, 0]
    assert nonzero(one).tolist() == [1, 0]


@pytest.mark.parametrize("measure", MEASURES)
def test_empty_batches_and_bad_maps(measure) -> None:
    assert measure(torch.zeros(0, 3, 4)).shape == (0,)
    with pytest.raises(ValueError, match="no features"):
        measure(torch.zeros(2, 0))
    with pytest.raises(ValueError, match="no batch axis"):
        measure(torch.zeros(5))
    for bad in (torch.nan, torch.inf, -torch.inf):
        relevance = torch.ones(3, 4)
        relevance[1, 2] = bad
        with pytest.raises(ValueError, match=r"NaN or infinite values in sample\(s\) \[1\]"):
            measure(relevance)


def test_threshold_of_nonzero() -> None:
    relevance = torch.tensor([[10.0, -2.0, 0.5, 0.0]])
    assert nonzero(relevance, threshold=0.1).item() == 0.5
    with pytest.raises(ValueError, match="threshold"):
        nonzero(relevance, threshold=1.0)


def test_channels_are_pooled_as_asked() -> None:
    relevance = torch.tensor([[[1.0, 2.0], [-1.0, 2.0]]])  # one sample, two channels, two positions
    assert pool_channels(relevance, "sum").tolist() == [[0, 4]]
    assert pool_channels(relevance, "mean").tolist() == [[0, 2]]
    assert pool_channels(relevance, "max").tolist() == [[1, 2]]
    assert pool_channels(relevance, "absolute").tolist() == [[2, 4]]
    torch.testing.assert_close(pool_channels(relevance, "norm"), torch.tensor([[2.0, 8.0]]).sqrt())
    assert gini(relevance, channels="sum").item() == pytest.approx(0.5)  # one of two entries holds all
    assert gini(relevance).item() == pytest.approx(slow_gini([1, 2, -1, 2]))
    with pytest.raises(ValueError, match="no channel axis"):
        gini(torch.ones(2, 3), channels="sum")
    with pytest.raises(ValueError, match="unknown pooling"):
        gini(relevance, channels="median")  # type: ignore[arg-type]


def test_gini_of_a_large_float32_map_is_exact_to_1e_9() -> None:
    relevance = torch.randn(1, 224 * 224, generator=torch.Generator().manual_seed(0)).exp()
    v = np.sort(relevance.double().numpy().ravel())
    n = v.size
    expected = ((2 * np.arange(1, n + 1) - n - 1) * v).sum() / (n * v.sum())
    assert gini(relevance).item() == pytest.approx(expected, abs=1e-9)
