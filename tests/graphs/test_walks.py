"""Walks and subgraphs against enumeration by explicit matrices, in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise, product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import plrp
from plrp.composites import is_any
from plrp.graphs.relevant_walks import Descent
from plrp.rules import Gamma, Zero
from plrp.walk import Walk

torch_geometric = pytest.importorskip("torch_geometric")
geometric = pytest.importorskip("torch_geometric.nn")

EDGES = torch.tensor([[0, 1, 1, 2, 2, 3, 3, 0, 4], [1, 0, 2, 1, 3, 2, 0, 3, 2]])  # node 4 only sends
NODES, FEATURES, WIDTH = 5, 3, 4
GAMMAS = [0.0, 1.5]


class Net(nn.Module):
    """Layers, a sum over the nodes, a head; without biases. `of_nodes`: the last layer's output instead."""

    def __init__(self, layers: Sequence[nn.Module], bias: bool = False) -> None:
        super().__init__()
        self.of_nodes = False
        self.layers, self.head = nn.ModuleList(layers), nn.Linear(WIDTH, 2, bias=bias)
        self.double().eval()

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, EDGES).relu()
        return x if self.of_nodes else self.head(x.sum(0, keepdim=True))


def mlp(a: int, b: int, bias: bool = False) -> nn.Module:
    return nn.Sequential(nn.Linear(a, b, bias=bias), nn.ReLU(), nn.Linear(b, b, bias=bias))


class AddsFirst(nn.Module):
    """The sum over a node and its neighbours, then a linear layer."""

    def __init__(self, a: int) -> None:
        super().__init__()
        self.linear = nn.Linear(a, WIDTH, bias=False)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.linear(x.index_add(0, edge_index[1], x[edge_index[0]]))


def net_of(kind: str, depth: int = 2, bias: bool = False) -> Net:
    torch.manual_seed(4)
    make: dict[str, Callable[[int], nn.Module]] = {
        "GCN": lambda a: geometric.GCNConv(a, WIDTH, bias=bias),
        "GIN": lambda a: geometric.GINConv(mlp(a, WIDTH, bias), eps=0.5),
        "GAT": lambda a: geometric.GATConv(a, WIDTH, bias=bias),
        "adds first": AddsFirst,
    }
    net = Net([make[kind](FEATURES if n == 0 else WIDTH) for n in range(depth)], bias)
    for module in net.modules():
        if isinstance(module, nn.Linear) or type(module).__module__.startswith("torch_geometric.nn.dense"):
            nn.init.uniform_(module.weight, -0.3, 0.7)
    return net


def features() -> Tensor:
    torch.manual_seed(5)
    return torch.rand(NODES, FEATURES, dtype=torch.float64)


def quotients(n: Tensor, axes: tuple[int, ...]) -> Tensor:
    """n / Σ n over some axes, and 0 where the sum is 0."""
    total = n.sum(axes, keepdim=True)
    return torch.where(total == 0, 0.0, n / torch.where(total == 0, 1.0, total))


def shares(h: Tensor, mixing: Tensor, weight: Tensor, gamma: float) -> Tensor:
    """T[J, j, K, k] = λ_JK h_Jj w^γ_jk / Σ_Jj λ_JK h_Jj w^γ_jk for h ≥ 0; weight is (j, k).

    w^γ = w + γ w⁺ where the output is above 0, and w + γ w⁻ where it is below.
    """
    parts = [
        quotients(torch.einsum("JK,Jj,jk->JjKk", mixing, h, weight + gamma * part), (0, 1))
        for part in (weight.clamp(min=0), weight.clamp(max=0))
    ]
    return torch.where(mixing.T @ h @ weight > 0, *parts)


def matrices(net: Net, kind: str, x: Tensor, gamma: float) -> tuple[list[Tensor], Tensor]:
    """T of every message-passing layer, and the relevance (nodes, features) of the last one for class 1.

    GIN adds up and then multiplies, so T is one formula. GCN and GAT of PyTorch Geometric multiply first: γ acts at the
    sender, and the sum over neighbours follows LRP-0.
    """
    eye, found, h = torch.eye(NODES, dtype=torch.float64), [], x
    for layer in net.layers:
        mixing = torch.zeros(NODES, NODES, dtype=torch.float64)
        if kind in ("GIN", "adds first"):
            mixing[EDGES[0], EDGES[1]] = 1
            mixing += (1.5 if kind == "GIN" else 1.0) * eye
        if kind == "adds first":
            found.append(shares(h, mixing, layer.linear.weight.T, gamma))
            h = (mixing.T @ h @ layer.linear.weight.T).relu()
        elif kind == "GIN":
            first, second = layer.nn[0].weight.T, layer.nn[2].weight.T
            z = (mixing.T @ h @ first).relu()
            found.append(
                torch.einsum("JjKk,KkLl->JjLl", shares(h, mixing, first, gamma), shares(z, eye, second, gamma))
            )
            h = (z @ second).relu()
        else:
            if kind == "GCN":
                looped = eye.index_put((EDGES[0], EDGES[1]), torch.ones(1, dtype=torch.float64), accumulate=True)
                mixing = looped / (looped.sum(0)[:, None] * looped.sum(0)[None]).sqrt()
            else:
                _, (pairs, attention) = layer(h, EDGES, return_attention_weights=True)
                mixing[pairs[0], pairs[1]] = attention[:, 0]
            z = h @ layer.lin.weight.T
            summed = quotients(torch.einsum("JK,Jk->JKk", mixing, z), (0,))
            sent = shares(h, eye, layer.lin.weight.T, gamma).diagonal(dim1=0, dim2=2)  # (j, k, J)
            found.append(torch.einsum("jkJ,JKk->JjKk", sent, summed))
            h = (mixing.T @ z).relu()
    if net.of_nodes:
        return found, torch.zeros_like(h).index_put((torch.tensor(2), torch.tensor(1)), h[2, 1])
    weight = net.head.weight[1]
    score = (h @ weight).sum()
    top = h * (weight + gamma * (weight.clamp(min=0) if score > 0 else weight.clamp(max=0)))
    return found, top / top.sum() * score


def enumerated(net: Net, kind: str, x: Tensor, gamma: float) -> dict[tuple[int, ...], float]:
    """The relevance of every walk: the blocks of its nodes, one after the other."""
    with torch.no_grad():
        blocks, top = matrices(net, kind, x, gamma)
        walks = {}
        for walk in product(range(NODES), repeat=len(blocks) + 1):
            relevance = top[walk[-1]]
            for block, (below, above) in zip(
                reversed(blocks), zip(walk[-2::-1], walk[:0:-1], strict=True), strict=True
            ):
                relevance = block[below, :, above] @ relevance
            walks[walk] = float(relevance.sum())
    return walks


def composite(gamma: float) -> plrp.Composite:
    return plrp.Composite([(is_any, Gamma(gamma, epsilon=0.0) if gamma else Zero())], epsilon=0.0)


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("kind", ["GCN", "GIN", "GAT", "adds first"])
def test_walks_are_those_of_enumeration(kind: str, gamma: float) -> None:
    net, x = net_of(kind), features()
    expected = {walk: r for walk, r in enumerated(net, kind, x, gamma).items() if r}
    trace = plrp.trace(net, x, samples=None)
    found = plrp.graphs.walks(trace, target=(0, 1), composite=composite(gamma), top=10_000)
    assert set(found.nodes) == set(expected)
    assert len(expected) > 30
    for walk, relevance in zip(found.nodes, found.relevance.tolist(), strict=True):
        assert relevance == pytest.approx(expected[walk], abs=1e-12)
    assert float(found.relevance.sum()) == pytest.approx(found.score, abs=1e-12)  # no biases: all of the score
    assert found.share == pytest.approx(1.0)
    strengths = sorted(map(abs, expected.values()), reverse=True)
    few = plrp.graphs.walks(trace, target=(0, 1), composite=composite(gamma), top=7)
    assert few.relevance.abs().tolist() == pytest.approx(strengths[:7])


@pytest.mark.parametrize("kind", ["GCN", "GIN", "GAT", "adds first"])
def test_walks_of_one_nodes_output_end_at_this_node(kind: str) -> None:
    net, x = net_of(kind), features()
    net.of_nodes = True
    expected = {walk: r for walk, r in enumerated(net, kind, x, 1.5).items() if r}
    for model in (net, lambda x: net.layers[1](net.layers[0](x, EDGES).relu(), EDGES)):
        trace = plrp.trace(model, x, samples=None)
        options: dict[str, Any] = {"target": (2, 1), "composite": composite(1.5)}
        found = plrp.graphs.walks(trace, top=10_000, **options)
        assert {walk[-1] for walk in found.nodes} == {2}
        assert dict(zip(found.nodes, found.relevance.tolist(), strict=True)) == pytest.approx(expected, abs=1e-12)
        for nodes in ([0, 1, 2], [0, 1, 3]):
            inside = sum(r for walk, r in expected.items() if set(walk) <= set(nodes))
            assert float(plrp.graphs.subgraph(trace, nodes, **options)) == pytest.approx(inside, abs=1e-12)


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("kind", ["GCN", "GIN", "GAT", "adds first"])
def test_a_subgraph_is_the_sum_of_its_walks(kind: str, gamma: float) -> None:
    net, x, alpha = net_of(kind), features(), 0.3
    expected, trace = enumerated(net, kind, x, gamma), plrp.trace(net, x, samples=None)
    sets = [(0, 1, 2), (2, 4), (3,), tuple(range(NODES)), ()]
    masks = torch.tensor([[node in nodes for node in range(NODES)] for nodes in sets])
    options: dict[str, Any] = {"target": (0, 1), "composite": composite(gamma)}
    several = plrp.graphs.subgraph(trace, masks, **options)
    for nodes, together in zip(sets, several, strict=True):
        inside = sum(r for walk, r in expected.items() if set(walk) <= set(nodes))
        found = plrp.graphs.subgraph(trace, torch.tensor(nodes, dtype=torch.long), **options)
        assert float(found) == pytest.approx(inside, abs=1e-12)
        assert float(together) == pytest.approx(inside, abs=1e-12)
        general = 0.0
        for walk, r in expected.items():
            outside = [node not in nodes for node in walk]
            general += r * alpha ** sum(outside) - (r * alpha ** len(walk) if all(outside) else 0.0)
        generalised = plrp.graphs.subgraph(trace, torch.tensor(nodes, dtype=torch.long), alpha=alpha, **options)
        assert float(generalised) == pytest.approx(general, abs=1e-12)


def test_a_subgraph_costs_as_many_steps_as_the_network_is_deep(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, before = [], Walk.hand_down

    def counted(walk: Walk, *args: Any) -> None:
        steps.append(1)
        before(walk, *args)

    def cost(depth: int) -> int:
        trace = plrp.trace(net_of("GCN", depth), features(), samples=None)
        descent = Descent(trace, (0, 1), composite(0.0), None)
        steps.clear()
        descent.at_places(torch.ones(NODES, dtype=torch.float64))
        return len(steps)

    monkeypatch.setattr(Walk, "hand_down", counted)
    costs = [cost(depth) for depth in (2, 3, 4, 8)]
    assert costs[1] - costs[0] == costs[2] - costs[1] == (costs[3] - costs[2]) / 4 > 0


class Jumping(nn.Module):
    """Skips over one and over two layers, and jumping knowledge: walks stay at their node there."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.layers = nn.ModuleList(geometric.SAGEConv(a, WIDTH) for a in (FEATURES, WIDTH, WIDTH))
        self.head = nn.Linear(3 * WIDTH, 2)
        self.double().eval()

    def forward(self, x: Tensor) -> Tensor:
        a = self.layers[0](x, EDGES).relu()
        b = self.layers[1](a, EDGES).relu() + a
        c = self.layers[2](b, EDGES).relu() + a
        return self.head(torch.cat([a, b, c], 1).sum(0, keepdim=True))


@pytest.mark.parametrize("pruning", [None, plrp.Pruning(p=0.1), plrp.Pruning(p=0.1, redistribution="M-sign")])
def test_walks_add_up_to_the_explanation(pruning: plrp.Pruning | None) -> None:
    trace = plrp.trace(Jumping(), features(), samples=None)
    options: dict[str, Any] = {"target": (0, 1), "composite": "epsilon", "pruning": pruning}
    explanation = trace.explain(**options)
    found = plrp.graphs.walks(trace, top=10_000, **options)
    assert len(set(found.nodes)) == len(found.nodes)
    assert {len(walk) for walk in found.nodes} == {4}
    nodes = torch.zeros(NODES, dtype=torch.float64)
    for walk, relevance in zip(found.nodes, found.relevance, strict=True):
        nodes[walk[0]] += relevance
    torch.testing.assert_close(nodes, explanation.relevance.sum(1), atol=1e-12, rtol=1e-9)
    inside = [float(r) for walk, r in zip(found.nodes, found.relevance, strict=True) if set(walk) <= {0, 1, 2}]
    assert float(plrp.graphs.subgraph(trace, [0, 1, 2], **options)) == pytest.approx(sum(inside), abs=1e-12)
    of_graph = plrp.graphs.relevance(trace, EDGES, **options)
    for edge, relevance in zip(EDGES.T.tolist(), of_graph.edges, strict=True):
        steps = [
            float(r) * sum(pair == tuple(edge) for pair in pairwise(walk)) / 3
            for walk, r in zip(found.nodes, found.relevance, strict=True)
        ]
        assert float(relevance) == pytest.approx(sum(steps), abs=1e-12)
    torch.testing.assert_close(of_graph.nodes, explanation.relevance.sum(1))
    torch.testing.assert_close(of_graph.features, explanation.relevance.sum(0))


def test_walks_that_hold_a_share() -> None:
    trace = plrp.trace(net_of("GIN", 3), features(), samples=None)
    every = plrp.graphs.walks(trace, target=(0, 1), top=10_000)
    held = plrp.graphs.walks(trace, target=(0, 1), top=None, hold=0.9)
    sums = every.relevance.cumsum(0)
    assert sums[len(held) - 1] * every.total >= 0.9 * every.total**2
    assert (sums[: len(held) - 1] * every.total < 0.9 * every.total**2).all()
    assert "walks hold" in repr(held)


def test_gamma_falls_linearly_to_the_last_layer() -> None:
    trace = plrp.trace(net_of("GIN", 2), features(), samples=None)
    chosen = plrp.graphs.falling_gamma(trace, 3.0)
    names = [op.name for op in trace.layers]
    assert [chosen.layers[name].gamma for name in names[:-1]] == pytest.approx([3.0, 2.25, 1.5, 0.75])
    assert names[-1] not in chosen.layers


class Bare(nn.Module):
    """Message passing without a library."""

    def __init__(self, way: str) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.way, self.a, self.b, self.head = (
            way,
            nn.Linear(FEATURES, WIDTH),
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, 2),
        )
        self.register_buffer("edges", torch.eye(NODES).index_put((EDGES[1], EDGES[0]), torch.ones(EDGES.shape[1])))
        self.double().eval()

    def spread(self, h: Tensor) -> Tensor:
        if self.way == "matmul":
            return self.edges @ h
        if self.way == "sparse":
            return self.edges.to_sparse_csr() @ h
        if self.way == "max":
            return torch.where(self.edges[:, :, None] > 0, h[None], -1e9).amax(1)
        return h.index_add(0, EDGES[1], h[EDGES[0]])

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.spread(self.b(self.spread(self.a(x)).relu())).relu().sum(0, keepdim=True))


@pytest.mark.parametrize("way", ["matmul", "sparse", "index_add", "max"])
def test_bare_message_passing(way: str) -> None:
    trace = plrp.trace(Bare(way), features(), samples=None)
    found = plrp.graphs.walks(trace, target=(0, 1), top=1000)
    assert {len(walk) for walk in found.nodes} == {3}
    steps = {(int(a), int(b)) for a, b in EDGES.T} | {(node, node) for node in range(NODES)}
    assert {pair for walk in found.nodes for pair in pairwise(walk)} <= steps
    assert float(found.relevance.sum()) == pytest.approx(found.total, abs=1e-12)


@pytest.mark.parametrize("composite", ["auto", None, "epsilon-gamma"])
@pytest.mark.parametrize("pruning", [None, plrp.Pruning(p=0.1)])
def test_every_spelling_of_message_passing_is_explained_alike(composite: Any, pruning: plrp.Pruning | None) -> None:
    """Edges are no weights: they take no γ and no ♭, which would credit nodes without a path, and are not pruned."""
    torch.manual_seed(9)
    first, last, x = nn.Linear(FEATURES, WIDTH).double(), nn.Linear(WIDTH, 2).double(), features()
    a = torch.zeros(NODES, NODES, dtype=torch.float64).index_put((EDGES[1], EDGES[0]), torch.ones(1).double())
    spellings: list[Callable[[Tensor], Tensor]] = [
        lambda h: torch.zeros_like(h).index_add(0, EDGES[1], h[EDGES[0]]),
        lambda h: a @ h,
        lambda h: torch.einsum("kj,jf->kf", a, h),
        lambda h: a.to_sparse_csr() @ h,
    ]
    several = []
    for spread in spellings:
        trace = plrp.trace(lambda x, s=spread: last(s(first(s(x)).relu())), x, samples=None)
        assert len(trace.layers) == 2
        found = plrp.graphs.relevance(trace, target=(0, 1), composite=composite, pruning=pruning)
        assert not found.nodes[4]  # two steps lead from 4 to 2 and on, never to 0
        several.append(found.explanation.relevance)
    for other in several[1:]:
        torch.testing.assert_close(other, several[0])
    weight = nn.Parameter(torch.rand(6, NODES).double())
    assert plrp.trace(lambda x: weight @ x, x, samples=None).layers  # a weight of the model


@pytest.mark.parametrize("kind", ["DenseGCNConv", "DenseGraphConv", "DenseSAGEConv"])
def test_dense_layers_of_a_batch_reach_only_neighbours(kind: str) -> None:
    torch.manual_seed(0)
    layer, head = getattr(geometric, kind)(FEATURES, WIDTH), nn.Linear(WIDTH, 2)
    x, edges = torch.rand(3, NODES, FEATURES), (torch.rand(3, NODES, NODES) < 0.4).float()
    found = plrp.explain(lambda x: head(layer(x, edges).relu()[:, 0]), x, target=1)
    reached = (edges[:, 0] > 0) | (torch.arange(NODES) == 0)
    assert not found.relevance[~reached].any()
    assert found.relevance[reached].any(1).sum() > 3


def test_sparse_edges_are_explained_as_dense_ones() -> None:
    dense, sparse = (plrp.trace(Bare(way), features(), samples=None) for way in ("matmul", "sparse"))
    one, other = (trace.explain(target=(0, 1)) for trace in (dense, sparse))
    torch.testing.assert_close(one.relevance, other.relevance)
    x, pairs = features(), EDGES.unique(dim=1).contiguous()
    csr = torch.sparse_coo_tensor(pairs.flip(0), torch.ones(pairs.shape[1]).double(), (NODES, NODES)).to_sparse_csr()
    for layer in (geometric.GCNConv(3, 2), geometric.SAGEConv(3, 2, aggr="max"), geometric.SAGEConv(3, 2)):
        layer.double().eval()
        several = [
            plrp.explain(
                lambda x, edges=edges, layer=layer: layer(x, edges).relu_(), x, samples=None, target=(2, 1)
            ).relevance
            for edges in (pairs, csr, torch_geometric.EdgeIndex(pairs, sparse_size=(NODES, NODES)))
        ]
        for found in several[1:]:
            torch.testing.assert_close(found, several[0])
    with pytest.raises(plrp.TraceError, match=r"reads a sparse tensor; make it dense with `.to_dense\(\)`"):
        plrp.explain(lambda x: (x.mT @ csr).sum(1, keepdim=True).mT, x, samples=None, target=(0, 1))


def test_nodes_may_be_ids_that_an_embedding_reads() -> None:
    embedding, net = nn.Embedding(4, FEATURES).double(), net_of("GIN")
    for ids in (torch.tensor([0, 3, 1, 1, 2]), torch.tensor([[0], [3], [1], [1], [2]])):
        trace = plrp.trace(lambda ids: net(embedding(ids.view(-1))), ids, samples=None)
        found = plrp.graphs.relevance(trace, EDGES, target=(0, 1), composite="epsilon")
        own = plrp.trace(net, embedding.weight[[0, 3, 1, 1, 2]].detach(), samples=None)
        expected = plrp.graphs.relevance(own, EDGES, target=(0, 1), composite="epsilon")
        torch.testing.assert_close(found.nodes, expected.nodes)
        torch.testing.assert_close(found.edges, expected.edges)


def test_bad_input_gets_a_sentence() -> None:
    net, x = net_of("GCN"), features()
    trace = plrp.trace(net, x, samples=None)
    for nodes, fault in (([7], "There is no node 7"), ([-1], "There is no node -1"), (torch.tensor([True]), "5 nodes")):
        with pytest.raises(ValueError, match=fault):
            plrp.graphs.subgraph(trace, nodes, target=(0, 1))
    with pytest.raises(TypeError, match="node numbers or a boolean mask"):
        plrp.graphs.subgraph(trace, torch.rand(2), target=(0, 1))
    with pytest.raises(ValueError, match=r"edge_index names nodes 0…9; the graph has 5"):
        plrp.graphs.relevance(trace, torch.tensor([[0], [9]]), target=(0, 1))
    with pytest.raises(ValueError, match=r"edge_index is a tensor \(2, edges\)"):
        plrp.graphs.relevance(trace, EDGES.T, target=(0, 1))
    with pytest.raises(ValueError, match="needs an end"):
        plrp.graphs.walks(trace, target=(0, 1), top=None)
    with pytest.raises(ValueError, match="top is 1 or more"):
        plrp.graphs.walks(trace, target=(0, 1), top=0)
    several = plrp.trace(nn.Linear(FEATURES, 2).double().eval(), x)
    with pytest.raises(ValueError, match="Walks are those of one graph"):
        plrp.graphs.walks(several, target=1)


def test_two_branches_side_by_side_are_refused() -> None:
    a, b, c, d = (geometric.GCNConv(FEATURES, FEATURES).double().eval() for _ in range(4))

    def model(x: Tensor) -> Tensor:
        return (b(a(x, EDGES), EDGES) + d(c(x, EDGES), EDGES)).sum(0)

    with pytest.raises(ValueError, match="After 1 message-passing layers no single tensor"):
        plrp.graphs.walks(plrp.trace(model, features(), samples=None), target=(0,))


def test_features_of_zero_have_no_walks() -> None:
    trace = plrp.trace(net_of("GIN"), 0 * features(), samples=None)
    assert len(plrp.graphs.walks(trace, target=(0, 1))) == 0


def test_a_graph_without_edges_has_a_walk_per_node() -> None:
    net = net_of("GIN")
    trace = plrp.trace(lambda x: net.head(net.layers[0](x, EDGES[:, :0]).relu().sum(0)), features(), samples=None)
    found = plrp.graphs.walks(trace, target=(1,), top=100)
    assert {node for walk in found.nodes for node in walk} == set(range(NODES))
    assert float(found.relevance.sum()) == pytest.approx(found.total)


def test_the_figure_shows_every_walk() -> None:
    trace = plrp.trace(net_of("GIN"), features(), samples=None)
    figure = plrp.graphs.walks(trace, target=(0, 1), top=8).plot(EDGES, labels=list("ABCDE"))
    (axes,) = figure.axes
    assert len(axes.lines) == 8
    assert {text.get_text() for text in axes.texts} == set("ABCDE")


def test_the_explainer_of_pytorch_geometric() -> None:
    from torch_geometric.explain import Explainer, fidelity, unfaithfulness

    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net_of("GIN")

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            h = x
            for layer in self.net.layers:
                h = layer(h, edge_index).relu()
            return self.net.head(h.sum(0, keepdim=True))

    model, x = Graph(), features()
    settings: dict[str, Any] = {
        "explanation_type": "model",
        "node_mask_type": "object",
        "edge_mask_type": "object",
        "model_config": {"mode": "multiclass_classification", "task_level": "graph", "return_type": "raw"},
    }
    explainer = Explainer(model, plrp.graphs.PLRPExplainer(signed=True), **settings)
    found = explainer(x, EDGES)
    winner = int(model(x, EDGES).argmax())
    trace = plrp.trace(lambda x: model(x, EDGES), x, samples=None)
    expected = plrp.graphs.relevance(trace, EDGES, target=lambda output: output[0, winner] - output.mean())
    torch.testing.assert_close(found.node_mask[:, 0], expected.nodes, atol=1e-6, rtol=1e-5)  # by ε
    torch.testing.assert_close(found.edge_mask, expected.edges, atol=1e-6, rtol=1e-5)
    explainer = Explainer(model, plrp.graphs.PLRPExplainer(), **settings)
    masks = explainer(x, EDGES)
    assert float(masks.node_mask.min()) >= 0
    assert float(masks.node_mask.max()) == float(masks.edge_mask.max()) == 1
    assert all(0 <= number <= 1 for number in (*fidelity(explainer, masks), unfaithfulness(explainer, masks)))
    with torch.no_grad():
        model.net.head.weight.copy_(-model.net.head.weight.abs())  # all logits are negative: the winner has evidence
    assert float(model(x, EDGES).max()) < 0 < float(explainer(x, EDGES).edge_mask.sum())
    with pytest.raises(ValueError, match="graphs of one kind of nodes"):
        explainer.algorithm(model, {"a": x}, EDGES, target=torch.tensor([0]))


@pytest.mark.parametrize("descending", [False, True])
def test_walks_name_nodes_and_not_their_ranks(descending: bool) -> None:
    """A sort is a gather with these places, whose walks are those of the graph before it."""
    net, x, edges = net_of("adds first"), features(), torch.eye(NODES, dtype=torch.float64)
    edges[EDGES[1], EDGES[0]] = 1
    first, second = (layer.linear for layer in net.layers)
    order = (edges @ first(x)).relu().argsort(0, descending=descending).detach()

    def walks_of(between: Callable[[Tensor], Tensor]) -> dict[tuple[int, ...], float]:
        def model(x: Tensor) -> Tensor:
            h = between((edges @ first(x)).relu())
            return net.head((edges @ second(h)).relu().sum(0, keepdim=True))

        trace = plrp.trace(model, x, samples=None)
        found = plrp.graphs.walks(trace, target=(0, 1), composite=composite(0.0), top=200)
        return dict(zip(found.nodes, found.relevance.tolist(), strict=True))

    expected = walks_of(lambda h: h.gather(0, order))
    assert len(expected) > NODES
    assert walks_of(lambda h: h.sort(0, descending=descending).values) == pytest.approx(expected)


def test_a_graph_has_no_figure_of_samples_and_a_figure_needs_all_names() -> None:
    trace = plrp.trace(net_of("GIN"), features(), samples=None)
    explanation = trace.explain(target=(0, 1))
    with pytest.raises(ValueError, match="rows of this input are no samples"):
        explanation.plot()
    assert explanation._repr_mimebundle_() is None  # a notebook takes the ledger's table
    walks = plrp.graphs.walks(trace, target=(0, 1), top=3)
    for wrong, words in (({"labels": "AB"}, "labels has 2 entries"), ({"layout": {0: (0, 1)}}, "layout has 1 entries")):
        with pytest.raises(ValueError, match=f"{words}: the graph has 5 nodes"):
            walks.plot(EDGES, **wrong)
    several = [plrp.graphs.subgraph(trace, nodes, target=(0, 1)) for nodes in ({0, 2}, [0, 2])]
    assert several[0] == several[1]
