"""A 1D CNN on 10,000 sequences of 250 bases: plrp against Zennit, same network, same composite (epsilon-plus).

Each side runs at the batch size at which it is fastest on a part of the sequences. That both compute the same relevance
is checked first. The network is `plrp.genomics.SequenceCNN` with random weights, as is the DNA.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import plrp
from methods import by_zennit, forward, ours
from plrp.genomics import SequenceCNN
from report import FORWARD, many
from subjects import calibrate
from timing import interleaved, options, progress, seconds, write

BATCHES = (64, 128, 256, 512)


def zennit(model: nn.Module, x: Tensor) -> Tensor:
    """Zennit's EpsilonPlus, BatchNorms merged."""
    from zennit.canonizers import NamedMergeBatchNorm
    from zennit.composites import EpsilonPlus

    merge = NamedMergeBatchNorm([(["conv1"], "norm1"), (["conv2"], "norm2")])
    return by_zennit(model, x, EpsilonPlus(canonizers=[merge]))


Side = Callable[[nn.Module, Tensor], Any]
SIDES: dict[str, Side] = {
    "plrp LRP": lambda model, x: ours(None, "epsilon-plus")(model, x)(),
    "plrp λ 0.2": lambda model, x: ours(plrp.Pruning(0.2), "epsilon-plus")(model, x)(),
    "Zennit": zennit,
    FORWARD: forward,
}


def one_hot(count: int, length: int = 250) -> Tensor:
    """Random DNA, (count, 4, length)."""
    bases = torch.randint(4, (count, length), generator=torch.Generator().manual_seed(0))
    return nn.functional.one_hot(bases, 4).transpose(1, 2).float().contiguous()


def all_of(side: Side, model: nn.Module, x: Tensor, batch: int) -> None:
    for piece in x.split(batch):
        side(model, piece)


def best_batch(name: str, side: Side, model: nn.Module, x: Tensor) -> int:
    """The batch size at which a side is fastest, best of two tries each."""
    progress(f"looking for the best batch size of {name}")
    all_of(side, model, x[: BATCHES[0]], BATCHES[0])
    return min(BATCHES, key=lambda n: min(seconds(lambda: all_of(side, model, x, n)) for _ in range(2)))


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--filters", type=int, default=32)
    parser.add_argument("--count", type=int, help="sequences (default: 10,000; quick: 2,000)")
    args = parser.parse_args()
    count = args.count or (2000 if args.quick else 10_000)
    torch.manual_seed(0)
    model, x = SequenceCNN(args.filters), one_hot(count)
    calibrate(model, x[:512])
    model.eval()
    few = x[:32]
    models = {name: copy.deepcopy(model) if name == "Zennit" else model for name in SIDES}
    mine, theirs = SIDES["plrp LRP"](model, few), zennit(models["Zennit"], few)
    difference = float((mine - theirs).abs().max() / theirs.abs().max())
    trial = x[: 512 if args.quick else 2048]
    batches = {name: best_batch(name, side, models[name], trial) for name, side in SIDES.items()}
    runs = {name: partial(all_of, side, models[name], x, batches[name]) for name, side in SIDES.items()}
    most, budget = args.rounds or (3 if args.quick else 7), 12 if args.quick else 90
    rounds = interleaved(runs, f"{count} sequences", min(3, most), most, budget)
    found = {"count": count, "filters": args.filters, "difference": difference, "batches": batches, "seconds": rounds}
    write(args, "sequences", found)
    print("\n" + many({"sequences": found}).text())


if __name__ == "__main__":
    main()
