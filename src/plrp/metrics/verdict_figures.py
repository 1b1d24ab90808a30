"""The parts of a map beside the drops of the score that the network answered with, as a matplotlib figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from plrp.files import new_figure
from plrp.spelling import shortened, visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .verdicts import Verdict

FOR, AGAINST = "#b2182b", "#2166ac"
MANY = 60
"""Parts up to which each has its name."""


def verdict_figure(verdict: Verdict, sample: int, labels: Sequence[str] | None, picture: Any) -> Figure:
    """The map's parts and the drops by either replacement, side by side, each to its own largest value."""
    columns = [verdict.relevance[sample], *verdict.drops[sample]]
    correlations = ["", *(f"\nagreement {float(one):.2f}" for one in verdict.each[:, sample])]
    titles = ["the map", *(f"drop of the score: {name}" for name in verdict.names)]
    tiles = len(verdict.grid) == 2
    count = len(columns[0])
    named = not verdict.grid and count <= MANY
    size = (9.6, 3.9) if tiles else (9.6, 1.4 + 0.2 * count) if named else (9.6, 5.4)
    figure = new_figure(size, layout="constrained")
    axes = figure.subplots(1, 3, sharey=True) if tiles or named else figure.subplots(3, 1, sharex=True)
    for ax, values, title, correlation in zip(axes, columns, titles, correlations, strict=True):
        numbers = values.numpy()
        largest = float(np.abs(numbers).max()) or 1.0
        ax.set_title(
            f"{title} (±{largest:.3g}){correlation if tiles or named else correlation.replace(chr(10), ', ')}",
            fontsize=9,
        )
        colours = [FOR if number > 0 else AGAINST for number in numbers]
        if tiles:
            rows, along = verdict.grid
            extent = (0, along, rows, 0)
            if picture is not None:
                ax.imshow(np.asarray(picture), extent=extent, aspect="auto")
            ax.imshow(
                numbers.reshape(rows, along), "RdBu_r", vmin=-largest, vmax=largest, extent=extent,
                alpha=1.0 if picture is None else 0.6, aspect="auto",
            )  # fmt: skip
            ax.set_axis_off()
        elif named:
            ax.barh(np.arange(count), numbers, color=colours)
            ax.axvline(0, color="#888", lw=0.6)
        else:
            ax.bar(np.arange(count), numbers, color=colours, width=1.0)
            ax.axhline(0, color="#888", lw=0.6)
    if named:
        words = (
            [f"{verdict.unit} {n}" for n in range(count)]
            if labels is None
            else [shortened(visible(str(w)), 18) for w in labels]
        )
        axes[0].set_yticks(np.arange(count), words, fontsize=8, parse_math=False)
        axes[0].invert_yaxis()
    figure.suptitle(_wrapped(verdict.words(sample)), fontsize=9, x=0.01, ha="left", parse_math=False)
    return figure


def _wrapped(text: str, width: int = 130) -> str:
    import textwrap

    return "\n".join(textwrap.wrap(text, width))
