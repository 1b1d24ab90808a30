"""Noise that depends on a seed and the shape of one sample, and on nothing else.

Every sample of a batch gets the same draws. So a sample's score does not depend on the rest of the batch, on its place
there, or on how the work is cut into chunks, and two explanations are compared on the same perturbations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

Noise = Literal["ball", "box", "gaussian"]


def draw(shape: Sequence[int], *, noise: Noise, radius: float, seed: int, index: int, like: Tensor) -> Tensor:
    """Perturbation number `index` of a sample of `shape`, on the device and in the dtype of `like`.

    `"ball"` is uniform in the Euclidean ball of `radius`, `"box"` uniform in ±`radius` per entry,
    `"gaussian"` normal with standard deviation `radius` per entry.
    """
    generator = np.random.default_rng([seed, index])
    size = math.prod(shape)
    if noise == "ball":
        direction = generator.standard_normal(size)
        # A uniform radius would crowd the centre: the volume within t of the centre grows with t^size.
        values = direction * (radius * generator.random() ** (1 / size) / np.linalg.norm(direction))
    elif noise == "box":
        values = generator.uniform(-radius, radius, size)
    elif noise == "gaussian":
        values = radius * generator.standard_normal(size)
    else:
        raise ValueError(f"unknown noise {noise!r}: choose 'ball', 'box' or 'gaussian'.")
    narrowed = torch.from_numpy(values).to(torch.float32 if like.dtype != torch.float64 else torch.float64)
    return narrowed.reshape(tuple(shape)).to(device=like.device, dtype=like.dtype)


@dataclass(frozen=True)
class Draws:
    """Random changes of an input: `samples` perturbations of `noise` and `radius`, as `draw` makes them."""

    radius: float = 0.1
    samples: int = 20
    noise: Noise = "ball"
    seed: int = 0

    def shift(self, index: int, inputs: Tensor) -> Tensor:
        """Perturbation number `index` of one sample of `inputs` (batch, ...)."""
        return draw(inputs.shape[1:], noise=self.noise, radius=self.radius, seed=self.seed, index=index, like=inputs)


def permutation(n: int, *, seed: int) -> Tensor:
    """A random order of n regions, int64 (n,) on the CPU."""
    return torch.from_numpy(np.random.default_rng([seed, n]).permutation(n))
