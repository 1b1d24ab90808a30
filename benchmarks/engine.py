"""LRP and PLRP against Zennit, Captum, autoLRP, gradient × input and the conv floor, interleaved in one run.

Every method runs once per round, in a random order, on the same photographs; what is printed is the median over the
rounds of its time divided by the model's own forward pass in that round. The conv floor is the model's forward pass
plus one convolution and one transposed convolution per conv layer, and nothing else. Peers work on a copy of the model:
they hang hooks on it and swap its parameters.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from methods import METHODS, Method, Run, forward
from report import FORWARD, cost
from subjects import load, photographs
from timing import Rounds, before, interleaved, options, progress, write


def able(model: nn.Module, x: Tensor, methods: dict[str, Method], label: str) -> tuple[dict[str, str], dict[str, Any]]:
    """Why some methods cannot run, found (and the others warmed up) on one sample; and who agrees with plrp's LRP.

    The second mapping holds the correlation of a peer's relevance with ours; None where it is not finite.
    """
    reasons, found = {}, {}
    for name, method in methods.items():
        progress(f"{label}: trying {name}")
        try:
            found[name] = method(model, x[:1])()
        except Exception as error:
            reasons[name] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:100]}"
    progress.clear()
    own = found.get("plrp LRP")
    if own is None:
        return reasons, {}
    return reasons, {n: correlation(own, found[n].detach()) for n in ("Zennit", "Captum", "autoLRP") if n in found}


def correlation(a: Tensor, b: Tensor) -> float | None:
    """Pearson's correlation of two maps of relevance."""
    both = torch.stack([a.flatten().double(), b.flatten().double()])
    found = float(torch.corrcoef(both)[0, 1])
    return found if both.isfinite().all() and found == found else None


def measure(
    model: nn.Module, x: Tensor, methods: dict[str, Method], label: str, most: int, budget: float
) -> dict[str, Any]:
    """Seconds of every method in every round, and the reasons of those that cannot run."""
    spare = copy.deepcopy(model)
    reasons, likeness = able(spare, x, methods, label)
    runs: dict[str, Run] = {
        name: method(model if name.startswith(("plrp", "conv")) else spare, x)
        for name, method in methods.items()
        if name not in reasons
    }
    runs[FORWARD] = lambda: forward(model, x)
    runs[FORWARD]()
    rounds: Rounds = interleaved(runs, label, least=min(3, most), most=most, budget=budget)
    return {"seconds": rounds, "reasons": reasons, "likeness": likeness}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--models", nargs="+", default=["vgg16", "resnet50"])
    parser.add_argument("--batches", nargs="+", type=int, help="default: 1 and 8; quick: 1")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS), help="default: all")
    parser.add_argument("--add", action="store_true", help="add the rounds to those in the folder, not replace them")
    args = parser.parse_args()
    methods = {name: METHODS[name] for name in args.methods}
    rows: list[dict[str, Any]] = before(args, "engine").get("rows", [])
    for name in args.models:
        progress(f"loading {name}")
        model = load(name)
        for batch in args.batches or ([1] if args.quick else [1, 8]):
            most, budget = args.rounds or (3 if args.quick else 9), 20 if args.quick else 100
            found = measure(model, photographs(batch, 224), methods, f"{name}, batch {batch}", most, budget)
            row = next((r for r in rows if (r["model"], r["batch"]) == (name, batch)), None)
            if row is None:
                rows.append({"model": name, "batch": batch, **found})
            else:
                row["seconds"] += found["seconds"]
            write(args, "engine", {"rows": rows})
    print("\n" + cost({"engine": {"rows": rows}}).text())


if __name__ == "__main__":
    main()
