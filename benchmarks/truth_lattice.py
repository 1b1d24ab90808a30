"""The lattice of ResNet-50's maps: how much relevance lies on it, what the network does there, and what helps.

    python benchmarks/truth_lattice.py --photos 8 --page docs/truth.md

ResNet-50 halves its maps with strided convolutions, the 1 × 1 ones of which read every second position: one pixel in
32 × 32 lies on every path. The lattice is the dots of 9 × 9 pixels around those pixels. Measured are the share of
positive relevance on it and, as the truth, how much the logit falls when all dots are blurred at once, against the mean
over eight lattices of the same kind between them. Remedies are judged by the agreement with occlusion (see truth.py,
whose measurements are reused) and by the symmetric relevance gain. Every measurement is a line of JSON in `--out`.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import plrp
from plrp import metrics
from plrp.composites import is_any, is_conv
from plrp.metrics.replacements import _blurred
from plrp.rules import Branch, Epsilon, Flat, Rule, ZPlus
from plrp.tape.maps import Convolution, LinearMap
from truth import ROOT, Store
from truth_networks import BLUR, NETWORKS, Case

STEP, DOT = 32, 9
BEGIN, END = "<!-- tables of benchmarks/truth_lattice.py -->", "<!-- end of the lattice -->"


def lattice(size: int, shift: tuple[int, int] = (0, 0)) -> Tensor:
    """The dots around every 32nd pixel, moved by `shift`; bool (size, size)."""
    near = [((torch.arange(size) - s + DOT // 2) % STEP) < DOT for s in shift]
    return near[0][:, None] & near[1][None, :]


class Window(Rule):
    """z⁺, with a strided 1 × 1 convolution read as the mean over its stride's window: all of it gets a share."""

    def branches(self, map: LinearMap, x: Tensor, z: Tensor | None, nonnegative: bool) -> list[Branch]:
        assert isinstance(map, Convolution)
        wide = map.weight.expand(*map.weight.shape[:2], *map.stride) / math.prod(map.stride)
        how = {"stride": map.stride, "padding": map.padding, "dilation": map.dilation, "groups": map.groups}
        mean = Convolution(wide, map.bias, **how)
        return ZPlus().branches(mean, x, None, nonnegative)


def strided_pointwise(op: Any) -> bool:
    """Whether a layer is a 1 × 1 convolution that skips positions."""
    kernel = op.map.raw.shape[2:] if is_conv(op) else ()
    return bool(kernel) and set(kernel) == {1} and max(op.map.stride) > 1


WINDOW = plrp.Composite([(strided_pointwise, Window()), (is_conv, ZPlus()), (is_any, Epsilon())], first=Flat())


def plain(p: float | None, composite: str | plrp.Composite = "epsilon-plus-flat") -> Callable[..., Tensor]:
    def explain(model: nn.Module, case: Case) -> Tensor:
        pruning = None if p is None else plrp.Pruning(p)
        return plrp.explain(model, case.input, target=case.target, composite=composite, pruning=pruning).relevance

    return explain


def shifted(p: float | None, shifts: tuple[int, ...]) -> Callable[..., Tensor]:
    """The mean over inputs moved by so many pixels in both directions, each map moved back."""

    def explain(model: nn.Module, case: Case) -> Tensor:
        total = torch.zeros_like(case.input)
        for by in shifts:
            moved = Case(case.name, case.input.roll((by, by), (2, 3)), case.target)
            total += plain(p)(model, moved).roll((-by, -by), (2, 3))
        return total / len(shifts)

    return explain


METHODS: dict[str, Callable[[nn.Module, Case], Tensor]] = {
    "LRP": plain(None),
    "λ 0.05": plain(0.05),
    "λ 0.15": plain(0.15),
    "LRP, strided layers even over their window": plain(None, WINDOW),
    "λ 0.15, strided layers even over their window": plain(0.15, WINDOW),
    "λ 0.15, mean over shifts of 0 to 3 pixels": shifted(0.15, (0, 1, 2, 3)),
    "λ 0.15, mean over shifts of 0, 8, 16, 24 pixels": shifted(0.15, (0, 8, 16, 24)),
}


def truth(model: nn.Module, case: Case) -> dict[str, float]:
    """How much the logit falls with the lattice blurred, and with others between its dots (mean)."""
    blurred = _blurred(case.input, BLUR)
    size = case.input.shape[-1]
    shifts = [(0, 0), *((a, b) for a in (0, 11, 21) for b in (0, 11, 21) if (a, b) != (0, 0))]
    masks = torch.stack([lattice(size, shift) for shift in shifts])[:, None]
    with torch.no_grad():
        scores = model(torch.where(masks, blurred, case.input))[:, case.target]
        drops = (model(case.input)[:, case.target] - scores).tolist()
    return {"on": drops[0], "between": statistics.fmean(drops[1:])}


def measure(options: argparse.Namespace) -> Store:
    known = Store(options.out, "resnet50").rows
    tiles = {r["case"]: r["values"] for r in known if r["part"] == "truth"}
    store = Store(options.out, "lattice")
    model, cases = NETWORKS["resnet50"].load(options.data, options.out / "weights")
    for index in range(options.photos):
        case = cases[index]
        if (index, "lattice", "truth") not in store.known:
            store.add(case=index, part="lattice", method="truth", **truth(model, case))
        for name, explain in METHODS.items():
            if (index, "lattice", name) in store.known:
                continue
            relevance = explain(model, case)
            pixels = relevance.sum(1)[0].clamp(min=0)
            row = {"share": (pixels[lattice(pixels.shape[-1])].sum() / pixels.sum()).item()}
            if index in tiles:
                effects = torch.tensor(tiles[index], dtype=torch.float64)[None]
                row |= {k: v.item() for k, v in metrics.agreement(case.features(relevance), effects)._asdict().items()}
            if index < options.curves:
                gain = case.flipping(model, relevance).symmetric_relevance_gain
                assert gain is not None
                row["gain"] = gain.item()
            store.add(case=index, part="lattice", method=name, **row)
        print(f"lattice, photograph {index}", flush=True)
    return store


def report(rows: list[dict[str, Any]]) -> str:
    """The table, and the sentence about what the network does there, of the photographs that all methods have."""
    cases = [{row["case"] for row in rows if row["method"] == name} for name in ("truth", *METHODS)]
    shared = set.intersection(*cases)
    if not shared:
        return "Not measured yet."
    rows = [row for row in rows if row["case"] in shared]
    area = lattice(224).double().mean().item()
    drops = [r for r in rows if r["method"] == "truth"]
    on, between = (statistics.fmean(r[k] for r in drops) for k in ("on", "between"))
    lines = [
        f"The lattice is {area:.1%} of the picture. Blurring all of it takes {on:.2f} off the logit, blurring an equal "
        f"lattice between its dots {between:.2f} (means of {len(drops)} photographs, eight lattices each).",
        "",
        "| method | share of positive relevance on it | ρ | r | gain |",
        "|---|---|---|---|---|",
    ]
    for name in METHODS:
        found = [r for r in rows if r["method"] == name]
        cells = []
        for measure in ("share", "spearman", "pearson", "gain"):
            values = [r[measure] for r in found if measure in r]
            shown = "" if not values else f"{statistics.fmean(values):.1%}" if measure == "share" else None
            cells.append(shown if shown is not None else f"{statistics.fmean(values):.2f} (n = {len(values)})")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=int, default=8)
    parser.add_argument("--curves", type=int, default=4, help="photographs for the relevance gain (4)")
    parser.add_argument("--data", type=Path, default=os.environ.get("PLRP_DATA", ROOT.parent / "shared" / "data"))
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "truth")
    parser.add_argument("--page", type=Path, help="the page to write the table into")
    options = parser.parse_args()
    options.data = Path(options.data)
    options.out.mkdir(parents=True, exist_ok=True)
    text = report(measure(options).rows)
    print(text)
    if options.page:
        before, _, rest = options.page.read_text().partition(BEGIN)
        options.page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
