"""The paper's figures from a run's scores: metrics over p with zoom panels, and flipping curves.

matplotlib without pyplot. A variant has the same colour, line and marker in every figure (Okabe and Ito's colours,
apart for colour-blind eyes; lines and markers differ as well), and its name stands at the end of its line. Bands are
intervals over samples (`intervals`). Everything is placed in inches, so the same scores give the same drawing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from plrp.files import new_figure

from .aligned_scores import (
    BASELINE,
    LABELS,
    LRP,
    VARIANTS,
    AlignedScores,
    Flipping,
    Method,
    nearest_share,
    plain,
    signed,
)
from .intervals import bootstrap

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FAINT, GRID = "#1c2430", "#5a6675", "#d9dfe6"


@dataclass(frozen=True)
class Style:
    """How a variant is drawn; `text` is its colour as a label, dark enough to read."""

    colour: str
    text: str
    line: Any = "-"
    marker: str = "o"
    hollow: bool = False
    width: float = 1.4


STYLES = {
    "LRP": Style("#4a5260", "#4a5261", ":", "D"),
    "lambda": Style("#0072b2", "#0072b3", width=2.1),  # λ wider than M: seen below it where they are the same
    "lambda+gain": Style("#56b4e9", "#1f7fb8", (0, (3, 1.2)), "o", True, 2.1),
    "M": Style("#d55e00", "#c45600", "-", "s", width=1.1),
    "M+gain": Style("#e69f00", "#a06d00", (0, (5, 2)), "s", True, 1.1),
    "M-sign": Style("#009e73", "#007d5b", (0, (1.5, 1)), "^", width=1.1),  # M shows in its gaps where they are the same
    "M-sign+gain": Style("#cc79a7", "#a8527f", (0, (5, 1.2, 1.2, 1.2)), "^", True, 1.1),
}
DARK = {
    INK: "#e6ebf1", FAINT: "#9fabb9", GRID: "#323d4b", "#ffffff": "#171d25",
    "#4a5260": "#c3ccd6", "#4a5261": "#c3ccd6", "#0072b2": "#3d9be0", "#0072b3": "#66b2ec",
    "#56b4e9": "#9ad4ff", "#1f7fb8": "#9ad4ff", "#d55e00": "#f0772b", "#c45600": "#f58d4c",
    "#e69f00": "#f5c04d", "#a06d00": "#f5c04d", "#009e73": "#2fc79a", "#007d5b": "#4fd9b0",
    "#cc79a7": "#e59cc4", "#a8527f": "#f0b6d6",
}  # fmt: skip
"""The same colours for a dark page."""


@dataclass(frozen=True)
class MetricStyle:
    """A metric's title; better: 1 where higher is better, −1 where lower is, else 0; whole: its range, if any."""

    title: str
    better: int
    whole: tuple[float, float] | None = None

    @property
    def heading(self) -> str:
        """The title with the paper's arrow."""
        return self.title + {1: " ↑", -1: " ↓", 0: ""}[self.better]

    @property
    def words(self) -> str:
        """The title within a sentence; names of people keep their capital."""
        return self.title if self.title.startswith(PEOPLE) else self.title[0].lower() + self.title[1:]


PEOPLE = ("Gini", "Hoyer", "Lipschitz")
METRICS = {
    "gini": MetricStyle("Gini index", 1, (0, 1)),
    "entropy": MetricStyle("Entropy (nats)", -1),
    "hoyer": MetricStyle("Hoyer sparsity", 1, (0, 1)),
    "nonzero": MetricStyle("Share of non-zero features", -1, (0, 1)),
    "relevance_mass_accuracy": MetricStyle("Relevance mass accuracy", 1, (0, 1)),
    "relevance_rank_accuracy": MetricStyle("Relevance rank accuracy", 1, (0, 1)),
    "pointing_game": MetricStyle("Pointing game", 1, (0, 1)),
    "local_lipschitz": MetricStyle("Lipschitz estimate", -1),
    "max_sensitivity": MetricStyle("Max sensitivity", -1),
    "pixel_flipping_auc": MetricStyle("Pixel-flipping AUC", -1),
    "symmetric_relevance_gain": MetricStyle("Symmetric relevance gain", 1),
    "score_kept": MetricStyle("Σ R of the input ÷ score", 0),
    "mass_at_input": MetricStyle("Σ|R| of the input over the score", 0),
    "broken": MetricStyle("Share of explanations whose arithmetic broke", 0),
}
SUFFIXES = {"max": "maps over max", "mass": "maps over mass", "norm": "maps over norm"}
"""The meaning of the suffixes in the presets."""
MAIN = {"gini": "sparsity", "relevance_mass_accuracy": "localization", "local_lipschitz": "robustness"}
"""The columns of the paper's figure 2, and the aspect that each shows."""
ZOOM_P = 0.3
"""The zoom panels end here."""
PIXELS = 104
"""Of a page per inch of a figure, so that letters have one size in all of them."""


def metric(name: str) -> MetricStyle:
    """How a metric is shown; a suffix (`local_lipschitz.max`) follows the title."""
    base, _, suffix = name.partition(".")
    known = METRICS.get(base, MetricStyle(base.replace("_", " "), 0))
    if not suffix:
        return known
    return MetricStyle(f"{known.title}, {SUFFIXES.get(suffix, suffix)}", known.better, known.whole)


def versions(rows: Sequence[AlignedScores], bases: Iterable[str]) -> list[str]:
    """The measured metrics among `bases`, with all their suffixes, in that order."""
    names = sorted({name for m in rows for name in m.metrics if m.count(name)})
    return [name for base in bases for name in names if name.partition(".")[0] == base]


# -- the sheet: rows of panels, in inches

Draw = Callable[["Axes"], None]
Row = tuple[str, Sequence[Draw | None]]
"""A title, which may be empty, and panels beside each other."""


def _arranged(title: str, stacks: Sequence[Sequence[Draw | None]], narrow: bool) -> list[Row]:
    """Stacks of panels in rows of at most three, no row much shorter than another; narrow: one panel per row."""
    levels: list[Sequence[Draw | None]] = []
    if narrow:
        levels = [[draw] for stack in stacks for draw in stack]
    elif stacks:
        columns = math.ceil(len(stacks) / math.ceil(len(stacks) / 3))
        for begin in range(0, len(stacks), columns):
            levels += zip(*stacks[begin : begin + columns], strict=True)
    return [("" if k else title, level) for k, level in enumerate(filter(any, levels))]


def _sheet(rows: Sequence[Row], narrow: bool, height: float = 1.62) -> Figure:
    """Rows of panels, each `height` inches high, with room for ticks on the left and the lines' names on the right."""
    width, height = (2.9, 1.75) if narrow else (2.2, height)
    left, right, head, foot = 0.52, 0.72, 0.26, 0.46
    cell = left + width + right
    all_cells = max(len(panels) for _, panels in rows) * cell
    heights = [(0.34 if title else 0) + head + height + foot for title, _ in rows]
    total = sum(heights) + 0.04
    figure = new_figure((all_cells, total), "experiments")
    y = total
    for (title, panels), used in zip(rows, heights, strict=True):
        if title:
            figure.text(0.06 / all_cells, (y - 0.2) / total, title, fontsize=11, fontweight="bold", color=INK,
                        va="center", parse_math=False)  # fmt: skip
        for column, draw in enumerate(panels):
            if draw is not None:
                corner = ((column * cell + left) / all_cells, (y - used + foot) / total)
                ax = figure.add_axes((*corner, width / all_cells, height / total))
                _dress(ax)
                draw(ax)
        y -= used
    return figure


def _dress(ax: Axes) -> None:
    ax.set_facecolor("none")
    ax.spines[["top", "right"]].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set(color=FAINT, linewidth=0.7)
    ax.tick_params(labelsize=8, width=0.7, length=3, color=FAINT, labelcolor=FAINT, which="both")
    ax.grid(axis="y", color=GRID, linewidth=0.6)
    ax.set_axisbelow(True)


def _title(ax: Axes, text: str, faint: str = "") -> None:
    common: dict[str, Any] = {"pad": 6, "y": 1.0, "parse_math": False}  # `$` in names is no formula
    ax.set_title(text, fontsize=9.5, color=INK, loc="left", **common)
    if faint:
        ax.set_title(faint, fontsize=8, color=FAINT, loc="right", **common)


def _empty(heading: str, ax: Axes) -> None:
    """A panel that says why it is empty."""

    _title(ax, heading)
    ax.set_axis_off()
    ax.text(0.5, 0.5, "not measured", transform=ax.transAxes, ha="center", va="center", fontsize=9, color=FAINT)


_End = tuple[str, float, str, float]  # the end of a line: its name, y, the name's colour, x
OVER_P = "pruned proportion p"


def _finish(
    ax: Axes,
    seen: Sequence[float],
    right: float,
    titles: tuple[str, str],
    ends: Sequence[_End],
    *,
    whole: bool = False,
    log: bool = False,
    below: str = OVER_P,
) -> None:
    """Axes, ticks, titles (left, and faint on the right) and names of a panel whose lines are drawn.

    seen: the values that are shown; `whole`: the axis ends at the least and the greatest, else a little beyond.
    """
    if log:
        ax.set_yscale("log")
    if seen:
        low, high = min(seen), max(seen)
        if whole:
            ax.set_ylim(low, high)
        elif log:
            room = (high / low) ** 0.06
            ax.set_ylim(low / room, high * room)
        else:
            room = 0.07 * (high - low) or 0.05 * abs(high) or 0.05
            ax.set_ylim(low - room, high + room)
    ax.set_xlim(0, right)
    _ticks(ax, log)
    _title(ax, *titles)
    ax.set_xlabel(below, fontsize=8, color=FAINT, labelpad=2)
    _name_ends(ax, ends)


# -- metrics over p


def over_p(
    rows: Sequence[AlignedScores],
    metrics: Sequence[str],
    *,
    zoom: bool = True,
    differences: bool = False,
    narrow: bool = False,
) -> Figure:
    """Each metric over p, one group of panels per run: its whole range above, small p below (the paper's figures 2,
    A and B).

    differences: the paired differences to LRP, whose intervals decide between methods.
    narrow: for small screens, with the panels below each other.
    """
    sheet: list[Row] = []
    for m in rows:
        stacks: list[list[Draw | None]] = []
        for name in metrics:
            lines = _lines(m, name, differences)
            small = {p for line in lines for p in line.x if 0 < p <= ZOOM_P}
            close = partial(_over_p, lines, name, max(small), differences) if zoom and len(small) > 1 else None
            stacks.append([partial(_over_p, lines, name, None, differences), close])
        sheet += _arranged(m.name, stacks, narrow)
    return _sheet(sheet, narrow)


class _Line(NamedTuple):
    """A line with its band; label and style by variant."""

    variant: str
    x: Sequence[float]
    y: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def until(self, p: float) -> _Line:
        """The part up to p."""
        shown = np.array(self.x) <= p + 1e-9
        x = [at for at, inside in zip(self.x, shown, strict=True) if inside]
        return _Line(self.variant, x, *(values[shown] for values in self[2:]))


def _lines(m: AlignedScores, name: str, differences: bool) -> list[_Line]:
    lines = []
    for variant in m.variants(name):
        shares, _ = m.curve(name, variant)
        if differences:
            apart = [m.difference(name, Method(variant, p), LRP) for p in shares]
            lines.append(_Line(variant, shares, *np.array([(d.mean, d.low, d.high) for d in apart]).T))
        else:
            lines.append(_Line(variant, shares, *m.band(name, variant)))
    if m.count(name):
        at_zero = [values[:1] for values in m.band(name, BASELINE)]
        lines.insert(0, _Line(BASELINE, (0.0,), *([np.zeros(1)] * 3 if differences else at_zero)))
    return lines


def _over_p(lines: Sequence[_Line], name: str, until: float | None, differences: bool, ax: Axes) -> None:
    about = metric(name)
    if not lines:
        _empty(about.heading, ax)
        return
    parts = lines if until is None else [line.until(until) for line in lines]
    means, seen = _finite(line.y for line in parts), _finite(v for line in parts for v in line[2:])
    low, high = min(seen, default=0.0), max(seen, default=1.0)
    room = max(means) - min(means) if until and means else 0.0
    if room:  # a close-up is of the lines: bands that reach much farther are cut
        low, high = max(low, min(means) - room), min(high, max(means) + room)
    ends: list[_End] = []
    for line in parts:
        style = STYLES[line.variant]
        if line.variant == BASELINE:
            ax.axhline(line.y[0], color=style.colour, linestyle=style.line, linewidth=1.4)
            ends.append((LABELS[BASELINE], float(line.y[0]), style.text, math.inf))
            continue
        hides = bool(((line.low < low) & (line.high > high)).all())  # a band that fills the panel shows nothing
        _draw_line(ax, line, band=not hides, clip_on=until is not None)
        known = np.flatnonzero(np.isfinite(line.y))
        if len(known):
            ends.append((short(line.variant), float(line.y[known[-1]]), style.text, line.x[known[-1]]))
    reach, right = (low, high) if seen else (), 1.012 * (until or max(0.05, *(max(line.x) for line in lines)))
    if until is not None:
        _finish(ax, reach, right, ("", f"{about.title}, p ≤ {until:g}"), ends)
    elif differences:
        _finish(ax, reach, right, (f"{about.title} − LRP's", ""), ends)
    elif about.whole is not None:
        _finish(ax, about.whole, right, (about.heading, ""), ends, whole=True)
    else:
        _finish(ax, reach, right, (about.heading, ""), ends, log=_spans(seen))


def _finite(arrays: Iterable[np.ndarray]) -> list[float]:
    return [float(value) for array in arrays for value in array if math.isfinite(value)]


def _draw_line(ax: Axes, line: _Line, band: bool = True, shade: float = 0.14, **look: Any) -> None:
    """A line in the style of its variant, except for `look`; `shade` is how opaque its band is."""
    style = STYLES[line.variant]
    if band and np.isfinite(line.low).any():
        ax.fill_between(line.x, line.low, line.high, color=style.colour, alpha=shade, linewidth=0)
    usual = {
        "linestyle": style.line, "linewidth": style.width, "solid_capstyle": "round",
        "marker": style.marker, "markersize": 1.6 + 1.3 * style.width, "markeredgewidth": 0.9,
        "markerfacecolor": "#ffffff" if style.hollow else style.colour, "zorder": 2.5,
    }  # fmt: skip
    ax.plot(line.x, line.y, color=style.colour, **{**usual, **look})


def short(variant: str) -> str:
    """A variant's name at the end of its line."""
    return LABELS.get(variant, variant).removeprefix("PLRP-").replace(",", "")


def _spans(values: Sequence[float]) -> bool:
    """Whether positive values spread so far that only a logarithmic axis shows them."""
    return bool(values) and min(values) > 0 and max(values) > 30 * min(values)


def _ticks(ax: Axes, log: bool = False) -> None:
    """Few ticks, without needless zeros; a power of ten that all y labels share stands above them."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    ax.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    if log:
        ax.yaxis.set_major_locator(LogLocator(numticks=6))
        ax.yaxis.set_minor_formatter(NullFormatter())
        return
    ax.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    largest = max(map(abs, ax.get_ylim()))
    power = math.floor(math.log10(largest)) if largest < 1e-2 or largest >= 1e4 else 0
    ax.yaxis.set_major_formatter(lambda value, _: f"{round(value / 10.0**power, 6):g}".replace("-", "−"))
    if power:
        raised = str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
        ax.text(-0.03, 1.04, f"×10{raised}", transform=ax.transAxes, ha="right", fontsize=7.5, color=FAINT)


def _name_ends(ax: Axes, ends: Sequence[_End]) -> None:
    """Names at the ends of lines, moved apart where they would overlap, with a thread to their line."""
    from matplotlib.patheffects import withStroke

    to_axes = ax.transData + ax.transAxes.inverted()
    gap = 0.135 / (ax.bbox.height / ax.figure.dpi)
    right = ax.get_xlim()[1]
    early = [end for end in ends if end[3] < 0.85 * right]
    for group in (early, [end for end in ends if end not in early]):
        if not group:
            continue
        at = np.array([to_axes.transform((min(x, right), y)) for _, y, _, x in group]).clip(0, 1)
        if group is not early:
            at[:, 0] = 1.0
        for (text, _, colour, _), (x, y), place in zip(group, at, apart(at[:, 1], gap), strict=True):
            ax.plot([x, x + 0.035], [y, place], transform=ax.transAxes, color=colour, linewidth=0.7, clip_on=False)
            name = ax.text(x + 0.045, place, text, transform=ax.transAxes, fontsize=8.5, color=colour, zorder=4)
            name.set(verticalalignment="center_baseline")
            if group is early:
                name.set_path_effects([withStroke(linewidth=2, foreground="#ffffff")])


def apart(places: np.ndarray, gap: float) -> np.ndarray:
    """Places moved as little as it takes to stand `gap` apart, in their order, within 0 … 1 where they fit."""
    order = np.argsort(places, kind="stable")
    steps = gap * np.arange(len(places))
    # Less these steps, the places must not fall: neighbours that would do so share the mean of their block.
    blocks: list[list[float]] = []
    for value in places[order] - steps:
        blocks.append([value])
        while len(blocks) > 1 and np.mean(blocks[-2]) > np.mean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    moved = np.array([np.mean(block) for block in blocks for _ in block])
    moved = np.minimum(np.maximum(moved, 0), 1 - gap * (len(places) - 1))  # inside, at least below 1
    result = np.empty(len(places))
    result[order] = moved + steps
    return result


# -- faithfulness


def example_flips(m: AlignedScores, name: str, p: float) -> dict[Method, Flipping]:
    """The flipping curves under the area `name`: of LRP and, of each variant, at the measured p closest to `p`."""
    flips = m.flips(name)
    nearest = {v: nearest_share(p, [method.p for method in flips if method.variant == v]) for v in VARIANTS}
    methods = [LRP, *(Method(variant, share) for variant, share in nearest.items() if share is not None)]
    return {method: flips[method] for method in methods if method in flips}


def faithfulness(rows: Sequence[AlignedScores], name: str, p: float, *, narrow: bool = False) -> Figure:
    """The area under the flipping curve over p, the curve at one p, and its beginning (the paper's figure 3)."""
    sheet = []
    for m in rows:
        curves = example_flips(m, name, p)
        panels: list[Draw] = [partial(_over_p, _lines(m, name, False), name, None, False)]
        if curves:
            score, share = name.partition(".")[2] or "score", next(iter(curves.values())).share
            beginning = float(max(0.05, share[min(4, len(share) - 1)]))  # a twentieth, or up to the fourth point
            panels += [partial(_flipping, curves, score, until) for until in (None, beginning)]
        else:
            panels.append(partial(_empty, "flipping curve"))
        sheet += _arranged(m.name, [[draw] for draw in panels], narrow)
    return _sheet(sheet, narrow, 1.8)


LRP_LOOK: dict[str, Any] = {"shade": 0.13, "linewidth": 1.7, "markersize": 2.6, "markeredgewidth": 1.0, "zorder": 2}


def _flipping(curves: dict[Method, Flipping], score: str, until: float | None, ax: Axes) -> None:
    both = np.logical_and.reduce([np.isfinite(c.score).all(1) for c in curves.values()])
    end = until or 1
    ends: list[_End] = []
    seen: list[float] = []
    for method, curve in curves.items():
        chosen = curve.score[both]
        if not len(chosen):
            continue
        line = _Line(method.variant, list(100 * curve.share), chosen.mean(0), *bootstrap(chosen))
        seen += _finite(values[curve.share <= end + 1e-9] for values in line[2:])
        _draw_line(ax, line, **(LRP_LOOK if method.variant == BASELINE else {}))
        height = float(np.interp(end, curve.share, line.y))
        ends.append((short(method.variant), height, STYLES[method.variant].text, math.inf))
    shares = ", ".join(f"{p:g}" for p in sorted({method.p for method in curves if method.p}))
    whole = until is None
    titles = (f"{score.capitalize()} left, p = {shares}", "") if whole else ("", "the first regions")
    below = "regions overwritten, most relevant first (%)"
    # Where everything is overwritten, all curves meet: no room for names.
    _finish(ax, seen, 100 * end, titles, [] if whole else ends, below=below)


# -- two runs

LOOKS: tuple[dict[str, Any], ...] = (
    {"linestyle": "-", "marker": "o"},
    {"linestyle": (0, (4, 1.6)), "marker": "s", "markerfacecolor": "#ffffff"},
)
"""How the lines of run A and run B are drawn."""


def side_by_side(
    first: AlignedScores, second: AlignedScores, metrics: Sequence[str], *, narrow: bool = False
) -> Figure:
    """Each metric over p of two runs, A with full lines and B with open ones; one row per variant."""
    variants = [v for v in VARIANTS if any(first.variants(n, (v,)) or second.variants(n, (v,)) for n in metrics)]
    sheet = []
    for variant in variants or [BASELINE]:
        sheet += _arranged(LABELS[variant], [[partial(_two, first, second, name, variant)] for name in metrics], narrow)
    return _sheet(sheet, narrow)


def _two(first: AlignedScores, second: AlignedScores, name: str, variant: str, ax: Axes) -> None:
    about = metric(name)
    if not any(m.variants(name, (variant,)) or m.count(name) for m in (first, second)):
        _empty(about.heading, ax)
        return
    style = STYLES[variant]
    ends: list[_End] = []
    seen: list[float] = []
    last = 0.05
    for m, mark, look in zip((first, second), "AB", LOOKS, strict=True):
        shares, _ = m.curve(name, variant)
        if not shares:
            continue
        line = _Line(variant, shares, *m.band(name, variant))
        common = {"linewidth": 1.5, "markersize": 3.4, "markerfacecolor": style.colour, "clip_on": False}
        _draw_line(ax, line, **{**common, "solid_capstyle": "projecting", "zorder": 2, **look})
        seen += _finite(line[2:])
        last = max(last, *shares)
        if math.isfinite(line.y[-1]):
            ends.append((mark, float(line.y[-1]), style.text, shares[-1]))
    _finish(ax, seen, last, (about.heading, ""), ends, log=about.whole is None and _spans(seen))


# -- in words


def describe(m: AlignedScores, name: str, differences: bool = False) -> str:
    """A panel of `over_p` in words, for readers who cannot see it."""
    lines = [f"LRP {plain(m.mean(name))}"] if m.count(name) and not differences else []
    for variant in m.variants(name):
        shares = m.shares(name, variant)
        numbers = []
        for p in sorted({shares[0], shares[-1]} if differences else {shares[0], shares[len(shares) // 2], shares[-1]}):
            method = Method(variant, p)
            value = signed(m.difference(name, method, LRP).mean) if differences else plain(m.mean(name, method))
            numbers.append(f"{value} at p = {p:g}")
        lines.append(f"{LABELS[variant]} {', '.join(numbers)}")
    title = metric(name).title + (" minus LRP's" if differences else "")
    return f"{title}: {'; '.join(lines) or 'not measured'}"


def legend(rows: Sequence[AlignedScores]) -> str:
    """The lines of the variants and their names, as HTML for the page that shows the figures."""
    shown = []
    for variant in (BASELINE, *(v for v in VARIANTS if any(m.has(v) for m in rows))):
        style = STYLES[variant]
        dash = "dotted" if variant == BASELINE else "solid" if style.line == "-" else "dashed"
        shown.append(
            f'<span><i style="border-top-style:{dash};border-color:{style.colour}"></i>{LABELS[variant]}</span>'
        )
    return f'<div class="legend">{"".join(shown)}</div>'
