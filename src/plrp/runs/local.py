"""Workers on the cores of this machine: processes, each with its own model and as many torch threads as it is given.

Processes with one thread each, because that was fastest where it was measured (docs/decisions.md).
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from .crew import Crew, Hand, Watch
from .parts import WORKER_DIED, Failure, Work

BEGIN = "import sys; sys.path[:] = filter(None, sys.path); from plrp.runs.worker import main; main()"
"""A worker's program. `python -m` would import whatever lies in the current folder in place of an installed module."""

TRIES = 2
"""Attempts at a part whose process died. One that raised an error would raise it again, and is given up at once."""


class _Process(Hand):
    """A process of `plrp.runs.worker`, which imports nothing from the current folder."""

    node = "this machine"

    def __init__(self, work: Work, threads: int, heard: queue.SimpleQueue[Any]) -> None:
        count = str(threads)
        self.process = subprocess.Popen(
            [sys.executable, "-c", BEGIN],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count, "PYTHONPATH": _python_path()},
        )
        self.write({"work": {"maker": work.maker, "options": dict(work.options)}, "threads": threads})
        threading.Thread(target=self._listen, args=(heard,), daemon=True).start()

    def _listen(self, heard: queue.SimpleQueue[Any]) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            heard.put((self, json.loads(line)))
        heard.put((self, None))

    def write(self, message: Any) -> None:
        """Send a line."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it died, which the thread that listens will say
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()

    def end(self) -> None:
        """Stop at once; what it was making is lost, what it stored stays."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()

    @property
    def death(self) -> str:
        """How it ended."""
        code = self.process.poll()
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            return f"its process died ({name}{', perhaps out of memory' if name == 'SIGKILL' else ''})"
        return f"its process ended with exit code {code}"


class LocalCrew(Crew[_Process]):
    """Several processes on one list of parts. A part does not depend on which process makes it."""

    def __init__(self, work: Work, indices: Sequence[int], watch: Watch, workers: int, threads: int = 1) -> None:
        super().__init__(indices, watch, TRIES)
        self.work, self.workers, self.threads = work, workers, threads
        self.heard: queue.SimpleQueue[tuple[_Process, dict[str, Any] | None]] = queue.SimpleQueue()

    def tries_for(self, failure: Failure) -> int:
        """Only deaths may have had another cause than the part."""
        return TRIES if failure.kind == WORKER_DIED else 1

    def staff(self) -> None:
        """As many processes as asked for, and no more than parts."""
        if not self.hopeless:
            for _ in range(min(self.workers, self.busy + len(self.todo)) - len(self.hands)):
                self.hands.append(_Process(self.work, self.threads, self.heard))

    def send(self, hand: _Process, index: int) -> None:
        """A line on its standard input."""
        hand.write(index)

    def listen(self) -> None:
        """Wait for a line of any process, or its end."""
        hand, message = self.heard.get()
        if message is not None:
            self.answer(hand, message)
        elif hand in self.hands:
            self.dismiss(hand)
            if hand.part is not None:
                self.retry(Failure(hand.part, WORKER_DIED, hand.death), hand.node)

    def dismiss(self, hand: _Process) -> None:
        """Kill it and wait for its end."""
        self.hands.remove(hand)
        hand.end()


def cores() -> int:
    """The cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1


def _python_path() -> str:
    """Where this process found plrp, so that a worker finds the same."""
    root = str(Path(__file__).resolve().parents[2])
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join(filter(None, [root, *folders]))  # an empty entry is the current folder
