"""Where following single neurons pays: explanations of one trace with the switch at several shares, and in stacks.

    python benchmarks/switch.py --model resnet50

`following.NEURONS_BELOW` is the share of a layer's outputs up to which neurons are followed instead of convolving; the
columns are trial values of it. Below, twenty values of p in stacks of so many samples (`stacking.MOST`; 1: one by one).
Everything as multiples of the forward pass, medians of interleaved rounds. Not part of `make bench`: it is how the
constants were chosen.
"""

from __future__ import annotations

from functools import partial

import plrp
from methods import FORWARD, forward
from plrp import following, pruning, stacking
from subjects import load, photographs
from timing import interleaved, options, ratio

SHARES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.5)
SWITCHES = (0.01, 0.03, 0.06, 0.1, 0.15, 0.3)
STACKS = (1, 4, 8, 16, 32)


def explain(trace: plrp.Trace, p: float, switch: float) -> None:
    """One explanation with the switch at another share."""
    following.NEURONS_BELOW = pruning.NEURONS_BELOW = switch  # type: ignore[attr-defined]
    trace.explain(pruning=plrp.Pruning(p))


def sweep(trace: plrp.Trace, size: int) -> None:
    """Twenty values of p in stacks of so many samples."""
    stacking.MOST = size
    for _ in trace.sweep([plrp.Pruning(n / 20) for n in range(20)]):
        pass


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--batch", type=int, default=1)
    args = parser.parse_args()
    model, x = load(args.model), photographs(args.batch, 224)
    trace, usual = plrp.trace(model, x), following.NEURONS_BELOW
    runs = {f"{p} {s}": partial(explain, trace, p, s) for p in SHARES for s in SWITCHES}
    runs[FORWARD] = partial(forward, model, x)
    most = args.rounds or (3 if args.quick else 9)
    rounds = interleaved(runs, f"{args.model}: switch", min(3, most), most, 200)
    print(f"\n{'p':>5} " + " ".join(f"{s:>6}" for s in SWITCHES))
    for p in SHARES:
        print(f"{p:>5} " + " ".join(f"{ratio(rounds, f'{p} {s}', FORWARD):6.2f}" for s in SWITCHES))
    following.NEURONS_BELOW = pruning.NEURONS_BELOW = usual  # type: ignore[attr-defined]
    runs = {str(size): partial(sweep, trace, size) for size in STACKS}
    runs[FORWARD] = partial(forward, model, x)
    rounds = interleaved(runs, f"{args.model}: stacks", min(3, most), most, 100)
    print("\nstack " + " ".join(f"{size:>6}" for size in STACKS))
    print("      " + " ".join(f"{ratio(rounds, str(size), FORWARD):6.2f}" for size in STACKS))


if __name__ == "__main__":
    main()
