"""What every page holds, whatever the input is: maps, curves, layers, channels, ledger."""

from __future__ import annotations

import math
from collections.abc import Callable
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
from plrp.tape.trace import Trace
from plrp.vision.heatmaps import limits_of

from .bundle import Bundle, finite, quantise
from .grid import CHANNELS, Grid, by_channel, layer_facts, layer_inputs, skipping_layers, strongest_channels, survivors
from .paths import Paths, Pool, flow_facts

Inside = Literal["all", "graph", "nothing"]
"""How much of the network's inside a page holds."""

PATHS = 160
"""About how many channels are followed in a page: of a deep network, only the strongest of each layer."""

Report = Callable[[int, int], None]
"""How far the maps of a page are: so many, of so many."""


def collect(
    trace: Trace,
    grid: Grid,
    composite: Composite,
    *,
    mask: Tensor | None = None,
    sample: int = 0,
    report: Report | None = None,
    inside: Inside = "all",
    pool: Pool | None = None,
) -> Bundle:
    """Explain one sample of a trace for the whole grid.

    The input is (batch, channel, *space), maps are summed over channels; or token ids (batch, tokens), whose relevance
    is that already. `mask` (*space): the curve 'inside the mask' is the share of positive relevance in it. `report` is
    called after each map. `inside`, for the setting asked for: "all" holds what flows through the strongest
    channels of every layer and the graph of them, "graph" the graph alone. `pool`: another way from relevance to a map.
    """
    space = map_shape(trace)
    to_map = pool or (lambda relevance: as_map(relevance, space))
    maps = np.zeros((len(grid), *space), np.int8)
    left = np.zeros((len(grid), len(layer_inputs(trace)), 3), np.uint32)
    below = _work_below(trace) if inside == "all" else [0]
    steps = len(grid) + below[-1]
    numbers: dict[str, list[float | None]] = {name: [] for name in ("largest", "limit", "holding", "kept", "inside")}
    scores: list[float | None] = []
    problems: list[str | None] = []
    start: Explanation | None = None
    for number, explanation in grid.explain(trace, composite):
        relevance = to_map(explanation.relevance[sample])
        problem = explanation.verdicts()[sample]
        problems.append(None if problem is None else problem.value)
        if problem is Problem.NOT_FINITE:
            relevance = torch.zeros_like(relevance)  # there is nothing to draw, and the page says why
        score = float(explanation.score[sample])
        maps[number], largest = quantise(relevance.numpy())
        left[number] = survivors(trace, explanation, sample)
        numbers["largest"].append(largest)
        numbers["limit"].append(float(limits_of(relevance.reshape(1, 1, -1).numpy())[0]))
        numbers["holding"].append(float(relevance.ne(0).double().mean()))
        numbers["kept"].append(finite(float(relevance.sum()) / score) if score else None)
        if mask is not None:
            share = relevance_mass_accuracy(relevance[None], mask[None])
            numbers["inside"].append(finite(float(share[0])))
        if number % len(grid.prunings) == 0:
            scores.append(finite(score))
        if number == grid.number(*grid.start):
            start = explanation
        if report is not None:
            report(number + 1, steps)
    assert start is not None  # the grid holds what was asked for
    asked = trace, grid.targets[grid.target], composite, start.pruning
    paths = Paths(*asked, sample) if inside == "all" else None
    tell = report or (lambda done, steps: None)

    def followed(layers: int) -> None:
        for done in range(below[layers - 1], below[layers]) if paths is not None else ():
            tell(len(grid) + done + 1, steps)

    channels, channel_maps, through = strongest(trace, start, sample, paths, to_map, followed)
    facts = {
        "plrp": __version__,
        "composite": composite.name,
        "head": start.head,
        "space": list(space),
        **grid.facts(),
        "scores": scores,
        "largest": {"maps": numbers["largest"], "through": through[1]},
        "limits": numbers["limit"],
        "problems": problems,
        "curves": {name: numbers[name] for name in ("holding", "kept", "inside") if numbers[name]},
        "layers": layer_facts(trace),
        "skipping": skipping_layers(trace),
        "channels": channels,
        "ledger": ledger_facts(start, sample),
        "flow": flow_facts(*asked) if inside != "nothing" else None,
    }
    arrays: dict[str, npt.NDArray[Any]] = {"maps": maps, "left": left, "channels": channel_maps}
    arrays["through"] = np.stack(through[0]) if through[0] else np.zeros((0, *space), np.int8)
    if mask is not None:
        arrays["mask"] = mask.cpu().numpy().astype(np.uint8)
    return Bundle(facts, arrays)


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
    report: Callable[[int], None] | None = None,
) -> tuple[list[list[dict[str, Any]]], npt.NDArray[np.int8], tuple[list[npt.NDArray[np.int8]], list[float]]]:
    """For each layer its strongest channels, with their maps where it has places; the maps lie one after the other.

    With `paths`, also what each of them alone (of deep networks, each of the strongest) hands down to the input: maps
    with their scales, which rows name by number. `report` is called after each layer, with how many are done.
    """
    rows: list[list[dict[str, Any]]] = []
    maps, offset = [], 0
    through: tuple[list[npt.NDArray[np.int8]], list[float]] = ([], [])
    layers = layer_inputs(trace)
    followed = _followed(len(layers))
    for number, op in enumerate(layers):
        if report is not None and number:
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
    if report is not None and layers:
        report(len(layers))
    return rows, np.concatenate(maps) if maps else np.zeros(0, np.int8), through


def _followed(layers: int) -> int:
    """How many channels of each layer are followed down to the input."""
    return max(1, min(CHANNELS, PATHS // max(1, layers)))


def _work_below(trace: Trace) -> list[int]:
    """What following channels costs, in maps: of no layer, of the first, of the first two, ….

    A path is the shorter the nearer its layer is to the input.
    """
    layers = len(layer_inputs(trace))
    shares = ((layers - number) / layers for number in range(layers))
    return [round(_followed(layers) * share) for share in accumulate(shares, initial=0.0)]


def path_levels(sent: Tensor) -> tuple[npt.NDArray[np.int8], float, float]:
    """The map of a path, quantised: levels, the largest relevance, and the end of its colour scale."""
    values = _drawn(sent)
    return *quantise(values.numpy()), float(limits_of(values.reshape(1, 1, -1).numpy())[0])


def _drawn(relevance: Tensor) -> Tensor:
    """Relevance as a page draws it: nothing where it is not finite, which the page says elsewhere."""
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
