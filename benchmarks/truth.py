"""The bench of truth: which rules and prunings tell what a network does, on real networks.

    python benchmarks/truth.py --page docs/truth.md

Every method explains the same predictions; the truth is what the network does when a part of the input is replaced
(blurred tiles of a photograph, exchanged bases of a sequence). Measured are the agreement with it (signed and absolute
rank correlation, correlation), sparsity, mass in the mask where there is one, and cost in forward passes. With
`--finals 8` the best eight settings of each network, the defaults and the peers go on to `--samples` cases and to
flipping curves (symmetric relevance gain, deletion, insertion).

Every measurement is a line of JSON in `--out`: a run that was stopped goes on where it was, and networks may run side
by side (`--networks resnet50`). `--report` measures nothing and writes the page from what is there.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import plrp
from plrp import metrics
from truth_methods import PEERS, Method, explained, methods
from truth_networks import NETWORKS, Case
from truth_page import by_method, faithfulness, write_page

ROOT = Path(__file__).resolve().parents[1]
VERSION = 1  # raise it when what a measurement means has changed: older lines are then passed over
DEFAULTS = ("epsilon-plus-flat | LRP", "epsilon-plus-flat | λ 0.15", "epsilon-plus | LRP", "epsilon-plus | λ 0.15")
LOST = 0.2  # logits: a far site that moves the score by this much must not be without relevance


def seconds(run: Any) -> tuple[float, Any]:
    begin = time.perf_counter()
    answer = run()
    return time.perf_counter() - begin, answer


def screen(case: Case, truth: Tensor, relevance: Tensor) -> dict[str, Any]:
    """Agreement with the truth, sparsity, and mass in the mask."""
    features = case.features(relevance)
    found = metrics.agreement(features, truth)._asdict()
    row = {name: value.item() for name, value in found.items()}
    row["gini"] = metrics.gini(relevance, channels="sum").item()
    row["zeros"] = 1 - metrics.nonzero(relevance, channels="sum").item()
    if case.mask is not None:
        row["mass"] = metrics.relevance_mass_accuracy(relevance, case.mask, channels="sum").item()
    if case.far:
        moving = [where for where in case.far.values() if truth[0, where].abs().max() >= LOST]
        row["far"] = len(moving)
        row["lost"] = sum(not features[0, where].any() for where in moving)
    return row


def flip(model: nn.Module, case: Case, relevance: Tensor) -> dict[str, Any]:
    """Deletion (most relevant first), insertion (the same curve from its other end), and their difference."""
    curve = case.flipping(model, relevance)
    assert curve.least_first is not None
    assert curve.symmetric_relevance_gain is not None
    gain = curve.symmetric_relevance_gain.item()
    return {"deletion": curve.auc.item(), "insertion": curve.auc.item() + gain, "gain": gain}


class Store:
    """Lines of JSON, one per network, case, part and method; what is there is not measured again."""

    def __init__(self, folder: Path, network: str) -> None:
        self.file = folder / f"truth-{network}.jsonl"
        self.rows = list(records(self.file))
        self.known = {(r["case"], r["part"], r["method"]) for r in self.rows}

    def add(self, **row: Any) -> None:
        self.rows.append(row)
        self.known.add((row["case"], row["part"], row["method"]))
        with self.file.open("a") as file:
            file.write(json.dumps({"version": VERSION, **row}) + "\n")


def records(file: Path) -> list[dict[str, Any]]:
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


def measure(name: str, options: argparse.Namespace) -> None:
    """Add what is missing for one network: every method on the first cases, the finalists on more."""
    network = NETWORKS[name]
    store = Store(options.out, name)
    model, cases = network.load(options.data, options.out / "weights")
    screened = min(options.screen or network.screened, len(cases))
    samples = min(options.samples, len(cases)) if options.finals else screened
    chosen = methods(network.kind)
    for index in range(samples):
        if index == screened:
            chosen = finalists(store.rows, chosen, options.finals)
        parts = ["screen"]
        work = [(m, part) for m in chosen for part in parts if (index, part, m.label) not in store.known]
        run(work, store, model, cases, index, network.kind, options)
    if options.finals:
        chosen = finalists(store.rows, methods(network.kind), options.finals)
        for index in range(samples):
            work = [(m, "flip") for m in chosen if (index, "flip", m.label) not in store.known]
            run(work, store, model, cases, index, network.kind, options)


def run(
    work: list[tuple[Method, str]], store: Store, model: nn.Module, cases: Any, index: int, kind: str,
    options: argparse.Namespace,
) -> None:  # fmt: skip
    """Measure methods on one case."""
    if not work:
        return
    begin = time.perf_counter()
    case = cases[index]
    known = [r["values"] for r in store.rows if r["case"] == index and r["part"] == "truth"]
    if not known:
        known = [case.truth(model)[0].tolist()]
        store.add(case=index, part="truth", method="truth", name=case.name, values=known[0])
    truth = torch.tensor(known[0], dtype=torch.float64)[None]
    trace = plrp.trace(model, case.input)
    with torch.no_grad():
        model(case.input)
        forward = statistics.median(seconds(lambda: model(case.input))[0] for _ in range(3))
    for method, part in work:
        try:
            spent, relevance = seconds(lambda m=method: explained(trace, model, case, kind, m))
            if not bool(torch.isfinite(relevance).all()):
                raise ValueError("relevance is not finite")
            row = screen(case, truth, relevance) if part == "screen" else flip(model, case, relevance)
            if part == "screen":
                row["cost"] = spent / forward + (0 if method.pruning is None else 1)
        except Exception as error:  # a method that cannot run is told, the others go on
            row = {"error": f"{type(error).__name__}: {error}"[:200]}
        store.add(case=index, part=part, method=method.label, **row)
    print(
        f"{store.file.stem}, case {index} ({case.name}): {len(work)} in {time.perf_counter() - begin:.0f} s", flush=True
    )


def finalists(rows: list[dict[str, Any]], among: list[Method], count: int) -> list[Method]:
    """The best settings by agreement, the defaults of today, the best pruned one, and the peers."""
    scores = {label: faithfulness(found) for label, found in by_method(rows, "screen").items()}
    ours = [m for m in among if m.pruning is not None and not math.isnan(scores.get(m.label, math.nan))]
    ours.sort(key=lambda m: -scores[m.label])
    best = ours[:count]
    pruned = [m for m in ours if m.pruning != "LRP"][: count // 2]
    default = [m for m in among if m.label in DEFAULTS or m.name in PEERS]
    return list(dict.fromkeys([*best, *pruned, *default]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--screen", type=int, default=0, help="cases that every method explains (0: as the table says)")
    parser.add_argument("--finals", type=int, default=0, help="how many settings go on to the finals (0: no finals)")
    parser.add_argument("--samples", type=int, default=100, help="cases in the finals (100, or as many as there are)")
    parser.add_argument("--data", type=Path, default=os.environ.get("PLRP_DATA", ROOT.parent / "shared" / "data"))
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "truth")
    parser.add_argument("--report", action="store_true", help="measure nothing; print what is there")
    parser.add_argument("--page", type=Path, help="the page to write; its picture goes to assets/ beside it")
    options = parser.parse_args()
    options.data = Path(options.data)
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.report:
        for name in options.networks:
            measure(name, options)
    text = write_page({name: records(options.out / f"truth-{name}.jsonl") for name in NETWORKS}, options.page)
    print(text)


if __name__ == "__main__":
    main()
