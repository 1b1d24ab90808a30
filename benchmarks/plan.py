"""What the paper's whole evaluation costs: arithmetic from a few measured seconds per image.

    python benchmarks/plan.py --root ../shared/data

1,000 photographs of ECSSD and 3,900 of ImageNet × ResNet-50 and VGG-16 × 5 variants × 20 p, with all metrics of the
presets (pixel flipping of every map; the Lipschitz estimate on 10 photographs per sweep, as in the paper). Measured are
the seconds per image of each kind of work (trace, one explanation per variant, forward pass) by the rehearsal that
every sweep begins with, on one core, and of the metrics that only look at a map. `work` counts how often each is needed.
What is not measured is said: no GPU was at hand, so what one does per second is an assumption (`--gpu-forward`).
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch

from plrp import metrics
from plrp.experiments import Config, Store, preset
from plrp.experiments.measure import FORWARD, Bench, work
from plrp.experiments.progress import duration

IMAGES = {"ecssd": 1000, "imagenet": 3900}
MODELS = ("resnet50", "vgg16")
MAPS = "looking at maps"
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


def measured(data: str, model: str, root: Path, rounds: int) -> Cost:
    """A preset with the number of images of the paper, and what its kinds of work cost here."""
    weights = next(iter(sorted((root / "weights").glob(f"*{model}*"))), None)
    config = preset(f"{data}-{model}", root=root, weights="random" if weights is None else weights)
    counted = config.changed(**{"data.count": IMAGES[data], "data.limit": IMAGES[data]})
    bench = Bench(counted, Store(Path("none")))
    found = [bench.rehearse(0) for _ in range(rounds)]
    seconds = {kind: statistics.median(f.seconds[kind] for f in found) for kind in found[0].seconds}
    seconds[MAPS] = looking(counted)
    return Cost(f"{data}-{model}", model, counted, seconds, found[0].memory)


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
            start = time.perf_counter()
            function(*arguments, **metric.options)
            taken.append((time.perf_counter() - start) / len(relevance))
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
    parser.add_argument("--gpu-forward", type=float, nargs=2, default=list(GPU_FORWARD.values()), metavar=("RN", "VGG"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    gpu = dict(zip(GPU_FORWARD, options.gpu_forward, strict=True))
    costs = [measured(data, model, options.root, options.rounds) for model in MODELS for data in IMAGES]

    print("measured, one core, seconds per image (memory of a worker)")
    for cost in costs:
        cells = ", ".join(f"{kind} {seconds:.3g}" for kind, seconds in cost.seconds.items())
        print(f"  {cost.name:18} {cells}  ({cost.memory / 1e9:.1f} GB)")

    print("\nneeded, per sweep")
    for cost in costs:
        print(f"  {cost.name:18} {', '.join(f'{kind} {count:,}' for kind, count in cost.amount.items())}")

    print("\nshare of the time")
    for cost in costs:
        shares = {kind: 100 * part / cost.total() for kind, part in cost.by_kind().items()}
        print(f"  {cost.name:18} {', '.join(f'{kind} {share:.0f}%' for kind, share in shares.items())}")

    heads = (
        "sweep",
        "images",
        "core hours",
        f"{options.cores} cores",
        "one GPU (assumed)",
        f"{options.workers} workers",
    )
    print("\n| " + " | ".join(heads) + " |\n|---|" + "---:|" * (len(heads) - 1))
    sums = [0.0] * 4
    for cost in costs:
        factor = gpu[cost.model] * cost.seconds[FORWARD]
        times = [cost.total(), shared_out(cost, options.cores), cost.total(factor), shared_out(cost, options.workers)]
        sums = [a + b for a, b in zip(sums, times, strict=True)]
        print(row(cost.name, cost.config.samples, times))
    print(row("all", sum(IMAGES.values()) * len(MODELS), sums))

    print("\nthe GPU column assumes, and nobody measured, " + " and ".join(
        f"{gpu[model]:g} forward passes per second ({model}; here {1 / forward:.1f} on a core)"
        for model, forward in {cost.model: cost.seconds[FORWARD] for cost in costs}.items()
    ) + ", and that everything else keeps its ratio to the forward pass.")  # fmt: skip


def row(name: str, images: int, times: list[float]) -> str:
    """A line of the table."""
    return f"| {name} | {images:,} | {times[0] / 3600:,.1f} | " + " | ".join(map(duration, times[1:])) + " |"


if __name__ == "__main__":
    main()
