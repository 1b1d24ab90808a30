"""Circuits: the survivors of a pruned explanation as a sub-network of this one prediction, and a test of it.

A sparse explanation names few neurons. `explanation.circuit()` holds them and the relevance that they hand to one
another. The test ablates every other neuron of the pruned tensors, and compares score, probability and decision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .ablation import (
    CURVE,
    Ablation,
    Answer,
    Curve,
    curve,
    fills_from,
    keeping,
    passes,
    planned,
    pruned_sites,
    strongest,
)
from .explanation import Explanation, Survivors, explain_trace
from .progress import progress
from .pruning import Site
from .request import Request, joined_structure, some
from .spelling import nearest, plural
from .survey import Survey
from .tables import render_html, render_table
from .tape.replay import replayed
from .tape.seam import collection_paused
from .tape.trace import Trace, record
from .tape.values import Value, tensors_in
from .targets import as_target, start

__all__ = ["Circuit", "Curve", "Edge", "Kept", "Neuron"]

SCORE = "score"  # the layer of the node at which relevance starts
DRAWS = 5  # random circuits, or samples that stand in, over which a figure is a mean


class Neuron(NamedTuple):
    """A neuron of a pruned tensor: the names of the layers that read it, and its place in the tensor, without batch."""

    layer: str
    place: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.layer}[{', '.join(map(str, self.place))}]" if self.place else self.layer


class Edge(NamedTuple):
    """The relevance that one neuron hands to another, below it."""

    upper: Neuron
    lower: Neuron
    relevance: float


class Kept(NamedTuple):
    """The rest of a prediction after an ablation, and as a share: (f − f(all ablated)) / (f(model) − f(all ablated)).

    More than 1 is more than the model said. `decision` is the share of draws with the model's winner; NaN where the
    output has no classes.
    """

    score: float
    probability: float
    decision: float
    of_score: float
    of_probability: float


class Circuit:
    """The neurons of one prediction that survived pruning.

    - `neurons`: by pruned tensor (named by the layers that read it), with their relevance, strongest first;
    - `sizes`: how many neurons each of these tensors has (its `shapes`), and `active`: how many are not zero;
    - `kept`: the rest of the prediction when only they are left, beside other choices of as many neurons per tensor;
    - `curves()`: CPR and CMD, with the curve behind them, beside those of other rankings;
    - `edges()`: the relevance they hand to one another; `plot()`, `to_networkx()` and `to_dot()` show it;
    - `run(inputs)`: the model with everything else ablated.
    """

    def __init__(
        self,
        trace: Trace,
        explanation: Explanation,
        *,
        positive: bool = False,
        ablate: str = "zero",
        data: Any = None,
        draws: int = DRAWS,
        classes: int | None = None,
        seed: int = 0,
        batch_size: int = 16,
    ) -> None:
        """`trace` is of one sample; `explanation` of it holds all its layers. Users call `Explanation.circuit`."""
        assert explanation.pruning is not None
        self.composite, self.pruning, self.target = explanation.composite, explanation.pruning, explanation.target
        self.score, self.positive, self.ablate, self.draws = float(explanation.score[0]), positive, ablate, draws
        self._trace, self._seed, self._batch_size = trace, seed, batch_size
        sites = self._sites = pruned_sites(trace, self.pruning, explanation.layers)
        self.layers = [site.name for site in sites]
        self.shapes = {site.name: _own_shape(site.value) for site in sites}
        self._masks: dict[str, Tensor] = {}  # (1, neurons of the tensor)
        self._relevance: dict[str, Tensor] = {}  # its size, likewise
        self.neurons: dict[str, Survivors] = {}
        for site in sites:
            relevance = relevance_at(explanation, site)
            relevance = relevance.clamp(min=0) if positive else relevance
            self._masks[site.name] = relevance != 0
            self._relevance[site.name] = relevance.abs()
            self.neurons[site.name] = Survivors.of(relevance[0], self.shapes[site.name])
        fills = fills_from(trace, sites, ablate, data, draws, seed, batch_size)
        begin = start(trace.now, self.target, explanation.score.dtype)
        ablated = pruned_sites(trace.now, self.pruning, explanation.layers)
        self._ablation = Ablation(trace.now, begin, ablated, classes=classes, fills=fills)
        self.sizes = {name: mask.shape[1] for name, mask in self._masks.items()}
        self.active = {site.name: int(site.activations.count_nonzero()) for site in sites}

    # --- the test -----------------------------------------------------------------------------------------------------

    @cached_property
    def kept(self) -> dict[str, Kept]:
        """The rest of the prediction: with nothing ablated, with this circuit, with other circuits of as many neurons
        per tensor (by LRP without pruning, by |gradient × activation|, by |activation|, at random), with no neuron.

        A circuit of positive survivors is compared with the most positive by LRP and by gradient × activation.
        """
        ablation, masks = self._ablation, list(self._masks.values())
        counts = [int(mask.sum()) for mask in masks]
        nothing = _mean([ablation.nothing(draw) for draw in range(ablation.draws)])
        whole = _mean([ablation.whole()])

        def kept(outcome: Answer) -> Kept:
            of_model = (
                (now - none) / (full - none) if full != none else torch.nan
                for now, none, full in zip(outcome[:2], nothing[:2], whole[:2], strict=True)
            )
            return Kept(*map(float, outcome), *map(float, of_model))

        def chosen(ranks: Sequence[Tensor], draw: int) -> Answer:
            others = [strongest(rank[0], count)[None] for rank, count in zip(ranks, counts, strict=True)]
            return ablation.outcome(others, draw)

        shares = {"the model": kept(whole)}
        rankings = _rankings(self)
        with progress("ablating", len(rankings) + 1, transient=True) as step:
            shares["this circuit"] = kept(_mean([ablation.outcome(masks, draw) for draw in range(ablation.draws)]))
            step(1)
            for name, make in rankings.items():
                draws = max(self.draws, ablation.draws) if name == "random" else ablation.draws
                shares[name] = kept(_mean([chosen(make(draw), draw % ablation.draws) for draw in range(draws)]))
                step(1)
        shares["nothing"] = kept(nothing)
        return shares

    def curves(self, shares: Sequence[float] = CURVE) -> dict[str, Curve]:
        """f over k, CPR and CMD (see `Curve`) of this explanation's ranking and of the others of `kept`.

        k counts the neurons of all pruned tensors together. Neurons are ranked by the size of their relevance (with
        `positive`, by their relevance); those without any come last, so beyond the survivors they fill up in their
        order.
        """
        own = [self._relevance[site.name] for site in self._sites]
        rankings = {"this circuit": lambda _: own, **_rankings(self)}
        with progress("ablating", len(rankings), transient=True) as step:
            found = {}
            for name, make in rankings.items():
                found[name] = curve(self._ablation, make(0), shares)
                step(1)
        return found

    def run(self, inputs: Any = None) -> Any:
        """The model's output with all but this circuit's neurons ablated: for its own input, or for others.

        `inputs` are of the same size as the explained one, any number of them: a circuit is made of single neurons.
        """
        if inputs is None:
            return self._replayed(self._trace.now)
        outputs = [self._replayed(trace) for trace in passes(self._trace.now, inputs, self._batch_size, "running")]
        return outputs[0] if len(outputs) == 1 else joined_structure(outputs)

    def _replayed(self, trace: Trace) -> Any:
        """The output of a recorded pass with all but this circuit's neurons ablated."""
        changes, fills = {}, self._ablation.fills
        for site in planned(trace, self.sizes):
            fill = None if fills is None else fills[site.name].flatten(0, -2)
            if fill is not None and len(fill) > 1:  # another one of the draws for each sample
                fill = fill[torch.arange(trace.batch) % len(fill)]
            changes[id(site.value)] = keeping(site.value, self._masks[site.name], fill)
        with torch.inference_mode(False), torch.no_grad():
            return replayed(trace, trace.returned, changes)

    # --- edges --------------------------------------------------------------------------------------------------------

    def edges(self, *, nodes: int | None = 8, layers: Sequence[str] | None = None) -> list[Edge]:
        """The relevance that neurons hand to neurons of the next pruned tensors below, strongest first.

        Each of the `nodes` strongest neurons of a tensor (None: all) sends its relevance down by the very rules and
        cuts of the explanation, until it reaches neurons of another tensor. So the relevance that arrives at a neuron,
        from all neurons and from the score, is its own. `layers`: the tensors between which to look (None: all pruned).
        """
        names = _named_tensors(self.layers, layers)
        sites = {site.name: site for site in self._sites}
        ends = [sites[name].value for name in names]
        begin = self._parts.held.start
        shown = {name: [neuron for neuron, _ in _named(name, self.neurons[name], nodes)] for name in names}
        count = sum(map(len, shown.values()))
        with (
            progress("following neurons", count, None if count > 100 else False, transient=True) as step,
            collection_paused(),  # edges are many, and all of them are kept
        ):
            (arrived,) = self._parts.send([begin.relevance], begin.value, ends)
            edges = self._received(Neuron(SCORE, ()), arrived, ends, names)
            for name, neurons in shown.items():
                value, shape = sites[name].value, self.shapes[name]
                each = (_alone(self._parts.at(value), value, neuron, shape) for neuron in neurons)
                for neuron, arrived in zip(neurons, self._parts.send(each, value, ends), strict=True):
                    edges += self._received(neuron, arrived, ends, names)
                    step(1)
        return sorted(edges, key=lambda edge: -abs(edge.relevance))

    def _received(
        self, neuron: Neuron, arrived: list[Tensor | None], ends: list[Value], names: Sequence[str]
    ) -> list[Edge]:
        """The edges from a neuron to those at which its relevance has arrived."""
        edges = []
        for name, value, there in zip(names, ends, arrived, strict=True):
            if there is None:
                continue
            rows = value.samples.rows(there) * self._masks[name]
            received = _named(name, Survivors.of(rows[0], self.shapes[name]))
            edges += [Edge(neuron, lower, amount) for lower, amount in received]
        return edges

    @cached_property
    def _parts(self) -> Survey:
        request = Request(target=self.target, composite=self.composite, pruning=self.pruning).bound(self._trace)
        return Survey(self._trace, request, [site.value for site in self._sites])

    # --- pictures and graphs ------------------------------------------------------------------------------------------

    def plot(self, path: str | Path | None = None, **options: Any) -> Any:
        """A figure of matplotlib: the strongest neurons, and the relevance that they hand to one another.

        `options` are those of `plrp.vision.circuit_figure`: `layers`, `levels`, `nodes`, `title`. With a `path` the
        figure is saved too. Needs `pip install 'plrp[vision]'`.
        """
        import plrp

        figure = plrp.vision.circuit_figure(self, **options)
        if path is not None:
            plrp.vision.save_figure(figure, path)
        return figure

    def to_networkx(self, **options: Any) -> Any:
        """The circuit as a `networkx.DiGraph`, from the score down: nodes are `Neuron`s with `layer`, `place` and
        `relevance`, edges have `relevance`. `options` are those of `edges`. Needs `pip install networkx`.
        """
        try:
            import networkx
        except ImportError as error:
            raise ImportError("to_networkx needs networkx: pip install networkx, or use to_dot().") from error
        graph = networkx.DiGraph()
        for neuron, relevance in _nodes(self, edges := self.edges(**options)).items():
            graph.add_node(neuron, layer=neuron.layer, place=neuron.place, relevance=relevance)
        for edge in edges:
            graph.add_edge(edge.upper, edge.lower, relevance=edge.relevance)
        return graph

    def to_dot(self, **options: Any) -> str:
        """The circuit in Graphviz's language, from the score down; `options` are those of `edges`."""
        edges = self.edges(**options)
        widest = max((abs(edge.relevance) for edge in edges), default=0.0) or 1.0
        lines = ["digraph circuit {", "  rankdir=TB; node [shape=box, style=rounded, fontname=Helvetica];"]
        ranks: dict[str, list[str]] = {}
        for neuron, relevance in _nodes(self, edges).items():
            label = f"{neuron}\\n{relevance:.3g}".replace('"', "'")
            lines.append(f'  {_quoted(neuron)} [label="{label}", color="{_colour(relevance)}"];')
            ranks.setdefault(neuron.layer, []).append(_quoted(neuron))
        lines += [f"  {{ rank=same; {'; '.join(same)}; }}" for same in ranks.values()]
        for edge in edges:
            width = 0.3 + 4 * abs(edge.relevance) / widest
            lines.append(
                f"  {_quoted(edge.upper)} -> {_quoted(edge.lower)} "
                f'[color="{_colour(edge.relevance)}", penwidth={width:.2f}, tooltip="{edge.relevance:.6g}"];'
            )
        return "\n".join([*lines, "}", ""])

    def relevance_of(self, neuron: Neuron) -> float:
        """The relevance of one of the circuit's neurons; the score's is the score."""
        return self.score if neuron.layer == SCORE else self._relevances[neuron]

    @cached_property
    def _relevances(self) -> dict[Neuron, float]:
        return {
            neuron: relevance for name, neurons in self.neurons.items() for neuron, relevance in _named(name, neurons)
        }

    # --- as text ------------------------------------------------------------------------------------------------------

    HEADER = ("kept by", "score", "of it", "probability", "of it", "decision")

    def __repr__(self) -> str:
        return f"{_title(self)}\n\n{render_table(self.HEADER, _table(self.kept))}"

    def _repr_html_(self) -> str:
        return f"<p>{escape(_title(self)).replace(chr(10), '<br>')}</p>{render_html(self.HEADER, _table(self.kept))}"


def _rankings(circuit: Circuit) -> dict[str, Callable[[int], list[Tensor]]]:
    """Other ways to choose neurons: (draw) → ranks of each tensor (1, neurons)."""
    ablation, activations = circuit._ablation, circuit._ablation.activations()

    def sized(ranks: list[Tensor]) -> list[Tensor]:
        return ranks if circuit.positive else [rank.abs() for rank in ranks]

    plain = explain_trace(circuit._trace, Request(target=circuit.target, composite=circuit.composite, layers=True))
    relevance = sized([relevance_at(plain, site) for site in ablation.sites])
    products = sized([g * a for g, a in zip(ablation.gradients(), activations, strict=True)])
    size = [a.abs() for a in activations]

    def random(draw: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(circuit._seed + draw)
        numbers = (torch.rand(a.shape, generator=generator).to(a.device) for a in activations)
        return [n * (a != 0) for n, a in zip(numbers, activations, strict=True)]

    by_gradient = "gradient × activation" if circuit.positive else "|gradient × activation|"
    return {
        "LRP": lambda _: relevance,
        by_gradient: lambda _: products,
        "|activation|": lambda _: size,
        "random": random,
    }


def circuit_of(
    explanation: Explanation, model: Callable[..., Any] | None, inputs: Any, sample: int, **options: Any
) -> Circuit:
    """The circuit of one sample of an explanation: see `Explanation.circuit`."""
    if explanation.pruning is None:
        raise ValueError("LRP without pruning has no survivors, so no circuit: explain with pruning=plrp.Pruning().")
    if explanation.condition is not None:
        raise ValueError("A circuit is of the whole prediction, and this explanation has a condition: leave that out.")
    if explanation.reference is not None and (model is not None or len(explanation.reference.scores) > 1):
        raise ValueError("A circuit takes one reference, whose activations it ablates to: explain again, with one.")
    if not 0 <= sample < len(explanation.score):
        raise IndexError(f"There is no sample {sample}: this explanation has {len(explanation.score)}, from 0.")
    trace = _trace_of(explanation, model, inputs, sample)
    target = as_target(explanation.target, explanation._whole).of(slice(sample, sample + 1))
    request = Request(target=target, composite=explanation.composite, pruning=explanation.pruning, layers=True)
    return Circuit(trace, explain_trace(trace, request), **options)


def _trace_of(explanation: Explanation, model: Callable[..., Any] | None, inputs: Any, sample: int) -> Trace:
    """The pass of this sample alone, of the model of the explanation or of the one given for a stored one."""
    if (model is None) != (inputs is None):
        raise TypeError("Give both the model and the inputs that were explained, or neither.")
    if model is None:
        if explanation._source is None:
            raise ValueError(
                "This explanation was stored without its model: give both, explanation.circuit(model, inputs)."
            )
        trace, number = explanation.trace_sample(sample)
        return trace.of_sample(number)
    rows = slice(None) if explanation._whole else slice(sample, sample + 1)
    trace = record(model, some(inputs, rows), samples=None if explanation._whole else 0)
    before, now = (list(tensors_in(o)) for o in (explanation.logits, trace.output))
    same = len(before) == len(now) and all(
        a[rows].shape == b.shape and torch.allclose(a[rows], b, rtol=1e-4, atol=1e-4)
        for a, b in zip(before, now, strict=True)
    )
    if not same:
        raise ValueError("This model and these inputs do not give the logits of the explanation: give those explained.")
    return trace


def relevance_at(explanation: Explanation, site: Site) -> Tensor:
    """The relevance of a site's tensor, (1, neurons)."""
    name = next(op.name for op in site.readers if op.name in explanation.layers)
    return site.value.samples.rows(explanation.layers[name])


def _own_shape(value: Value) -> tuple[int, ...]:
    """The shape of one sample's part of a tensor, as `Samples.rows` has it: (axes without the batch)."""
    samples, shape = value.samples, tuple(value.shape)
    if samples.whole:
        return shape
    others = tuple(size for axis, size in enumerate(shape) if axis != samples.axis)
    places = samples.rows(torch.zeros(shape, dtype=torch.bool)).shape[1] // max(1, torch.Size(others).numel())
    return others if places == 1 else (places, *others)


def _named(tensor: str, neurons: Survivors, count: int | None = None) -> list[tuple[Neuron, float]]:
    """Neurons of a tensor, the strongest `count` of them (None: all), each with its relevance."""
    pairs = zip(neurons.index[:count].tolist(), neurons.relevance[:count].tolist(), strict=True)
    return [(Neuron(tensor, tuple(index)), relevance) for index, relevance in pairs]


def _alone(relevance: Tensor | None, value: Value, neuron: Neuron, shape: tuple[int, ...]) -> Tensor:
    """The relevance of one neuron of a tensor, zero elsewhere; `shape`: of one sample's part of the tensor."""
    assert relevance is not None  # a circuit is made of tensors that relevance reaches
    rows = value.samples.rows(relevance)
    alone = torch.zeros_like(rows)
    place: tuple[slice | int, ...] = (slice(None), *neuron.place)
    alone.view(-1, *shape)[place] = rows.view(-1, *shape)[place]
    return value.samples.unrows(alone, relevance.shape)


def _named_tensors(tensors: Sequence[str], layers: Sequence[str] | None) -> list[str]:
    """The tensors that a user names by any of the layers that read them; from the output down."""
    if layers is None:
        return list(tensors[::-1])
    by_reader = {reader: name for name in tensors for reader in (name, *name.split(", "))}
    named = [layers] if isinstance(layers, str) else layers
    for layer in named:
        if layer not in by_reader:
            raise ValueError(f"The circuit has no neurons at the input of '{layer}'{nearest(layer, by_reader)}.")
    wanted = {by_reader[layer] for layer in named}
    return [name for name in tensors[::-1] if name in wanted]


def _nodes(circuit: Circuit, edges: Sequence[Edge]) -> dict[Neuron, float]:
    """The neurons at the ends of some edges, with their relevance."""
    ends = {neuron: None for edge in edges for neuron in (edge.upper, edge.lower)}
    return {neuron: circuit.relevance_of(neuron) for neuron in ends}


def _title(circuit: Circuit) -> str:
    chosen = sum(len(neurons.index) for neurons in circuit.neurons.values())
    whole, active = sum(circuit.sizes.values()), sum(circuit.active.values())
    signs = "positive survivors" if circuit.positive else "survivors"
    what = f"class {int(circuit.target[0])}" if isinstance(circuit.target, Tensor) else "the score"
    fate = {"zero": "set to zero", "mean": "set to their mean", "resample": "taken from other inputs"}[circuit.ablate]
    size = f"{chosen:,} of {whole:,} neurons ({_percent(chosen, whole)}; {_percent(chosen, active)} of the active)"
    return (
        f"Circuit of {what} ({circuit.score:.4g}): {signs} of {circuit.pruning.label}, {circuit.pruning}\n"
        f"{size} in {plural(len(circuit.sizes), 'tensor')}; the others {fate}"
    )


def _table(kept: dict[str, Kept]) -> list[tuple[str, ...]]:
    rows = []
    for name, k in kept.items():
        numbers = (k.score, k.of_score, k.probability, k.of_probability)
        decision = {0.0: "another", 1.0: "the same"}.get(k.decision, f"the same in {k.decision:.0%}")
        rows.append((name, *map(_figure, numbers), "–" if math.isnan(k.decision) else decision))
    return rows


def _mean(outcomes: Sequence[Answer]) -> Answer:
    """The mean over draws, of one sample."""
    score, probability, decision = (torch.stack(column).double().mean() for column in zip(*outcomes, strict=True))
    return Answer(score, probability, decision)


def _percent(part: int, whole: int) -> str:
    share = 100 * part / whole if whole else 0.0
    return f"{share:.2g}%" if share < 10 else f"{share:.0f}%"


def _figure(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3g}" if abs(value) < 1e-2 and value else f"{value:.2f}"


def _colour(relevance: float) -> str:
    return "#d42a20" if relevance >= 0 else "#1f63b0"


def _quoted(neuron: Neuron) -> str:
    name = str(neuron).replace('"', "'")
    return f'"{name}"'
