"""The page of the bench of truth: a table per network, one over all of them, and a picture."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from plrp.experiments.intervals import bootstrap
from plrp.experiments.score_figures import FAINT, GRID, INK
from truth_methods import ALL_PRUNINGS, COMPOSITES, DEFAULT, PEERS, methods
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


def agreement(row: dict[str, Any]) -> float:
    """That of one case: the mean of signed rank correlation and correlation; those of a constant map are 0."""
    return statistics.fmean(0.0 if math.isnan(row[name]) else row[name] for name in ("spearman", "pearson"))


def apart(rows: Rows, base: Rows, measure: Callable[[dict[str, Any]], float] = agreement) -> list[float]:
    """The differences of two methods, case by case, on the cases that both have."""
    of_base = {row["case"]: measure(row) for row in base}
    return [measure(row) - of_base[row["case"]] for row in rows if row["case"] in of_base]


def interval(differences: Sequence[float]) -> tuple[float, float, float]:
    """Their mean, and the ends of its 95% interval by a bootstrap over cases (NaN of a single case)."""
    low, high = bootstrap(differences)
    return statistics.fmean(differences), float(low), float(high)


def signed(differences: Sequence[float]) -> str:
    """A mean difference with its interval, in a table."""
    if not differences:
        return ""
    centre, low, high = interval(differences)
    between = "" if math.isnan(low) else f" [{low:+.2f}, {high:+.2f}]"
    return f"{centre:+.2f}{between}".replace("-", "−")


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
        draw_references(measured, page.parent / "assets" / "truth-references.svg")
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
        found = {name: len(by_method(kept[name], "screen")) for name, n in NETWORKS.items() if n.kind == kind}
        names = [name for name, count in found.items() if count > max(found.values()) / 2]  # not those with few rows
        if len(names) > 1:
            lines += [f"## {title}: all networks", "", *overview(kept, names), ""]
    for name, network in NETWORKS.items():
        if kept[name]:
            errors = {r["method"]: r["error"] for r in measured[name] if "error" in r}
            lines += [f"## {network.title}", ""]
            finals = of_finalists(measured[name], kept[name])
            if finals:
                lines += [
                    "The finals:",
                    "",
                    *own_table(finals, DEFAULT[network.kind]),
                    "",
                    "All methods, on fewer cases:",
                    "",
                ]
            lines += [*own_table(kept[name], DEFAULT[network.kind]), ""]
            beside = beside_references(measured[name], network.kind)
            if by_method(beside, "screen").keys() - by_method(kept[name], "screen").keys():
                lines += ["Against references, on the cases that all these rows have:", ""]
                lines += [*own_table(beside, DEFAULT[network.kind]), ""]
            lines += [f"{shown(method)} did not run: {why}" for method, why in errors.items()] + [""] * bool(errors)
    lines += ["## How sparse without loss?", "", *sparse(measured), ""]
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


def own_table(rows: Rows, default: str) -> list[str]:
    """Every method of one network, best first; its agreement and gain also as a difference to the default's."""
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
    heads = [COLUMNS[c] for c in columns]
    heads.insert(3, "agreement − default's")
    if flipped:
        heads.insert(columns.index("gain") + 2, "gain − default's")
    lines += ["| method | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
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
        other = method != default
        cells.insert(3, signed(apart(screened[method], screened.get(default, []))) if other else "")
        if flipped:
            gains = apart(flipped.get(method, []), flipped.get(default, []), lambda row: row["gain"])
            cells.insert(columns.index("gain") + 2, signed(gains) if other else "")
        lines.append(f"| {shown(method)} | " + " | ".join(cells) + " |")
    return lines


def beside_references(rows: Rows, kind: str) -> Rows:
    """Explanations of differences, the default with its prunings, and peers, on the cases that all of them have."""
    default = DEFAULT[kind].partition(" | ")[0]
    found = by_method(rows, "screen")
    wanted = {
        m.label: {row["case"] for row in found.get(m.label, [])}
        for m in methods(kind)
        if m.reference is not None or m.name == default or m.pruning is None
    }
    counts = [len(cases) for label, cases in wanted.items() if " against " in label and cases]
    if not counts or statistics.median_low(counts) < 2:  # one case says nothing about a difference
        return []
    ready = {label: cases for label, cases in wanted.items() if len(cases) >= statistics.median_low(counts)}
    shared = set.intersection(*ready.values())
    return [row for row in rows if row["method"] in ready and row["case"] in shared and "error" not in row]


SPARSE = 0.95


def sparse(measured: Mapping[str, Rows]) -> list[str]:
    """Where a Gini index above 0.95 is reached: of each network the best such row with and without a reference.

    Its loss is told against the same explanation unpruned, on the cases that both have; where no row is so sparse, the
    sparsest stands there.
    """
    heads = "network", "explanation", "p = 0: agreement (Gini)", "pruned", "agreement (Gini)", "difference"
    lines = ["| " + " | ".join((*heads, "Gini > 0.95, no loss beyond its interval")) + " |", "|---" * 7 + "|"]
    for name, network in NETWORKS.items():
        found = by_method(measured[name], "screen")
        known = {method.label for method in methods(network.kind)}
        for against in (False, True):
            pairs = []
            for label in (m for m in found if m in known and (" against " in m) == against and " | " in m):
                whole = f"{label.partition(' | ')[0]} | LRP"
                if label != whole and whole in found:
                    cases = {row["case"] for row in found[label]} & {row["case"] for row in found[whole]}
                    pairs.append([[r for r in found[m] if r["case"] in cases] for m in (label, whole)])
            most = max((len(pruned) for pruned, _ in pairs), default=0)
            pairs = [pair for pair in pairs if len(pair[0]) >= max(2, min(most, 20))]
            if pairs:
                lines.append(f"| {network.title}, n = {' | '.join(sparsest(pairs))} |")
    return lines


def sparsest(pairs: Sequence[Sequence[Rows]]) -> list[str]:
    """The cells of `sparse`, of pairs of rows pruned and not: n, explanation, before, pruning, after, loss, verdict."""
    enough = [pair for pair in pairs if mean(pair[0], "gini") > SPARSE]
    pruned, whole = (
        max(enough, key=lambda pair: faithfulness(pair[0]))
        if enough
        else max(pairs, key=lambda pair: mean(pair[0], "gini"))
    )
    differences = apart(pruned, whole)
    if interval([agreement(row) for row in whole])[1] <= 0:
        verdict = "nothing to lose: no agreement at p = 0"
    elif not enough:
        verdict = f"not reached: {mean(pruned, 'gini'):.2f}"
    else:
        verdict = "**yes**" if interval(differences)[2] >= 0 else "no"
    at, before = (f"{faithfulness(rows):.2f} ({mean(rows, 'gini'):.2f})" for rows in (pruned, whole))
    explanation = shown(whole[0]["method"]).removesuffix(", LRP")
    return [
        str(len(pruned)),
        explanation,
        before,
        pruned[0]["method"].partition(" | ")[2],
        at,
        signed(differences),
        verdict,
    ]


def shown(label: str) -> str:
    """A method's label in a table: `composite` against a reference, pruning."""
    name, _, pruning = label.partition(" | ")
    name, against, reference = name.partition(" against ")
    return f"`{name}`{against}{reference}, {pruning}" if pruning else name


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


def draw_references(measured: Mapping[str, Rows], file: Path) -> None:
    """Agreement against sparsity of the default and of differences to references, a panel per network.

    A colour is a composite against a reference, λ a line and M± a dotted one; all of a panel on the same cases.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.lines import Line2D

    found = {n: by_method(beside_references(measured[n], k.kind), "screen") for n, k in NETWORKS.items()}
    names = [name for name in NETWORKS if found[name]]
    if not names:
        return
    columns = min(3, len(names))
    rows = math.ceil(len(names) / columns)
    figure, axes = plt.subplots(rows, columns, figsize=(4.6 * columns, 3.9 * rows), squeeze=False, layout="constrained")
    colours: dict[str, str] = {}
    for axis in axes.flat[len(names) :]:
        axis.set_visible(False)
    for axis, name in zip(axes.flat, names, strict=False):
        at = {m: (mean(several, "gini"), faithfulness(several)) for m, several in found[name].items()}
        default = DEFAULT[NETWORKS[name].kind].partition(" | ")[0]
        for explanation in dict.fromkeys(m.partition(" | ")[0] for m in at if " | " in m):
            key = "LRP, the default" if explanation == default else re.sub(r":.*", "", explanation)
            if key.startswith("rescale-gamma 1") or key.startswith("rescale-plus") or "ten orders" in key:
                continue
            colour = (
                INK
                if explanation == default
                else colours.setdefault(key, (*COLOURS, "#8c564b", "#f0e442")[len(colours)])
            )
            for family, style in (("λ", "-"), ("λ by position", "--"), ("M±", ":")):
                points = [
                    at[m]
                    for m in sorted(at, key=lambda m: m.rpartition(" ")[2])
                    if re.fullmatch(rf"{re.escape(explanation)} \| {re.escape(family)} [0-9.]+", m)
                ]
                points = [at[f"{explanation} | LRP"], *points]
                axis.plot(*zip(*points, strict=True), linestyle=style, color=colour, linewidth=1.2)
                axis.plot(*zip(*points, strict=True), ".", color=colour, markersize=4)
            axis.plot(*at[f"{explanation} | LRP"], "o", color=colour, markersize=5)
        for peer in ("DeepLIFT", "DeepLIFT from zeros", "DeepLIFT from blur:8"):
            if peer in at:
                axis.plot(*at[peer], "x", color=FAINT, markersize=6)
                axis.annotate(peer, at[peer], xytext=(3, 3), textcoords="offset points", fontsize=6.5, color=FAINT)
        axis.axvline(SPARSE, color=GRID, linewidth=1)
        cases = max(map(count, found[name].values()))
        axis.set_title(f"{NETWORKS[name].title}, n = {cases}", fontsize=9, loc="left", color=INK)
        axis.grid(color=GRID, linewidth=0.6)
        axis.tick_params(labelsize=7.5, colors=FAINT)
        axis.set_xlabel("sparsity (Gini index)", fontsize=8, color=FAINT)
        axis.set_ylabel("agreement, mean of ρ and r", fontsize=8, color=FAINT)
    handles = [Line2D([], [], color=INK, marker="o", markersize=5, label="LRP, the default")]
    handles += [Line2D([], [], color=c, marker="o", markersize=5, label=k) for k, c in colours.items()]
    styles = {"by position": "--", "M±": ":"}
    handles += [Line2D([], [], color=INK, linestyle=style, label=label) for label, style in styles.items()]
    handles += [Line2D([], [], color=FAINT, marker="x", linestyle="", label="Captum's DeepLIFT")]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, fontsize=7.5, frameon=False)
    with plt.rc_context({"svg.hashsalt": "plrp"}):
        figure.savefig(file, metadata={"Date": None})
    plt.close(figure)
