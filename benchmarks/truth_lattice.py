"""The lattice of strided networks' maps: how much relevance lies on it, what the network does there, and what helps.

    python benchmarks/truth_lattice.py --page docs/truth.md

ResNet-50 halves its maps with strided convolutions, the 1 × 1 ones of which read every second position: one pixel in
32 × 32 lies on every path. The lattice is the dots of 9 × 9 pixels around those pixels; three more lattices of the same
kind lie between them, 16 pixels to the right, below, and both. Of what lies on the four, measured are the share of the
lattice in positive relevance and, as the truth, in occlusion: how much the logit falls with each dot blurred alone.
Remedies are judged by the agreement with occlusion by tiles (see truth.py, whose measurements are reused) and by the
symmetric relevance gain. Every measurement is a line in `--out`; what is there is not measured again.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
from torch import Tensor, nn

import plrp
from plrp import metrics
from plrp.composites import is_any, is_conv
from plrp.metrics.replacements import blurred
from plrp.pruning import Site
from plrp.rules import Branch, Epsilon, Flat, Rule, ZPlus
from plrp.tape.maps import Convolution, LinearMap
from truth import MEASURED, ROOT, OutOfTime, Store, records
from truth_networks import BLUR, MEAN, NETWORKS, STD, Case, Lazily, Network, photographs, trained

STEP, DOT = 32, 9
BETWEEN = ((0, 0), (0, 16), (16, 0), (16, 16))  # the lattice, and three more between its dots
BEGIN, END = "<!-- tables of benchmarks/truth_lattice.py -->", "<!-- end of the lattice -->"


def dots(size: int, shift: tuple[int, int] = (0, 0)) -> Tensor:
    """The pixels around every 32nd one, moved by `shift`: bool (dots, size, size)."""
    near = [(torch.arange(size) - torch.arange(s, size, STEP)[:, None]).abs() <= DOT // 2 for s in shift]
    return (near[0][:, None, :, None] & near[1][None, :, None, :]).flatten(0, 1)


def lattice(size: int, shift: tuple[int, int] = (0, 0)) -> Tensor:
    """All of these dots; bool (size, size)."""
    return dots(size, shift).any(0)


class Window(Rule):
    """z⁺, with a strided 1 × 1 convolution read as the mean over its stride's window: all of it gets a share."""

    def branches(self, map: LinearMap, x: Tensor, z: Tensor | None, nonnegative: bool) -> list[Branch]:
        assert isinstance(map, Convolution)
        wide = map.weight.expand(*map.weight.shape[:2], *map.stride) / math.prod(map.stride)
        mean = Convolution(wide, map.bias, map.form)
        return ZPlus().branches(mean, x, None, nonnegative)


def strided_pointwise(op: Any) -> bool:
    """Whether a layer is a 1 × 1 convolution that skips positions."""
    kernel = op.map.raw.shape[2:] if is_conv(op) else ()
    return bool(kernel) and set(kernel) == {1} and max(op.map.stride) > 1


WINDOW = plrp.Composite([(strided_pointwise, Window()), (is_conv, ZPlus()), (is_any, Epsilon())], first=Flat())


class Neighbourhoods(plrp.Pruning):
    """Pruning by position, 2 × 2 neighbours at a time (one where a map is odd): what a stride skips stays or goes
    with what it reads."""

    def plan(self, trace: plrp.Trace) -> dict[int, Site]:
        return {
            key: Blocks(site.value, site.readers, site.p, site.p_negative, site.channel_axis)
            for key, site in super().plan(trace).items()
        }


class Blocks(Site):
    def groups(self, shape: torch.Size, unit: str) -> tuple[Tensor, int] | None:
        if len(shape) != 4:
            return super().groups(shape, unit)
        rows, columns = torch.arange(shape[2]) // 2, torch.arange(shape[3]) // 2
        blocks = rows[:, None] * (shape[3] // 2 + 1) + columns
        numbered = blocks.unique(return_inverse=True)[1]
        return numbered.expand(shape[1:]).reshape(-1), int(numbered.max()) + 1


Explain = Callable[[nn.Module, Case], Tensor]


def plain(pruning: plrp.Pruning | None, composite: str | plrp.Composite = "epsilon-plus-flat") -> Explain:
    def explain(model: nn.Module, case: Case) -> Tensor:
        return plrp.explain(model, case.input, target=case.target, composite=composite, pruning=pruning).relevance

    return explain


def shifted(pruning: plrp.Pruning | None, shifts: tuple[int, ...]) -> Explain:
    """The mean over inputs moved by so many pixels in both directions, each map moved back."""

    def explain(model: nn.Module, case: Case) -> Tensor:
        moved = torch.cat([case.input.roll((by, by), (2, 3)) for by in shifts])
        maps = plrp.explain(model, moved, target=case.target, composite="epsilon-plus-flat", pruning=pruning).relevance
        back = [one.roll((-by, -by), (1, 2)) for by, one in zip(shifts, maps, strict=True)]
        return torch.stack(back).mean(0, keepdim=True)

    return explain


METHODS: dict[str, Explain] = {
    "LRP": plain(None),
    "λ 0.05": plain(plrp.Pruning(0.05)),
    "λ 0.15": plain(plrp.Pruning(0.15)),
    "LRP, strided layers even over their window": plain(None, WINDOW),
    "λ 0.05, strided layers even over their window": plain(plrp.Pruning(0.05), WINDOW),
    "λ 0.15, strided layers even over their window": plain(plrp.Pruning(0.15), WINDOW),
    "λ 0.15 by position": plain(plrp.Pruning(0.15, unit="position")),
    "λ 0.15 by position, 2 × 2 neighbours together": plain(Neighbourhoods(0.15, unit="position")),
    "λ 0.15, mean over shifts of 0 to 3 pixels": shifted(plrp.Pruning(0.15), (0, 1, 2, 3)),
    "λ 0.15, mean over shifts of 0, 8, 16, 24 pixels": shifted(plrp.Pruning(0.15), (0, 8, 16, 24)),
}


# --- strided networks beside ResNet-50 --------------------------------------------------------------------------------


def small_resnet(data: Path, cache: Path) -> tuple[nn.Module, Sequence[Case]]:
    """torchvision's ResNet-18, trained on 250 of the CIFAR-10 images enlarged to 96 pixels; 50 others are cases."""
    with np.load(data / "cifar10" / "images.npz") as stored:
        images, labels = torch.from_numpy(stored["images"]), torch.from_numpy(stored["labels"]).long()
    x = (images.permute(0, 3, 1, 2) / 255 - MEAN.reshape(3, 1, 1)) / STD.reshape(3, 1, 1)
    x = nn.functional.interpolate(x, size=96, mode="bilinear")
    held = torch.arange(len(x)) % 6 == 0
    torch.manual_seed(0)
    model = torchvision.models.resnet18(num_classes=10)

    def fit() -> None:
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        seen, wanted = x[~held], labels[~held]
        for epoch in range(5):
            for rows in torch.randperm(len(seen)).split(25):
                flipped = seen[rows].flip(3) if torch.rand(()) < 0.5 else seen[rows]
                optimizer.zero_grad(set_to_none=True)
                nn.functional.cross_entropy(model(flipped), wanted[rows]).backward()
                optimizer.step()
            print(f"ResNet-18, epoch {epoch + 1}", flush=True)

    trained(cache / "resnet18-cifar10.pth", model, fit)
    with torch.no_grad():
        winners = model(x[held]).argmax(1)
    print(f"ResNet-18: right on {int((winners == labels[held]).sum())} of {int(held.sum())} held images", flush=True)
    return model, [Case(f"image {i}", x[held][i : i + 1], int(w)) for i, w in enumerate(winners.tolist())]


def untrained(name: str, data: Path, cache: Path) -> tuple[nn.Module, Sequence[Case]]:
    """A network of torchvision with the weights it begins with, on photographs."""
    torch.manual_seed(0)
    model = torchvision.models.get_model(name).eval()
    _, cases = photographs("resnet50", data, cache)

    def case(index: int) -> Case:
        with torch.no_grad():
            winner = int(model(cases[index].input).argmax())
        return Case(cases[index].name, cases[index].input, winner)

    return model, Lazily(len(cases), case)


STRIDED: dict[str, Network] = {
    "resnet50": Network("ResNet-50", "images", NETWORKS["resnet50"].load, 4, 2),
    "vgg16": Network("VGG-16", "images", NETWORKS["vgg16"].load, 1, 0),
    "resnet18": Network("ResNet-18 (trained here)", "images", small_resnet, 8, 8),
    "regnet": Network("RegNetX-400MF, untrained", "images", partial(untrained, "regnet_x_400mf"), 4, 0),
}
"""Real weights, and the way relevance takes in others. A network more is a line."""


def share(values: Sequence[float]) -> float:
    """Of what lies on the four lattices, what lies on the first; a quarter where none is preferred."""
    return values[0] / sum(values) if sum(values) > 0 else math.nan


def occluded(model: nn.Module, case: Case, by: tuple[int, int]) -> float:
    """By how much the logit falls with every dot of a lattice blurred alone, added up where it falls."""
    smooth = blurred(case.input, BLUR)
    with torch.no_grad():
        score = model(case.input)[0, case.target]
        masks = dots(case.input.shape[-1], by)[:, None].split(14)
        drops = [score - model(torch.where(some, smooth, case.input))[:, case.target] for some in masks]
    return torch.cat(drops).clamp(min=0).sum().item()


TRUTH = "occlusion, the truth"
TRUTHS = {f"occlusion, dots at {a}, {b}": (a, b) for a, b in BETWEEN}


def measure(name: str, options: argparse.Namespace) -> None:
    """Add what is missing of one network."""
    network = STRIDED[name]
    tiles = {r["case"]: r["values"] for r in records(options.out / f"truth-{name}.csv") if r["part"] == "truth"}
    store = Store(options.out, f"lattice-{name}")
    model, cases = network.load(options.data, options.weights)
    for index in range(options.photos or network.screened):
        case = cases[index]
        work: list[str] = [m for m in (*TRUTHS, *METHODS) if (index, "lattice", m) not in store.known]
        if work and index not in tiles and network.finals:
            found = [r["values"] for r in store.rows if r["case"] == index and r["part"] == "truth"]
            tiles[index] = found[0] if found else case.truth(model)[0].tolist()
            if not found:
                store.add(case=index, part="truth", method="tiles", values=tiles[index])
        for method in work:
            if time.monotonic() > options.until:
                raise OutOfTime
            if method in TRUTHS:
                store.add(case=index, part="lattice", method=method, gain=occluded(model, case, TRUTHS[method]))
                continue
            relevance = METHODS[method](model, case)
            pixels = relevance.sum(1)[0].clamp(min=0)
            row = {"share": share([pixels[lattice(pixels.shape[-1], by)].sum().item() for by in BETWEEN])}
            if index in tiles:
                effects = torch.tensor(tiles[index], dtype=torch.float64)[None]
                row |= {k: v.item() for k, v in metrics.agreement(case.features(relevance), effects)._asdict().items()}
            if index < network.finals:
                gain = case.flipping(model, relevance).symmetric_relevance_gain
                assert gain is not None
                row["gain"] = gain.item()
            store.add(case=index, part="lattice", method=method, **row)
        if work:
            print(f"{store.file.stem}, case {index}", flush=True)


def report(folder: Path) -> str:
    """A table per network, of the cases that all methods have."""
    lines: list[str] = []
    for name, network in STRIDED.items():
        rows = [r for r in records(folder / f"truth-lattice-{name}.csv") if r["part"] == "lattice"]
        shared = set.intersection(*({r["case"] for r in rows if r["method"] == m} for m in (*TRUTHS, *METHODS)))
        if not shared:
            continue
        rows = [row for row in rows if row["case"] in shared]
        fell = {(r["case"], r["method"]): r["gain"] for r in rows if r["method"] in TRUTHS}
        for case in shared:
            rows.append({"case": case, "method": TRUTH, "share": share([fell[case, m] for m in TRUTHS])})
        gains = {r["case"] for r in rows if "gain" in r and r["method"] in METHODS}
        note = f", gain n = {len(gains)}" if gains and gains != shared else ""
        lines += [f"### {network.title}", "", f"n = {len(shared)}{note}", ""]
        lines += ["| method | share on the lattice | ρ | r | gain |", "|---|---|---|---|---|"]
        for method in (TRUTH, *METHODS):
            found = [r for r in rows if r["method"] == method]
            cells = []
            for measure in ("share", "spearman", "pearson", "gain"):
                values = [r[measure] for r in found if not math.isnan(r.get(measure, math.nan))]
                shown = f"{statistics.fmean(values):.1%}" if values and measure == "share" else ""
                cells.append(shown or (f"{statistics.fmean(values):.2f}" if values else ""))
            lines.append(f"| {method} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines).rstrip() or "Not measured yet."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=list(STRIDED), default=list(STRIDED))
    parser.add_argument("--photos", type=int, default=0, help="cases of each network (as the table says)")
    parser.add_argument("--data", type=Path, default=os.environ.get("PLRP_DATA", ROOT.parent / "shared" / "data"))
    parser.add_argument("--weights", type=Path, default=ROOT / "bench" / "weights", help="for networks trained here")
    parser.add_argument("--out", type=Path, default=MEASURED)
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="stop after so many minutes; run again to go on"
    )
    parser.add_argument("--report", action="store_true", help="measure nothing; print what is there")
    parser.add_argument("--page", type=Path, help="the page to write the tables into")
    options = parser.parse_args()
    options.data = Path(options.data)
    options.until = time.monotonic() + 60 * options.minutes
    for folder in (options.out, options.weights):
        folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    try:
        for name in () if options.report else options.networks:
            measure(name, options)
    except OutOfTime:
        print("The time is over: run again to go on.")
    text = report(options.out)
    print(text)
    if options.page:
        before, _, rest = options.page.read_text().partition(BEGIN)
        options.page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
