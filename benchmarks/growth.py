"""How cost grows with batch, resolution and depth: plrp, Zennit, the conv floor and the forward pass, interleaved.

For each setting: multiples of the forward pass at that setting, and the cost relative to the first setting of the
series (of the same method in the same round; all settings of a series run in every round).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from methods import FORWARD, METHODS, Run, bound, forward
from subjects import load, photographs
from timing import interleaved, number, options, ratio, table, write

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


def measure(name: str, settings: dict[str, Setting], methods: tuple[str, ...], most: int, budget: float) -> list[Any]:
    """One record per setting and method."""
    runs: dict[str, Run] = {}
    for key, (model_name, batch, size) in settings.items():
        model, x = load(model_name), photographs(batch, size)
        for method in (FORWARD, *methods):
            run = (bound(forward) if method == FORWARD else METHODS[method])(model, x)
            run()  # warm
            runs[f"{key} {method}"] = run
    rounds = interleaved(runs, name, least=min(3, most), most=most, budget=budget)
    first = next(iter(settings))
    return [
        {
            "setting": key,
            "method": method,
            "multiple": ratio(rounds, f"{key} {method}", f"{key} {FORWARD}"),
            "relative": ratio(rounds, f"{key} {method}", f"{first} {method}"),
        }
        for key in settings
        for method in (FORWARD, *methods)
    ]


def lines(series: str, records: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """One row per setting: multiples of the forward pass, and in brackets the cost relative to the first setting."""
    methods = list(dict.fromkeys(r["method"] for r in records))
    rows = []
    for key in dict.fromkeys(r["setting"] for r in records):
        here = {r["method"]: r for r in records if r["setting"] == key}
        rows.append([key, *(f"{number(here[m]['multiple'])} ({number(here[m]['relative'])} ×)" for m in methods)])
    return [series, *methods], rows


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--series", nargs="+", choices=list(SERIES), default=list(SERIES))
    args = parser.parse_args()
    methods = METHODS_SHOWN[:2] if args.quick else METHODS_SHOWN
    found: dict[str, Any] = {}
    for name in args.series:
        print(f"measuring growth with {name} …", flush=True)
        settings = {k: v for k, v in SERIES[name].items() if not args.quick or k in QUICK[name]}
        found[name] = measure(name, settings, methods, args.rounds or (2 if args.quick else 5), 8 if args.quick else 60)
        write(args.out, "growth", {"series": found})
    print("\nmultiples of the forward pass at that setting (cost relative to the first setting)")
    for name, records in found.items():
        print("\n" + table(*lines(name, records)))


if __name__ == "__main__":
    main()
