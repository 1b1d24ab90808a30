"""Twenty values of p at once: `Trace.sweep` on ResNet-50 against twenty runs of Zennit's plain LRP.

Each round times the whole sweep (recording the forward pass included), one run of Zennit and one forward pass, in a
random order. Twenty runs of Zennit are taken to cost twenty times the one: it keeps nothing between runs.
"""

from __future__ import annotations

from functools import partial

import torch

import plrp
from methods import FORWARD, forward, zennit
from subjects import load, photographs
from timing import interleaved, options, ratio, write

SHARES = [n / 20 for n in range(20)]  # 0, 0.05, …, 0.95


def sweep(model: torch.nn.Module, x: torch.Tensor) -> int:
    """All twenty explanations, one at a time in memory; returns how many there were."""
    found = plrp.trace(model, x)
    return sum(1 for _ in found.sweep([plrp.Pruning(p) for p in SHARES]))


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--batches", nargs="+", type=int, default=[1])
    args = parser.parse_args()
    model, rows = load(args.model), []
    for batch in args.batches:
        x = photographs(batch, 224)
        runs = {"sweep": partial(sweep, model, x), "Zennit": partial(zennit, model, x)}
        runs[FORWARD] = partial(forward, model, x)
        for name in ("Zennit", FORWARD):
            runs[name]()
        assert sweep(model, x) == len(SHARES)
        most, budget = args.rounds or (2 if args.quick else 7), 15 if args.quick else 60
        rounds = interleaved(runs, f"sweep, {args.model}, batch {batch}", min(3, most), most, budget)
        factor = len(SHARES) * ratio(rounds, "Zennit", "sweep")
        cost = ratio(rounds, "sweep", FORWARD)
        rows.append({"model": args.model, "batch": batch, "forward passes": cost, "factor": factor})
        print(f"{len(SHARES)} values of p on {args.model}, batch {batch}: {cost:.1f} forward passes, ", end="")
        print(f"{cost / len(SHARES):.2f} each; {factor:.1f} × faster than {len(SHARES)} runs of Zennit (one, times 20)")
    write(args.out, "lambda_sweep", {"rows": rows})


if __name__ == "__main__":
    main()
