"""The numbers of pages of every kind: maps, curves, layers, channels, ledger."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from plrp import __version__
from plrp.composites import Composite
from plrp.explanation import Explanation
from plrp.health import Problem
from plrp.ledger import BOOKED
from plrp.metrics.localization import relevance_mass_accuracy
from plrp.progress import progress
from plrp.tape.trace import Trace
from plrp.vision.heatmaps import COLOURS, limits_of

from .bundle import Bundle, finite, quantise
from .grid import (
    CHANNELS,
    PROPORTIONS,
    TARGETS,
    Grid,
    by_channel,
    layer_facts,
    layer_inputs,
    skipping_layers,
    strongest_channels,
    survivors,
)
from .paths import Paths, Pool, flow_facts

Inside = Literal["all", "graph", "nothing"]
"""How much of the network's inside a page holds."""

PATHS = 160
"""About how many channels are followed in a page: of a deep network, only the strongest of each layer."""

Report = Callable[[int, int], None]
"""Called with the number of finished maps and the number of all maps of a page."""


@dataclass(frozen=True)
class PageSettings:
    """How much a page holds, and how its progress is shown.

    proportions: the p of the slider. targets: how many classes or answers.
    inside: for the setting asked for, "all" holds the strongest channels of every layer, each with the relevance that
        flows through it, and the graph of these channels; "graph" holds the graph alone.
    report: called after each map. show_progress: a bar on the terminal; None shows it only there.
    """

    proportions: Sequence[float] = PROPORTIONS
    targets: int = TARGETS
    inside: Inside = "all"
    report: Report | None = None
    show_progress: bool | None = False

    @contextmanager
    def reporting(self, maps: int) -> Iterator[Report]:
        """A progress bar over `maps` maps; yields a function that moves the bar and calls `report`."""
        with progress("explaining", maps, self.show_progress, transient=True) as step:

            def tell(done: int, total: int) -> None:
                step(1, total=total)
                if self.report is not None:
                    self.report(done, total)

            yield tell


@dataclass
class PageMaps:
    """The maps of a page (*space), quantised, and the numbers of its curves; `mask` (*space) marks the evidence."""

    mask: Tensor | None = None
    levels: list[npt.NDArray[np.int8]] = field(default_factory=list)
    largest: list[float] = field(default_factory=list)
    limits: list[float] = field(default_factory=list)
    holding: list[float | None] = field(default_factory=list)
    kept: list[float | None] = field(default_factory=list)
    inside: list[float | None] = field(default_factory=list)

    def add(self, relevance: npt.NDArray[np.float64], score: float | None = None) -> None:
        """One more map; `score` is the explained one, if it is known."""
        levels, largest = quantise(relevance)
        self.levels.append(levels)
        self.largest.append(largest)
        self.limits.append(float(limits_of(relevance.reshape(1, 1, -1))[0]))
        self.holding.append(float((relevance != 0).mean()))
        self.kept.append(finite(float(relevance.sum()) / score) if score else None)
        if self.mask is not None:
            share = relevance_mass_accuracy(torch.from_numpy(relevance)[None], self.mask[None])
            self.inside.append(finite(float(share[0])))

    def bundle(self, facts: dict[str, Any], arrays: dict[str, npt.NDArray[Any]], paths: PathMaps) -> Bundle:
        """The bundle of these maps with the other facts and arrays of the page."""
        space = self.levels[0].shape
        curves = {"holding": self.holding, "kept": self.kept, "inside": self.inside}
        facts = {
            "plrp": __version__,
            "space": list(space),
            "largest": {"maps": self.largest, "through": paths[1]},
            "limits": self.limits,
            "curves": {name: values for name, values in curves.items() if values},
            "colours": COLOURS,
            **facts,
        }
        arrays = {"maps": np.stack(self.levels), **arrays}
        arrays["through"] = np.stack(paths[0]) if paths[0] else np.zeros((0, *space), np.int8)
        if self.mask is not None:
            arrays["mask"] = self.mask.cpu().numpy().astype(np.uint8)
        return Bundle(facts, arrays)


PathMaps = tuple[list[npt.NDArray[np.int8]], list[float]]
"""The relevance that flows through single channels: quantised maps, and the largest relevance of each."""


def collect(
    trace: Trace,
    grid: Grid,
    composite: Composite,
    settings: PageSettings,
    *,
    mask: Tensor | None = None,
    sample: int = 0,
    pool: Pool | None = None,
) -> Bundle:
    """Explain one sample of a trace for the whole grid.

    The input is (batch, channel, *space), and its maps are summed over channels; or token ids (batch, tokens), which
    have one relevance each. `mask` (*space): a curve shows the share of positive relevance inside it. `pool` replaces
    the sum over channels.
    """
    space = map_shape(trace)
    to_map = pool or (lambda relevance: as_map(relevance, space))
    maps, left, scores, problems = PageMaps(mask), [], [], []
    below = _work_below(trace) if settings.inside == "all" else [0]
    steps = len(grid) + below[-1]
    start: Explanation | None = None
    with settings.reporting(len(grid)) as tell:
        for number, explanation in grid.explain(trace, composite):
            relevance = to_map(explanation.relevance[sample])
            problem = explanation.verdicts()[sample]
            problems.append(None if problem is None else problem.value)
            if problem is Problem.NOT_FINITE:
                relevance = torch.zeros_like(relevance)  # there is nothing to draw, and the page says why
            score = float(explanation.score[sample])
            maps.add(relevance.numpy(), score)
            left.append(survivors(trace, explanation, sample))
            if number % len(grid.prunings) == 0:
                scores.append(finite(score))
            if number == grid.number(*grid.start):
                start = explanation
            tell(number + 1, steps)
        assert start is not None  # the grid holds the explanation asked for
        asked = trace, grid.targets[grid.target], composite, start.pruning
        paths = Paths(*asked, sample) if settings.inside == "all" else None

        def followed(layers: int) -> None:
            for done in range(below[layers - 1], below[layers]) if paths is not None else ():
                tell(len(grid) + done + 1, steps)

        channels, channel_maps, path_maps = strongest(trace, start, sample, paths, to_map, followed)
    facts = {
        "composite": composite.name,
        "head": start.head,
        **grid.facts(),
        "scores": scores,
        "problems": problems,
        "layers": layer_facts(trace),
        "skipping": skipping_layers(trace),
        "channels": channels,
        "ledger": ledger_facts(start, sample),
        "flow": flow_facts(*asked) if settings.inside != "nothing" else None,
    }
    return maps.bundle(facts, {"left": np.stack(left), "channels": channel_maps}, path_maps)


def map_shape(trace: Trace) -> tuple[int, ...]:
    """The axes of a map: the input's without batch and channels; of token ids, the tokens."""
    given = trace.inputs[0]
    return tuple(given.shape[1:] if len(given.shape) == 2 else given.shape[2:])


def as_map(relevance: Tensor, space: tuple[int, ...]) -> Tensor:
    """The relevance of one sample's input as a map (*space), in float64."""
    values = relevance.detach().double().cpu()
    return values.sum(0) if values.dim() > len(space) else values


def strongest(
    trace: Trace,
    explanation: Explanation,
    sample: int = 0,
    paths: Paths | None = None,
    pool: Pool | None = None,
    report: Callable[[int], None] = lambda layers: None,
) -> tuple[list[list[dict[str, Any]]], npt.NDArray[np.int8], PathMaps]:
    """For each layer its strongest channels; their maps, where the layer has places, lie one after the other.

    With `paths`, also the relevance that each of these channels alone hands down to the input (of deep networks, each
    of the strongest): maps with their scales, to which the rows point by number. `report` is called after each layer
    with the number of finished layers.
    """
    rows: list[list[dict[str, Any]]] = []
    maps, offset = [], 0
    through: PathMaps = ([], [])
    layers = layer_inputs(trace)
    followed = _followed(len(layers))
    for number, op in enumerate(layers):
        if number:
            report(number)
        rows.append([])
        if op.name not in explanation.layers:
            continue
        relevance = _drawn(by_channel(explanation, op, sample).detach().cpu())
        shape = list(relevance.shape[1:])
        if len(shape) > 2:  # drawn as a picture, window below window
            shape = [math.prod(shape[:-1]), shape[-1]]
        channels = relevance.reshape(len(relevance), -1)
        for rank, (channel, share) in enumerate(strongest_channels(channels)):
            one: dict[str, Any] = {
                "channel": channel,
                "share": share,
                "relevance": finite(float(channels[channel].sum())),
            }
            if math.prod(shape) > 1:
                levels, one["largest"] = quantise(channels[channel].numpy())
                one |= {"shape": shape, "offset": offset}
                maps.append(levels)
                offset += levels.size
            if paths is not None and pool is not None and rank < followed:
                sent = paths.through(op.name, channel, pool)
                levels, largest, one["limit"] = path_levels(sent)
                one["through"] = len(through[0])
                through[0].append(levels)
                through[1].append(largest)
            rows[-1].append(one)
    if layers:
        report(len(layers))
    return rows, np.concatenate(maps) if maps else np.zeros(0, np.int8), through


def _followed(layers: int) -> int:
    """How many channels of each layer are followed down to the input."""
    return max(1, min(CHANNELS, PATHS // max(1, layers)))


def _work_below(trace: Trace) -> list[int]:
    """The cost of following channels, counted in maps, summed over no layer, the first layer, the first two, ….

    The nearer a layer is to the input, the shorter is its path.
    """
    layers = len(layer_inputs(trace))
    shares = ((layers - number) / layers for number in range(layers))
    return [round(_followed(layers) * share) for share in accumulate(shares, initial=0.0)]


def path_levels(sent: Tensor) -> tuple[npt.NDArray[np.int8], float, float]:
    """The map of a path, quantised: levels, the largest relevance, and the end of its colour scale."""
    values = _drawn(sent)
    return *quantise(values.numpy()), float(limits_of(values.reshape(1, 1, -1).numpy())[0])


def _drawn(relevance: Tensor) -> Tensor:
    """Relevance as a page draws it: zero where it is not finite; the page says elsewhere that it is not."""
    return torch.nan_to_num(relevance, 0.0, 0.0, 0.0)


def ledger_facts(explanation: Explanation, sample: int = 0) -> list[dict[str, Any]]:
    """Where the mass of one sample went, entry by entry from the output down."""
    rows = []
    for record in explanation.ledger:
        if record["sample"] != sample:
            continue
        entering, leaving = (record[f"mass_{way}_positive"] - record[f"mass_{way}_negative"] for way in ("in", "out"))
        row = {name: record[name] for name in ("layer", "op", "rule")}
        row |= {"in": finite(entering), "out": finite(leaving)}
        row |= {n: finite(record[n]) for n in BOOKED}
        if record["neurons_before"] is not None:
            mass = record["mass_in_positive"] + record["mass_in_negative"]
            cut = sum(record[f"p_{s}"] * record[f"mass_in_{s}"] for s in ("positive", "negative"))
            row["pruned"] = finite(cut / mass) if mass else 0.0
        rows.append(row)
    return rows


def classes(logits: Tensor, asked: int | None, count: int = 5) -> list[int]:
    """The classes of a page: the strongest, and the one asked for, strongest first."""
    order: list[int] = logits.topk(min(count, len(logits))).indices.tolist()
    if asked is not None and asked not in order:
        order[-1:] = [asked]  # in place of the weakest
    return order
