"""How concentrated a relevance map is: Gini index, entropy, Hoyer's measure, share of non-zero entries, compactness.

All read absolute values of relevance (batch, ...) and return float64 (batch,). `channels` says how axis 1 is pooled
first; None: every entry is a feature. A zero map counts as a constant map: it singles out nothing, so it is as little
sparse as a map can be (Gini 0, Hoyer 0, entropy ln n). NaN or infinity is a ValueError.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .feature_rows import Pooling, as_map, ascending, check_finite, magnitudes, total


def gini(relevance: Any, *, channels: Pooling | None = None) -> Tensor:
    """Gini index of absolute relevance, 0 (all equal) to 1 − 1/n (one entry holds all). Higher is sparser.

    With v_1 ≤ … ≤ v_n the sorted absolute values: G = Σ_i (2i − n − 1)·v_i / (n·Σ_i v_i)  (Chalasani et al., 2020).
    The zero map scores 0. `channels` says how axis 1 of the relevance (batch, ...) is pooled first.

    >>> gini(torch.tensor([[0.0, 0.0, 0.0, 5.0], [1.0, 1.0, 1.0, 1.0]]))
    tensor([0.7500, 0.0000], dtype=torch.float64)
    """
    magnitude, mass = magnitudes(relevance, channels)
    n = magnitude.shape[1]
    rank = torch.arange(1, n + 1, device=mass.device, dtype=mass.dtype)
    v = ascending(magnitude).to(mass.dtype)
    return torch.where(mass > 0, v @ (2 * rank - n - 1) / (n * v.sum(1)), 0.0)


def entropy(relevance: Any, *, channels: Pooling | None = None, normalised: bool = False) -> Tensor:
    """Shannon entropy, in nats, of the absolute relevance read as a distribution. Lower is sparser.

    H = −Σ_i q_i ln q_i with q_i = |r_i| / Σ|r| and 0·ln 0 = 0  (Bhatt et al., 2020): 0 for a single non-zero entry,
    ln n for a constant or zero map. `normalised=True` divides by ln n (one feature: 0).

    >>> entropy(torch.tensor([[0.0, 0.0, 0.0, 5.0], [1.0, 1.0, 1.0, 1.0]]), normalised=True)
    tensor([0.0000, 1.0000], dtype=torch.float64)
    """
    magnitude, mass = magnitudes(relevance, channels)
    n = magnitude.shape[1]
    share = magnitude / mass[:, None].to(magnitude.dtype)
    # 0·ln 0 = 0: for a zero, the logarithm of the smallest number is taken (`special.entr` is twice as slow)
    logarithm = share.clamp(min=torch.finfo(share.dtype).tiny).log_()
    nats = -total(logarithm.mul_(share))
    nats = torch.where(mass > 0, nats, math.log(n))
    if not normalised:
        return nats
    return nats / math.log(n) if n > 1 else torch.zeros_like(nats)


def hoyer(relevance: Any, *, channels: Pooling | None = None) -> Tensor:
    """Hoyer's sparseness, 0 (constant map) to 1 (one non-zero entry). Higher is sparser.

    (√n − ‖r‖₁/‖r‖₂) / (√n − 1)  (Hoyer, 2004). The zero map and a map of one feature score 0.

    >>> hoyer(torch.tensor([[0.0, 0.0, 0.0, 5.0], [1.0, 1.0, 1.0, 1.0]]))
    tensor([1., 0.], dtype=torch.float64)
    """
    magnitude, mass = magnitudes(relevance, channels)
    n = magnitude.shape[1]
    if n == 1:
        return torch.zeros_like(mass)
    length = torch.linalg.vector_norm(magnitude, dim=1, dtype=mass.dtype)
    return torch.where(mass > 0, (math.sqrt(n) - mass / length) / (math.sqrt(n) - 1), 0.0)


def nonzero(relevance: Any, *, channels: Pooling | None = None, threshold: float = 0.0) -> Tensor:
    """Share of entries that carry relevance, 0 to 1. Lower is sparser.

    An entry counts if |r_i| > `threshold`·max|r|; the default counts exact non-zeros, which pruning makes meaningful.

    >>> nonzero(torch.tensor([[0.0, 0.01, 0.0, 5.0]]))
    tensor([0.5000], dtype=torch.float64)
    """
    if not 0.0 <= threshold < 1.0:
        raise ValueError(f"threshold must lie in [0, 1), a share of the largest entry; got {threshold}.")
    magnitude, mass = magnitudes(relevance, channels)
    if not len(magnitude):
        return mass
    least = threshold * magnitude.amax(1, keepdim=True)
    return (magnitude > least).sum(1).to(mass.dtype) / magnitude.shape[1]


def spanning_tree_compactness(
    relevance: Any, *, channels: Pooling | None = None, share: float = 0.05, most: int = 2000
) -> Tensor:
    """How closely the strongest entries of a map lie together, 0 to 1. Higher is more compact.

    The m strongest entries by absolute value, a `share` of all (at most `most`, and none that is 0), are joined by the
    shortest tree, edges being Euclidean distances between positions: (m − 1) / length. It is 1 where they touch
    side by side in one patch, and small where they are strewn. Two maps of equal Gini index may differ in it: a
    lattice of dots from a blob. Similar to the MST compactness of Mesgari et al. (2026), which adds up several
    terms of this kind.

    `relevance` is (batch, *space), or (batch, channel, *space) with `channels` to pool. NaN with fewer than two entries
    that are not 0.

    >>> spanning_tree_compactness(torch.tensor([[[3.0, 2.0], [0.0, 0.0]], [[3.0, 0.0], [0.0, 2.0]]]), share=0.5)
    tensor([1.0000, 0.7071], dtype=torch.float64)
    """
    if not 0 < share <= 1:
        raise ValueError(f"share of the entries that count must lie in (0, 1]; got {share}.")
    maps = as_map(relevance, channels).abs()
    check_finite(maps.flatten(1).sum(1))
    scores = []
    for one in maps.cpu().double().numpy():
        count = min(most, math.ceil(share * one.size), int(np.count_nonzero(one)))
        if count < 2:
            scores.append(math.nan)
            continue
        strongest = np.argsort(-one, axis=None, kind="stable")[:count]
        points = np.stack(np.unravel_index(strongest, one.shape), 1).astype(np.float64)
        scores.append((count - 1) / _tree_length(points))
    return torch.tensor(scores, dtype=torch.float64, device=maps.device)


def _tree_length(points: npt.NDArray[np.float64]) -> float:
    """Length of the Euclidean minimum spanning tree of points (m, axes), by Prim's algorithm."""
    left = np.ones(len(points), bool)
    nearest = np.full(len(points), np.inf)  # distance of each point to the tree
    newest, length = 0, 0.0
    for _ in range(len(points) - 1):
        left[newest] = False
        nearest = np.minimum(nearest, np.linalg.norm(points - points[newest], axis=1))
        newest = int(np.argmin(np.where(left, nearest, np.inf)))
        length += float(nearest[newest])
    return length
