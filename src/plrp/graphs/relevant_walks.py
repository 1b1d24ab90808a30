"""Relevant walks and subgraphs of one graph (GNN-LRP, Schnake et al. 2021; subgraphs, Xiong et al. 2022).

A walk W = (J₀ … J_L) names a node at every place of the tape (`node_places.py`); its relevance R_W is handed down by
exactly these nodes. The relevance of a subgraph is the sum over the walks inside it, and needs no list of them: the
relevance goes down once, and a mask takes the other nodes out at each place. A way around a message-passing layer (a
skip) changes no node, so its walk stays at the node for that layer.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, count
from typing import Any

import torch
from torch import Tensor

from plrp.composites import Composite, is_any
from plrp.passage import Passage
from plrp.pruning import Pruning
from plrp.request import Request
from plrp.rules import Epsilon, Gamma, Rule
from plrp.survey import Survey
from plrp.tables import render_table
from plrp.tape.trace import Trace
from plrp.tape.values import Value
from plrp.walk import Walk

from .node_places import NodePlace, node_places

CHUNK = 1 << 24  # entries of relevances that are handed down at once
MOST = 1_000_000  # partial walks that are held at once

Steps = list[tuple[list[int], Tensor]]  # for every node K: the nodes J below, and T (J, neurons at K, neurons at J)


def falling_gamma(trace: Trace, gamma: float = 3.0) -> Composite:
    """γ for every linear layer, which falls linearly from the first of them to 0 at the last (Schnake et al. 2021)."""
    last = len(trace.layers) - 1
    rules: dict[str, Rule] = {op.name: Gamma(gamma * (1 - n / last)) for n, op in enumerate(trace.layers[:last])}
    products = "half" if trace.unsupported_under(None) else None
    return Composite([(is_any, Epsilon())], layers=rules, name=f"falling γ from {gamma:g}", products=products)


class Descent:
    """Relevance on its way from place to place of one graph, with every neuron's pruning held fixed."""

    def __init__(self, trace: Trace, target: Any, composite: Any, pruning: Pruning | None) -> None:
        if trace.batch != 1:
            raise ValueError("Walks are those of one graph: trace it alone, with samples=None.")
        chosen = falling_gamma(trace) if composite is None else composite
        request = Request(target=target, composite=chosen, pruning=pruning).bound(trace)
        trace.check_unchanged()
        factors = Survey(trace, request).factors
        with torch.inference_mode(False), torch.no_grad():
            self.walk = Walk(trace, request, passage=Passage(factors=factors))
            start, products = self.walk.start, self.walk.composite.products
            self.places = node_places(start.ops, start.value, trace.inputs[0], products)
        self.score = float(start.score)

    def rows(self, place: NodePlace, relevance: Tensor | None) -> Tensor:
        """The relevance of a place as (nodes, features); None is zero."""
        like = place.value.data
        relevance = torch.zeros_like(like, dtype=self.walk.dtype) if relevance is None else relevance
        return relevance.movedim(place.axis, 0).reshape(like.shape[place.axis], -1)

    def send(self, relevance: Tensor, upper: Value, ends: Sequence[NodePlace]) -> tuple[Tensor, ...]:
        """The relevance (nodes, features) that arrives at each of these places, where it stops."""
        with torch.inference_mode(False), torch.no_grad():
            arrived = self.walk.send(relevance, upper, [place.value for place in ends])
            return tuple(map(self.rows, ends, arrived))

    def below(self, number: int, rows: Tensor) -> tuple[Tensor, ...]:
        """The relevances that arrive at all lower places, (…, nodes, features), from some (…, nodes, features) here."""
        if not len(rows):
            return tuple(rows.new_zeros(0, *self.rows(lower, None).shape) for lower in self.places[:number])
        place, shape = self.places[number], list(self.places[number].value.shape)
        order = [shape.pop(place.axis), *shape]

        def one(each: Tensor) -> tuple[Tensor, ...]:
            return self.send(each.reshape(order).movedim(0, place.axis), place.value, self.places[:number])

        size = max(1, CHUNK // max(p.value.shape.numel() for p in self.places))
        return one(rows) if rows.dim() == 2 else torch.vmap(one, chunk_size=size)(rows)

    @property
    def begun(self) -> tuple[Tensor, ...]:
        """The relevance (nodes, features) that arrives at each place from the score, around all places above it."""
        start, top = self.walk.start, self.places[-1]
        if start.value is top.value:  # a score of nodes that no layer reads
            return (*(self.rows(place, None) for place in self.places[:-1]), self.rows(top, start.relevance))
        return self.send(start.relevance, start.value, self.places)

    def at_places(self, mask: Tensor | None = None) -> list[Tensor]:
        """The relevance (…, nodes, features) at every place; at each, a mask (…, nodes) weighs the nodes."""
        last, weight = len(self.places) - 1, torch.ones(()) if mask is None else mask[..., None]
        there = [rows * weight ** (last - p + 1) for p, rows in enumerate(self.begun)]
        for q in range(last, 0, -1):
            for p, rows in enumerate(self.below(q, there[q])):
                there[p] = there[p] + rows * weight ** (q - p)
        return there

    def ladder(self) -> tuple[Tensor, list[Steps]]:
        """The relevance (nodes, neurons) with which walks begin, and the steps from place to place, top down.

        Beside the neurons of its place a node holds those of lower places, whose relevance goes around the layers
        between and stays at the node. Neurons that no relevance reaches are left out.
        """
        ends = [0, *accumulate(self.rows(place, None).shape[1] for place in self.places)]
        live = (begun := torch.cat(self.begun, 1)).any(0).nonzero()[:, 0]
        start, ladder, count = begun[:, live], list[Steps](), len(begun)
        for q in range(len(self.places) - 1, 0, -1):
            around, own = live[live < ends[q]], live[live >= ends[q]] - ends[q]
            eye = torch.eye(ends[q + 1] - ends[q]).to(start)[own]
            stays = torch.eye(ends[q]).to(start)[around]
            steps: Steps = []
            for nodes in torch.arange(count).split(max(1, CHUNK // (1 + len(own) * count * ends[q + 1]))):
                units = start.new_zeros(len(nodes), len(own), count, eye.shape[1])
                units[torch.arange(len(nodes)), :, nodes] = eye
                arrived = torch.cat(self.below(q, units.flatten(0, 1)), -1).unflatten(0, units.shape[:2])
                for node, part in zip(nodes.tolist(), arrived, strict=True):
                    block = start.new_zeros(count, len(live), ends[q])
                    block[:, len(around) :] = part.movedim(1, 0)
                    block[node, : len(around)] = stays
                    reached = block.flatten(1).any(1).nonzero()[:, 0]
                    steps.append((reached.tolist(), block[reached]))
            live = torch.stack([block.flatten(0, 1).any(0) for _, block in steps]).any(0).nonzero()[:, 0]
            ladder.append([(reached, block[..., live]) for reached, block in steps])
        return start, ladder


def subgraph(
    trace: Trace,
    nodes: Sequence[int] | Tensor,
    *,
    target: Any = None,
    composite: str | Composite | None = None,
    pruning: Pruning | None = None,
    alpha: float = 0.0,
) -> Tensor:
    """The relevance of a subgraph, R_S = Σ R_W over the walks inside S; its cost is linear in the depth.

    - `nodes`: the numbers of the nodes, a boolean mask (nodes,), or several masks (subgraphs, nodes) at once;
    - `alpha`: walks outside S count too, α for each of their nodes outside: (1 on S, α outside) − (0 on S, α outside);
    - `composite`: None is `falling_gamma`.

    Returns a number, or one per mask. With pruning, every neuron keeps the factor that it has in the whole graph.
    """
    descent = Descent(trace, target, composite, pruning)
    inside = _as_mask(nodes, trace.inputs[0].shape[0]).to(trace.inputs[0].data.device)
    one, outside = inside.to(descent.walk.dtype), alpha * (~inside).to(descent.walk.dtype)
    held: Tensor = descent.at_places(one + outside)[0].sum((-1, -2))
    return held - descent.at_places(outside)[0].sum((-1, -2)) if alpha else held


def _as_mask(nodes: Any, count: int) -> Tensor:
    """The nodes of a subgraph as a boolean mask."""
    given = torch.as_tensor(sorted(nodes) if isinstance(nodes, set | frozenset) else nodes)
    if given.dtype == torch.bool and given.dim() in (1, 2):
        if given.shape[-1] != count:
            raise ValueError(f"A mask of nodes has shape {tuple(given.shape)}: the graph has {count} nodes.")
        return given
    if given.dim() != 1 or (given.is_floating_point() and given.numel()):
        raise TypeError("nodes is a list of node numbers or a boolean mask.")
    for node in given.tolist():
        if not 0 <= node < count:
            raise ValueError(f"There is no node {node}: the graph has {count}, 0…{count - 1}.")
    return torch.zeros(count, dtype=torch.bool).index_fill(0, given.long(), True)


@dataclass
class Walks:
    """The strongest walks of a graph, strongest first.

    - `nodes`: the nodes (J₀ … J_L) of each, from the input to the last message-passing layer;
    - `relevance`: of each, (walks,); it may be negative;
    - `score`: the explained score; `total`: the relevance of all walks, the rest went to biases, edges and ε.
    """

    nodes: list[tuple[int, ...]]
    relevance: Tensor
    score: float
    total: float

    @property
    def share(self) -> float:
        """The share of the score that these walks hold."""
        return float(self.relevance.sum()) / self.score if self.score else 0.0

    def plot(self, edge_index: Tensor, **options: Any) -> Any:
        """A matplotlib figure of the graph with these walks; see `plrp.graphs.walk_figure`."""
        from .drawing import walk_figure

        return walk_figure(self, edge_index, **options)

    def __len__(self) -> int:
        return len(self.nodes)

    def __repr__(self) -> str:
        rows = [("–".join(map(str, w)), f"{float(r):.4g}") for w, r in zip(self.nodes, self.relevance, strict=True)]
        held = f"{len(self)} walks hold {self.share:.0%} of the score {self.score:.4g}; all walks {self.total:.4g}"
        return f"{render_table(('walk', 'relevance'), rows)}\n{held}"


def walks(
    trace: Trace,
    *,
    target: Any = None,
    composite: str | Composite | None = None,
    pruning: Pruning | None = None,
    top: int | None = 20,
    hold: float | None = None,
) -> Walks:
    """The strongest walks of a graph by |R_W|: exactly the `top` ones, found by best-first search.

    - `hold`: stop when the walks add up to this share of the relevance of all walks; `top=None`: it alone decides;
    - `composite`: None is `falling_gamma`.

    A partial walk that arrived with relevance r can bring at most Σ_k |r_k| u(k), where u(k) is the most that a unit at
    neuron k brings on any way down: u_l(k) = max_J Σ_j |T_jJ,k| u_{l−1}(j), u₀ = 1.
    """
    if top is None and hold is None:
        raise ValueError("walks needs an end: give top, how many, or hold, the share of the relevance.")
    if (top is not None and top < 1) or not (hold is None or 0 < hold <= 1):
        raise ValueError(f"top is 1 or more and hold a share in (0, 1], got {top!r} and {hold!r}.")
    descent = Descent(trace, target, composite, pruning)
    total = float(descent.at_places()[0].sum())
    nodes, relevance, running = list[tuple[int, ...]](), list[float](), 0.0
    for walk, mass in _Search(descent):
        nodes.append(walk)
        relevance.append(mass)
        running += mass
        if len(nodes) == top or (hold is not None and running * total >= hold * total * total):
            break
    return Walks(nodes, torch.tensor(relevance, dtype=descent.walk.dtype), descent.score, total)


class _Search:
    """Walks in the order of |R_W|: the partial walk that can bring most is continued first."""

    def __init__(self, descent: Descent) -> None:
        self.start, ladder = descent.ladder()
        self.ladder = ladder[::-1]  # by the number of the place above, less one
        lowest = self.ladder[0][0][1].shape[-1] if ladder else self.start.shape[1]
        self.bounds = [self.start.new_ones(len(self.start), lowest)]  # u of each place, (nodes, neurons)
        for steps in self.ladder:
            brings = [torch.einsum("jkf,jf->jk", block.abs(), self.bounds[-1][reached]) for reached, block in steps]
            self.bounds.append(
                torch.stack([torch.cat([each, each.new_zeros(1, each.shape[1])]).amax(0) for each in brings])
            )

    def __iter__(self) -> Iterator[tuple[tuple[int, ...], float]]:
        number = count()
        heap: list[tuple[float, int, int, tuple[int, ...], Tensor]] = []

        def push(place: int, walk: tuple[int, ...], state: Tensor) -> None:
            brings = float(state.abs() @ self.bounds[place][walk[0]]) if place else abs(float(state.sum()))
            if brings:
                heapq.heappush(heap, (-brings, next(number), place, walk, state))

        for node, state in enumerate(self.start):
            push(len(self.ladder), (node,), state)
        while heap:
            _, _, place, walk, state = heapq.heappop(heap)
            if place == 0:
                yield walk, float(state.sum())
                continue
            reached, block = self.ladder[place - 1][walk[0]]
            for node, below in zip(reached, state @ block, strict=True):
                push(place - 1, (node, *walk), below)
            if len(heap) > MOST:
                raise ValueError(
                    f"More than {MOST} walks are nearly equal: prune, or raise γ, so that few hold the score."
                )
