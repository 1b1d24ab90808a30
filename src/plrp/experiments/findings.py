"""Whether the paper's findings on sequences with known motifs hold (section 4.2.2), judged on the scores of sweeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from . import statements
from .aligned_scores import AlignedScores
from .statements import Statement

MOTIF_P = 0.5
"""Pruned share for motif finding: sharper regions than the logo plots' 0.25."""


@dataclass(frozen=True)
class NotAThreshold:
    """A base inside a motif that survived, and one outside that was pruned although LRP gave it more."""

    sequence: int
    inside: int
    outside: int
    lrp_inside: float
    lrp_outside: float
    sequences_with_one: int
    sequences: int


def find_not_a_threshold(
    lrp: npt.ArrayLike, pruned: npt.ArrayLike, mask: npt.NDArray[np.bool_]
) -> NotAThreshold | None:
    """The clearest case in which pruning differs from cutting LRP at a height; all arrays (sequence, position).

    In each sequence: the least positive LRP relevance of a motif base that still holds relevance after pruning,
    against the greatest of a base outside that holds none. A threshold on LRP could not keep the first and drop the
    second. Of all sequences the one with the widest gap is returned; None where there is no such case.
    """
    before, after = np.asarray(lrp, np.float64), np.asarray(pruned, np.float64)
    survives = mask & (after > 0) & (before > 0)
    dropped = ~mask & (after == 0) & (before > 0)
    most = np.where(dropped, before, -np.inf)
    gap = most.max(1, initial=-np.inf) - np.where(survives, before, np.inf).min(1, initial=np.inf)
    with_one = int((gap > 0).sum())
    if not with_one:
        return None
    # Shown is a survivor that a reader can see, if there is one: a twentieth of the strongest base.
    seen = survives & (after >= 0.05 * after.max(1, keepdims=True))
    least = np.where(seen, before, np.inf)
    visible = most.max(1, initial=-np.inf) - least.min(1, initial=np.inf)
    if not (visible > 0).any():
        least, visible = np.where(survives, before, np.inf), gap
    row = int(visible.argmax())
    inside, outside = int(least[row].argmin()), int(most[row].argmax())
    return NotAThreshold(
        row, inside, outside, float(before[row, inside]), float(before[row, outside]), with_one, len(gap)
    )


def findings(sweeps: Mapping[str, AlignedScores], example: NotAThreshold | None) -> list[Statement]:
    """The paper's findings on genomics, judged on sweeps by network name (`{"32 filters": ..., "4 filters": ...}`)."""
    judged = {name: statements.of_sequences(one) for name, one in sweeps.items()}
    together = [
        statements.together(dict(zip(judged, same, strict=True))) for same in zip(*judged.values(), strict=True)
    ]
    return [*together, judge_threshold(example, len(next(iter(sweeps.values())).samples))]


def judge_threshold(example: NotAThreshold | None, sequences: int) -> Statement:
    """Whether PLRP is not a threshold on LRP, by the clearest case among `sequences` that were examined."""
    if example is None:
        return statements.not_a_threshold(0, sequences)
    return statements.not_a_threshold(
        example.sequences_with_one,
        example.sequences,
        f"the clearest: {example.lrp_inside:.4f} at base {example.inside} kept, {example.lrp_outside:.4f} at base "
        f"{example.outside} pruned",
    )
