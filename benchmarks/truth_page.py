"""The page of the bench of truth: a table per network, one over all of them, and a picture."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plrp.experiments.score_figures import FAINT, GRID, INK
from truth_methods import ALL_PRUNINGS, COMPOSITES, PEERS, methods
from truth_networks import NETWORKS

GREY = "#b4bac2"
Rows = Sequence[dict[str, Any]]
BEGIN, END = "<!-- tables of benchmarks/truth.py -->", "<!-- end of the tables -->"
CORRELATIONS = ("spearman", "spearman_absolute", "pearson")
COLUMNS = {
    "spearman": "ρ",
    "spearman_absolute": "ρ of sizes",
    "pearson": "r",
    "gain": "gain",
    "deletion": "deletion",
    "insertion": "insertion",
    "mass": "mass in mask",
    "gini": "Gini",
    "zeros": "zeros",
    "lost": "far sites lost",
    "cost": "cost",
}


def mean(rows: Rows, measure: str) -> float:
    """Over the cases where it is defined; a constant map has no correlation with anything: 0."""
    values = [r[measure] for r in rows if measure in r]
    if measure in CORRELATIONS:
        values = [0.0 if math.isnan(v) else v for v in values]
    values = [v for v in values if not math.isnan(v)]
    if not values:
        return math.nan
    if measure == "lost":
        return sum(values)
    return statistics.median(values) if measure == "cost" else statistics.fmean(values)


def faithfulness(rows: Rows) -> float:
    """What settings are ranked by: the mean of signed rank correlation and correlation with the truth."""
    return (mean(rows, "spearman") + mean(rows, "pearson")) / 2


def by_method(rows: Rows, part: str) -> dict[str, list[dict[str, Any]]]:
    """Measurements of a part by the method's label."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["part"] == part and "error" not in row:
            found.setdefault(row["method"], []).append(row)
    return found


def count(rows: Rows) -> int:
    """How many cases they are of."""
    return len(rows)


def write_page(measured: Mapping[str, Rows], page: Path | None) -> str:
    """The tables as Markdown; with a page, also put between its two comments, with the picture beside it."""
    text = tables(measured)
    if page is not None:
        before, _, rest = page.read_text().partition(BEGIN)
        page.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{rest.partition(END)[2]}")
        draw(measured, page.parent / "assets" / "truth.svg")
    return text


def fair(rows: Rows, kind: str) -> Rows:
    """What the methods of today's tables measured on cases that all of them have: nobody is compared on other cases.

    A method that is still behind most of the others is left out until it has caught up.
    """
    today = {method.label for method in methods(kind)}
    rows = [row for row in rows if row["method"] in today and "error" not in row]
    screened = by_method(rows, "screen")
    if not screened:
        return []
    cases = {label: {row["case"] for row in found} for label, found in screened.items()}
    usual = statistics.median_low(map(len, cases.values()))
    ready = {label: found for label, found in cases.items() if len(found) >= usual - 1}
    shared = set.intersection(*ready.values())
    return [row for row in rows if row["method"] in ready and row["case"] in shared]


def of_finalists(rows: Rows, kept: Rows) -> Rows:
    """What the finalists measured, on the cases that all of them have; nothing where they have no more than others."""
    known = max(map(count, by_method(kept, "screen").values()), default=0)
    further = {label: found for label, found in by_method(rows, "screen").items() if len(found) > known + 1}
    cases = [{row["case"] for row in found} for found in further.values()]
    shared = set.intersection(*cases) if cases else set()
    return [row for row in rows if row["method"] in further and row["case"] in shared and "error" not in row]


def tables(measured: Mapping[str, Rows]) -> str:
    """All networks in one table per kind, then each network's own."""
    kept = {name: fair(measured[name], network.kind) for name, network in NETWORKS.items()}
    lines: list[str] = []
    for kind, title in (("images", "Photographs"), ("sequences", "DNA")):
        names = [name for name, network in NETWORKS.items() if network.kind == kind and kept[name]]
        if len(names) > 1:
            lines += [f"## {title}: all networks", "", *overview(kept, names), ""]
    for name, network in NETWORKS.items():
        if kept[name]:
            errors = {r["method"]: r["error"] for r in measured[name] if "error" in r}
            lines += [f"## {network.title}", ""]
            finals = of_finalists(measured[name], kept[name])
            if finals:
                lines += ["The finals:", "", *own_table(finals), "", "All methods, on fewer cases:", ""]
            lines += [*own_table(kept[name]), ""]
            lines += [f"{shown(method)} did not run: {why}" for method, why in errors.items()] + [""] * bool(errors)
    missing = [network.title for name, network in NETWORKS.items() if not kept[name]]
    lines += [f"Not measured yet: {', '.join(missing)}.", ""] if missing else []
    return "\n".join(lines)


def overview(kept: Mapping[str, Rows], names: Sequence[str]) -> list[str]:
    """ρ / r of every method on every network of a kind, best first by the mean over the networks."""
    found = {name: by_method(kept[name], "screen") for name in names}
    shared = [m for m in found[names[0]] if all(m in found[name] for name in names)]
    score = {m: statistics.fmean(faithfulness(found[name][m]) for name in names) for m in shared}
    titles = [f"{NETWORKS[name].title}, n = {max(map(count, found[name].values()))}" for name in names]
    lines = ["| method | mean | " + " | ".join(titles) + " |", "|---" * (len(names) + 2) + "|"]
    for method in sorted(shared, key=lambda m: -score[m]):
        cells = [f"{mean(found[n][method], 'spearman'):.2f} / {mean(found[n][method], 'pearson'):.2f}" for n in names]
        lines.append(f"| {shown(method)} | {score[method]:.3f} | " + " | ".join(cells) + " |")
    return lines


def own_table(rows: Rows) -> list[str]:
    """Every method of one network, best first."""
    screened, flipped = by_method(rows, "screen"), by_method(rows, "flip")
    most = max(map(count, flipped.values()), default=0)
    flipped = {m: found for m, found in flipped.items() if count(found) >= most / 2}  # finalists of today
    everywhere = set.intersection(*({row["case"] for row in found} for found in flipped.values())) if flipped else set()
    flipped = {m: [row for row in found if row["case"] in everywhere] for m, found in flipped.items() if everywhere}
    both = {m: [*found, *flipped.get(m, [])] for m, found in screened.items()}
    lines = [f"n = {max(map(count, screened.values()))}", ""]
    if flipped:
        lines[0] += f"; gain, deletion and insertion n = {min(map(count, flipped.values()))}, finalists only"
    columns = [c for c in COLUMNS if any(c in row for found in both.values() for row in found)]
    lines += ["| method | " + " | ".join(COLUMNS[c] for c in columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for method in sorted(both, key=lambda m: -faithfulness(both[m])):
        cells = []
        for column in columns:
            value = mean(both[method], column)
            if math.isnan(value):
                cells.append("")
            elif column == "lost":
                cells.append(f"{value:.0f} of {sum(r.get('far', 0) for r in screened[method]):.0f}")
            else:
                cells.append(f"{value:.1f}" if column == "cost" else f"{value:.2f}")
        lines.append(f"| {shown(method)} | " + " | ".join(cells) + " |")
    return lines


def shown(label: str) -> str:
    """A method's label in a table: `composite`, pruning."""
    name, _, pruning = label.partition(" | ")
    return f"`{name}`, {pruning}" if pruning else name


COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
FAMILIES = {"λ": "-", "λ by position": "--", "λ by channel": ":", "M": (0, (1, 3)), "M±": "-."}


def draw(measured: Mapping[str, Rows], file: Path) -> None:
    """Faithfulness against sparsity, a panel per network: every composite a curve over p, peers as points.

    Composites that only have LRP and one p are drawn in grey.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.lines import Line2D

    kept = {name: fair(measured[name], network.kind) for name, network in NETWORKS.items()}
    names = [name for name in NETWORKS if kept[name]]
    columns = min(3, len(names))
    rows = math.ceil(len(names) / columns)
    figure, axes = plt.subplots(rows, columns, figsize=(4.6 * columns, 3.9 * rows), squeeze=False, layout="constrained")
    main = list(dict.fromkeys(name for several in ALL_PRUNINGS.values() for name in several))
    colours = dict(zip(main, COLOURS, strict=True))
    seen: set[str] = set()
    for axis in axes.flat[len(names) :]:
        axis.set_visible(False)
    for axis, name in zip(axes.flat, names, strict=False):
        found = by_method(kept[name], "screen")
        at = {m: (mean(several, "gini"), faithfulness(several)) for m, several in found.items()}
        whole = ALL_PRUNINGS[NETWORKS[name].kind]
        for composite in sorted(COMPOSITES, key=lambda c: c in whole):  # colours above grey
            for family, style in FAMILIES.items() if composite in whole else [("λ", "-")]:
                shares = sorted(
                    (m for m in at if re.fullmatch(rf"{re.escape(composite)} \| {re.escape(family)} [0-9.]+", m)),
                    key=lambda m: float(m.rpartition(" ")[2]),
                )
                points = [at[m] for m in (f"{composite} | LRP", *shares) if m in at]
                if len(points) < 2:
                    continue
                colour = colours[composite] if composite in whole else GREY
                axis.plot(*zip(*points, strict=True), linestyle=style, color=colour, linewidth=1.2)
                axis.plot(*points[0], "o", color=colour, markersize=5 if composite in whole else 3.5)  # LRP
                axis.plot(*zip(*points[1:], strict=True), ".", color=colour, markersize=4)
                seen |= {composite, family}
        for peer in PEERS:
            if peer in at and peer != "random":
                axis.plot(*at[peer], "x", color=INK, markersize=5)
                axis.annotate(peer, at[peer], xytext=(3, 3), textcoords="offset points", fontsize=6.5, color=INK)
        cases = max(map(count, found.values()))
        axis.set_title(f"{NETWORKS[name].title}, n = {cases}", fontsize=9, loc="left", color=INK)
        axis.grid(color=GRID, linewidth=0.6)
        axis.tick_params(labelsize=7.5, colors=FAINT)
        axis.set_xlabel("sparsity (Gini index)", fontsize=8, color=FAINT)
        axis.set_ylabel("faithfulness, mean of ρ and r", fontsize=8, color=FAINT)
    handles = [Line2D([], [], color=colours[c], marker="o", markersize=5, label=c) for c in main if c in seen]
    handles += [Line2D([], [], color=GREY, marker="o", markersize=3.5, label="other composites")]
    handles += [Line2D([], [], color=INK, linestyle=FAMILIES[f], label=f) for f in FAMILIES if f in seen]
    handles += [Line2D([], [], color=INK, marker="x", linestyle="", label="peers")]
    figure.legend(handles=handles, loc="outside lower center", ncols=6, fontsize=7.5, frameon=False)
    with plt.rc_context({"svg.hashsalt": "plrp"}):
        figure.savefig(file, metadata={"Date": None})
    plt.close(figure)
