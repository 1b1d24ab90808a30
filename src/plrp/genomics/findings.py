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
from plrp.experiments import statements
from plrp.experiments.measured import LABELS, Measured, from_arrays
from plrp.experiments.statements import Statement
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
EXAMPLE_P = statements.LOGO_P

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

    def measured(self, name: str) -> Measured:
        """The same under the names of `plrp.experiments`; p = 0 of any variant is LRP."""
        names = {label: variant for variant, label in LABELS.items()}
        values: dict[str, dict[str, dict[float, Values]]] = {}
        for metric, by_variant in self.values.items():
            swept = values.setdefault(statements.MASS if metric == "rma" else metric, {})
            for label, rows in by_variant.items():
                swept[names[label]] = dict(zip(self.shares, rows, strict=True))
        return from_arrays(name, values, len(next(iter(self.values["gini"].values()))[0]))

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


def findings(sweeps: dict[str, Sweep], example: NotAThreshold | None) -> list[Statement]:
    """The paper's findings on genomics, judged on sweeps by network name (`{"32 filters": ..., "4 filters": ...}`)."""
    judged = {name: statements.of_sequences(one.measured(name)) for name, one in sweeps.items()}
    found = [statements.together(dict(zip(judged, same, strict=True))) for same in zip(*judged.values(), strict=True)]
    return [*found, judge_threshold(example, len(next(iter(sweeps.values())).values["gini"]["PLRP-λ"][0]))]


def judge_threshold(example: NotAThreshold | None, sequences: int) -> Statement:
    """Whether PLRP is no threshold on LRP, by the clearest case among `sequences` that were looked at."""
    if example is None:
        return statements.not_a_threshold(0, sequences)
    return statements.not_a_threshold(
        example.sequences_with_one,
        example.sequences,
        f"the clearest: {example.lrp_inside:.4f} at base {example.inside} kept, {example.lrp_outside:.4f} at base "
        f"{example.outside} pruned",
    )
