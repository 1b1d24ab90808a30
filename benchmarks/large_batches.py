"""How memory and time grow with the size of a batch: a small CNN on photographs, in a fresh process for each figure.

`whole` explains the batch at once, `default` leaves the size of its pieces to plrp. Peaks are MB above the model and
its input (Linux only); times are multiples of the forward pass in the same process.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from functools import partial

import torch
from torch import nn

import plrp
from memory import memory_in_use, status
from methods import forward
from timing import options, write

COLUMNS = ("forward", "whole", "default")


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)),
    ).eval()


def measure(column: str, size: int) -> dict[str, float]:
    """Peak MB above model and input, and time in forward passes, for a batch of so many MB."""
    model, count = network(), max(1, round(size * 1e6 / (3 * 224 * 224 * 4)))
    x = torch.randn(count, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    plrp.explain(model, x[:2])  # loads libraries and code
    explain = partial(plrp.explain, model, x, micro_batch=count if column == "whole" else None)
    begun = time.perf_counter()
    forward(model, x)
    passed = time.perf_counter() - begun
    held = memory_in_use()
    begun = time.perf_counter()
    result = forward(model, x) if column == "forward" else explain()
    taken = time.perf_counter() - begun
    del result
    return {"peak": status("VmHWM") - held, "passes": taken / passed}


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measure(sys.argv[2], int(sys.argv[3]))))
        return
    parser = options(__doc__)
    parser.add_argument("--sizes", nargs="+", type=int, help="of a batch, in MB; default: 16, 64, 256")
    args = parser.parse_args()
    rows = []
    for size in args.sizes or ([16, 64] if args.quick else [16, 64, 256]):
        row = {}
        for column in COLUMNS:
            command = [sys.executable, __file__, "--one", column, str(size)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            row[column] = json.loads(done.stdout) if done.returncode == 0 else None
        rows.append({"size": size, **row})
        cells = [f"{c['peak']:,.0f} MB, {c['passes']:.1f} ×" if (c := row[name]) else "–" for name in COLUMNS]
        print(f"| {size} MB | {' | '.join(cells)} |", flush=True)
    write(args, "large_batches", {"rows": rows})


if __name__ == "__main__":
    main()
