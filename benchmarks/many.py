"""Many explanations at once: 1,000 targets or conditions of one trace in stacks, beside as many explanations.

    python benchmarks/many.py [--quick]

Targets and conditions are of a small network with random weights that reads 250 bases: four scores at each of them.
Beside `Trace.sweep`, in stacks, stands `plrp.explain` of each (explained), and `Trace.explain` of each (on the trace).
The edges of a circuit, `choose_p` over its grid and the 63 maps of a page are of ResNet-50, beside the plain walk.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import plrp
from report import many
from sequences import one_hot
from subjects import load, photographs
from timing import interleaved, options, write

Run = Callable[[], Any]
PRUNINGS = {"LRP": None, "λ 0.2": plrp.Pruning(0.2)}
PAGE = {"targets": 3, "proportions": tuple(n / 20 for n in range(1, 11)), "show_progress": False}
PLAIN, OURS = "plain walk", "plrp"


def network() -> nn.Module:
    """Four scores at each of 250 bases."""
    torch.manual_seed(0)
    below = (nn.Conv1d(4, 32, 11, padding=5), nn.ReLU(), nn.Conv1d(32, 32, 9, padding=4), nn.ReLU())
    return nn.Sequential(*below, nn.Conv1d(32, 4, 9, padding=4)).eval()


def of_sequence(what: str, pruning: plrp.Pruning | None, count: int) -> dict[str, Run]:
    """Many targets, or many conditions on one target: a channel of the second layer at a place that the score reads."""
    model, x = network(), one_hot(1)
    trace = plrp.trace(model, x)
    rules: dict[str, Any] = {"composite": "epsilon-plus", "pruning": pruning}
    if what == "targets":
        asked: list[dict[str, Any]] = [{"target": (n % 4, n // 4 % 250)} for n in range(count)]
        swept: dict[str, Any] = {"targets": [one["target"] for one in asked]}
    else:
        masks = torch.eye(32 * 9, dtype=torch.bool).view(-1, 32, 9)
        masks = nn.functional.pad(masks, (121, 120))[torch.arange(count) % len(masks)]
        asked = [{"target": (0, 125), "condition": {"2": mask}} for mask in masks]
        swept = {"target": (0, 125), "condition": [one["condition"] for one in asked]}
    return {
        "explained": lambda: [plrp.explain(model, x, **rules, **one) for one in asked],
        "on the trace": lambda: [trace.explain(**rules, **one) for one in asked],
        "in stacks": lambda: list(trace.sweep([pruning], composite="epsilon-plus", **swept)),
    }


def of_photograph() -> dict[str, Run]:
    """What explains one photograph many times over."""
    model, x = load("resnet50"), photographs(1, 224)
    rules: dict[str, Any] = {"composite": "epsilon-plus-flat"}
    explanation = plrp.explain(model, x, pruning=plrp.Pruning(0.15), **rules)
    circuits, traces = {}, {}
    for walk, here in ((OURS, partial(plrp.engine._walking, False, {})), (PLAIN, plrp.plain_walk)):
        with here():
            circuits[walk], traces[walk] = explanation.circuit(), plrp.trace(model, x)

    def page(_: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            explanation.save(Path(folder) / "page.html", **PAGE)

    return {
        "circuit with its edges": lambda walk: circuits[walk].edges(),
        "choose_p over its grid": lambda walk: plrp.choose_p(traces[walk], of="decision", **rules),
        "page of 63 maps": page,
    }


def plainly(run: Callable[[str], Any]) -> None:
    """With the plain walk."""
    with plrp.plain_walk():
        run(PLAIN)


def main() -> None:
    args = options(__doc__).parse_args()
    count, most = 100 if args.quick else 1000, args.rounds or (2 if args.quick else 5)
    rows: list[dict[str, Any]] = []
    for what in ("targets", "conditions"):
        for name, pruning in PRUNINGS.items():
            runs = of_sequence(what, pruning, count)
            rounds = interleaved(runs, f"{count} {what}, {name}", min(2, most), most, 120)
            rows.append({"what": f"{count:,} {what}, {name}", "ours": "in stacks", "seconds": rounds})
            write(args, "many", {"rows": rows})
    for name, run in of_photograph().items():
        runs = {OURS: partial(run, OURS), PLAIN: partial(plainly, run)}
        rounds = interleaved(runs, name, 1 if args.quick else 2, most, 10 if args.quick else 240)
        rows.append({"what": name, "ours": OURS, "seconds": rounds})
        write(args, "many", {"rows": rows})
    print("\n" + many({"many": {"rows": rows}}).text())


if __name__ == "__main__":
    main()
