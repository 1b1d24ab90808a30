"""Runs whose scores are written down, not measured: the report's answers about them are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from plrp.experiments.aligned_scores import AlignedScores, tidy
from plrp.experiments.config import Config
from plrp.experiments.part_files import SampleFacts, ScoreRows, StoredMaps
from plrp.experiments.store import PartContent, Store

VARIANTS = ("lambda", "lambda+gain", "M", "M+gain")
Score = Callable[[int, str, float, str], float]


def usual(sample: int, variant: str, p: float, metric: str) -> float:
    """Scores as the paper describes them: λ ahead of M, sparsity up, mass up and down again, AUC a bit worse for λ."""
    own = 0.01 * np.sin(7 * sample + 1)  # samples differ
    speeds = {"LRP": 0.0, "lambda": 6.0, "lambda+gain": 5.0, "M": 3.5, "M+gain": 2.5, "M-sign": 3.2, "M-sign+gain": 2.2}
    speed = speeds[variant]
    grown = 1 - np.exp(-speed * p)
    noise = 0.002 * np.sin(13 * sample + 5 * len(variant) + 31 * p)
    if metric == "gini":
        return 0.5 + own + 0.45 * grown + (0 if variant == "LRP" else noise)
    if metric == "entropy":
        return 8 - 100 * own - 5 * grown
    if metric == "relevance_mass_accuracy":
        return 0.4 + 5 * own + 0.3 * grown - (0.25 if variant.startswith("lambda") else 0.2) * p**3
    if metric.startswith("local_lipschitz"):
        return (0.3 + own) * (1 - 0.3 * grown)
    if metric.startswith("pixel_flipping_auc"):
        return 0.3 + own + (0.06 * grown if variant.startswith("lambda") else -0.001 * (p > 0))
    return 0.5 + own


def usual_curve(sample: int, variant: str, p: float) -> list[float]:
    """A flipping curve: all alike at first, λ slower later on."""
    late = 0.1 if variant.startswith("lambda") else 0.0
    own = 0.01 * np.sin(sample)
    return [1.0, 0.8 + own, 0.6 + own, 0.45 + own + late, 0.2 + own + late, 0.0]


SHARE = [0.0, 0.005, 0.01, 0.2, 0.5, 1.0]


def made_run(
    folder: Path,
    *,
    kind: str = "ecssd",
    model: str = "resnet50",
    p: Sequence[float] = (0.0, 0.05, 0.15, 0.3, 0.6, 0.9),
    samples: int = 6,
    metrics: Sequence[str] = ("gini", "entropy", "relevance_mass_accuracy", "local_lipschitz", "pixel_flipping"),
    score: Score = usual,
    parts: Sequence[int] | None = None,
    maps: bool = True,
    shape: Sequence[int] = (3, 16, 16),
    names: Callable[[int], str] = "sample{}".format,
    broken: Callable[[int, str, float], bool] | None = None,
    **changes: Any,
) -> Path:
    """A run in `folder`, as a sweep would have left it; `parts` leaves the others missing.

    `shape` is that of a sample of kind `arrays`, (channel, *space). `broken` says in which explanations the arithmetic
    broke; without it the run is one of a version that did not look.
    """
    data: dict[str, Any] = {"kind": kind, "count": samples, "digest": "made"}
    if kind != "simulated-dna":
        data["root"] = "nowhere"
    network: dict[str, Any] = {"name": model, "digest": "made"}
    if kind == "simulated-dna":
        network = {"name": "sequence-cnn", "digest": "made", "filters": 4}
    table = {
        "name": folder.name, "data": data, "model": network, "p": list(p), "part_size": 2, "batch_size": 1,
        "metrics": {name: {} for name in metrics},
    }  # fmt: skip
    if maps:
        table["maps"] = {"p": [q for q in p if q > 0]}
    config = Config.from_dict(table).changed(**changes)
    store = Store(folder)
    config = store.begin(config, {"plrp": "0", "packages": {"torch": "2"}, "seed": 0})
    for index in range(config.parts) if parts is None else parts:
        store.put(config, index, _part(config, index, score, names, shape, broken))
    return folder


def _part(
    config: Config,
    index: int,
    score: Score,
    names: Callable[[int], str],
    shape: Sequence[int],
    broken: Callable[[int, str, float], bool] | None,
) -> PartContent:
    rows = ScoreRows()
    for sample in config.part(index):
        rows.facts[sample] = SampleFacts(sample, names(sample), sample % 3, sample % 3, 2.0)
        for variant, p in config.cells:
            if broken is not None:
                rows.add(sample, variant, p, "broken", float(broken(sample, variant, p)))
            for metric in config.metrics:
                if not metric.covers(sample, p):
                    continue
                if metric.function == "pixel_flipping":
                    area = metric.name.replace("pixel_flipping", "pixel_flipping_auc")
                    curve = usual_curve(sample, variant, p)
                    rows.add(sample, variant, p, area, score(sample, variant, p, area), SHARE, curve, None)
                else:
                    rows.add(sample, variant, p, metric.name, score(sample, variant, p, metric.name))
    kept = [s for s in config.part(index) if config.maps is not None and config.maps.covers(s, 0)]
    return PartContent(rows.to_parquet({}), _maps(config, index, kept, shape).to_hdf5() if kept else None)


def _maps(config: Config, index: int, samples: list[int], of_arrays: Sequence[int]) -> StoredMaps:
    rng = np.random.default_rng(index)
    dna = config.data.kind == "simulated-dna"
    arrays = config.data.kind == "arrays"
    shape = (30,) if dna else tuple(of_arrays[1:] or of_arrays) if arrays else (16, 16)
    base = rng.normal(size=(len(samples), *shape)).astype(np.float32)
    kept = {(v, p): np.where(np.abs(base) > p, base, 0).astype(np.float32) for v, p in config.cells}
    masks = np.zeros((len(samples), *shape), bool)
    masks[:, 4:9] = True
    if dna:
        inputs = np.eye(4, dtype=np.uint8)[rng.integers(0, 4, (len(samples), 30))].transpose(0, 2, 1)
        # A motif base that survives with less than a base outside that does not: pruning is no threshold here.
        base[:, 5], base[:, 20] = 0.2, 0.4
        for (variant, p), values in kept.items():
            values[:, 5], values[:, 20] = 0.2, 0.4 if p == 0 or variant == "LRP" else 0.0
    elif arrays:
        inputs = rng.normal(size=(len(samples), *of_arrays)).astype(np.float32)
    else:
        inputs = rng.integers(0, 255, (len(samples), 16, 16, 3)).astype(np.uint8)
    return StoredMaps(samples, kept, inputs, masks)


def from_arrays(name: str, values: Mapping[str, Mapping[str, Mapping[float, ArrayLike]]], count: int) -> AlignedScores:
    """Scores from `values[metric][variant][p]`, each (n,)."""
    table = {
        (metric, variant): {tidy(p): np.asarray(column, np.float64) for p, column in by_p.items()}
        for metric, by_variant in values.items()
        for variant, by_p in by_variant.items()
    }
    return AlignedScores(name, np.arange(count), table)
