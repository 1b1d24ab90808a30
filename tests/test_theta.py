"""θ is the threshold of the design's definition, to the last bit in float32."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import oracles
import plrp
from plrp import pruning, rules

TINY = 2.0**-149  # the smallest float32 denormal
single = st.floats(min_value=0, max_value=2.0**120, width=32, allow_subnormal=True)
few = st.sampled_from(
    [0.0, -0.0, TINY, 3 * TINY, 2.0**-126, 0.10000000149011612, 0.25, 1.0, 1.0000001192092896, 3.0, 2.0**100]
)
vectors = st.one_of(
    st.lists(few, min_size=1, max_size=30),  # many ties
    st.lists(single, min_size=1, max_size=30),  # huge ranges
    st.lists(st.floats(0, 1, width=32), min_size=1, max_size=60),
    st.tuples(single, st.integers(1, 20)).map(lambda t: [t[0]] * t[1]),  # all equal
    st.lists(st.integers(0, 40).map(float), min_size=1, max_size=40),  # sums that meet p·C exactly
)
proportions = st.one_of(
    st.sampled_from([0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.95, 1 - 2**-53, 2**-60]),
    st.floats(0, 1, exclude_max=True),
)


def engine_threshold(values: list[float], p: float, dtype: torch.dtype = torch.float32) -> float:
    return float(pruning.threshold(torch.tensor([values], dtype=dtype), p)[0])


@settings(max_examples=600, deadline=None)
@given(vectors, proportions)
@example([1.0, 1.0, 1.0, 1.0], 0.25)
@example([1.0, 1.0, 1.0, 1.0], 0.0)
@example([0.0], 0.5)
@example([-0.0, -0.0], 0.5)
@example([5.0], 0.99)
@example([1.0, 2.0, 3.0, 4.0], 0.1)  # C(1) = 1 = p·C(max), up to how 0.1·10 rounds
@example([TINY, TINY, 1.0], 0.5)
@example([TINY, 2.0**120], 0.0)
@example([1.0, 1.0, 2.0], 0.5)
@example([1.0] * 7 + [3.0], 0.7)  # C(1) = 7 = p·C(max) in float64; float32's 0.7 is smaller
@example([2.0**-126] * 7 + [3 * 2.0**-126], 0.7)  # the two smallest exponents of normal numbers
def test_theta_is_the_definition_exactly_in_float32(values, p):
    assert engine_threshold(values, p) == oracles.threshold(values, p)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(0, 2.0**500, allow_subnormal=True), min_size=1, max_size=30), proportions)
def test_theta_in_float64_is_the_definition_or_its_neighbour_where_rounding_decides(values, p):
    assert engine_threshold(values, p, torch.float64) in oracles.acceptable_thresholds(values, p)


@settings(max_examples=300, deadline=None)
@given(vectors, proportions)
def test_at_least_one_minus_p_of_the_mass_is_kept(values, p):
    theta = engine_threshold(values, p)
    total = sum(map(Fraction, values))
    kept = sum(Fraction(v) for v in values if v > theta)
    assert kept >= (1 - Fraction(p)) * total * (1 - Fraction(1, 10**14))
    assert kept > 0 or total == 0


@settings(max_examples=200, deadline=None)
@given(vectors, proportions, proportions)
def test_more_p_never_lowers_theta(values, p, q):
    assert engine_threshold(values, min(p, q)) <= engine_threshold(values, max(p, q))


@settings(max_examples=100, deadline=None)
@given(vectors, proportions, st.randoms(use_true_random=False))
def test_theta_does_not_depend_on_the_order_of_entries(values, p, random):
    shuffled = values[:]
    random.shuffle(shuffled)
    assert engine_threshold(values, p) == engine_threshold(shuffled, p)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.lists(few, min_size=7, max_size=7), proportions), min_size=1, max_size=6))
def test_rows_of_a_batch_have_each_their_own_p_and_theta(rows):
    values = torch.tensor([row for row, _ in rows])
    p = torch.tensor([q for _, q in rows], dtype=torch.float64)
    found = pruning.threshold(values, p)
    assert found.shape == (len(rows),)
    assert found.dtype == values.dtype
    assert found.tolist() == [oracles.threshold(row, q) for row, q in rows]


def test_the_papers_formula_and_ours_agree_without_ties():
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        values = torch.rand(40, generator=generator, dtype=torch.float32)
        assert len(set(values.tolist())) == 40
        p = float(torch.rand(1, generator=generator))
        ascending = sorted(values.tolist())
        running = [math.fsum(ascending[: i + 1]) for i in range(40)]
        paper = max((v for v, c in zip(ascending, running, strict=True) if c <= p * running[-1]), default=0.0)
        assert engine_threshold(values.tolist(), p) == paper


def threshold_in_one_pass(values: Tensor, p: float) -> float:
    """The definition once more for long vectors: one exact cumulative pass instead of a sum per candidate."""
    count: dict[float, int] = {}
    for v in values.tolist():
        count[v] = count.get(v, 0) + 1
    ascending = sorted(count)
    total = oracles.cumulated_mass(values.tolist())
    theta, finished, exponent, within = 0.0, 0.0, None, Fraction(0)
    for v in ascending[:-1]:
        if v > 0:
            if oracles.binary_exponent(v) != exponent:
                finished, within, exponent = finished + float(within), Fraction(0), oracles.binary_exponent(v)
            within += Fraction(v) * count[v]
            if finished + float(within) <= p * total:
                theta = v
    return theta


@pytest.mark.parametrize("size", [1, 2, 3, 1000, 70_000])
@pytest.mark.parametrize("p", [0.0, 0.05, 0.5, 0.95])
@pytest.mark.parametrize("kind", ["normal", "relu", "lognormal", "quantised"])
def test_theta_of_long_vectors_is_the_definition_exactly(kind, p, size):
    generator = torch.Generator().manual_seed(size)
    values = torch.randn(size, generator=generator)
    values = {
        "normal": values.abs(),
        "relu": values.clamp(min=0),
        "lognormal": (6 * values).exp(),
        "quantised": (values.abs() * 8).round() / 8,
    }[kind]
    assert float(pruning.threshold(values[None], p)[0]) == threshold_in_one_pass(values, p)


def test_an_empty_batch_and_an_empty_tensor_have_thresholds_of_zero():
    assert pruning.threshold(torch.empty(0, 5), 0.3).shape == (0,)
    assert pruning.threshold(torch.empty(2, 0), 0.3).tolist() == [0.0, 0.0]


# ---------------------------------------------------------------- once more through explain()


class Weighted(nn.Module):
    """Under the 0-rule the input of `head` has the relevance x_j·w_j of a given signed vector."""

    def __init__(self, size: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.first = nn.Linear(size, size, bias=False, dtype=dtype)
        self.head = nn.Linear(size, 1, bias=False, dtype=dtype)
        with torch.no_grad():
            self.first.weight.copy_(torch.eye(size))
            self.head.weight.fill_(1.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.first(x))


class Single(nn.Module):
    """The same for long vectors: a 1 × 1 convolution below the head instead of an identity matrix."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.first, self.head = nn.Conv1d(1, 1, 1, bias=False), nn.Linear(size, 1, bias=False)
        nn.init.ones_(self.first.weight)
        nn.init.ones_(self.head.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.first(x).flatten(1))


@pytest.mark.parametrize("size", [8191, 8192, 40_000])
@pytest.mark.parametrize("p", [0.05, 0.5, 0.95])
def test_explain_keeps_the_entries_of_long_vectors_above_theta(p, size):
    """Ties, zeros of both signs and denormals among 40,000 entries; p of the negative part is another."""
    generator = torch.Generator().manual_seed(size)
    x = torch.randn(2, 1, size, generator=generator) * torch.tensor([1.0, 1e-20]).reshape(2, 1, 1)
    x[:, :, ::5] = (x[:, :, ::5] * 4).round() / 4
    x[:, :, 1::50], x[:, :, 2::50], x[:, :, 3::50] = 0.0, -0.0, TINY
    trace = plrp.trace(Single(size).eval(), x)
    zero = plrp.Composite([(plrp.composites.is_any, rules.Zero())], name="zero")
    before = trace.explain(target=0, composite=zero, layers=True).layers["head"]
    pruning = plrp.Pruning(p=p, p_negative=p / 2)
    after = trace.explain(target=0, composite=zero, pruning=pruning, layers=True).layers["head"]
    for r, kept in zip(before, after, strict=True):
        up = threshold_in_one_pass(oracles.positive(r), p)
        down = threshold_in_one_pass(-oracles.negative(r), p / 2)
        assert torch.equal(kept != 0, (r > up) | (-r > down))


signed = st.lists(st.one_of(few, few.map(lambda v: -v), st.floats(-100, 100, width=32)), min_size=1, max_size=24)


@settings(max_examples=150, deadline=None)
@given(signed, proportions, proportions)
@example([1.0, -0.0, -1.0, 0.0, 2.0, -3.0, 5.0], 0.5, 0.25)
@example([1.0, 1.0, 1.0, 1.0], 0.25, 0.25)
@example([-1.0, -1.0, -2.0], 0.5, 0.5)
def test_explain_keeps_the_entries_of_either_sign_above_theta(values, p, p_negative):
    x = torch.tensor([values, values[::-1]])
    trace = plrp.trace(Weighted(len(values)).eval(), x)
    zero = plrp.Composite([(plrp.composites.is_any, rules.Zero())], name="zero")
    before = trace.explain(target=0, composite=zero, layers=True).layers["head"]
    pruning = plrp.Pruning(p=p, p_negative=p_negative)
    explanation = trace.explain(target=0, composite=zero, pruning=pruning, layers=True)
    after = explanation.layers["head"]
    for sample in range(2):
        r = before[sample]
        theta = oracles.Cut(p=p, p_negative=p_negative).thresholds(r)
        expected = (r > theta[0]) | (-r > theta[1])
        assert torch.equal(after[sample] != 0, expected)
        rows = [w for w in explanation.ledger if w["op"] == "prune" and w["sample"] == sample]
        if bool((r != 0).any()):
            [row] = rows
            assert (row["theta_positive"], row["theta_negative"]) == theta
            assert row["neurons_before"] == int((r != 0).sum())
            assert row["neurons_after"] == int(expected.sum())
