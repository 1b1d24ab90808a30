"""Where sparse propagation pays: explanations of one trace with the switch at several shares, and in stacks.

    python benchmarks/switch.py --model resnet50

`limits.NEURONS_BELOW` is the share of a layer's outputs up to which neurons are propagated one by one instead of
convolving; the columns are trial values of it. Below, twenty values of p in stacks of so many samples
(`limits.STACKED_SAMPLES`; 1: one by one), batches in which every sample goes its own way, or all go the way of the
fullest, and W⁺ remembered or made anew. Everything as multiples of the forward pass, medians of interleaved rounds.
Not part of `make bench`: it is how the constants were chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import plrp
from methods import forward
from plrp.fast import fast_walk as walking
from plrp.fast import limits, weight_cache
from plrp.fast.neurons import Relevance
from plrp.fast.propagation import Few, neurons_of
from report import FORWARD
from subjects import load, photographs
from timing import interleaved, options, ratio

SHARES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.5)
SWITCHES = (0.01, 0.03, 0.06, 0.1, 0.15, 0.3)
STACKS = (1, 4, 8, 16, 32)


def explain(trace: plrp.Trace, p: float, switch: float) -> None:
    """One explanation with the switch at another share."""
    limits.NEURONS_BELOW = switch
    trace.explain(pruning=plrp.Pruning(p))


def sweep(trace: plrp.Trace, size: int) -> None:
    """Twenty values of p in stacks of so many samples."""
    limits.STACKED_SAMPLES, limits.STACKED_BYTES = size, 1
    for _ in trace.sweep([plrp.Pruning(n / 20) for n in range(20)]):
        pass


def as_the_fullest(relevance: Relevance) -> Few | None:
    """Neuron by neuron only where every sample of the batch has few."""
    few = neurons_of(relevance)
    return None if few is None or few.others is not None else few


def explain_batch(model: nn.Module, x: Tensor, p: float, decide: Callable[[Relevance], Few | None]) -> None:
    """One explanation of a batch, with a decision of its own at every layer."""
    walking.neurons_of = decide  # type: ignore[attr-defined]
    plrp.explain(model, x, pruning=plrp.Pruning(p))


def samples(args: Any, model: nn.Module, most: int) -> None:
    """Batches of eight photographs, and of seven and one of noise."""
    photos = photographs(8, 224)
    noisy = torch.cat([photos[:7], torch.randn(1, *photos.shape[1:], generator=torch.Generator().manual_seed(0))])
    ways = {"own way": neurons_of, "as the fullest": as_the_fullest}
    for name, x in (("8 photographs", photos), ("7 and noise", noisy)):
        runs: dict[str, Any] = {
            f"{p} {way}": partial(explain_batch, model, x, p, decide)
            for p in (0.0, 0.1, 0.2, 0.5)
            for way, decide in ways.items()
        }
        runs[FORWARD] = partial(forward, model, x)
        rounds = interleaved(runs, f"{args.model}: {name}", min(3, most), most, 200)
        print(f"\n{name:<15}" + " ".join(f"{way:>14}" for way in ways))
        for p in (0.0, 0.1, 0.2, 0.5):
            print(f"p = {p:<11}" + " ".join(f"{ratio(rounds, f'{p} {way}', FORWARD):14.2f}" for way in ways))


def weights(args: Any, model: nn.Module, x: Tensor, most: int) -> None:
    """W⁺ remembered from the explanation before, or made anew."""

    def anew(pruning: plrp.Pruning | None) -> None:
        weight_cache.clear()
        plrp.explain(model, x, pruning=pruning)

    prunings = {"LRP": None, "λ 0.2": plrp.Pruning(0.2), "λ 0.5": plrp.Pruning(0.5)}
    runs: dict[str, Any] = {f"{name} kept": partial(plrp.explain, model, x, pruning=p) for name, p in prunings.items()}
    runs |= {f"{name} anew": partial(anew, p) for name, p in prunings.items()}
    runs[FORWARD] = partial(forward, model, x)
    print(f"\n{'W⁺':<10}{'kept':>8}{'anew':>8}")
    for name in prunings:
        mine = {key: run for key, run in runs.items() if key.startswith((name, FORWARD))}
        rounds = interleaved(mine, f"{args.model}: weights, {name}", min(3, most), most, 60)
        print(f"{name:<10}" + "".join(f"{ratio(rounds, f'{name} {how}', FORWARD):8.2f}" for how in ("kept", "anew")))


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--samples", action="store_true", help="own ways alone")
    parser.add_argument("--weights", action="store_true", help="kept weights alone")
    args = parser.parse_args()
    model, x = load(args.model), photographs(args.batch, 224)
    most = args.rounds or (3 if args.quick else 9)
    if args.samples or args.weights:
        if args.samples:
            samples(args, model, most)
        if args.weights:
            weights(args, model, x, most)
        return
    trace, usual = plrp.trace(model, x), limits.NEURONS_BELOW
    runs = {f"{p} {s}": partial(explain, trace, p, s) for p in SHARES for s in SWITCHES}
    runs[FORWARD] = partial(forward, model, x)
    rounds = interleaved(runs, f"{args.model}: switch", min(3, most), most, 200)
    print(f"\n{'p':>5} " + " ".join(f"{s:>6}" for s in SWITCHES))
    for p in SHARES:
        print(f"{p:>5} " + " ".join(f"{ratio(rounds, f'{p} {s}', FORWARD):6.2f}" for s in SWITCHES))
    limits.NEURONS_BELOW = usual
    runs = {str(size): partial(sweep, trace, size) for size in STACKS}
    runs[FORWARD] = partial(forward, model, x)
    rounds = interleaved(runs, f"{args.model}: stacks", min(3, most), most, 100)
    print("\nstack " + " ".join(f"{size:>6}" for size in STACKS))
    print("      " + " ".join(f"{ratio(rounds, str(size), FORWARD):6.2f}" for size in STACKS))
    samples(args, model, most)
    weights(args, model, x, most)


if __name__ == "__main__":
    main()
