"""A crew of workers on a list of parts: a free worker gets the next part, and failed parts are retried or given up.

The rules are the same for processes of this machine (below) and for a Ray cluster (`ray.py`). A worker makes one part
at a time, stores it itself, and answers that it is done. A part whose worker died is made by another worker. A part
that fails too often is given up and named. A full disk stops everything.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeVar

from .places import DiskFull
from .work import NODE_LOST, WORKER_DIED, Failure, Work

IN_A_ROW = 10  # parts given up in a row after which the rest is not tried: the cause is then not in the parts
# The program of a process. `python -m` would prefer files of the current folder to installed modules.
BEGIN = "import sys; sys.path[:] = filter(None, sys.path); from plrp.runs.work import main; main()"
LOCAL_TRIES = 2  # attempts at a part whose process died, perhaps by another cause than the part
NODES_PER_TRY = 3  # lost nodes that count as one try: a part seldom causes the loss of its node


class Watch:
    """Listens to the progress of the work: counts the stored parts and names failures. Displays derive from it."""

    def __init__(self, say: Callable[[str], None] = lambda text: None) -> None:
        self.say = say
        self.parts_stored = 0
        self.causes: set[str] = set()

    def costs(self, cost: Mapping[str, Any], workers: int) -> None:
        """The cost of a first piece of the work is known, and the number of workers that fit."""

    def tick(self, kind: str, count: int) -> None:
        """Some work of a kind is done."""

    def done(self, index: int) -> None:
        """A part is stored."""
        self.parts_stored += 1

    def failed(self, failure: Failure) -> None:
        """A part is given up; the others go on. Each cause is named once."""
        if failure.cause in self.causes:
            self.say(f"part {failure.index} failed for the same reason")
        else:
            self.say(f"failed, and left out for now: {failure}")
        self.causes.add(failure.cause)


class BarWatch(Watch):
    """Moves a bar by samples. `sizes`: samples of each part; a maker's ticks are of the kind `str(index)`."""

    def __init__(self, sizes: Sequence[int], step: Callable[[int], None], say: Callable[[str], None]) -> None:
        super().__init__(say)
        self.sizes, self.step = sizes, step
        self.under_way: Counter[str] = Counter()

    def tick(self, kind: str, count: int) -> None:
        """Some samples of a part are done."""
        self.under_way[kind] += count
        self.step(count)

    def done(self, index: int) -> None:
        """A part is stored; samples that were counted twice, because it was tried twice, are taken off again."""
        super().done(index)
        self.step(self.sizes[index] - self.under_way.pop(str(index), 0))


def make_here(maker: Any, indices: Sequence[int], watch: Watch, tolerant: bool = True) -> list[Failure]:
    """Make parts in this process, one by one; returns the failures. Unless `tolerant`, the first failure is raised."""
    failures: list[Failure] = []
    row = 0
    for index in indices:
        try:
            maker.do(index, watch.tick)
        except DiskFull:
            raise
        except Exception as error:
            if not tolerant:
                raise
            failures.append(Failure.of(index, error))
            watch.failed(failures[-1])
            row += 1
            if row >= IN_A_ROW:
                break
        else:
            watch.done(index)
            row = 0
    return failures


class Hand(ABC):
    """A worker as its crew sees it: its node, known once it has started, and the part that it is making."""

    node: str | None = None
    part: int | None = None

    @abstractmethod
    def send(self, index: int) -> None:
        """Tell the worker to make a part."""

    @abstractmethod
    def end(self) -> None:
        """End the worker, dead or alive."""


H = TypeVar("H", bound=Hand)


class Crew(ABC, Generic[H]):
    """Workers, and the parts that remain.

    `tries`: attempts at a part before it is given up. `raising`: attempts at a part whose maker raised an error.
    """

    def __init__(self, indices: Sequence[int], watch: Watch, tries: int, raising: int | None = None) -> None:
        self.watch, self.tries, self.raising = watch, tries, raising or tries
        self.todo = deque(indices)
        self.hands: list[H] = []
        self.losses: list[H] = []  # workers that stopped answering, until the cause is known
        self.failures: list[Failure] = []
        self.attempts: Counter[int] = Counter()
        self.nodes_lost: Counter[int] = Counter()
        self.failed_on: dict[int, set[str]] = {}  # nodes on which a part failed
        self.row = 0  # parts given up since one was stored

    # -- steps that each kind of crew does in its own way

    @abstractmethod
    def staff(self) -> None:
        """Start workers where they are needed and there is room."""

    @abstractmethod
    def listen(self) -> None:
        """Wait for a message of any worker, and act on all messages that have come."""

    def begin(self) -> None:
        """Prepare for the first part."""

    # -- steps that all crews share

    def run(self) -> list[Failure]:
        """Make all parts; returns the parts that were given up."""
        try:
            self.begin()
            while self.busy or (self.todo and not self.hopeless):
                self.staff()
                for hand in self.hands:
                    if hand.node is not None and hand.part is None:
                        self.assign(hand)
                self.listen()
        finally:
            for hand in (*self.hands, *self.losses):
                hand.end()
        return self.failures

    @property
    def busy(self) -> int:
        """The number of workers that are making a part, or were lost with one."""
        return sum(hand.part is not None for hand in (*self.hands, *self.losses))

    @property
    def hopeless(self) -> bool:
        """Whether too many parts failed in a row to try the rest."""
        return self.row >= IN_A_ROW

    def assign(self, hand: H) -> None:
        """Give a free worker a part. A part that failed on its node waits for another node, as long as there is one."""
        if self.hopeless:
            return
        nodes = {other.node for other in self.hands if other.node is not None}
        for index in list(islice(self.todo, 1 + len(self.failed_on))):  # parts that failed are at the front
            wrong = self.failed_on.get(index, set())
            if hand.node not in wrong or nodes <= wrong:
                hand.part = index
                self.todo.remove(index)
                hand.send(index)
                return

    def answer(self, hand: H, message: Mapping[str, Any]) -> None:
        """Act on a message of a worker."""
        for kind, count in message.get("ticks", {}).items():
            self.watch.tick(kind, count)
        if "done" in message:
            hand.part = None
            self.row = 0
            self.failed_on.pop(message["done"], None)
            self.watch.done(message["done"])
        elif "failed" in message:
            hand.part = None
            failure = Failure(**message["failed"])
            if failure.kind == DiskFull.__name__:
                raise DiskFull(failure.errno, failure.message)
            self.retry(failure, hand.node)

    def retry(self, failure: Failure, node: str | None) -> None:
        """Put a part back in front of the others, or give it up. `node`: where it failed by its own fault."""
        index = failure.index
        if failure.kind == NODE_LOST:
            self.nodes_lost[index] += 1
            self.watch.say(f"a node was lost; part {index} will be made elsewhere")
        else:
            self.attempts[index] += 1
        tries = self.tries if failure.kind in (WORKER_DIED, NODE_LOST) else self.raising
        if self.attempts[index] + self.nodes_lost[index] // NODES_PER_TRY < tries:
            self.failed_on.setdefault(index, set()).update([node] if node else [])
            self.todo.appendleft(index)
            return
        self.failed_on.pop(index, None)
        times = self.attempts[index] + self.nodes_lost[index]
        if times > 1:
            failure = replace(failure, message=f"{failure.cause} (given up after {times} tries)")
        self.row += 1
        self.failures.append(failure)
        self.watch.failed(failure)


class _Process(Hand):
    """A process of `plrp.runs.work.main`, which imports nothing from the current folder."""

    node = "this machine"

    def __init__(self, work: Work, threads: int, messages: queue.SimpleQueue[Any]) -> None:
        # The worker imports the same plrp as this process. An empty entry would be the current folder.
        folders = [str(Path(__file__).resolve().parents[2]), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        path, count = os.pathsep.join(filter(None, folders)), str(threads)
        self.process = subprocess.Popen(
            [sys.executable, "-c", BEGIN],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count, "PYTHONPATH": path},
        )
        self.send({"work": asdict(work), "threads": threads})
        threading.Thread(target=self._listen, args=(messages,), daemon=True).start()

    def _listen(self, messages: queue.SimpleQueue[Any]) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            messages.put((self, json.loads(line)))
        messages.put((self, None))

    def send(self, message: Any) -> None:
        """A line on its standard input."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it died, and the listening thread will say so
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()

    def end(self) -> None:
        """Kill it, wait for its end and close its streams. The part that it was making is lost; stored parts stay."""
        with suppress(BrokenPipeError), self.process:
            self.process.kill()
            self.process.wait()

    @property
    def death(self) -> str:
        """How it ended."""
        code = self.process.returncode
        if code >= 0:
            return f"its process ended with exit code {code}"
        name = signal.Signals(-code).name
        return f"its process died ({name}{', perhaps out of memory' if name == 'SIGKILL' else ''})"


class LocalCrew(Crew[_Process]):
    """Processes on the cores of this machine, each with its own model and a number of torch threads.

    Processes with one thread each were fastest when this was measured (docs/decisions.md). A part does not depend on
    the process that makes it.
    """

    def __init__(self, work: Work, indices: Sequence[int], watch: Watch, workers: int, threads: int = 1) -> None:
        super().__init__(indices, watch, LOCAL_TRIES, raising=1)  # a part that raised an error would raise it again
        self.work, self.workers, self.threads = work, workers, threads
        self.messages: queue.SimpleQueue[tuple[_Process, dict[str, Any] | None]] = queue.SimpleQueue()

    def staff(self) -> None:
        """As many processes as asked for, but not more than parts."""
        if not self.hopeless:
            for _ in range(min(self.workers, self.busy + len(self.todo)) - len(self.hands)):
                self.hands.append(_Process(self.work, self.threads, self.messages))

    def listen(self) -> None:
        """Wait for a line of any process, or for its end."""
        hand, message = self.messages.get()
        if message is not None:
            self.answer(hand, message)
        elif hand in self.hands:
            self.hands.remove(hand)
            hand.end()
            if hand.part is not None:
                self.retry(Failure(hand.part, WORKER_DIED, hand.death), hand.node)


def cores() -> int:
    """The cores this process may use."""
    there = hasattr(os, "sched_getaffinity")  # not on macOS
    return len(os.sched_getaffinity(0)) if there else os.cpu_count() or 1
