"""θ of both signs and the survivors of 3.2 million values, against numpy.sort of the same values alone.

Ours is all that the engine does to prune a tensor (1, 64, 224, 224): masses, θ⁺ and θ⁻, and the survivors times λ, by
their positions where they are few, else in place. Two kinds of values: every entry non-zero, of both signs and with
long tails; and the relevance that a photograph leaves in VGG-16 at that size (one sign, many zeros).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

import plrp
from plrp.fast import limits
from plrp.fast.neurons import Relevance, dense, survivors, thin
from plrp.fast.selection import statistics
from report import selection
from subjects import load, photographs
from timing import interleaved, options, progress, write

SHAPE = (1, 64, 224, 224)


def pruned(values: Tensor, p: float) -> Relevance:
    """What survives, as the engine finds it."""
    each = values.shape[1:].numel()
    stats = statistics(values, torch.arange(values.shape[0] + 1) * each, p, p)
    if bool((stats[:, 7] > limits.NEURONS_BELOW * each).all()):
        return thin(values, stats)
    return survivors(values, stats, rescale=True)


def subjects(quick: bool) -> dict[str, Tensor]:
    """The values, by what they are."""
    torch.manual_seed(0)
    found = {"both signs, no zeros": torch.randn(SHAPE) ** 3}
    if not quick:
        progress("explaining a photograph")
        layer = "features.2"  # reads (64, 224, 224)
        found["a photograph's relevance"] = (
            plrp.explain(load("vgg16"), photographs(1, 224), layers=[layer]).layers[layer].contiguous()
        )
    return found


def main() -> None:
    args = options(__doc__).parse_args()
    rows: list[dict[str, Any]] = []
    for kind, values in subjects(args.quick).items():
        flat = values.flatten().numpy()
        for p in (0.2, 0.5):
            runs = {"θ and mask": partial(pruned, values, p), "numpy.sort": partial(np.sort, flat)}
            share = int(dense(pruned(values, p)).count_nonzero()) / values.numel()
            most = args.rounds or (5 if args.quick else 15)
            rounds = interleaved(runs, f"{kind}, p = {p}", min(3, most), most, 5 if args.quick else 15)
            rows.append({"values": kind, "p": p, "survive": share, "seconds": rounds})
            write(args, "threshold", {"rows": rows})
    print("\n" + selection({"threshold": {"rows": rows}}).text())


if __name__ == "__main__":
    main()
