"""Where many parts become a burden: the driver, Ray's object store, or the run's folder. The work itself is empty.

    python benchmarks/many_shards.py
    python benchmarks/many_shards.py --shards 10000 --parts 2000      a short version

First, empty parts go through the driver and the workers of a Ray cluster on this machine: parts per second, and what
the driver's memory and the object store hold as their number grows. Then parts of the size of a real one are put into
a folder and found, and read again, as a sweep that is taken up does: seconds per part. A last line says what that
makes of a million images.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from plrp.experiments import Config, Store
from plrp.experiments.measure import work as amount_of_work
from plrp.experiments.store import PartContent
from plrp.runs.crew import Watch
from plrp.runs.ray import RayCluster, connected, spread
from plrp.runs.work import Failure, Work

MILLION = 1_000_000


class Nothing:
    """Work that is done as soon as it is begun."""

    def do(self, index: int, tick: Any) -> None:
        tick("nothing", 1)


class Counting(Watch):
    """Hears how the driver does."""

    def __init__(self, shards: int, ray: Any) -> None:
        super().__init__(print)
        self.shards, self.ray = shards, ray
        self.start = self.last = self.busy = 0.0

    def failed(self, failure: Failure) -> None:
        raise RuntimeError(str(failure))

    def done(self, index: int) -> None:
        super().done(index)
        if self.stored == 1:
            self.start = self.last = time.perf_counter()
            self.busy = time.process_time()
        if self.stored % (self.shards // 10) == 0:
            now = time.perf_counter()
            rate = (self.shards // 10) / (now - self.last)
            self.last = now
            print(f"{self.stored:>9,} parts  {rate:7.0f} per s  driver {resident() / 1e6:5.0f} MB  "
                  f"object store {self.object_store() / 1e6:4.1f} MB", flush=True)  # fmt: skip

    def object_store(self) -> float:
        """Bytes in use."""
        total, free = self.ray.cluster_resources(), self.ray.available_resources()
        return total.get("object_store_memory", 0) - free.get("object_store_memory", 0)


def resident() -> int:
    """Bytes of memory that this process holds now."""
    with open("/proc/self/statm") as stream:
        return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def drive(shards: int, workers: int) -> tuple[float, float]:
    """Empty parts through the driver; returns parts per second, and seconds of a core that each took the driver."""
    cluster = RayCluster("local", workers=workers)
    with connected(cluster, shards) as ray:
        print(
            f"{shards:,} empty parts, {workers} workers on this machine; driver {resident() / 1e6:.0f} MB to begin with"
        )
        watch = Counting(shards, ray)
        spread(cluster, Work("many_shards:Nothing", {}), range(shards), watch)
        busy = (time.process_time() - watch.busy) / (shards - 1)
        return (shards - 1) / (time.perf_counter() - watch.start), busy


def keep(parts: int, size: int) -> dict[str, float]:
    """Parts of random bytes in a folder; seconds per part to put, find, and read all of them again."""
    taken = {}
    with tempfile.TemporaryDirectory() as name:
        table = {
            "data": {"kind": "arrays", "root": "none", "count": 2 * parts},
            "model": {"name": "none"},
            "part_size": 2,
        }
        config, store = Config.from_dict(table), Store(Path(name) / "run")
        contents = [os.urandom(size) for _ in range(16)]
        steps = {
            "put": lambda: [store.put(config, k, PartContent(contents[k % 16])) for k in range(parts)],
            "find": lambda: store.find(config),
            "read": lambda: store.whole(config),
            "count the work": lambda: amount_of_work(config, range(2 * parts)),
        }
        for step, function in steps.items():
            start = time.perf_counter()
            function()
            taken[step] = (time.perf_counter() - start) / parts
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=100_000, help="empty parts through the driver")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--parts", type=int, default=10_000, help="parts put into a folder")
    parser.add_argument("--size", type=int, default=70_000, help="bytes of a part")
    options = parser.parse_args()
    rate, busy = drive(options.shards, options.workers)
    print(f"{rate:.0f} parts per second through the driver, {1e3 * busy:.2f} ms of a core each in its process\n")
    taken = keep(options.parts, options.size)
    print(f"{options.parts:,} parts of {options.size:,} bytes in a folder, milliseconds per part: "
          + ", ".join(f"{step} {1e3 * seconds:.3f}" for step, seconds in taken.items()))  # fmt: skip
    count = MILLION // 2
    print(f"\na million images in {count:,} parts of 2: driver {count / rate:,.0f} s at this rate; "
          + ", ".join(f"{step} {count * seconds:,.0f} s" for step, seconds in taken.items())
          + f"; {count * options.size / 1e9:.0f} GB of parts")  # fmt: skip


if __name__ == "__main__":
    main()
