"""Concepts that are no single channels: subspaces of a layer that hold much of its relevance (Chormai et al. 2022).

At a layer with activations a and contexts c, R = a ⊙ c, a subspace with the orthonormal basis U_k holds the relevance
(U_kᵀ a) · (U_kᵀ c). PRCA and DRSA look for bases that hold much of it, over the positions of a data set.
"""

from __future__ import annotations

import io
import json
import math
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from plrp.composites import AUTO, Composite
from plrp.conditions import Condition, Projection
from plrp.models.loading import LoadedModel
from plrp.progress import progress
from plrp.pruning import Pruning
from plrp.runs.places import Place
from plrp.runs.run import Run, text_digest
from plrp.runs.work import Execution
from plrp.tables import render_table

from .numbered_inputs import numbered
from .search import LAYOUT, Search, run_search, whole_arrays

METHODS = ("prca", "drsa")
STARTS = 3  # of DRSA's ascent, of which the best is taken
STEPS, SMALLEST = 1000, 1e-7  # of an ascent: their number, and the relative gain below which it ends


@dataclass(frozen=True)
class Subspaces:
    """Subspaces of a layer's channels, those with most relevance first.

    bases: (subspaces, channels, dimensions), orthonormal, each subspace orthogonal to all others. held: the share of
    the relevance Σ aᵀc, over the data, that each holds, Σ (U_kᵀ a) · (U_kᵀ c). It may exceed 1 where the rest speaks
    against the score.
    """

    layer: str
    method: str
    bases: npt.NDArray[np.float32]
    held: npt.NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.bases)

    def condition(self, number: int, at: tuple[int, ...] | None = None) -> Condition:
        """The condition under which only the relevance of one subspace is handed down, at one position or at all."""
        return {self.layer: Projection(torch.tensor(self.bases[number]), at=at, label=f"subspace {number}")}

    @property
    def conditions(self) -> list[Condition]:
        """Those of all subspaces, and of the residual: their explanations add up to the explanation."""
        whole = torch.tensor(np.concatenate(list(self.bases), 1))
        return [*map(self.condition, range(len(self))), {self.layer: Projection(whole, True, label="the residual")}]

    def __repr__(self) -> str:
        rows = [(str(number), f"{share:.1%}") for number, share in enumerate(self.held)]
        rows.append(("residual", f"{1 - self.held.sum():.1%}"))
        size = f"{self.bases.shape[2]} of {self.bases.shape[1]} dimensions each"
        return f"Subspaces of '{self.layer}' by {self.method.upper()}, {size}\n" + render_table(
            ("subspace", "relevance"), rows
        )


def subspaces(
    model: nn.Module | LoadedModel,
    data: Any,
    layer: str,
    method: str = "prca",
    count: int = 4,
    dimensions: int = 8,
    *,
    positions: int = 32,
    target: Any = None,
    composite: str | Composite = AUTO,
    pruning: Pruning | None = None,
    seed: int = 0,
    out: str | Path | Place | None = None,
    part_size: int = 64,
    batch_size: int = 8,
    show_progress: bool | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Subspaces:
    """Subspaces of a layer's channels that hold much of its relevance, for layers whose channels mean little alone.

    layer: a conv or linear layer; its activations are those that the next layers read, after activations and pools.
    method: `"prca"`: the eigenvectors of E[a cᵀ + c aᵀ] with the largest eigenvalues, `dimensions` by `dimensions`.
        `"drsa"`: subspaces that are relevant for different inputs; from `STARTS` random starts, by `seed`.
    count, dimensions: how many subspaces, and how large each.
    positions: of each input, drawn at random.
    out: a folder to store contexts in, part by part, and each ascent; the same call resumes, and other numbers or
        another method reuse the contexts. Without one, nothing is stored.

    All other arguments are those of `plrp.exemplars`.
    """
    if method not in METHODS:
        raise ValueError(f"method is 'prca' or 'drsa', got {method!r}.")
    for name, number in (("count", count), ("dimensions", dimensions)):
        if not isinstance(number, int) or number < 1:
            raise ValueError(f"{name}={number!r}: a whole number from 1.")
    module, inputs = model.module if isinstance(model, LoadedModel) else model, numbered(data, model)
    with ExitStack() as scope:
        place = scope.enter_context(tempfile.TemporaryDirectory()) if out is None else out
        explained = {"layers": [layer], "target": target, "composite": composite, "pruning": pruning}
        search = Search(
            module, inputs, place, **explained, part_size=part_size, batch_size=batch_size, positions=positions
        )
        return search_subspaces(
            search, method, count, dimensions, seed, Execution(show_progress=show_progress, say=say)
        )


def search_subspaces(
    search: Search, method: str, count: int, dimensions: int, seed: int, execution: Execution
) -> Subspaces:
    """Collect the contexts that a search for subspaces still misses, and make subspaces of all of them."""
    how = {"method": method, "count": count, "dimensions": dimensions, "seed": seed}
    (layer,), space = search.layers, search.record["spaces"][search.layers[0]]
    needed, available = count * dimensions, len(search.inputs) * min(search.record["positions"], math.prod(space))
    if needed > search.channels:
        raise ValueError(
            f"{count} subspaces of {dimensions} dimensions need {needed} channels: '{layer}' has {search.channels}."
        )
    if needed > available:
        raise ValueError(f"{available} positions are too few for {needed} dimensions: give more inputs or positions.")
    made: Subspaces = run_search(search, execution, partial(_made, how=how, show_progress=execution.show_progress))
    return made


def _made(run: Run, settings: Mapping[str, Any], how: Mapping[str, Any], show_progress: bool | None) -> Subspaces:
    """The subspaces of a finished run of contexts."""
    arrays = whole_arrays(run)
    a, c = (torch.from_numpy(arrays[name]).flatten(0, 1).double() for name in ("activation", "context"))
    (layer,), method, size = settings["layers"], how["method"], (how["count"], how["dimensions"])
    if not (a * c).any():
        raise ValueError(f"No input of the data gave layer '{layer}' relevance: name another layer or target.")
    if method == "prca":
        u = prca(a, c, *size)
    else:
        key = text_digest(json.dumps([settings["key"], how], sort_keys=True))
        starts = Run(run.place, LAYOUT, STARTS, lambda index: key)
        with progress("ascending", STARTS * STEPS, show_progress) as step:
            u = max((_ascent(starts, n, a, c, how, step) for n in range(STARTS)), key=lambda u: objective(a, c, u)[0])
    held = ((_in(a, u) * _in(c, u)).sum((0, 2)) / (a * c).sum()).numpy()
    order = np.argsort(-held, kind="stable")
    return Subspaces(layer, method, u.movedim(1, 0).numpy().astype(np.float32)[order], held[order])


def _ascent(
    starts: Run, number: int, a: Tensor, c: Tensor, how: Mapping[str, Any], step: Callable[[float], None]
) -> Tensor:
    """DRSA from one start: as it was stored, or made now and stored."""
    stored = starts.names("starts").get(number)
    content = None if stored is None else starts.content(stored)
    if content is None:
        u = drsa(a, c, how["count"], how["dimensions"], how["seed"] + number, step)
        buffer = io.BytesIO()
        np.save(buffer, u.numpy())
        starts.write(number, buffer.getvalue(), "starts")
        return u
    step(STEPS)
    return torch.from_numpy(np.load(io.BytesIO(content)))


def prca(a: Tensor, c: Tensor, count: int, dimensions: int) -> Tensor:
    """The eigenvectors of E[a cᵀ + c aᵀ] with the largest eigenvalues, (channels, count, dimensions).

    a, c: (vectors, channels).
    """
    moments = a.mT @ c / len(a)
    _, vectors = torch.linalg.eigh(moments + moments.mT)
    return vectors.flip(1)[:, : count * dimensions].unflatten(1, (count, dimensions))


def drsa(
    a: Tensor, c: Tensor, count: int, dimensions: int, seed: int, step: Callable[[float], None] = lambda done: None
) -> Tensor:
    """Ascent of `objective` from a random start, (channels, count, dimensions); `step` is called after each step.

    A step that gains nothing is taken back and halved; a step that gains is followed by a longer one.
    """
    start = torch.randn(a.shape[1], count * dimensions, generator=torch.Generator().manual_seed(seed), dtype=a.dtype)
    u = _orthonormal(start.unflatten(1, (count, dimensions)))
    value, slope = objective(a, c, u)
    rate, taken = 1.0, 0
    while taken < STEPS and rate > SMALLEST and bool(slope.any()):
        further = _orthonormal(u + rate * slope / slope.norm())
        higher, next_slope = objective(a, c, further)
        gain, taken = float((higher - value) / value), taken + 1
        step(1)
        if gain <= 0:
            rate /= 2
            continue
        u, value, slope, rate = further, higher, next_slope, 1.5 * rate
        if gain < SMALLEST:
            break
    step(STEPS - taken)
    return u


def objective(a: Tensor, c: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """M½_k M2_n relu((U_kᵀ a_n) · (U_kᵀ c_n)), M^q the power mean, and its derivative by U, (channels, count, dims)."""
    p, q = _in(a, u), _in(c, u)
    r = (p * q).sum(2).clamp(min=0)  # (vectors, count)
    m = r.square().mean(0).sqrt()
    value = m.sqrt().mean() ** 2
    weight = r * torch.where(m > 0, value.sqrt() / (len(m) * len(r)) * m**-1.5, 0.0)  # ∂ value / ∂ r
    slope = torch.einsum("nj,nkd->jkd", a, weight[..., None] * q) + torch.einsum(
        "nj,nkd->jkd", c, weight[..., None] * p
    )
    return value, slope


def _in(x: Tensor, u: Tensor) -> Tensor:
    """U_kᵀ x for each subspace, (vectors, count, dimensions)."""
    return (x @ u.flatten(1)).unflatten(1, u.shape[1:])


def _orthonormal(u: Tensor) -> Tensor:
    """U (UᵀU)^{−½}: the nearest orthonormal columns."""
    left, _, right = torch.linalg.svd(u.flatten(1), full_matrices=False)
    return (left @ right).view_as(u)
