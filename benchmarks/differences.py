"""Differences to a reference: plrp's `rescale` against DeepLIFT of Captum and of tangermeme, equal references.

Photographs have one reference, zeros. Captum runs without VGG's max pools, where it does not close; relevance is
compared on that network first. DNA has 20 shuffles of each sequence. `--photograph` adds a trained ResNet-50, one
photograph against its blur, without peers. Ratios are medians over interleaved rounds, of
processor time with one thread, so that other work on the machine does not count.
tangermeme is looked for in the folder `--peers` too: `pip install --no-deps --target FOLDER tangermeme`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import Tensor, nn

import plrp
from sequences import one_hot
from timing import interleaved, options, ratio, write

SHUFFLES = 20
PHOTOGRAPH = "trained ResNet-50, a photograph"
ROOT = Path(__file__).resolve().parents[1]
Run = Callable[[], Any]


class Dilated(nn.Module):
    """A network of dilated residual convolutions on DNA (batch, 4, length), as BPNet has them."""

    def __init__(self, width: int = 64, depth: int = 8) -> None:
        super().__init__()
        self.stem, self.first = nn.Conv1d(4, width, 21, padding=10), nn.ReLU()
        self.convs = nn.ModuleList(nn.Conv1d(width, width, 3, padding=2**n, dilation=2**n) for n in range(1, depth + 1))
        self.acts = nn.ModuleList(nn.ReLU() for _ in range(depth))
        self.head = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(self.stem(x))
        for conv, act in zip(self.convs, self.acts, strict=True):
            h = h + act(conv(h))
        return self.head(h.mean(2))


def small(length: int = 250, width: int = 32) -> nn.Module:
    """Two convolutions and two linear layers on DNA."""
    convs = nn.Conv1d(4, width, 15, padding=7), nn.ReLU(), nn.Conv1d(width, width, 9, padding=4), nn.ReLU()
    return nn.Sequential(*convs, nn.Flatten(), nn.Linear(width * length, 10), nn.ReLU(), nn.Linear(10, 2))


def without_pools(model: nn.Module) -> nn.Module:
    """VGG with strided average pools in place of its max pools, on which Captum's DeepLIFT closes."""
    for number, layer in enumerate(model.features):
        if isinstance(layer, nn.MaxPool2d):
            model.features[number] = nn.AvgPool2d(2)
        elif isinstance(layer, nn.ReLU):
            model.features[number] = nn.ReLU()
    return model


def ours(model: nn.Module, x: Tensor, references: Tensor) -> dict[str, Run]:
    """Explanations as a user asks for them, the recording included."""

    def run(composite: str, p: float | None) -> Tensor:
        pruning = None if p is None else plrp.Pruning(p=p)
        explanation = plrp.explain(model, x, reference=references, target=1, composite=composite, pruning=pruning)
        return explanation.relevance

    runs = {"rescale": partial(run, "rescale", None), "rescale, λ 0.2": partial(run, "rescale", 0.2)}
    runs |= {
        "rescale-gamma": partial(run, "rescale-gamma", None),
        "rescale-gamma, λ 0.2": partial(run, "rescale-gamma", 0.2),
    }
    prunings = [plrp.Pruning(p=p) for p in (0.1, 0.2, 0.3, 0.5)]

    def sweep() -> None:
        list(plrp.trace(model, x, reference=references).sweep(prunings, target=1, composite="rescale"))

    return {**runs, "sweep of four": sweep}


def captum(model: nn.Module, x: Tensor, references: Tensor) -> Tensor:
    """Captum's DeepLIFT, each sample against its own references (K, batch, …) in one call."""
    from captum.attr import DeepLift

    repeated = x.repeat(len(references), *(1,) * (x.dim() - 1))
    relevance = DeepLift(model).attribute(repeated, references.flatten(0, 1), target=1)
    return relevance.unflatten(0, (len(references), -1)).mean(0)


def tangermeme(model: nn.Module, x: Tensor, references: Tensor) -> Tensor:
    """tangermeme's, whose maps are multiplied by the one-hot sequences: equal in the sum over letters."""
    from tangermeme.deep_lift_shap import deep_lift_shap

    given = references.transpose(0, 1).contiguous()
    return deep_lift_shap(model, x, target=1, references=given, device="cpu")


def peers(dna: bool) -> dict[str, Callable[..., Tensor]]:
    """The peers that are installed."""
    try:
        import tangermeme as _  # noqa: F401
    except ImportError:
        dna = False
    return {"Captum": captum, **({"tangermeme": tangermeme} if dna else {})}


def photograph(data: Path) -> dict[str, tuple[nn.Module, Tensor, Tensor]]:
    """A trained ResNet-50 and a photograph, against its blur."""
    from truth_networks import NETWORKS

    model, cases = NETWORKS["resnet50"].load(data, data)
    x = cases[0].input
    return {PHOTOGRAPH: (model, x, plrp.references.blur(8)(x)[None])}


def subjects(quick: bool) -> Mapping[str, tuple[nn.Module, Tensor, Tensor]]:
    """Networks with random weights, inputs and references (K, batch, …)."""
    torch.manual_seed(0)
    images = torch.randn(2, 3, 112, 112, generator=torch.Generator().manual_seed(0))
    pictures = {
        "VGG-11, 2 images": without_pools(torchvision.models.vgg11(weights=None)),
        "VGG-16, 2 images": without_pools(torchvision.models.vgg16(weights=None)),
    }
    dna = {"small CNN, 1 sequence": (small(), 1, 250), "small CNN, 16 sequences": (small(), 16, 250)}
    dna |= {"dilated CNN, 1 sequence": (Dilated(), 1, 1000), "dilated CNN, 4 sequences": (Dilated(), 4, 1000)}
    if quick:
        pictures.popitem()
    shuffled = plrp.references.shuffled(SHUFFLES)
    sequences = {name: (model, one_hot(count, length)) for name, (model, count, length) in dna.items()}
    return {
        **{name: (model.eval(), images, torch.zeros(1, *images.shape)) for name, model in pictures.items()},
        **{name: (model.eval(), x, shuffled(x)) for name, (model, x) in sequences.items()},
    }


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--peers", type=Path, help="a folder that holds tangermeme")
    parser.add_argument("--photograph", action="store_true", help="a trained ResNet-50 too, from --data")
    parser.add_argument("--data", type=Path, default=os.environ.get("PLRP_DATA", ROOT.parent / "shared" / "data"))
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.peers is not None:
        sys.path.append(str(args.peers))
    results: dict[str, Any] = {}
    trained = photograph(Path(args.data)) if args.photograph else {}
    for name, (model, x, references) in {**subjects(args.quick), **trained}.items():
        found = {} if name == PHOTOGRAPH else peers(len(references) > 1)
        others = {peer: partial(run, model, x, references) for peer, run in found.items()}
        runs = {**ours(model, x, references), **others}
        mine, apart = runs["rescale"]().sum(1), {}
        for peer, run in others.items():
            theirs = run().detach().sum(1)
            apart[peer] = float((mine - theirs).abs().max() / theirs.abs().max())
        for run in runs.values():
            run()
        clock = time.process_time if args.threads == 1 else time.perf_counter
        rounds = interleaved(runs, name, 3, args.rounds or 7, 10 if args.quick else 60, clock)
        results[name] = {"difference": apart, "rounds": rounds}
        for peer in others:
            of_peer = ", ".join(f"{side} {ratio(rounds, side, peer):.2f}" for side in runs if side not in others)
            print(f"    in units of {peer}: {of_peer} (largest difference {apart[peer]:.1e})", flush=True)
        for rule in ("rescale", "rescale-gamma"):
            print(f"    {rule}, λ 0.2 in units of p = 0: {ratio(rounds, f'{rule}, λ 0.2', rule):.2f}", flush=True)
        write(args, "differences", {"networks": results})


if __name__ == "__main__":
    main()
