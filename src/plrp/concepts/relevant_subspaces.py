"""Concepts that are no single channels: subspaces of a layer that hold much of its relevance (Chormai et al. 2022).

At a layer with activations a and contexts c, R = a ⊙ c, a subspace with the orthonormal basis U_k holds the relevance
(U_kᵀ a) · (U_kᵀ c). PRCA and DRSA look for bases that hold much of it, over the positions of a data set.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from plrp.conditions import Condition, Projection
from plrp.models.loading import LoadedModel
from plrp.progress import progress
from plrp.runs.places import Place
from plrp.runs.work import Execution
from plrp.tables import render_table

from .exemplar_results import Exemplars
from .search import POSITIONS, Search, run_search, searching, totals_of, whole_arrays

STEPS, SMALLEST = 1000, 1e-7  # of an ascent: their number, and the relative gain below which it ends


@dataclass(frozen=True)
class Subspaces:
    """Subspaces of a layer's channels, those with most relevance first.

    bases: (subspaces, channels, dimensions), all columns orthonormal. held: the share of the data's relevance Σ aᵀc in
    each, Σ (U_kᵀ a) · (U_kᵀ c); it may exceed 1 where the rest speaks against the score. exemplars: the inputs that
    gave each subspace most relevance, at the drawn positions; its channels are the subspaces.
    """

    layer: str
    method: str
    bases: npt.NDArray[np.float32]
    held: npt.NDArray[np.float64]
    exemplars: Exemplars

    @property
    def conditions(self) -> list[Condition]:
        """One for each subspace, and one for the residual: their explanations add up to the explanation."""
        parts = [Projection(torch.tensor(u), label=f"subspace {k}") for k, u in enumerate(self.bases)]
        parts.append(Projection(torch.tensor(np.concatenate(list(self.bases), 1)), residual=True, label="the residual"))
        return [{self.layer: part} for part in parts]

    def __repr__(self) -> str:
        rows = [*((str(k), f"{share:.1%}") for k, share in enumerate(self.held))]
        rows.append(("residual", f"{1 - self.held.sum():.1%}"))
        head = f"Subspaces of '{self.layer}' by {self.method.upper()}, dimensions: {self.bases.shape[2]} of"
        return f"{head} {self.bases.shape[1]}\n" + render_table(("subspace", "relevance"), rows)


def subspaces(
    model: nn.Module | LoadedModel,
    data: Any,
    layer: str,
    method: str = "prca",
    count: int = 4,
    dimensions: int = 8,
    *,
    positions: int = POSITIONS,
    starts: int = 3,
    seed: int = 0,
    out: str | Path | Place | None = None,
    show_progress: bool | None = None,
    say: Callable[[str], None] = lambda text: None,
    **search: Any,
) -> Subspaces:
    """Subspaces of a layer's channels that hold much of its relevance, for layers whose channels mean little alone.

    layer: a conv or linear layer; its activations are taken after activation functions and pools.
    method: `"prca"`: the eigenvectors of E[a cᵀ + c aᵀ] with the largest eigenvalues, `dimensions` by `dimensions`.
        `"drsa"`: subspaces that are relevant for different inputs, by ascent from `starts` random starts, drawn by
        `seed`. The best end is taken; it need not be the best there is, so several starts help.
    count, dimensions: how many subspaces, and how large each. positions: of each input, drawn at random.
    out: a folder to store activations and contexts in, part by part. The same call resumes, and other subspaces of the
        same layer reuse them.
    search: `target`, `composite`, `pruning`, `part_size` and `batch_size`, as in `plrp.exemplars`.
    """
    execution = Execution(show_progress=show_progress, say=say)
    with searching(model, data, out, layers=[layer], positions=positions, **search) as contexts:
        return search_subspaces(contexts, execution, method, count, dimensions, starts, seed)


def search_subspaces(
    search: Search, execution: Execution, method: str, count: int, dimensions: int, starts: int = 3, seed: int = 0
) -> Subspaces:
    """Collect the activations and contexts that a search still misses, and make subspaces of all of them."""
    if method not in ("prca", "drsa"):
        raise ValueError(f"method is 'prca' or 'drsa', got {method!r}.")
    if not all(isinstance(number, int) and number > 0 for number in (count, dimensions, starts)):
        raise ValueError(f"count={count!r}, dimensions={dimensions!r}, starts={starts!r}: whole numbers from 1.")
    (layer,), needed, size = search.layers, count * dimensions, f"{count} subspaces of {dimensions} dimensions"
    if needed > search.channels:
        raise ValueError(f"{size} need {needed} channels, and '{layer}' has {search.channels}: ask for fewer.")
    if needed > search.vectors:
        raise ValueError(f"{size} need {needed} positions, and the data have {search.vectors}: give more inputs.")
    arrays = run_search(search, execution, lambda run, settings: whole_arrays(run))
    a, c = (torch.from_numpy(arrays[name]).flatten(0, 1).double() for name in ("activation", "context"))
    if not (a * c).any():
        raise ValueError(f"No input of the data gave layer '{layer}' relevance: name another layer or target.")
    if method == "prca":
        u = prca(a, c, count, dimensions)
    else:
        with progress("ascending", starts * STEPS, execution.show_progress) as step:
            ends = [drsa(a, c, count, dimensions, seed + start, step) for start in range(starts)]
        u = max(ends, key=lambda end: float(objective(a, c, end)[0]))
    held, order = (_in(a, u) * _in(c, u)).sum((0, 2)).sort(descending=True, stable=True)
    u = u[:, order]
    bases, at = u.movedim(1, 0).float().numpy(), arrays["at"]
    p, q = (
        _in(x, u).unflatten(0, at.shape).movedim(1, 2) for x in (a, c)
    )  # (inputs, subspaces, positions, dimensions)
    totals = totals_of((p * q).sum(3), p.norm(dim=3), tuple(search.record["spaces"][layer]))
    relevant_at, active_at = (np.take_along_axis(at, x, 1) for x in (totals.relevant_at, totals.active_at))
    totals, about = replace(totals, relevant_at=relevant_at, active_at=active_at), dict(search.record)
    names, about["subspaces"] = about.pop("names"), bases.tolist()
    exemplars = Exemplars({layer: totals}, names, arrays["classes"], about)
    return Subspaces(layer, method, bases, (held / (a * c).sum()).numpy(), exemplars)


def prca(a: Tensor, c: Tensor, count: int, dimensions: int) -> Tensor:
    """The eigenvectors of E[a cᵀ + c aᵀ] with the largest eigenvalues, (channels, count, dimensions).

    a, c: (vectors, channels).
    """
    moments = a.mT @ c / len(a)
    _, vectors = torch.linalg.eigh(moments + moments.mT)
    return vectors.flip(1)[:, : count * dimensions].unflatten(1, (count, dimensions))


def drsa(a: Tensor, c: Tensor, count: int, dimensions: int, seed: int, step: Callable[[float], None]) -> Tensor:
    """Ascent of `objective` from a random start, (channels, count, dimensions); `step` is called after each step.

    A step that gains nothing is taken back and halved; a step that gains is followed by a longer one.
    """
    start = torch.randn(a.shape[1], count * dimensions, generator=torch.Generator().manual_seed(seed), dtype=a.dtype)
    u = _orthonormal(start.unflatten(1, (count, dimensions)))
    value, slope = objective(a, c, u)
    rate, taken, gain = 1.0, 0, 1.0
    while taken < STEPS and rate > SMALLEST and not 0 < gain < SMALLEST and slope.any():
        further = _orthonormal(u + rate * slope / slope.norm())
        higher, its_slope = objective(a, c, further)
        gain = float((higher - value) / value)
        if gain > 0:
            u, value, slope = further, higher, its_slope
        rate, taken = rate * (1.5 if gain > 0 else 0.5), taken + 1
        step(1)
    step(STEPS - taken)
    return u


def objective(a: Tensor, c: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """M½_k M2_n relu((U_kᵀ a_n) · (U_kᵀ c_n)), M^q the power mean, and its derivative by U, (channels, count, dims)."""
    p, q = _in(a, u), _in(c, u)
    r = (p * q).sum(2).clamp(min=0)  # (vectors, count)
    m = r.square().mean(0).sqrt()
    value = m.sqrt().mean() ** 2
    by_r = r * torch.where(m > 0, value.sqrt() / (len(m) * len(r)) * m**-1.5, 0.0)
    slope = a.mT @ (by_r[..., None] * q).flatten(1) + c.mT @ (by_r[..., None] * p).flatten(1)
    return value, slope.view_as(u)


def _in(x: Tensor, u: Tensor) -> Tensor:
    """U_kᵀ x for each subspace, (vectors, count, dimensions)."""
    return (x @ u.flatten(1)).unflatten(1, u.shape[1:])


def _orthonormal(u: Tensor) -> Tensor:
    """U (UᵀU)^{−½}: the nearest orthonormal columns."""
    left, _, right = torch.linalg.svd(u.flatten(1), full_matrices=False)
    return (left @ right).view_as(u)
