"""The local engine: the parts of a sweep, spread over the cores of this machine.

Processes, each with one torch thread, because that was fastest where it was measured (docs/decisions.md). A part does
not depend on which process makes it, nor on how many there are.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from plrp.runs.cluster import IN_A_ROW, Failure
from plrp.runs.places import DiskFull

from .config import Config
from .measure import Bench, Rehearsal
from .networks import threads_set
from .store import Store

TRIES = 2
"""How often a part is begun whose process died, before it is given up."""


class Listener(Protocol):
    """Who is told how the work goes."""

    def rehearsed(self, found: Rehearsal) -> int:
        """Told what a first batch cost; answers with how many workers there shall be."""

    def tick(self, kind: str, count: int) -> None:
        """Some work is done, of a kind, for so many samples."""

    def done(self, index: int) -> None:
        """A part is stored."""

    def failed(self, failure: Failure) -> None:
        """A part could not be made."""


def run(
    store: Store,
    config: Config,
    indices: Sequence[int],
    listener: Listener,
    *,
    device: str = "cpu",
    threads: int = 1,
) -> list[Failure]:
    """Make parts and store them; returns those that failed.

    A first batch is tried in this process; the listener, told what it cost, says how many workers there shall be. One
    worker is this very process. A full disk stops everything; a bad sample costs its part only.
    """
    if not indices:
        return []
    with threads_set(threads):
        bench = Bench(config, store, device)
        workers = min(listener.rehearsed(bench.rehearse(indices[0])), len(indices))
        if workers <= 1 or store.place.private:
            return _here(bench, store, indices, listener)
    del bench
    return _Crew(store, indices, listener, workers, device, threads).run()


def _here(bench: Bench, store: Store, indices: Sequence[int], listener: Listener) -> list[Failure]:
    failures: list[Failure] = []
    row = 0
    for index in indices:
        try:
            store.put(bench.config, index, bench.part(index, listener.tick))
        except DiskFull:
            raise
        except Exception as error:
            failures.append(Failure(index, type(error).__name__, str(error)))
            listener.failed(failures[-1])
            row += 1
            if row >= IN_A_ROW:
                break
        else:
            listener.done(index)
            row = 0
    return failures


class _Worker:
    """A process of `plrp.experiments.worker`, and the part it is at."""

    def __init__(self, store: Store, device: str, threads: int, heard: queue.SimpleQueue[Any]) -> None:
        count = str(threads)
        command = [sys.executable, "-m", "plrp.experiments.worker", str(store)]
        self.process = subprocess.Popen(
            [*command, "--device", device, "--threads", count],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count, "PYTHONPATH": _python_path()},
        )
        self.at: int | None = None
        threading.Thread(target=self._listen, args=(heard,), daemon=True).start()

    def _listen(self, heard: queue.SimpleQueue[Any]) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            heard.put((self, json.loads(line)))
        heard.put((self, None))

    def send(self, index: int) -> None:
        """Give it a part to make."""
        assert self.process.stdin is not None
        self.at = index
        with suppress(BrokenPipeError):  # it died: the listener says so
            self.process.stdin.write(json.dumps({"part": index}) + "\n")
            self.process.stdin.flush()

    def end(self) -> None:
        """Stop at once; what it was at is lost, what it stored stays."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()


class _Crew:
    """Several workers on one list of parts."""

    def __init__(
        self, store: Store, indices: Sequence[int], listener: Listener, workers: int, device: str, threads: int
    ) -> None:
        self.store, self.listener = store, listener
        self.most, self.device, self.threads = workers, device, threads
        self.todo = deque(indices)
        self.heard: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.workers: list[_Worker] = []
        self.failures: list[Failure] = []
        self.deaths: dict[int, int] = {}
        self.row = 0

    def run(self) -> list[Failure]:
        try:
            for _ in range(self.most):
                self._next(self._hire())
            while any(worker.at is not None for worker in self.workers):
                worker, message = self.heard.get()
                self._hear(worker, message)
        finally:
            for worker in self.workers:
                worker.end()
        return self.failures

    def _hire(self) -> _Worker:
        self.workers.append(_Worker(self.store, self.device, self.threads, self.heard))
        return self.workers[-1]

    def _next(self, worker: _Worker) -> None:
        worker.at = None
        if self.todo and self.row < IN_A_ROW:
            worker.send(self.todo.popleft())

    def _hear(self, worker: _Worker, message: dict[str, Any] | None) -> None:
        if message is None:
            self._died(worker)
        elif "tick" in message:
            self.listener.tick(*message["tick"])
        elif "done" in message:
            self.row = 0
            self.listener.done(message["done"])
            self._next(worker)
        else:
            if message["kind"] == DiskFull.__name__:
                raise DiskFull(message["errno"], message["message"])
            self._fail(Failure(message["failed"], message["kind"], message["message"], message["traceback"]))
            self._next(worker)

    def _died(self, worker: _Worker) -> None:
        """A process that is gone (killed for its memory, say): its part is tried again, a few times, by another."""
        if worker not in self.workers:
            return
        self.workers.remove(worker)
        worker.end()
        if worker.at is None:
            return
        tries = self.deaths[worker.at] = self.deaths.get(worker.at, 0) + 1
        if tries < TRIES:
            self.todo.append(worker.at)
        else:
            reason = f"its process died {tries} times ({_death(worker.process)})"
            self._fail(Failure(worker.at, "WorkerDied", reason))
        if self.todo:
            self._next(self._hire())

    def _fail(self, failure: Failure) -> None:
        self.row += 1
        self.failures.append(failure)
        self.listener.failed(failure)


def _death(process: subprocess.Popen[str]) -> str:
    code = process.poll()
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        return f"{name}{', perhaps for want of memory' if name == 'SIGKILL' else ''}"
    return f"exit code {code}"


def _python_path() -> str:
    """Where this process found plrp, so that a worker finds the same."""
    root = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
