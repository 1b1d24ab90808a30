"""The books of differences to a reference, on every network of the bench: does all of f(x) − f(x⁰) arrive?

    python benchmarks/truth_books.py --page docs/truth.md

One prediction of each network is explained by `rescale`, plain and pruned, in both precisions. Told are the relevance
that is missing, |Σ R − (f(x) − f(x⁰))| / Σ|R|, the largest share of bias, constants and ε in the ledger, how far the
ledger is from closing, and the amplification Σ|R| / |f(x) − f(x⁰)| beside that of Captum's DeepLIFT.
A line per network is kept in `--out`: a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import copy
import csv
import math
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import plrp
from plrp.ledger import BOOKED
from truth import MEASURED, ROOT
from truth_methods import with_modules
from truth_networks import NETWORKS, Case

BEGIN, END = "<!-- tables of benchmarks/truth_books.py -->", "<!-- end of the books -->"
REFERENCES = {"images": "blur:8", "sequences": "zeros", "attention": "zeros", "hybrids": "zeros"}
WAYS = {"plain": None, "λ 0.1": plrp.Pruning(0.1, unit="neuron")}
NOTHING = ("absorbed_bias", "absorbed_constant", "absorbed_epsilon")
BOOKS = ("missing", "booked", "open", "amplification")
COLUMNS = (
    "network", "case", "reference", "difference",
    *(f"{book}, {way}, {bits}" for bits in (64, 32) for way in WAYS for book in BOOKS), "DeepLIFT", "note",
)  # fmt: skip


def books(explanation: plrp.Explanation) -> dict[str, float]:
    """What is missing, what went to bias, constants and ε, how far the ledger is from closing, and amplification."""
    relevance: Tensor = explanation.relevance
    mass, score = float(relevance.double().abs().sum()), float(explanation.score.double()[0])
    largest = max(abs(float(row[name])) for row in explanation.ledger for name in NOTHING)
    missing = float(relevance.double().sum()) - score
    booked = sum(sign * float(row[name]) for row in explanation.ledger for name, sign in BOOKED.items())
    return {
        "missing": abs(missing) / mass,
        "booked": largest / mass,
        "open": abs(missing - booked) / mass,
        "amplification": mass / abs(score),
    }


def deep_lift(model: nn.Module, case: Case, reference: Tensor) -> float:
    """Amplification of Captum's DeepLIFT."""
    from captum.attr import DeepLift

    method = DeepLift(with_modules(model))
    relevance = method.attribute(case.input.clone(), reference, target=case.target).detach().double()
    with torch.no_grad():
        scores = [model(x)[(0, *case.target) if isinstance(case.target, tuple) else (0, case.target)] for x in
                  (case.input, reference)]  # fmt: skip
    return float(relevance.abs().sum() / (scores[0] - scores[1]).abs())


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    network = NETWORKS[name]
    model, cases = network.load(options.data, options.weights)
    case, reference = cases[0], REFERENCES[network.kind]
    row: dict[str, Any] = {"network": name, "case": case.name, "reference": reference}
    for bits, dtype in ((64, torch.float64), (32, torch.float32)):
        trace = plrp.trace(copy.deepcopy(model).to(dtype), case.input.to(dtype), reference=reference)
        for way, pruning in WAYS.items():
            explanation = trace.explain(target=case.target, composite="rescale", pruning=pruning)
            row |= {f"{book}, {way}, {bits}": value for book, value in books(explanation).items()}
            row["difference"] = float(explanation.score[0])
    try:
        row["DeepLIFT"] = deep_lift(model, case, plrp.references.parse(reference)(case.input))
    except Exception as error:  # what it refuses is part of the table
        row["note"] = f"{type(error).__name__}: {error}"[:100].replace("\n", " ")
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """A line per network."""
    heads = ["network, reference", "missing, float64: plain, λ 0.1", "missing, float32: plain, λ 0.1"]
    heads += ["bias, constants, ε", "ledger closes to", "Σ\\|R\\| / \\|Δf\\|: plain, λ 0.1", "DeepLIFT"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for row in sorted(rows, key=lambda row: list(NETWORKS).index(row["network"])):

        def of(book: str, bits: int, row: dict[str, Any] = row) -> list[float]:
            return [float(row[f"{book}, {way}, {bits}"]) for way in WAYS]

        worst = [max(of(book, 64) + of(book, 32)) for book in ("booked", "open")]
        cells = [", ".join(f"{value:.0e}" for value in of("missing", bits)) for bits in (64, 32)]
        cells += [f"{value:.0e}" if value else "0" for value in worst]
        cells.append(", ".join(f"{value:.1f}" for value in of("amplification", 32)))
        captum = float(row.get("DeepLIFT") or math.nan)
        cells.append("refused" if math.isnan(captum) else f"{captum:.1f}")
        lines.append(f"| {NETWORKS[row['network']].title}, {row['reference']} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--data", type=Path, default=os.environ.get("PLRP_DATA", ROOT.parent / "shared" / "data"))
    parser.add_argument("--weights", type=Path, default=ROOT / "bench" / "weights", help="for networks trained here")
    parser.add_argument("--out", type=Path, default=MEASURED / "truth-books.csv")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    parser.add_argument("--page", type=Path, help="the page to write the table into")
    options = parser.parse_args()
    options.data = Path(options.data)
    torch.set_num_threads(1)
    rows = list(csv.DictReader(options.out.open())) if options.out.exists() else []
    for name in [] if options.report else options.networks:
        if all(row["network"] != name for row in rows):
            rows.append(measure(name, options))
            with options.out.open("w", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
            print(rows[-1], flush=True)
    text = table(rows)
    print(text)
    if options.page is not None:
        before, _, rest = options.page.read_text().partition(BEGIN)
        options.page.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
