"""How far relevance grows, and how much of the score arrives, on real networks: where the bound of `plrp.balance` lies.

    python benchmarks/balance.py --photos 4
    python benchmarks/balance.py --networks resnet50 --composites epsilon-plus-flat --methods LRP --photos 20

ResNet-50 and VGG-16 with real weights on photographs (`PLRP_DATA`, else `../shared/data` from the project's root), a
splice-site network of 24 convolutions and skips on the human HBB gene, and networks with random weights. One line per
network, composite, target and method: the range over the samples of

- grown: the largest factor by which pruning multiplied Σ|R| of a tensor;
- on the way, at the input: the largest Σ|R|, and that of the input, over |score|;
- reached, to biases, to ε: shares of the score;
- how many samples have broken arithmetic.

`--cost` measures instead what judging every explanation costs: its share of an explanation, within each of them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn

import plrp
from plrp.balance import unwarned
from plrp.fast.fast_walk import FastWalk
from subjects import calibrate, load, photographs, shared_data

METHODS: dict[str, plrp.Pruning | None] = {
    "LRP": None,
    **{f"λ {p:g}": plrp.Pruning(p) for p in (0.15, 0.5)},
    **{f"M {p:g}": plrp.Pruning(p, redistribution="M") for p in (0.05, 0.3)},
    "M± 0.3": plrp.Pruning(0.3, redistribution="M-sign"),
}
COMPOSITES = ("epsilon-plus-flat", "epsilon-gamma-box", "epsilon-alpha2-beta1-flat", "epsilon")
NETWORKS = ("resnet50", "vgg16_gap", "splice", "resnet18", "mobilenet_v2", "efficientnet_b0")
SITES = [(1, 272), (1, 1345), (2, 494), (2, 141), (0, 700), (1, 700)]  # of HBB: acceptors, donors, and neither


class Unit(nn.Module):
    """x + conv2(f(bn2(conv1(f(bn1(x)))))), f = LeakyReLU(0.1), of the splice-site network."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.batchnorm1, self.batchnorm2 = nn.BatchNorm1d(32), nn.BatchNorm1d(32)
        self.conv1, self.conv2 = (nn.Conv1d(32, 32, width, dilation=dilation, padding="same") for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(F.leaky_relu(self.batchnorm1(x), 0.1))
        return x + self.conv2(F.leaky_relu(self.batchnorm2(h), 0.1))


class Skip(nn.Module):
    """What the skip sum takes of a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(32, 32, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


class SpliceNetwork(nn.Module):
    """Twelve residual units with a skip sum, 1,000 bases of context on each side: (batch, 3, length)."""

    def __init__(self) -> None:
        super().__init__()
        self.initial_conv, self.initial_skip = nn.Conv1d(4, 32, 1), Skip()
        groups = [
            [*(Unit(width, dilation) for _ in range(4)), Skip()] for width, dilation in ((11, 1), (11, 4), (21, 10))
        ]
        self.residual_units = nn.ModuleList([unit for group in groups for unit in group])
        self.final_conv = nn.Conv1d(32, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.initial_conv(x)
        y = self.initial_skip(x)
        for unit in self.residual_units:
            if isinstance(unit, Skip):
                y = y + unit(x)
            else:
                x = unit(x)
        return self.final_conv(y[..., 1000:-1000])


def subject(name: str, photos: int) -> tuple[nn.Module, Tensor]:
    """A network and its inputs."""
    data = shared_data()
    if name == "splice":
        assert data is not None, "the splice-site network needs the real data"
        model: nn.Module = SpliceNetwork()
        model.load_state_dict(
            torch.load(data / "splice" / "openspliceai_2000nt.pth", map_location="cpu", weights_only=True)
        )
        lines = (data / "splice" / "hbb.fa").read_text().splitlines()
        letters = torch.tensor(["ACGT".index(c) for line in lines if line[0] != ">" for c in line.strip().upper()])
        return model.eval(), F.pad(F.one_hot(letters, 4).T[None].float(), (1000, 1000))
    x = photographs(photos, 224)
    if name == "vgg16_gap" and data is not None:
        model = torchvision.models.vgg16()
        model.avgpool, model.classifier = nn.AdaptiveAvgPool2d(1), nn.Linear(512, 1000)
        state = torch.load(data / "weights" / "vgg16_gap.pth", weights_only=True)
        model.load_state_dict({key: value.float() for key, value in state.items()})
        return model.eval(), x
    if name == "resnet50":
        return load(name), x
    torch.manual_seed(0)  # random weights: as torch makes them, or with BatchNorms that have seen photographs
    kind, _, calibrated = name.partition(":")
    model = getattr(torchvision.models, kind)(weights=None)
    if calibrated:
        calibrate(model, x[:2])
    return model.eval(), x


def targets(name: str, batch: int) -> Iterator[tuple[str, object]]:
    """What is explained: winners and some other class, or sites of a gene."""
    if name == "splice":
        yield from ((f"{site}", site) for site in SITES)
        return
    yield "winner", None
    yield "another", [(137 * n + 3) % 1000 for n in range(batch)]


def spread(values: Tensor) -> str:
    """Smallest to largest."""
    low, high = float(values.min()), float(values.max())
    return f"{low:.2g}" if f"{low:.2g}" == f"{high:.2g}" else f"{low:.2g} … {high:.2g}"


def survey(args: argparse.Namespace) -> None:
    """One line per case."""
    columns = ("grown", "on the way", "at the input", "reached", "to biases", "to ε")
    print("| network | composite | target | method |", " | ".join(columns), "| broken |", flush=True)
    print("|" + "---|" * (len(columns) + 5))
    for name in args.networks:
        model, x = subject(name, args.photos)
        trace = plrp.trace(model, x)
        for composite in args.composites:
            for label, target in targets(name, len(x)):
                if args.targets and label not in args.targets:
                    continue
                for method in args.methods:
                    with unwarned():
                        found = trace.explain(target=target, composite=composite, pruning=METHODS[method])
                    balance = found.balance
                    shown = (
                        balance.grown, balance.amplification, balance.mass_at_input,
                        balance.reached, balance.to_bias, balance.to_epsilon,
                    )  # fmt: skip
                    broken = sum(problem is not None for problem in balance.problems)
                    cells = (name, composite, label, method, *map(spread, shown), f"{broken} of {len(x)}")
                    print("|", " | ".join(cells), "|", flush=True)


def cost(args: argparse.Namespace) -> None:
    """What the judgement takes of every explanation, in the processor's time: at the last layer and at the input."""
    spent = [0.0]

    def timed(run: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            start = time.process_time()
            try:
                return run(*given)
            finally:
                spent[0] += time.process_time() - start

        return call

    FastWalk.size, plrp.Explanation.warned = timed(FastWalk.size), timed(plrp.Explanation.warned)  # type: ignore[method-assign]
    for name in args.networks:
        model, x = subject(name, args.photos)
        for method in args.methods:
            shares = []
            for _ in range(args.rounds + 1):
                start, spent[0] = time.process_time(), 0.0
                with unwarned():
                    target = SITES[0] if name == "splice" else None
                    plrp.explain(model, x, target=target, composite=args.composites[0], pruning=METHODS[method])
                shares.append(spent[0] / (time.process_time() - start - spent[0]))
            median = statistics.median(shares[1:])  # the first warms up
            print(
                f"{name}, batch {len(x)}, {method}: {median:.3%} of an explanation, median of {args.rounds}", flush=True
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=NETWORKS, metavar="NAME")
    parser.add_argument("--composites", nargs="+", default=COMPOSITES, metavar="NAME")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS), metavar="METHOD")
    parser.add_argument("--targets", nargs="+", metavar="TARGET", help="winner, another, or sites (default: all)")
    parser.add_argument("--photos", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=15, help="of --cost")
    parser.add_argument("--cost", action="store_true")
    args = parser.parse_args()
    cost(args) if args.cost else survey(args)


if __name__ == "__main__":
    main()
