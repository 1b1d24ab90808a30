"""Making the parts of a sweep, on this machine or on workers that are sent the config: its cost, and its progress."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from plrp.progress import Step, duration, size
from plrp.runs.crew import Watch
from plrp.runs.places import Place
from plrp.runs.ray import inside
from plrp.runs.run import Digests, differs_here
from plrp.runs.work import Tick, Work

from .config import Config
from .measure import Bench, Rehearsal
from .networks import resolved_model
from .store import Store

CHECKED = 100_000
"""Samples up to which a worker makes sure that it has the same ones: it looks at every file."""
BRIEF = 20
"""Seconds of work for which no other process is started: starting one takes a few."""


class PartMaker:
    """Makes parts. Model and data are loaded once, as the config names them.

    A worker on a machine with other weights, code or samples refuses: its parts would bear the names of other results.
    """

    def __init__(
        self, config: Config | Mapping[str, Any], store: Place | str, device: str, *, verify: bool = True
    ) -> None:
        self.store = Store(store)
        config = config if isinstance(config, Config) else Config.from_dict(config).at(Path.cwd())
        digests = Digests(self.store.place)
        if verify and config.model.digest is not None:
            here = resolved_model(config, self.store, digests)
            if here.digest != config.model.digest:
                raise differs_here("weights", "the sweep")
            if dict(here.code or {}) != dict(config.model.code or {}):
                raise differs_here("code of the model", "the sweep")
        self.bench = Bench(config, self.store, device)
        samples, wanted = self.bench.samples, config.data
        if verify and wanted.digest is not None:
            same = samples.count == wanted.count and (
                samples.count > CHECKED or samples.digest(digests) == wanted.digest
            )
            if not same:
                raise differs_here("samples", "the sweep")

    def rehearse(self, index: int) -> dict[str, Any]:
        """The cost of a first batch: a `Rehearsal` as plain data."""
        return asdict(self.bench.rehearse(index))

    def do(self, index: int, tick: Tick) -> None:
        """Make a part and store it."""
        self.store.put(self.bench.config, index, self.bench.part(index, tick))


def work_for(store: Store, config: Config, device: str | None) -> Work:
    """The work that other processes are sent: config, place and device, however many samples there are."""
    options = {"config": config.to_dict(), "store": store.place.address, "device": device}
    return Work("plrp.experiments.part_making:PartMaker", options)


def portable(config: Config, working_dir: str | None) -> Config:
    """With paths inside the folder that Ray copies to the workers relative to it."""

    def there(value: Any) -> Any:
        return inside(value, working_dir) if isinstance(value, str) else value

    options = {name: there(value) for name, value in config.data.options.items()}
    data = replace(config.data, root=there(config.data.root), options=options)
    model = replace(config.model, name=there(config.model.name), weights=there(config.model.weights))
    return replace(config, data=data, model=model)


# -- time and memory, stated before the start, and progress


class SweepWatch(Watch):
    """States time and memory before the start, then moves the display.

    `amount`: all the work, by kind. The rehearsal measures the cost of each kind, so the remaining time is right even
    if the first samples are the costliest. `workers`: as asked for (None: up to `most`, if they pay).
    """

    def __init__(
        self,
        amount: Counter[str],
        workers: int | None,
        most: int,
        parts: int,
        say: Callable[[str], None],
        step: Step,
    ) -> None:
        super().__init__(say)
        self.amount, self.workers, self.most, self.parts, self.step = amount, workers, most, parts, step
        self.cost: Rehearsal | None = None

    def rehearsed(self, cost: Rehearsal) -> int:
        """State the cost on this machine, and decide the number of workers."""
        total = cost.estimate(self.amount)
        wanted = min(self.workers or (1 if total < BRIEF else self.most), self.parts)
        room = available_memory()
        workers = wanted
        if cost.memory and room is not None and workers > 1:  # this process keeps its memory while it waits
            workers = max(1, min(workers, int(room // cost.memory)))
        processes = workers + (workers > 1)
        text = f"; memory up to {size(processes * cost.memory)}, however many samples" if cost.memory else ""
        if workers < wanted:
            text += f" ({wanted} workers would not fit into the {size(room or 0)} that are free)"
        # One worker is this process, which has started.
        self._expect(cost, workers, ", once they have started" * (workers > 1) + text)
        return workers

    def costs(self, cost: Mapping[str, Any], workers: int) -> None:
        """State the cost on a cluster."""
        rehearsal = Rehearsal(dict(cost["seconds"]), int(cost["memory"]))
        text = f"; memory up to {size(rehearsal.memory)} each, however many samples" if rehearsal.memory else ""
        self._expect(rehearsal, workers, f" of the cluster, once they have started{text}")

    def _expect(self, cost: Rehearsal, workers: int, text: str) -> None:
        self.cost = cost
        total = cost.estimate(self.amount)
        self.say(f"about {duration(total / workers)} more on {workers} worker{'s' * (workers != 1)}{text}")
        self.step(total=total or 1.0, note=f"{self.parts_stored}/{self.parts} parts")

    def tick(self, kind: str, count: int) -> None:
        """Some work is done."""
        self.step(0.0 if self.cost is None else self.cost.seconds.get(kind, 0.0) * count)

    def done(self, index: int) -> None:
        """A part is stored."""
        super().done(index)
        self.step(note=f"{self.parts_stored}/{self.parts} parts")


def available_memory() -> int | None:
    """Bytes that are free for new processes, within the limit of the control group; None where unknown."""
    try:
        with open("/proc/meminfo") as stream:
            free = next(int(line.split()[1]) * 1024 for line in stream if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return None
    try:
        with open("/sys/fs/cgroup/memory.max") as stream, open("/sys/fs/cgroup/memory.current") as used:
            limit, taken = stream.read().strip(), int(used.read())
            return free if limit == "max" else min(free, max(0, int(limit) - taken))
    except (OSError, ValueError):
        return free
