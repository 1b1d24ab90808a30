"""The paper's statements about images, measured: sparsity, localization, robustness, faithfulness of LRP and PLRP.

    python benchmarks/paper_claims.py --photos 40

On ResNet-50 and VGG-16 with real weights and ECSSD photographs (`PLRP_DATA`, else `../shared/data` from the project's
root), relevance summed over colours. Every measurement is a line of JSON in the output folder: a run that was stopped
goes on where it was, and models may run side by side (`--models resnet50`). The tables and the verdicts are printed and
written as `results.md` and `results.json` beside them; `--report` only prints them from what is there, and
`--page docs/paper-claims.md` puts them into that page.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
from torch import Tensor, nn

import plrp
from plrp import metrics
from plrp.experiments import statements
from plrp.experiments.aligned_scores import AlignedScores, Flipping
from plrp.metrics.seeded import Draws
from plrp.vision import ECSSD

ROOT = Path(__file__).resolve().parents[1]
MODELS = ("resnet50", "vgg16_gap")
SHARES = (0.05, 0.15, 0.3, 0.6, 0.9)
GAIN = 1.0  # the paper's "natural choice"
TILES = (1, 2, 4, 8, 16, 32, 64, 125, 250, 625)  # flipped 9 x 9 tiles; 625 is the whole photograph
FLIPPED = dict(metrics.INNVESTIGATE, perturbation="zeros", steps=TILES, ties="random")
NOISE = {"noise": "gaussian", "radius": 0.1, "seed": 0}  # Quantus' default perturbation


@dataclass(frozen=True)
class Method:
    """LRP, or PLRP with a redistribution, a share p and perhaps the sparsity gain."""

    redistribution: str | None = None
    p: float | None = None
    gain: bool = False

    @property
    def label(self) -> str:
        if self.redistribution is None:
            return "LRP"
        name = "λ" if self.redistribution == "lambda" else "M"
        return f"{name}{' gain' if self.gain else ''} p={self.p}"

    @property
    def pruning(self) -> plrp.Pruning | None:
        if self.redistribution is None:
            return None
        return plrp.Pruning(p=self.p, redistribution=self.redistribution, sparsity_gain=GAIN if self.gain else None)


LRP = Method()
ALL = [LRP, *(Method(r, p, g) for r in ("lambda", "M") for g in (False, True) for p in SHARES)]
MOVED = [m for m in ALL if not m.gain or m.p == 0.15]
STEEP = [m for m in ALL if not m.gain and (m.p is None or m.p <= 0.3)]


# --- measuring --------------------------------------------------------------------------------------------------------


def explained(trace: plrp.Trace, target: Tensor, methods: list[Method]) -> Iterator[tuple[Method, Tensor]]:
    """Relevance (1, 224, 224) by each method, from one forward pass.

    With the gain, p is only an upper bound: for every p that is at least what the gain alone prunes anywhere, the
    result is the same by definition, and is computed once.
    """
    alone: dict[str, tuple[Tensor, float]] = {}
    for redistribution in ("lambda", "M"):
        if sum(m.gain and m.redistribution == redistribution for m in methods) > 1:
            pruning = plrp.Pruning(p=None, redistribution=redistribution, sparsity_gain=GAIN)
            free = trace.explain(target=target, pruning=pruning)
            pruned = [row for row in free.ledger if row["op"] == "prune"]
            reached = max(max(row["p_positive"], row["p_negative"]) for row in pruned)
            alone[redistribution] = free.relevance.sum(1), reached
    asked = [m for m in methods if not (m.gain and m.redistribution in alone and m.p > alone[m.redistribution][1])]
    fresh = dict(zip(asked, trace.sweep([m.pruning for m in asked], target=target), strict=True))
    for method in methods:
        if method in fresh:
            yield method, fresh[method].relevance.sum(1)
        else:
            yield method, alone[method.redistribution][0]


def measure_maps(model: nn.Module, image: Tensor, mask: Tensor, _: argparse.Namespace) -> list[dict[str, Any]]:
    """Sparsity and localization of every method."""
    trace = plrp.trace(model, image)
    target = trace.output.argmax(1)
    rows = []
    for method, relevance in explained(trace, target, ALL):
        row = {"method": method.label, "gini": metrics.gini(relevance), "entropy": metrics.entropy(relevance)}
        row["nonzero"] = metrics.nonzero(relevance)
        for version in ("positive", "absolute", "signed"):
            row[f"mass_{version}"] = metrics.relevance_mass_accuracy(relevance, mask, version=version)
        rows.append(row)
    return rows


def measure_lipschitz(model: nn.Module, image: Tensor, _: Tensor, options: argparse.Namespace) -> list[dict[str, Any]]:
    """What `local_lipschitz` needs of every method, one forward pass per perturbed photograph serving all.

    Kept are ‖e‖² and max|e| of the photograph and, per draw, ‖e'‖², ⟨e, e'⟩, max|e'| and ‖x − x'‖: enough for the
    estimate under any scaling of the maps, by their own maximum or, as Quantus does it, by that of the batch.
    """
    trace = plrp.trace(model, image)
    target = trace.output.argmax(1)
    original = {m: relevance.double() for m, relevance in explained(trace, target, MOVED)}
    rows = {
        m: {"method": m.label, "square": e.square().sum(), "peak": e.abs().max(), "draws": []}
        for m, e in original.items()
    }
    for index in range(options.perturbations):
        moved = image + Draws(**NOISE).shift(index, image)
        distance = (moved - image).double().norm().item()
        for method, relevance in explained(plrp.trace(model, moved), target, MOVED):
            e = relevance.double()
            moments = (e.square().sum(), (e * original[method]).sum(), e.abs().max())
            rows[method]["draws"].append([*(m.item() for m in moments), distance])
    return list(rows.values())


def measure_flipping(model: nn.Module, image: Tensor, _: Tensor, __: argparse.Namespace) -> list[dict[str, Any]]:
    """Pixel flipping, with iNNvestigate's tiles."""
    trace = plrp.trace(model, image)
    target = trace.output.argmax(1)
    outputs: list[Tensor] = []

    def watched(x: Tensor) -> Tensor:
        outputs.append(model(x))
        return outputs[-1]

    rows = []
    for method, relevance in explained(trace, target, STEEP):
        outputs.clear()
        result = metrics.pixel_flipping(watched, image, relevance, target=target, **FLIPPED)
        chance = torch.cat(outputs).softmax(1)[:, target].T.double()  # the same passes, read as probabilities
        chance = chance / chance[:, :1]
        row = {"method": method.label, "auc": result.auc, "tied": result.tied, "curve": result.curve[0]}
        row["auc_probability"] = torch.trapezoid(chance, result.flipped, dim=1)
        row["curve_probability"] = chance[0]
        rows.append(row)
    return rows


PARTS = {"maps": measure_maps, "lipschitz": measure_lipschitz, "flipping": measure_flipping}


def load(name: str, data: Path) -> nn.Module:
    """The real weights, float32; VGG-16 has a pooled linear head (see the data's README)."""
    state = torch.load(data / "weights" / f"{name}.pth", map_location="cpu", weights_only=True)
    model = torchvision.models.resnet50() if name == "resnet50" else torchvision.models.vgg16()
    if name == "vgg16_gap":
        model.avgpool, model.classifier = nn.AdaptiveAvgPool2d(1), nn.Linear(512, 1000)
    model.load_state_dict({key: v.float() if v.is_floating_point() else v for key, v in state.items()})
    return model.eval()


def configuration(part: str, options: argparse.Namespace) -> str:
    """A fingerprint of everything that decides a measurement: other settings are other records."""
    settings: dict[str, Any] = {"part": part, "shares": SHARES, "gain": GAIN}
    if part == "lipschitz":
        settings |= {"noise": NOISE, "perturbations": options.perturbations, "kept": "moments"}
    if part == "flipping":
        settings |= {"flipping": {k: str(v) for k, v in FLIPPED.items()}}
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


def measure(options: argparse.Namespace) -> None:
    """Add what is missing to the records, one photograph after the other."""
    photos = ECSSD(options.data / "ecssd")
    counts = {"maps": options.photos, "lipschitz": options.lipschitz_photos, "flipping": options.flipping_photos}
    work = [(part, name, photo) for part in options.parts for name in options.models for photo in range(counts[part])]
    done = {(r["config"], r["model"], r["photo"]) for r in records(options.out)}
    work = [w for w in work if (configuration(w[0], options), w[1], w[2]) not in done]
    models: dict[str, nn.Module] = {}
    started = time.perf_counter()
    for number, (part, name, photo) in enumerate(work, start=1):
        if name not in models:
            models[name] = load(name, options.data)
        image, mask = photos[photo]
        rows = PARTS[part](models[name], image[None], mask[None], options)
        head = {"config": configuration(part, options), "part": part, "model": name, "photo": photo}
        lines = [json.dumps({**head, **{k: plain(v) for k, v in row.items()}}) + "\n" for row in rows]
        with (options.out / f"records-{name}.jsonl").open("a") as file:
            file.write("".join(lines))
        spent = time.perf_counter() - started
        left = spent / number * (len(work) - number) / 60
        print(f"{number}/{len(work)} {part} {name} photograph {photo}: about {left:.0f} min left", flush=True)


def plain(value: Any) -> Any:
    """A tensor of one value as a float, of several as a list."""
    if isinstance(value, Tensor):
        return value.tolist() if value.numel() > 1 else value.item()
    return value


def records(folder: Path) -> list[dict[str, Any]]:
    """Everything measured so far; a line cut off by a crash is left out."""
    found = []
    for path in sorted(folder.glob("records-*.jsonl")):
        for line in path.read_text().splitlines():
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                print(f"left out a broken line of {path.name}")
    return found


# --- the report -------------------------------------------------------------------------------------------------------


class Results:
    """Records of one model as value[measure][method][photo]."""

    def __init__(self, rows: list[dict[str, Any]], model: str) -> None:
        self.model = model
        self.values: dict[str, dict[str, dict[int, Any]]] = {}
        for row in rows:
            if row["model"] == model:
                for key, value in row.items():
                    if key not in ("config", "part", "model", "photo", "method"):
                        self.values.setdefault(key, {}).setdefault(row["method"], {})[row["photo"]] = value
        for method in self.values.get("draws", {}):
            self._lipschitz(method)

    def _lipschitz(self, method: str) -> None:
        """The estimate for maps as they are, over their own maximum, and over the batch's maximum (Quantus)."""
        squares, peaks, draws = (self.values[key][method] for key in ("square", "peak", "draws"))
        loudest = max(peaks.values())
        loudest_moved = [max(of_draw[2] for of_draw in same) for same in zip(*draws.values(), strict=True)]
        for photo, moved in draws.items():
            scales = {
                "lipschitz": [(1.0, 1.0) for _ in moved],
                "lipschitz_own_max": [(peaks[photo], peak) for _, _, peak, _ in moved],
                "lipschitz_batch_max": [(loudest, peak) for peak in loudest_moved],
            }
            for measure, pairs in scales.items():
                worst = 0.0
                for (square, product, _, distance), (a, b) in zip(moved, pairs, strict=True):
                    change = squares[photo] / a**2 + square / b**2 - 2 * product / (a * b)
                    worst = max(worst, math.sqrt(max(change, 0.0)) / distance)
                self.values.setdefault(measure, {}).setdefault(method, {})[photo] = worst

    def photos(self, measure: str) -> int:
        return sum(not math.isnan(v) for v in self.values.get(measure, {}).get("LRP", {}).values())

    def mean(self, measure: str, method: Method) -> float:
        """Over the photographs where it is defined (mass in mask is not, where no positive relevance is left)."""
        return statistics.fmean(v for v in self.values[measure][method.label].values() if not math.isnan(v))

    def curve(self, method: Method, measure: str) -> list[float]:
        """Mean flipping curve behind the area `measure`, of the photographs whose score is positive to begin with."""
        curves = self.values[measure.replace("auc", "curve")][method.label].values()
        return [statistics.fmean(points) for points in zip(*(c for c in curves if c[0] == 1), strict=True)]


VARIANTS = {None: "LRP", "lambda": "lambda", "M": "M"}
SWEPT = {"mass_positive": statements.MASS}  # names that `plrp sweep` and the statements use
SCALES = {
    "lipschitz": "relevance as it is",
    "lipschitz_own_max": "relevance over its own maximum",
    "lipschitz_batch_max": "relevance over the batch's maximum, as in Quantus",
}
SCORES = {"auc": "logit", "auc_probability": "probability"}


def measured(r: Results) -> AlignedScores:
    """The records as the statements read them."""
    photos = sorted({photo for by_method in r.values.values() for found in by_method.values() for photo in found})
    values: dict[tuple[str, str], dict[float, Any]] = {}
    for measure, by_method in r.values.items():
        if measure in ("draws", "curve", "curve_probability"):
            continue
        for method in ALL:
            if method.label in by_method:
                column = np.array([by_method[method.label].get(photo, math.nan) for photo in photos])
                key = SWEPT.get(measure, measure), swept(method).variant
                values.setdefault(key, {})[swept(method).p] = column
    return AlignedScores(TITLES[r.model], np.array(photos), values)


def swept(method: Method) -> statements.Method:
    """A method as `plrp sweep` names it."""
    variant = VARIANTS[method.redistribution] + ("+gain" if method.gain else "")
    return statements.Method(variant, method.p or 0.0)


def curves(r: Results, measure: str) -> dict[statements.Method, Flipping]:
    """Flipping curves behind the area `measure`; undefined where the score is not positive to begin with."""
    by_method = r.values.get(measure.replace("auc", "curve"), {})
    share = np.array([0, *TILES]) / TILES[-1]
    return {
        swept(method): Flipping(
            share, np.array([c if c[0] == 1 else [math.nan] * len(c) for c in by_method[method.label].values()])
        )
        for method in ALL
        if method.label in by_method
    }


def verdicts(r: Results) -> list[dict[str, Any]]:
    """The paper's statements (section 4.2.1), each with its numbers; those that were not measured are left out."""
    judged = statements.of_images(
        measured(r), robustness=SCALES, faithfulness=SCORES, curves={measure: curves(r, measure) for measure in SCORES}
    )
    return [
        {
            "model": r.model,
            "section": s.section,
            "statement": s.claim,
            "holds": s.holds,
            "sure": s.sure,
            "numbers": "; ".join(s.numbers),
        }
        for s in judged
        if s.holds is not None
    ]


BEGIN, END = "<!-- tables of benchmarks/paper_claims.py -->", "<!-- end of the tables -->"
TITLES = {"resnet50": "ResNet-50", "vgg16_gap": "VGG-16"}
COLUMNS = {
    "gini": "Gini",
    "nonzero": "non-zero",
    "mass_positive": "mass in mask",
    "mass_absolute": "… absolute",
    "mass_signed": "… signed",
    "lipschitz": "Lipschitz",
    "lipschitz_own_max": "… over own max",
    "lipschitz_batch_max": "… over batch max",
    "auc": "AUC, logit",
    "auc_probability": "AUC, probability",
    "tied": "tied tiles",
}


def report(options: argparse.Namespace) -> str:
    """Tables and verdicts as Markdown; also written to the output folder, with the JSON they come from."""
    configs = {configuration(part, options) for part in PARTS}
    rows = [row for row in records(options.out) if row["config"] in configs]
    lines, everything = [], {}
    for name in options.models:
        r = Results(rows, name)
        if not r.values:
            continue
        everything[name] = {"verdicts": verdicts(r), "means": {}}
        columns = [column for column in COLUMNS if column in r.values]
        counts = {"sparsity and mass": "gini", "Lipschitz": "lipschitz", "flipping": "auc_probability"}
        lines += [f"## {TITLES[name]}", ""]
        lines += ["Photographs: " + ", ".join(f"{what} {r.photos(c)}" for what, c in counts.items()) + ".", ""]
        lines += ["| method | " + " | ".join(COLUMNS[c] for c in columns) + " |", "|---" * (len(columns) + 1) + "|"]
        for method in ALL:
            cells = []
            for column in columns:
                known = method.label in r.values[column]
                everything[name]["means"].setdefault(method.label, {})
                if known:
                    everything[name]["means"][method.label][column] = r.mean(column, method)
                cells.append(f"{r.mean(column, method):.4g}" if known else "")
            lines.append(f"| {method.label} | " + " | ".join(cells) + " |")
        for measure in ("auc", "auc_probability"):
            if not r.photos(measure):
                continue
            score = "probability" if measure.endswith("probability") else "logit"
            lines += ["", f"Flipping curve, share of the {score} left:", ""]
            lines += ["| tiles | " + " | ".join(map(str, (0, *TILES))) + " |", "|---" * (len(TILES) + 2) + "|"]
            for method in (LRP, Method("lambda", 0.15), Method("M", 0.15)):
                curve = r.curve(method, measure)
                everything[name].setdefault(f"curves_{score}", {})[method.label] = curve
                lines.append(f"| {method.label} | " + " | ".join(f"{v:.3f}" for v in curve) + " |")
        lines += ["", "| statement | verdict | numbers |", "|---|---|---|"]
        for verdict in everything[name]["verdicts"]:
            word = ("holds" if verdict["holds"] else "does not hold") + (", unsure" if verdict["sure"] is False else "")
            lines.append(f"| {verdict['statement']} | {word} | {verdict['numbers']} |")
        lines.append("")
    text = "\n".join(lines)
    (options.out / "results.md").write_text(text)
    (options.out / "results.json").write_text(json.dumps(everything, indent=1, ensure_ascii=False))
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=int, default=40, help="photographs for sparsity and localization (40)")
    parser.add_argument("--lipschitz-photos", type=int, default=10, help="photographs for robustness (10)")
    parser.add_argument("--flipping-photos", type=int, default=20, help="photographs for pixel flipping (20)")
    parser.add_argument("--perturbations", type=int, default=3, help="perturbed inputs per photograph (3)")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=["maps", "flipping", "lipschitz"])
    parser.add_argument("--data", type=Path, default=os.environ.get("PLRP_DATA", ROOT.parent / "shared" / "data"))
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "paper_claims")
    parser.add_argument("--threads", type=int, default=0, help="torch's threads (0: its default)")
    parser.add_argument("--report", action="store_true", help="only print the report of what is there")
    parser.add_argument("--page", type=Path, help="a Markdown page whose tables are to be replaced")
    options = parser.parse_args()
    options.data = Path(options.data)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.threads:
        torch.set_num_threads(options.threads)
    if not options.report:
        measure(options)
    text = report(options)
    print(text)
    if options.page:
        before, _, rest = options.page.read_text().partition(BEGIN)
        after = rest.partition(END)[2]
        options.page.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}")


if __name__ == "__main__":
    main()
