"""Interleaved timing: every method runs once per round, in a random order, and is compared within its round.

Seconds mean nothing on a shared machine, ratios of neighbours do. Results are medians over the rounds.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

Rounds = list[dict[str, float]]  # seconds by name, one mapping per round


def seconds(run: Callable[[], Any]) -> float:
    """How long one call takes, what it returns freed within that time as it would be in a loop."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def interleaved(
    runs: Mapping[str, Callable[[], Any]], label: str, least: int = 3, most: int = 7, budget: float = 60.0
) -> Rounds:
    """Rounds of every run in a random order: `least` of them, then more while the budget (seconds) lasts."""
    began, found = time.perf_counter(), Rounds()
    while len(found) < most:
        spent = time.perf_counter() - began
        if len(found) >= least and spent * (len(found) + 1) / len(found) > budget:
            break
        found.append({name: seconds(runs[name]) for name in random.sample(list(runs), len(runs))})
        spent = time.perf_counter() - began
        print(f"  {label}: round {len(found)} of {least} to {most}, {spent:.0f} s", flush=True)
    return found


def ratio(rounds: Rounds, name: str, to: str) -> float:
    """Median over the rounds of one time divided by another of the same round."""
    return statistics.median(r[name] / r[to] for r in rounds)


def spread(rounds: Rounds, name: str, to: str) -> tuple[float, float]:
    """The smallest and the largest of these quotients."""
    all_of_them = [r[name] / r[to] for r in rounds]
    return min(all_of_them), max(all_of_them)


# --- the parts of `make bench` ----------------------------------------------------------------------------------------


def options(doc: str | None) -> argparse.ArgumentParser:
    """What all parts understand."""
    warnings.filterwarnings("ignore")
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the short version")
    parser.add_argument("--out", type=Path, default=Path("bench"), help="folder for the results (default: bench)")
    parser.add_argument("--rounds", type=int, help="at most this many rounds")
    return parser


def write(out: Path, part: str, content: dict[str, Any]) -> None:
    """Keep a part's results as JSON, with what they were measured on."""
    out.mkdir(parents=True, exist_ok=True)
    machine = {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
    }
    (out / f"{part}.json").write_text(json.dumps({"machine": machine, **content}, indent=1, ensure_ascii=False))
    print(f"written to {out / part}.json", flush=True)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns for a terminal: the first to the left, the others to the right."""
    widths = [max(len(line[i]) for line in [header, *rows]) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        return "  ".join(c.rjust(w) if i else c.ljust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True)))

    return "\n".join(line(cells).rstrip() for cells in [header, ["─" * w for w in widths], *rows])


def number(value: Any, digits: int = 2) -> str:
    """A measured number; a dash where there is none."""
    return f"{value:.{digits}f}" if isinstance(value, float | int) else "–"
