"""Values for removed pixels or bases, imputed from the remaining ones.

A replacement of `replacements.py` does not depend on the other regions that are missing. An imputer sees all missing
entries: `linear_imputation` fills a hole from its rim, so a large hole is filled differently from two small ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .seeded import draw

Imputer: TypeAlias = "Literal['linear', 'histogram', 'image-mean', 'zeros'] | Callable[[Tensor, Tensor], Tensor]"

DIRECT, DIAGONAL = 1 / 6, 1 / 12  # weights of the eight neighbours of a pixel
NEIGHBOUR = 1 / 2  # of the two neighbours of a base


def impute(inputs: Tensor, missing: Tensor, imputer: Imputer, *, noise: float = 0.01, seed: int = 0) -> Tensor:
    """The inputs (batch, channel, *space) with the entries where `missing` (batch, 1, *space) is True imputed.

    - `"linear"`: `linear_imputation`, with Gaussian noise of standard deviation `noise` added (ROAD);
    - `"histogram"`: each missing pixel takes all channels of a pixel of the same input, drawn at random;
    - `"image-mean"`: the mean of the input per channel;
    - `"zeros"`: 0;
    - or a callable `impute(inputs, missing)`.
    """
    if callable(imputer):
        return torch.where(missing, imputer(inputs.clone(), missing), inputs)
    if imputer == "linear":
        filled = linear_imputation(inputs, missing)
        filled = filled + draw(inputs.shape[1:], noise="gaussian", radius=noise, seed=seed, index=0, like=inputs)
    elif imputer == "histogram":
        flat = inputs.flatten(2)
        chosen = np.random.default_rng([seed, flat.shape[2]]).integers(flat.shape[2], size=flat.shape[2])
        filled = flat[:, :, torch.from_numpy(chosen).to(inputs.device)].reshape(inputs.shape)
    elif imputer == "image-mean":
        filled = inputs.mean(tuple(range(2, inputs.ndim)), keepdim=True).expand_as(inputs)
    elif imputer == "zeros":
        filled = torch.zeros_like(inputs)
    else:
        raise ValueError(
            f"unknown imputer {imputer!r}: choose 'linear', 'histogram', 'image-mean', 'zeros' or a callable."
        )
    return torch.where(missing, filled, inputs)


def linear_imputation(inputs: Tensor, missing: Tensor, *, tolerance: float = 1e-6, most: int = 2000) -> Tensor:
    """Missing pixels as the weighted mean of their neighbours, missing ones included (Rong et al., 2022).

    Every missing pixel i solves x_i·Σ_j w_ij = Σ_j w_ij x_j over the neighbours j that exist: the four direct ones with
    w = 1/6, the four diagonal ones with 1/12; in a sequence the two neighbours with 1/2. All missing pixels of an input
    are solved for together, by conjugate gradients to a relative residual of `tolerance`. An input with nothing left is
    filled with zeros.
    """
    if inputs.ndim not in (3, 4):
        raise ValueError(
            f"linear imputation needs (batch, channel, *space) with one or two axes, got {inputs.ndim} axes."
        )
    hole = missing.to(inputs.dtype)
    known = torch.where(missing, 0.0, inputs)
    weight = _neighbours(inputs)
    around = _spread(torch.ones_like(inputs[:, :1]), weight)  # Σ_j w_ij over the neighbours that exist

    def residual_of(x: Tensor) -> Tensor:
        return hole * (around * x - _spread(x, weight))

    def quotient(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(b > 0, a / b.clamp(min=torch.finfo(b.dtype).tiny), 0.0)

    # each channel of each sample is a system of its own
    x = torch.zeros_like(inputs)
    right = hole * _spread(known, weight)
    residual = right
    direction = residual
    size = _inner(residual, residual)
    enough = tolerance**2 * size
    for _ in range(most):
        if not bool((size > enough).any()):
            break
        image = residual_of(direction)
        curvature = _inner(direction, image)
        step = quotient(size, curvature)
        x = x + step * direction
        residual = residual - step * image
        before, size = size, _inner(residual, residual)
        direction = residual + quotient(size, before) * direction
    return known + hole * x


def _neighbours(inputs: Tensor) -> Tensor:
    if inputs.ndim == 3:
        weight = torch.tensor([NEIGHBOUR, 0.0, NEIGHBOUR])
    else:
        row = [DIAGONAL, DIRECT, DIAGONAL]
        weight = torch.tensor([row, [DIRECT, 0.0, DIRECT], row])
    return weight.to(inputs)[None, None]


def _spread(x: Tensor, weight: Tensor) -> Tensor:
    """Σ_j w_ij x_j for every pixel, channel by channel; nothing lies beyond the border."""
    flat = x.flatten(0, 1)[:, None]
    spread = F.conv1d(flat, weight, padding=1) if x.ndim == 3 else F.conv2d(flat, weight, padding=1)
    return spread.reshape(x.shape)


def _inner(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(tuple(range(2, a.ndim)), keepdim=True)
