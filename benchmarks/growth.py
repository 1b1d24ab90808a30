"""How cost grows with batch, resolution and depth: plrp, Zennit, the conv floor and the forward pass, interleaved.

For each setting: multiples of the forward pass at that setting, and the cost relative to the first setting of the
series (of the same method in the same round; all settings of a series run in every round).
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

from methods import METHODS, Run, bound, forward
from report import FORWARD, growth
from subjects import load, photographs
from timing import before, interleaved, options, progress, write

METHODS_SHOWN = ("plrp LRP", "plrp λ 0.2", "Zennit", "conv floor")


class Setting(NamedTuple):
    model: str
    batch: int
    size: int


SERIES: dict[str, dict[str, Setting]] = {
    "batch": {str(n): Setting("resnet50", n, 224) for n in (1, 2, 4, 8)},
    "resolution": {str(n): Setting("resnet50", 1, n) for n in (112, 224, 448)},
    "depth": {name: Setting(name, 1, 224) for name in ("resnet18", "resnet50", "resnet152")},
}
QUICK = {"batch": ("1", "2"), "resolution": ("112", "224"), "depth": ("resnet18", "resnet50")}


def measure(
    name: str, settings: dict[str, Setting], methods: tuple[str, ...], most: int, budget: float
) -> dict[str, Any]:
    """Seconds of every method at every setting, in every round."""
    runs: dict[str, Run] = {}
    for key, (model_name, batch, size) in settings.items():
        progress(f"{name}: {model_name}, batch {batch}, {size} pixels")
        model, x = load(model_name), photographs(batch, size)
        spare = copy.deepcopy(model)
        for method in (FORWARD, *methods):
            bind = bound(forward) if method == FORWARD else METHODS[method]
            run = bind(spare if method == "Zennit" else model, x)
            run()  # warm
            runs[f"{key} {method}"] = run
    rounds = interleaved(runs, f"growth with {name}", least=min(3, most), most=most, budget=budget)
    return {"settings": list(settings), "methods": [FORWARD, *methods], "seconds": rounds}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--series", nargs="+", choices=list(SERIES), default=list(SERIES))
    parser.add_argument("--add", action="store_true", help="add the rounds to those in the folder, not replace them")
    args = parser.parse_args()
    methods = METHODS_SHOWN[:2] if args.quick else METHODS_SHOWN
    found: dict[str, Any] = before(args, "growth").get("series", {})
    for name in args.series:
        settings = {k: v for k, v in SERIES[name].items() if not args.quick or k in QUICK[name]}
        most, budget = args.rounds or (2 if args.quick else 5), 8 if args.quick else 60
        rounds = measure(name, settings, methods, most, budget)
        if name in found:
            found[name]["seconds"] += rounds["seconds"]
        else:
            found[name] = rounds
        write(args, "growth", {"series": found})
    print("\n" + growth({"growth": {"series": found}}).text())


if __name__ == "__main__":
    main()
