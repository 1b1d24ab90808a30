"""How much `import plrp`, used, adds to `import torch`: the median over fresh processes, each timing both.

python benchmarks/import_time.py [RUNS]
"""

from __future__ import annotations

import statistics
import subprocess
import sys

TIMED = """
import time
start = time.perf_counter()
import torch
between = time.perf_counter()
import plrp
plrp.explain  # loaded when it is first used
print(between - start, time.perf_counter() - between)
"""


def main(runs: int = 9) -> None:
    seconds = []
    for _ in range(runs + 1):
        printed = subprocess.run([sys.executable, "-c", TIMED], check=True, capture_output=True, text=True).stdout
        seconds.append([float(word) for word in printed.split()])
    of_torch, of_plrp = zip(*seconds[1:], strict=True)  # the first run fills the file cache
    ratio = statistics.median(p / t for t, p in zip(of_torch, of_plrp, strict=True))
    print(f"import torch: {statistics.median(of_torch):.2f} s")
    print(f"import plrp after it: {statistics.median(of_plrp):.3f} s")
    print(f"import plrp adds {ratio:.1%} of the time of import torch (median of {runs} processes)")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
