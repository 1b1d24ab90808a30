"""Every layer, and random graph networks, against a slow LRP on dense matrices in float64 (`graph_oracle.py`)."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import plrp
from graph_oracle import Dense, composite_of, pooled, relevance_of

geometric = pytest.importorskip("torch_geometric.nn")

OF_EDGES, WIDTH = 3, 6
Make = Callable[[int, int, bool], nn.Module]


def mlp(a: int, b: int, bias: bool) -> nn.Module:
    return nn.Sequential(nn.Linear(a, b, bias), nn.ReLU(), nn.Linear(b, b, bias))


def without_bias(layer: nn.Module, bias: bool) -> nn.Module:
    """Layers that do not take `bias=False` everywhere: their biases are zero then."""
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if "bias" in name:
                parameter.uniform_(-0.3, 0.3) if bias else parameter.zero_()
    return layer


def pna(a: int, b: int, bias: bool, **options: Any) -> nn.Module:
    kinds, scalers = ["mean", "min", "max", "std", "sum", "var"], ["identity", "amplification", "attenuation"]
    return without_bias(geometric.PNAConv(a, b, kinds, scalers, torch.tensor([0, 1, 2, 3, 1]), **options), bias)


def edged(kind: str, **options: Any) -> Make:
    def make(a: int, b: int, bias: bool) -> nn.Module:
        if kind == "GINE":
            return without_bias(geometric.GINEConv(mlp(a, b, bias), edge_dim=OF_EDGES), bias)
        layer = getattr(geometric, f"{kind}Conv")
        return without_bias(layer(a, b // 2, 2, edge_dim=OF_EDGES, **options), bias)

    return make


LAYERS: dict[str, Make] = {
    "GCN": lambda a, b, bias: without_bias(geometric.GCNConv(a, b, bias=bias), bias),
    "GIN": lambda a, b, bias: geometric.GINConv(mlp(a, b, bias), eps=0.5),
    "GraphConv": lambda a, b, bias: geometric.GraphConv(a, b, bias=bias),
    "SAGE": lambda a, b, bias: geometric.SAGEConv(a, b, bias=bias),
    "SAGE_max": lambda a, b, bias: geometric.SAGEConv(a, b, aggr="max", bias=bias),
    "Cheb": lambda a, b, bias: without_bias(geometric.ChebConv(a, b, 3, bias=bias), bias),
    "ARMA": lambda a, b, bias: without_bias(geometric.ARMAConv(a, b, 2, 2, bias=bias), bias),
    "GatedGraph": lambda a, b, bias: without_bias(geometric.GatedGraphConv(b, 2, bias=bias), bias),
    "GAT": lambda a, b, bias: without_bias(geometric.GATConv(a, b // 2, 2, bias=bias), bias),
    "GATv2": lambda a, b, bias: without_bias(geometric.GATv2Conv(a, b // 2, 2, bias=bias), bias),
    "Transformer": lambda a, b, bias: without_bias(geometric.TransformerConv(a, b // 2, 2, bias=bias), bias),
    "PNA": pna,
}
WITH_EDGES: dict[str, Make] = {
    "GINE": edged("GINE"),
    "GAT": edged("GAT"),
    "GATv2": edged("GATv2"),
    "Transformer": edged("Transformer"),
    "PNA": lambda a, b, bias: pna(a, b, bias, edge_dim=OF_EDGES),
}
WEIGHTED = ("GCN", "GraphConv", "Cheb", "ARMA")  # take edge_weight
PIECEWISE = ("GCN", "GIN", "GraphConv", "SAGE", "SAGE_max", "Cheb", "ARMA")  # nothing is held constant there


def random_edges(draw: random.Random, nodes: int, loops: bool) -> Tensor:
    """Directed edges, some of them both ways, some twice; often an isolated node; at most one loop at a node."""
    alone = draw.randrange(nodes) if draw.random() < 0.4 else None
    pairs: list[tuple[int, int]] = []
    for _ in range(draw.randint(nodes, 3 * nodes)):
        a, b = draw.sample([n for n in range(nodes) if n != alone], 2)
        pairs += [(a, b), (b, a)] if draw.random() < 0.5 else [(a, b)]
    if loops:
        pairs += [(node, node) for node in range(nodes) if draw.random() < 0.4]
    draw.shuffle(pairs)
    return torch.tensor(pairs).T


class Net(nn.Module):
    """Layers with ReLUs, perhaps skips, jumping knowledge and a virtual node; a pool; a head. The graph is its own."""

    def __init__(
        self, kinds: list[str], made: list[nn.Module], pool: str, shape: str, bias: bool, edges: Tensor, nodes: int
    ) -> None:
        super().__init__()
        self.kinds, self.layers, self.pool, self.shape = kinds, nn.ModuleList(made), pool, shape
        self.virtual = nn.Linear(WIDTH, WIDTH, bias)
        self.head = nn.Linear(WIDTH * (len(made) if shape == "cat" else 1), 2, bias)
        self.edges, self.batch = edges, torch.zeros(nodes, dtype=torch.long)
        self.weight: Tensor | None = None
        self.attributes: Tensor | None = None
        self.double().eval()

    def state(self, states: list[Tensor], dense: Dense | None) -> Tensor:
        """The next state, from all before it."""
        x, shape = states[-1].relu(), self.shape
        if shape == "skip" and len(states) > 1 and states[-2].shape == x.shape:
            x = x + states[-2]
        if shape == "virtual":
            whole = pooled(x, self.batch, "add") if dense else geometric.global_add_pool(x, self.batch)
            x = x + (dense.of(self.virtual, whole) if dense else self.virtual(whole)).relu()[self.batch]
        return x

    def end(self, states: list[Tensor]) -> Tensor:
        if self.shape == "cat":
            return torch.cat(states[1:], 1)
        return torch.stack(states[1:], -1).amax(-1) if self.shape == "max" else states[-1]

    def forward(self, x: Tensor) -> Tensor:
        states = [x]
        for kind, layer in zip(self.kinds, self.layers, strict=True):
            options: dict[str, Any] = {"edge_weight": self.weight} if kind in WEIGHTED else {}
            if self.attributes is not None:
                options["edge_attr"] = self.attributes
            states.append(layer(states[-1], self.edges, **options))
            states[-1] = self.state(states, None)
        return self.head(getattr(geometric, f"global_{self.pool}_pool")(self.end(states), self.batch))

    def restated(self, x: Tensor, gamma: float) -> Tensor:
        dense, states = Dense(len(x), self.edges, gamma), [x]
        weight = torch.ones(self.edges.shape[1]).double() if self.weight is None else self.weight
        for kind, layer in zip(self.kinds, self.layers, strict=True):
            more = () if self.attributes is None else (self.attributes,)
            states.append(getattr(dense, kind)(layer, states[-1], weight, *more))
            states[-1] = self.state(states, dense)
        return dense.of(self.head, pooled(self.end(states), self.batch, self.pool))


def agrees(net: Net, x: Tensor, gamma: float, target: int = 1) -> plrp.Explanation:
    """Compare an explanation with the restated network."""
    torch.testing.assert_close(net.restated(x, gamma), net(x), atol=1e-9, rtol=1e-9)
    (expected,) = relevance_of(lambda x: net.restated(x, gamma)[:, target].sum(), x)
    found = plrp.explain(net, x, samples=None, target=(0, target), composite=composite_of(gamma))
    assert float(expected.abs().sum()) > 0
    torch.testing.assert_close(found.relevance, expected, atol=1e-9, rtol=1e-6)
    return found


@pytest.mark.parametrize(("gamma", "bias"), [(0.0, False), (0.7, True)])
@pytest.mark.parametrize("kind", LAYERS)
def test_every_layer_is_explained_as_dense_matrices_are(kind: str, gamma: float, bias: bool) -> None:
    if gamma and kind == "GatedGraph":
        pytest.skip("γ is for networks of ReLU")
    torch.manual_seed(0)
    draw = random.Random(3)
    edges = random_edges(draw, 6, loops=kind not in ("GAT", "GATv2"))
    net = Net([kind] * 2, [LAYERS[kind](a, WIDTH, bias) for a in (4, WIDTH)], "add", "plain", bias, edges, 6)
    if kind in WEIGHTED:
        net.weight = torch.rand(edges.shape[1]).double() + 0.2
    agrees(net, torch.rand(6, 4).double(), gamma)


@pytest.mark.parametrize("gamma", [0.0, 0.7])
@pytest.mark.parametrize("kind", WITH_EDGES)
def test_edge_features_are_inputs_as_in_dense_matrices(kind: str, gamma: float) -> None:
    torch.manual_seed(1)
    edges = random_edges(random.Random(4), 5, loops=False)
    net = Net([kind] * 2, [WITH_EDGES[kind](a, WIDTH, True) for a in (4, WIDTH)], "mean", "plain", True, edges, 5)
    x, attributes = torch.rand(5, 4).double(), torch.rand(edges.shape[1], OF_EDGES).double()

    def model(x: Tensor, attributes: Tensor) -> Tensor:
        net.attributes = attributes
        return net(x)

    def score(x: Tensor, attributes: Tensor) -> Tensor:
        net.attributes = attributes
        return net.restated(x, gamma)[0, 1]

    torch.testing.assert_close(score(x, attributes), model(x, attributes)[0, 1])
    expected = relevance_of(score, x, attributes)
    found = plrp.explain(model, (x, attributes), samples=None, target=(0, 1), composite=composite_of(gamma))
    for one, other in zip(found.relevance, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-6)
    assert (expected[1].abs().sum() > 0) == (kind in ("GINE", "Transformer", "PNA"))  # elsewhere edges only weigh


def test_edge_weights_that_are_inputs_are_held_constant() -> None:
    """They weigh messages, as attention does: nodes have the relevance that they have beside constant weights."""
    torch.manual_seed(2)
    edges = random_edges(random.Random(5), 5, loops=True)
    made = [LAYERS["GraphConv"](a, WIDTH, True) for a in (4, WIDTH)]
    net = Net(["GraphConv"] * 2, made, "add", "plain", True, edges, 5)
    x, weight = torch.rand(5, 4).double(), torch.rand(edges.shape[1]).double() + 0.2

    def model(x: Tensor, weight: Tensor) -> Tensor:
        net.weight = weight
        return net(x)

    found = plrp.explain(model, (x, weight), samples=None, target=(0, 1), composite=composite_of(0.7))
    net.weight = weight
    torch.testing.assert_close(found.relevance[0], agrees(net, x, 0.7).relevance)
    assert not found.relevance[1].any()


@pytest.mark.parametrize("mode", ["cat", "max", "lstm", "virtual"])
@pytest.mark.parametrize("gamma", [0.0, 0.7])
def test_jumping_knowledge_and_virtual_nodes_as_dense_matrices(mode: str, gamma: float) -> None:
    torch.manual_seed(6)
    edges = random_edges(random.Random(6), 6, loops=False)
    made = [LAYERS["GIN"](a, WIDTH, True) for a in (4, WIDTH, WIDTH)]
    net = Net(["GIN"] * 3, made, "mean", mode, True, edges, 6)
    x = torch.rand(6, 4).double()
    if mode != "lstm":
        jump = geometric.JumpingKnowledge(mode) if mode != "virtual" else None
        end = net.end
        agrees(net, x, gamma)
        if jump is not None:
            net.end = lambda states: jump(states[1:])  # type: ignore[method-assign]
            found = plrp.explain(net, x, samples=None, target=(0, 1), composite=composite_of(gamma))
            net.end = end  # type: ignore[method-assign]
            torch.testing.assert_close(found.relevance, agrees(net, x, gamma).relevance)
        return
    jump = geometric.JumpingKnowledge("lstm", WIDTH, 3).double()

    def gated(states: list[Tensor]) -> Tensor:
        with torch.no_grad():
            alpha = jump.att(jump.lstm(torch.stack(states[1:], 1))[0])[..., 0].softmax(1)
        return (torch.stack(states[1:], 1) * alpha[..., None]).sum(1)

    net.end = gated  # type: ignore[method-assign]
    (expected,) = relevance_of(lambda x: net.restated(x, gamma)[0, 1], x)
    net.end = lambda states: jump(states[1:])  # type: ignore[method-assign]
    found = plrp.explain(net, x, samples=None, target=(0, 1), composite=composite_of(gamma))
    torch.testing.assert_close(found.relevance, expected, atol=1e-9, rtol=1e-6)


# --- random networks --------------------------------------------------------------------------------------------------


def random_net(seed: int) -> tuple[Net, Tensor, float]:
    """A network, node features, and γ; networks of an even seed have no biases."""
    draw, bias = random.Random(seed), seed % 2 == 1
    torch.manual_seed(seed)
    gamma = draw.choice([0.0, 0.25, 2.0]) if bias else 0.0
    pick = list(LAYERS) if bias else list(PIECEWISE)
    kinds = [draw.choice([k for k in pick if not (gamma and k == "GatedGraph")]) for _ in range(draw.randint(1, 3))]
    nodes = draw.randint(3, 8)
    looped = not {"GAT", "GATv2"} & set(kinds) and draw.random() < 0.5
    edges = random_edges(draw, nodes, looped)
    made = [LAYERS[kind](4 if n == 0 else WIDTH, WIDTH, bias) for n, kind in enumerate(kinds)]
    shape = draw.choice(["plain", "plain", "skip", "cat", "max", "virtual"])
    net = Net(kinds, made, draw.choice(["add", "mean", "max"]), shape, bias, edges, nodes)
    if draw.random() < 0.5:
        net.weight = torch.rand(edges.shape[1]).double() + 0.1
    x = torch.randn(nodes, 4).double() if draw.random() < 0.5 else torch.rand(nodes, 4).double()
    return net, x, gamma


def in_batch(net: Net, x: Tensor, draw: random.Random) -> tuple[Tensor, Tensor]:
    """The graph with another one beside it, in one batch; the network gets their edges. Nodes, and the vector."""
    other = draw.randint(2, 5)
    edges = random_edges(draw, max(3, other), False)
    more = torch.randn(max(3, other), 4).double()
    if net.weight is not None:
        net.weight = torch.cat([net.weight, torch.rand(edges.shape[1]).double() + 0.1])
    net.edges = torch.cat([net.edges, edges + len(x)], 1)
    net.batch = torch.tensor([0] * len(x) + [1] * len(more))
    return torch.cat([x, more]), net.batch


def check_random_net(seed: int) -> None:
    net, x, gamma = random_net(seed)
    if not torch.any(net(x)[0, 1]):
        return
    expected: Tensor
    (expected,) = relevance_of(lambda x: net.restated(x, gamma)[0, 1], x)
    torch.testing.assert_close(net.restated(x, gamma), net(x), atol=1e-9, rtol=1e-9)
    found = plrp.explain(net, x, samples=None, target=(0, 1), composite=composite_of(gamma))
    torch.testing.assert_close(found.relevance, expected, atol=1e-8, rtol=1e-6)
    if seed % 2 == 0:  # without biases: the network's own gradient, and all of the score arrives
        (slope,) = relevance_of(lambda x: net(x)[0, 1], x)
        torch.testing.assert_close(found.relevance, slope, atol=1e-8, rtol=1e-6)
        torch.testing.assert_close(found.relevance.sum(), found.score[0], atol=1e-8, rtol=1e-6)
        epsilon = plrp.explain(net, x, samples=None, target=(0, 1), composite="epsilon")
        torch.testing.assert_close(epsilon.relevance, slope, atol=1e-3 * float(slope.abs().max()), rtol=1e-2)
    if "Cheb" in net.kinds or ("PNA" in net.kinds and not net.edges.numel()):
        return  # Cheb guesses λ from all graphs of a batch
    both, batch = in_batch(net, x, random.Random(seed))
    together = plrp.explain(net, both, samples=batch, target=1, composite=composite_of(gamma))
    torch.testing.assert_close(together.relevance[batch == 0], expected, atol=1e-8, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 20])
def test_random_graph_networks(first: int) -> None:
    for seed in range(first, first + 20):
        check_random_net(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", [40, 80, 120, 160])
def test_more_random_graph_networks(first: int) -> None:
    for seed in range(first, first + 40):
        check_random_net(seed)
