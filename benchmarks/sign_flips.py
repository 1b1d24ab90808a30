"""Can PLRP-M's sign flipping be reduced? The paper leaves it open; PLRP-M± is measured beside M and λ.

    python benchmarks/sign_flips.py --photos 20 --flipping-photos 8

On ResNet-50 and VGG-16 with real weights and ECSSD photographs, found and stored as by `paper_claims.py`: every
measurement is a line of JSON, a run that was stopped goes on where it was. `--report` only prints what is there, and
`--page docs/paper-claims.md` puts it into that page.

Per composite, method and p: how many survivors change their sign in all pruned tensors, and their share of the
mass there; amplification, largest ‖R‖₁ on the way over |score|; Gini index and mass in the mask of the map; area
under its flipping curve.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import plrp
from paper_claims import FLIPPED, MODELS, ROOT, TITLES, load, plain, records
from plrp import metrics
from plrp.experiments.aligned_scores import difference_of
from plrp.explanation import Explanation, explain_trace
from plrp.models.loading import LoadedModel
from plrp.request import Request
from plrp.vision import ECSSD
from plrp.vision.photograph_explanation import composite_for

COMPOSITES = ("epsilon-plus-flat", "epsilon", "epsilon-gamma-box")
SHARES = (0.05, 0.15, 0.3)
LABELS = {None: "LRP", "lambda": "λ", "M": "M", "M-sign": "M±"}
BEGIN, END = "<!-- tables of benchmarks/sign_flips.py -->", "<!-- end of the sign flips -->"


@dataclass(frozen=True)
class Method:
    """LRP, or PLRP with a redistribution and a share p."""

    redistribution: str | None = None
    p: float = 0.0

    @property
    def label(self) -> str:
        name = LABELS[self.redistribution]
        return name if self.redistribution is None else f"{name} p={self.p}"

    @property
    def pruning(self) -> plrp.Pruning | None:
        return None if self.redistribution is None else plrp.Pruning(self.p, redistribution=self.redistribution)


LRP = Method()
ALL = [LRP, *(Method(r, p) for r in ("lambda", "M", "M-sign") for p in SHARES)]
MIDDLE = [m for m in ALL if m.p in (0.0, 0.15)]
OUTER = [m for m in ALL if m not in MIDDLE]


# --- measuring --------------------------------------------------------------------------------------------------------


def explained(trace: plrp.Trace, composite: str, methods: Iterable[Method]) -> Iterator[tuple[Method, Explanation]]:
    """The winning class by each method, with the ledger of the same walk."""
    rules = composite_for(composite, LoadedModel(nn.Identity(), "", ""), trace)
    for method in methods:
        pruning = method.pruning
        yield method, explain_trace(trace, Request(composite=rules, pruning=pruning), ledger=True)


def flips(explanation: Explanation) -> dict[str, float]:
    """Over all pruned tensors: survivors whose sign changed, as a number, as a share, and as a share of the mass."""
    rows = [row for row in explanation.ledger if row["op"] == "prune"]
    survivors = sum(row["neurons_after"] for row in rows)
    mass = sum(row["mass_out_positive"] + row["mass_out_negative"] for row in rows)
    flipped, flipped_mass = (sum(row[name] for row in rows) for name in ("flipped", "flipped_mass"))
    return {
        "flips": float(flipped),
        "flips_share": flipped / survivors if survivors else 0.0,
        "flips_mass": flipped_mass / mass if mass else 0.0,
    }


def measure_maps(model: nn.Module, image: Tensor, mask: Tensor, composite: str) -> list[dict[str, Any]]:
    """Flips and amplification on the way, sparsity and localization of the map, for every method."""
    rows = []
    for method, explanation in explained(plrp.trace(model, image), composite, ALL):
        relevance = explanation.relevance.sum(1)
        row: dict[str, Any] = {"method": method.label, **flips(explanation)}
        row["amplification"] = explanation.booked.largest_mass() / explanation.score.double().abs()
        row["finite"] = bool(relevance.isfinite().all())
        if row["finite"]:
            row["gini"] = metrics.gini(relevance)
            for version in ("positive", "absolute"):
                row[f"mass_{version}"] = metrics.relevance_mass_accuracy(relevance, mask, version=version)
        rows.append(row)
    return rows


def measure_flipping(methods: list[Method]) -> Callable[..., list[dict[str, Any]]]:
    """Pixel flipping as in `paper_claims.py`, read as logit and as probability."""

    def measure(model: nn.Module, image: Tensor, _: Tensor, composite: str) -> list[dict[str, Any]]:
        outputs: list[Tensor] = []

        def watched(x: Tensor) -> Tensor:
            outputs.append(model(x))
            return outputs[-1]

        rows = []
        for method, explanation in explained(plrp.trace(model, image), composite, methods):
            relevance = explanation.relevance.sum(1)
            if not relevance.isfinite().all():
                continue
            outputs.clear()
            result = metrics.pixel_flipping(watched, image, relevance, target=explanation.target, **FLIPPED)
            chance = torch.cat(outputs).softmax(1)[:, explanation.target].T.double()
            area = torch.trapezoid(chance / chance[:, :1], result.flipped, dim=1)
            rows.append({"method": method.label, "auc": result.auc, "auc_probability": area})
        return rows

    return measure


PARTS: dict[str, Callable[..., list[dict[str, Any]]]] = {
    "maps": measure_maps,
    "flipping": measure_flipping(MIDDLE),
    "flipping-outer": measure_flipping(OUTER),
}


def configuration(part: str) -> str:
    """A fingerprint of everything that decides a measurement: other settings are other records."""
    settings: dict[str, Any] = {"part": part, "shares": SHARES}
    if part != "maps":
        settings |= {"flipping": {k: str(v) for k, v in FLIPPED.items()}}
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


def measure(options: argparse.Namespace) -> None:
    """Add what is missing to the records, one photograph after the other."""
    photos = ECSSD(options.data / "ecssd")
    work = [
        (part, name, photo, composite)
        for part in options.parts
        for photo in range(options.photos if part == "maps" else options.flipping_photos)
        for name in options.models
        for composite in COMPOSITES
    ]
    done = {(r["config"], r["model"], r["photo"], r["composite"]) for r in records(options.out)}
    work = [w for w in work if (configuration(w[0]), *w[1:]) not in done]
    models: dict[str, nn.Module] = {}
    started = time.perf_counter()
    for number, (part, name, photo, composite) in enumerate(work, start=1):
        if name not in models:
            models[name] = load(name, options.data)
        image, mask = photos[photo]
        rows = PARTS[part](models[name], image[None], mask[None], composite)
        head = {"config": configuration(part), "part": part, "model": name, "photo": photo, "composite": composite}
        lines = [json.dumps({**head, **{k: plain(v) for k, v in row.items()}}) + "\n" for row in rows]
        with (options.out / f"records-{name}.jsonl").open("a") as file:
            file.write("".join(lines))
        left = (time.perf_counter() - started) / number * (len(work) - number) / 60
        print(
            f"{number}/{len(work)} {part} {name} {composite} photograph {photo}: about {left:.0f} min left", flush=True
        )


# --- the report -------------------------------------------------------------------------------------------------------

Values = dict[str, dict[str, dict[int, float]]]  # by measure, method, photograph
COLUMNS = {
    "flips": "flips",
    "flips_share": "… of survivors",
    "flips_mass": "… of mass",
    "amplification": "amplification",
    "worst": "… worst",
    "gini": "Gini",
    "mass_positive": "mass in mask",
    "auc": "AUC, logit",
    "auc_probability": "AUC, probability",
}
COMPARED = ("gini", "mass_positive", "auc", "auc_probability")


def values_of(rows: list[dict[str, Any]], model: str, composite: str) -> Values:
    """The records of one network under one composite; undefined values are left out."""
    found: Values = {}
    for row in rows:
        if (row["model"], row["composite"]) == (model, composite):
            for key in (*COLUMNS, "finite"):
                if key in row and math.isfinite(row[key]):
                    found.setdefault(key, {}).setdefault(row["method"], {})[row["photo"]] = row[key]
    if "amplification" in found:
        found["worst"] = found["amplification"]
    return found


def summary(measure: str, values: Iterable[float]) -> str:
    """A median where single photographs dominate the mean, the largest of the worst, else the mean."""
    of = {"amplification": statistics.median, "worst": max}.get(measure, statistics.fmean)
    value = float(of(list(values)))
    if measure == "flips":
        return f"{value:,.0f}"
    if measure in ("flips_share", "flips_mass"):
        return f"{value:.2%}" if value >= 1e-4 or value == 0 else f"{value:.0e}"
    return f"{value:.3g}" if measure in ("amplification", "worst") else f"{value:.4f}"


def table(values: Values) -> list[str]:
    """Every method with all that was measured of it."""
    columns = [column for column in COLUMNS if column in values]
    lines = ["| method | " + " | ".join(COLUMNS[c] for c in columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for method in ALL:
        cells = [values[c].get(method.label) for c in columns]
        if any(cells):
            texts = [summary(c, found.values()) if found else "" for c, found in zip(columns, cells, strict=True)]
            lines.append(f"| {method.label} | " + " | ".join(texts) + " |")
    return lines


def differences(values: Values) -> list[str]:
    """M± minus M, photograph by photograph, with 95% intervals."""
    columns = [column for column in COMPARED if column in values]
    lines = ["| M± − M | " + " | ".join(COLUMNS[c] for c in columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for p in SHARES:
        cells = []
        for column in columns:
            ours, paper = (values[column].get(Method(r, p).label, {}) for r in ("M-sign", "M"))
            pairs = [ours[photo] - paper[photo] for photo in sorted(ours.keys() & paper.keys())]
            cells.append(f"{difference_of(pairs)}" if pairs else "")
        lines.append(f"| p = {p} | " + " | ".join(cells) + " |")
    return lines


def counts(values: Values) -> str:
    """How many photographs stand behind the numbers, and in how many of them relevance overflowed."""

    def photos(measure: str, methods: list[Method]) -> int:
        return min((len(values.get(measure, {}).get(m.label, {})) for m in methods), default=0)

    text = f"Photographs: {photos('amplification', [LRP])}; flipping {photos('auc_probability', MIDDLE)} at p = 0.15"
    text += f", {photos('auc_probability', OUTER)} at the others."
    for method in ALL:
        lost = sum(not finite for finite in values.get("finite", {}).get(method.label, {}).values())
        text += f" {method.label} overflowed float32 on {lost}." if lost else ""
    return text


def report(options: argparse.Namespace) -> str:
    """Tables as Markdown; also written to the output folder."""
    configs = {configuration(part) for part in PARTS}
    rows = [row for row in records(options.out) if row["config"] in configs]
    lines = []
    for name in options.models:
        for composite in COMPOSITES:
            values = values_of(rows, name, composite)
            if values:
                lines += [f"### {TITLES[name]}, `{composite}`", "", counts(values), ""]
                lines += [*table(values), "", *differences(values), ""]
    text = "\n".join(lines)
    (options.out / "results.md").write_text(text)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=int, default=20, help="photographs for all but flipping (20)")
    parser.add_argument("--flipping-photos", type=int, default=8, help="photographs for pixel flipping (8)")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--data", type=Path, default=os.environ.get("PLRP_DATA", ROOT.parent / "shared" / "data"))
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "sign_flips")
    parser.add_argument("--report", action="store_true", help="only print the report of what is there")
    parser.add_argument("--page", type=Path, help="a Markdown page whose tables are to be replaced")
    options = parser.parse_args()
    options.data = Path(options.data)
    options.out.mkdir(parents=True, exist_ok=True)
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
