"""How much of the relevance at conv4_3 of a VGG-16 do four subspaces hold, beside the best channels?

    python benchmarks/subspaces.py [--page docs/how-to/concepts.md] [--pictures folder]

Subspaces are made of 60 photographs and asked on 40 others. *held*: the share of the relevance Σ aᵀc in a subspace,
Σ (Uᵀa)·(Uᵀc), beside as many channels, the strongest of the 60. *sorted*: the share of positions at which one of the
four holds more than half of the positive relevance of all four; subspaces for different things take turns. *flipped*:
tiles of a photograph are blurred in the order of one part's relevance, the most relevant first, and the logit falls.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
from torch import Tensor, nn

import plrp
from plrp.concepts.relevant_subspaces import Subspaces
from plrp.concepts.search import contexts
from plrp.conditions import Projection
from plrp.metrics import pixel_flipping
from plrp.models import LoadedModel, Preprocessing
from plrp.progress import progress
from plrp.request import Request
from plrp.vision import network_input, read_photograph
from report import put_figures

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("PLRP_DATA", ROOT.parent / "shared" / "data"))
LAYER, COUNT = "features.21", 4  # conv4_3
FLIPPED: dict[str, Any] = {"region": 16, "perturbation": "blur", "steps": 8, "until": 0.5}


def vgg16() -> nn.Module:
    """The real convolutions, and the linear head of the data's README."""
    model = torchvision.models.vgg16()
    model.avgpool, model.classifier = nn.AdaptiveAvgPool2d(1), nn.Linear(512, 1000)
    state = torch.load(DATA / "weights" / "vgg16_gap.pth", weights_only=True)
    model.load_state_dict({key: value.float() for key, value in state.items()})
    return model.eval()


def vectors(model: nn.Module, images: Tensor, composite: str) -> tuple[Tensor, Tensor]:
    """Activations and contexts at all positions, (positions, channels)."""
    both = []
    for batch in images.split(4):
        a, c, _ = contexts(plrp.trace(model, batch), LAYER, Request(composite=composite))
        both.append([x.movedim(1, -1).flatten(0, -2).double() for x in (a, c)])
    a, c = (torch.cat(parts) for parts in zip(*both, strict=True))
    return a, c


def measured(a: Tensor, c: Tensor, bases: Tensor) -> tuple[list[float], float]:
    """The share of the relevance in each subspace, and the share of positions at which one of them has most of it."""
    r = torch.stack([((a @ u) * (c @ u)).sum(1) for u in bases.double()])
    positive = r.clamp(min=0)
    some = positive.sum(0) > 0
    one = (positive[:, some].amax(0) > 0.5 * positive[:, some].sum(0)).double().mean()
    return (r.sum(1) / (a * c).sum()).tolist(), float(one)


def best_channels(a: Tensor, c: Tensor, dimensions: int) -> Tensor:
    """The strongest channels in groups, as bases (groups, channels, dimensions)."""
    order = (a * c).sum(0).argsort(descending=True)[: COUNT * dimensions]
    return torch.eye(a.shape[1])[:, order].unflatten(1, (COUNT, dimensions)).movedim(1, 0)


def holding(
    model: nn.Module, images: Tensor, asked: Tensor, composite: str, out: Path
) -> tuple[list[str], dict[int, Any]]:
    """The rows of the table, and by dimensions the bases of each method."""
    rows, bases = [], {}
    a, c = vectors(model, images, composite)
    others = vectors(model, asked, composite)
    for dimensions in (1, 8, 32):
        found: dict[str, Any] = {"channels": best_channels(a, c, dimensions)}
        for method in ("prca", "drsa"):
            made = plrp.concepts.subspaces(
                model, images, LAYER, method, COUNT, dimensions, composite=composite, out=out / composite, batch_size=4
            )
            found[method.upper()] = made
        bases[dimensions] = found
        for name, one in found.items():
            shares, sorted_ = measured(*others, torch.as_tensor(one.bases if isinstance(one, Subspaces) else one))
            each = " | ".join(f"{share:.0%}" for share in shares)
            rows.append(
                f"| {composite} | {COUNT} × {dimensions} | {name} | {sum(shares):.0%} | {each} | {sorted_:.0%} |"
            )
            print(rows[-1], flush=True)
    return rows, bases


def flipping(model: nn.Module, asked: Tensor, bases: dict[str, Any], composite: str) -> list[str]:
    """The rows of the table of flipping curves."""
    rows = []
    parts = {f"{name} {k}": u for name, one in bases.items() for k, u in enumerate(getattr(one, "bases", one))}
    curves: dict[str, list[Tensor]] = {name: [] for name in ("whole map", *parts, "random")}
    with progress("flipping", len(asked) * len(curves)) as step:
        for number, x in enumerate(asked.split(1)):
            traced = plrp.trace(model, x)
            maps = {"whole map": traced.explain(composite=composite).relevance}
            for name, u in parts.items():
                condition = {LAYER: Projection(torch.as_tensor(u))}
                maps[name] = traced.explain(composite=composite, condition=condition).relevance
            maps["random"] = torch.rand(x.shape, generator=torch.Generator().manual_seed(number))
            for name, relevance in maps.items():
                curves[name].append(pixel_flipping(model, x, relevance.sum(1), **FLIPPED).curve[0])
                step(1)
    for name, one in curves.items():
        curve = torch.stack(one).nanmean(0)
        rows.append(f"| {name} | " + " | ".join(f"{v:.2f}" for v in curve.tolist()[2::2]) + f" | {curve.mean():.2f} |")
        print(rows[-1], flush=True)
    return rows


def pictures(
    model: nn.Module,
    loaded: LoadedModel,
    paths: list[Path],
    made: Subspaces,
    images: Tensor,
    folder: Path,
    composite: str,
) -> None:
    """Patches of each subspace, and the explanations of some photographs split by subspace."""
    from matplotlib import pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    plrp.concepts.channel_figure(made.exemplars, LAYER, range(COUNT), loaded, images, composite=composite).savefig(
        folder / f"{made.method}-patches.png", dpi=150
    )
    chosen = paths[:5]
    figure, axes = plt.subplots(len(chosen), COUNT + 3, figsize=(2 * (COUNT + 3), 2 * len(chosen)))
    for row, path in zip(axes, chosen, strict=True):
        x = network_input(read_photograph(path), loaded.preprocessing)[None]
        traced = plrp.trace(model, x)
        whole = traced.explain(composite=composite)
        split = list(traced.sweep([None], condition=made.conditions, composite=composite))
        maps = {"whole": whole, **{f"subspace {k}": e for k, e in enumerate(split[:-1])}, "residual": split[-1]}
        row[0].imshow(loaded.preprocessing.denormalise(x[0]).permute(1, 2, 0))
        row[0].set_ylabel(path.stem.split("_", 2)[2], fontsize=7)
        limit = float(np.quantile(whole.relevance.sum(1).abs(), 0.995))
        for ax, (name, one) in zip(row[1:], maps.items(), strict=True):
            field = nn.functional.avg_pool2d(one.relevance.sum(1), 5, 1, 2)[0]
            ax.imshow(field, cmap="seismic", vmin=-limit, vmax=limit)
            ax.set_title(f"{name} {float(one.relevance.sum()):.2f}", fontsize=7)
    for ax in axes.flat:
        ax.set_xticks([])
        ax.set_yticks([])
    figure.tight_layout()
    figure.savefig(folder / f"{made.method}-split.png", dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--photographs", type=int, default=100, help="three fifths make subspaces, the others are asked"
    )
    parser.add_argument("--flipped", type=int, default=8, help="photographs whose tiles are flipped")
    parser.add_argument("--out", type=Path, default=Path("subspaces"), help="folder of the stored contexts")
    parser.add_argument("--pictures", type=Path, help="folder of pictures")
    parser.add_argument("--page", type=Path, help="write the tables into this page")
    arguments = parser.parse_args()
    model, preprocessing = vgg16(), Preprocessing()
    paths = sorted((DATA / "imagenet").glob("*.JPEG"))[: arguments.photographs]
    images = torch.stack([network_input(read_photograph(path), preprocessing) for path in paths])
    first = torch.arange(len(images)) % 5 < 3
    rows, chosen = [], {}
    for composite in ("epsilon-plus-flat", "epsilon-gamma"):
        some, chosen[composite] = holding(model, images[first], images[~first], composite, arguments.out)
        rows += some
    head = "| rules | size | parts | held | 0 | 1 | 2 | 3 | sorted |\n|---|---|---|---|---|---|---|---|---|\n"
    table = head + "\n".join(rows)
    table += f"\n\nMade of {int(first.sum())} photographs, measured on {int((~first).sum())} others.\n"
    bases = chosen["epsilon-gamma"][8]
    asked = images[~first][: arguments.flipped]
    flipped = flipping(model, asked, bases, "epsilon-gamma") if arguments.flipped else []
    if flipped:
        shares = " | ".join(f"{0.5 * step / FLIPPED['steps']:.0%}" for step in range(2, FLIPPED["steps"] + 1, 2))
        table += f"\n| flipped by | {shares} | mean |\n|---|---|---|---|---|---|\n" + "\n".join(flipped)
        table += f"\n\nThe logit as a share of its own, {len(asked)} photographs, epsilon-gamma, {COUNT} × 8.\n"
    print(table)
    if arguments.pictures:
        loaded = LoadedModel(model, "vgg16", "vgg16_gap.pth", preprocessing=preprocessing)
        for method in ("PRCA", "DRSA"):
            asked_paths = [path for path, one in zip(paths, first.tolist(), strict=True) if not one]
            pictures(model, loaded, asked_paths, bases[method], images[first], arguments.pictures, "epsilon-gamma")
    if arguments.page:
        put_figures(arguments.page, "subspaces.py", table)


if __name__ == "__main__":
    main()
