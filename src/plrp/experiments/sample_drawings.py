"""Samples as figures: arrays of two axes as pictures, arrays of one axis as strips, sequences as logos."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from plrp.files import new_figure
from plrp.genomics.logo import around_strongest, logo_page
from plrp.genomics.simulation import Simulated

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOR, AGAINST, INPUT = "#d42a20", "#1f63b0", "#5a6675"
LINES = 4
"""Channels that are drawn as lines of their own; of more, the mean is."""
Site = tuple[int, int, str]
"""Start, end and name of a marked stretch."""


def picture_of(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """An array (channel, height, width) as a picture (height, width, 3), from its least value to its greatest.

    Three channels are taken for colours, of any other number the mean is grey.
    """
    values = np.nan_to_num(np.asarray(array, np.float64))
    values = values if len(values) == 3 else np.repeat(values.mean(0, keepdims=True), 3, 0)
    least, most = values.min(), values.max()
    shares = (values - least) / (most - least) if most > least else np.full_like(values, 0.5)
    return np.asarray(255 * shares.transpose(1, 2, 0)).round().astype(np.uint8)


def strips(
    array: npt.NDArray[Any], maps: Mapping[str, npt.NDArray[Any]], mask: npt.NDArray[np.bool_] | None, *, narrow: bool
) -> Figure:
    """An array (channel, position) as lines, and below it one strip per map (position,).

    Red speaks for the class, blue against it. The mask, where there is one, is shaded in all of them.
    """
    figure = new_figure((5 if narrow else 9, 0.8 * (1 + len(maps)) + 0.3), layout="constrained")
    axes = figure.subplots(1 + len(maps), 1, sharex=True, squeeze=False)[:, 0]
    place, edges = np.arange(array.shape[1]), np.arange(array.shape[1] + 1) - 0.5
    lines = array if len(array) <= LINES else array.mean(0, keepdims=True)
    for line, shade in zip(lines, np.linspace(1, 0.45, len(lines)), strict=True):
        axes[0].plot(place, line, color=INPUT, alpha=shade, linewidth=0.9)
    axes[0].set_ylabel("input" if len(array) <= LINES else f"input,\nmean of {len(array)}", fontsize=7)
    for ax, (name, relevance) in zip(axes[1:], maps.items(), strict=True):
        ax.stairs(relevance.clip(min=0), edges, fill=True, color=FOR)
        ax.stairs(relevance.clip(max=0), edges, fill=True, color=AGAINST)
        ax.axhline(0, color="#bbbbbb", linewidth=0.5)
        ax.set_ylabel(name, fontsize=7, parse_math=False)
    for ax in axes:
        ax.tick_params(labelsize=6)
        ax.spines[["top", "right"]].set_visible(False)
        if mask is not None and mask.any() and not mask.all():
            low, high = ax.get_ylim()
            ax.stairs(np.where(mask, high, low), edges, baseline=low, fill=True, color="#000000", alpha=0.07)
            ax.set_ylim(low, high)
    axes[-1].set_xlim(edges[0], edges[-1])
    axes[-1].set_xlabel("position", fontsize=7)
    return figure


@dataclass(frozen=True)
class SequenceLogo:
    """A sequence with rows of relevance (position,) drawn as letters; its sites are shaded."""

    title: str
    rows: Mapping[str, npt.ArrayLike]
    letters: str
    sites: Sequence[Site]
    row_height: float = 0.72

    def draw(self, *, narrow: bool) -> Figure:
        """The whole sequence; narrow: the bases around the site that LRP gives most."""
        if narrow:
            strength = np.asarray(self.rows.get("LRP", next(iter(self.rows.values()))))
            return self.close_up(around_strongest(strength, [(a, b) for a, b, _ in self.sites]), 0.85)
        return logo_page([(self.title, self.rows, self.letters, self.sites)], width=11, row_height=self.row_height)

    def close_up(self, window: tuple[int, int], row_height: float) -> Figure:
        """The bases in `window` alone."""
        page = [(f"{self.title}, bases {window[0]}–{window[1] - 1}", self.rows, self.letters, self.sites)]
        return logo_page(page, window=window, width=5.2, row_height=row_height)


def planted_sites(sequences: Simulated, k: int) -> list[Site]:
    """Where motifs were planted in sequence number k."""
    kinds = sequences.motifs
    return [(a, b, kinds[m].name.split("_")[0]) for a, b, m, _ in sequences.plantings.of(k)]
