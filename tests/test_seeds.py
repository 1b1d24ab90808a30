"""Seeds: relevance that starts at several outputs, against formulas written out."""

from __future__ import annotations

import contextlib
import math
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import oracles
import plrp
from plrp import metrics, targets

CLASSES = 5


def made() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, CLASSES))
    return model.double().eval(), torch.randn(3, 6, dtype=torch.float64)


def expected_relevance(name: str, z: list[float], t: int, s: int = 0) -> list[float]:
    """R of each output, from the papers."""
    others = [n for n in range(CLASSES) if n != t]
    p = [math.exp(v) / sum(map(math.exp, z)) for v in z]
    if name == "contrast":
        return [z[t] if n == t else -z[s] if n == s else 0.0 for n in range(CLASSES)]
    if name == "log_odds":  # each difference z_t − z_n gets its weight in −log Σ exp(−(z_t − z_n))
        weights = {n: math.exp(-(z[t] - z[n])) / sum(math.exp(-(z[t] - z[m])) for m in others) for n in others}
        return [sum(w * z[t] for w in weights.values()) if n == t else -weights[n] * z[n] for n in range(CLASSES)]
    if name == "log_probability":  # each difference gets the probability of n
        return [sum(p[m] * z[t] for m in others) if n == t else -p[n] * z[n] for n in range(CLASSES)]
    if name == "clrp":
        return [z[t] if n == t else -z[t] / (CLASSES - 1) for n in range(CLASSES)]
    return [p[t] * (1 - p[t]) if n == t else -p[t] * p[n] for n in range(CLASSES)]


def seeds(t: Any) -> dict[str, targets.Seed]:
    return {
        "contrast": targets.contrast(t, 0),
        "log_odds": targets.log_odds(t),
        "log_probability": targets.log_probability(t),
        "clrp": targets.clrp(t),
        "sglrp": targets.sglrp(t),
    }


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-10) -> None:
    assert float((found - expected).abs().max()) <= tolerance * float(expected.abs().max())


@pytest.mark.parametrize("name", ["contrast", "log_odds", "log_probability", "clrp", "sglrp"])
def test_seeds_are_their_formulas(name):
    model, x = made()
    trace, classes = plrp.trace(model, x), [3, 1, 4]
    found = trace.explain(target=seeds(classes)[name], composite="epsilon")
    wanted = torch.tensor([expected_relevance(name, z, t) for z, t in zip(model(x).tolist(), classes, strict=True)])
    alone = [trace.explain(target=n, composite="epsilon") for n in range(CLASSES)]  # each hands down its z_n
    expected = sum(wanted[:, n, None] / e.score[:, None] * e.relevance for n, e in enumerate(alone))
    close(found.relevance, expected, 1e-4 if name.startswith("log_") else 1e-7)  # whose ε is that of the differences
    assert float((found.score - wanted.sum(1)).abs().max()) < 1e-6
    oracles.assert_ledger_closes(found, found.score, 1e-12)


def test_log_odds_are_explained_on_the_differences():
    """Montavon et al. 2019: a layer of differences z_t − z_n between the last linear layer and the log-odds."""
    model, x = made()
    t, last = 2, model[-1]
    others = [n for n in range(CLASSES) if n != t]
    differences = nn.Linear(8, CLASSES - 1).double()
    with torch.no_grad():
        differences.weight.copy_(last.weight[t] - last.weight[others])
        differences.bias.copy_(last.bias[t] - last.bias[others])
    z = differences(model[:-1](x)).detach()
    shares = (-z).softmax(1)
    inside = plrp.trace(nn.Sequential(*model[:-1], differences).eval(), x)
    zero = plrp.Composite([(lambda op: True, plrp.rules.Zero())], name="zero")
    expected = sum(shares[:, n, None] * inside.explain(target=n, composite=zero).relevance for n in range(CLASSES - 1))
    found = plrp.explain(model, x, target=targets.log_odds(t), composite=zero)
    close(found.relevance, expected)
    odds = torch.log(model(x).softmax(1)[:, t] / (1 - model(x).softmax(1)[:, t]))
    entropy = -(shares * shares.log()).sum(1)
    close(found.score - entropy, odds.detach())


def test_a_contrast_is_the_difference_of_two_explanations():
    model, x = made()
    trace = plrp.trace(model, x)
    found = trace.explain(target=targets.contrast([3, 1, 4], [0, 0, 1]))
    one, other = trace.explain(target=[3, 1, 4]), trace.explain(target=[0, 0, 1])
    close(found.relevance, one.relevance - other.relevance)
    close(found.score, one.score - other.score)
    spelt = trace.explain(target=lambda z: z[[0, 1, 2], [3, 1, 4]] - z[[0, 1, 2], [0, 0, 1]])
    close(found.relevance, spelt.relevance, 1e-4)  # which divides by the difference, ε and all


@pytest.mark.parametrize("name", ["contrast", "log_odds", "log_probability", "clrp", "sglrp"])
def test_a_seed_called_is_its_score_and_its_gradient(name):
    model, x = made()
    seed, z = seeds([3, 1, 4])[name], model(x).detach().requires_grad_()
    slope = torch.autograd.grad(seed(z).sum(), z)[0]
    close(seed.relevance(z.detach())[1], slope)
    asked = []
    trace = plrp.trace(model, x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trace.explain(target=seed, condition={"4": lambda a, g, r: asked.append((g, r)) or g > 0})
    close(asked[0][0], slope)
    expected = seed.relevance(z.detach())[0]
    if name.startswith("log_"):  # of the differences z_t − z_n
        expected = slope * (z - z[[0, 1, 2], [3, 1, 4]][:, None]).detach()
    close(asked[0][1], expected)


@pytest.mark.parametrize("redistribution", ["lambda", "M-sign"])
def test_seeds_go_with_pruning_sweeps_pieces_and_disk(redistribution):
    model, x = made()
    seed = targets.contrast([3, 1, 4], None if redistribution == "lambda" else 0)
    model[-1].bias.data[0] += 5  # class 0 wins
    prunings = [plrp.Pruning(p=p, redistribution=redistribution) for p in (0.1, 0.3)]
    swept = list(plrp.trace(model, x).sweep(prunings, target=seed))
    for found, pruning in zip(swept, prunings, strict=True):
        alone = plrp.explain(model, x, target=seed, pruning=pruning)
        close(found.relevance, alone.relevance)
        pieces = plrp.explain(model, x, target=seed, pruning=pruning, micro_batch=2)
        close(pieces.relevance, alone.relevance)
        assert pieces.target is seed
        assert float(pieces.closing().max()) < 1e-12
        assert "target: contrast([3, 1, 4]" in repr(pickle.loads(pickle.dumps(alone)))


def test_a_seed_is_stored_by_its_name_and_classes():
    """Explanations that 0.2.0 stored hold seeds with these fields."""
    assert vars(targets.contrast(0, against=2)) == {"name": "contrast", "target": 0, "against": 2}
    assert vars(targets.clrp(1)) == {"name": "clrp", "target": 1, "against": None}


def test_relevance_that_adds_up_to_nothing_is_no_fault():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 4)).eval()
    positive = plrp.Composite([(lambda op: True, plrp.rules.ZPlus())], name="z-plus")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = plrp.explain(model, torch.rand(2, 6), target=targets.sglrp(), composite=positive)
    assert float(found.score.abs().max()) < 1e-6
    assert found.balance.problems == [None, None]
    assert "% of Σ|R| at the output (" in repr(found)
    assert float(found.closing().max()) < 1e-6


def test_dense_outputs_are_contrasted_by_index():
    torch.manual_seed(0)
    profile = nn.Sequential(nn.Conv1d(4, 6, 5), nn.ReLU(), nn.Conv1d(6, 3, 1)).eval()
    x = torch.rand(2, 4, 20)
    trace = plrp.trace(profile, x)
    found = trace.explain(target=targets.contrast((2, 4), (0, 4)), composite="epsilon-plus")
    one, other = (trace.explain(target=(n, 4), composite="epsilon-plus") for n in (2, 0))
    assert torch.allclose(found.relevance, one.relevance - other.relevance, atol=1e-6)
    one = nn.Linear(4, 1).eval()
    for seed in (targets.log_odds(0), targets.log_probability(0), targets.log_odds((0,), axis=1)):
        with pytest.raises(ValueError, match="compares a class with all others"):
            plrp.explain(one, torch.rand(2, 4), target=seed)
    with pytest.raises(ValueError, match=r"the axis of the classes in targets.log_odds\(place, axis=…\)"):
        trace.explain(target=targets.log_odds((2, 4)))
    for made, wanted in ((targets.log_odds, "log_odds"), (targets.log_probability, "log_probability")):
        found = trace.explain(target=made((2, 4), axis=1), composite="epsilon-plus")
        column = profile(x)[:, :, 4].detach()
        parts = [trace.explain(target=(n, 4), composite="epsilon-plus") for n in range(3)]
        weights = column.softmax(1) if wanted == "log_probability" else column[:, :2].softmax(1)
        slopes = [-weights[:, 0], -weights[:, 1], weights[:, :2].sum(1)]
        expected = sum(slope[:, None, None] * part.relevance for slope, part in zip(slopes, parts, strict=True))
        assert torch.allclose(found.relevance, expected, atol=1e-5)
        p = column.softmax(1)[:, 2]
        assert torch.allclose(found.target(profile(x)), (p / (1 - p) ** (wanted == "log_odds")).log(), atol=1e-5)


@pytest.mark.parametrize(
    ("seed", "says"),
    [
        (targets.contrast(1, 1), r"contrast\(1, 1\) contrasts a class with itself"),
        (targets.contrast(1, 9), "target 9 is out of range"),
        (targets.clrp(7), "target 7 is out of range"),
        (targets.sglrp([1, 2]), "give one class per sample"),
    ],
)
def test_bad_seeds_are_refused(seed, says):
    model, x = made()
    with pytest.raises(ValueError, match=says):
        plrp.explain(model, x, target=seed)
    with pytest.raises(ValueError, match=says):
        plrp.trace(model, x).sweep([None], target=seed)


def test_seeds_need_a_batch():
    with pytest.raises(ValueError, match="without a batch axis"):
        plrp.explain(nn.Linear(4, 3).eval(), torch.rand(4), target=targets.log_odds(1), samples=None)


def test_log_odds_of_a_confident_prediction_are_finite():
    z = torch.tensor([[20.0, 0.0, 0.0], [3.0, 90.0, 1.0]])
    assert torch.allclose(targets.log_odds()(z), torch.tensor([20 - math.log(2), 87 - math.log1p(math.exp(-2))]))


@pytest.mark.parametrize("seed", [targets.clrp, targets.log_odds, targets.sglrp, lambda t: targets.contrast(t, 0)])
def test_metrics_hold_the_winner_of_a_seed_fixed(seed):
    torch.manual_seed(1)
    model, x = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)).eval(), torch.randn(12, 8)
    classes = model(x).argmax(1)
    x, classes = x[classes != 0], classes[classes != 0]

    def measured(x: Tensor, target: Any) -> list[Tensor]:
        flipping = metrics.pixel_flipping(
            model, x, x, target=target, region=1, perturbation="zeros", batch_size=4, normalise=False
        )
        drops = metrics.occlusion(model, x, target=target, region=1, perturbation="zeros", batch_size=5)
        return [flipping.auc, drops]

    alone = [measured(one[None], seed(int(c))) for one, c in zip(x, classes, strict=True)]
    for target in (seed(None), seed(classes.tolist())):
        for found, each in zip(measured(x, target), zip(*alone, strict=True), strict=True):
            assert torch.allclose(found, torch.cat(each), atol=1e-5)


def test_mutagenesis_takes_a_seed_with_one_class_per_sample():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 3)).eval()
    x = torch.eye(4)[torch.randint(4, (3, 5))].mT
    found = metrics.mutagenesis(model, x, target=targets.clrp([0, 2, 1]))
    alone = [metrics.mutagenesis(model, x[n : n + 1], target=targets.clrp(c)) for n, c in enumerate((0, 2, 1))]
    assert torch.allclose(found, torch.cat(alone), atol=1e-6)


def test_a_circuit_of_a_seed_is_measured_by_the_seeds_score():
    model, x = made()
    found = plrp.explain(model, x, target=targets.contrast(None, [2, 1, 2]), pruning=plrp.Pruning(p=0.2))
    circuit = found.circuit(sample=1)
    logits = model(x)[1].detach()
    assert math.isclose(circuit.score, float(logits.max() - logits[1]), abs_tol=1e-6)
    trace = plrp.trace(model, x)
    chosen = plrp.choose_p(trace, of="logit", target=targets.contrast(1, 0))
    assert torch.equal(chosen, plrp.choose_p(trace, of="logit", target=lambda z: z[:, 1] - z[:, 0]))


def handed_by(rule: str, a: Tensor, w: Tensor, b: Tensor, r: Tensor) -> Tensor:
    """R of the inputs a ≥ 0 of one linear layer (k, j), written out."""
    received = torch.zeros_like(a)
    for k in range(len(r)):
        z = float(w[k] @ a + b[k])
        side = w[k].clamp(min=0) if z > 0 else w[k].clamp(max=0)
        bias_side = b[k].clamp(min=0) if z > 0 else b[k].clamp(max=0)
        n, bias = {
            "epsilon": (a * w[k], b[k]),
            "gamma": (a * (w[k] + 0.25 * side), b[k] + 0.25 * bias_side),
            "zplus": ((a * w[k]).clamp(min=0), b[k].clamp(min=0)),
        }[rule]
        d = float(n.sum() + bias)
        received += n * r[k] / (d + 1e-6 * (1 if d >= 0 else -1))
    return received


@pytest.mark.parametrize("classes", [2, [3, 1, 4], [3, 1, 3], None])
@pytest.mark.parametrize("rule", ["epsilon", "gamma", "zplus"])
@pytest.mark.parametrize("plain", [True, False])
def test_log_odds_are_montavons_layer_of_differences_under_every_rule(rule, classes, plain):
    """z_tn = Σ_j a_j (w_jt − w_jn) + b_t − b_n, R_tn = z_tn · softmax(−z_tn) by the pooling −log Σ exp(−z_tn)."""
    model, x = made()
    last = model[-1]
    chosen = {"epsilon": plrp.rules.Epsilon(), "gamma": plrp.rules.Gamma(0.25), "zplus": plrp.rules.ZPlus()}[rule]
    composite = plrp.Composite([(plrp.composites.is_any, chosen)], name=rule)
    with plrp.plain_walk() if plain else contextlib.nullcontext():
        found = plrp.explain(model, x, target=targets.log_odds(classes), composite=composite, layers=True)
        oracles.assert_ledger_closes(found, found.score, 1e-12)
    assert found.composite is composite
    winners = model(x).argmax(1).tolist()
    for n, a in enumerate(model[:-1](x).detach()):
        t = winners[n] if classes is None else classes[n] if isinstance(classes, list) else classes
        others = [m for m in range(CLASSES) if m != t]
        w, b = (last.weight[t] - last.weight[others]).detach(), (last.bias[t] - last.bias[others]).detach()
        z = w @ a + b
        close(found.layers["4"][n], handed_by(rule, a, w, b, z * (-z).softmax(0)))


def test_conditions_on_the_differences_of_log_odds_add_up():
    """Output n of the last layer holds the relevance of the difference z_t − z_n."""
    model, x = made()
    trace = plrp.trace(model, x)
    for classes in ([3, 1, 4], 2):
        asked = {"target": targets.log_odds(classes), "composite": plrp.composite("epsilon-gamma", gamma=0.5)}
        parts = list(trace.sweep([None], condition=[{"4": [n]} for n in range(CLASSES)], **asked))
        close(sum(part.relevance for part in parts), trace.explain(**asked).relevance)


class RulesOut(nn.Module):
    """Class 2 of the scores is −∞, by a mask that is added or filled in."""

    def __init__(self, model: nn.Module, adds: bool) -> None:
        super().__init__()
        self.model, self.adds = model, adds

    def forward(self, x: Tensor) -> Tensor:
        z, ruled_out = self.model(x), torch.arange(CLASSES) == 2
        return (
            z + torch.zeros(CLASSES).masked_fill(ruled_out, -math.inf)
            if self.adds
            else z.masked_fill(ruled_out, -math.inf)
        )


@pytest.mark.parametrize("adds", [True, False])
@pytest.mark.parametrize("name", ["contrast", "log_odds", "log_probability", "clrp", "sglrp"])
def test_a_class_that_the_model_rules_out_takes_no_part(name, adds):
    """As if the last layer had no such class."""
    model, x = made()
    without = nn.Linear(8, CLASSES - 1).double()
    left = [n for n in range(CLASSES) if n != 2]
    with torch.no_grad():
        model[-1].bias += torch.arange(CLASSES) + 1.0
        without.weight.copy_(model[-1].weight[left])
        without.bias.copy_(model[-1].bias[left])
    smaller = nn.Sequential(*model[:-1], without).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        found = plrp.explain(RulesOut(model, adds), x, target=seeds(4)[name], composite="epsilon")
        expected = plrp.explain(smaller, x, target=seeds(3)[name], composite="epsilon")
    assert bool(found.relevance.isfinite().all())
    close(found.relevance, expected.relevance, 1e-5)
    assert torch.allclose(found.score, expected.score)
    z = RulesOut(model, adds)(x).detach()
    close(seeds(4)[name](z), seeds(3)[name](smaller(x).detach()))
    if name == "contrast":
        with pytest.raises(ValueError, match=r"score to explain is -?inf"):
            plrp.explain(RulesOut(model, adds), x, target=targets.contrast(4, 2))


def test_log_odds_of_different_classes_have_one_ledger_over_pieces():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3)).double()
    x = torch.randn(4, 4, dtype=torch.float64)
    seed = plrp.targets.log_odds([0, 1, 2, 0])
    pieces = plrp.explain(net, x, target=seed, composite="epsilon", micro_batch=2)
    whole = plrp.explain(net, x, target=seed, composite="epsilon")
    torch.testing.assert_close(pieces.relevance, whole.relevance)
    assert float(pieces.closing().max()) < 1e-6
