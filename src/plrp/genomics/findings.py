"""The paper's measurements on sequences with known motifs, and whether its findings hold there.

Section 4.2.2 and appendix B of the paper: sparsity (Gini, entropy) and localization (relevance mass accuracy) of LRP,
PLRP-λ and PLRP-M, with and without sparsity gain, over the pruned share p = 0, 0.05, ..., 0.95.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

import plrp
from plrp.metrics import entropy, gini, relevance_mass_accuracy
from plrp.pruning import Pruning

from .attribution import COMPOSITE, pool
from .progress import progress

SHARES: tuple[float, ...] = tuple(round(0.05 * k, 2) for k in range(20))
VARIANTS: dict[str, dict[str, Any]] = {
    "PLRP-λ": {"redistribution": "lambda"},
    "PLRP-λ, gain": {"redistribution": "lambda", "sparsity_gain": 1.0},
    "PLRP-M": {"redistribution": "M"},
    "PLRP-M, gain": {"redistribution": "M", "sparsity_gain": 1.0},
}
METRICS = ("gini", "entropy", "rma")
EXAMPLE_P = 0.25
"""The pruned share of the paper's logo plots."""

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Sweep:
    """Metrics of every variant, share and sequence: `values[metric][variant]` is (share, sequence)."""

    values: dict[str, dict[str, Values]]
    shares: tuple[float, ...] = SHARES

    def mean(self, metric: str, variant: str) -> Values:
        """Mean over the sequences, per share."""
        return np.nanmean(self.values[metric][variant], axis=1)

    def at(self, metric: str, variant: str, p: float) -> float:
        """Mean over the sequences at one share."""
        return float(self.mean(metric, variant)[self.shares.index(p)])

    def rows(self) -> Iterator[dict[str, Any]]:
        """One record per variant and share, means over the sequences."""
        for variant in VARIANTS:
            for k, p in enumerate(self.shares):
                means = {metric: float(self.mean(metric, variant)[k]) for metric in METRICS}
                yield {"variant": variant, "p": p, **means}


def sweep(
    model: nn.Module,
    onehot: npt.NDArray[np.float32],
    mask: npt.NDArray[np.bool_],
    *,
    shares: tuple[float, ...] = SHARES,
    composite: str = COMPOSITE,
    batch_size: int = 100,
    label: str = "sweeping over p",
    show_progress: bool | None = None,
) -> Sweep:
    """Explain every sequence's winning class with every variant at every share; each batch is traced once."""
    count = len(onehot)
    values = {m: {v: np.full((len(shares), count), np.nan) for v in VARIANTS} for m in METRICS}
    steps = len(VARIANTS) * len(shares) * -(-count // batch_size)
    with progress(label, steps, show_progress) as step:
        for begin in range(0, count, batch_size):
            rows = slice(begin, begin + batch_size)
            part = onehot[rows]
            trace = plrp.trace(model, torch.from_numpy(part))
            truth = torch.from_numpy(mask[rows])
            for variant, options in VARIANTS.items():
                prunings = [Pruning(p=p, **options) for p in shares]
                for k, explanation in enumerate(trace.sweep(prunings, composite=composite)):
                    per_base = torch.from_numpy(pool(explanation.relevance.numpy(), part))
                    values["gini"][variant][k, rows] = gini(per_base).numpy()
                    values["entropy"][variant][k, rows] = entropy(per_base).numpy()
                    values["rma"][variant][k, rows] = relevance_mass_accuracy(per_base, truth).numpy()
                    step(1, f"{variant}, p = {shares[k]:.2f}")
    return Sweep(values, shares)


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


@dataclass(frozen=True)
class Finding:
    """A statement of the paper, whether it holds here, and the numbers that decide."""

    claim: str
    holds: bool
    numbers: str


FALL = 0.01
"""How far a mean Gini may fall from one share to the next and still count as rising."""

LITTLE = 0.05
"""Mean absolute difference up to which λ and M count as differing little."""


def findings(sweeps: dict[str, Sweep], example: NotAThreshold | None) -> list[Finding]:
    """The paper's findings on genomics, judged on sweeps by network name (`{"32 filters": ..., "4 filters": ...}`)."""
    rises, located, alike = [], [], []
    numbers_rises, numbers_located, numbers_alike = [], [], []
    for name, one in sweeps.items():
        for variant in VARIANTS:
            curve = one.mean("gini", variant)
            fall = float(max(0.0, -np.diff(curve).min()))
            rises.append(curve[-1] > curve[0] and fall <= FALL and bool((curve[1:] > curve[0]).all()))
            numbers_rises.append(
                f"{name}, {variant}: {curve[0]:.4f} → {one.at('gini', variant, EXAMPLE_P):.4f} → {curve[-1]:.4f} (p = "
                f"0, {EXAMPLE_P}, {one.shares[-1]}), largest fall of a step {fall:.4f}"
            )
        lrp, pruned = (one.values["rma"]["PLRP-λ"][one.shares.index(p)] for p in (0.0, EXAMPLE_P))
        gained = np.nanmean(pruned) - np.nanmean(lrp)
        located.append(bool(gained > 0))
        better = float(np.nanmean((pruned > lrp)[~np.isnan(lrp)]))
        numbers_located.append(
            f"{name}: RMA {np.nanmean(lrp):.3f} → {np.nanmean(pruned):.3f}, higher in {better:.0%} of the sequences"
        )
        for metric in ("gini", "rma"):
            for gain in ("", ", gain"):
                apart = np.abs(one.mean(metric, f"PLRP-λ{gain}") - one.mean(metric, f"PLRP-M{gain}"))
                alike.append(bool(apart.mean() <= LITTLE))
                numbers_alike.append(
                    f"{name}, {metric.upper() if metric == 'rma' else 'Gini'}{gain}: mean |λ − M| {apart.mean():.3f}, "
                    f"largest {apart.max():.3f}"
                )
    found = [
        Finding("Gini rises with p, for all variants", all(rises), "; ".join(numbers_rises)),
        Finding(
            f"Relevance mass accuracy rises over LRP at p = {EXAMPLE_P} for PLRP-λ",
            all(located),
            "; ".join(numbers_located),
        ),
        Finding(
            f"λ and M differ little on these shallow networks (mean difference up to {LITTLE})",
            all(alike),
            "; ".join(numbers_alike),
        ),
    ]
    if example is None:
        found.append(Finding("PLRP is not a threshold on LRP", False, "no such case among the sequences"))
    else:
        found.append(
            Finding(
                "PLRP is not a threshold on LRP",
                True,
                f"in {example.sequences_with_one} of {example.sequences} sequences a motif base survives with less "
                f"LRP relevance than a pruned base outside; the clearest: {example.lrp_inside:.4f} at base "
                f"{example.inside} kept, {example.lrp_outside:.4f} at base {example.outside} pruned",
            )
        )
    return found
