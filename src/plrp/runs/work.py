"""Work in numbered parts: the message that workers are sent, the worker that makes parts, its report of a failure."""

from __future__ import annotations

import importlib
import json
import os
import queue
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .places import DiskFull

if TYPE_CHECKING:
    from .ray import RayCluster

NAMED = 20  # causes of failures that an error names
WORD = 1.0  # seconds between two messages of a worker about its progress
WORKER_DIED, NODE_LOST = "WorkerDied", "NodeLost"  # kinds of failures other than exceptions of the part's maker
Tick = Callable[[str, int], None]  # called when some work is done: with its kind and its amount


@dataclass(frozen=True)
class Work:
    """The work of all workers: `maker` names a class ("module:Class"), which every worker calls with `options`.

    The options are plain data. An option `device` that is None becomes `"cuda"` on workers that have a GPU, else
    `"cpu"`. The class's `do(index, tick)` makes and stores a part. Its `rehearse(index)`, if any, returns the cost of a
    first piece as plain data, of which `memory` (bytes) is used to place the workers.
    """

    maker: str
    options: Mapping[str, Any]

    def __post_init__(self) -> None:
        json.dumps(self.options)  # refuses anything but plain data

    def begin(self, device: str) -> Any:
        """The maker, with its model and data loaded; runs on a worker."""
        module, _, name = self.maker.partition(":")
        options = {k: device if k == "device" and v is None else v for k, v in self.options.items()}
        return getattr(importlib.import_module(module), name)(**options)


@dataclass(frozen=True)
class Execution:
    """How the parts of a run are made; nothing of it decides a result but its last bits.

    workers: processes (None: as many as pay); device and torch threads of each; engine: a cluster instead of this
    machine; show_progress: a bar (None: on a terminal); say: takes a sentence now and then.
    """

    workers: int | None = 1
    device: str | None = None
    threads: int = 1
    engine: RayCluster | None = None
    show_progress: bool | None = None
    say: Callable[[str], None] = lambda text: None


@dataclass(frozen=True)
class Failure:
    """A part that could not be made, and why."""

    index: int
    kind: str
    message: str
    errno: int | None = None

    @classmethod
    def of(cls, index: int, error: BaseException) -> Failure:
        """The failure of a part whose maker raised an error."""
        message = str(error.strerror if isinstance(error, DiskFull) else error)
        return cls(index, type(error).__name__, message, error.errno if isinstance(error, OSError) else None)

    @property
    def cause(self) -> str:
        """The reason, without the part."""
        return self.message or self.kind

    def __str__(self) -> str:
        return f"part {self.index}: {self.cause}"


def by_cause(failures: Sequence[Failure]) -> str:
    """Failed parts in a sentence, grouped by cause; three parts of each group are named."""
    grouped: dict[str, list[int]] = {}
    for failure in failures:
        grouped.setdefault(failure.cause, []).append(failure.index)
    causes = []
    for cause, parts in list(grouped.items())[:NAMED]:
        some = f"{', '.join(map(str, parts[:3]))}{', …' if len(parts) > 3 else ''}"
        causes.append(f"part {some}: {cause}" if len(parts) == 1 else f"{len(parts)} parts ({some}): {cause}")
    return "; ".join(causes) + (" …" if len(grouped) > NAMED else "")


class Worker:
    """Makes parts, one after the other; loads model and data with the first part.

    It is a process of a `LocalCrew`, or an actor of Ray.
    """

    def __init__(self, work: Mapping[str, Any], threads: int) -> None:
        self.work, self.threads = Work(**work), threads
        # One thread does all the work; the caller's thread passes its progress on.
        self.thread = ThreadPoolExecutor(1)

    def device(self) -> str:
        """The device for work that names none."""
        return "cpu"

    def make(self, index: int) -> Iterator[dict[str, Any]]:
        """Make a part. Messages: its progress now and then (`ticks`), in the end that it is `done` or has `failed`."""
        ticks: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
        outcome: Future[None] = self.thread.submit(lambda: self._maker.do(index, lambda *tick: ticks.put(tick)))
        while not wait([outcome], timeout=WORD).done:
            if counted := _counted(ticks):
                yield {"ticks": counted}
        error = outcome.exception()
        if error is None:
            yield {"ticks": _counted(ticks), "done": index}
        else:
            yield {"failed": asdict(Failure.of(index, error))}

    def rehearse(self, index: int) -> dict[str, Any]:
        """The cost of a first piece of a part; empty where the maker cannot tell."""
        return self.thread.submit(lambda: getattr(self._maker, "rehearse", lambda index: {})(index)).result()

    @cached_property
    def _maker(self) -> Any:
        import torch

        torch.set_num_threads(self.threads)
        return self.work.begin(self.device())


def _counted(ticks: queue.SimpleQueue[tuple[str, int]]) -> dict[str, int]:
    counted: Counter[str] = Counter()
    with suppress(queue.Empty):
        while True:
            kind, count = ticks.get_nowait()
            counted[kind] += count
    return dict(counted)


def main() -> None:
    """The program of a process: make parts until standard input ends.

    It reads JSON lines, first its work, then one part per line, and answers with JSON lines on standard output. When
    its input ends, because the process that started it has ended, it ends too.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    # Answers go to standard output; prints of a user's model, which must not mix with them, go to standard error.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    worker = Worker(**json.loads(sys.stdin.readline()))
    parts: queue.SimpleQueue[int] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            parts.put(json.loads(line))
        os._exit(0)  # at once: no process waits for the part under way

    threading.Thread(target=read, daemon=True).start()
    while True:
        for message in worker.make(parts.get()):
            try:
                answers.write(json.dumps(message) + "\n")
            except (BrokenPipeError, ValueError):
                os._exit(1)
