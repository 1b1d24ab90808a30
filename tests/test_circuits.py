"""Circuits: neurons, edges and ablation against nets written with masks and explicit matrices; known circuits found."""

from __future__ import annotations

import math
import pickle
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import plrp
from plrp.ablation import strongest
from plrp.circuits import SCORE, Circuit, Neuron

PRUNINGS = [plrp.Pruning(p=0.3), plrp.Pruning(p=0.3, redistribution="M"), plrp.Pruning(p=0.3, redistribution="M-sign")]


class Residual(nn.Module):
    """A net with a skip whose every prunable tensor can be masked, or set to something else, by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.one, self.two = nn.Conv1d(2, 6, 3), nn.Conv1d(6, 6, 3, padding=1), nn.Conv1d(6, 6, 1)
        self.head = nn.Linear(6 * 7, 4)

    def forward(
        self, x: Tensor, masks: dict[str, Tensor] | None = None, fills: dict[str, Tensor] | None = None
    ) -> Tensor:
        def at(layer: str, h: Tensor) -> Tensor:
            if masks is None:
                return h
            fill = torch.zeros_like(h) if fills is None else fills[layer].expand_as(h)
            return torch.where(masks[layer], h, fill)

        h = at("one", torch.relu(self.stem(x)))
        inside = at("two", torch.relu(self.one(h)))
        h = torch.relu(h + self.two(inside))
        return self.head(at("head", h.flatten(1)))

    def tensors(self, x: Tensor) -> dict[str, Tensor]:
        """What each prunable tensor holds, by hand."""
        h = torch.relu(self.stem(x))
        inside = torch.relu(self.one(h))
        return {"one": h, "two": inside, "head": torch.relu(h + self.two(inside)).flatten(1)}


@pytest.fixture
def net() -> Residual:
    torch.manual_seed(0)
    return Residual().double().eval().requires_grad_(False)


@pytest.fixture
def x() -> Tensor:
    return torch.randn(3, 2, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def masks_of(circuit: Circuit, shapes: dict[str, torch.Size]) -> dict[str, Tensor]:
    """A circuit's neurons as masks (1, …) of the tensors of `Residual`."""
    masks = {}
    for name, found in circuit.neurons.items():
        masks[name] = torch.zeros(1, *shapes[name][1:], dtype=torch.bool)
        for index in found.index.tolist():
            masks[name][(0, *index)] = True
    return masks


def shapes_of(net: Residual, x: Tensor) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in net.tensors(x).items()}


# --- neurons ----------------------------------------------------------------------------------------------------------


def test_the_neurons_are_the_survivors(net: Residual, x: Tensor) -> None:
    explanation = plrp.explain(net, x, pruning=plrp.Pruning(p=0.3))
    circuit = explanation.circuit(sample=1)
    assert circuit.layers == ["one", "two", "head"]
    for name, found in circuit.neurons.items():
        expected = explanation.survivors(name)[1]
        assert torch.equal(found.index, expected.index)
        assert torch.allclose(found.relevance, expected.relevance, rtol=1e-9)
    assert circuit.sizes == {"one": 42, "two": 42, "head": 42}
    active = {name: int(tensor[1].count_nonzero()) for name, tensor in net.tensors(x).items()}
    assert circuit.active == active


def test_positive_survivors_only(net: Residual, x: Tensor) -> None:
    explanation = plrp.explain(net, x, pruning=plrp.Pruning(p=0.3))
    both, positive = explanation.circuit(), explanation.circuit(positive=True)
    for name, found in positive.neurons.items():
        assert bool((found.relevance > 0).all())
        assert len(found.index) == int((both.neurons[name].relevance > 0).sum())
    assert "gradient × activation" in positive.kept
    assert all(edge.lower in positive._relevances for edge in positive.edges())


@pytest.mark.parametrize("made_by", ["explain", "trace", "pieces"])
def test_a_circuit_does_not_depend_on_the_rest_of_the_batch(net: Residual, x: Tensor, made_by: str) -> None:
    pruning = plrp.Pruning(p=0.3)
    if made_by == "trace":
        explanation = plrp.trace(net, x).explain(pruning=pruning)
    else:
        explanation = plrp.explain(net, x, pruning=pruning, micro_batch=2 if made_by == "pieces" else None)
    for sample in range(3):
        among = explanation.circuit(sample=sample)
        alone = plrp.explain(net, x[sample : sample + 1], pruning=pruning).circuit()
        assert {n: s.index.tolist() for n, s in among.neurons.items()} == {
            n: s.index.tolist() for n, s in alone.neurons.items()
        }
        for one, other in zip(among.kept.values(), alone.kept.values(), strict=True):
            assert one == pytest.approx(other, nan_ok=True, rel=1e-9)


# --- ablation ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pruning", PRUNINGS, ids=lambda p: p.redistribution)
def test_ablation_is_the_net_with_masks(net: Residual, x: Tensor, pruning: plrp.Pruning) -> None:
    circuit = plrp.explain(net, x[:1], pruning=pruning).circuit()
    masks = masks_of(circuit, shapes_of(net, x))
    expected = net(x[:1], masks)
    assert torch.allclose(circuit.run(), expected, rtol=1e-9)
    kept, target = circuit.kept["this circuit"], int(circuit.target[0])
    whole = net(x[:1])
    nothing = net(x[:1], {name: torch.zeros_like(mask) for name, mask in masks.items()})
    assert kept.score == pytest.approx(float(expected[0, target]))
    assert kept.probability == pytest.approx(float(expected.softmax(1)[0, target]))
    assert kept.decision == float(expected.argmax() == whole.argmax())
    share = (expected - nothing)[0, target] / (whole - nothing)[0, target]
    assert kept.of_score == pytest.approx(float(share))
    assert circuit.kept["nothing"].score == pytest.approx(float(nothing[0, target]))
    assert circuit.kept["nothing"].of_score == pytest.approx(0.0)


def test_other_inputs_run_through_the_same_neurons(net: Residual, x: Tensor) -> None:
    circuit = plrp.explain(net, x, pruning=plrp.Pruning(p=0.3)).circuit(sample=2, batch_size=2)
    others = torch.randn(5, 2, 9, dtype=torch.float64)
    assert torch.allclose(circuit.run(others), net(others, masks_of(circuit, shapes_of(net, x))), rtol=1e-9)


def test_a_circuit_of_all_active_neurons_is_the_model(net: Residual, x: Tensor) -> None:
    """γ and z⁺ give every active neuron relevance; silent ones are zero already."""
    circuit = plrp.explain(net, x[:1], composite="epsilon", pruning=plrp.Pruning(p=1e-12)).circuit()
    assert sum(len(found.index) for found in circuit.neurons.values()) <= sum(circuit.active.values())
    assert circuit.kept["this circuit"] == pytest.approx(circuit.kept["the model"], rel=1e-9)
    assert circuit.kept["the model"].of_score == 1.0
    assert torch.allclose(circuit.run(), net(x[:1]), rtol=1e-9)


def test_the_mean_over_data_stands_in(net: Residual, x: Tensor) -> None:
    data = torch.randn(7, 2, 9, dtype=torch.float64)
    circuit = plrp.explain(net, x[:1], pruning=plrp.Pruning(p=0.3)).circuit(ablate="mean", data=data, batch_size=3)
    fills = {name: tensor.mean(0, keepdim=True) for name, tensor in net.tensors(data).items()}
    expected = net(x[:1], masks_of(circuit, shapes_of(net, x)), fills)
    assert circuit.kept["this circuit"].score == pytest.approx(float(expected[0, int(circuit.target[0])]))
    assert torch.allclose(circuit.run(), expected, rtol=1e-9)


def test_other_inputs_stand_in(net: Residual, x: Tensor) -> None:
    """The figure is the mean over the draws, and every draw is one input of the data, for all tensors at once."""
    data = torch.randn(4, 2, 9, dtype=torch.float64)
    explanation = plrp.explain(net, x[:1], pruning=plrp.Pruning(p=0.3))
    circuit = explanation.circuit(ablate="resample", data=data, draws=3, seed=5)
    masks, drawn = masks_of(circuit, shapes_of(net, x)), net.tensors(data)
    chosen = torch.randint(4, (3,), generator=torch.Generator().manual_seed(5)).tolist()
    scores = [
        float(net(x[:1], masks, {name: tensor[i : i + 1] for name, tensor in drawn.items()})[0, circuit.target[0]])
        for i in chosen
    ]
    assert circuit.kept["this circuit"].score == pytest.approx(sum(scores) / 3)
    assert float(circuit.run(x[:1].repeat(3, 1, 1))[2, circuit.target[0]]) == pytest.approx(scores[2])


def test_the_baselines_have_as_many_neurons_per_tensor(net: Residual, x: Tensor) -> None:
    """By LRP, by |gradient × activation|, by |activation|: each restated with autograd and a sort."""
    circuit = plrp.explain(net, x[:1], pruning=plrp.Pruning(p=0.3)).circuit()
    target, counts = int(circuit.target[0]), {name: len(found.index) for name, found in circuit.neurons.items()}
    plain = plrp.explain(net, x[:1], target=target, layers=True)
    tensors = {name: tensor.detach().requires_grad_() for name, tensor in net.tensors(x[:1]).items()}
    every = {name: torch.zeros_like(tensor, dtype=torch.bool) for name, tensor in tensors.items()}
    gradients = {}
    for name in tensors:  # the score as a function of one tensor alone, what is above it recomputed
        passed = {other: torch.ones_like(mask) if other != name else mask for other, mask in every.items()}
        fills = {other: tensor if other == name else torch.zeros_like(tensor) for other, tensor in tensors.items()}
        (gradients[name],) = torch.autograd.grad(net(x[:1], passed, fills)[0, target], tensors[name])
    rankings = {
        "LRP": {name: plain.layers[name].abs() for name in tensors},
        "|gradient × activation|": {name: (gradients[name] * tensors[name]).abs() for name in tensors},
        "|activation|": {name: tensors[name].abs() for name in tensors},
    }
    for method, ranks in rankings.items():
        masks = {}
        for name, rank in ranks.items():
            masks[name] = torch.zeros_like(rank, dtype=torch.bool)
            masks[name].view(-1)[rank.flatten().argsort(descending=True)[: counts[name]]] = True
        assert circuit.kept[method].score == pytest.approx(float(net(x[:1], masks)[0, target])), method


@pytest.mark.parametrize("positive", [False, True])
def test_curves_are_those_of_an_explicit_loop(net: Residual, x: Tensor, positive: bool) -> None:
    """f(k), CPR and CMD by sorting all neurons and masking the net by hand, as MIB states them."""
    circuit = plrp.explain(net, x, pruning=plrp.Pruning(p=0.2)).circuit(sample=1, positive=positive)
    tensors, one = net.tensors(x[1:2]), x[1:2]
    plain = plrp.explain(net, one, target=int(net(one).argmax()), layers=True)
    sizes = {name: tensors[name].numel() for name in circuit.layers}
    shares, total = (0.02, 0.1, 0.3, 0.6, 1.0), sum(sizes.values())
    target = int(net(one).argmax())

    def score(chosen: set[tuple[str, int]]) -> float:
        masks = {name: torch.zeros(size, dtype=torch.bool) for name, size in sizes.items()}
        for name, number in chosen:
            masks[name][number] = True
        return float(net(one, {n: m.reshape(tensors[n].shape) for n, m in masks.items()})[0, target])

    ranks = [
        (float(value if positive else value.abs()), name, number)
        for name in circuit.layers
        for number, value in enumerate(plain.layers[name].flatten())
    ]
    order = [(name, number) for _, name, number in sorted(ranks, key=lambda rank: -rank[0])]
    none, whole = score(set()), score(set(order))
    f = [(score(set(order[: round(share * total)])) - none) / (whole - none) for share in shares]
    steps = list(pairwise(zip(shares, f, strict=True)))
    found = circuit.curves(shares)["LRP"]
    assert found.shares == shares
    torch.testing.assert_close(found.kept[:, 0], torch.tensor(f, dtype=torch.float64))
    assert math.isclose(float(found.cpr), sum((b - a) * (u + v) / 2 for (a, u), (b, v) in steps))
    assert math.isclose(float(found.cmd), sum((b - a) * (abs(1 - u) + abs(1 - v)) / 2 for (a, u), (b, v) in steps))
    own = circuit.curves()
    assert set(own) == {"this circuit", "LRP", "|activation|", "random"} | {n for n in own if "gradient" in n}
    assert all(math.isclose(float(c.kept[-1]), 1.0) for c in own.values())  # of all neurons: the model


@pytest.mark.parametrize("shares", [(), (0.5, 0.1), (0.0, 1.0), (0.5, 1.2)])
def test_wrong_shares_of_a_curve_are_refused(net: Residual, x: Tensor, shares: tuple[float, ...]) -> None:
    circuit = plrp.explain(net, x, pruning=plrp.Pruning(p=0.2)).circuit()
    with pytest.raises(ValueError, match="shares are those of the neurons that stay, ascending"):
        circuit.curves(shares)


@pytest.mark.parametrize("seed", range(5))
def test_the_strongest_are_the_first_of_the_sorted(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    ranks = torch.randint(-3, 6, (4, 30), generator=generator).double()
    for row, count in zip(ranks, (0, 1, 11, 30), strict=True):
        mask = strongest(row, count)
        chosen = min(count, int((row > 0).sum()))
        assert int(mask.sum()) == chosen
        assert torch.equal(row[mask].sort(descending=True).values, row.sort(descending=True).values[:chosen])


# --- what is read off the output --------------------------------------------------------------------------------------


def outputs(kind: str) -> tuple[nn.Module, Any, dict[str, Any]]:
    """A model, a target and options for each form of output."""
    torch.manual_seed(3)
    body = [nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU()]
    if kind == "softmax":
        return nn.Sequential(*body, nn.Linear(12, 3), nn.Softmax(1)), 1, {}
    if kind == "callable":
        return nn.Sequential(*body, nn.Linear(12, 3)), lambda output: output[:, 1], {}
    if kind == "dense":
        return nn.Sequential(*body, nn.Linear(12, 12), nn.Unflatten(1, (3, 4))), (1, 2), {"classes": 1}
    return nn.Sequential(*body, nn.Linear(12, 1)), None, {}


@pytest.mark.parametrize("kind", ["softmax", "callable", "dense", "single"])
def test_probability_and_decision_by_the_form_of_the_output(kind: str) -> None:
    model, target, options = outputs(kind)
    model, x = model.double().eval(), torch.randn(1, 5, dtype=torch.float64)
    circuit = plrp.explain(model, x, target=target, pruning=plrp.Pruning(p=0.3)).circuit(**options)
    whole, part = circuit.kept["the model"], circuit.kept["this circuit"]
    for kept, output in ((whole, model(x)), (part, circuit.run())):
        if kind == "softmax":
            expected = output[0, 1]
        elif kind == "callable":
            expected = output.softmax(1)[0, 1]
        elif kind == "dense":
            expected = output.softmax(1)[0, 1, 2]
        else:
            expected = output.sigmoid()[0, 0]
        assert kept.probability == pytest.approx(float(expected))
    assert whole.decision == 1.0


def test_without_classes_there_is_no_probability(x: Tensor) -> None:
    model, target, _ = outputs("dense")
    circuit = plrp.explain(model.eval(), torch.randn(1, 5), target=target, pruning=plrp.Pruning(p=0.3)).circuit()
    assert math.isnan(circuit.kept["this circuit"].probability)
    assert "–" in repr(circuit)
    difference = plrp.explain(
        outputs("callable")[0].eval(), torch.randn(1, 5), target=lambda o: o[:, 0] - o[:, 1], pruning=plrp.Pruning()
    ).circuit()
    assert math.isnan(difference.kept["the model"].probability)
    assert difference.kept["the model"].decision == 1.0


# --- edges ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pruning", PRUNINGS, ids=lambda p: p.redistribution)
def test_what_arrives_at_a_neuron_is_its_relevance(net: Residual, x: Tensor, pruning: plrp.Pruning) -> None:
    """Over all neurons above and the score; the skip hands on around the tensors inside of the block."""
    circuit = plrp.explain(net, x[:1], pruning=pruning).circuit()
    edges = circuit.edges(nodes=None)
    arrived: dict[Neuron, float] = {}
    for edge in edges:
        arrived[edge.lower] = arrived.get(edge.lower, 0.0) + edge.relevance
    assert arrived == pytest.approx(circuit._relevances, rel=1e-9, abs=1e-12)
    ways = {(edge.upper.layer, edge.lower.layer) for edge in edges}
    assert ways == {(SCORE, "head"), ("head", "two"), ("head", "one"), ("two", "one")}
    assert [abs(edge.relevance) for edge in edges] == sorted((abs(edge.relevance) for edge in edges), reverse=True)


def test_edges_are_those_of_explicit_matrices() -> None:
    """Linear layers under ε: k hands n_jk / z_k of its relevance to j, and pruning scales j by λ of its sign."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, 3)).double().eval()
    x = torch.randn(1, 4, dtype=torch.float64)
    explanation = plrp.explain(model, x, target=1, composite="epsilon", pruning=plrp.Pruning(p=0.25))
    circuit = explanation.circuit()
    first, second = torch.relu(model[0](x))[0], torch.relu(model[2](torch.relu(model[0](x))))[0]
    z = model[2](first)
    upper = torch.zeros(6, dtype=torch.float64)
    for index, relevance in zip(circuit.neurons["4"].index, circuit.neurons["4"].relevance, strict=True):
        upper[index] = relevance
    handed = upper[:, None] * model[2].weight * first[None] / (z + 1e-6 * z.sign())[:, None]  # (k, j)
    total = handed.sum(0)
    survivors = {index.item() for index in circuit.neurons["2"].index}
    factor = torch.zeros(7, dtype=torch.float64)
    for sign in (1, -1):
        mass = (sign * total).clamp(min=0)
        left = sum(mass[j] for j in survivors)
        factor += torch.where(mass > 0, mass.sum() / left, 0.0) if left > 0 else 0.0
    found = {
        (e.upper.place[0], e.lower.place[0]): e.relevance for e in circuit.edges(nodes=None) if e.upper.layer == "4"
    }
    expected = {
        (k, j): float(handed[k, j] * factor[j])
        for k in range(6)
        for j in survivors
        if second[k] > 0 and handed[k, j] != 0
    }
    assert found == pytest.approx(expected, rel=1e-9)


def test_edges_between_some_tensors_add_up_too(net: Residual, x: Tensor) -> None:
    circuit = plrp.explain(net, x[:1], pruning=plrp.Pruning(p=0.3)).circuit()
    edges = circuit.edges(nodes=None, layers=["head", "one"])
    arrived: dict[Neuron, float] = {}
    for edge in edges:
        arrived[edge.lower] = arrived.get(edge.lower, 0.0) + edge.relevance
    assert arrived == pytest.approx({n: r for n, r in circuit._relevances.items() if n.layer != "two"}, rel=1e-9)


def test_the_strongest_nodes_alone(net: Residual, x: Tensor) -> None:
    circuit = plrp.explain(net, x[:1], pruning=plrp.Pruning(p=0.3)).circuit()
    few = {edge.upper for edge in circuit.edges(nodes=2)} - {Neuron(SCORE, ())}
    assert few == {Neuron(n, tuple(i)) for n in ("head", "two") for i in circuit.neurons[n].index[:2].tolist()}


def test_graphs(net: Residual, x: Tensor) -> None:
    networkx = pytest.importorskip("networkx")
    circuit = plrp.explain(net, x[:1], pruning=plrp.Pruning(p=0.3)).circuit()
    graph, edges = circuit.to_networkx(nodes=3), circuit.edges(nodes=3)
    assert networkx.is_directed_acyclic_graph(graph)
    assert {(e.upper, e.lower): e.relevance for e in edges} == {
        (a, b): d["relevance"] for a, b, d in graph.edges(data=True)
    }
    assert graph.nodes[Neuron(SCORE, ())]["relevance"] == circuit.score
    dot = circuit.to_dot(nodes=3)
    assert dot.startswith("digraph circuit {")
    assert dot.rstrip().endswith("}")
    assert dot.count("->") == len(edges)
    assert dot.count("rank=same") == 4


def test_the_picture(net: Residual, x: Tensor, tmp_path: Any) -> None:
    pytest.importorskip("matplotlib")
    circuit = plrp.explain(net, x[:1], pruning=plrp.Pruning(p=0.3)).circuit()
    figure = circuit.plot(tmp_path / "circuit.svg", nodes=3, title="a circuit")
    drawn = " ".join(text.get_text() for ax in figure.axes for text in ax.texts)
    assert "head" in drawn
    assert (tmp_path / "circuit.svg").stat().st_size > 1000
    with pytest.raises(ValueError, match="no neurons at the input of 'haed'; nearest: head"):
        circuit.plot(layers=["haed"])


# --- as text, on disk, and refusals -----------------------------------------------------------------------------------


def test_a_circuit_prints_as_a_short_table(net: Residual, x: Tensor) -> None:
    text = repr(plrp.explain(net, x, pruning=plrp.Pruning(p=0.3)).circuit(sample=1))
    assert "survivors of PLRP-λ, Pruning(p=0.3)" in text
    rows = [line.split("  ")[0] for line in text.splitlines()[5:]]
    assert rows == [
        "the model", "this circuit", "LRP", "|gradient × activation|", "|activation|", "random", "nothing",
    ]  # fmt: skip
    assert "<table>" in plrp.explain(net, x, pruning=plrp.Pruning(p=0.3)).circuit()._repr_html_()


def test_an_explanation_from_disk_takes_its_model_and_inputs(net: Residual, x: Tensor) -> None:
    explanation = plrp.explain(net, x, pruning=plrp.Pruning(p=0.3))
    loaded = pickle.loads(pickle.dumps(explanation))
    with pytest.raises(ValueError, match="stored without its model: give both"):
        loaded.circuit()
    with pytest.raises(TypeError, match="both the model and the inputs"):
        loaded.circuit(net)
    with pytest.raises(ValueError, match="do not give the logits of the explanation"):
        loaded.circuit(net, x.flip(0))
    assert loaded.circuit(net, x, sample=2).kept == explanation.circuit(sample=2).kept


def test_refusals(net: Residual, x: Tensor) -> None:
    explanation = plrp.explain(net, x, pruning=plrp.Pruning(p=0.3))
    with pytest.raises(ValueError, match="LRP without pruning has no survivors"):
        plrp.explain(net, x).circuit()
    with pytest.raises(ValueError, match="this explanation has a condition"):
        plrp.explain(net, x, pruning=plrp.Pruning(p=0.3), condition={"one": [0]}).circuit()
    with pytest.raises(IndexError, match="no sample 3: this explanation has 3"):
        explanation.circuit(sample=3)
    with pytest.raises(ValueError, match="ablate is 'zero', 'mean' or 'resample', got 'noise'"):
        explanation.circuit(ablate="noise")
    with pytest.raises(ValueError, match="give some as data="):
        explanation.circuit(ablate="mean")
    with pytest.raises(ValueError, match="name one of them, or leave data= out"):
        explanation.circuit(data=x)
    with pytest.raises(ValueError, match="data holds no sample"):
        explanation.circuit(ablate="mean", data=x[:0])
    with pytest.raises(ValueError, match="no axis of classes"):
        explanation.circuit(classes=0)
    with pytest.raises(ValueError, match="no neurons at the input of 'heat'; nearest: head"):
        explanation.circuit().edges(layers=["heat"])


def test_inputs_of_another_size_are_refused() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv1d(2, 4, 3), nn.ReLU(), nn.Conv1d(4, 4, 3), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(4, 2)
    ).eval()
    circuit = plrp.explain(model, torch.randn(1, 2, 12), pruning=plrp.Pruning(p=0.3)).circuit()
    with pytest.raises(ValueError, match="'2' reads 40 of them for the explained input and 48 for these"):
        circuit.run(torch.randn(1, 2, 14))


def test_changed_weights_are_noticed(net: Residual, x: Tensor) -> None:
    explanation = plrp.explain(net, x, pruning=plrp.Pruning(p=0.3))
    with torch.no_grad():
        net.head.weight.mul_(2)
    with pytest.raises(RuntimeError, match="explain again"):
        explanation.circuit()


# --- other models -----------------------------------------------------------------------------------------------------


def test_a_model_without_a_batch_axis() -> None:
    torch.manual_seed(0)
    one, two = nn.Linear(3, 8).double(), nn.Linear(8, 2).double()

    def graph(nodes: Tensor, mask: Tensor | None = None) -> Tensor:  # a ring: every node hears the one before it
        h = one(nodes)
        h = torch.relu(h + h.roll(1, 0))
        out = two(h if mask is None else h * mask)
        return out + out.roll(1, 0)

    nodes = torch.randn(5, 3, dtype=torch.float64)
    circuit = plrp.explain(graph, nodes, samples=None, target=(2, 1), pruning=plrp.Pruning(p=0.3)).circuit(classes=1)
    mask = torch.zeros(5, 8, dtype=torch.bool)
    ((name, found),) = circuit.neurons.items()
    assert circuit.sizes[name] == 40
    mask[tuple(found.index.T)] = True
    expected = graph(nodes, mask)
    assert torch.allclose(circuit.run(), expected)
    assert circuit.kept["this circuit"].probability == pytest.approx(float(expected[2].softmax(0)[1]))


def test_a_vision_transformer() -> None:
    """Edges of a transformer add up as well: through attention, norms and skips."""
    torchvision = pytest.importorskip("torchvision")
    torch.manual_seed(0)
    model = torchvision.models.VisionTransformer(16, 8, 2, 2, 16, 32, num_classes=5).double().eval()
    nn.init.normal_(model.heads.head.weight)
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    circuit = plrp.explain(model, x, pruning=plrp.Pruning(p=0.4)).circuit(sample=1)
    assert torch.allclose(plrp.trace(model, x[1:]).output, model(x[1:]))
    arrived: dict[Neuron, float] = {}
    for edge in circuit.edges(nodes=None):
        arrived[edge.lower] = arrived.get(edge.lower, 0.0) + edge.relevance
    largest = max(map(abs, circuit._relevances.values()))
    assert arrived == pytest.approx(circuit._relevances, rel=1e-6, abs=1e-9 * largest)
    assert circuit.kept["this circuit"].decision in (0.0, 1.0)


def test_a_language_model_of_hugging_face() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=20, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=32,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).double().eval()
    ids = torch.tensor([[3, 7, 1, 12, 5]])

    def last(ids: Tensor) -> Tensor:
        return model(ids, use_cache=False).logits[:, -1]

    circuit = plrp.explain(last, ids, pruning=plrp.Pruning(p=0.2)).circuit()
    whole = circuit.kept["the model"]
    assert whole.probability == pytest.approx(float(last(ids).softmax(1).max()), rel=1e-6)
    assert torch.isfinite(circuit.run()).all()
    assert circuit.run(torch.tensor([[1, 2, 3, 4, 5], [5, 4, 3, 2, 1]])).shape == (2, 20)


# --- circuits that are known by construction --------------------------------------------------------------------------


def precision_and_recall(found: set[Neuron], true: set[Neuron]) -> tuple[float, float]:
    return len(found & true) / len(found), len(found & true) / len(true)


def side_by_side(crosstalk: float) -> tuple[nn.Module, dict[str, Tensor]]:
    """Two networks in one, their neurons shuffled: one answers classes 0 and 1, the other 2 and 3.

    Weights between them are `crosstalk` times as large as within. Also returns which neurons are the first one's.
    """
    torch.manual_seed(0)
    widths = (10, 40, 40, 40, 4)
    hidden = [torch.randperm(n) % 2 for n in widths[1:-1]]
    halves = [torch.zeros(widths[0]), *hidden, torch.tensor([0, 0, 1, 1])]
    layers: list[nn.Module] = []
    for below, above in pairwise(halves):
        layer = nn.Linear(len(below), len(above)).double()
        together = (above[:, None] == below[None, :]).double()
        with torch.no_grad():
            if len(layers):  # both read the whole input
                layer.weight.mul_(2 * (together + crosstalk * (1 - together)))
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1]).eval(), {str(2 * n): half == 0 for n, half in enumerate(halves[1:-1], 1)}


@pytest.mark.parametrize("crosstalk", [0.0, 0.02])
def test_one_of_two_networks_side_by_side_is_found(crosstalk: float) -> None:
    model, own = side_by_side(crosstalk)
    x = torch.randn(20, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found, true, active = set(), set(), set()
    explanation = plrp.explain(model, x, target=[n % 2 for n in range(20)], pruning=plrp.Pruning(p=0.1))
    hidden = {"2": model[:2](x), "4": model[:4](x), "6": model[:6](x)}
    for sample in range(20):
        circuit = explanation.circuit(sample=sample)
        for name, survivors in circuit.neurons.items():
            places = [index for (index,) in survivors.index.tolist()]
            found |= {Neuron(name, (sample, place)) for place in places}
            alive = hidden[name][sample] > 0
            true |= {Neuron(name, (sample, place)) for place in (own[name] & alive).nonzero()[:, 0].tolist()}
            most = hidden[name][sample].argsort(descending=True)[: len(places)]
            active |= {Neuron(name, (sample, place)) for place in most.tolist()}
    precision, recall = precision_and_recall(found, true)
    assert precision >= (1.0 if crosstalk == 0 else 0.95)
    assert recall >= 0.6
    assert precision_and_recall(active, true)[0] < 0.7  # the most active neurons are as often the other network's


VOCABULARY, LENGTH = 6, 8


class Induction(nn.Module):
    """'… A B … A' → 'B', compiled by hand: a head that copies the previous token, and one that looks it up.

    Beside each works a head for another task, the first token, which other classes read. `sharp` is how hard attention
    is. The residual stream: token, position, previous token, first token, answer, answer of the other task.
    """

    def __init__(self, sharp: float) -> None:
        super().__init__()
        sizes = (VOCABULARY, LENGTH, VOCABULARY, VOCABULARY, VOCABULARY, VOCABULARY)
        ends = torch.tensor(sizes).cumsum(0).tolist()
        token, place, previous, first, answer, other = (slice(e - n, e) for e, n in zip(ends, sizes, strict=True))
        self.width, v, n = ends[-1], VOCABULARY, LENGTH
        self.embed, self.position = nn.Embedding(v, self.width), nn.Parameter(torch.zeros(n, self.width))
        self.q1, self.k1, self.v1, self.o1 = self._head(n), self._head(n), self._head(v), self._head(v, out=True)
        self.q2, self.k2, self.v2, self.o2 = self._head(v), self._head(v), self._head(v), self._head(v, out=True)
        self.out = nn.Linear(self.width, 2 * v, bias=False)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.zero_()
            every, s = torch.eye(v), math.sqrt(sharp)
            self.embed.weight[:, token], self.position[:, place] = every, torch.eye(n)
            self.q1.weight[:n, place] = s * torch.diag(torch.ones(n - 1), 1)  # place i asks for i − 1
            self.k1.weight[:n, place] = s * torch.eye(n)
            self.q1.weight[n, place], self.k1.weight[n, place.start] = s, s  # all ask for place 0
            self.v1.weight[:v, token] = self.v1.weight[v:, token] = every
            self.o1.weight[previous, :v] = self.o1.weight[first, v:] = every
            self.q2.weight[:v, token], self.k2.weight[:v, previous] = s * every, s * every  # my token, your previous
            self.v2.weight[:v, token] = self.v2.weight[v:, first] = every
            self.o2.weight[answer, :v] = self.o2.weight[other, v:] = every
            self.out.weight[:v, answer], self.out.weight[v:, other] = 4 * every, 2 * every
        self.token, self.previous, self.answer = token.start, previous.start, answer.start

    def _head(self, size: int, out: bool = False) -> nn.Linear:
        return nn.Linear(2 * size, self.width, bias=False) if out else nn.Linear(self.width, 2 * size, bias=False)

    def attend(self, h: Tensor, q: nn.Linear, k: nn.Linear, v: nn.Linear, o: nn.Linear) -> Tensor:
        a, b, c = (layer(h).unflatten(-1, (2, -1)).transpose(1, 2) for layer in (q, k, v))
        earlier = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
        weights = (a @ b.transpose(-1, -2)).masked_fill(~earlier, -1e9).softmax(-1)
        return o((weights @ c).transpose(1, 2).flatten(2))

    def forward(self, ids: Tensor) -> Tensor:
        h = self.embed(ids) + self.position
        h = h + self.attend(h, self.q1, self.k1, self.v1, self.o1)
        h = h + self.attend(h, self.q2, self.k2, self.v2, self.o2)
        return self.out(h[:, -1])

    def circuit(self, a: int, b: int, place: int) -> tuple[set[Neuron], set[Neuron]]:
        """The neurons that make A B … A → B, with B at `place`: those on the way of B, and those that look it up."""
        last, reads = LENGTH - 1, "q2, k2, v2"
        carry = {
            Neuron(reads, (place, self.token + b)), Neuron("o2", (last, b)), Neuron("out", (self.answer + b,)),
        }  # fmt: skip
        look_up = {
            Neuron("o1", (place, a)), Neuron(reads, (place, self.previous + a)), Neuron(reads, (last, self.token + a)),
        }  # fmt: skip
        return carry, look_up


BY_NEURON = plrp.Pruning(p=0.05, unit="neuron")  # the circuit is known to the neuron, not to the token
SENTENCES = [
    ([0, 1, 2, 3, 4, 5, 4, 2], 2, 3, 3),
    ([5, 3, 0, 0, 1, 2, 4, 3], 3, 0, 2),
    ([1, 4, 2, 0, 5, 3, 3, 0], 0, 5, 4),
]


def neurons_of(circuit: Circuit) -> set[Neuron]:
    return set(circuit._relevances)


@pytest.mark.parametrize(("ids", "a", "b", "place"), SENTENCES)
def test_the_induction_circuit_of_a_compiled_transformer_is_found(ids: list[int], a: int, b: int, place: int) -> None:
    """To the neuron: previous-token head, its copy, the matching query, the value, the answer; and nothing else."""
    model = Induction(3.0).double().eval()
    explanation = plrp.explain(model, torch.tensor([ids]), target=b, composite="attnlrp", pruning=BY_NEURON)
    circuit, (carry, look_up) = explanation.circuit(positive=True), model.circuit(a, b, place)
    assert precision_and_recall(neurons_of(circuit), carry | look_up) == (1.0, 1.0)
    assert circuit.kept["this circuit"].of_score == pytest.approx(1.0, abs=0.05)
    assert circuit.kept["|activation|"].of_score == pytest.approx(0.0)


@pytest.mark.parametrize(("ids", "a", "b", "place"), SENTENCES)
def test_what_hard_attention_hides_the_test_tells(ids: list[int], a: int, b: int, place: int) -> None:
    """Where a softmax is saturated no relevance reaches query and key, and cp-lrp gives them none: the circuit has the
    way of the answer alone, and its own test says that this is not enough.
    """
    for sharp, composite in ((20.0, "attnlrp"), (3.0, "cp-lrp")):
        model = Induction(sharp).double().eval()
        explanation = plrp.explain(model, torch.tensor([ids]), target=b, composite=composite, pruning=BY_NEURON)
        circuit, (carry, look_up) = explanation.circuit(positive=True), model.circuit(a, b, place)
        found = neurons_of(circuit)
        assert carry <= found
        assert not found & look_up
        assert circuit.kept["this circuit"].of_score < 0.4


def test_a_circuit_after_a_change_of_a_buffer_is_refused() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)).eval()
    found = plrp.explain(net, torch.randn(2, 4), pruning=plrp.Pruning(p=0.2))
    net[1].running_mean.add_(3.0)
    with pytest.raises(RuntimeError, match="changed"):
        found.circuit(sample=0)
