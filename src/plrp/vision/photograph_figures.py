"""Figures of explanations: a photograph beside its heatmaps, and the grid of variants and proportions.

All figures are matplotlib `Figure`s made without pyplot: no global state, no window, safe in threads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from plrp.files import new_figure
from plrp.spelling import shortened

from .heatmaps import add_colour_bar, heatmap, outline_level, summed_over_channels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from PIL.Image import Image

    from .picture_targets import PicturePart

INK, FAINT, ALARM = "#222222", "#767676", "#c00000"
LEAST_POSITIVE = 0.2  # of Σ|R|: below, the region with most positive relevance is a speck, and is not outlined
GAP = 0.16  # panels, between the maps without p and the grid of pruned maps


def grid_of(
    rows: int,
    columns: int,
    *,
    side: float = 2.2,
    bar: bool = True,
    widths: Sequence[float] | None = None,
    tall: float = 1.16,
    title: str | None = "",
) -> tuple[Figure, Any]:
    """A figure of panels without axes, `side` inches wide, with room for colour bars on the right.

    widths: of the columns, in panels (default: 1 each). tall: the height of a row, title included, in panels.
    """
    wide = columns if widths is None else sum(widths)
    figure = new_figure((wide * side * (1.2 if bar else 1.06), rows * side * tall), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, width_ratios=widths)
    for ax in axes.flat:
        frame_panel(ax)
    if title:
        figure.suptitle(title, fontsize=10, color=INK, parse_math=False)
    return figure, axes


def hide_empty(axes: Any) -> None:
    """Take away the frames of panels in which nothing was drawn."""
    for ax in axes.flat:
        if not ax.has_data():
            ax.set_axis_off()


def frame_panel(ax: Axes) -> None:
    """A panel without ticks, in a thin grey frame."""
    ax.set_xticks([])
    ax.set_yticks([])
    ax.spines[:].set(edgecolor="#bbbbbb", linewidth=0.5)


def explanation_figure(
    picture: Image,
    maps: Mapping[str, Tensor | np.ndarray],
    *,
    classes: Sequence[tuple[str, float]] = (),
    target: str = "",
    title: str | None = "",
    place: PicturePart | None = None,
    beside: Mapping[str, Tensor | np.ndarray] | None = None,
    remarks: Mapping[str, str] | None = None,
    **drawing: Any,
) -> Figure:
    """One photograph explained: the picture, a heatmap per entry of `maps` and of `beside`, and the prediction.

    The last of `maps` is drawn twice more: over the picture, and as an outline of the region that holds 80% of its
    positive relevance. Maps that do not fit the first row continue in the second.

    classes: (name, probability), strongest first; target: the explained one. place: the part of the picture that was
    asked about, which is marked. beside: maps of other methods. remarks: by the name of a map, the fault in it;
    printed in red below the map. drawing: options of `heatmap`, such as `colours`, `percentile` and `dilate`.
    """
    shown, remarks = {**maps, **(beside or {})}, remarks or {}
    figure, axes = grid_of(2, max(3, math.ceil((4 + len(shown)) / 2)), title=title)
    photograph, (prediction, overlay, outlined) = axes[0, 0], axes[1, :3]
    show_picture(photograph, picture, "photograph")
    if place is not None:
        show_place(photograph, place)
    for ax, (name, relevance) in zip((*axes[0, 1:], *axes[1, 3:]), shown.items(), strict=False):
        show_map(ax, relevance, name, remark=remarks.get(name), **drawing)
    last_name, last = list(maps.items())[-1]
    if classes:
        show_classes(prediction, classes, target)
    overlay.imshow(heatmap(last, picture=picture, **drawing).numpy(), interpolation="nearest")
    set_title(overlay, f"{last_name}, overlay")
    show_remark(overlay, remarks.get(last_name))
    show_outline(outlined, picture, last, f"{last_name}, outline")
    hide_empty(axes)
    return figure


def comparison_figure(
    picture: Image,
    baseline: Tensor | np.ndarray,
    variants: Mapping[str, Mapping[float, Tensor | np.ndarray]],
    *,
    title: str | None = "",
    name: str = "photograph",
    beside: Mapping[str, Tensor | np.ndarray] | None = None,
    remarks: Mapping[str, str] | None = None,
    **drawing: Any,
) -> Figure:
    """The paper's grid: a row per variant, a column per proportion p; to its left the photograph, LRP and `beside`.

    `name` is the title of the picture; `beside`, `remarks` and `drawing` are those of `explanation_figure`.
    """
    remarks = remarks or {}
    proportions = list(next(iter(variants.values())))
    plain = {"LRP": baseline, **(beside or {})}
    rows = max(2, len(variants))
    left = math.ceil((1 + len(plain)) / rows)  # columns
    widths = [1.0] * left + [GAP] + [1.0] * len(proportions)
    figure, axes = grid_of(rows, len(widths), side=1.9, bar=False, widths=widths, title=title)
    first, *others = axes[:, :left].T.flat
    show_picture(first, picture, name)
    panels: list[Any] = [*zip(others, plain.items(), strict=False)]
    for line, (variant, by_p) in zip(axes, variants.items(), strict=False):
        gap = line[left]
        gap.axvline(0, color="#999999", linewidth=0.8)
        gap.set_xlim(0, 1)
        at = {"ha": "center", "va": "center", "rotation": 90}
        gap.text(0.6, 0.5, variant, **at, fontsize=8.5, color=INK, parse_math=False)
        gap.set_axis_off()
        pruned = [(f"{variant}, p = {p:g}", by_p[p]) for p in proportions]
        panels += zip(line[left + 1 :], pruned, strict=True)
    for ax, (map_title, relevance) in panels:
        show_map(ax, relevance, map_title, colour_bar=False, remark=remarks.get(map_title), **drawing)
    hide_empty(axes)
    return figure


def show_picture(ax: Axes, picture: Image, title: str = "") -> None:
    """A photograph as the network sees it."""
    ax.imshow(np.asarray(picture))
    set_title(ax, title)


def show_place(ax: Axes, place: PicturePart) -> None:
    """Mark a box, a point or an area on a picture."""
    from matplotlib.patches import Rectangle

    for colour, width in (("white", 2.4), ("#d42a20", 1.2)):
        if place.box is not None:
            left, top, right, bottom = place.box
            ax.add_patch(Rectangle((left, top), right - left, bottom - top, fill=False, edgecolor=colour, lw=width))
        if place.point is not None:
            ax.plot(*place.point, marker="o", ms=9, mfc="none", mec=colour, mew=width)
    if place.area is not None and 0 < place.area.mean() < 1:
        outline(ax, place.area, width=1.2)


def show_map(
    ax: Axes,
    relevance: Tensor | np.ndarray,
    title: str = "",
    *,
    colour_bar: bool = True,
    remark: str | None = None,
    **drawing: Any,
) -> None:
    """A heatmap; below it the share of pixels that hold relevance, and a reason not to believe it, if there is one."""
    drawn = heatmap(relevance, **drawing)
    ax.imshow(drawn.numpy(), interpolation="nearest")
    set_title(ax, title)
    values, _ = summed_over_channels(relevance)
    set_caption(ax, f"{percent(np.count_nonzero(values) / values.size)} of pixels")
    show_remark(ax, remark, 10)
    if colour_bar and drawn.limits[0] > 0:
        signed = bool((values < 0).any())
        add_colour_bar(ax, drawn.colours, float(drawn.limits[0]), drawn.gamma, signed=signed)


def outline(ax: Axes, field: np.ndarray, level: float = 0.5, width: float = 0.9) -> None:
    """A red line around the places where a field (height, width) exceeds a level, seen on any picture."""
    for colour, wide in (("white", 2 * width), ("#d42a20", width)):
        ax.contour(field, levels=[level], colors=[colour], linewidths=wide)


def show_remark(ax: Axes, remark: str | None, below: float = 0) -> None:
    """A reason not to believe a map, in red under it, `below` points further down."""
    if remark is not None:
        at: dict[str, Any] = {"xy": (0.5, 0), "xycoords": "axes fraction", "textcoords": "offset points"}
        ax.annotate(remark, **at, xytext=(0, -3 - below), ha="center", va="top", fontsize=6.3, color=ALARM)


def show_outline(ax: Axes, picture: Image, relevance: Tensor | np.ndarray, title: str = "", share: float = 0.8) -> None:
    """The photograph with an outline of the region that holds `share` of the positive relevance; the rest is dimmed.

    If most relevance is negative, the figure says so instead of showing a region.
    """
    values, _ = summed_over_channels(relevance)
    if np.abs(values).sum() > 0 and np.clip(values, 0, None).sum() < LEAST_POSITIVE * np.abs(values).sum():
        show_picture(ax, picture, title)
        set_caption(ax, "most relevance speaks against this class")
        return
    field, level = outline_level(values[0], share)
    pixels = np.asarray(picture).astype(float)
    outside = field < level
    pixels[outside] = 0.45 * pixels[outside] + 0.55 * 255
    ax.imshow(pixels.astype(np.uint8))
    if np.isfinite(level) and field.min() < level < field.max():
        outline(ax, field, level, 1.1)
    set_title(ax, title)
    set_caption(ax, f"{percent(share)} of the positive relevance")


def show_classes(ax: Axes, classes: Sequence[tuple[str, float]], target: str = "") -> None:
    """The strongest classes with their probabilities as bars; the explained class in red."""
    places = np.arange(len(classes))[::-1]
    colours = ["#d42a20" if name == target else "#9aa5b1" for name, _ in classes]
    ax.barh(places, [probability for _, probability in classes], color=colours, height=0.34)
    for place, (name, probability) in zip(places, classes, strict=True):
        ax.text(0, place + 0.24, shortened(name), fontsize=7.5, va="bottom", color=INK, parse_math=False)
        ax.text(1, place + 0.24, percent(probability), fontsize=7, va="bottom", ha="right", color=FAINT)
    ax.set_xlim(0, 1)
    ax.set_ylim(-0.4, len(classes) - 0.2)
    set_title(ax, "prediction")
    ax.spines[:].set_visible(False)


def set_title(ax: Axes, title: str) -> None:
    """Put a title over a panel."""
    ax.set_title(title, fontsize=8.5, pad=4, color=INK, parse_math=False)  # `$` in names is no formula


def set_caption(ax: Axes, text: str) -> None:
    """Put a faint line under a panel."""
    ax.set_xlabel(text, fontsize=7, color=FAINT, labelpad=2)


def percent(share: float) -> str:
    """A share as a percentage with two significant digits: 0.04%, 4.1%, 41%."""
    value = 100 * share
    if value == 0 or value >= 99.95:
        return f"{value:.0f}%"
    if value < 0.01:
        return "<0.01%"
    return f"{value:.0f}%" if value >= 10 else f"{value:.1f}%" if value >= 0.95 else f"{value:.2g}%"
