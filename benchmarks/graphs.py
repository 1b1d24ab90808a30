"""Which explanation of a graph network finds the planted motif?

    python benchmarks/graphs.py --graphs 100

A GIN is trained on each kind of graphs. Held-out graphs that it classifies right are explained for the difference of
the two logits.

- *motifs* (BA-2motif): a Barabási–Albert graph of 20 nodes with a house or a cycle of five nodes; all features are 1;
- *molecules*: random chains with rings of carbon, nitrogen and oxygen atoms (one-hot); the label is a nitro group, N
  with two O of its own; other graphs have as many N and O elsewhere;
- *mutag*: the 188 real molecules of MUTAG, of the file `--mutag` in the format of powerful-gnns (its `MUTAG.txt`). Five
  networks are trained, each without a fifth; it explains the mutagenic molecules of this fifth that have a nitro group.
  That group is the truth that chemists name, which the network need not use.

Measured are, against the planted nodes, AUROC and accuracy of node relevance (as many of the strongest nodes as the
motif has are called the motif), and what the network says: AUAC, the mean probability of the class when nodes are
added, most relevant first, and AUPC, when they are removed in that order (lower is better). Rows are appended to
`--out`.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import random
import statistics
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import networkx
import torch
import torch_geometric.nn as geometric
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.explain import Explainer, GNNExplainer

import plrp
from plrp.graphs.relevant_walks import Descent, falling_gamma

MEASURED = Path(__file__).resolve().parent / "measured" / "graphs.csv"
PRUNED = (0.02, 0.05, 0.1, 0.2)
COLUMNS = ("kind", "graph", "method", "auroc", "accuracy", "auac", "aupc")


# --- graphs and networks ----------------------------------------------------------------------------------------------


def motif_graph(seed: int) -> Data:
    """A Barabási–Albert graph with a house (label 1) or a cycle (label 0) at a random node."""
    draw, label = random.Random(seed), seed % 2
    graph = networkx.barabasi_albert_graph(20, 1, seed=seed)
    graph.add_edges_from((20 + i, 20 + (i + 1) % 5) for i in range(5))
    if label:
        graph.add_edge(20, 22)
    graph.add_edge(draw.randrange(20), draw.randrange(20, 25))
    return as_data(graph, torch.ones(25, 4), range(20, 25), label, draw)


def molecule(seed: int) -> Data:
    """A tree of carbon atoms of degree 4 at most, with some rings; a nitro group, or N and two O apart."""
    draw, label = random.Random(seed), seed % 2
    graph = networkx.Graph([(0, 1)])
    size = draw.randint(12, 22)
    while len(graph) < size:
        at = draw.choice([n for n in graph if graph.degree(n) < 3])
        ring = [at, *range(len(graph), len(graph) + draw.choice((1, 1, 1, 4, 5)))]
        graph.add_edges_from(itertools.pairwise(ring))
        if len(ring) > 2:
            graph.add_edge(ring[-1], at)
    atoms = dict.fromkeys(graph, 0)
    group: list[int] = []

    def hang(kind: int, at: int | None = None) -> int:
        new = len(graph)
        graph.add_edge(
            new, draw.choice([n for n in graph if graph.degree(n) < 3 and atoms[n] == 0]) if at is None else at
        )
        atoms[new] = kind
        return new

    nitrogen = hang(1)
    oxygens = [hang(2, nitrogen if label else None) for _ in range(2)]
    group = [nitrogen, *oxygens] if label else []
    for _ in range(draw.randint(0, 2)):
        hang(draw.choice((1, 2)))
    x = nn.functional.one_hot(torch.tensor([atoms[n] for n in range(len(graph))]), 3).float()
    return as_data(graph, x, group, label, draw)


def as_data(graph: Any, x: Tensor, motif: Any, label: int, draw: random.Random) -> Data:
    """The graph with its nodes in random order."""
    order = list(range(len(x)))
    draw.shuffle(order)
    edges = torch.tensor([(order[a], order[b]) for a, b in graph.edges]).T
    placed, mask = torch.empty_like(x), torch.zeros(len(x), dtype=torch.bool)
    placed[order] = x
    mask[[order[n] for n in motif]] = True
    return Data(x=placed, edge_index=torch.cat([edges, edges.flip(0)], 1), y=torch.tensor([label]), motif=mask)


class GIN(nn.Module):
    """Three message-passing layers, a sum over the nodes, a linear head."""

    def __init__(self, features: int, width: int = 32) -> None:
        super().__init__()
        sizes = [features, width, width, width]
        self.layers = nn.ModuleList(
            geometric.GINConv(nn.Sequential(nn.Linear(a, width), nn.ReLU(), nn.Linear(width, b)))
            for a, b in itertools.pairwise(sizes)
        )
        self.head = nn.Linear(width, 2)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None) -> Tensor:
        for layer in self.layers:
            x = layer(x, edge_index).relu()
        return self.head(geometric.global_mean_pool(x, batch))


def mutag(file: Path) -> list[Data]:
    """The molecules of MUTAG; label 1 is mutagenic, the motif is every nitro group: N with two O that have no other."""
    lines = (list(map(int, line.split())) for line in file.read_text().splitlines()[1:])
    molecules = []
    for size, kind in lines:
        atoms = [next(lines) for _ in range(size)]  # its kind, the number of its neighbours, and these
        graph = networkx.Graph((n, other) for n, atom in enumerate(atoms) for other in atom[2:])
        x = nn.functional.one_hot(torch.tensor([atom[0] for atom in atoms]), 7).float()
        molecules.append((graph, x, kind))
    mutagenic = Counter(kind for *_, kind in molecules).most_common(1)[0][0]  # 125 of 188
    elements = [n for n, _ in Counter(int(n) for _, x, _ in molecules for n in x.argmax(1)).most_common(3)]
    _, oxygen, nitrogen = elements  # carbon first: 2395, 593, 345 atoms
    made = []
    for number, (graph, x, kind) in enumerate(molecules):
        of, motif = x.argmax(1).tolist(), set[int]()
        for n in graph:
            ends = [m for m in graph[n] if of[m] == oxygen and graph.degree(m) == 1]
            motif |= {n, *ends} if of[n] == nitrogen and len(ends) == 2 else set()
        made.append(as_data(graph, x, list(motif), int(kind == mutagenic), random.Random(number)))
    return made


KINDS: dict[str, Callable[[int], Data]] = {"motifs": motif_graph, "molecules": molecule}


def trained(data: list[Data], held_out: list[Data], seed: int, epochs: int = 200) -> tuple[GIN, float]:
    """A network, and its accuracy on graphs that it was not trained on."""
    torch.manual_seed(seed)
    held = Batch.from_data_list(held_out)
    model = GIN(data[0].x.shape[1])
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs)
    for _ in range(epochs):
        for part in torch.randperm(len(data)).split(100):
            batch = Batch.from_data_list([data[n] for n in part])
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(batch.x, batch.edge_index, batch.batch), batch.y).backward()
            optimiser.step()
        schedule.step()
    model.eval()
    with torch.no_grad():
        right = model(held.x, held.edge_index, held.batch).argmax(1) == held.y
    return model, float(right.float().mean())


# --- methods ----------------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """A graph, the trace of the network on it, and the score."""

    model: GIN
    data: Data
    trace: plrp.Trace
    score: Callable[[Tensor], Tensor]


def case_of(model: GIN, data: Data) -> Case:
    label = int(data.y)
    trace = plrp.trace(lambda x: model(x, data.edge_index), data.x, samples=None)
    return Case(model, data, trace, lambda out: out[0, label] - out[0, 1 - label])


def lrp(composite: Any, pruning: plrp.Pruning | None = None) -> Callable[[Case], Tensor]:
    """The relevance of the input, summed over features."""

    def nodes(case: Case) -> Tensor:
        chosen = composite(case.trace) if callable(composite) else composite
        return case.trace.explain(target=case.score, composite=chosen, pruning=pruning).relevance.sum(1)

    return nodes


def through_node(case: Case) -> Tensor:
    """The relevance of all walks through a node: what the graph loses without it."""
    descent = Descent(case.trace, case.score, None, None)
    masks = torch.cat([torch.ones(1, len(case.data.x)), 1 - torch.eye(len(case.data.x))])
    held = descent.at_places(masks)[0].sum((-1, -2))
    return held[0] - held[1:]


def strongest_walks(case: Case) -> Tensor:
    """The 100 strongest walks: their relevance for every node on them."""
    found, nodes = plrp.graphs.walks(case.trace, target=case.score, top=100), torch.zeros(len(case.data.x))
    for walk, relevance in zip(found.nodes, found.relevance, strict=True):
        nodes[list(set(walk))] += relevance
    return nodes


def subgraphs(case: Case) -> Tensor:
    """One node after the other is taken out, such that most of R_S stays: the later, the more relevant."""
    descent, count = Descent(case.trace, case.score, None, None), len(case.data.x)
    inside, rank = torch.ones(count), torch.zeros(count)
    for step in range(count):
        left = inside.nonzero()[:, 0]
        masks = inside.repeat(len(left), 1)
        masks[torch.arange(len(left)), left] = 0
        node = left[descent.at_places(masks)[0].sum((-1, -2)).argmax()]
        inside[node], rank[node] = 0, step
    return rank


def gradient_input(case: Case) -> Tensor:
    x = case.data.x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(case.score(case.model(x, case.data.edge_index)), x)
    return (slope * x).sum(1).detach()


def gnn_explainer(case: Case) -> Tensor:
    """By its mask of edges, which does better here than its mask of nodes: a node's strongest edge."""
    torch.manual_seed(0)
    config = {"mode": "multiclass_classification", "task_level": "graph", "return_type": "raw"}
    explainer = Explainer(
        case.model, GNNExplainer(epochs=100), explanation_type="model", edge_mask_type="object", model_config=config
    )
    mask = explainer(case.data.x, case.data.edge_index).edge_mask
    return torch.zeros(len(case.data.x)).scatter_reduce(0, case.data.edge_index.flatten(), mask.repeat(2), "amax")


def at_random(case: Case) -> Tensor:
    return torch.rand(len(case.data.x), generator=torch.Generator().manual_seed(int(case.data.x.sum())))


METHODS: dict[str, Callable[[Case], Tensor]] = {
    "LRP, auto": lrp("auto"),
    "LRP-ε": lrp("epsilon"),
    "LRP-γ, 0.25": lrp(plrp.Composite([(plrp.composites.is_any, plrp.rules.Gamma(0.25))])),
    "LRP, falling γ": lrp(falling_gamma),
    "walks through the node": through_node,
    "100 strongest walks": strongest_walks,
    "subgraphs, one node out after the other": subgraphs,
    **{f"falling γ, pruned, p = {p:g}": lrp(falling_gamma, plrp.Pruning(p=p)) for p in PRUNED},
    "gradient × input": gradient_input,
    "GNNExplainer": gnn_explainer,
    "random": at_random,
}


# --- measures ---------------------------------------------------------------------------------------------------------


def auroc(relevance: Tensor, truth: Tensor) -> float:
    """The probability that a node of the motif has more relevance than another; ties count half."""
    gap = relevance[truth][:, None] - relevance[~truth][None]
    return float(((gap > 0).double() + 0.5 * (gap == 0)).mean())


def accuracy(relevance: Tensor, truth: Tensor) -> float:
    """Of all nodes, those called right if the strongest are called the motif."""
    called = torch.zeros_like(truth)
    called[relevance.argsort(descending=True, stable=True)[: int(truth.sum())]] = True
    return float((called == truth).double().mean())


def curves(case: Case, relevance: Tensor) -> tuple[float, float]:
    """AUAC and AUPC: the mean probability of the class with 1 … n − 1 of the strongest nodes, and without them."""
    order = relevance.argsort(descending=True, stable=True)
    parts = []
    for number in range(1, len(order)):
        parts += [case.data.subgraph(order[:number].sort().values), case.data.subgraph(order[number:].sort().values)]
    batch = Batch.from_data_list(parts)
    with torch.no_grad():
        p = case.model(batch.x, batch.edge_index, batch.batch).softmax(1)[:, int(case.data.y)]
    return float(p[::2].mean()), float(p[1::2].mean())


def explainable(kind: str, seed: int, file: Path | None) -> Iterator[tuple[int, GIN, Data]]:
    """Held-out graphs with a planted motif that a network classifies right: their number, the network, the graph."""

    def told(data: list[Data], held: list[Data]) -> GIN:
        model, right = trained(data, held, seed)
        print(f"{kind}, seed {seed}: {right:.1%} of {len(held)} held-out graphs classified right", flush=True)
        return model

    def candidates() -> Iterator[tuple[int, GIN, Data]]:
        if kind == "mutag":
            if file is None:
                raise SystemExit("name the file of MUTAG with --mutag")
            every = mutag(file)
            order = torch.randperm(len(every), generator=torch.Generator().manual_seed(seed)).tolist()
            for fold in range(5):
                held = order[fold::5]
                model = told([every[n] for n in order if n not in held], [every[n] for n in held])
                yield from ((n, model, every[n]) for n in held if int(every[n].y))
        else:
            make = KINDS[kind]
            model = told([make(n) for n in range(800)], [make(800 + n) for n in range(200)])
            yield from ((n, model, make(n)) for n in itertools.count(1001))

    for number, model, data in candidates():
        if int(model(data.x, data.edge_index).argmax()) == int(data.y) and data.motif.any():
            yield number, model, data


def rows(kind: str, graphs: int, chosen: list[str], seed: int, file: Path | None) -> Iterator[dict[str, Any]]:
    for number, model, data in itertools.islice(explainable(kind, seed, file), graphs):
        case = case_of(model, data)
        for name in chosen:
            relevance = METHODS[name](case)
            auac, aupc = curves(case, relevance)
            numbers = auroc(relevance, data.motif), accuracy(relevance, data.motif), auac, aupc
            yield dict(zip(COLUMNS, (kind, number, name, *numbers), strict=True))


def walk_counts(kind: str, graphs: int, file: Path | None, prunings: tuple[float, ...] = (0.0, *PRUNED)) -> None:
    """How many walks hold 90% of the relevance of all walks, at each p."""
    labelled = (case_of(model, data) for _, model, data in explainable(kind, 0, file) if int(data.y))
    cases = list(itertools.islice(labelled, graphs))
    for p in prunings:
        how = plrp.Pruning(p=p) if p else None
        numbers = [len(plrp.graphs.walks(c.trace, target=c.score, pruning=how, top=20_000, hold=0.9)) for c in cases]
        print(
            f"{kind}, p = {p:g}: {statistics.median(numbers):g} walks hold 90% (median of {graphs} graphs)", flush=True
        )


def table(path: Path) -> str:
    """Means with their 95% intervals (normal), per kind and method."""
    with path.open() as file:
        known = list(csv.DictReader(file))
    lines = ["| | AUROC | accuracy | AUAC | AUPC |", "|---|---|---|---|---|"]
    for kind in (*KINDS, "mutag"):
        for name in METHODS:
            mine = [row for row in known if (row["kind"], row["method"]) == (kind, name)]
            if len(mine) < 2:
                continue
            cells = []
            for column in COLUMNS[3:]:
                numbers = [float(row[column]) for row in mine]
                spread = 1.96 * statistics.stdev(numbers) / len(numbers) ** 0.5
                cells.append(f"{statistics.mean(numbers):.3f} ± {spread:.3f}")
            lines.append(f"| {kind}, n = {len(mine)}: {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, default=100)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=[*KINDS, "mutag"])
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--seed", type=int, default=0, help="of the training; give every seed an --out of its own")
    parser.add_argument("--out", type=Path, default=MEASURED)
    parser.add_argument("--mutag", type=Path, help="MUTAG.txt")
    parser.add_argument("--walks", type=int, default=0, help="count the walks that hold 90%% on so many graphs instead")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for kind in options.kinds:
        if options.walks:
            walk_counts(kind, options.walks, options.mutag)
            continue
        begun = options.out.exists()
        with options.out.open("a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            if not begun:
                writer.writeheader()
            for row in rows(kind, options.graphs, options.methods, options.seed, options.mutag):
                writer.writerow(row)
    if not options.walks:
        print(table(options.out))


if __name__ == "__main__":
    main()
