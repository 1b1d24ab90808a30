"""The numbers of pages of every kind: one forward pass explained for every p, method and target.

Maps are numbered target by target: LRP first, then p by p for each method.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from plrp import __version__
from plrp.balance import unwarned
from plrp.composites import Composite
from plrp.explanation import Explanation
from plrp.metrics.localization import relevance_mass_accuracy
from plrp.progress import progress
from plrp.pruning import Pruning
from plrp.tape.difference import DifferenceTrace
from plrp.tape.trace import Trace
from plrp.vision.heatmaps import COLOURS, limits_of

from .bundle import Bundle, finite, quantise
from .layer_channels import (
    PathMaps,
    Paths,
    Pool,
    Report,
    channels_followed,
    flow_facts,
    layer_facts,
    layer_inputs,
    ledger_facts,
    skipping_layers,
    strongest,
    survivors,
)

PROPORTIONS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9)
TARGETS = 3
METHODS: tuple[str, ...] = ("lambda", "M-sign")

Inside = Literal["all", "graph", "nothing"]
"""How much of the network's inside a page holds."""


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


@dataclass(frozen=True)
class Grid:
    """The explanations of a page: `targets` × (LRP + `methods` × `proportions`).

    `asked` is the pruning that the user asked for; the slider starts there, with a mark. Its other settings
    (`p_negative`, `sparsity_gain`, p of single layers) hold for all explanations.
    """

    targets: tuple[Any, ...]
    methods: tuple[str, ...]
    proportions: tuple[float, ...]
    asked: Pruning | None
    target: int = 0  # the one asked for, as an index into `targets`

    @classmethod
    def around(
        cls,
        asked: Pruning | None,
        targets: Sequence[Any],
        target: int = 0,
        proportions: Sequence[float] = PROPORTIONS,
    ) -> Grid:
        """The grid that holds the explanation asked for."""
        ps, methods = set(proportions), METHODS
        if asked is not None:
            if not asked.p and (asked.p is None or any(asked.shares.values())):
                raise ValueError(
                    f"A page has a slider for p, and {asked} has no p above 0 to start at: explain with some p > 0."
                )
            ps |= {float(asked.p)} if asked.p else set()
            methods = tuple(dict.fromkeys((*METHODS, asked.redistribution)))
        if not ps or not all(0 < p < 1 for p in ps):
            raise ValueError(f"the proportions of a page are shares of mass, 0 < p < 1, not {sorted(ps)}.")
        return cls(tuple(targets), methods, tuple(sorted(ps)), asked, target)

    @property
    def prunings(self) -> list[Pruning | None]:
        """LRP, then every method at every p."""
        base = self.asked or Pruning()
        return [None, *(replace(base, p=p, redistribution=m) for m in self.methods for p in self.proportions)]

    def __len__(self) -> int:
        return len(self.targets) * len(self.prunings)

    def number(self, target: int, method: int, p: int | None) -> int:
        """The number of a map; p None is LRP."""
        inner = 0 if p is None else 1 + method * len(self.proportions) + p
        return target * len(self.prunings) + inner

    @property
    def start(self) -> tuple[int, int, int | None]:
        """Target, method and p asked for, as indices; p None is LRP."""
        if self.asked is None:
            return self.target, 0, None
        p = self.proportions.index(self.asked.p) if self.asked.p else None
        return self.target, self.methods.index(self.asked.redistribution), p

    def facts(self) -> dict[str, Any]:
        """For the page: p, the methods with their labels, and where to start."""
        base = self.asked or Pruning()
        return {
            "p": list(self.proportions),
            "methods": [{"key": name, "label": replace(base, redistribution=name).label} for name in self.methods],
            "start": dict(zip(("target", "method", "p"), self.start, strict=True)),
        }

    def explain(self, trace: Trace, composite: Composite) -> Iterator[Explanation]:
        """The explanation of every map, with the relevance of the layers; warnings are left to the page."""
        for target in self.targets:
            explanations = trace.sweep(self.prunings, target=target, composite=composite, layers=True)
            for _ in self.prunings:
                with unwarned():
                    explanation = next(explanations)
                yield explanation


@dataclass
class PageMaps:
    """The maps of a page (*space), quantised, and the numbers of its curves; `mask` (*space) marks the evidence."""

    mask: Tensor | None = None
    levels: list[npt.NDArray[np.int8]] = field(default_factory=list)
    largest: list[float] = field(default_factory=list)
    limits: list[float] = field(default_factory=list)
    curves: dict[str, list[float | None]] = field(default_factory=lambda: {"holding": [], "kept": []})

    def add(self, relevance: npt.NDArray[np.float64], score: float | None = None) -> None:
        """One more map; `score` is the explained one, if it is known."""
        levels, largest = quantise(relevance)
        self.levels.append(levels)
        self.largest.append(largest)
        self.limits.append(float(limits_of(relevance.reshape(1, 1, -1))[0]))
        self.curves["holding"].append(float((relevance != 0).mean()))
        self.curves["kept"].append(finite(float(relevance.sum()) / score) if score else None)
        if self.mask is not None:
            share = relevance_mass_accuracy(torch.from_numpy(relevance)[None], self.mask[None])
            self.curves.setdefault("inside", []).append(finite(float(share[0])))

    def bundle(self, facts: dict[str, Any], arrays: dict[str, npt.NDArray[Any]], paths: PathMaps = ([], [])) -> Bundle:
        """The bundle of these maps with the other facts and arrays of the page."""
        space = self.levels[0].shape
        facts = {
            "plrp": __version__,
            "space": list(space),
            "largest": {"maps": self.largest, "through": paths[1]},
            "limits": self.limits,
            "curves": self.curves,
            "colours": COLOURS,
            **facts,
        }
        arrays = {"maps": np.stack(self.levels), **arrays}
        arrays["through"] = np.stack(paths[0]) if paths[0] else np.zeros((0, *space), np.int8)
        if self.mask is not None:
            arrays["mask"] = self.mask.cpu().numpy().astype(np.uint8)
        return Bundle(facts, arrays)


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
    if isinstance(trace, DifferenceTrace) and len(trace.references) > 1:
        settings = replace(settings, inside="nothing")  # channels hand on relevance against one reference at a time
    space = map_shape(trace)
    to_map = pool or (lambda relevance: as_map(relevance, space))
    maps, left, scores, remarks, against = PageMaps(mask), [], [], [], list[str]()
    below = _work_below(trace) if settings.inside == "all" else [0]
    steps = len(grid) + below[-1]
    start: Explanation | None = None
    with progress("explaining", len(grid), settings.show_progress, transient=True) as step:

        def tell(done: int) -> None:
            step(1, total=steps)
            if settings.report is not None:
                settings.report(done, steps)

        for number, explanation in enumerate(grid.explain(trace, composite)):
            relevance = to_map(explanation.relevance[sample])
            remarks.append(explanation.remarks()[sample])
            if not relevance.isfinite().all():
                relevance = torch.zeros_like(relevance)  # there is nothing to draw, and the page says why
            score = float(explanation.score[sample])
            maps.add(relevance.numpy(), score)
            left.append(survivors(trace, explanation, sample))
            if number % len(grid.prunings) == 0:
                scores.append(finite(score))
                against += [] if explanation.reference is None else [explanation.reference.words(sample)]
            if number == grid.number(*grid.start):
                start = explanation
            tell(number + 1)
        assert start is not None  # the grid holds the explanation asked for
        asked = trace, grid.targets[grid.target], composite, start.pruning
        paths = Paths(*asked, sample) if settings.inside == "all" else None

        def followed(layers: int) -> None:
            for done in range(below[layers - 1], below[layers]) if paths is not None else ():
                tell(len(grid) + done + 1)

        channels, channel_maps, path_maps = strongest(trace, start, sample, paths, to_map, followed)
    facts = {
        "composite": composite.name,
        "head": start.head,
        **grid.facts(),
        "scores": scores,
        **({"against": against} if against else {}),
        "remarks": remarks,
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


def _work_below(trace: Trace) -> list[int]:
    """The cost of following channels, counted in maps, summed over no layer, the first layer, the first two, ….

    The nearer a layer is to the input, the shorter is its path.
    """
    layers = len(layer_inputs(trace))
    shares = ((layers - number) / layers for number in range(layers))
    return [round(channels_followed(layers) * share) for share in accumulate(shares, initial=0.0)]
