"""LRP and PLRP against Zennit, Captum, autoLRP, gradient × input and the conv floor, interleaved in one run.

Every method runs once per round, in a random order, on the same model and photographs; what is printed is the median
over the rounds of its time divided by the model's own forward pass in that round. The conv floor is the model's forward
pass plus one convolution and one transposed convolution per conv layer, and nothing else.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from methods import FORWARD, METHODS, Method, Run, forward
from subjects import load, photographs
from timing import interleaved, number, options, ratio, seconds, spread, table, write

PEERS = ("Zennit", "Captum", "autoLRP", "grad × input", "conv floor")
VARIANTS = {"LRP": "plrp LRP", "λ 0.2": "plrp λ 0.2", "λ 0.5": "plrp λ 0.5", "M 0.2": "plrp M 0.2"}


def able(model: nn.Module, x: Tensor, methods: dict[str, Method]) -> tuple[list[str], dict[str, str]]:
    """Which methods can run, found (and warmed up) on one sample; the reason where one cannot."""
    names, reasons = [], {}
    for name, method in methods.items():
        try:
            seconds(method(model, x[:1]))
            names.append(name)
        except Exception as error:
            reasons[name] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:100]}"
    return names, reasons


def measure(
    model: nn.Module, x: Tensor, methods: dict[str, Method], label: str, most: int, budget: float
) -> dict[str, Any]:
    """Multiples of the forward pass by method, their spread, and the reasons of those who cannot run."""
    names, reasons = able(model, x, methods)
    runs: dict[str, Run] = {name: methods[name](model, x) for name in names}
    runs[FORWARD] = lambda: forward(model, x)
    runs[FORWARD]()
    rounds = interleaved(runs, label, least=min(3, most), most=most, budget=budget)
    return {
        "multiples": {name: ratio(rounds, name, FORWARD) for name in names},
        "spread": {name: spread(rounds, name, FORWARD) for name in names},
        "against Zennit": {n: ratio(rounds, "Zennit", n) for n in names} if "Zennit" in names else {},
        "against own LRP": {n: ratio(rounds, n, "plrp LRP") for n in names} if "plrp LRP" in names else {},
        "against the floor": {n: ratio(rounds, n, "conv floor") for n in names} if "conv floor" in names else {},
        "rounds": len(rounds),
        "reasons": reasons,
    }


def lines(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """The table: one row per model, batch and variant; columns are libraries and references.

    A dash: cannot run, for the reason given below the table. Empty: the library has no such variant.
    """
    header = ["model", "batch", "method", "plrp", *PEERS]
    found = []
    for row in rows:
        values = row["multiples"]
        for variant, name in VARIANTS.items():
            peers = [number(values.get(p)) if variant == "LRP" else "" for p in PEERS]
            if name in values:
                found.append([row["model"], str(row["batch"]), variant, number(values[name]), *peers])
    return header, found


def reasons(rows: list[dict[str, Any]]) -> list[str]:
    """Why some could not run."""
    return sorted({f"– {name} on {row['model']}: {why}" for row in rows for name, why in row["reasons"].items()})


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--models", nargs="+", default=["vgg16", "resnet50"])
    parser.add_argument("--batches", nargs="+", type=int, help="default: 1 and 8; quick: 1")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS), help="default: all")
    args = parser.parse_args()
    methods = {name: METHODS[name] for name in args.methods}
    rows = []
    for name in args.models:
        model = load(name)
        for batch in args.batches or ([1] if args.quick else [1, 8]):
            label = f"{name}, batch {batch}"
            print(f"measuring {label} …", flush=True)
            most, budget = args.rounds or (3 if args.quick else 9), 25 if args.quick else 100
            found = measure(model, photographs(batch, 224), methods, label, most, budget)
            rows.append({"model": name, "batch": batch, **found})
            write(args.out, "engine", {"rows": rows})
    print("\nmultiples of the model's own forward pass (medians of interleaved rounds)\n")
    print(table(*lines(rows)))
    print("\n".join(reasons(rows)))


if __name__ == "__main__":
    main()
