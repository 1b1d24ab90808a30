"""Are the survivors of a pruned explanation enough? Circuits of real networks, ablated, beside others of their size.

    python benchmarks/circuits.py --page docs/circuits.md

For each prediction PLRP-λ at some p says how many neurons of each pruned tensor are kept. Every other method keeps as
many per tensor: its own strongest. All other neurons of the pruned tensors are ablated for all readers, the rest of the
network is recomputed, and what is left of the score, the probability and the decision is written down, a line of JSON
per prediction, p and method: a run that was stopped goes on where it was. `--report` measures nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import plrp
from paper_claims import load as load_photograph_network
from plrp.ablation import CURVE, Ablation, curve, fills_from, pruned_sites, strongest
from plrp.circuits import relevance_at
from plrp.experiments.intervals import bootstrap
from plrp.progress import progress
from plrp.spelling import plural
from plrp.targets import start
from plrp.vision import ImageNet

ROOT = Path(__file__).resolve().parents[1]
VERSION = 1  # raise it when what a measurement means has changed: older lines are then passed over
SHARES = (0.05, 0.15, 0.3, 0.6)  # p
BEGIN, END = "<!-- tables of benchmarks/circuits.py -->", "<!-- end of the tables -->"
BEGIN_CURVES, END_CURVES = "<!-- CPR and CMD of benchmarks/circuits.py -->", "<!-- end of CPR and CMD -->"
Rows = list[dict[str, Any]]


class ViT(nn.Module):
    """The make of the CIFAR-10 weights: patches of 4, a class token, six post-norm blocks, a head on token 0."""

    def __init__(self) -> None:
        super().__init__()
        self.patch_embed = nn.Module()
        self.patch_embed.proj = nn.Conv2d(3, 128, 4, 4)
        self.cls_token, self.pos_embed = nn.Parameter(torch.zeros(1, 1, 128)), nn.Parameter(torch.zeros(1, 65, 128))
        self.transformer = nn.TransformerEncoder(nn.TransformerEncoderLayer(128, 8, 256, batch_first=True), 6)
        self.mlp_head = nn.Sequential(nn.LayerNorm(128), nn.Linear(128, 10))

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patch_embed.proj(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.cls_token.expand(len(x), -1, -1), tokens], 1) + self.pos_embed
        return self.mlp_head(self.transformer(tokens)[:, 0])


def vit(data: Path) -> nn.Module:
    model = ViT()
    model.load_state_dict(torch.load(data / "weights" / "vit_cifar10.pth", map_location="cpu", weights_only=True))
    return model.eval()


def photographs(data: Path) -> Callable[[slice], Tensor]:
    found = ImageNet(data / "imagenet")
    return lambda part: torch.stack([found[i][0] for i in range(len(found))[part]])


def cifar(data: Path) -> Callable[[slice], Tensor]:
    """Every third image, so that all classes are among the first; normalised as the ViT was trained."""
    images = torch.from_numpy(np.load(data / "cifar10" / "images.npz")["images"]).permute(0, 3, 1, 2).float() / 255
    mean, std = (torch.tensor(x).view(3, 1, 1) for x in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    images = ((images - mean) / std)[torch.randperm(len(images), generator=torch.Generator().manual_seed(0))]
    return lambda part: images[part]


@dataclass(frozen=True)
class Network:
    """A network, its inputs, and how its neurons are ablated."""

    title: str
    model: Callable[[Path], nn.Module]
    inputs: Callable[[Path], Callable[[slice], Tensor]]
    samples: int
    batch: int
    ablate: str = "zero"
    donors: int = 0  # inputs after the samples, whose mean stands in
    shares: tuple[float, ...] = SHARES


NETWORKS = {
    "resnet50": Network("ResNet-50", lambda d: load_photograph_network("resnet50", d), photographs, 100, 2),
    "vgg16": Network(
        "VGG-16", lambda d: load_photograph_network("vgg16_gap", d), photographs, 100, 1, shares=SHARES[1:]
    ),
    "vit": Network("ViT (CIFAR-10), ablated to zero", vit, cifar, 100, 20),
    "vit-mean": Network("ViT (CIFAR-10), ablated to the mean", vit, cifar, 100, 20, "mean", 200),
}

PRUNED = {
    "PLRP-λ": lambda p: plrp.Pruning(p=p, unit="neuron"),
    "PLRP-M": lambda p: plrp.Pruning(p=p, redistribution="M", unit="neuron"),
    "PLRP-M±": lambda p: plrp.Pruning(p=p, redistribution="M-sign", unit="neuron"),
    "PLRP-λ, negative pruned to 0.99": lambda p: plrp.Pruning(p=p, p_negative=0.99, unit="neuron"),
}
VARIANTS = ("PLRP-M±", "PLRP-λ, negative pruned to 0.99")  # tried where rules have contributions of both signs


def measure(name: str, options: argparse.Namespace) -> None:
    """Add what is missing for one network, a batch of predictions at a time."""
    network, file = NETWORKS[name], options.out / f"circuits-{name}.jsonl"
    done = {row["sample"] for row in records(file)}
    samples = min(options.samples or network.samples, network.samples)
    batches = [range(b, min(b + network.batch, samples)) for b in range(0, samples, network.batch)]
    missing = [batch for batch in batches if not set(batch) <= done][: options.batches]
    if not missing:
        return
    model, inputs = network.model(options.data), network.inputs(options.data)
    donors = inputs(slice(network.samples, network.samples + network.donors)) if network.donors else None
    with progress(name, len(missing), announce=True) as step:
        for batch in missing:
            rows = list(measured(model, inputs(slice(batch.start, batch.stop)), network, donors))
            with file.open("a") as out:  # all of a batch, or nothing
                out.write(
                    "".join(json.dumps({"version": VERSION, **r, "sample": batch[r["sample"]]}) + "\n" for r in rows)
                )
            step(1)


def measured(model: nn.Module, x: Tensor, network: Network, donors: Tensor | None) -> Iterator[dict[str, Any]]:
    """Every p and method for a batch of predictions, the winning classes."""
    trace = plrp.trace(model, x)
    begin = start(trace, None, torch.float32)
    plain = trace.explain(layers=True)
    sites = pruned_sites(trace, plrp.Pruning(), plain.layers)
    fills = fills_from(trace, sites, network.ablate, donors, 1, 0, 50)
    ablation = Ablation(trace, begin, sites, fills=fills)
    activations = ablation.activations()
    neurons, active = (
        sum(count) for count in ([a.shape[1] for a in activations], [(a != 0).sum(1) for a in activations])
    )
    products = [g * a for g, a in zip(ablation.gradients(), activations, strict=True)]
    relevance = [relevance_at(plain, site) for site in sites]
    plain_rules = plain.composite.name == "epsilon-plus-flat"
    del plain
    noise = torch.Generator().manual_seed(0)
    fixed: dict[str, Callable[[int], Tensor]] = {
        "LRP, |R|": lambda n: relevance[n].abs(),
        "LRP, positive": lambda n: relevance[n],
        "|gradient × activation|": lambda n: products[n].abs(),
        "gradient × activation": lambda n: products[n],
        "|activation|": lambda n: activations[n].abs(),
        "random": lambda n: torch.rand(activations[n].shape, generator=noise) * (activations[n] != 0),
    }

    def rows(p: float, method: str, masks: Sequence[Tensor]) -> Iterator[dict[str, Any]]:
        outcome, count = ablation.outcome(masks), sum(mask.sum(1) for mask in masks)
        for i in range(len(x)):
            found = {key: float(value[i]) for key, value in outcome._asdict().items()}
            shares = {"of_all": int(count[i]) / neurons, "of_active": int(count[i]) / int(active[i])}
            yield {"sample": i, "p": p, "method": method, **found, **shares}

    for ending, outcome in (("the model", ablation.whole()), ("nothing", ablation.nothing())):
        for i in range(len(x)):
            yield {"sample": i, "p": None, "method": ending, **{k: float(v[i]) for k, v in outcome._asdict().items()}}
    for p in network.shares:
        counts: list[Tensor] = []
        for name, pruning in PRUNED.items():
            if plain_rules and name in VARIANTS:  # PLRP-M± is PLRP-M where contributions have one sign
                continue
            found = trace.explain(pruning=pruning(p), layers=True)
            pruned = [relevance_at(found, site) for site in sites]
            del found
            counts = counts or [(r != 0).sum(1) for r in pruned]
            yield from rows(p, name, [strongest(r.abs(), k) for r, k in zip(pruned, counts, strict=True)])
            if name == "PLRP-λ":
                yield from rows(p, "PLRP-λ, positive part", [r > 0 for r in pruned])
        for name, ranks in fixed.items():
            yield from rows(p, name, [strongest(ranks(n), k) for n, k in enumerate(counts)])


def measure_curves(name: str, options: argparse.Namespace) -> None:
    """CPR and CMD of every ranking, a line per prediction and method."""
    network, file = NETWORKS[name], options.out / f"curves-{name}.jsonl"
    done = {row["sample"] for row in records(file)}
    missing = [sample for sample in range(min(options.curves, network.samples)) if sample not in done]
    if not missing:
        return
    model, inputs = network.model(options.data), network.inputs(options.data)
    donors = inputs(slice(network.samples, network.samples + network.donors)) if network.donors else None
    with progress(f"{name}, curves", len(missing), announce=True) as step:
        for sample in missing:
            trace = plrp.trace(model, inputs(slice(sample, sample + 1)))
            plain = trace.explain(layers=True)
            sites = pruned_sites(trace, plrp.Pruning(), plain.layers)
            ablation = Ablation(
                trace, start(trace, None, torch.float32), sites,
                fills=fills_from(trace, sites, network.ablate, donors, 1, 0, 50),
            )  # fmt: skip
            lines = []
            for method, ranks in rankings(trace, plain, ablation).items():
                found = curve(ablation, ranks)
                row = {"version": VERSION, "sample": sample, "method": method, "kept": found.kept[:, 0].tolist()}
                lines.append(json.dumps({**row, "cpr": float(found.cpr), "cmd": float(found.cmd)}) + "\n")
            with file.open("a") as out:
                out.write("".join(lines))
            step(1)


def rankings(trace: plrp.Trace, plain: plrp.Explanation, ablation: Ablation) -> dict[str, list[Tensor]]:
    """Every neuron's rank by method: LRP, pruned or not, gradient × activation, size and chance; signed and not."""
    activations = ablation.activations()
    products = [g * a for g, a in zip(ablation.gradients(), activations, strict=True)]
    relevance = {"LRP": [relevance_at(plain, site) for site in ablation.sites]}
    for p in (0.05, 0.15):
        pruned = trace.explain(pruning=PRUNED["PLRP-λ"](p), layers=True)
        relevance[f"PLRP-λ, p = {p:g}"] = [relevance_at(pruned, site) for site in ablation.sites]
    noise = torch.Generator().manual_seed(0)
    found: dict[str, list[Tensor]] = {}
    for name, signed in {**relevance, "gradient × activation": products}.items():
        found[f"{name}, size"] = [r.abs() for r in signed]
        found[f"{name}, positive first"] = signed
    found["|activation|"] = [a.abs() for a in activations]
    found["random"] = [torch.rand(a.shape, generator=noise) for a in activations]
    return found


def curve_tables(measured: dict[str, Rows]) -> str:
    """CPR and CMD per network and ranking, with 95% intervals of the means, and f at some shares."""
    lines = []
    shown = [CURVE.index(share) for share in (0.01, 0.05, 0.2)]
    for name, rows in measured.items():
        methods: dict[str, Rows] = {}
        for row in rows:
            methods.setdefault(row["method"], []).append(row)
        count = len({row["sample"] for row in rows})
        lines += [f"### {NETWORKS[name].title}: CPR and CMD", "", f"{plural(count, 'prediction')}.", ""]
        heads = "neurons ranked by", "CPR (more is better)", "CMD (less is better)", "f at 1% · 5% · 20%"
        lines += [f"| {' | '.join(heads)} |", "|---" * 4 + "|"]
        for method, found in sorted(methods.items(), key=lambda pair: statistics.fmean(r["cmd"] for r in pair[1])):
            cells = []
            for key in ("cpr", "cmd"):
                values = [row[key] for row in found]
                low, high = bootstrap(values)
                cells.append(f"{statistics.fmean(values):.2f} [{float(low):.2f}, {float(high):.2f}]")
            at = " · ".join(f"{statistics.fmean(row['kept'][n] for row in found):.2f}" for n in shown)
            label = method.replace("|", r"\|")
            lines.append(f"| {label} | {cells[0]} | {cells[1]} | {at} |")
        lines.append("")
    return "\n".join(lines)


def records(file: Path) -> Rows:
    """Everything measured so far; a line cut off by a crash is left out."""
    found = []
    for line in file.read_text().splitlines() if file.exists() else ():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        if row.get("version") == VERSION:
            found.append(row)
    return found


# --- the page ---------------------------------------------------------------------------------------------------------


def kept(rows: Rows) -> Rows:
    """What is kept of score and probability: (f − f(all ablated)) / (f(model) − f(all ablated)), per prediction."""
    ends = {(row["method"], row["sample"]): row for row in rows if row["p"] is None}
    found = []
    for row in rows:
        if row["p"] is not None:
            whole, none = (ends[method, row["sample"]] for method in ("the model", "nothing"))
            left = {f"of_{k}": (row[k] - none[k]) / (whole[k] - none[k]) for k in ("score", "probability")}
            found.append({**row, **left})
    return found


def summary(rows: Rows) -> dict[tuple[str, float], dict[str, float]]:
    """By method and p: means of sizes and decisions, medians of what is kept."""
    groups: dict[tuple[str, float], Rows] = {}
    for row in kept(rows):
        groups.setdefault((row["method"], row["p"]), []).append(row)
    return {
        key: {
            "of_all": statistics.fmean(r["of_all"] for r in group),
            "of_active": statistics.fmean(r["of_active"] for r in group),
            "score": statistics.median(r["of_score"] for r in group),
            "probability": statistics.median(r["of_probability"] for r in group),
            "decision": statistics.fmean(r["decision"] for r in group),
            "samples": len(group),
        }
        for key, group in groups.items()
    }


def tables(measured: dict[str, Rows]) -> str:
    """A table per network: methods down, p across; decision kept, and median share of probability and score."""
    lines = []
    for name, rows in measured.items():
        found, count = summary(rows), len({row["sample"] for row in rows})
        shares = NETWORKS[name].shares
        methods = [m for m in dict.fromkeys(m for m, _ in found) if found[m, shares[-1]]["samples"] == count]
        sizes = {p: found["PLRP-λ", p] for p in shares}
        heads = [f"p = {p:g}<br>{100 * s['of_active']:.2g}% of the active" for p, s in sizes.items()]
        lines += [f"### {NETWORKS[name].title}", "", f"{count} predictions.", ""]
        lines += ["| neurons chosen by | " + " | ".join(heads) + " |", "|---|" + "---|" * len(heads)]
        best = {p: max(found[m, p]["decision"] for m in methods) for p in shares}
        for method in methods:
            cells = []
            for p in shares:
                one = found[method, p]
                decision = f"{one['decision']:.0%}"
                decision = f"**{decision}**" if one["decision"] == best[p] else decision
                fewer = abs(one["of_active"] / sizes[p]["of_active"] - 1) > 0.05
                own = f" ({100 * one['of_active']:.2g}%)" if fewer else ""
                cells.append(f"{decision} · {number(one['probability'])} · {number(one['score'])}{own}")
            label = method.replace("|", r"\|")
            lines.append(f"| {label} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def number(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.0f}" if math.isfinite(value) else "–"


COLOURS = {
    "PLRP-λ": ("#d42a20", "-"),
    "PLRP-λ, positive part": ("#d42a20", "--"),
    "PLRP-M": ("#e08a1e", "-"),
    "LRP, |R|": ("#1f63b0", "-"),
    "LRP, positive": ("#1f63b0", "--"),
    "|gradient × activation|": ("#2a8f5b", "-"),
    "gradient × activation": ("#2a8f5b", "--"),
    "|activation|": ("#7d8791", "-"),
    "random": ("#7d8791", ":"),
}


def draw(measured: dict[str, Rows], path: Path) -> None:
    """Decision and probability kept against the share of active neurons kept, a row per network."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from plrp.experiments.score_figures import FAINT, GRID, INK

    figure, axes = plt.subplots(len(measured), 2, figsize=(9, 2.9 * len(measured)), squeeze=False, layout="constrained")
    for line, (name, rows) in zip(axes, measured.items(), strict=True):
        found = summary(rows)
        panels = (("decision", "same decision, %"), ("probability", "probability kept, median %"))
        for ax, (key, label) in zip(line, panels, strict=True):
            for method, (colour, style) in COLOURS.items():
                points = sorted(
                    (100 * found[method, p]["of_active"], 100 * found[method, p][key]) for p in NETWORKS[name].shares
                )
                ax.plot(*zip(*points, strict=True), style, color=colour, marker="o", ms=3, lw=1.4, label=method)
            ax.set_xscale("log")
            ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            ax.xaxis.set_minor_formatter(lambda value, _: "")
            ax.set_ylim(-4, 104 if key == "decision" else 145)
            if key == "probability":
                ax.axhline(100, color=FAINT, lw=0.8)
            ax.set_title(f"{NETWORKS[name].title}: {label}", fontsize=8.5, color=INK, loc="left")
            ax.tick_params(labelsize=7)
            ax.grid(color=GRID, lw=0.5)
            ax.spines[["top", "right"]].set_visible(False)
    for ax in axes[-1]:
        ax.set_xlabel("neurons kept, % of the active ones", fontsize=8)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=7.5, frameon=False)
    with plt.rc_context({"svg.hashsalt": "plrp"}):
        figure.savefig(path, metadata={"Date": None})
        figure.savefig(path.with_suffix(".png"), dpi=130) if os.environ.get("PLRP_PNG") else None
    plt.close(figure)


def draw_circuit(data: Path, path: Path, photograph: int = 26) -> None:
    """The circuit of one photograph's class by ResNet-50, as on the page."""
    x = photographs(data)(slice(photograph, photograph + 1))
    explanation = plrp.explain(NETWORKS["resnet50"].model(data), x, pruning=plrp.Pruning(p=0.3))
    explanation.circuit(positive=True).plot(path, levels=6, nodes=5)


def main() -> None:
    default = Path(os.environ.get("PLRP_DATA", ROOT.parent / "shared" / "data"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--samples", type=int, help="predictions per network (default: 100)")
    parser.add_argument("--curves", type=int, default=20, help="predictions per network with CPR and CMD (20)")
    parser.add_argument("--only-curves", action="store_true", help="measure these alone")
    parser.add_argument("--data", type=Path, default=default, help="the folder of photographs and weights")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "circuits", help="where measurements are kept")
    parser.add_argument("--page", type=Path, help="write tables and picture into this page")
    parser.add_argument("--report", action="store_true", help="measure nothing, report what is there")
    parser.add_argument("--batches", type=int, help="stop after so many batches of each network; the next run goes on")
    parser.add_argument("--threads", type=int, help="torch's threads: 1 where others use the machine too")
    parser.add_argument("--picture", type=Path, help="draw the circuit of one photograph into this file, and end")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.picture:
        draw_circuit(options.data, options.picture)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.networks if not options.report else ():
        if not options.only_curves:
            measure(name, options)
        measure_curves(name, options)
    for begin, end, kind, make in (
        (BEGIN, END, "circuits", tables),
        (BEGIN_CURVES, END_CURVES, "curves", curve_tables),
    ):
        found = {name: rows for name in NETWORKS if (rows := records(options.out / f"{kind}-{name}.jsonl"))}
        text = make(found)
        print(text)
        if options.page and found:
            if kind == "circuits":
                draw(found, options.page.parent / "assets" / "circuits.svg")
            page = options.page.read_text(encoding="utf-8")
            before, after = page.split(begin)[0], page.split(end)[1]
            options.page.write_text(f"{before}{begin}\n\n{text}\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
