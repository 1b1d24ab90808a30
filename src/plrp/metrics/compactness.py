"""Whether the relevant pixels lie together: the minimum spanning tree that joins them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .feature_rows import Pooling, as_map, check_finite


def spanning_tree_compactness(
    relevance: Any, *, channels: Pooling | None = None, share: float = 0.05, most: int = 2000
) -> Tensor:
    """How closely the strongest entries of a map lie together, 0 to 1. Higher is more compact.

    The m strongest entries by absolute value, a `share` of all (at most `most`, and none that is 0), are joined by the
    shortest tree, edges being Euclidean distances between positions: (m − 1) / length. It is 1 where they touch
    side by side in one patch, and small where they are strewn. Two maps of equal Gini index may differ in it: a
    lattice of dots from a blob. Similar to the MST compactness of Mesgari et al. (2026), which adds up several
    terms of this kind.

    `relevance` is (batch, *space), or (batch, channel, *space) with `channels` to pool. Returns float64 (batch,); NaN
    with fewer than two entries that are not 0.

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
        scores.append((count - 1) / tree_length(points))
    return torch.tensor(scores, dtype=torch.float64, device=maps.device)


def tree_length(points: npt.NDArray[np.float64]) -> float:
    """Length of the Euclidean minimum spanning tree of points (m, axes), by Prim's algorithm."""
    left = np.ones(len(points), bool)
    nearest = np.full(len(points), np.inf)  # distance of each point to the tree
    newest, total = 0, 0.0
    for _ in range(len(points) - 1):
        left[newest] = False
        nearest = np.minimum(nearest, np.linalg.norm(points - points[newest], axis=1))
        newest = int(np.argmin(np.where(left, nearest, np.inf)))
        total += float(nearest[newest])
    return total
