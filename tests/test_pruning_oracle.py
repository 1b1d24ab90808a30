"""PLRP-λ and PLRP-M on small networks equal the explicit matrices M and M̂ of the paper."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import oracles
import plrp
from oracles import Cut, Step, add_step, linear_step, relu_step, split_step, winner_step
from plrp import pruning, rules
from plrp.tape.maps import Dense


def sparse_weights(model: nn.Module, seed: int, keep: float = 0.6) -> nn.Module:
    """Random weights and biases of both signs, many weights zero so that pruning leaves orphans."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
            if parameter.dim() > 1:
                parameter.mul_(torch.rand(parameter.shape, generator=generator) < keep)
            else:
                parameter.mul_(0.3)
    return model


class Chain(nn.Module):
    """Dense layers and nothing else."""

    shape = (8,)

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        sizes = (8, 9, 7, 8, 5)
        self.fc = nn.ModuleList(nn.Linear(a, b, bias) for a, b in pairwise(sizes))

    def forward(self, x: Tensor) -> Tensor:
        for fc in self.fc[:-1]:
            x = F.relu(fc(x))
        return self.fc[-1](x)

    def steps(self) -> list[Step]:
        found, source = [], "x"
        for i, fc in enumerate(self.fc):
            found.append(linear_step(f"fc.{i}", source, fc, (fc.in_features,)))
            if i < len(self.fc) - 1:
                found.append(relu_step(f"h{i}", f"fc.{i}"))
                source = f"h{i}"
        return found


class Skip(nn.Module):
    """A block input read by a layer and by the identity of a skip; pruned on its total."""

    shape = (6,)

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.d, self.e = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.a(x))
        h = F.relu(h + self.c(F.relu(self.b(h))))
        h = h + self.d(h)
        return self.e(h)

    def steps(self) -> list[Step]:
        return [
            linear_step("a", "x", self.a, (6,)), relu_step("h", "a"),
            linear_step("b", "h", self.b, (8,)), relu_step("hb", "b"), linear_step("c", "hb", self.c, (8,)),
            add_step("s", "h", "c"), relu_step("g", "s"),
            linear_step("d", "g", self.d, (8,)), add_step("t", "g", "d"), linear_step("e", "t", self.e, (8,)),
        ]  # fmt: skip


class FanOut(nn.Module):
    """One tensor read by two layers whose outputs meet again: a projection skip."""

    shape = (6,)

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = nn.Linear(6, 8), nn.Linear(8, 7), nn.Linear(8, 7), nn.Linear(7, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.a(x))
        return self.d(F.relu(self.b(h) + self.c(h)))

    def steps(self) -> list[Step]:
        return [
            linear_step("a", "x", self.a, (6,)), relu_step("h", "a"),
            linear_step("b", "h", self.b, (8,)), linear_step("c", "h", self.c, (8,)),
            add_step("s", "b", "c"), relu_step("g", "s"), linear_step("d", "g", self.d, (7,)),
        ]  # fmt: skip


class FanOutAndPool(nn.Module):
    """A tensor read by two convolutions and an average pool at once, a max pool above."""

    shape = (3, 8)

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv1d(3, 4, 3, padding=1)
        self.b = nn.Conv1d(4, 4, 3, padding=1, stride=2)
        self.c = nn.Conv1d(4, 4, 2, stride=2, groups=2)
        self.d = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.a(x))
        joined = (self.b(h) + self.c(h)) + F.avg_pool1d(h, 2)
        return self.d(F.max_pool1d(F.relu(joined), 2).flatten(1))

    def steps(self) -> list[Step]:
        return [
            linear_step("a", "x", self.a, (3, 8)), relu_step("h", "a"),
            linear_step("b", "h", self.b, (4, 8)), linear_step("c", "h", self.c, (4, 8)),
            split_step("pool", "h", lambda v: F.avg_pool1d(v, 2), (4, 8)),
            add_step("bc", "b", "c"), add_step("s", "bc", "pool"), relu_step("g", "s"),
            winner_step("m", "g", lambda v: F.max_pool1d(v, 2), (4, 4)), linear_step("d", "m", self.d, (8,)),
        ]  # fmt: skip


class Pictures(nn.Module):
    """Strided, padded, grouped and transposed convolutions."""

    shape = (2, 5, 5)

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(2, 4, 3, padding=1)
        self.b = nn.Conv2d(4, 4, 3, stride=2, padding=1, groups=2)
        self.c = nn.ConvTranspose2d(4, 3, 2, stride=2)
        self.d = nn.Conv2d(3, 3, 2, dilation=2)
        self.e = nn.Linear(48, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.b(F.relu(self.a(x))))
        return self.e(F.relu(self.d(F.relu(self.c(h)))).flatten(1))

    def steps(self) -> list[Step]:
        return [
            linear_step("a", "x", self.a, (2, 5, 5)), relu_step("ha", "a"),
            linear_step("b", "ha", self.b, (4, 5, 5)), relu_step("hb", "b"),
            linear_step("c", "hb", self.c, (4, 3, 3)), relu_step("hc", "c"),
            linear_step("d", "hc", self.d, (3, 6, 6)), relu_step("hd", "d"),
            linear_step("e", "hd", self.e, (48,)),
        ]  # fmt: skip


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "chain": Chain,
    "chain-without-bias": lambda: Chain(bias=False),
    "skip": Skip,
    "fan-out": FanOut,
    "fan-out-and-pool": FanOutAndPool,
    "pictures": Pictures,
}

RULES = {
    "zero": (lambda: rules.Zero(), ("zero", {})),
    "epsilon": (lambda: rules.Epsilon(), ("epsilon", {})),
    "zplus": (lambda: rules.ZPlus(), ("zplus", {})),
    "alpha2-beta1": (lambda: rules.AlphaBeta(), ("alphabeta", {"alpha": 2.0, "beta": 1.0})),
    "gamma": (lambda: rules.Gamma(gamma=0.5), ("gamma", {"gamma": 0.5})),
    "wsquare": (lambda: rules.WSquare(), ("wsquare", {})),
    "zbox": (lambda: rules.ZBox(low=-200.0, high=300.0), ("zbox", {"low": -200.0, "high": 300.0})),
}


def prepared(network: str, seed: int = 0, batch: int = 3) -> tuple[nn.Module, Tensor]:
    model = sparse_weights(NETWORKS[network]().double().eval(), seed)
    generator = torch.Generator().manual_seed(100 + seed)
    return model, torch.randn(batch, *model.shape, generator=generator, dtype=torch.float64)


def compare(model: nn.Module, x: Tensor, rule_name: str, pruning: plrp.Pruning, cut: Cut) -> list[oracles.Walk]:
    """Explain every output of every sample with both; returns the oracle's walks for further questions."""
    make, oracle_rule = RULES[rule_name]
    composite = plrp.Composite([(plrp.composites.is_any, make())], name=rule_name)
    steps = model.steps()
    layers = [step.name for step in steps if step.kind == "linear"]
    read_by = {step.name: step.sources[0] for step in steps if step.kind == "linear"}
    trace = plrp.trace(model, x)
    walks = []
    for output in range(2):
        explanation = trace.explain(target=output, composite=composite, pruning=pruning, layers=True)
        assert set(explanation.layers) == set(layers)
        for sample in range(len(x)):
            walk = oracles.walk(steps, x[sample].reshape(-1), output, lambda *_: oracle_rule, cut)
            walks.append(walk)
            scale = max(float(r.abs().max()) for r in walk.relevance.values())
            for layer in layers:
                found = explanation.layers[layer][sample].reshape(-1)
                expected = walk.relevance[read_by[layer]]
                worst = float((found - expected).abs().max())
                assert worst <= 1e-8 * scale, f"{layer}, output {output}, sample {sample}: {worst / scale:.1e}"
            found = explanation.relevance[sample].reshape(-1)
            assert float((found - walk.relevance["x"]).abs().max()) <= 1e-8 * scale
    return walks


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("rule_name", RULES)
def test_lrp_of_small_networks_equals_the_matrices(rule_name, network):
    model, x = prepared(network)
    make, oracle_rule = RULES[rule_name]
    composite = plrp.Composite([(plrp.composites.is_any, make())], name=rule_name)
    explanation = plrp.explain(model, x, target=0, composite=composite)
    for sample in range(len(x)):
        walk = oracles.walk(model.steps(), x[sample].reshape(-1), 0, lambda *_: oracle_rule)
        assert oracles.relative_difference(explanation.relevance[sample].reshape(-1), walk.relevance["x"]) < 1e-8


@pytest.mark.parametrize("p", [0.05, 0.3, 0.8])
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("rule_name", RULES)
def test_plrp_lambda_equals_the_paper_on_small_networks(rule_name, network, p):
    model, x = prepared(network)
    walks = compare(model, x, rule_name, plrp.Pruning(p=p), Cut(p=p))
    assert any(bool((tensor.mask == 0).any()) for walk in walks for tensor in walk.pruned.values())


@pytest.mark.parametrize("p", [0.05, 0.3, 0.8])
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("rule_name", RULES)
def test_plrp_m_equals_the_matrices_m_and_m_hat_on_small_networks(rule_name, network, p):
    model, x = prepared(network)
    walks = compare(model, x, rule_name, plrp.Pruning(p=p, redistribution="M"), Cut(p=p, redistribution="M"))
    assert any(bool((tensor.mask == 0).any()) for walk in walks for tensor in walk.pruned.values())


@pytest.mark.parametrize("p", [0.05, 0.3, 0.8])
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("rule_name", RULES)
def test_plrp_m_sign_equals_the_matrices_of_each_sign_on_small_networks(rule_name, network, p):
    model, x = prepared(network)
    how = {"p": p, "redistribution": "M-sign"}
    walks = compare(model, x, rule_name, plrp.Pruning(**how), Cut(**how))
    assert any(bool((tensor.mask == 0).any()) for walk in walks for tensor in walk.pruned.values())


@pytest.mark.parametrize("p", [0.1, 0.5])
@pytest.mark.parametrize("rule", [rules.ZPlus(), rules.WSquare()], ids=repr)
def test_where_contributions_have_one_sign_plrp_m_sign_is_plrp_m(rule, p):
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 144, 5)]
    model, x = nn.Sequential(*layers).double().eval(), torch.randn(2, 3, 16, 16, dtype=torch.float64)
    everywhere = plrp.Composite([(plrp.composites.is_any, rule)])
    m, m_sign = (
        plrp.explain(model, x, composite=everywhere, pruning=plrp.Pruning(p, redistribution=how), layers=True)
        for how in ("M", "M-sign")
    )
    assert torch.equal(m.relevance, m_sign.relevance)
    assert all(torch.equal(m.layers[name], m_sign.layers[name]) for name in m.layers)


@pytest.mark.parametrize("seed", range(5))
def test_no_neuron_hands_down_more_under_plrp_m_sign(seed):
    """For every k, Σ_j |r̂_jk| of the second pass, and what is orphaned, is Σ_j |r_jk| of the first, sign by sign."""
    generator = torch.Generator().manual_seed(seed)
    weight, x, relevance = (
        torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((12, 9), (1, 9), (1, 12))
    )
    mask = torch.ones_like(x)
    mask[0, torch.randperm(9, generator=generator)[:5]] = 0
    layer = Dense(weight, None)
    (branch,) = rules.Epsilon().branches(layer, x, x @ weight.T, nonnegative=False)
    s = relevance / branch.denominator
    n = x.T * weight.T  # (inputs, outputs)
    passes = pruning._second_pass(rules.FirstPass(branch, relevance, s, branch.denominator, 0.0), mask, by_sign=True)
    for (part, m, magnitudes), signed in zip(passes, (n.clamp(min=0), n.clamp(max=0)), strict=True):
        reached = part.contributions(mask)
        torch.testing.assert_close(reached[0], (mask.T * signed).sum(0))
        q, orphaned = pruning.second_quotient(m, reached, magnitudes)
        handed = (mask.T * signed * q).abs().sum(0) + orphaned[0].abs()
        torch.testing.assert_close(handed, (signed * s).abs().sum(0))


def test_a_deep_stack_under_epsilon_does_not_explode_under_plrp_m_sign():
    torch.manual_seed(0)
    layers = [layer for _ in range(20) for layer in (nn.Linear(64, 64), nn.ReLU())]
    for layer in layers[::2]:
        nn.init.kaiming_normal_(layer.weight)
    model, x = nn.Sequential(*layers, nn.Linear(64, 4)).double().eval(), torch.randn(4, 64, dtype=torch.float64)
    grown, flipped = {}, {}
    for how in ("lambda", "M", "M-sign"):
        found = plrp.explain(model, x, composite="epsilon", pruning=plrp.Pruning(0.1, redistribution=how))
        grown[how] = float((found.booked.largest_mass() / found.score.abs()).max())
        flipped[how] = sum(row["flipped"] or 0 for row in found.ledger if row["op"] == "prune")
        assert found.closing().max() < 1e-9
    assert grown["M-sign"] < grown["M"] / 10
    assert flipped["M-sign"] < flipped["M"] / 10
    assert flipped["lambda"] == 0


@pytest.mark.parametrize("p", [0.1, 0.4, 0.8])
@pytest.mark.parametrize("seed", range(3))
def test_plrp_m_under_flat_puts_the_mask_in_the_place_of_the_ones(seed, p):
    """Flat in the blocks of a skip network: the identity's share keeps the totals apart, so nothing ties."""
    model, x = prepared("skip", seed)
    flat = plrp.Composite(
        [(plrp.composites.is_any, rules.Epsilon())], layers={"b": rules.Flat(), "d": rules.Flat()}, name="flat"
    )
    pruning = plrp.Pruning(p=p, redistribution="M")
    explanation = plrp.explain(model, x, target=0, composite=flat, pruning=pruning, layers=True)
    for sample in range(len(x)):
        walk = oracles.walk(
            model.steps(), x[sample], 0, lambda step, _: ("flat" if step.name in "bd" else "epsilon", {}),
            Cut(p=p, redistribution="M"),
        )  # fmt: skip
        scale = max(float(r.abs().max()) for r in walk.relevance.values())
        for layer, tensor in (("d", "g"), ("c", "hb"), ("b", "h"), ("a", "x")):
            found = explanation.layers[layer][sample]
            assert float((found - walk.relevance[tensor]).abs().max()) <= 1e-8 * scale, layer


@pytest.mark.parametrize("network", ["chain", "skip", "fan-out-and-pool"])
@pytest.mark.parametrize("redistribution", ["lambda", "M", "M-sign"])
def test_negative_relevance_is_pruned_with_its_own_p(redistribution, network):
    model, x = prepared(network, 1)
    pruning = plrp.Pruning(p=0.1, p_negative=0.6, redistribution=redistribution)
    cut = Cut(p=0.1, p_negative=0.6, redistribution=redistribution)
    for rule_name in ("epsilon", "zplus", "alpha2-beta1"):
        compare(model, x, rule_name, pruning, cut)


@pytest.mark.parametrize("redistribution", ["lambda", "M", "M-sign"])
def test_a_layer_by_name_is_pruned_with_its_own_p(redistribution):
    model, x = prepared("chain", 2)
    pruning = plrp.Pruning(p=0.1, redistribution=redistribution, layers={"fc.2": 0.7, "fc.3": 0.0})
    cut = Cut(p=0.1, redistribution=redistribution, layers={"fc.2": 0.7, "fc.3": 0.0})
    compare(model, x, "epsilon", pruning, cut)


@pytest.mark.parametrize("redistribution", ["lambda", "M", "M-sign"])
@pytest.mark.parametrize("layers", [{"fc.2": 0.7, "fc.3": 0.0}, {"fc.2": (0.7, 0.3), "fc.3": [0.0, 0.4]}])
def test_a_layers_own_p_leaves_p_negative_unless_a_pair_names_both(layers, redistribution):
    model, x = prepared("chain", 2)
    pruning = plrp.Pruning(p=0.1, p_negative=0.05, redistribution=redistribution, layers=layers)
    compare(model, x, "epsilon", pruning, Cut(p=0.1, p_negative=0.05, redistribution=redistribution, layers=layers))


@pytest.mark.parametrize("rule_name", ["epsilon", "zplus", "alpha2-beta1"])
@pytest.mark.parametrize("network", ["chain", "chain-without-bias", "fan-out", "skip"])
@pytest.mark.parametrize("redistribution", ["lambda", "M", "M-sign"])
def test_without_conservation_pruned_mass_is_dropped_and_m_is_naive(redistribution, network, rule_name):
    model, x = prepared(network, 3)
    pruning = plrp.Pruning(p=0.3, redistribution=redistribution, conserve=False)
    compare(model, x, rule_name, pruning, Cut(p=0.3, redistribution=redistribution, conserve=False))


@pytest.mark.parametrize("redistribution", ["lambda", "M", "M-sign"])
def test_a_sample_without_relevance_loses_none_beside_others(redistribution):
    model, x = prepared("skip", 3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
    x[1] = 0
    pruning = plrp.Pruning(p=0.6, redistribution=redistribution, conserve=False)
    found = plrp.explain(model, x, target=0, composite="epsilon", pruning=pruning)
    assert [row["dropped"] for row in found.ledger if row["sample"] == 1] == [0] * (len(found.ledger) // len(x))
    assert any(row["dropped"] for row in found.ledger)


def test_the_naive_reapplication_loses_what_plrp_m_keeps():
    model, x = prepared("chain", 4)
    composite = plrp.Composite([(plrp.composites.is_any, rules.ZPlus())], name="z+")
    trace = plrp.trace(model, x)
    kept = trace.explain(target=0, composite=composite, pruning=plrp.Pruning(p=0.8, redistribution="M"))
    naive = trace.explain(
        target=0, composite=composite, pruning=plrp.Pruning(p=0.8, redistribution="M", conserve=False)
    )
    lost = [oracles.lost(row) for row in naive.ledger if row["op"] == "prune"]
    assert max(map(abs, lost)) > 0
    assert not any(oracles.lost(row) for row in kept.ledger if row["op"] == "prune")
    oracles.assert_ledger_closes(naive, naive.logits[:, 0], 1e-9)
    oracles.assert_ledger_closes(kept, kept.logits[:, 0], 1e-9)


def test_the_networks_above_reach_every_sentence_of_plrp_m():
    """Orphans, unplaced skip mass, signs without survivors and flips must occur, or nothing was tested."""
    orphans = flipped = 0
    unplaced = without_sign = 0.0
    for network in NETWORKS:
        for seed in range(2):
            model, x = prepared(network, seed, batch=1)
            steps = model.steps()
            for _, oracle_rule in RULES.values():
                for output in range(2):
                    for sample in x:
                        walk = oracles.walk(
                            steps, sample.reshape(-1), output, lambda *_, rule=oracle_rule: rule,
                            Cut(p=0.8, redistribution="M"),
                        )  # fmt: skip
                        for tensor in walk.pruned.values():
                            orphans += tensor.orphans
                            unplaced += tensor.unplaced_skip
                            without_sign += tensor.without_own_sign
                            flipped += tensor.flipped
    assert orphans > 0
    assert unplaced > 0
    assert without_sign > 0
    assert flipped > 0


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("network", ["skip", "fan-out-and-pool", "fan-out"])
@pytest.mark.parametrize("rule_name", ["epsilon", "zplus", "alpha2-beta1", "gamma"])
def test_plrp_m_with_orphans_and_unplaced_skip_mass_equals_the_matrices(rule_name, network, seed):
    model, x = prepared(network, seed, batch=2)
    compare(model, x, rule_name, plrp.Pruning(p=0.8, redistribution="M"), Cut(p=0.8, redistribution="M"))


# ---------------------------------------------------------------- cases by hand


class ByHand(nn.Module):
    """Three neurons above two outputs above one score, every number chosen."""

    def __init__(self, below: list[list[float]], above: list[float]) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3, bias=False)
        self.middle = nn.Linear(3, len(above), bias=False)
        self.head = nn.Linear(len(above), 1, bias=False)
        with torch.no_grad():
            self.first.weight.copy_(torch.eye(3))
            self.middle.weight.copy_(torch.tensor(below).T)
            self.head.weight.copy_(torch.tensor([above]))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.middle(self.first(x)))


def explained(model: nn.Module, x: list[float], p: float, **options) -> tuple[plrp.Explanation, Tensor]:
    middle = plrp.Composite([(plrp.composites.is_any, rules.Zero())], layers={"middle": rules.ZPlus()}, name="by hand")
    pruning = plrp.Pruning(p=p, redistribution="M", layers={"head": 0.0}, **options)
    sample = torch.tensor([x], dtype=torch.float64)
    explanation = plrp.explain(model.double().eval(), sample, composite=middle, pruning=pruning, target=0, layers=True)
    return explanation, explanation.layers["middle"][0]


def test_orphaned_mass_goes_to_survivors_of_the_same_sign():
    # k=0 reads neurons 0 and 1, k=1 reads neuron 2 alone, which is pruned: its mass of 1 is orphaned.
    model = ByHand([[6.0, 0.0], [3.0, 0.0], [0.0, 1.0]], [1.0, 1.0])
    explanation, after = explained(model, [1.0, 1.0, 1.0], p=0.15)
    assert after.tolist() == pytest.approx([6 + 1 * 6 / 9, 3 + 1 * 3 / 9, 0], rel=1e-5)
    [row] = [w for w in explanation.ledger if w["op"] == "prune" and w["layer"] == "middle"]
    assert row["neurons_after"] == 2
    assert row["orphaned"] == pytest.approx(1, rel=1e-5)
    assert row["mass_out_positive"] == pytest.approx(10, rel=1e-5)


def test_orphaned_mass_whose_sign_has_no_survivor_goes_to_all_survivors():
    # r̃ = (6, 3, 2 − 1): the negative mass of k=1 reaches neuron 2 only, whose total is positive and pruned.
    model = ByHand([[6.0, 0.0], [3.0, 0.0], [2.0, 1.0]], [1.0, -1.0])
    _, after = explained(model, [1.0, 1.0, 1.0], p=0.15)
    kept = [11 * 6 / 9, 11 * 3 / 9]  # k=0 hands its 11 to the two survivors
    assert after.tolist() == pytest.approx([kept[0] - 6 / 9, kept[1] - 3 / 9, 0], rel=1e-5)
    assert float(after.sum()) == pytest.approx(10, rel=1e-5)


def test_a_survivor_turned_by_m_is_counted_as_flipped():
    # Neuron 0 has 9.5 − 9. Once neuron 1 is pruned, its 9 of −118 go to neurons 0 and 2 as 9 : 100, and neuron 0 turns.
    model = ByHand([[9.5, 9.0], [0.0, 9.0], [0.0, 100.0]], [1.0, -1.0])
    turned = 9.5 - 118 * 9 / 109
    assert turned < 0
    explanation, after = explained(model, [1.0, 1.0, 1.0], p=0.0, p_negative=0.1)
    assert after.tolist() == pytest.approx([turned, 0, -118 * 100 / 109], rel=1e-5)
    [row] = [w for w in explanation.ledger if w["op"] == "prune" and w["layer"] == "middle"]
    assert row["flipped"] == 1
    assert row["flipped_mass"] == pytest.approx(-turned, rel=1e-4)


def test_flipped_survivors_and_their_mass_are_in_the_ledger():
    composite = plrp.Composite([(plrp.composites.is_any, rules.Epsilon())], name="epsilon")
    pruning = plrp.Pruning(p=0.4, redistribution="M")
    flipped = 0
    for seed in range(4):
        model, x = prepared("chain", seed, batch=2)
        explanation = plrp.explain(model, x, target=0, composite=composite, pruning=pruning)
        for sample in range(2):
            walk = oracles.walk(model.steps(), x[sample], 0, lambda *_: ("epsilon", {}), Cut(p=0.4, redistribution="M"))
            rows = [w for w in explanation.ledger if w["op"] == "prune" and w["sample"] == sample]
            expected = [walk.pruned[name] for name in ("h2", "h1", "h0")]
            assert [w["flipped"] for w in rows] == [tensor.flipped for tensor in expected]
            scale = max(w["mass_in_positive"] + w["mass_in_negative"] for w in rows)
            for row, tensor in zip(rows, expected, strict=True):
                assert row["flipped_mass"] == pytest.approx(tensor.flipped_mass, abs=1e-7 * scale)
            flipped += sum(tensor.flipped for tensor in expected)
    assert flipped > 0
