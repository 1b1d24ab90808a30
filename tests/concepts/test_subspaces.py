"""Subspaces of a layer: contexts, PRCA, DRSA, explanations split by subspace, and a planted truth."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import plrp
from plrp.concepts import Reading, Subspaces, subspaces
from plrp.concepts.relevant_subspaces import drsa, objective, prca
from plrp.concepts.search import Search, contexts
from plrp.conditions import Projection
from plrp.models import load
from plrp.request import Request
from plrp.runs.places import RunError, WrongPlace
from plrp.runs.work import Work

EPSILON = 1e-6
torch.manual_seed(0)
DATA = torch.randn(11, 3, 10, 10)
PRUNINGS = [None, plrp.Pruning(p=0.2), plrp.Pruning(p=0.2, redistribution="M-sign")]


def net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 8, 3), nn.ReLU(),
        nn.Dropout(), nn.Flatten(), nn.Linear(32, 4),
    ).eval()  # fmt: skip


class Skip(nn.Module):
    """Layer `b` is bypassed; the output of `a` has two readers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.a, self.b, self.c = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 6, 3, padding=1), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x).relu()
        return self.c((x + self.b(x)).relu().mean((2, 3)))


class Tokens(nn.Module):
    """Channels last, of either sign."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.a, self.b, self.c = nn.Linear(10, 6), nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.b(nn.functional.gelu(self.a(x.flatten(1, 2)))).mean(1))


NETWORKS = [(net, "0"), (net, "3"), (Skip, "a"), (Skip, "b"), (Tokens, "a"), (Tokens, "b")]


def orthonormal(channels: int, dimensions: int, seed: int = 0) -> Tensor:
    return torch.linalg.qr(torch.randn(channels, dimensions, generator=torch.Generator().manual_seed(seed))).Q


def stabilised(z: np.ndarray, epsilon: float = EPSILON) -> np.ndarray:
    return z + epsilon * np.where(z >= 0, 1.0, -1.0)


def projector(u: Any) -> np.ndarray:
    u = np.asarray(u, np.float64)
    return u @ u.T


# Contexts


def dense() -> nn.Sequential:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)).double().eval()


def dense_context(x: np.ndarray, rule: str, target: int) -> tuple[np.ndarray, np.ndarray]:
    """a and c after the first layer of `dense`, with loops over its neurons; ε in linear layers, or γ in the second."""
    weights = [(m.weight.detach().numpy(), m.bias.detach().numpy()) for m in dense() if isinstance(m, nn.Linear)]
    (w1, b1), (w2, b2), (w3, b3) = weights
    a = np.maximum(w1 @ x + b1, 0)
    z = w2 @ a + b2
    h = np.maximum(z, 0)
    y = w3 @ h + b3
    relevance = h * w3[target] * y[target] / stabilised(y[target])
    c = np.zeros(6)
    for j, k in product(range(6), range(5)):
        if rule == "epsilon":
            c[j] += w2[k, j] * relevance[k] / stabilised(z[k])
        elif z[k] > 0:
            favoured = w2[k] + 0.25 * np.maximum(w2[k], 0)
            d = favoured @ a + b2[k] + 0.25 * max(b2[k], 0)
            c[j] += favoured[j] * relevance[k] / stabilised(d)
    return a, c


@pytest.mark.parametrize("rule", ["epsilon", "gamma"])
def test_contexts_are_the_quotients_before_the_product_with_activations(rule: str) -> None:
    composite = (
        plrp.composite("epsilon")
        if rule == "epsilon"
        else plrp.composite("epsilon").with_layers({"2": plrp.rules.Gamma(0.25)})
    )
    x = torch.randn(9, 7, dtype=torch.float64)
    a, c, _ = contexts(plrp.trace(dense(), x), "0", Request(target=1, composite=composite))
    for sample, one in enumerate(x.numpy()):
        expected = dense_context(one, rule, 1)
        np.testing.assert_allclose(a[sample, :, 0], expected[0], atol=1e-12)
        np.testing.assert_allclose(c[sample, :, 0], expected[1], rtol=1e-9, atol=1e-12)
    assert ((a == 0) & (c != 0)).any()  # R / a would have lost these


@pytest.mark.parametrize("pruning", PRUNINGS)
@pytest.mark.parametrize(("make", "layer"), NETWORKS)
@pytest.mark.parametrize("composite", ["epsilon-plus", "epsilon-alpha2-beta1", "epsilon-gamma"])
def test_activations_times_contexts_are_the_relevance_on_both_walks(
    make: Any, layer: str, composite: str, pruning: plrp.Pruning | None
) -> None:
    traced, request = plrp.trace(make(), DATA[:3]), Request(composite=composite, pruning=pruning)
    a, c, _ = contexts(traced, layer, request)
    with plrp.plain_walk():
        plain = contexts(traced, layer, request)
    scale = float((a * c).abs().max())
    assert float((a * c - plain[0] * plain[1]).abs().max()) < 1e-5 * scale
    readers = {"0": "3", "3": "7", "a": "b", "b": "c"}
    if (make, layer) != (Skip, "b"):  # a sum reads it, and no layer
        held = traced.explain(composite=composite, pruning=pruning, layers=True).layers[readers[layer]]
        expected = float(held.double().sum())
        assert float((a * c).double().sum()) == pytest.approx(expected, rel=1e-4, abs=1e-6)


# Subspaces of vectors


def vectors(n: int = 60, channels: int = 7, seed: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(n, channels, generator=generator, dtype=torch.float64).clamp(min=0)
    return a, torch.randn(n, channels, generator=generator, dtype=torch.float64)


def test_prca_is_the_top_eigenvectors_of_the_symmetrised_moments() -> None:
    a, c = vectors()
    moments = np.zeros((7, 7))
    for one, other in zip(a.numpy(), c.numpy(), strict=True):
        moments += (np.outer(one, other) + np.outer(other, one)) / len(a)
    values, expected = np.linalg.eigh(moments)
    u = prca(a, c, 2, 3)
    assert u.shape == (7, 2, 3)
    for k, columns in enumerate((slice(-3, None), slice(-6, -3))):
        np.testing.assert_allclose(projector(u[:, k]), projector(expected[:, columns]), atol=1e-10)
    held = float(((a @ u.flatten(1)) * (c @ u.flatten(1))).sum(1).mean())
    assert held == pytest.approx(values[-6:].sum() / 2)  # no other six dimensions hold more
    other = orthonormal(7, 6).double()
    assert float(((a @ other) * (c @ other)).sum(1).mean()) < held


def drsa_objective(a: np.ndarray, c: np.ndarray, u: np.ndarray) -> float:
    """The power mean ½ over subspaces of the power mean 2 over vectors, in loops; u (channels, count, dimensions)."""
    means = []
    for k in range(u.shape[1]):
        r = [max(0.0, float((u[:, k].T @ x) @ (u[:, k].T @ y))) for x, y in zip(a, c, strict=True)]
        means.append(np.mean(np.square(r)) ** 0.5)
    return float(np.mean(np.sqrt(means)) ** 2)


def test_drsas_objective_and_derivative_are_those_of_the_loops() -> None:
    a, c = vectors()
    u = orthonormal(7, 6).double().unflatten(1, (2, 3))
    value, slope = objective(a, c, u)
    assert float(value) == pytest.approx(drsa_objective(a.numpy(), c.numpy(), u.numpy()))
    for place in ((0, 0, 0), (3, 1, 2), (6, 0, 1)):
        sides = []
        for step in (1e-6, -1e-6):
            moved = u.numpy().copy()
            moved[place] += step
            sides.append(drsa_objective(a.numpy(), c.numpy(), moved))
        assert float(slope[place]) == pytest.approx((sides[0] - sides[1]) / 2e-6, rel=1e-4)


def ascended(a: np.ndarray, c: np.ndarray, u: np.ndarray, steps: int) -> np.ndarray:
    """DRSA restated: small steps along the derivative (in loops), each followed by U ← U (UᵀU)^{−½}."""
    shape = u.shape
    for _ in range(steps):
        slope = np.zeros(shape)
        roots = []
        for k in range(shape[1]):
            p, q = a @ u[:, k], c @ u[:, k]
            r = np.maximum((p * q).sum(1), 0)
            m = np.sqrt(np.mean(r**2))
            roots.append(np.sqrt(m))
            for n in range(len(a)):
                slope[:, k] += r[n] / (len(a) * m**1.5) * (np.outer(a[n], q[n]) + np.outer(c[n], p[n]))
        flat = (u + 0.1 * np.mean(roots) / shape[1] * slope).reshape(shape[0], -1)
        values, axes = np.linalg.eigh(flat.T @ flat)
        u = (flat @ axes @ np.diag(values**-0.5) @ axes.T).reshape(shape)
    return u


def test_drsa_climbs_as_high_as_a_slow_ascent_from_the_same_start() -> None:
    a, c = vectors()
    u = drsa(a, c, 2, 2, 3, lambda done: None)
    start = torch.randn(7, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64).numpy()
    left, _, right = np.linalg.svd(start, full_matrices=False)
    slow = ascended(a.numpy(), c.numpy(), (left @ right).reshape(7, 2, 2), 600)
    reached = drsa_objective(a.numpy(), c.numpy(), u.numpy())
    assert reached >= (1 - 1e-4) * drsa_objective(a.numpy(), c.numpy(), slow)
    np.testing.assert_allclose(u.flatten(1).mT @ u.flatten(1), np.eye(4), atol=1e-10)
    for seed in range(5):  # no step aside is higher
        aside = u.flatten(1) + 0.01 * torch.randn(7, 4, generator=torch.Generator().manual_seed(seed)).double()
        left, _, right = torch.linalg.svd(aside, full_matrices=False)
        assert drsa_objective(a.numpy(), c.numpy(), (left @ right).view(7, 2, 2).numpy()) <= reached


def test_drsa_takes_the_best_of_three_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    reached = []

    def noted(a: Tensor, c: Tensor, count: int, dimensions: int, seed: int, step: Any) -> Tensor:
        u = drsa(a, c, count, dimensions, seed, step)
        reached.append((float(objective(a, c, u)[0]), projector(u[:, 0]) + projector(u[:, 1])))
        return u

    monkeypatch.setattr("plrp.concepts.relevant_subspaces.drsa", noted)
    made = found("drsa", count=2, dimensions=2)
    assert len(reached) == 3
    best = max(reached, key=lambda one: one[0])[1]
    np.testing.assert_allclose(sum(projector(u) for u in made.bases), best, atol=1e-5)


# Subspaces of a layer


def found(method: str = "prca", data: Any = DATA, **options: Any) -> Subspaces:
    size = {"count": 2, "dimensions": 3, "part_size": 4, "batch_size": 3, "show_progress": False}
    return subspaces(net(), data, "3", method, **{**size, **options})


@pytest.mark.parametrize("method", ["prca", "drsa"])
def test_subspaces_are_orthonormal_sorted_and_hold_what_they_say(method: str) -> None:
    made = found(method, composite="epsilon")
    whole = np.concatenate(list(made.bases), 1)
    np.testing.assert_allclose(whole.T @ whole, np.eye(6), atol=1e-5)
    assert list(made.held) == sorted(made.held, reverse=True)
    a, c, _ = contexts(plrp.trace(net(), DATA), "3", Request(composite="epsilon"))
    a, c = (x.movedim(1, -1).flatten(0, 2).double().numpy() for x in (a, c))  # all positions, fewer than 64 an input
    for u, held in zip(made.bases.astype(np.float64), made.held, strict=True):
        assert ((a @ u) * (c @ u)).sum() / (a * c).sum() == pytest.approx(held, rel=1e-4)
    assert f"{made.held[0]:.1%}" in repr(made)


@pytest.mark.parametrize("method", ["prca", "drsa"])
def test_the_order_of_the_data_does_not_matter(method: str) -> None:
    order = torch.randperm(len(DATA), generator=torch.Generator().manual_seed(0))
    one, other = (found(method, data, positions=2, count=1) for data in (DATA, DATA[order]))
    np.testing.assert_allclose(projector(one.bases[0]), projector(other.bases[0]), atol=1e-4)
    np.testing.assert_allclose(one.exemplars["3"].relevance[order], other.exemplars["3"].relevance, atol=1e-4)


@pytest.mark.parametrize("pruning", PRUNINGS)
@pytest.mark.parametrize(("make", "layer"), NETWORKS)
def test_explanations_by_subspace_add_up_to_the_explanation_on_both_walks(
    make: Any, layer: str, pruning: plrp.Pruning | None
) -> None:
    traced = plrp.trace(make(), DATA[:3])
    channels = 8 if layer == "3" else 5 if (make, layer) == (Tokens, "b") else 6
    u = orthonormal(channels, 4).unflatten(1, (2, 2)).movedim(1, 0)
    parts = [Projection(u[0]), Projection(u[1]), Projection(u.movedim(0, 1).flatten(1), residual=True)]
    asked: dict[str, Any] = {"pruning": pruning, "composite": "epsilon-gamma"}
    whole = traced.explain(**asked).relevance
    split = [traced.explain(condition={layer: part}, only_through=True, **asked) for part in parts]
    around = whole - traced.explain(condition={layer: range(channels)}, only_through=True, **asked).relevance
    scale = float(whole.abs().max())
    assert float((sum(one.relevance for one in split) + around - whole).abs().max()) < 1e-5 * scale
    for one in split:
        assert float(one.closing().abs().max()) < 1e-5
    swept = traced.sweep(
        [pruning], condition=[{layer: part} for part in parts], only_through=True, composite="epsilon-gamma"
    )
    with plrp.plain_walk():
        plain = [traced.explain(condition={layer: part}, only_through=True, **asked).relevance for part in parts]
    for one, other, third in zip(split, plain, swept, strict=True):
        assert float((one.relevance - other).abs().max()) < 1e-5 * scale
        assert torch.equal(one.relevance, third.relevance)


def test_the_relevance_of_a_subspace_is_handed_down_as_the_formula_says() -> None:
    model, u = dense(), orthonormal(6, 2).double()
    x = torch.randn(4, 7, dtype=torch.float64)
    relevance = plrp.explain(model, x, target=1, composite="epsilon", condition={"0": Projection(u)}).relevance
    w, b = model[0].weight.detach().numpy(), model[0].bias.detach().numpy()
    for one, held in zip(x.numpy(), relevance.numpy(), strict=True):
        a, c = dense_context(one, "epsilon", 1)
        r = a * (projector(u) @ c)  # R^(k) = a ⊙ U Uᵀ c, also where R = 0
        z = w @ one + b
        np.testing.assert_allclose(held, one * (w.T @ (r / stabilised(z))), rtol=1e-8, atol=1e-10)


def test_pruning_that_makes_contexts_zero_loses_no_part_of_the_projection() -> None:
    """R^(k) is not a weight on R: it is not zero where pruning cut R."""
    traced, u = plrp.trace(net(), DATA[:2]), orthonormal(6, 3)
    a, c, _ = contexts(traced, "0", Request(pruning=plrp.Pruning(p=0.3)))
    part = a * torch.einsum("bj...,jd,id->bi...", c, u, u)
    assert float(part[(c == 0) & (a != 0)].abs().sum()) > 0.1 * float(part.abs().sum())
    asked = {"pruning": plrp.Pruning(p=0.3), "layers": ["3"]}
    held = traced.explain(condition={"0": Projection(u)}, **asked).layers["3"]
    torch.testing.assert_close(held, part, rtol=1e-4, atol=1e-6)


def test_a_projection_below_another_condition_sees_the_relevance_that_passed_it() -> None:
    traced, both = plrp.trace(net(), DATA[:2]), Projection(orthonormal(6, 6))
    above = traced.explain(condition={"3": [1, 2]}).relevance
    torch.testing.assert_close(
        traced.explain(condition={"3": [1, 2], "0": both}).relevance, above, rtol=1e-4, atol=1e-6
    )


# A planted truth


class Rotated(nn.Module):
    """Four concepts of two neurons each, and two neurons that the score ignores; a rotation mixes all ten.

    Each of the ten outputs of `rotated` holds a bit of everything: its channels mean nothing, its subspaces everything.
    """

    def __init__(self) -> None:
        super().__init__()
        self.detect, self.rotated, self.back = (nn.Linear(10, 10, bias=False) for _ in range(3))
        self.head = nn.Linear(10, 1, bias=False)
        self.double()
        self.q = torch.linalg.qr(torch.randn(10, 10, generator=torch.Generator().manual_seed(9)).double()).Q
        with torch.no_grad():
            self.detect.weight.copy_(torch.eye(10))
            self.rotated.weight.copy_(self.q)
            self.back.weight.copy_(self.q.T)
            self.head.weight.copy_(torch.tensor([[1.0] * 8 + [0.0] * 2]))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.back(self.rotated(self.detect(x))).relu())


def concepts(ignored: float, n: int = 240) -> Tensor:
    """Inputs with one concept each, by its one neuron, by its other, or by both; `ignored`: the size of the last two.

    Each input comes twice, with both signs of the ignored neurons, so that these have no moment with the concepts.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.zeros(n, 10)
    for number in range(n):
        k, which = number % 4, ((1, 0), (0, 1), (1, 1))[number % 3]
        x[number, 2 * k : 2 * k + 2] = (1 + torch.rand(2, generator=generator)) * torch.tensor(which)
    x[:, 8:] = ignored * torch.randn(n, 2, generator=generator)
    return torch.cat([x, x * torch.tensor([1.0] * 8 + [-1.0] * 2)]).double()


def angle(u: Any, v: Any) -> float:
    """The largest principal angle between two subspaces, in degrees."""
    smallest = np.linalg.svd(np.asarray(u, np.float64).T @ np.asarray(v, np.float64))[1].min()
    return float(np.degrees(np.arccos(min(1.0, smallest))))


def test_drsa_recovers_planted_concepts_that_no_channel_has() -> None:
    model, x = Rotated().eval(), concepts(ignored=0.1)
    asked: dict[str, Any] = {"target": 0, "composite": "epsilon", "show_progress": False}
    made = subspaces(model, x, "rotated", "drsa", 4, 2, starts=12, **asked)  # about every second start gets there
    planted = [model.q[:, 2 * k : 2 * k + 2] for k in range(4)]
    angles = np.array([[angle(u, v) for v in planted] for u in made.bases])
    assert (angles.min(1) < 1).all()
    assert sorted(angles.argmin(1)) == [0, 1, 2, 3]
    assert made.held.sum() == pytest.approx(1, abs=1e-3)
    channels = plrp.exemplars(model, x, ["rotated"], target=0, composite="epsilon", show_progress=False)["rotated"]
    for k in range(4):  # two channels for each concept, chosen with hindsight, miss it
        own = np.arange(len(x)) % 4 == k
        best = np.argsort(-channels.relevance[own].mean(0))[:2]
        assert min(angle(np.eye(10)[:, best], v) for v in planted) > 30
    for k, subspace in enumerate(angles.argmin(1)):
        strongest = made.exemplars.of("rotated", k, 20)
        assert {one.sample % 4 for one in strongest} == {int(subspace)}


def test_prca_finds_the_relevant_directions_and_not_the_loud_ones() -> None:
    model, x = Rotated().eval(), concepts(ignored=5.0)
    made = subspaces(model, x, "rotated", "prca", 1, 8, target=0, composite="epsilon", show_progress=False)
    assert angle(made.bases[0], model.q[:, :8]) < 1
    a = model.rotated(x).detach().numpy()
    loud = np.linalg.eigh(a.T @ a)[1][:, -8:]  # by activation alone
    assert angle(loud, model.q[:, :8]) > 80


def test_explanations_by_planted_concept_show_the_inputs_of_that_concept() -> None:
    model, x = Rotated().eval(), concepts(ignored=0.1)
    made = subspaces(model, x, "rotated", "drsa", 4, 2, starts=12, target=0, composite="epsilon", show_progress=False)
    traced = plrp.trace(model, x[:4])
    split = list(traced.sweep([None], condition=made.conditions, target=0, composite="epsilon"))
    for u, one in zip(made.bases, split, strict=False):
        k = int(np.argmin([angle(u, model.q[:, 2 * n : 2 * n + 2]) for n in range(4)]))
        own = one.relevance[k, 2 * k : 2 * k + 2].sum()
        assert float(own) == pytest.approx(float(one.score[k]), rel=1e-2)
        assert float(one.relevance.abs().sum() - own) < 0.05 * float(own)


# Exemplars


def test_exemplars_of_subspaces_hold_what_explanations_give_them() -> None:
    made = found("drsa", composite="epsilon-plus")
    reading = Reading(made.exemplars, net(), DATA)
    for k in range(2):
        for example in made.exemplars.of("3", k, 3):
            x = DATA[example.sample : example.sample + 1]
            traced = plrp.trace(net(), x)
            a, c, _ = contexts(traced, "3", Request(composite="epsilon-plus"))
            u = torch.tensor(made.bases[k])
            r = (torch.einsum("jd,bjhw->bdhw", u, a) * torch.einsum("jd,bjhw->bdhw", u, c)).sum(1)[0]
            received = made.exemplars["3"].relevance[example.sample]
            assert received[k] == pytest.approx(float(r.sum()), rel=1e-3)
            assert example.value == pytest.approx(received[k] / np.abs(received).sum(), rel=1e-5)
            assert example.place == tuple(np.unravel_index(int(r.argmax()), r.shape))
            every = [reading.relevance(x, example, "3", k, place) for place in np.ndindex(*r.shape)]
            whole = traced.explain(composite="epsilon-plus", condition=made.conditions[k]).relevance[0]
            np.testing.assert_allclose(sum(every), whole, atol=1e-5)
            np.testing.assert_allclose(reading.relevance(x, example, "3", k), whole, atol=1e-6)
    assert "subspaces" in repr(made.exemplars)
    with pytest.raises(IndexError, match="There is no subspace 2 in '3': it has 2"):
        made.exemplars.of("3", 2)


# Stored


def test_a_killed_search_resumes_and_other_subspaces_reuse_its_contexts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, done, do = found("drsa"), [], Search.do

    def dying(self: Search, index: int, *rest: Any) -> None:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(index)
        do(self, index, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(Search, "do", dying)
        with pytest.raises(KeyboardInterrupt):
            found("drsa", out=tmp_path)
        done.pop()
        resumed = found("drsa", out=tmp_path)  # one part was missing
        np.testing.assert_array_equal(resumed.bases, whole.bases)
        other = found("prca", out=tmp_path, count=1, dimensions=2)  # no part is
    np.testing.assert_array_equal(other.bases, found("prca", count=1, dimensions=2).bases)
    with pytest.raises(WrongPlace, match="positions was 64 and is 3"):
        found(out=tmp_path, positions=3)
    with pytest.raises(RunError, match="holds another run, no exemplars"):
        plrp.concepts.Exemplars.load(tmp_path)


# Bad input


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: subspaces(net(), DATA, "conv"), ValueError, "no conv or linear layer 'conv'"),
        (lambda: found("pca"), ValueError, "method is 'prca' or 'drsa', got 'pca'"),
        (lambda: found(count=3), ValueError, "3 subspaces of 3 dimensions need 9 channels, and '3' has 8"),
        (lambda: found(count=0), ValueError, "count=0, dimensions=3, starts=3: whole numbers from 1"),
        (lambda: found(dimensions=1.5), ValueError, "whole numbers from 1"),
        (lambda: found(positions=0), ValueError, "positions=0: a whole number from 1"),
        (lambda: found(data=DATA[:1], positions=3), ValueError, "need 6 positions, and the data have 3: give more"),
        (lambda: subspaces(net(), DATA, "7"), ValueError, "No layer reads '7', so it has no subspaces"),
        (lambda: subspaces(TwoHeads(), DATA[:, 0, 0], "b", target=first_head), ValueError, "No relevance reaches"),
        (lambda: subspaces(silent(), DATA, "0", count=1, show_progress=False), ValueError, "No input of the data gave"),
        (lambda: found(out="x", target=lambda y: y[:, 0]), TypeError, "a target that can be compared"),
        (lambda: found(composite=flat_above()), ValueError, "no product of its"),
        (lambda: plrp.explain(net(), DATA, condition={"3": Projection(torch.eye(6))}), ValueError, "has 6 rows: the"),
        (lambda: Projection(torch.ones(4, 2)), ValueError, "with orthonormal columns"),
        (lambda: Projection(torch.ones(4)), ValueError, r"\(channels, dimensions\)"),
    ],
)  # fmt: skip
def test_bad_input_is_told(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


def flat_above() -> plrp.Composite:
    return plrp.composite("epsilon").with_layers({"7": plrp.rules.Flat()})


def first_head(outputs: tuple[Tensor, Tensor]) -> Tensor:
    return outputs[0][:, 0]


class TwoHeads(nn.Module):
    """The score of output 0 does not depend on layer `b`."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c, self.d = nn.Linear(10, 4), nn.Linear(10, 4), nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.c(self.a(x).relu()), self.d(self.b(x).relu())


def silent() -> nn.Sequential:
    """No input activates layer 0."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 64, 2)).eval()
    with torch.no_grad():
        model[0].weight.zero_()
        model[0].bias.fill_(-1.0)
    return model


def photographs_and_a_network(tmp_path: Path) -> tuple[str, str]:
    """A folder of five photographs, and the name of a network."""
    from PIL import Image

    (tmp_path / "photos").mkdir()
    for number in range(5):
        pixels = np.random.default_rng(number).integers(0, 255, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{number}.png")
    (tmp_path / "net.py").write_text(
        "from torch import nn\nfrom plrp.models import Preprocessing\n"
        "preprocessing = Preprocessing(resize=36, crop=32)\n"
        "def build():\n    return nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), "
        "nn.Flatten(), nn.Linear(6, 3)).eval()\n"
    )
    return str(tmp_path / "photos"), f"{tmp_path / 'net.py'}:build"


def test_the_command_line_searches_for_subspaces_and_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from plrp.cli import main

    photographs, model = photographs_and_a_network(tmp_path)
    words = ["exemplars", photographs, "--model", model, "--out", str(tmp_path / "run"), "--count", "2"]
    words += ["--dimensions", "2", "--part-size", "2"]
    assert main([*words, "--layers", "0", "--subspaces", "prca"]) == 0
    assert "Subspaces of '0' by PRCA, dimensions: 2 of 6" in capsys.readouterr().out
    page = (tmp_path / "run" / "index.html").read_text()
    assert "Subspaces of 0" in page
    assert "channel" not in page.partition("<body")[2]
    stored = np.load(tmp_path / "run" / "subspaces.npz")
    own = subspaces(load(model, quiet=True), photographs, "0", "prca", 2, 2, composite="auto", show_progress=False)
    for u, v in zip(stored["bases"], own.bases, strict=True):
        np.testing.assert_allclose(projector(u), projector(v), atol=1e-4)
    np.testing.assert_allclose(stored["held"], own.held, rtol=1e-4)
    monkeypatch.setattr(Search, "do", None)  # nothing is collected again
    assert main([*words, "--layers", "0", "--subspaces", "drsa", "--no-pictures", "-q"]) == 0
    assert not np.allclose(np.load(tmp_path / "run" / "subspaces.npz")["bases"], stored["bases"])
    assert main([*words, "--layers", "0", "4", "--subspaces", "drsa"]) == 2
    assert "subspaces are those of one layer" in capsys.readouterr().err
    assert main([*words[:-4], "--layers", "0", "--subspaces", "drsa", "--dimensions", "9"]) == 2
    assert "2 subspaces of 9 dimensions need 18 channels, and '0' has 6" in capsys.readouterr().err


def test_a_search_for_contexts_can_be_sent_to_workers(tmp_path: Path) -> None:
    from plrp.concepts.search import PhotographSearch

    photographs, model = photographs_and_a_network(tmp_path)
    names = (model, None, photographs, str(tmp_path / "run"), "cpu")
    search = PhotographSearch(*names, layers=["0"], positions=5, part_size=2)
    work = search.work()
    assert isinstance(work, Work)
    work.begin("cpu").do(1)
    assert list(search.run.names()) == [1]


def test_a_page_shows_subspaces_beside_the_channels_of_their_layer() -> None:
    from plrp.view import explanation_bundle

    model, x = net(), DATA[:1]
    made = subspaces(model, DATA, "0", "drsa", 2, 2, show_progress=False)
    explanation = plrp.explain(model, x, pruning=plrp.Pruning(p=0.1))
    bundle = explanation_bundle(explanation, exemplars=Reading(made.exemplars, model, DATA), show_progress=False)
    layer = [row["name"] for row in bundle.facts["layers"]].index("3")
    rows = [row for row in bundle.facts["channels"][layer] if not isinstance(row["channel"], int)]
    assert [row["channel"] for row in rows] == ["subspace 0", "subspace 1"]
    for row, condition in zip(rows, made.conditions, strict=False):
        part = plrp.explain(model, x, pruning=plrp.Pruning(p=0.1), condition=condition).relevance
        held = bundle.relevance("through", row["through"])
        assert np.abs(held - part.sum(1)[0].numpy()).max() < 0.02 * np.abs(held).max()
        assert row["share"] == pytest.approx(float(part.sum() / explanation.relevance.sum()), rel=1e-4)
        assert all("gave subspace" in one["caption"] for one in row["exemplars"])
    others = [row for rows in bundle.facts["channels"] for row in rows if isinstance(row["channel"], int)]
    assert not any("exemplars" in row for row in others)  # a subspace's patches are no channel's
