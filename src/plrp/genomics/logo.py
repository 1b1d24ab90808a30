"""Sequence logos: letters as tall as the relevance of their base.

logomaker builds a matplotlib patch for every base and lays out its glyph anew each time. Here each of the four glyphs
is laid out once, and a row of any length is four patches, one per letter, with vertices from one numpy expression:
glyph · (width, height) + place. tangermeme's `plot_logo` also reuses glyphs, but adds a patch for every base and needs
its whole package. `benchmarks/logos.py` measures all three in one run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from plrp.files import new_figure, save_figure

from .sequences import LETTERS, Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {"A": "#0a8a3a", "C": "#1f4fc4", "G": "#e08a00", "T": "#c8232c"}
"""The usual colours of the four bases, dark enough for white paper."""

_GAP = 0.06
"""Share of a letter's cell left empty beside it."""


@lru_cache(maxsize=4)
def _glyph(letter: str) -> tuple[Floats, npt.NDArray[np.uint8]]:
    """Outline of a letter stretched to the unit square: vertices (n, 2) and matplotlib's path codes (n,)."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    path = TextPath((0, 0), letter, size=1, prop=FontProperties(family="DejaVu Sans", weight="bold"))
    vertices = path.vertices - path.vertices.min(0)
    return vertices / vertices.max(0), path.codes


def draw_logo(
    ax: Axes,
    values: npt.ArrayLike,
    letters: str | None = None,
    *,
    start: int = 0,
    colours: Mapping[str, str] = COLOURS,
) -> None:
    """Draw a logo into matplotlib axes.

    `values` has either one number per base, (position,), with its `letters`, or one per letter and base, (4, position),
    stacked by size. Negative values hang below the axis, upside down. `start` is the number of the first base.
    """
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Outline

    array = np.asarray(values, np.float64)
    if array.ndim == 1:
        if letters is None or len(letters) != len(array):
            raise ValueError(f"{len(array)} values need as many letters; got {letters and len(letters)}.")
        codes = np.frombuffer(letters.upper().encode(), np.uint8)
        array = np.where(codes == np.frombuffer(LETTERS.encode(), np.uint8)[:, None], array, 0)
    if array.ndim != 2 or array.shape[0] != 4:
        raise ValueError(f"A logo takes (position,) or (4, position) values; got {array.shape}.")
    if not np.isfinite(array).all():
        raise ValueError("A logo takes finite values; there is a NaN or infinity among them.")

    bottoms = _bottoms(array)
    for row, letter in enumerate(LETTERS):
        at = np.flatnonzero(array[row])
        if not at.size:
            continue
        vertices, path_codes = _glyph(letter)
        height = array[row, at]  # negative: the glyph is mirrored downwards
        place = np.stack([start + at - 0.5 + _GAP / 2, bottoms[row, at]], -1)
        size = np.stack([np.full(at.size, 1 - _GAP), height], -1)
        outline = vertices[None] * size[:, None] + place[:, None]
        path = Outline(outline.reshape(-1, 2), np.tile(path_codes, at.size))
        # add_patch would walk every curve in Python to find the limits, which are known here.
        ax.add_artist(PathPatch(path, facecolor=colours[letter], linewidth=0))

    ax.set_xlim(start - 0.5, start + array.shape[1] - 0.5)
    low, top = _limits([array])
    ax.set_ylim(low, top)
    if low < 0:
        ax.axhline(0, color="#555", linewidth=0.5)


def _limits(rows: Iterable[Floats]) -> tuple[float, float]:
    """Both ends of a y-axis on which the stacks of all rows, (position,) or (4, position) each, have room."""
    stacks = [row.reshape(-1, row.shape[-1]) for row in rows]
    top = max(np.maximum(stack, 0).sum(0).max(initial=0) for stack in stacks)
    low = min(np.minimum(stack, 0).sum(0).min(initial=0) for stack in stacks)
    top = top if top > low else 1.0
    margin = 0.04 * (top - low)
    return low - (margin if low < 0 else 0), top + margin


def _bottoms(array: Floats) -> Floats:
    """Where each letter of a stack begins: small ones next to the axis, positive ones above it; (4, position)."""
    bottoms = np.zeros_like(array)
    for part in (np.maximum(array, 0), np.minimum(array, 0)):
        order = np.argsort(np.abs(part), axis=0, kind="stable")
        ordered = np.take_along_axis(part, order, 0)
        below = np.cumsum(ordered, 0) - ordered
        placed = np.zeros_like(array)
        np.put_along_axis(placed, order, below, 0)
        bottoms = np.where(part != 0, placed, bottoms)
    return bottoms


def plot_logos(
    rows: Mapping[str, npt.ArrayLike],
    letters: str,
    *,
    sites: Sequence[tuple[int, int, str]] = (),
    title: str | None = None,
    **options: Any,
) -> Figure:
    """Logos of one sequence, one below the other, as in the paper: ground truth, LRP, PLRP, ...

    `rows` maps a row's label to its values, (position,) or (4, position); boolean rows (a mask) are drawn with
    letters of height 1. `sites` are motifs (start, end, name), shaded and named above the first row. `options` are
    those of `logo_page`.
    """
    return logo_page([(title or "", rows, letters, sites)], **options)


def logo_page(
    sequences: Sequence[tuple[str, Mapping[str, npt.ArrayLike], str, Sequence[tuple[int, int, str]]]],
    *,
    window: tuple[int, int] | None = None,
    path: str | Path | None = None,
    width: float | None = None,
    row_height: float = 1.0,
    same_scale: bool = False,
    mass: float = 1.0,
    first_base: int = 0,
    dpi: int = 150,
) -> Figure:
    """A page of many sequences, each an entry (title, rows, letters, sites) as in `plot_logos`.

    `window` (start, end) zooms. `same_scale` gives all rows of a sequence the same y-axis. `first_base` is the number
    under the first base. `mass`: of each row only the strongest bases are drawn that hold this share of Σ|relevance|;
    the numbers stay as they are. `width` and `row_height` are in inches. `path` is written as PNG, SVG or PDF by its
    ending; the same data give the same bytes.
    """
    figure = new_figure(extra="genomics", what="Logos")
    if not sequences:
        raise ValueError("Nothing to draw: give at least one sequence.")
    begin, end = window or (0, max(len(letters) for _, _, letters, _ in sequences))
    if not 0 <= begin < end:
        raise ValueError(f"window={window}: the start must be 0 or more and before the end.")
    margin = max(0.95, *(_label_width(label) + 0.62 for _, rows, _, _ in sequences for label in rows))
    width = width or min(20.0, max(4.0, margin + 0.25 + (end - begin) * 0.075))
    # room for titles and for the names of motifs
    heads = [(0.42 if title else 0.22) + (0.25 if k else 0) for k, (title, *_) in enumerate(sequences)]
    y = total = 0.22 + sum(heads) + row_height * sum(len(rows) for _, rows, _, _ in sequences)
    figure.set_size_inches(width, total)
    left, right = margin / width, 1 - 0.16 / width
    for head, (title, rows, letters, sites) in zip(heads, sequences, strict=True):
        y -= head
        if title:
            place = 0.06 / width, (y + 0.24) / total
            figure.text(*place, title, fontsize=9, fontweight="bold", va="bottom", parse_math=False)
        stop = min(end, len(letters))
        drawn = {label: strongest_bases(np.asarray(values).astype(np.float64), mass) for label, values in rows.items()}
        cut = {label: values[..., begin:stop] for label, values in drawn.items()}
        for number, (label, values) in enumerate(cut.items()):
            y -= row_height
            ax = figure.add_axes((left, (y + 0.06) / total, right - left, (row_height - 0.12) / total))
            draw_logo(ax, values, letters[begin:stop] if values.ndim == 1 else None, start=begin)
            ax.set_xlim(begin - 0.5, end - 0.5)
            if same_scale:
                ax.set_ylim(*_limits(cut.values()))
            _shade(ax, sites, begin, end, names=number == 0)
            _style(ax, label, begin, end, first_base if number == len(cut) - 1 else None)
    if path is not None:
        save_figure(figure, path, dpi=dpi)
    return figure


def strongest_bases(values: Floats, mass: float) -> Floats:
    """Relevance (position,) or (4, position) of the fewest bases that hold a share of Σ|relevance|; 0 elsewhere.

    >>> strongest_bases(np.array([5.0, -1.0, 3.0, 1.0]), 0.8).tolist()
    [5.0, 0.0, 3.0, 0.0]
    """
    if not 0 < mass <= 1:
        raise ValueError(f"mass={mass}: a share of the relevance, above 0 and at most 1.")
    size = np.abs(values).reshape(-1, values.shape[-1]).sum(0)
    order = np.argsort(-size, kind="stable")
    before = np.cumsum(size[order]) - size[order]
    kept = np.zeros(size.shape, bool)
    kept[order[before < mass * size.sum() * (1 - 1e-9)]] = True
    return np.where(kept, values, 0.0) if mass < 1 else values


def around_strongest(relevance: npt.NDArray[Any], sites: Sequence[tuple[int, int]], width: int = 54) -> tuple[int, int]:
    """The `width` bases around the site with the most relevance; without sites, around the strongest base."""
    if sites:
        start, end = max(sites, key=lambda site: float(relevance[site[0] : site[1]].sum()))
        middle = (start + end) // 2
    else:
        middle = int(np.abs(relevance).argmax())
    begin = int(np.clip(middle - width // 2, 0, max(0, len(relevance) - width)))
    return begin, min(begin + width, len(relevance))


def _label_width(label: str) -> float:
    """Inches that a row's label takes at its size of 8 points."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    font = FontProperties(family="DejaVu Sans")
    outlines = [TextPath((0, 0), line or " ", size=8, prop=font) for line in label.split("\n")]
    return max(float(outline.get_extents().width) for outline in outlines) / 72


def _style(ax: Axes, label: str, begin: int, end: int, first_base: int | None) -> None:
    """A row's label, no more ticks and spines than a reader needs, and numbers below unless `first_base` is None."""
    from matplotlib.ticker import MaxNLocator

    ax.set_ylabel(label, fontsize=8, rotation=0, ha="right", va="center", labelpad=6, parse_math=False)
    for side in ("top", "right", "bottom"):
        ax.spines[side].set_visible(False)
    ax.spines["left"].set_linewidth(0.6)
    ax.tick_params(labelsize=6, width=0.6, length=2)
    ax.yaxis.set_major_locator(MaxNLocator(2, steps=[1, 2, 5, 10]))
    shift = first_base or 0
    ticks = MaxNLocator(min(12, math.ceil((end - begin) / 5)), integer=True).tick_values(begin + shift, end + shift - 1)
    places = [round(tick) - shift for tick in ticks]  # round numbers, 0 among them
    places = [place for place in places if begin <= place < end and first_base is not None]
    ax.set_xticks(places, [str(place + shift) for place in places])


def _shade(ax: Axes, sites: Sequence[tuple[int, int, str]], begin: int, end: int, *, names: bool) -> None:
    """Shade the motifs between two bases, and name them above the row."""
    for a, b, name in sites:
        if b <= begin or a >= end:
            continue
        low, high = max(a, begin) - 0.5, min(b, end) - 0.5
        ax.axvspan(low, high, color="#000", alpha=0.07, linewidth=0, zorder=0)
        if names and name:
            above = ax.get_xaxis_transform()
            middle = (low + high) / 2
            ax.text(middle, 1.02, name, transform=above, ha="center", va="bottom", fontsize=6.5, parse_math=False)
