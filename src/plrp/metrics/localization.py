"""How well relevance falls on the ground truth: a mask per pixel, per base, or per feature.

Masks are bool (or 0/1), (batch, *space) with relevance (batch, *space), or with relevance (batch, channel, *space) and
`channels=` saying how the channels of a pixel or base are pooled. Ranks with ties are scored by their expectation over
all ways to break them, so no score depends on where in the map the tied entries happen to lie. Scores are float64
(batch,). A sample with an empty mask has no ground truth: its score is NaN. NaN or infinite relevance is a ValueError.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from .feature_rows import Pooling, as_map, ascending, check_finite, flat, mask_like, pick, total, wide_dtype

MASSES: dict[str, Callable[[Tensor], Tensor]] = {"positive": torch.relu, "absolute": torch.abs, "signed": torch.clone}
HITS: dict[str, Callable[[Tensor], Tensor]] = {"share": torch.clone, "any": torch.ceil, "all": torch.floor}
"""The score of the pointing game, from the share of the most relevant features that lies in the mask."""


def relevance_mass_accuracy(
    relevance: Any,
    mask: Any,
    *,
    version: Literal["positive", "absolute", "signed"] = "positive",
    channels: Pooling | None = None,
) -> Tensor:
    """Share of the relevance mass that lies in the mask: Σ_{i∈mask} m_i / Σ_i m_i. Higher is better.

    `version` says which entries count as mass. Arras et al. (2022) define it for maps without negative entries, where
    all three agree:

    - `"positive"` (default): m = max(r, 0), the evidence for the class. It stays in [0, 1], and evidence
      *against* the class does not belong on the object.
    - `"absolute"`: m = |r|. Stays in [0, 1]; negative relevance counts as mass.
    - `"signed"`: m = r, as Quantus does by default (`abs=False`). Where positive and negative relevance
      nearly cancel, the quotient leaves [0, 1] and means little.

    Pooling comes first: with `channels="sum"` a pixel's colours may cancel before their sign is considered. NaN for an
    empty mask, and where there is no mass at all (Σ m = 0).

    >>> relevance_mass_accuracy(torch.tensor([[3.0, 1.0, -1.0]]), torch.tensor([[True, False, False]]))
    tensor([0.7500], dtype=torch.float64)
    """
    signed, inside = _pair(relevance, mask, channels)
    mass = pick("version", version, MASSES)(signed)
    within = total(mass * inside.to(mass.dtype))
    return torch.where(_any(inside), within / total(mass), torch.nan)


def relevance_rank_accuracy(relevance: Any, mask: Any, *, channels: Pooling | None = None) -> Tensor:
    """Share of the K most relevant features in the mask, K being the mask's size (Arras et al., 2022); 0 to 1.

    Higher is better. Relevance is ranked with its sign. Where features tie at rank K, the places left for them count by
    the share of them that lies in the mask: the expectation over random tie-breaking. A constant map, the zero map
    included, scores the mask's share of the features: chance. NaN for an empty mask.

    >>> relevance_rank_accuracy(torch.tensor([[3.0, 2.0, 0.0, 0.0]]), torch.tensor([[1, 0, 1, 1]]))
    tensor([0.6667], dtype=torch.float64)
    """
    signed, inside = _pair(relevance, mask, channels)
    return _share_of_top(signed, inside, inside.sum(1))


def top_k_intersection(relevance: Any, mask: Any, k: int, *, channels: Pooling | None = None) -> Tensor:
    """Share of the k most relevant features that lie in the mask (Theiner et al., 2022); 0 to 1, higher is better.

    Ranking, ties and NaN as in `relevance_rank_accuracy`; k is the same for all samples, 1 to the number of features.

    >>> top_k_intersection(torch.tensor([[3.0, 2.0, 1.0, 0.0]]), torch.tensor([[1, 0, 1, 1]]), k=2)
    tensor([0.5000], dtype=torch.float64)
    """
    signed, inside = _pair(relevance, mask, channels)
    if not 1 <= k <= signed.shape[1]:
        raise ValueError(f"k must lie between 1 and the number of features, {signed.shape[1]}; got {k}.")
    return _share_of_top(signed, inside, torch.full_like(inside.sum(1), k))


def pointing_game(
    relevance: Any, mask: Any, *, ties: Literal["share", "any", "all"] = "share", channels: Pooling | None = None
) -> Tensor:
    """Whether the most relevant feature lies in the mask (Zhang et al., 2018): 1 or 0; NaN for an empty mask.

    Several features may tie for the maximum (in a zero map, all do). `ties="share"` scores the share of them
    that lies in the mask, the expected hit of a random choice; `"any"` calls it a hit if one of them does
    (as Quantus does, so that a zero map always hits); `"all"` only if each does.

    >>> pointing_game(torch.tensor([[3.0, 2.0], [1.0, 1.0]]), torch.tensor([[True, False], [True, False]]))
    tensor([1.0000, 0.5000], dtype=torch.float64)
    """
    rounded = pick("ties", ties, HITS)
    signed, inside = _pair(relevance, mask, channels)
    if not len(signed):
        return signed.sum(1, dtype=wide_dtype(signed))
    top = signed == signed.amax(1, keepdim=True)
    share = (top & inside).sum(1).to(wide_dtype(signed)) / top.sum(1)
    return torch.where(_any(inside), rounded(share), torch.nan)


def _pair(relevance: Any, mask: Any, channels: Pooling | None) -> tuple[Tensor, Tensor]:
    """Signed relevance and mask, both (batch, features)."""
    pooled = as_map(relevance, channels)
    inside = mask_like(mask, pooled)
    signed = flat(pooled)
    check_finite(total(signed))
    return signed, inside


def _any(inside: Tensor) -> Tensor:
    """`inside.any(1)` as the maximum of bytes, which is thirty times as fast on a CPU."""
    return inside.view(torch.uint8).amax(1).bool()


def _share_of_top(signed: Tensor, inside: Tensor, k: Tensor) -> Tensor:
    """Expected share, over random tie-breaking, of each sample's k most relevant features in the mask."""
    n = signed.shape[1]
    at = (n - k).clamp(max=n - 1)[:, None]  # the k-th largest of an ascending row; an empty mask (k = 0) reads any
    kth = ascending(signed.clone()).gather(1, at)
    above, tied = signed > kth, signed == kth
    room = k - above.sum(1)  # places left for the tied features
    hits = (above & inside).sum(1) + room * (tied & inside).sum(1).to(wide_dtype(signed)) / tied.sum(1)
    return torch.where(_any(inside), hits / k, torch.nan)
