"""The time and memory of a sweep, stated before it starts, and its progress."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from plrp.progress import Step, duration, size
from plrp.runs.crew import Watch

from .measure import Rehearsal

BRIEF = 20
"""Seconds of work for which no other process is started: starting one takes a few."""


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
