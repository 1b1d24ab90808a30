"""How far a sweep is, and how long it will take: a bar for people, a plain line now and then for pipes."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from plrp.runs.cluster import Failure, Failures

from .measure import Rehearsal

EVERY = 60.0
"""Seconds between two lines in a pipe or a file."""

BRIEF = 20
"""Seconds of work for which no other process is started: each takes some to begin."""


class Watch:
    """Hears from an engine: states time and memory before the start, then moves the bar.

    `amount` is all the work there is, by kind; the rehearsal says what each kind costs, so the time left is right
    even where the first samples are the costliest. `workers` as asked for (None: up to `most`, if it pays).
    """

    def __init__(
        self,
        amount: Counter[str],
        workers: int | None,
        most: int,
        parts: int,
        say: Callable[[str], None],
        step: Callable[..., None],
    ) -> None:
        self.amount, self.workers, self.most, self.parts, self.say, self.step = amount, workers, most, parts, say, step
        self.found: Rehearsal | None = None
        self.stored = 0
        self.failures = Failures()

    def rehearsed(self, found: Rehearsal) -> int:
        """State what is to be expected, and say how many workers there shall be: as many as asked for, or as pay."""
        self.found = found
        total = found.estimate(self.amount)
        wanted = self.workers or (1 if total < BRIEF else self.most)
        workers = min(wanted, self.parts)
        room = available_memory()
        if found.memory and room is not None and workers > 1:  # this process keeps what it has, and works no more
            workers = max(1, min(workers, int(room // found.memory)))
        crew = f"{workers} worker{'s' * (workers != 1)}"
        text = f"about {duration(total / workers)} more on {crew}"
        if workers > 1:  # one is this process, which has started
            text += ", once they have started"
        if found.memory:
            processes = workers + (workers > 1)
            text += f"; memory up to {size(processes * found.memory)}, however many samples"
        if workers < min(wanted, self.parts):
            text += f" ({wanted} workers would not fit into the {size(room or 0)} that are free)"
        self.say(text)
        self.step(total=total or 1.0, note=f"0/{self.parts} parts")
        return workers

    def tick(self, kind: str, count: int) -> None:
        """Some work is done."""
        seconds = 0.0 if self.found is None else self.found.seconds.get(kind, 0.0)
        self.step(advance=seconds * count)

    def done(self, index: int) -> None:
        """A part is stored."""
        self.stored += 1
        self.step(note=f"{self.stored}/{self.parts} parts")

    def failed(self, failure: Failure) -> None:
        """A part could not be made; the others go on."""
        self.say(self.failures.told(failure))


class ClusterWatch(Watch):
    """The same for a cluster: what each worker needs is stated, and their number is the cluster's affair."""

    def costs(self, cost: Mapping[str, Any], workers: int) -> None:
        """State what is to be expected."""
        self.found = Rehearsal(dict(cost["seconds"]), int(cost["memory"]))
        total = self.found.estimate(self.amount)
        crew = f"{workers} worker{'s' * (workers != 1)} of the cluster"
        text = f"about {duration(total / workers)} more on {crew}, once they have started"
        if self.found.memory:
            text += f"; memory up to {size(self.found.memory)} each, however many samples"
        self.say(text)
        self.step(total=total or 1.0, note=f"{self.stored}/{self.parts} parts")


@contextmanager
def bar(label: str, show: bool | None = None) -> Iterator[Callable[..., None]]:
    """A bar on standard error that yields `step(advance=…, total=…, note=…)`.

    None shows it on a terminal, and elsewhere a plain line every minute. False is silent.
    """
    if show is None and not sys.stderr.isatty():
        yield _lines(label)
        return
    if show is False:
        yield lambda **changes: None
        return
    try:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            Progress,
            TaskProgressColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
    except ImportError:
        raise ImportError("Progress bars need rich: pip install 'plrp[experiments]'") from None
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=28),
        TaskProgressColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), speed_estimate_period=600) as shown:
        task = shown.add_task(label, total=None, note="trying a first batch")

        def step(**changes: Any) -> None:
            shown.update(task, **changes)

        yield step


def _lines(label: str) -> Callable[..., None]:
    """A step that says on standard error, now and then, how far it is."""
    done, whole, last, told = 0.0, 0.0, "", time.monotonic()

    def step(advance: float = 0.0, total: float | None = None, note: str | None = None) -> None:
        nonlocal done, whole, last, told
        done, whole, last = done + advance, whole if total is None else total, last if note is None else note
        if whole and time.monotonic() - told >= EVERY:
            told = time.monotonic()
            print(f"{label}: {min(1.0, done / whole):.0%}, {last}", file=sys.stderr, flush=True)

    return step


def duration(seconds: float) -> str:
    """A time for people: 40 s, 12 min, 3 h 20 min, 5 days."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest} min" if hours < 48 else f"{hours / 24:.1f} days"


def size(count: float) -> str:
    """Bytes for people."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


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
