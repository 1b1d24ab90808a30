"""Remove channels of a ResNet-50 by relevance, by weights and at random: how often does it still give its own answer?

    python benchmarks/remove_channels.py [--page docs/how-to/concepts.md]

One half of the photographs ranks the channels (`plrp.neuron_relevance`, Yeom et al. 2021), the other half is asked. A
share of the output channels of every 3 × 3 convolution goes, with torch's own pruning; nothing is trained afterwards.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

import plrp
from plrp.models import load
from plrp.progress import progress
from plrp.vision import network_input, read_photograph
from report import put_figures

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data"
SHARES = (0.05, 0.1, 0.2, 0.3, 0.5)


def ranked(model: nn.Module, images: Tensor, layers: list[str], seed: int) -> dict[str, dict[str, list[int]]]:
    """By method and layer, the channels from the least important on."""
    rng = np.random.default_rng(seed)
    found: dict[str, dict[str, list[int]]] = {"relevance": {}, "activation": {}, "weights": {}, "random": {}}
    searched = plrp.exemplars(model, images, layers, batch_size=4, part_size=8)
    modules = dict(model.named_modules())
    for layer in layers:
        totals = searched[layer]
        found["relevance"][layer] = np.argsort(totals.absolute.sum(0), kind="stable").tolist()
        found["activation"][layer] = np.argsort(totals.activation.mean(0), kind="stable").tolist()
        found["weights"][layer] = modules[layer].weight.flatten(1).norm(dim=1).argsort().tolist()
        found["random"][layer] = rng.permutation(totals.relevance.shape[1]).tolist()
    return found


def without(model: nn.Module, order: dict[str, list[int]], share: float) -> None:
    """Mask a share of the channels of each layer; `prune.remove` and the old weights undo it."""
    modules = dict(model.named_modules())
    for layer, channels in order.items():
        mask = torch.ones_like(modules[layer].weight)
        mask[channels[: round(share * len(channels))]] = 0
        prune.custom_from_mask(modules[layer], "weight", mask)


def restored(model: nn.Module, weights: dict[str, Tensor]) -> None:
    modules = dict(model.named_modules())
    for layer, weight in weights.items():
        prune.remove(modules[layer], "weight")
        with torch.no_grad():
            modules[layer].weight.copy_(weight)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photographs", type=int, default=60, help="half of them rank, half are asked")
    parser.add_argument("--page", type=Path, help="write the table into this page")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    loaded = load("resnet50", weights=DATA / "weights" / "resnet50.pth")
    model = loaded.module
    paths = sorted((DATA / "imagenet").glob("*.JPEG"))[: arguments.photographs]
    images = torch.stack([network_input(read_photograph(path), loaded.preprocessing) for path in paths])
    ranking, asked = images[::2], images[1::2]
    layers = [name for name, m in model.named_modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)]
    orders = ranked(model, ranking, layers, arguments.seed)
    modules = dict(model.named_modules())
    weights = {layer: modules[layer].weight.detach().clone() for layer in layers}
    with torch.no_grad():
        answers = torch.cat([model(batch).argmax(1) for batch in asked.split(10)])
    rows = []
    with progress("removing channels", len(orders) * len(SHARES)) as step:
        for name, order in orders.items():
            kept = []
            for share in SHARES:
                without(model, order, share)
                with torch.no_grad():
                    now = torch.cat([model(batch).argmax(1) for batch in asked.split(10)])
                kept.append(float((now == answers).float().mean()))
                restored(model, weights)
                step(1)
            rows.append(f"| {name} | " + " | ".join(f"{value:.0%}" for value in kept) + " |")
    head = f"| channels removed by | {' | '.join(f'{share:.0%}' for share in SHARES)} |"
    table = "\n".join([head, "|---|" + "---|" * len(SHARES), *rows])
    table += f"\n\nSame answer as the whole network, {len(asked)} photographs; ranked on {len(ranking)} others.\n"
    print(table)
    if arguments.page:
        put_figures(arguments.page, "remove_channels.py", table)


if __name__ == "__main__":
    main()
