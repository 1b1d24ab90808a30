"""How similar two relevance maps are, sample by sample: rank correlation, correlation, cosine; float64 (batch,)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .feature_rows import as_map, check_finite, flat, wide_dtype


def cosine(first: Any, second: Any) -> Tensor:
    """Cosine of the angle between two maps, −1 to 1; float64 (batch,). NaN where one of them is a zero map.

    >>> cosine(torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 1.0]]))
    tensor([0.7071], dtype=torch.float64)
    """
    a, b = _rows(first), _rows(second)
    return (a * b).sum(1) / (torch.linalg.vector_norm(a, dim=1) * torch.linalg.vector_norm(b, dim=1))


def pearson(first: Any, second: Any) -> Tensor:
    """Correlation of two maps, −1 to 1; float64 (batch,). NaN where one of them is constant.

    >>> pearson(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[-1.0, -2.0, -3.0]]))
    tensor([-1.0000], dtype=torch.float64)
    """
    a, b = _rows(first), _rows(second)
    return cosine(a - a.mean(1, keepdim=True), b - b.mean(1, keepdim=True))


def spearman(first: Any, second: Any) -> Tensor:
    """Rank correlation of two maps, −1 to 1; float64 (batch,). NaN where one of them is constant.

    Tied entries share the mean of their ranks, so the many exact zeros of a pruned map count as one tie.

    >>> spearman(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.tensor([[1.0, 10.0, 100.0, 1000.0]]))
    tensor([1.0000], dtype=torch.float64)
    """
    return pearson(_mean_ranks(_rows(first)), _mean_ranks(_rows(second)))


MEASURES: dict[str, Callable[[Any, Any], Tensor]] = {"spearman": spearman, "pearson": pearson, "cosine": cosine}


def _rows(relevance: Any) -> Tensor:
    values = as_map(relevance, None)
    values = flat(values).to(wide_dtype(values))
    check_finite(values.sum(1))
    return values


def _mean_ranks(rows: Tensor) -> Tensor:
    """Rank of each entry in its row, from 0; ties get the mean of theirs."""
    ordered = rows.sort(dim=1).values
    below = torch.searchsorted(ordered, rows, right=False)
    up_to = torch.searchsorted(ordered, rows, right=True)
    return (below + up_to - 1).to(rows.dtype) / 2
