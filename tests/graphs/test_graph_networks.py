"""PyTorch Geometric's layers on the tape: the books close, batches are what their graphs are, bad input is refused."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import plrp

geometric = pytest.importorskip("torch_geometric.nn")

EDGES = torch.tensor([[0, 1, 1, 2, 2, 3, 3, 4, 4, 0, 1, 3, 5, 4], [1, 0, 2, 1, 3, 2, 4, 3, 0, 4, 3, 1, 4, 5]])
NODES, FEATURES, WIDTH, OF_EDGES = 6, 5, 8, 4


def mlp(a: int, b: int) -> nn.Module:
    return nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Linear(b, b))


def pna(a: int, b: int, **options: Any) -> nn.Module:
    degrees = torch.tensor([0, 1, 2, 3, 1])
    kinds = ["mean", "min", "max", "std", "sum", "var"]
    return geometric.PNAConv(a, b, kinds, ["identity", "amplification", "attenuation"], degrees, **options)


LAYERS: dict[str, Callable[[int, int], nn.Module]] = {
    "GCN": lambda a, b: geometric.GCNConv(a, b),
    "GIN": lambda a, b: geometric.GINConv(mlp(a, b)),
    "GraphConv": lambda a, b: geometric.GraphConv(a, b),
    "SAGE": lambda a, b: geometric.SAGEConv(a, b),
    "SAGE max": lambda a, b: geometric.SAGEConv(a, b, aggr="max"),
    "Cheb": lambda a, b: geometric.ChebConv(a, b, 3),
    "ARMA": lambda a, b: geometric.ARMAConv(a, b, 2, 2),
    "GatedGraph": lambda a, b: geometric.GatedGraphConv(WIDTH, 2),
    "GAT": lambda a, b: geometric.GATConv(a, b // 2, 2),
    "GATv2": lambda a, b: geometric.GATv2Conv(a, b // 2, 2),
    "Transformer": lambda a, b: geometric.TransformerConv(a, b // 2, 2),
    "PNA": pna,
}
WITH_EDGES: dict[str, tuple[str, Callable[[int, int], nn.Module]]] = {
    "GCN": ("edge_weight", LAYERS["GCN"]),
    "GraphConv": ("edge_weight", LAYERS["GraphConv"]),
    "GINE": ("edge_attr", lambda a, b: geometric.GINEConv(mlp(a, b), edge_dim=OF_EDGES)),
    "GAT": ("edge_attr", lambda a, b: geometric.GATConv(a, b // 2, 2, edge_dim=OF_EDGES)),
    "GATv2": ("edge_attr", lambda a, b: geometric.GATv2Conv(a, b // 2, 2, edge_dim=OF_EDGES)),
    "Transformer": ("edge_attr", lambda a, b: geometric.TransformerConv(a, b // 2, 2, edge_dim=OF_EDGES)),
    "PNA": ("edge_attr", lambda a, b: pna(a, b, edge_dim=OF_EDGES)),
}


class Net(nn.Module):
    """Two layers of a kind, a pool over the nodes of each graph, a head. The graph is the model's."""

    def __init__(self, layer: Callable[[int, int], nn.Module], pool: str = "mean", edges: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.head = layer(FEATURES, WIDTH), layer(WIDTH, WIDTH), nn.Linear(WIDTH, 3)
        self.pool, self.edges = getattr(geometric, f"global_{pool}_pool"), edges
        self.edge_index, self.batch = EDGES, torch.zeros(NODES, dtype=torch.long)
        self.eval()

    def forward(self, x: Tensor, of_edges: Tensor | None = None) -> Tensor:
        options = {self.edges: of_edges} if self.edges else {}
        h = self.a(x, self.edge_index, **options).relu()
        return self.head(self.pool(self.b(h, self.edge_index, **options).relu(), self.batch))


def closes(found: plrp.Explanation) -> None:
    parts = found.relevance if isinstance(found.relevance, tuple) else (found.relevance,)
    assert all(part.isfinite().all() for part in parts)
    assert parts[0].abs().sum() > 0
    torch.testing.assert_close(found.closing(), torch.zeros_like(found.closing()), atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("composite", ["auto", "epsilon-gamma"])
def test_the_books_of_every_layer_close(name: str, composite: str) -> None:
    net = Net(LAYERS[name])
    if composite != "auto" and name == "GatedGraph":
        pytest.skip("γ is for networks of ReLU")
    torch.manual_seed(1)
    closes(plrp.explain(net, torch.rand(NODES, FEATURES), samples=None, target=(0, 1), composite=composite))


@pytest.mark.parametrize("pool", ["add", "mean", "max"])
def test_pools(pool: str) -> None:
    found = plrp.explain(Net(LAYERS["GCN"], pool), torch.rand(NODES, FEATURES), samples=None, target=(0, 1))
    closes(found)


@pytest.mark.parametrize("name", WITH_EDGES)
def test_edges_are_inputs_like_any_other(name: str) -> None:
    kind, layer = WITH_EDGES[name]
    torch.manual_seed(2)
    edges = torch.rand(EDGES.shape[1], *([] if kind == "edge_weight" else [OF_EDGES])) + 0.1
    found = plrp.explain(Net(layer, edges=kind), (torch.rand(NODES, FEATURES), edges), samples=None, target=(0, 1))
    closes(found)
    if name in ("GINE", "PNA"):  # elsewhere edges only weigh messages
        assert found.relevance[1].abs().sum() > 0


class Deep(nn.Module):
    """Three layers with jumping knowledge, or with a virtual node that all nodes tell and ask."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        sizes = [FEATURES, WIDTH, WIDTH, WIDTH]
        self.layers = nn.ModuleList(geometric.GINConv(mlp(a, b)) for a, b in itertools.pairwise(sizes))
        self.mode, self.virtual = mode, nn.Linear(WIDTH, WIDTH)
        self.jump = None if mode == "virtual" else geometric.JumpingKnowledge(mode, WIDTH, 3)
        self.head = nn.Linear(3 * WIDTH if mode == "cat" else WIDTH, 3)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        batch, states = torch.zeros(len(x), dtype=torch.long), []
        for layer in self.layers:
            x = layer(x, EDGES).relu()
            if self.mode == "virtual":
                x = x + self.virtual(geometric.global_add_pool(x, batch)).relu()[batch]
            states.append(x)
        return self.head(geometric.global_mean_pool(x if self.jump is None else self.jump(states), batch))


@pytest.mark.parametrize("mode", ["cat", "max", "lstm", "virtual"])
def test_jumping_knowledge_and_virtual_nodes(mode: str) -> None:
    closes(plrp.explain(Deep(mode), torch.rand(NODES, FEATURES), samples=None, target=(0, 1)))


class Bonds(nn.Module):
    """Messages on directed edges, as chemprop has them: a bond hears its atom's other bonds."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inward, self.between = nn.Linear(FEATURES + OF_EDGES, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.outward, self.head = nn.Linear(FEATURES + WIDTH, WIDTH), nn.Linear(WIDTH, 1)
        pairs = EDGES.T.tolist()
        self.reverse = torch.tensor([pairs.index(pair[::-1]) for pair in pairs])
        self.eval()

    def forward(self, x: Tensor, bonds: Tensor) -> Tensor:
        first = self.inward(torch.cat([x[EDGES[0]], bonds], 1))
        h = first.relu()
        for _ in range(2):
            atoms = torch.zeros(len(x), WIDTH).index_add(0, EDGES[1], h)
            h = (first + self.between(atoms[EDGES[0]] - h[self.reverse])).relu()
        place = EDGES[1].unsqueeze(1).repeat(1, WIDTH)
        atoms = torch.zeros(len(x), WIDTH).scatter_reduce_(0, place, h, reduce="sum", include_self=False)
        return self.head(self.outward(torch.cat([x, atoms], 1)).relu().mean(0, keepdim=True))


def test_messages_on_bonds() -> None:
    found = plrp.explain(Bonds(), (torch.rand(NODES, FEATURES), torch.rand(EDGES.shape[1], OF_EDGES)), samples=None)
    closes(found)
    assert found.relevance[1].abs().sum() > 0


# --- values that land on one place ------------------------------------------------------------------------------------


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "amin"])
def test_a_reduction_hands_down_as_its_formula_says(reduce: str, include: bool) -> None:
    index = torch.tensor([2, 0, 0, 2, 3])  # nothing lands on place 1
    x = torch.tensor([3.0, -1.0, 2.0, 5.0, 4.0], dtype=torch.float64)
    own = torch.tensor([1.0, 7.0, -2.0, 9.0], dtype=torch.float64)
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)

    def model(x: Tensor) -> Tensor:
        return (own.scatter_reduce(0, index, x, reduce=reduce, include_self=include) * weights).sum()

    expected, constant = torch.zeros_like(x), 0.0
    for place in range(4):
        terms = [(float(x[n]), n) for n in range(5) if index[n] == place]
        terms += [(float(own[place]), -1)] if include or not terms else []
        total = sum(value for value, _ in terms)
        chosen = {"amax": [max(terms)], "amin": [min(terms)]}.get(reduce, terms)
        whole = {"sum": total, "mean": total / len(terms)}.get(reduce, chosen[0][0]) * float(weights[place])
        for value, n in chosen:
            part = whole * (1.0 if reduce in ("amax", "amin") else value / total)
            if n < 0:
                constant += part
            else:
                expected[n] += part
    found = plrp.explain(model, x, samples=None, target=lambda score: score)
    torch.testing.assert_close(found.relevance, expected, atol=1e-5, rtol=0)
    assert sum(row["absorbed_constant"] for row in found.ledger) == pytest.approx(constant, abs=1e-5)
    closes(found)


def test_products_of_values_that_land_on_one_place_are_refused() -> None:
    def model(x: Tensor) -> Tensor:
        return torch.ones(2).scatter_reduce(0, torch.tensor([0, 1, 1]), x, reduce="prod").sum()

    with pytest.raises(plrp.UnsupportedOperation, match=r"reduce='prod'` multiplies values that land on one place"):
        plrp.explain(model, torch.rand(3), samples=None, target=lambda score: score)


def test_attention_over_neighbours_is_a_gate() -> None:
    """GAT equals the linear layer that its attention is at this input."""
    x = torch.rand(NODES, FEATURES, dtype=torch.float64)
    layer = geometric.GATConv(FEATURES, 3, bias=False).double().eval()
    _, (pairs, weights) = layer(x, EDGES, return_attention_weights=True)
    attention = torch.zeros(NODES, NODES, dtype=torch.float64)
    attention[pairs[1], pairs[0]] = weights[:, 0].detach()
    found = plrp.explain(lambda x: layer(x, EDGES), x, samples=None, target=(2, 1), composite="epsilon")
    held = plrp.explain(lambda x: attention @ layer.lin(x), x, samples=None, target=(2, 1), composite="epsilon")
    torch.testing.assert_close(found.relevance, held.relevance, atol=1e-6, rtol=1e-4)
    assert held.relevance.abs().sum() > 0.01


def test_a_softmax_over_groups_that_is_no_gate_is_refused() -> None:
    from torch_geometric.utils import softmax

    with pytest.raises(plrp.UnsupportedOperation, match="a softmax over groups of rows"):
        plrp.explain(lambda x: softmax(x, EDGES[1]).square().sum(), torch.rand(14), samples=None, target=lambda s: s)


# --- graphs as the samples of a batch ---------------------------------------------------------------------------------


def batch_of_graphs() -> tuple[list[tuple[Tensor, Tensor]], Tensor, Tensor, Tensor]:
    """Three graphs, the last with isolated nodes and without edges; and all of them as one."""
    torch.manual_seed(3)
    line = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    graphs = [(torch.rand(6, FEATURES), EDGES), (torch.rand(4, FEATURES), line), (torch.rand(2, FEATURES), line[:, :0])]
    starts = [0, 6, 10]
    edges = torch.cat([edges + start for (_, edges), start in zip(graphs, starts, strict=True)], 1)
    batch = torch.tensor([0] * 6 + [1] * 4 + [2] * 2)
    return graphs, torch.cat([x for x, _ in graphs]), edges, batch


@pytest.mark.parametrize("pruning", [None, plrp.Pruning(p=0.2), plrp.Pruning(p=0.2, redistribution="M-sign")])
@pytest.mark.parametrize("name", ["GCN", "GIN", "SAGE max", "GAT", "PNA"])
def test_a_batch_of_graphs_is_explained_as_each_of_them(name: str, pruning: plrp.Pruning | None) -> None:
    graphs, x, edges, batch = batch_of_graphs()
    net = Net(LAYERS[name])
    net.edge_index, net.batch = edges, batch
    warnings.simplefilter("error")  # no statistics of the graph without edges
    options: dict[str, Any] = {"pruning": pruning, "composite": "epsilon"}  # which layer is first depends on the edges
    found = plrp.explain(net, x, samples=batch, target=1, **options)
    closes(found)
    with plrp.plain_walk():
        plain = plrp.explain(net, x, samples=batch, target=1, **options)
    torch.testing.assert_close(found.relevance, plain.relevance)
    for number, (mine, own) in enumerate(graphs):
        if name == "PNA" and not own.numel():  # alone, its layers before the aggregation do not run
            continue
        net.edge_index, net.batch = own, torch.zeros(len(mine), dtype=torch.long)
        alone = plrp.explain(net, mine, samples=None, target=(0, 1), **options)
        torch.testing.assert_close(found.relevance[batch == number], alone.relevance, atol=1e-6, rtol=1e-4)
        torch.testing.assert_close(found.score[number], alone.score[0])


def test_a_batch_of_graphs_of_one_node_each() -> None:
    net, x = Net(LAYERS["GraphConv"]), torch.rand(2, FEATURES)
    net.edge_index, net.batch = torch.tensor([[1], [1]]), torch.arange(2)
    found = plrp.explain(net, x, samples=net.batch, target=1)
    closes(found)
    for n, edges in enumerate((EDGES[:, :0], torch.zeros(2, 1, dtype=torch.long))):
        net.edge_index, net.batch = edges, torch.zeros(1, dtype=torch.long)
        alone = plrp.explain(net, x[n : n + 1], samples=None, target=(0, 1))
        torch.testing.assert_close(found.relevance[n : n + 1], alone.relevance, atol=1e-6, rtol=1e-4)


def test_nodes_and_edges_each_have_their_vector() -> None:
    kind, layer = WITH_EDGES["GINE"]
    _, x, edges, batch = batch_of_graphs()
    net = Net(layer, edges=kind)
    net.edge_index, net.batch = edges, batch
    found = plrp.explain(
        net, (x, torch.rand(edges.shape[1], OF_EDGES)), samples=(batch, batch[edges[0]]), target=[0, 1, 2]
    )
    closes(found)
    assert found.relevance[1].shape == (edges.shape[1], OF_EDGES)
    with pytest.raises(ValueError, match=r"names \[12\] rows and the inputs have \[12, 18\]"):
        plrp.explain(net, (x, torch.rand(edges.shape[1], OF_EDGES)), samples=batch)


def test_graphs_that_hear_of_each_other_are_refused() -> None:
    _, x, edges, batch = batch_of_graphs()
    net = Net(LAYERS["GCN"])
    net.edge_index, net.batch = torch.cat([edges, torch.tensor([[0], [7]])], 1), batch
    with pytest.raises(plrp.UnsupportedOperation, match="mixes the samples of the batch"):
        plrp.explain(net, x, samples=batch, target=1)


def test_a_graph_cannot_be_taken_out_of_its_batch() -> None:
    _, x, edges, batch = batch_of_graphs()
    net = Net(LAYERS["GCN"])
    net.edge_index, net.batch = edges, batch
    found = plrp.explain(net, x, samples=batch, target=1, pruning=plrp.Pruning(p=0.2))
    with pytest.raises(ValueError, match="cannot be taken out of its batch"):
        found.circuit()
    with pytest.raises(ValueError, match="micro_batch cuts the first axis"):
        plrp.explain(net, x, samples=batch, micro_batch=1)


@pytest.mark.parametrize(
    ("samples", "fault"),
    [
        (torch.tensor([0, 0, 2, 2, 2, 2]), "A sample has no rows"),
        (torch.tensor([0.0] * 6), "vector of whole numbers"),
        (torch.zeros(6, 1, dtype=torch.long), "vector of whole numbers"),
        (torch.tensor([0, -1, 0, 0, 0, 0]), "vector of whole numbers"),
        (torch.tensor([0, 0, 0]), r"names \[3\] rows and the inputs have \[6\]"),
        (1, "samples is 0"),
        ("batch", "samples is 0"),
    ],
)
def test_bad_vectors_are_refused(samples: Any, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        plrp.explain(Net(LAYERS["GCN"]), torch.rand(NODES, FEATURES), samples=samples, target=1)


# --- unusual graphs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["GCN", "GIN", "SAGE max", "GAT"])
def test_isolated_nodes_directed_graphs_and_graphs_without_edges(name: str) -> None:
    for edges in (EDGES[:, :3], EDGES[:, EDGES[0] < EDGES[1]], EDGES[:, :0]):
        net = Net(LAYERS[name])
        net.edge_index = edges
        closes(plrp.explain(net, torch.rand(NODES, FEATURES), samples=None, target=(0, 1)))


def test_a_model_in_training_is_refused() -> None:
    net = Net(lambda a, b: geometric.GATConv(a, b, dropout=0.5))
    net.train()
    with pytest.raises(ValueError, match=r"dropout.*active.*model\.eval\(\)"):
        plrp.explain(net, torch.rand(NODES, FEATURES), samples=None, target=(0, 1))


def test_features_of_several_kinds_of_nodes_are_refused_as_a_dict() -> None:
    with pytest.raises(TypeError, match="Explain a model that reads a dict as a function of its tensors"):
        plrp.explain(Net(LAYERS["GCN"]), {"paper": torch.rand(NODES, FEATURES)}, samples=None)


def test_a_data_object_is_told_how_to_come_in() -> None:
    from torch_geometric.data import Data, HeteroData

    for data in (Data(x=torch.rand(NODES, FEATURES), edge_index=EDGES), HeteroData()):
        with pytest.raises(TypeError, match=r"not a tensor: give the features .*lambda x: model\(x, data.edge_index\)"):
            plrp.explain(Net(LAYERS["GCN"]), data, samples=None)


def test_empty_graphs_and_edges_out_of_range_get_a_sentence() -> None:
    net = Net(LAYERS["GIN"])
    net.edge_index = torch.tensor([[0, 9], [1, 2]])
    with pytest.raises(IndexError, match="edge_index"):  # the model's own
        plrp.explain(net, torch.rand(NODES, FEATURES), samples=None, target=(0, 1))
    net.edge_index, net.batch = EDGES[:, :0], torch.zeros(0, dtype=torch.long)
    with pytest.raises(ValueError, match=r"out of range for an output of shape \(0, 3\)"):
        plrp.explain(net, torch.rand(0, FEATURES), samples=None, target=(0, 1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_sums_over_neighbours(dtype: torch.dtype) -> None:
    """Constants in half precision meet relevance in float32."""
    adjacency = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0], [1.0, 0.0, 1.0]]).to(dtype)
    model, x = torch.nn.Linear(4, 2).to(dtype), torch.rand(3, 4).to(dtype)
    explanation = plrp.explain(lambda x: model(adjacency @ x), x, samples=None, target=(0, 1), composite="epsilon")
    wide = plrp.explain(
        lambda x: torch.nn.functional.linear(adjacency.float() @ x, model.weight.float(), model.bias.float()),
        x.float(), samples=None, target=(0, 1), composite="epsilon",
    )  # fmt: skip
    torch.testing.assert_close(explanation.relevance.float(), wide.relevance, rtol=0.05, atol=0.02)


def test_attention_over_neighbours_against_a_reference() -> None:
    """GAT's softmax over the edges of a node closes, as a quotient of two values."""
    net, x = Net(LAYERS["GAT"]).double(), torch.rand(NODES, FEATURES, dtype=torch.float64)
    explanation = plrp.explain(net, x, samples=None, target=(0, 1), reference="zeros", composite="rescale")
    torch.testing.assert_close(explanation.relevance.sum(), explanation.score.sum(), rtol=1e-8, atol=1e-10)
