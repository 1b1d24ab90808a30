"""A sequence as logos, one row per map: all of it, or on a narrow screen the stretch around its strongest motif."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from plrp.genomics.logo import around_strongest, logo_page

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from plrp.genomics.simulation import Simulated

Site = tuple[int, int, str]
"""Start, end and name of a marked stretch."""


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
        title = f"{self.title}, bases {window[0]}–{window[1] - 1}"
        page = [(title, self.rows, self.letters, self.sites)]
        return logo_page(page, window=window, width=5.2, row_height=row_height)


def planted_sites(sequences: Simulated, k: int) -> list[Site]:
    """Where motifs were planted in sequence number k."""
    kinds = sequences.motifs
    return [(a, b, kinds[m].name.split("_")[0]) for a, b, m, _ in sequences.plantings.of(k)]
