"""Twenty values of p at once: `Trace.sweep` on ResNet-50 against twenty runs of Zennit's plain LRP.

Each round times the whole sweep (recording the forward pass included), one run of Zennit and one forward pass, in a
random order. Twenty runs of Zennit are taken to cost twenty times the one: it keeps nothing between runs.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch

import plrp
from methods import forward, zennit
from report import FORWARD, many
from subjects import load, photographs
from timing import interleaved, options, progress, write

SHARES = [n / 20 for n in range(20)]  # 0, 0.05, …, 0.95


def sweep(model: torch.nn.Module, x: torch.Tensor) -> None:
    """All twenty explanations, one at a time in memory."""
    count = sum(1 for _ in plrp.trace(model, x).sweep([plrp.Pruning(p) for p in SHARES]))
    assert count == len(SHARES)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--batches", nargs="+", type=int, default=[1])
    args = parser.parse_args()
    progress(f"loading {args.model}")
    model = load(args.model)
    spare, rows = copy.deepcopy(model), list[dict[str, Any]]()
    for batch in args.batches:
        x = photographs(batch, 224)
        runs = {"sweep": partial(sweep, model, x), "Zennit": partial(zennit, spare, x)}
        runs[FORWARD] = partial(forward, model, x)
        for name, run in runs.items():
            progress(f"trying {name}")
            run()
        most, budget = args.rounds or (2 if args.quick else 7), 15 if args.quick else 60
        rounds = interleaved(runs, f"sweep, {args.model}, batch {batch}", min(3, most), most, budget)
        rows.append({"model": args.model, "batch": batch, "count": len(SHARES), "seconds": rounds})
        write(args, "lambda_sweep", {"rows": rows})
    print("\n" + many({"lambda_sweep": {"rows": rows}}).text())


if __name__ == "__main__":
    main()
