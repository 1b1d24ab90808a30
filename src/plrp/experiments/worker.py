"""A process that measures parts: `python -m plrp.experiments.worker RUN`, started by the local engine.

It reads one JSON line per task from standard input and answers with JSON lines on standard output. It is told where the
run is and which part to do; config, model and data it finds itself, and keeps. When its input ends, whatever ended the
process that started it, it ends too.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, TextIO


def main() -> None:
    """Serve tasks until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m plrp.experiments.worker", description=__doc__)
    parser.add_argument("run", help="the run's folder")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started us
    # Answers go where standard output led; what a user's model prints must not get among them.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    tasks: queue.SimpleQueue[int] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin, tasks), daemon=True).start()

    import torch

    torch.set_num_threads(options.threads)
    from plrp.runs.places import DiskFull

    from .measure import Bench
    from .store import Store

    store = Store(options.run)
    bench: Bench | None = None
    while True:
        index = tasks.get()
        try:
            if bench is None:
                bench = Bench(store.config(), store, options.device)
            store.put(bench.config, index, bench.part(index, _ticker(answers)))
            _say(answers, {"done": index})
        except Exception as error:
            _say(
                answers,
                {
                    "failed": index,
                    "kind": type(error).__name__,
                    "message": error.strerror if isinstance(error, DiskFull) else str(error),
                    "errno": error.errno if isinstance(error, OSError) else None,
                    "traceback": traceback.format_exc(),
                },
            )


def _listen(source: TextIO, tasks: queue.SimpleQueue[int]) -> None:
    for line in source:
        tasks.put(json.loads(line)["part"])
    os._exit(0)  # at once: nobody waits for the part under way


def _ticker(answers: TextIO) -> Callable[[str, int], None]:
    return lambda kind, count: _say(answers, {"tick": [kind, count]})


def _say(answers: TextIO, message: dict[str, Any]) -> None:
    try:
        answers.write(json.dumps(message) + "\n")
        answers.flush()
    except (BrokenPipeError, ValueError):
        os._exit(1)


if __name__ == "__main__":
    main()
