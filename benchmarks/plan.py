"""What the paper's whole evaluation costs: arithmetic from a few measured seconds per image.

    python benchmarks/plan.py --root ../shared/data
    python benchmarks/plan.py --root ../shared/data --keep costs.json --only ecssd-vgg16    measured in pieces

1,000 photographs of ECSSD and 3,900 of ImageNet × ResNet-50 and VGG-16 × 5 variants × 20 p, with all metrics of the
presets (pixel flipping of every map; the Lipschitz estimate on 10 photographs per sweep, as in the paper). Measured are
the seconds per image of each kind of work (trace, one explanation per variant, forward pass) by the rehearsal that
every sweep begins with, and of the metrics that only look at a map: seconds that one core spends, so that other work
on the machine counts little. `work` counts how often each is needed. What is not measured is said: no GPU was at hand,
so what one does per second is an assumption (`--gpu-forward`).
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from plrp import metrics
from plrp.experiments import Config, Store, preset
from plrp.experiments.measure import FORWARD, Bench, work
from plrp.progress import duration

IMAGES = {"ecssd": 1000, "imagenet": 3900}
MODELS = ("resnet50", "vgg16")
MAPS, MEMORY = "looking at maps", "memory"
GPU_FORWARD = {"resnet50": 800.0, "vgg16": 400.0}
"""Assumed, not measured: images per second in a forward pass in float32, batch 32, on one data-centre GPU."""

START = 20.0
"""Seconds until a worker has started and loaded its model."""


@dataclass(frozen=True)
class Cost:
    """One sweep of the plan."""

    name: str
    model: str
    config: Config
    seconds: dict[str, float]
    memory: int

    @property
    def amount(self) -> Counter[str]:
        """How often each kind of work is needed."""
        amount = work(self.config, range(self.config.samples))
        amount[MAPS] = self.config.samples * len(self.config.cells)
        return amount

    def by_kind(self, factor: float = 1.0) -> dict[str, float]:
        """Seconds by kind of work on one core, or on something `factor` times as fast."""
        return {kind: self.seconds.get(kind, 0.0) * count / factor for kind, count in self.amount.items()}

    def total(self, factor: float = 1.0) -> float:
        """Seconds in all."""
        return sum(self.by_kind(factor).values())


def planned(data: str, model: str, root: Path) -> Config:
    """A preset with the number of images of the paper."""
    weights = next(iter(sorted((root / "weights").glob(f"*{model}*"))), None)
    config = preset(f"{data}-{model}", root=root, weights="random" if weights is None else weights)
    return config.changed(**{"data.count": IMAGES[data], "data.limit": IMAGES[data]})


def measured(config: Config, rounds: int) -> dict[str, float]:
    """What a sweep's kinds of work cost here, in seconds of a core per image; and the memory of a worker."""
    bench = Bench(config, Store(Path("none")))
    found = [bench.rehearse(0, time.process_time) for _ in range(rounds)]
    seconds = {kind: statistics.median(f.seconds[kind] for f in found) for kind in found[0].seconds}
    return {**seconds, MAPS: looking(config), MEMORY: found[0].memory}


def costs_of(root: Path, rounds: int, keep: Path | None, only: str | None) -> list[Cost]:
    """The sweeps of the plan; what `keep` holds is not measured again."""
    known: dict[str, dict[str, float]] = json.loads(keep.read_text()) if keep is not None and keep.exists() else {}
    costs = []
    for model in MODELS:
        for data in IMAGES:
            name = f"{data}-{model}"
            if only in (None, name):
                config = planned(data, model, root)
                if name not in known:
                    known[name] = measured(config, rounds)
                    if keep is not None:
                        keep.write_text(json.dumps(known, indent=1))
                seconds = {kind: value for kind, value in known[name].items() if kind != MEMORY}
                costs.append(Cost(name, model, config, seconds, int(known[name][MEMORY])))
    return costs


def looking(config: Config, rounds: int = 5) -> float:
    """Seconds of the metrics that only look at one map of 224 × 224."""
    relevance, masks = torch.randn(2, 224, 224), torch.rand(2, 224, 224) > 0.5
    total = 0.0
    for metric in config.metrics:
        function = getattr(metrics, metric.function, None)
        if function is None or metric.function in ("pixel_flipping", "local_lipschitz", "max_sensitivity"):
            continue
        localized = metric.function.startswith(("relevance_", "pointing"))
        arguments = (relevance, masks) if localized else (relevance,)
        taken = []
        for _ in range(rounds):
            start = time.process_time()
            function(*arguments, **metric.options)
            taken.append((time.process_time() - start) / len(relevance))
        total += statistics.median(taken)
    return total


def shared_out(cost: Cost, workers: int) -> float:
    """Seconds on so many cores like this one: parts are not divided, and every worker has to start."""
    per_part = cost.total() / cost.config.parts
    return START + math.ceil(cost.config.parts / workers) * per_part


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--root", type=Path, required=True, help="folder with `ecssd` and `imagenet`, perhaps `weights`"
    )
    parser.add_argument("--rounds", type=int, default=3, help="rehearsals, of which the median counts")
    parser.add_argument("--cores", type=int, default=2, help="of this machine")
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--keep", type=Path, metavar="FILE", help="JSON of what was measured, taken up and added to")
    parser.add_argument("--only", metavar="SWEEP", help="one sweep of the plan, such as ecssd-vgg16")
    parser.add_argument("--gpu-forward", type=float, nargs=2, default=list(GPU_FORWARD.values()), metavar=("RN", "VGG"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    gpu = dict(zip(GPU_FORWARD, options.gpu_forward, strict=True))
    costs = costs_of(options.root, options.rounds, options.keep, options.only)
    kinds = list(dict.fromkeys(kind for cost in costs for kind in cost.seconds))

    print("measured: seconds of one core per image, and as multiples of a forward pass")
    table(["sweep", *kinds, "memory of a worker"], [
        [cost.name, *(f"{cost.seconds[k]:.3g} ({cost.seconds[k] / cost.seconds[FORWARD]:.2g}×)" for k in kinds),
         f"{cost.memory / 1e9:.1f} GB"] for cost in costs
    ])  # fmt: skip
    print("\nneeded: how often, and its share of the time")
    table(["sweep", *kinds], [
        [cost.name, *(f"{cost.amount[k]:,} ({100 * cost.by_kind()[k] / cost.total():.0f}%)" for k in kinds)]
        for cost in costs
    ])  # fmt: skip
    heads = (
        "sweep",
        "images",
        "core hours",
        "without pixel flipping",
        f"{options.cores} cores",
        "one GPU (assumed)",
        f"{options.workers} workers",
    )
    print()
    rows = []
    sums = [0.0] * 5
    for cost in costs:
        factor = gpu[cost.model] * cost.seconds[FORWARD]
        rest = cost.total() - cost.by_kind()[FORWARD]
        times = [cost.total(), rest, shared_out(cost, options.cores), cost.total(factor)]
        times.append(shared_out(cost, options.workers))
        sums = [a + b for a, b in zip(sums, times, strict=True)]
        rows.append(row(cost.name, cost.config.samples, times))
    table(heads, [*rows, row("all", sum(cost.config.samples for cost in costs), sums)])

    print("\nthe GPU column assumes, and nobody measured, " + " and ".join(
        f"{gpu[model]:g} forward passes per second ({model}; here {1 / forward:.1f} on a core)"
        for model, forward in {cost.model: cost.seconds[FORWARD] for cost in costs}.items()
    ) + ", and that everything else keeps its ratio to the forward pass.")  # fmt: skip


def row(name: str, images: int, times: list[float]) -> list[str]:
    """A line of the last table."""
    return [name, f"{images:,}", *(f"{hours / 3600:,.0f}" for hours in times[:2]), *map(duration, times[2:])]


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print Markdown."""
    print("| " + " | ".join(heads) + " |\n|---|" + "---:|" * (len(heads) - 1))
    for cells in rows:
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
