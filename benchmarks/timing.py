"""Interleaved timing: every method runs once per round, in a random order, and is compared within its round.

Seconds mean nothing on a shared machine, ratios of neighbours do. Results are medians over the rounds.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import random
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Rounds = list[dict[str, float]]  # seconds by name, one mapping per round


class Progress:
    """What is running now: one line, rewritten on a terminal; elsewhere a new line at most every ten seconds."""

    def __init__(self) -> None:
        self.last, self.shown = 0.0, False

    def __call__(self, text: str) -> None:
        now = time.perf_counter()
        if sys.stdout.isatty():
            print(f"\r\033[K  {text}", end="", flush=True)
            self.shown = True
        elif now - self.last > 10:
            self.last = now
            print(f"  {text}", flush=True)

    def clear(self) -> None:
        """Leave the line for others."""
        if self.shown:
            print("\r\033[K", end="", flush=True)
            self.shown = False


progress = Progress()


Clock = Callable[[], float]


def seconds(run: Callable[[], Any], clock: Clock = time.perf_counter) -> float:
    """How long one call takes, what it returns freed within that time as it would be in a loop."""
    start = clock()
    run()
    return clock() - start


def interleaved(
    runs: Mapping[str, Callable[[], Any]], label: str, least: int = 3, most: int = 7, budget: float = 60.0,
    clock: Clock = time.perf_counter,
) -> Rounds:  # fmt: skip
    """Rounds of every run in a random order: `least` of them, then more while the budget (seconds) lasts."""
    began, found = time.perf_counter(), Rounds()
    while len(found) < most:
        spent = time.perf_counter() - began
        if len(found) >= least and spent * (len(found) + 1) / len(found) > budget:
            break
        this: dict[str, float] = {}
        for name in random.sample(list(runs), len(runs)):
            spent = time.perf_counter() - began
            progress(f"{label}: round {len(found) + 1} of {least} to {most}, {name}, {spent:.0f} s")
            this[name] = seconds(runs[name], clock)
        found.append(this)
    progress.clear()
    print(f"  {label}: {len(found)} rounds, {time.perf_counter() - began:.0f} s", flush=True)
    return found


def quotients(rounds: Rounds, name: str, to: str) -> list[float]:
    """One time divided by another of the same round, for every round; empty where either was not measured."""
    return [r[name] / r[to] for r in rounds if name in r and to in r]


def ratio(rounds: Rounds, name: str, to: str) -> float | None:
    """The median of these quotients; None where there is none."""
    found = quotients(rounds, name, to)
    return statistics.median(found) if found else None


# --- the parts of `make bench` ----------------------------------------------------------------------------------------


def options(doc: str | None) -> argparse.ArgumentParser:
    """What all parts understand."""
    warnings.filterwarnings("ignore")
    random.seed(0)
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the short version")
    parser.add_argument("--out", type=Path, default=Path("bench"), help="folder for the results (default: bench)")
    parser.add_argument("--rounds", type=int, help="at most this many rounds")
    return parser


def before(args: argparse.Namespace, part: str) -> dict[str, Any]:
    """What the output folder holds of a part, if rounds are to be added to it (`--add`)."""
    kept = args.out / f"{part}.json"
    return json.loads(kept.read_text(encoding="utf-8")) if args.add and kept.exists() else {}


def write(args: argparse.Namespace, part: str, content: dict[str, Any]) -> None:
    """Keep what a part has measured so far as JSON, with what it was measured on."""
    args.out.mkdir(parents=True, exist_ok=True)
    found = {"quick": args.quick, "machine": machine(), **content}
    (args.out / f"{part}.json").write_text(json.dumps(found, indent=1, ensure_ascii=False), encoding="utf-8")


def machine() -> dict[str, Any]:
    """What the times depend on, beside the code."""
    import torch

    from plrp import engine

    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "processor": processor(),
        "torch": torch.__version__,
        "compiled loops": engine.status(),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
    }


def processor() -> str:
    """The processor's name, as the system calls it."""
    cpus = Path("/proc/cpuinfo")
    lines = cpus.read_text().splitlines() if cpus.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()
