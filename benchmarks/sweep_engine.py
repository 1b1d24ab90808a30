"""How a sweep uses the cores best: processes, torch's threads, or Python's threads, on the same parts.

    python benchmarks/sweep_engine.py

Every way makes the same parts of a sweep over random inputs (sparsity of LRP, λ and M at four p, 12 flips); the ways
take turns, and what is reported is seconds per sample between the first and the last part, so that starting up is left
out.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from plrp.experiments import Config, Store
from plrp.experiments.measure import Bench
from plrp.experiments.part_making import work_for
from plrp.runs.crew import LocalCrew, Watch, cores
from plrp.runs.work import Failure


class Stopwatch(Watch):
    """Hears when parts are done."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def done(self, index: int) -> None:
        self.times.append(time.perf_counter())

    def failed(self, failure: Failure) -> None:
        raise RuntimeError(str(failure))

    def per_part(self, warm: int) -> float:
        """Seconds per part, not counting the first `warm`, in which processes begin."""
        return (self.times[-1] - self.times[warm - 1]) / (len(self.times) - warm)


def config_of(folder: Path, model: str, parts: int, batch: int) -> Config:
    rng = np.random.default_rng(0)
    np.savez(folder / "data.npz", inputs=rng.normal(size=(parts * batch, 3, 224, 224)).astype(np.float32))
    flips = {"region": 9, "edges": "reflect", "steps": [1, 4, 16, 64, 250], "order": "both", "p": [0.15]}
    table = {
        "data": {"kind": "arrays", "root": str(folder / "data.npz"), "count": parts * batch},
        "model": {"name": f"torchvision:{model}", "weights": "random"},
        "variants": ["LRP", "lambda", "M"],
        "p": [0.0, 0.05, 0.15, 0.3, 0.6],
        "metrics": {"gini": {}, "entropy": {}, "pixel_flipping": flips},
        "part_size": batch,
        "batch_size": batch,
    }
    return Config.from_dict(table)


def processes(config: Config, folder: Path, count: int) -> float:
    watch = Stopwatch()
    LocalCrew(work_for(Store(folder), config, "cpu"), range(config.parts), watch, count).run()
    return watch.per_part(warm=count)


def python_threads(config: Config, folder: Path, count: int) -> float:
    torch.set_num_threads(1)
    bench, watch = Bench(config, Store(folder)), Stopwatch()
    with ThreadPoolExecutor(count) as pool:
        for future in [pool.submit(lambda k=k: (bench.part(k), watch.done(k))) for k in range(config.parts)]:
            future.result()
    return watch.per_part(warm=count)


def torch_threads(config: Config, folder: Path, count: int) -> float:
    torch.set_num_threads(count)
    bench, watch = Bench(config, Store(folder)), Stopwatch()
    for index in range(config.parts):
        bench.part(index)
        watch.done(index)
    return watch.per_part(warm=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["resnet50", "vgg16"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=cores())
    options = parser.parse_args()
    os.environ.pop("OMP_NUM_THREADS", None)
    n = options.workers
    ways = {f"{n} processes": processes, f"{n} torch threads": torch_threads, f"{n} Python threads": python_threads}
    print(f"{'model':10} {'batch':>5}  " + "  ".join(f"{name:>18}" for name in ways) + "   (seconds per sample)")
    for model in options.models:
        for batch in options.batches:
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                config = config_of(folder, model, options.parts, batch)
                taken: dict[str, list[float]] = {way: [] for way in ways}
                for round_ in range(options.rounds):
                    for way, function in ways.items():
                        run = folder / f"{way}-{round_}".replace(" ", "-")
                        Store(run).begin(config)
                        taken[way].append(function(config, run, n) / batch)
                cells = "  ".join(f"{statistics.median(values):18.2f}" for values in taken.values())
                print(f"{model:10} {batch:5}  {cells}", flush=True)


if __name__ == "__main__":
    main()
