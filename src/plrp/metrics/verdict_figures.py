"""The parts of a map beside the drops of the score that the network answered with, as a matplotlib figure."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from plrp.files import new_figure
from plrp.spelling import shortened, visible

if TYPE_CHECKING:
    from .verdicts import Verdict

FOR, AGAINST = "#b2182b", "#2166ac"
MANY = 60  # parts up to which each has its name


def verdict_figure(verdict: Verdict, sample: int, labels: Sequence[str] | None, picture: Any) -> Any:
    """The map's parts and the drops by either replacement, side by side, each to its own largest value."""
    columns = [one.numpy() for one in (verdict.relevance[sample], *verdict.drops[sample])]
    titles = ["the map", *(f"drop of the score: {name}" for name in verdict.names)]
    count, tiles = len(columns[0]), len(verdict.grid) == 2
    named = not verdict.grid and count <= MANY
    size = (9.6, 3.9 if tiles else 1.4 + 0.2 * count if named else 5.4)
    figure = new_figure(size, layout="constrained")
    axes = figure.subplots(1, 3, sharey=True) if tiles or named else figure.subplots(3, 1, sharex=True)
    for n, (ax, values, title) in enumerate(zip(axes, columns, titles, strict=True)):
        largest = float(np.abs(values).max()) or 1.0
        agrees = f", agreement {float(verdict.each[n - 1, sample]):.2f}" if n else ""
        ax.set_title(f"{title} (±{largest:.3g}){agrees}", fontsize=8)
        colours = np.where(values > 0, FOR, AGAINST)
        if tiles:
            drawn: dict[str, Any] = {"extent": (0, verdict.grid[1], verdict.grid[0], 0), "aspect": "auto"}
            if picture is not None:
                ax.imshow(np.asarray(picture), **drawn)
            drawn |= {"vmin": -largest, "vmax": largest, "alpha": 1.0 if picture is None else 0.6}
            ax.imshow(values.reshape(verdict.grid), "RdBu_r", **drawn)
            ax.set_axis_off()
        elif named:
            ax.barh(np.arange(count), values, color=colours)
        else:
            ax.bar(np.arange(count), values, color=colours, width=1.0)
    if named:
        words = [f"{verdict.unit} {n}" for n in range(count)] if labels is None else map(visible, labels)
        axes[0].set_yticks(np.arange(count), [shortened(word, 18) for word in words], fontsize=8, parse_math=False)
        axes[0].invert_yaxis()
    said = "\n".join(textwrap.wrap(verdict.words(sample), 130))
    figure.suptitle(said, fontsize=9, x=0.01, ha="left", parse_math=False)
    return figure
