"""From samples to scores: one trace per batch serves every variant and p, and every metric reads the same maps.

`Bench.part(index)` is a pure function of config and index: any process can run it, and the result is the same.
"""

from __future__ import annotations

import inspect
import sys
import time
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

import plrp
from plrp import metrics
from plrp.balance import unwarned
from plrp.engine import sweep_batch
from plrp.metrics.robustness import scaled
from plrp.metrics.scores import predict
from plrp.metrics.seeded import Draws
from plrp.runs.memory import fitting
from plrp.runs.work import Tick

from .config import ALWAYS, LOCALIZATION, ROBUSTNESS, SPARSITY, Config, ConfigError, Metric
from .data import Dataset, Sample, open_samples
from .networks import load_network
from .part_files import SampleFacts, ScoreRows, StoredMaps
from .store import PartContent, Store

T = TypeVar("T")
Cell = tuple[str, float]
"""A variant at a share p."""

FORWARD, TRACE = "forward", "trace"

MARGIN = 1.2
"""Over the memory of a first batch: how much more the allocator may come to hold."""


@dataclass(frozen=True)
class Rehearsal:
    """The cost of a first batch: seconds per sample by kind of work, and the bytes a process needs (0: unknown).

    Every batch has the same size, so the memory of the first one, times `MARGIN`, is enough for all.
    """

    seconds: dict[str, float]
    memory: int

    def estimate(self, amount: Counter[str]) -> float:
        """Seconds that an amount of work takes one process."""
        return sum(self.seconds.get(kind, 0.0) * count for kind, count in amount.items())


class Bench:
    """A model and its samples, ready to be measured part by part."""

    def __init__(self, config: Config, store: Store, device: str = "cpu") -> None:
        self.config = config
        self.device = torch.device(device)
        module, preprocessing = load_network(config, store)
        self.model: nn.Module = module.to(self.device).eval()
        self.samples: Dataset = open_samples(config, preprocessing)
        check_masks(config, self.samples)
        self.batch_size = config.batch_size  # smaller where memory is not enough: that changes no result

    def trace(self, inputs: Tensor) -> plrp.Trace:
        """The forward pass on a batch, or its difference to that on the references."""
        return plrp.trace(self.model, inputs, reference=self.config.reference)

    def part(self, index: int, tick: Tick = lambda kind, count: None) -> PartContent:
        """The results of one part."""
        rows = ScoreRows()
        maps: list[StoredMaps] = []
        left = self.config.part(index)
        while left:
            size, (scores, stored) = self.in_memory(left, lambda chosen: _Batch(self, chosen, tick).measure())
            rows.extend(scores)
            maps += [] if stored is None else [stored]
            left = left[size:]
        about = {"sweep": self.config.name, "part": index, "plrp": plrp.__version__, "torch": torch.__version__}
        return PartContent(rows.to_parquet(about), StoredMaps.joined(maps).to_hdf5() if maps else None)

    def in_memory(self, samples: Sequence[int], work: Callable[[Sequence[int]], T]) -> tuple[int, T]:
        """The size of a first batch of samples, halved until memory is enough, and the result of some work on it."""
        most = min(self.batch_size, len(samples))
        with unwarned():  # broken explanations are counted
            size, result = fitting(most, lambda size: work(samples[:size]), "--set batch_size=")
        if size < most:
            self.batch_size = size
        return size, result

    def rehearse(self, index: int = 0, clock: Callable[[], float] = time.perf_counter) -> Rehearsal:
        """Do each kind of work once, on the first batch of a part, and time it."""
        return self.in_memory(self.config.part(index), lambda chosen: self._rehearsed(chosen, clock))[1]

    def _rehearsed(self, chosen: Sequence[int], clock: Callable[[], float]) -> Rehearsal:
        batch = _Batch(self, chosen)
        seconds: dict[str, float] = {}

        def timed(kind: str, function: Callable[[], Any]) -> Any:
            start = clock()
            result = function()
            seconds[kind] = (clock() - start) / len(chosen)
            return result

        trace = self.trace(batch.inputs)  # the first pass costs more than the others
        trace.explain(target=batch.target(trace), composite=self.config.composite)
        trace = timed(TRACE, lambda: self.trace(batch.inputs))
        target = batch.target(trace)
        if any(metric.function == "pixel_flipping" for metric in self.config.metrics):
            timed(FORWARD, lambda: predict(self.model, batch.inputs))
        # In the order of `explanations`: the content of a trace decides how much memory the next step needs.
        variants = dict.fromkeys(variant for variant, _ in self.config.cells)
        for variant in sorted(variants, key=lambda name: not name.endswith("+gain")):
            cells = [cell for cell in self.config.cells if cell[0] == variant]
            if not variant.endswith("+gain"):  # with it, most shares may be one and the same map: all are tried
                cells = _typical(cells, max(1, sweep_batch() // len(chosen)) if variant == "lambda" else 1)
            timed(variant, lambda cells=cells: deque(self.explanations(trace, target, cells), maxlen=0))  # type: ignore[misc]
            seconds[variant] /= len(cells)
        return Rehearsal(seconds, int(MARGIN * _peak_memory()))

    def explanations(
        self, trace: plrp.Trace, target: Tensor, cells: Sequence[Cell]
    ) -> Iterator[tuple[list[Cell], plrp.Explanation]]:
        """Every cell's explanation, with the cells that share it.

        With the gain, p is only an upper bound: wherever p is above the share that the gain alone prunes, the
        result is the same by definition, and is computed once.
        """
        config, rest = self.config, list(cells)
        for variant in dict.fromkeys(name for name, _ in cells if name.endswith("+gain")):
            if sum(name == variant for name, _ in cells) > 3:
                free = trace.explain(target=target, composite=config.composite, pruning=config.pruning(variant, None))
                pruned = [row for row in free.ledger if row["op"] == "prune"]
                reached = max((max(row["p_positive"], row["p_negative"]) for row in pruned), default=0.0)
                same = [(name, p) for name, p in rest if name == variant and p > reached * (1 + 1e-6)]
                if same:
                    rest = [cell for cell in rest if cell not in same]
                    yield same, free
        prunings = [config.pruning(*cell) for cell in rest]
        swept = trace.sweep(prunings, target=target, composite=config.composite)
        for cell, explanation in zip(rest, swept, strict=True):
            yield [cell], explanation

    def pooled(self, relevance: Tensor, inputs: Tensor) -> Tensor:
        """One value per pixel or base, (batch, *space): colours summed; of letters, the one that is there."""
        if relevance.ndim < 3:
            return relevance
        if self.samples.pooling == "present" and self.config.reference is None:  # differences have two letters
            relevance = relevance * (inputs > 0)
        return relevance.sum(1)


class _Batch:
    """One batch on its way through the bench."""

    def __init__(self, bench: Bench, indices: Sequence[int], tick: Tick = lambda kind, count: None) -> None:
        self.bench, self.config, self.tick = bench, bench.config, tick
        self.indices, self.rows = list(indices), ScoreRows()
        self.samples: list[Sample] = [bench.samples[index] for index in indices]
        self.inputs = torch.stack([sample.input for sample in self.samples]).to(bench.device)
        self.masks: Tensor | None = None
        if bench.samples.masked:
            self.masks = torch.stack([sample.mask for sample in self.samples if sample.mask is not None])
            self.masks = self.masks.to(bench.device)

    def target(self, trace: plrp.Trace) -> Tensor:
        """The winning class of each sample."""
        if trace.output.ndim != 2:
            raise ConfigError(
                f"the model's output has the shape {tuple(trace.output.shape)}; a sweep explains the winning class of "
                "an output (batch, classes)."
            )
        return trace.output.argmax(1)

    def measure(self) -> tuple[ScoreRows, StoredMaps | None]:
        """Measure everything: the scores, and the maps to store."""
        config, bench = self.config, self.bench
        trace = bench.trace(self.inputs)
        self.tick(TRACE, len(self.indices))
        target = self.target(trace)
        score = trace.output.gather(1, target[:, None])[:, 0].double()
        for row, (index, sample) in enumerate(zip(self.indices, self.samples, strict=True)):
            self.rows.facts[index] = SampleFacts(index, sample.name, sample.label, int(target[row]), float(score[row]))
        groups = robustness_groups(config)
        moving = any(metric.covers(index, 0) for group in groups for metric in group for index in self.indices)
        to_store: dict[Cell, Tensor] = {}
        original: dict[Cell, Tensor] = {}
        for cells, explanation in bench.explanations(trace, target, config.cells):
            relevance = bench.pooled(explanation.relevance, self.inputs)
            kept = explanation.relevance.flatten(1).sum(1, dtype=torch.float64) / explanation.score.double()
            self.measure_maps(cells, relevance, kept)
            self.measure_balance(cells, explanation)
            for variant, p in cells:
                self.tick(variant, len(self.indices))
                if config.maps is not None and any(config.maps.covers(index, p) for index in self.indices):
                    to_store[variant, p] = relevance
                if moving:
                    original[variant, p] = relevance
            self.measure_flips(cells, relevance, target)
            del explanation  # it holds the trace
        del trace  # its memory is needed for the perturbed inputs
        for group in groups:
            self.measure_robustness(group, target, original)
        return self.rows, self.stored_maps(to_store)

    def record(self, metric: Metric, cells: Iterable[Cell], values: Tensor, rows: Sequence[int] | None = None) -> None:
        """Enter a metric's values (row,) for the cells that share a map."""
        numbers = values.double().tolist()
        for place, index, variant, p in self._covered(metric, cells, rows):
            self.rows.add(index, variant, p, metric.name, numbers[place])

    def _covered(
        self, metric: Metric, cells: Iterable[Cell], rows: Sequence[int] | None = None
    ) -> Iterator[tuple[int, int, str, float]]:
        """Place among `rows`, number of the sample, variant and p of everything that a metric covers."""
        for place, row in enumerate(range(len(self.indices)) if rows is None else rows):
            for variant, p in cells:
                if metric.covers(self.indices[row], p):
                    yield place, self.indices[row], variant, p

    def measure_maps(self, cells: list[Cell], relevance: Tensor, kept_score: Tensor) -> None:
        """Sparsity, localization, and the share of the score that arrived."""
        for metric in self.config.metrics:
            if not any(metric.covers(index, p) for index in self.indices for _, p in cells):
                continue
            if metric.function in SPARSITY:
                self.record(metric, cells, getattr(metrics, metric.function)(relevance, **metric.options))
            elif metric.function in LOCALIZATION:
                self.record(metric, cells, getattr(metrics, metric.function)(relevance, self.masks, **metric.options))
            elif metric.function == "score_kept":
                self.record(metric, cells, kept_score)

    def measure_balance(self, cells: list[Cell], explanation: plrp.Explanation) -> None:
        """How much relevance arrived at the input, and whether the arithmetic broke."""
        mass = explanation.relevance.flatten(1).abs().sum(1, dtype=torch.float64) / explanation.score.double().abs()
        broken = [float(problem is not None) for problem in explanation.problems()]
        for name, values in zip(ALWAYS, (mass.tolist(), broken), strict=True):
            for row, index in enumerate(self.indices):
                for variant, p in cells:
                    self.rows.add(index, variant, p, name, values[row])

    def measure_flips(self, cells: list[Cell], relevance: Tensor, target: Tensor) -> None:
        """Pixel flipping; versions that differ only in how the score is read share the model's passes."""
        for group in flipping_groups(self.config):
            rows = [r for r, i in enumerate(self.indices) if any(m.covers(i, p) for m in group for _, p in cells)]
            if not rows:
                continue
            outputs: list[Tensor] = []

            def watched(inputs: Tensor, outputs: list[Tensor] = outputs) -> Tensor:
                outputs.append(predict(self.bench.model, inputs))
                return outputs[-1]

            for number, metric in enumerate(group):
                replayed = iter(outputs)
                curve = metrics.pixel_flipping(
                    watched if number == 0 else lambda inputs, replayed=replayed: next(replayed),  # type: ignore[misc]
                    self.inputs[rows],
                    relevance[rows],
                    target=target[rows],
                    batch_size=self.bench.batch_size,
                    **_flipping_options(self.config, metric),
                )
                self.enter_curves(metric, cells, rows, curve)
            for _, covered in self._coverage(cells, rows, group):
                self.tick(FORWARD, covered * _passes(self.config, group[0]))

    def enter_curves(self, metric: Metric, cells: list[Cell], rows: list[int], curve: metrics.FlippingCurve) -> None:
        """The area with its curves, and the symmetric relevance gain where both orders were flipped."""
        share = curve.flipped.tolist()
        gain = curve.symmetric_relevance_gain
        for place, index, variant, p in self._covered(metric, cells, rows):
            most = curve.curve[place].tolist()
            least = None if curve.least_first is None else curve.least_first[place].tolist()
            area = float(curve.auc[place])
            self.rows.add(index, variant, p, f"pixel_flipping_auc{metric.suffix}", area, share, most, least)
            if gain is not None:
                self.rows.add(index, variant, p, f"symmetric_relevance_gain{metric.suffix}", float(gain[place]))

    def measure_robustness(self, group: list[Metric], target: Tensor, maps: dict[Cell, Tensor]) -> None:
        """Robustness: how far the maps move as the input moves. Every draw is traced once for all cells.

        The worst case over the draws, as `plrp.metrics.local_lipschitz` and `max_sensitivity` define it, of maps with
        channels pooled.
        """
        rows = [r for r, i in enumerate(self.indices) if any(m.covers(i, 0) for m in group)]
        samples = [self.indices[r] for r in rows]
        cells = [(v, p) for v, p in self.config.cells if any(m.covers(i, p) for m in group for i in samples)]
        if not rows or not cells:
            return
        inputs, target = self.inputs[rows], target[rows]
        original = {cell: maps[cell][rows] for cell in cells}
        draws = _draws(self.config, group[0])
        worst = {(m.name, cell): torch.zeros(len(rows), dtype=torch.float64) for m in group for cell in cells}
        for number in range(draws.samples):
            moved = inputs + draws.shift(number, inputs)
            distance = torch.linalg.vector_norm((moved - inputs).flatten(1), dim=1, dtype=torch.float64)
            for cell, relevance in self._maps(moved, target, cells):
                for metric in group:
                    scale = metric.options.get("normalise")
                    before, after = (scaled(m.flatten(1), scale) for m in (original[cell], relevance))
                    change = torch.linalg.vector_norm(after - before, dim=1, dtype=torch.float64)
                    length = torch.linalg.vector_norm(before, dim=1, dtype=torch.float64)
                    over = distance if metric.function == "local_lipschitz" else length
                    ratio = torch.where(change > 0, change / over, 0.0).cpu()
                    worst[metric.name, cell] = torch.maximum(worst[metric.name, cell], ratio)
            self.tick(TRACE, len(rows))
            for variant, covered in self._coverage(cells, rows, group):
                self.tick(variant, covered)
        for metric in group:
            for cell in cells:
                self.record(metric, [cell], worst[metric.name, cell], rows)

    def _maps(self, inputs: Tensor, target: Tensor, cells: list[Cell]) -> Iterator[tuple[Cell, Tensor]]:
        trace = self.bench.trace(inputs)
        for shared, explanation in self.bench.explanations(trace, target, cells):
            relevance = self.bench.pooled(explanation.relevance, inputs)
            for cell in shared:
                yield cell, relevance

    def _coverage(self, cells: list[Cell], rows: list[int], group: list[Metric]) -> Iterator[tuple[str, int]]:
        """The variant of each cell, and how many of the samples `rows` some metric of a group covers there."""
        for variant, p in cells:
            covered = sum(any(m.covers(self.indices[r], p) for m in group) for r in rows)
            if covered:
                yield variant, covered

    def stored_maps(self, maps: dict[Cell, Tensor]) -> StoredMaps | None:
        """The maps of the samples whose maps are stored, with their inputs and masks."""
        wanted = self.config.maps
        rows = [r for r, i in enumerate(self.indices) if wanted is not None and wanted.covers(i, 0)]
        if not rows:
            return None
        return StoredMaps(
            [self.indices[r] for r in rows],
            {cell: relevance[rows].cpu().numpy() for cell, relevance in maps.items()},
            np.stack([self.samples[r].drawn for r in rows]),
            None if self.masks is None else self.masks[rows].cpu().numpy(),
        )


# -- the amount of work


def work(config: Config, indices: Iterable[int]) -> Counter[str]:
    """The work on some samples by kind: traces, explanations by variant, forward passes of flipping."""
    limits = sorted({metric.limit for metric in config.metrics if metric.limit is not None})
    amount: Counter[str] = Counter()
    # Between two limits all samples are alike: a million of them is a matter of counting.
    for beyond, count in Counter(bisect_right(limits, index) for index in indices).items():
        first = limits[beyond - 1] if beyond else 0
        amount += Counter({kind: times * count for kind, times in _work_on(config, first).items()})
    return amount


def _work_on(config: Config, index: int) -> Counter[str]:
    amount = Counter({TRACE: 1})
    amount.update(variant for variant, _ in config.cells)
    for flips in flipping_groups(config):
        cells = sum(any(m.covers(index, p) for m in flips) for _, p in config.cells)
        amount[FORWARD] += cells * _passes(config, flips[0])
    for group in robustness_groups(config):
        if any(m.covers(index, 0) for m in group):
            times = _draws(config, group[0]).samples
            amount[TRACE] += times
            for variant, p in config.cells:
                amount[variant] += times * any(m.covers(index, p) for m in group)
    return amount


def robustness_groups(config: Config) -> list[list[Metric]]:
    """Robustness metrics that can look at the same perturbed inputs."""
    groups: dict[Draws, list[Metric]] = {}
    for metric in config.metrics:
        if metric.function in ROBUSTNESS:
            groups.setdefault(_draws(config, metric), []).append(metric)
    return list(groups.values())


def flipping_groups(config: Config) -> list[list[Metric]]:
    """Flipping metrics that differ only in how the score is read, and so share the model's passes."""
    groups: dict[str, list[Metric]] = {}
    for metric in config.metrics:
        if metric.function == "pixel_flipping":
            options = sorted(_flipping_options(config, metric).items())
            options = [(name, value) for name, value in options if name not in ("score_as", "normalise")]
            groups.setdefault(repr((options, metric.p, metric.limit)), []).append(metric)
    return list(groups.values())


def check_metrics(config: Config) -> None:
    """Refuse options that a metric does not have, before anything is done."""
    for metric in config.metrics:
        known: Sequence[str] = ()
        if metric.function == "pixel_flipping":
            known = [entry.name for entry in fields(metrics.FlippingSettings)]
        elif metric.function != "score_kept":
            parameters = inspect.signature(getattr(metrics, metric.function)).parameters.values()
            ours = ("target", "batch_size", "channels")
            known = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in ours]
        for name in metric.options:
            if name not in known and not (metric.function == "pixel_flipping" and name == "preset"):
                raise ConfigError(f"metrics.{metric.name} has no option {name!r}; it has {', '.join(known) or 'none'}.")
        if metric.function == "pixel_flipping" and metric.options.get("preset", "innvestigate") != "innvestigate":
            raise ConfigError(f"metrics.{metric.name}.preset is 'innvestigate', or not given.")


def check_masks(config: Config, samples: Dataset) -> None:
    """Refuse localization where there is no ground truth."""
    for metric in config.metrics:
        if metric.function in LOCALIZATION and not samples.masked:
            raise ConfigError(
                f"metrics.{metric.name} compares relevance with a ground truth, and these samples have no masks: "
                "leave it out, or give masks."
            )


def _draws(config: Config, metric: Metric) -> Draws:
    """The perturbations of a robustness metric: its options, else the defaults of its function."""
    defaults = inspect.signature(getattr(metrics, metric.function)).parameters
    settings = {k: metric.options.get(k, defaults[k].default) for k in ("noise", "radius", "samples")}
    return Draws(**settings, seed=metric.options.get("seed", config.seed))


def _flipping_options(config: Config, metric: Metric) -> dict[str, Any]:
    options = {k: v for k, v in metric.options.items() if k != "preset"}
    base = metrics.INNVESTIGATE if "preset" in metric.options else {}
    return {**base, "order": "both", "ties": "random", "seed": config.seed, **options}


def _passes(config: Config, metric: Metric) -> int:
    """Forward passes per sample and map."""
    return metrics.FlippingSettings(**_flipping_options(config, metric)).passes


def _typical(cells: Sequence[Cell], stacked: int) -> list[Cell]:
    """The smallest share, which takes most memory, and as many from the lower middle as one stacked walk takes."""
    middle = len(cells) // 3
    return list(dict.fromkeys([cells[0], *cells[middle : middle + stacked]]))


def _peak_memory() -> int:
    """The peak memory of this process in bytes; 0 where the system does not report it."""
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
