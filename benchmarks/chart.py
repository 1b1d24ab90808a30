"""The chart of `make bench`: what an explanation costs beside its peers, and how that grows."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from plrp.experiments.score_figures import FAINT, GRID, INK, apart
from report import FORWARD, Parts, rows, title
from timing import ratio

DESCRIPTION = (
    "Cost of an explanation in multiples of the model's forward pass, plrp beside its peers, and how it grows with "
    "batch, resolution and depth"
)
COLOURS = {
    "plrp λ 0.5": "#56b4e9",
    "plrp λ 0.2": "#0072b2",
    "plrp M 0.2": "#d55e00",
    "plrp LRP": "#4a5260",
    "grad × input": "#c3cad2",
    "autoLRP": "#c3cad2",
    "Captum": "#c3cad2",
    "Zennit": "#9aa5b1",
}
"""Bars from top to bottom; peers are grey."""
LINES: dict[str, dict[str, Any]] = {
    "plrp LRP": {"linestyle": "-", "marker": "D"},
    "plrp λ 0.2": {"linestyle": "-", "marker": "o"},
    "Zennit": {"linestyle": "-", "marker": "s"},
    "conv floor": {"linestyle": (0, (4, 2)), "marker": ""},
}
AXES = {"batch": "batch", "resolution": "resolution, pixels", "depth": "depth"}


def write(parts: Parts, out: Path) -> list[Path]:
    """The chart as SVG and PNG; nothing where neither the costs nor their growth were measured."""
    figure = draw(parts)
    if figure is None:
        return []
    files = [out / "speed.svg", out / "speed.png"]
    with plt.rc_context({"svg.hashsalt": "plrp"}):
        figure.savefig(files[0], metadata={"Date": None})
        figure.savefig(files[1], dpi=160)
    plt.close(figure)
    return files


def draw(parts: Parts) -> Figure | None:
    """One row of panels per model with a panel per batch, and one row with the growth."""
    measured = [row for row in rows(parts, "engine") if row["seconds"]]
    models = list(dict.fromkeys(row["model"] for row in measured))
    batches = sorted({row["batch"] for row in measured})
    series = {name: one for name, one in parts.get("growth", {}).get("series", {}).items() if one["seconds"]}
    bands = len(models) + bool(series)
    if not bands:
        return None
    above, below, plot = 0.48, 0.5, 2.05  # inches: a panel's title, its axis, the panel itself
    height = bands * (above + plot + below)
    figure = plt.figure(figsize=(9.2, height), facecolor="white")
    for band in range(bands):
        bottom, tall = 1 - ((band + 1) * (above + plot + below) - below) / height, plot / height
        if band < len(models):
            here = [row for row in measured if row["model"] == models[band]]
            largest = max(v for row in here for v in costs(row).values())
            for i, (row, (left, width)) in enumerate(zip(here, columns(len(batches)), strict=False)):
                _bars(figure.add_axes((left, bottom, width, tall)), row, largest, named=i == 0)
        else:
            top = max(v for one in series.values() for line in lines(one).values() for v in line if v is not None)
            for i, (name, one) in enumerate(series.items()):
                left, width = columns(len(series), first=0.065, last=0.89)[i]
                ends = i == len(series) - 1
                _growth(figure.add_axes((left, bottom, width, tall)), name, one, top, named=i == 0, ends=ends)
    return figure


def columns(count: int, first: float = 0.115, last: float = 0.985, gap: float = 0.05) -> list[tuple[float, float]]:
    """Left edges and widths of panels side by side."""
    width = (last - first - gap * (count - 1)) / count
    return [(first + i * (width + gap), width) for i in range(count)]


def costs(row: Any) -> dict[str, float]:
    """Multiples of the forward pass of every method that ran."""
    found = {name: ratio(row["seconds"], name, FORWARD) for name in (*COLOURS, "conv floor")}
    return {name: value for name, value in found.items() if value is not None}


def lines(one: Any) -> dict[str, list[float | None]]:
    """Multiples of the forward pass by method, along the settings of a series."""
    settings = one["settings"]
    return {
        name: [ratio(one["seconds"], f"{s} {name}", f"{s} {FORWARD}") for s in settings]
        for name in LINES
        if name in one["methods"]
    }


def _dress(ax: Axes, axis: Literal["x", "y"]) -> None:
    for side in ("top", "right", "left" if axis == "x" else "bottom"):
        ax.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set(color=FAINT, linewidth=0.7)
    ax.tick_params(labelsize=8.5, width=0.7, length=3, color=FAINT, labelcolor=INK)
    ax.grid(axis=axis, color=GRID, linewidth=0.6)
    ax.set_axisbelow(True)


def _bars(ax: Axes, row: Any, largest: float, named: bool) -> None:
    """One model and batch: a bar per method, the conv floor as a line."""
    values = costs(row)
    floor = values.pop("conv floor", None)
    names = list(COLOURS)
    for place, name in enumerate(names):
        if name in values:
            ax.barh(place, values[name], height=0.7, color=COLOURS[name])
        text = f"{values[name]:.2f}" if name in values else "cannot run" if name in row["reasons"] else "not measured"
        ax.text(
            values.get(name, 0) + largest * 0.012, place, text, va="center", fontsize=8.5, zorder=4,
            color=INK if name in values else FAINT, fontweight="bold" if name.startswith("plrp") else "normal",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.85},
        )  # fmt: skip
    if floor is not None:
        ax.axvline(floor, color=INK, linewidth=1.1, linestyle=(0, (4, 2)), zorder=3)
        ax.text(floor, -0.62, f" conv floor {floor:.2f}", fontsize=8, color=INK, va="bottom", ha="left")
    ax.set_title(f"{title(row['model'])}, batch {row['batch']}", fontsize=10.5, color=INK, loc="left", pad=14)
    ax.set_yticks(range(len(names)), names if named else [""] * len(names))
    ax.set_ylim(len(names) - 0.45, -0.6)
    ax.set_xlim(0, largest * 1.1)
    ax.set_xlabel("forward passes", fontsize=8.5, color=FAINT, labelpad=2)
    _dress(ax, "x")
    ax.tick_params(axis="y", length=0)
    ax.tick_params(axis="x", labelcolor=FAINT)


def _growth(ax: Axes, name: str, one: Any, top: float, named: bool, ends: bool) -> None:
    """One series: multiples of the forward pass along its settings."""
    found = lines(one)
    settings = one["settings"]
    for method, values in found.items():
        colour = COLOURS.get(method, INK)
        y = [float("nan") if v is None else v for v in values]
        ax.plot(range(len(settings)), y, color=colour, linewidth=1.6, markersize=4.5, **LINES[method])
    if ends:
        last = {method: values[-1] for method, values in found.items() if values[-1] is not None}
        order = sorted(last, key=lambda m: last[m] or 0.0)
        places = apart(np.array([last[m] for m in order], dtype=float) / (top * 1.08), 0.085)
        for method, place in zip(order, places, strict=True):
            ax.text(
                1.02, place, method, transform=ax.transAxes, fontsize=8.5, va="center",
                color=COLOURS.get(method, INK) if method != "Zennit" else FAINT,
            )  # fmt: skip
    shown = [title(s).replace("ResNet-", "") if name == "depth" else s for s in settings]
    ax.set_xticks(range(len(settings)), shown)
    ax.set_xlim(-0.2, len(settings) - 0.8)
    ax.set_ylim(0, top * 1.08)
    ax.set_title(f"growth with {name}", fontsize=10.5, color=INK, loc="left", pad=8)
    ax.set_xlabel("ResNet" if name == "depth" else AXES.get(name, name), fontsize=8.5, color=FAINT, labelpad=2)
    if named:
        ax.set_ylabel("forward passes", fontsize=8.5, color=FAINT)
    _dress(ax, "y")
