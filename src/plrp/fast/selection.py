"""θ by selection instead of sorting, in compiled loops: the numbers of `pruning.decide`, found in two passes.

float32 bits of non-negative values sort like integers, so a weighted histogram over their upper bits finds the bin in
which C(θ) passes its limit, and a second pass the entry inside it.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from plrp import pruning
from plrp.ledger import Booking
from plrp.pruning import Arrived, Cut, Pruning, Site, signed_parts, survivors, threshold

from . import native

STATISTICS = 8  # θ⁺ θ⁻, mass before ⁺ ⁻, mass pruned ⁺ ⁻, entries ≠ 0, entries that stay


def prune_tensor(
    relevance: Tensor, site: Site, how: Pruning, arrived: Arrived | None, book: Booking
) -> tuple[Tensor, dict[str, Any]]:
    """`pruning.prune`, with θ by selection for single neurons that are cut by a share of mass."""
    rows = site.value.samples.rows(relevance)
    by_share = how.sparsity_gain is None and site.p is not None
    if not by_share or not native.available(rows) or site.groups(relevance.shape, how.unit) is not None:
        decided = pruning.decide(relevance, site, how)
    else:
        decided = cut_of(statistics(rows, torch.arange(len(rows) + 1) * rows.shape[1], *site.shares))
    return pruning.hand_over(relevance, decided, site, how, arrived, book)


def statistics(values: Tensor, offsets: Tensor, p: float | Tensor, p_negative: float | Tensor) -> Tensor:
    """The cut of each sample: θ of both signs, masses and counts (samples, 8), float64, on the CPU.

    Sample n has the entries offsets[n] … offsets[n + 1] of the flattened `values`; p may be given per sample.
    """
    samples = len(offsets) - 1
    stats = torch.zeros(samples, STATISTICS, dtype=torch.float64, device="cpu")
    shares = torch.empty(samples, 2, dtype=torch.float64, device="cpu")
    shares[:, 0], shares[:, 1] = p, p_negative
    if native.available(values):
        native.call("select", values, offsets, samples, shares, stats, native.threads())
        return stats
    for n, (begin, end) in enumerate(itertools.pairwise(offsets.tolist())):
        row = values.reshape(-1)[begin:end].reshape(1, -1)
        if row.numel() == 0:
            continue
        signs = signed_parts(row)
        theta = [threshold(part, share) for part, share in zip(signs, shares[n].tolist(), strict=True)]
        stay = survivors(row, (theta[0], theta[1]))
        gone = [(part * (stay == 0)).double().sum() for part in signs]
        masses = [part.double().sum() for part in signs]
        numbers = (*theta, *masses, *gone, row.count_nonzero(), stay.count_nonzero())
        stats[n] = torch.tensor([float(x) for x in numbers], dtype=torch.float64)
    return stats


def cut_of(stats: Tensor) -> Cut:
    """The statistics of a selection, by name."""
    up, down, before_up, before_down, pruned_up, pruned_down, entries, stay = stats.unbind(1)
    before, after = (before_up, before_down), (before_up - pruned_up, before_down - pruned_down)
    return Cut((up, down), before, after, (entries.long(), stay.long()))
