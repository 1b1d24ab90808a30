"""Pruning at its edges: p = 0, ties, zeros, single neurons, empty batches, signs without survivors."""

from __future__ import annotations

import json
import pickle
import warnings
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import oracles
import plrp
from plrp import rules

models = pytest.importorskip("torchvision").models
BOTH = pytest.mark.parametrize("redistribution", ["lambda", "M", "M-sign"])
COMPOSITES = ["epsilon-plus-flat", "epsilon-alpha2-beta1", "epsilon"]


@pytest.fixture(autouse=True)
def _warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", plrp.BrokenArithmetic)  # at the edges they are
        yield


class Small(nn.Module):
    """Convolutions, a skip, a pool and a dense head."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (
            nn.Conv1d(3, 8, 3, padding=1),
            nn.Conv1d(8, 8, 3, padding=1),
            nn.Linear(32, 10),
        )
        self.d = nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.a(x))
        h = F.max_pool1d(F.relu(h + self.b(h)), 2)
        return self.d(F.relu(self.c(h.flatten(1))))


def small(seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(seed)
    return Small().to(dtype).eval(), torch.randn(3, 3, 8, dtype=dtype)


@cache
def resnet() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return oracles.randomise_statistics(models.resnet18(num_classes=10).eval()), torch.randn(2, 3, 32, 32)


@BOTH
@pytest.mark.parametrize("composite", [*COMPOSITES, "flat", "wsquare", "gamma"])
@pytest.mark.parametrize("network", [small, resnet])
def test_p_zero_is_lrp_to_the_last_bit(network, composite, redistribution):
    everywhere = {"flat": rules.Flat(), "wsquare": rules.WSquare(), "gamma": rules.Gamma()}.get(composite)
    if everywhere is not None:
        composite = plrp.Composite([(plrp.composites.is_any, everywhere)], name=composite)
    trace = plrp.trace(*network())
    plain = trace.explain(composite=composite, layers=True)
    pruned = trace.explain(composite=composite, pruning=plrp.Pruning(p=0.0, redistribution=redistribution), layers=True)
    assert torch.equal(plain.relevance, pruned.relevance)
    for name, relevance in plain.layers.items():
        assert torch.equal(relevance, pruned.layers[name]), name


@BOTH
@pytest.mark.parametrize("measure", ["zeros", "gini"])
@pytest.mark.parametrize("network", [small, resnet])
def test_p_zero_with_a_gain_is_lrp_to_the_last_bit(network, measure, redistribution):
    """However much sparsity each entry would buy: a share of zero is nothing."""
    pruning = plrp.Pruning(p=0.0, redistribution=redistribution, sparsity_gain=0.01, measure=measure)
    trace = plrp.trace(*network())
    for composite in COMPOSITES:
        plain = trace.explain(composite=composite, layers=True)
        pruned = trace.explain(composite=composite, pruning=pruning, layers=True)
        assert torch.equal(plain.relevance, pruned.relevance)
        for name, relevance in plain.layers.items():
            assert torch.equal(relevance, pruned.layers[name]), name


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.floats(0, 0.99), st.sampled_from(COMPOSITES))
def test_lambda_never_flips_a_sign_nor_wakes_a_zero(seed, p, composite):
    trace = plrp.trace(*small(seed))
    before = trace.explain(composite=composite, layers=True)
    after = trace.explain(composite=composite, pruning=plrp.Pruning(p=p), layers=True)
    top = "d"
    assert bool((before.layers[top] * after.layers[top] >= 0).all())
    assert not after.layers[top][before.layers[top] == 0].any()
    rows = [row for row in after.ledger if row["op"] == "prune"]
    assert all(row["flipped"] == 0 for row in rows)
    assert all(row["flipped_mass"] == 0 for row in rows)


def test_lambda_may_still_change_a_sign_at_the_input():
    """The neurons 3 and 1 give x₁ −1 and +2: with the weak one goes the +2, and λ = 4/3 scales the −1."""
    model, x = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False)), torch.ones(1, 2)
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[-1.0, 4.0], [2.0, -1.0]]))
        model[2].weight.fill_(1.0)
    lrp, pruned = (
        plrp.explain(model, x, composite="epsilon", pruning=p, layers=["2"]) for p in (None, plrp.Pruning(0.3))
    )
    assert torch.allclose(lrp.layers["2"], torch.tensor([[3.0, 1.0]]))
    assert torch.allclose(pruned.layers["2"], torch.tensor([[4.0, 0.0]]))
    assert torch.allclose(lrp.relevance, torch.tensor([[1.0, 3.0]]), atol=1e-4)
    assert torch.allclose(pruned.relevance, torch.tensor([[-4 / 3, 16 / 3]]), atol=1e-4)


def test_where_evidence_cancels_a_small_p_moves_the_whole_score():
    """Hidden relevance 20, −20 and 1: the 1, which is all of the score and of x₁, is less than p = 0.05 of 21."""
    model, x = nn.Sequential(nn.Linear(2, 3, bias=False), nn.ReLU(), nn.Linear(3, 1, bias=False)), torch.ones(1, 2)
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[0.0, 20.0], [0.0, 20.0], [1.0, 0.0]]))
        model[2].weight.copy_(torch.tensor([[1.0, -1.0, 1.0]]))
    lrp, pruned = (plrp.explain(model, x, composite="epsilon", pruning=p) for p in (None, plrp.Pruning(0.05)))
    assert float(lrp.score) == 1
    assert float(lrp.balance.amplification) == pytest.approx(41, rel=1e-4)
    assert torch.allclose(lrp.relevance, torch.tensor([[1.0, 0.0]]), atol=1e-4)
    assert torch.allclose(pruned.relevance, torch.tensor([[0.0, 1.0]]), atol=1e-4)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.floats(0, 0.99), st.sampled_from(COMPOSITES))
def test_lambda_moves_no_more_than_p_of_the_mass(seed, p, composite):
    """Weak neurons lose at most p·Σ|R| of a tensor, and strong ones get as much."""
    trace = plrp.trace(*small(seed))
    before = trace.explain(composite=composite, layers=True).layers["d"].double().flatten(1)
    pruning = plrp.Pruning(p=p)
    after = trace.explain(composite=composite, pruning=pruning, layers=True).layers["d"].double().flatten(1)
    assert bool(((after - before).abs().sum(1) <= 2 * p * before.abs().sum(1) * (1 + 1e-5) + 1e-12).all())


@BOTH
@pytest.mark.parametrize("composite", COMPOSITES)
def test_more_p_never_leaves_more_neurons_in_the_topmost_pruned_layer(composite, redistribution):
    trace = plrp.trace(*resnet())
    previous = None
    for p in (0.0, 0.01, 0.05, 0.2, 0.5, 0.8, 0.95, 0.999):
        pruning = plrp.Pruning(p=p, redistribution=redistribution)
        alive = trace.explain(composite=composite, pruning=pruning, layers=True).layers["fc"] != 0
        if previous is not None:
            assert bool((alive <= previous).all())
        previous = alive


@BOTH
def test_neurons_without_relevance_stay_without(redistribution):
    trace = plrp.trace(*small())
    before = trace.explain(composite="epsilon", layers=True).layers["d"]
    pruning = plrp.Pruning(p=0.4, redistribution=redistribution)
    after = trace.explain(composite="epsilon", pruning=pruning, layers=True).layers["d"]
    assert bool((before == 0).any())
    assert not after[before == 0].any()


@BOTH
@pytest.mark.parametrize("p", [0.0, 0.25, 0.5, 0.99])
def test_equal_relevance_everywhere_is_kept_whole(redistribution, p):
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 1, bias=False)).eval()
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(4))
        model[1].weight.fill_(1.0)
    trace = plrp.trace(model, torch.ones(2, 4))
    pruning = plrp.Pruning(p=p, redistribution=redistribution)
    plain = trace.explain(target=0, composite="epsilon")
    pruned = trace.explain(target=0, composite="epsilon", pruning=pruning)
    assert torch.equal(plain.relevance, pruned.relevance)


@BOTH
@pytest.mark.parametrize("composite", COMPOSITES)
def test_a_score_of_exactly_zero_gives_zero_relevance(composite, redistribution):
    model, x = small()
    with torch.no_grad():
        model.d.weight[1].zero_()
        model.d.bias[1].zero_()
    pruning = plrp.Pruning(p=0.3, redistribution=redistribution)
    explanation = plrp.explain(model, x, target=1, composite=composite, pruning=pruning)
    assert not explanation.relevance.any()
    assert bool(torch.isfinite(explanation.relevance).all())
    for row in explanation.ledger:
        assert oracles.net(row, "in") == 0
        assert all(value == value for value in row.values()), "NaN in the ledger"


@BOTH
@pytest.mark.parametrize("composite", COMPOSITES)
def test_an_all_zero_input_is_explained_without_nan(composite, redistribution):
    model, x = small()
    pruning = plrp.Pruning(p=0.3, redistribution=redistribution)
    explanation = plrp.explain(model, torch.zeros_like(x), composite=composite, pruning=pruning)
    assert bool(torch.isfinite(explanation.relevance).all())
    oracles.assert_ledger_closes(explanation, explanation.logits.max(1).values, 1e-4)


@BOTH
@pytest.mark.parametrize("composite", COMPOSITES)
def test_a_negative_score_is_explained_and_conserved(composite, redistribution):
    model, x = small()
    lowest = model(x).argmin(1)
    scores = model(x).detach().gather(1, lowest[:, None])[:, 0]
    assert bool((scores < 0).all())
    pruning = plrp.Pruning(p=0.3, redistribution=redistribution)
    explanation = plrp.explain(model, x, target=lowest, composite=composite, pruning=pruning)
    oracles.assert_ledger_closes(explanation, scores, 1e-4)
    for row in explanation.ledger:
        if row["op"] == "prune":
            norm = row["mass_in_positive"] + row["mass_in_negative"]
            assert abs(oracles.net(row, "in") - oracles.net(row, "out")) <= 1e-5 * norm


@BOTH
@pytest.mark.parametrize("p", [0.1, 0.99])
def test_a_layer_with_one_neuron_keeps_it(redistribution, p):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 1), nn.Linear(1, 1), nn.Linear(1, 3)).eval()
    x = torch.randn(4, 5)
    trace = plrp.trace(model, x)
    pruning = plrp.Pruning(p=p, redistribution=redistribution)
    assert torch.equal(trace.explain(pruning=pruning).relevance, trace.explain().relevance)


@BOTH
@pytest.mark.parametrize("network", [small, resnet])
def test_a_batch_of_no_samples_gives_relevance_of_no_samples(network, redistribution):
    model, x = network()
    explanation = plrp.explain(model, x[:0], pruning=plrp.Pruning(p=0.2, redistribution=redistribution))
    by_channel = plrp.Pruning(p=0.2, redistribution=redistribution, unit="channel")
    assert explanation.relevance.shape == plrp.explain(model, x[:0], pruning=by_channel).relevance.shape == x[:0].shape
    assert explanation.logits.shape[0] == 0
    assert list(explanation.ledger) == []
    assert str(explanation)


def test_a_batch_of_no_samples_works_without_pruning_too():
    model, x = small()
    assert plrp.explain(model, x[:0], target=1).relevance.shape == x[:0].shape
    assert plrp.explain(model, x[:0], target=[]).relevance.shape == x[:0].shape


@BOTH
@pytest.mark.parametrize("p_negative", [0.0, 0.5, 0.99])
def test_relevance_of_one_sign_alone_keeps_that_sign(redistribution, p_negative):
    """Only negative relevance at the pruned layer: the positive side is empty, nothing divides by it."""
    model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 1, bias=False)).double().eval()
    with torch.no_grad():
        model[0].weight.abs_()
        model[2].weight.copy_(-torch.tensor([[0.1, 0.2, 0.3, 4.0]]))
    x = torch.rand(2, 3, dtype=torch.float64)
    pruning = plrp.Pruning(p=0.5, p_negative=p_negative, redistribution=redistribution)
    explanation = plrp.explain(model, x, target=0, composite="epsilon", pruning=pruning, layers=True)
    assert not (explanation.layers["2"] > 0).any()
    total = explanation.layers["2"].sum(1)
    assert torch.allclose(total, explanation.logits[:, 0], rtol=1e-5)


@BOTH
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("composite", COMPOSITES)
def test_extreme_p_leaves_finite_relevance_and_no_lost_mass(composite, redistribution, seed):
    model, x = small(seed, torch.float64)
    pruning = plrp.Pruning(p=1 - 1e-12, redistribution=redistribution)
    explanation = plrp.explain(model, x, composite=composite, pruning=pruning, layers=True)
    assert bool(torch.isfinite(explanation.relevance).all())
    for name in ("c", "d"):
        kept = explanation.layers[name].flatten(1)
        assert int(((kept > 0).sum(1)).max()) <= 1 or redistribution != "lambda"
        assert bool(kept.any(1).all())
    oracles.assert_ledger_closes(explanation, explanation.logits.max(1).values, 1e-9)


@BOTH
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), scale=st.sampled_from([1e-30, 1e-12, 1.0, 1e12]), p=st.floats(0.01, 0.99))
def test_any_scale_of_weights_stays_finite(redistribution, seed, scale, p):
    """Float32 relevance between denormal and huge: no NaN, no infinity, whatever the scale of the score."""
    model, x = small(seed)
    with torch.no_grad():
        model.d.weight.mul_(scale)
        model.d.bias.mul_(scale)
    explanation = plrp.explain(model, x, pruning=plrp.Pruning(p=p, redistribution=redistribution))
    assert bool(torch.isfinite(explanation.relevance).all())


@BOTH
def test_the_first_layers_input_is_not_pruned(redistribution):
    model, x = small()
    explanation = plrp.explain(model, x, pruning=plrp.Pruning(p=0.9, redistribution=redistribution))
    assert "a" not in {row["layer"] for row in explanation.ledger if row["op"] == "prune"}
    assert "a" in {row["layer"] for row in explanation.ledger}


@BOTH
def test_two_first_layers_are_both_left_unpruned(redistribution):
    class TwoInputs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 6), nn.Linear(3, 6), nn.Linear(12, 2)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.c(F.relu(torch.cat([self.a(x), self.b(y)], 1)))

    torch.manual_seed(0)
    pruning = plrp.Pruning(p=0.5, redistribution=redistribution)
    explanation = plrp.explain(TwoInputs().eval(), (torch.randn(2, 4), torch.randn(2, 3)), pruning=pruning)
    assert {row["layer"] for row in explanation.ledger if row["op"] == "prune"} == {"c"}
    assert [r.shape for r in explanation.relevance] == [(2, 4), (2, 3)]


@BOTH
def test_densenets_prune_each_branchs_own_input_and_not_the_stream(redistribution):
    class Dense(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 4, 3, padding=1)
            self.bn1, self.conv1 = nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3, padding=1)
            self.bn2, self.conv2 = nn.BatchNorm2d(8), nn.Conv2d(8, 4, 3, padding=1)
            self.fc = nn.Linear(12, 3)

        def forward(self, x: Tensor) -> Tensor:
            s = self.stem(x)
            s = torch.cat([s, self.conv1(F.relu(self.bn1(s)))], 1)
            s = torch.cat([s, self.conv2(F.relu(self.bn2(s)))], 1)
            return self.fc(F.relu(s).mean((2, 3)))

    torch.manual_seed(0)
    model = oracles.randomise_statistics(Dense().double().eval())
    x = torch.randn(1, 3, 6, 6, dtype=torch.float64)
    explanation = plrp.explain(model, x, pruning=plrp.Pruning(p=0.4, redistribution=redistribution))
    pruned = [row["layer"] for row in explanation.ledger if row["op"] == "prune"]
    assert sorted(pruned) == ["conv1", "conv2", "fc"]
    oracles.assert_ledger_closes(explanation, explanation.logits.max(1).values, 1e-9)


def test_a_trace_is_explained_many_times_and_swept():
    model, x = small()
    trace = plrp.trace(model, x)
    prunings = [plrp.Pruning(p=p, redistribution=how) for p in (0.1, 0.6) for how in ("lambda", "M")]
    swept = trace.sweep(prunings, target=2, composite="epsilon-plus")
    assert iter(swept) is iter(swept), "an iterator, not a list: a sweep holds one explanation at a time"
    for pruning, explanation in zip(prunings, swept, strict=True):
        fresh = plrp.explain(model, x, target=2, composite="epsilon-plus", pruning=pruning)
        assert torch.equal(explanation.relevance, fresh.relevance)
    again = trace.explain(target=0, composite="epsilon")
    assert torch.equal(again.relevance, plrp.explain(model, x, target=0, composite="epsilon").relevance)


def test_the_forward_pass_runs_once_for_many_explanations():
    calls = []

    class Counted(Small):
        def forward(self, x: Tensor) -> Tensor:
            calls.append(1)
            return super().forward(x)

    torch.manual_seed(0)
    model = Counted().eval()
    trace = plrp.trace(model, torch.randn(1, 3, 8))
    assert len(calls) == 9  # recorded, and a second look at a model of few features, also with inputs of other sizes
    for p in (0.1, 0.5):
        trace.explain(pruning=plrp.Pruning(p=p))
    assert len(calls) == 9
    plrp.trace(model, torch.randn(1, 3, 8))
    assert len(calls) == 10


class CountedConvolutions(TorchDispatchMode):
    """Counts the convolutions and matrix products that run inside."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = str(function)
        self.count += any(word in name for word in ("convolution", "aten.mm", "aten.addmm", "aten.bmm"))
        return function(*args, **(kwargs or {}))


def test_denominators_are_computed_once_per_trace():
    """The first explanation pays for what does not depend on relevance; all others run fewer convolutions."""
    trace = plrp.trace(*small())
    counts = []
    for p in (0.1, 0.2, 0.3):
        with CountedConvolutions() as counted:
            trace.explain(pruning=plrp.Pruning(p=p))
        counts.append(counted.count)
    assert counts[1] < counts[0]
    assert counts[2] == counts[1]


def test_rules_that_print_alike_are_not_confused_on_one_trace():
    model, x = small()
    trace = plrp.trace(model, x)
    for width in (5.0, 9.0, 9.0000001, 30.0):
        bounds = {"low": torch.full((3, 1), -width), "high": torch.full((3, 1), width)}
        composite = plrp.composite("epsilon-gamma-box", **bounds)
        found = trace.explain(composite=composite, target=0).relevance
        assert torch.equal(found, plrp.explain(model, x, composite=composite, target=0).relevance)


def test_explaining_leaves_no_mark_on_the_trace():
    """Results of one explanation are not views of what the trace keeps: writing into them changes nothing."""
    trace = plrp.trace(*small())
    first = trace.explain(pruning=plrp.Pruning(p=0.3), layers=True)
    expected = first.relevance.clone()
    first.relevance.zero_()
    first.logits.zero_()
    for relevance in first.layers.values():
        relevance.fill_(7.0)
    assert torch.equal(trace.explain(pruning=plrp.Pruning(p=0.3)).relevance, expected)


@pytest.mark.parametrize("rule", [rules.Epsilon(), rules.ZPlus(), rules.AlphaBeta(), rules.Gamma(), rules.Flat()])
def test_a_dead_layer_stops_relevance_without_nan(rule):
    """All activations zero below the head: everything goes to its bias, nothing divides by zero."""
    model, x = small()
    with torch.no_grad():
        model.c.weight.zero_()
        model.c.bias.fill_(-1.0)
    composite = plrp.Composite([(plrp.composites.is_any, rule)], name="one")
    for redistribution in ("lambda", "M"):
        pruning = plrp.Pruning(p=0.3, redistribution=redistribution)
        explanation = plrp.explain(model, x, composite=composite, pruning=pruning)
        assert bool(torch.isfinite(explanation.relevance).all())
        oracles.assert_ledger_closes(explanation, explanation.logits.max(1).values, 1e-4)


def test_shares_of_single_layers_are_stored_and_refused_as_pairs() -> None:
    pruning = plrp.Pruning(p=0.1, p_negative=0.0, layers={"a": 0.6, "b": (0.2, 0.3)})
    stored = json.loads(json.dumps(pruning.to_dict()))
    assert stored["layers"] == {"a": 0.6, "b": [0.2, 0.3]}
    assert stored == pruning.to_dict()  # so that a run finds its own settings again
    assert plrp.Pruning.from_dict(stored) == pruning == pickle.loads(pickle.dumps(pruning))
    assert list(pruning.shares.values()) == [0.1, 0.0, 0.6, 0.2, 0.3]
    for wrong, says in (
        ((0.1,), "a pair"),
        ((0.1, 0.2, 0.3), "a pair"),
        ((0.1, 1.0), "p_negative of layers"),
        ("ab", "0 ≤"),
    ):
        with pytest.raises(ValueError, match=says):
            plrp.Pruning(layers={"a": wrong})  # type: ignore[dict-item]


def test_negatives_of_a_layer_with_its_own_p_stay_where_nothing_negative_is_pruned() -> None:
    torch.manual_seed(0)
    layers = nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 3)
    model, x = nn.Sequential(*layers).eval(), torch.randn(4, 6)
    trace = plrp.trace(model, x)
    before = trace.explain(composite="epsilon", layers=True).layers["4"]
    for pruning in (
        plrp.Pruning(p=0.1, p_negative=0.0, layers={"4": 0.6}),
        plrp.Pruning(p=0.1, layers={"4": (0.6, 0.0)}),
    ):
        for found in (
            trace.explain(composite="epsilon", pruning=pruning, layers=True),
            *trace.sweep([pruning, pruning], composite="epsilon", layers=True),
        ):
            after = found.layers["4"]
            assert bool(((before > 0) & (after == 0)).any())
            assert torch.equal(after[before < 0], before[before < 0])


def test_the_title_of_a_pruning_states_its_strength():
    assert plrp.Pruning(p=None, sparsity_gain=1.0).title == "PLRP-λ, gain 1"
    assert plrp.Pruning(p=0.15, redistribution="M").title == "PLRP-M, p = 0.15"
