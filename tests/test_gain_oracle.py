"""The sparsity gain prunes exactly the tie groups a slow, exact group-by-group walk prunes."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import oracles
import plrp
from plrp import rules
from plrp.pruning import _thetas

MEASURES = ["zeros", "gini"]


class Weighted(nn.Module):
    """Under the 0-rule, the input of `head` has the relevance x_j of a given signed vector."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.first = nn.Linear(size, size, bias=False, dtype=torch.float64)
        self.head = nn.Linear(size, 1, bias=False, dtype=torch.float64)
        with torch.no_grad():
            self.first.weight.copy_(torch.eye(size))
            self.head.weight.fill_(1.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.first(x))


def zero_rule() -> plrp.Composite:
    return plrp.Composite([(plrp.composites.is_any, rules.Zero())], name="zero")


def before_and_after(values: list[float], pruning: plrp.Pruning) -> tuple[Tensor, Tensor]:
    trace = plrp.trace(Weighted(len(values)).eval(), torch.tensor([values], dtype=torch.float64))
    before = trace.explain(target=0, composite=zero_rule(), layers=True).layers["head"][0]
    after = trace.explain(target=0, composite=zero_rule(), pruning=pruning, layers=True).layers["head"][0]
    return before, after


def parts(r: Tensor) -> tuple[list[float], list[float]]:
    return oracles.positive(r).tolist(), (-oracles.negative(r)).tolist()


entries = st.one_of(
    st.lists(st.floats(-10, 10, width=32).filter(lambda v: v == 0 or abs(v) > 1e-3), min_size=2, max_size=20),
    st.lists(st.integers(-6, 6).map(float), min_size=2, max_size=24),  # ties
)


@pytest.mark.parametrize("measure", MEASURES)
@settings(max_examples=200, deadline=None)
@given(entries, st.sampled_from([0.1, 0.5, 0.8, 1.0, 1.3, 1.7, 2.5, 6.0]), st.sampled_from([None, 0.1, 0.4, 0.9]))
@example([1.0, 1.0, 1.0, 5.0], 1.0, None)
@example([1.0, 2.0, 3.0, -4.0, -1.0, 0.0], 1.0, 0.5)
@example([0.01, 0.01, 0.02, 0.03, 0.05], 1.0, None)  # Σ|R| far below 1
@example([2.0, 2.0, 3.0, 4.0, 6.0], 1.3, None)  # the smallest entries are equal
def test_the_gain_prunes_what_the_group_by_group_walk_prunes(measure, values, gain, p):
    pruning = plrp.Pruning(p=p, sparsity_gain=gain, measure=measure)
    before, after = before_and_after(values, pruning)
    assume(bool(before.any()))
    expected = torch.zeros(len(values), dtype=torch.bool)
    for part in parts(before):
        if any(part):
            theta, margin = oracles.gain_threshold(part, gain, measure, p)
            assume(margin > 1e-9)  # where rounding decides, either neighbour is right
            expected |= torch.tensor([v > theta for v in part])
    assert torch.equal(after != 0, expected)


@settings(max_examples=200, deadline=None)
@given(entries, st.sampled_from([0.3, 0.5, 1.0, 2.0, 4.0]))
def test_the_zeros_gain_prunes_all_up_to_mean_over_gain_but_the_largest(values, gain):
    pruning = plrp.Pruning(p=None, sparsity_gain=gain, measure="zeros")
    before, after = before_and_after(values, pruning)
    for part, kept in zip(parts(before), parts(after), strict=True):
        limit = sum(part) / len(part) / gain
        for v, survivor in zip(part, kept, strict=True):
            if v == 0 or abs(v - limit) < 1e-9 * max(part):
                continue
            assert (survivor > 0) == (v > limit or v == max(part))


@pytest.mark.parametrize("measure", MEASURES)
@settings(max_examples=100, deadline=None)
@given(entries, st.floats(0.05, 8), st.floats(0.05, 8))
def test_a_higher_gain_never_prunes_more(measure, values, gain, other):
    low = before_and_after(values, plrp.Pruning(p=None, sparsity_gain=min(gain, other), measure=measure))[1]
    high = before_and_after(values, plrp.Pruning(p=None, sparsity_gain=max(gain, other), measure=measure))[1]
    assert bool(((low != 0) <= (high != 0)).all())


@pytest.mark.parametrize("measure", MEASURES)
@settings(max_examples=100, deadline=None)
@given(entries, st.floats(0.05, 4), st.floats(0, 0.99))
def test_a_cap_p_keeps_at_least_one_minus_p_of_each_signs_mass(measure, values, gain, p):
    pruning = plrp.Pruning(p=p, sparsity_gain=gain, measure=measure, conserve=False)
    before, after = before_and_after(values, pruning)
    for part, kept in zip(parts(before), parts(after), strict=True):
        assert sum(kept) >= (1 - p) * sum(part) * (1 - 1e-12)


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("gain", [1e-6, 1.0, 1e6])
def test_the_largest_group_always_survives_and_mass_is_conserved(measure, gain):
    values = [1.0, 1.0, 2.0, 3.0, 3.0, -1.0, -5.0, 0.0]
    _, after = before_and_after(values, plrp.Pruning(p=None, sparsity_gain=gain, measure=measure))
    assert after[3] > 0
    assert after[4] > 0
    assert after[6] < 0
    assert float(oracles.positive(after).sum()) == pytest.approx(10)
    assert float(oracles.negative(after).sum()) == pytest.approx(-6)


def test_the_designs_closed_form_of_the_gini_gain_is_the_walks():
    """gain_k = 2·S_0·(T_k − k·S_k)/(n·S_k·S_{k−1}), non-increasing, starting near 1 + Gini."""
    torch.manual_seed(0)
    values = sorted(torch.rand(60, dtype=torch.float64).pow(2).tolist())
    n = len(values)

    def tail(k: int) -> float:
        return sum(values[k:])

    def ranked_tail(k: int) -> float:
        return sum(i * v for i, v in enumerate(values[k:], k + 1))

    closed = [2 * tail(0) * (ranked_tail(k) - k * tail(k)) / (n * tail(k) * tail(k - 1)) for k in range(1, n)]
    walked = [float(g) for _, g in oracles.gains(values, "gini")]
    assert closed == pytest.approx(walked, rel=1e-9)
    assert all(a >= b - 1e-12 for a, b in pairwise(closed))
    index = float(oracles.gini([oracles.Fraction(v) for v in values]))
    assert closed[0] == pytest.approx(1 + index, rel=0.05)


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("p", [None, 0.3])
def test_the_gain_prunes_a_network_layer_by_layer_as_the_walk_does(measure, p):
    torch.manual_seed(4)
    first, second, third = (nn.Linear(a, b).double() for a, b in ((6, 12), (12, 10), (10, 3)))
    model = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), third).eval()
    x = torch.randn(4, 6, dtype=torch.float64)
    steps = [
        oracles.linear_step("0", "x", first, (6,)), oracles.relu_step("a", "0"),
        oracles.linear_step("2", "a", second, (12,)), oracles.relu_step("b", "2"),
        oracles.linear_step("4", "b", third, (10,)),
    ]  # fmt: skip
    for redistribution in ("lambda", "M"):
        options = {"p": p, "sparsity_gain": 1.0, "measure": measure, "redistribution": redistribution}
        explanation = plrp.explain(
            model, x, target=1, composite="epsilon", pruning=plrp.Pruning(**options), layers=True
        )
        for sample in range(4):
            walk = oracles.walk(steps, x[sample], 1, lambda *_: ("epsilon", {}), oracles.Cut(**options))
            for layer, tensor in (("4", "b"), ("2", "a"), ("0", "x")):
                found = explanation.layers[layer][sample]
                assert oracles.relative_difference(found, walk.relevance[tensor]) < 1e-9


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("gain", [0.8, 1.0, 1.3])
def test_each_sample_of_a_batch_is_pruned_by_its_own_gains(measure, gain):
    torch.manual_seed(0)
    x = torch.randint(-6, 7, (12, 10)).double() * torch.logspace(-3, 3, 12, dtype=torch.float64)[:, None]
    options = {"target": 0, "composite": zero_rule(), "layers": True}
    options["pruning"] = plrp.Pruning(p=None, sparsity_gain=gain, measure=measure)
    model = Weighted(10).eval()
    together = plrp.explain(model, x, **options).layers["head"]
    alone = torch.cat([plrp.explain(model, row[None], **options).layers["head"] for row in x])
    assert torch.equal(together, alone)
    zeros = (alone == 0).sum(1)
    assert zeros.max() > zeros.min()


@pytest.mark.parametrize("measure", MEASURES)
def test_a_tensor_without_neurons_has_nothing_to_prune_by_gain(measure):
    model = nn.Sequential(nn.Linear(4, 0), nn.Linear(0, 2)).eval()
    found = plrp.explain(model, torch.ones(3, 4), target=0, pruning=plrp.Pruning(sparsity_gain=1.0, measure=measure))
    assert torch.equal(found.relevance, torch.zeros(3, 4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("measure", MEASURES)
def test_a_gain_equal_to_the_asked_one_is_pruned(measure, dtype):
    """While gain ≥ g: for gains that are equal exactly, whatever the order and the unit of the entries."""
    generator = torch.Generator().manual_seed(0)
    tried = 0
    for _ in range(60):
        values = torch.randint(
            1, 12, (int(torch.randint(3, 9, (1,), generator=generator)),), generator=generator
        ).tolist()
        for value, gained in oracles.gains(values, measure):
            for unit in (1.0, 3.0, 2.0**-40, 1 / 8):
                part = torch.tensor([[v * unit for v in values], [v * unit for v in reversed(values)]], dtype=dtype)
                tried += 1
                for gain, prunes in ((float(gained), True), (float(gained) * (1 + 1e-6), False)):
                    theta = _thetas((part, part), plrp.Pruning(p=None, sparsity_gain=gain, measure=measure), None, None)
                    assert bool((theta[0] >= value * unit).all()) == prunes
                    assert bool((theta[1] >= value * unit).any()) == prunes
    assert tried > 500


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("plain", [True, False])
def test_equal_gains_of_powers_of_two_are_pruned_in_both_walks(measure, plain):
    """Zeros: of a mean of 16 the entry 2 gains 8, 4 gains 4, 8 gains 2."""
    values = [2.0, 4.0, 8.0, 50.0]
    for value, gained in oracles.gains(values, measure):
        with plrp.plain_walk() if plain else torch.no_grad():
            pruning = plrp.Pruning(p=None, sparsity_gain=float(gained), measure=measure)
            _, after = before_and_after(values, pruning)
        assert [bool(v) for v in after] == [v > value for v in values]
