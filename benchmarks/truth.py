"""The bench of truth: which rules and prunings tell what a network does, on real networks.

    python benchmarks/truth.py --page docs/truth.md

Every method explains the same predictions; the truth is what the network does when a part of the input is replaced
(blurred tiles of a photograph, exchanged bases of a sequence, greyed patches of a transformer). Measured are the
agreement with it (signed and absolute rank correlation, correlation), sparsity, mass in the mask where there is one,
and cost in forward passes. Eight settings of each network (the defaults, the best) and the peers go on to more
cases and to flipping curves (symmetric relevance gain, deletion, insertion).

Every measurement is a line in `--out`, which is part of the repository: a run that was stopped goes on where it was,
what is there is not measured again, and networks may run side by side (`--networks resnet50`). `--minutes 5` stops
after that time; `--report` measures nothing and writes the page from what is there.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import math
import os
import re
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from plrp import metrics
from truth_methods import DEFAULTS, PEERS, Method, Traces, methods
from truth_networks import NETWORKS, Case
from truth_page import by_method, faithfulness, write_page

ROOT = Path(__file__).resolve().parents[1]
MEASURED = ROOT / "benchmarks" / "measured"
KEYS = ("case", "part", "method")
NUMBERS = (
    "spearman", "spearman_absolute", "pearson", "gini", "zeros", "mass", "far", "lost", "cost", "deletion", "insertion",
    "gain", "share", "n",
)  # fmt: skip
COLUMNS = (*KEYS, *NUMBERS, "name", "values", "error")
SAME = 0.02  # of the largest truth: training again on another machine rounds otherwise
LOST = 0.2  # logits: a far site that moves the score by this much must not be without relevance


def seconds(run: Any) -> tuple[float, Any]:
    """Of this process, so that other work on the machine does not count."""
    begin = time.process_time()
    answer = run()
    return time.process_time() - begin, answer


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


def flip(model: Answers, case: Case, relevance: Tensor) -> dict[str, Any]:
    """Deletion (most relevant first), insertion (the same curve from its other end), and their difference."""
    curve = case.flipping(model, relevance)
    assert curve.least_first is not None
    assert curve.symmetric_relevance_gain is not None
    gain = curve.symmetric_relevance_gain.item()
    return {"deletion": curve.auc.item(), "insertion": curve.auc.item() + gain, "gain": gain}


class Store:
    """A table, one line per network, case, part and method; what is there is not measured again."""

    def __init__(self, folder: Path, network: str) -> None:
        self.file = folder / f"truth-{network}.csv"
        self.rows = records(self.file)
        self.known = {tuple(row[key] for key in KEYS) for row in self.rows}

    def add(self, **row: Any) -> None:
        self.rows.append(row)
        self.known.add(tuple(row[key] for key in KEYS))
        fresh = not self.file.exists()
        with self.file.open("a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            if fresh:
                writer.writeheader()
            writer.writerow({key: stored(value) for key, value in row.items()})


def stored(value: Any) -> Any:
    """Four digits are enough."""
    if isinstance(value, list):
        return " ".join(map(stored, value))
    return f"{value:.4g}" if isinstance(value, float) else value


def records(file: Path) -> list[dict[str, Any]]:
    """Everything measured so far; a line cut off by a crash is left out."""
    if not file.exists():
        return []
    text = file.read_text()
    if not text.endswith("\n"):
        text = text[: text.rfind("\n") + 1]
        file.write_text(text)
    found = []
    for line in csv.DictReader(text.splitlines()):
        row: dict[str, Any] = {k: v for k, v in line.items() if v != ""}
        row["case"] = int(row["case"])
        row |= {k: float(v) for k, v in row.items() if k in NUMBERS}
        if "values" in row:
            row["values"] = [float(v) for v in row["values"].split()]
        found.append(row)
    return found


class OutOfTime(Exception):
    """The minutes that were given are over."""


class Answers:
    """The model's answers to many inputs of one case: frozen, which is quicker, and asked about each input once.

    Frozen and unfrozen answers differ by rounding. Methods overwrite much the same parts of a photograph, and all of
    them begin with none and end with all.
    """

    def __init__(self, model: nn.Module, example: Tensor) -> None:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            traced = torch.jit.trace(model, example.expand(2, *example.shape[1:]), check_trace=False)
            self.model = torch.jit.optimize_for_inference(torch.jit.freeze(traced))
        self.known: dict[bytes, Tensor] = {}

    def __call__(self, inputs: Tensor) -> Tensor:
        keys = [hashlib.sha256(row.numpy()).digest() for row in inputs.contiguous()]
        fresh = {key: row for key, row in zip(keys, inputs, strict=True) if key not in self.known}
        if fresh:
            self.known |= dict(zip(fresh, self.model(torch.stack(list(fresh.values()))), strict=True))
        return torch.stack([self.known[key] for key in keys])


def measure(name: str, options: argparse.Namespace) -> None:
    """Add what is missing for one network: every method on the first cases, the finalists on more."""
    network = NETWORKS[name]
    store = Store(options.out, name)
    model, cases = network.load(options.data, options.weights)
    screened, finals = (
        min(given or usual, len(cases))
        for given, usual in ((options.screen, network.screened), (options.samples, network.finals))
    )
    answers = Answers(model, cases[0].input)
    if network.trained_here:
        check_same_weights(store, answers, cases)
    for index in range(screened):
        run(
            chosen_by(options, methods(network.kind)),
            ("screen",),
            store,
            model,
            answers,
            cases,
            index,
            network.kind,
            options,
        )
    if options.finals:
        first = [row for row in store.rows if row["case"] < screened]
        chosen = finalists(first, network.kind, options.finals)
        chosen = chosen_by(options, methods(network.kind) if options.methods else chosen)
        for index in range(*options.only.indices(finals)):
            parts = tuple(part for part in options.parts if part != "flip" or index < options.flips)
            run(chosen, parts, store, model, answers, cases, index, network.kind, options)


def run(
    chosen: list[Method], parts: tuple[str, ...], store: Store, model: nn.Module, answers: Answers, cases: Any,
    index: int, kind: str, options: argparse.Namespace,
) -> None:  # fmt: skip
    """Measure those of the chosen methods on one case that are not yet."""
    missing = {method: [part for part in parts if (index, part, method.label) not in store.known] for method in chosen}
    work = {method: parts for method, parts in missing.items() if parts}
    if not work:
        return
    begin = time.perf_counter()
    answers.known.clear()
    case = cases[index]
    truth = torch.empty(0) if parts == ("flip",) else truth_of(store, case, index, answers)
    traces = Traces(model, case, kind)
    with torch.no_grad():
        model(case.input)
        forward = statistics.median(seconds(lambda: model(case.input))[0] for _ in range(3))
    for method, missing_parts in work.items():
        if time.monotonic() > options.until:
            raise OutOfTime
        relevance = None
        for part in missing_parts:
            try:
                if relevance is None:
                    spent, relevance = seconds(lambda m=method: traces.explained(m))
                if not bool(torch.isfinite(relevance).all()):
                    raise ValueError("relevance is not finite")
                if part == "flip":
                    row = flip(answers, case, relevance)
                else:
                    row = screen(case, truth, relevance)
                    row["cost"] = spent / forward + Traces.passes(method)
            except Exception as error:  # a method that cannot run is told, the others go on
                row = {"error": f"{type(error).__name__}: {error}"[:200].replace("\n", " ")}
            store.add(case=index, part=part, method=method.label, **row)
    print(
        f"{store.file.stem}, case {index} ({case.name}): {len(work)} methods in {time.perf_counter() - begin:.0f} s",
        flush=True,
    )


def truth_of(store: Store, case: Case, index: int, answers: Answers) -> Tensor:
    """The truth of a case, (1, features): asked for once."""
    known = [r["values"] for r in store.rows if r["case"] == index and r["part"] == "truth"]
    if not known:
        known = [case.truth(answers)[0].tolist()]
        store.add(case=index, part="truth", method="truth", name=case.name, values=known[0])
    return torch.tensor(known[0], dtype=torch.float64)[None]


def finalists(rows: list[dict[str, Any]], kind: str, count: int) -> list[Method]:
    """What is to be known in any case, the best pruned setting, the best by agreement, `count` in all; and the peers.

    For attention, where a unit of pruning was to be chosen, more than `count` are to be known in any case.
    """
    among = methods(kind)
    scores = {label: faithfulness(found) for label, found in by_method(rows, "screen").items()}
    ours = [m for m in among if m.pruning is not None and not math.isnan(scores.get(m.label, math.nan))]
    ours.sort(key=lambda m: -scores[m.label])
    default = [m for m in among if m.label in DEFAULTS[kind]]
    pruned = [m for m in ours if m.pruning != "LRP"][:1]
    chosen = list(dict.fromkeys([*default, *pruned, *ours]))[: max(count, len(default))]
    return [*chosen, *(m for m in among if m.name in PEERS)]


def check_same_weights(store: Store, answers: Answers, cases: Any) -> None:
    """Refuse to add rows of other weights: training again need not end where it ended before."""
    known = next((row for row in store.rows if row["part"] == "truth"), None)
    if known is not None:
        before = torch.tensor(known["values"], dtype=torch.float64)
        apart = float((cases[known["case"]].truth(answers)[0].double() - before).abs().max() / before.abs().max())
        if apart > SAME:
            raise SystemExit(
                f"{store.file} is of other weights (the truth of case {known['case']} is {apart:.0%} off): take those, "
                "or remove the file and measure again."
            )


def chosen_by(options: argparse.Namespace, among: list[Method]) -> list[Method]:
    """Those whose label `--methods` matches."""
    return [method for method in among if re.search(options.methods, method.label)]


def part_of(text: str) -> slice:
    """`0:100:2` as Python reads it."""
    return slice(*(int(number) if number else None for number in text.split(":")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--screen", type=int, default=0, help="cases that every method explains (as the network says)")
    parser.add_argument("--finals", type=int, default=8, help="how many settings go on to the finals (8; 0: no finals)")
    parser.add_argument("--samples", type=int, default=0, help="cases in the finals (as the network says, mostly 100)")
    parser.add_argument("--flips", type=float, default=math.inf, help="how many of them with flipping curves (all)")
    parser.add_argument("--parts", nargs="+", choices=("screen", "flip"), default=["screen", "flip"], help="of finals")
    parser.add_argument(
        "--only", type=part_of, default=slice(None), metavar="FIRST:END:STEP",
        help="of the finals' cases, with a copy of --out for each: shares out the work",
    )  # fmt: skip
    parser.add_argument("--methods", default="", help="only methods whose label this regular expression matches")
    parser.add_argument("--data", type=Path, default=os.environ.get("PLRP_DATA", ROOT.parent / "shared" / "data"))
    parser.add_argument("--weights", type=Path, default=ROOT / "bench" / "weights", help="for networks trained here")
    parser.add_argument("--out", type=Path, default=MEASURED)
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="stop after so many minutes; run again to go on"
    )
    parser.add_argument("--report", action="store_true", help="measure nothing; print what is there")
    parser.add_argument("--page", type=Path, help="the page to write; its picture goes to assets/ beside it")
    options = parser.parse_args()
    options.data = Path(options.data)
    options.until = time.monotonic() + 60 * options.minutes
    for folder in (options.out, options.weights):
        folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # cost in processor time; other networks may run beside
    try:
        for name in () if options.report else options.networks:
            measure(name, options)
    except OutOfTime:
        print("The time is over: run again to go on.")
    text = write_page({name: records(options.out / f"truth-{name}.csv") for name in NETWORKS}, options.page)
    if options.page is None:
        print(text)


if __name__ == "__main__":
    main()
