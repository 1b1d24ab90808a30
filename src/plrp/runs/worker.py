"""A worker makes parts, one after the other: as a process that `local.py` starts, or as an actor of Ray.

A process reads JSON lines from standard input, first its work, then one part per line, and answers with JSON lines on
standard output. It loads model and data itself, once. When its input ends, because the process that started it has
ended, it ends too.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from typing import Any, TextIO

from .work import Failure, Work

WORD = 1.0
"""Seconds between two messages of a worker about its progress."""


class Worker:
    """Makes parts; loads model and data with the first part."""

    def __init__(self, work: Mapping[str, Any], threads: int) -> None:
        self.work, self.threads = Work(**work), threads
        self.maker: Any = None
        # One thread does all the work; the caller's thread passes its progress on.
        self.thread = ThreadPoolExecutor(1)

    def device(self) -> str:
        """The device for work that names none."""
        return "cpu"

    def make(self, index: int) -> Iterator[dict[str, Any]]:
        """Make a part. Messages: its progress now and then (`ticks`), in the end that it is `done` or has `failed`."""
        ticks: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
        outcome: Future[None] = self.thread.submit(lambda: self._loaded().do(index, lambda *tick: ticks.put(tick)))
        finished = threading.Event()
        outcome.add_done_callback(lambda _: finished.set())
        while not finished.wait(WORD):
            if counted := _counted(ticks):
                yield {"ticks": counted}
        error = outcome.exception()
        if error is None:
            yield {"ticks": _counted(ticks), "done": index}
        else:
            yield {"failed": asdict(Failure.of(index, error))}

    def rehearse(self, index: int) -> dict[str, Any]:
        """The cost of a first piece of a part; empty where the maker cannot tell."""
        return self.thread.submit(lambda: getattr(self._loaded(), "rehearse", lambda index: {})(index)).result()

    def _loaded(self) -> Any:
        if self.maker is None:
            import torch

            torch.set_num_threads(self.threads)
            self.maker = self.work.begin(self.device())
        return self.maker


def _counted(ticks: queue.SimpleQueue[tuple[str, int]]) -> dict[str, int]:
    counted: Counter[str] = Counter()
    with suppress(queue.Empty):
        while True:
            kind, count = ticks.get_nowait()
            counted[kind] += count
    return dict(counted)


def main() -> None:
    """Make parts until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    # Answers go to standard output; prints of a user's model, which must not mix with them, go to standard error.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    worker = Worker(**json.loads(sys.stdin.readline()))
    parts: queue.SimpleQueue[int] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(sys.stdin, parts), daemon=True).start()
    while True:
        for message in worker.make(parts.get()):
            try:
                answers.write(json.dumps(message) + "\n")
            except (BrokenPipeError, ValueError):
                os._exit(1)


def _read(source: TextIO, parts: queue.SimpleQueue[int]) -> None:
    for line in source:
        parts.put(json.loads(line))
    os._exit(0)  # at once: no process waits for the part under way
