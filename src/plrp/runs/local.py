"""Workers on the cores of this machine: processes, each with its own model and a number of torch threads.

Processes with one thread each were fastest when this was measured (docs/decisions.md).
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
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .crew import Crew, Hand, Watch
from .work import WORKER_DIED, Failure, Work

# The program of a worker. `python -m` would prefer files of the current folder to installed modules.
BEGIN = "import sys; sys.path[:] = filter(None, sys.path); from plrp.runs.work import main; main()"
TRIES = 2  # attempts at a part whose process died, perhaps by another cause than the part


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
    """Several processes on one list of parts. A part does not depend on the process that makes it."""

    def __init__(self, work: Work, indices: Sequence[int], watch: Watch, workers: int, threads: int = 1) -> None:
        super().__init__(indices, watch, TRIES, raising=1)  # a part that raised an error would raise it again
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
