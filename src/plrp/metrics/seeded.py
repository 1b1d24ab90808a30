"""Noise that depends on a seed and the shape of one sample, and on nothing else.

Every sample of a batch gets the same draws. So a sample's score does not depend on the rest of the batch, on its place
there, or on how the work is cut into chunks, and two explanations are compared on the same perturbations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

Noise = Literal["ball", "box", "gaussian"]


@dataclass(frozen=True)
class Draws:
    """Random changes of an input: `samples` perturbations of `noise` and `radius`.

    `"ball"` is uniform in the Euclidean ball of `radius`, `"box"` uniform in ±`radius` per entry,
    `"gaussian"` normal with standard deviation `radius` per entry.
    """

    radius: float = 0.1
    samples: int = 20
    noise: Noise = "ball"
    seed: int = 0

    def shift(self, index: int, inputs: Tensor) -> Tensor:
        """Perturbation number `index` of one sample of `inputs` (batch, ...), on their device and in their dtype."""
        generator = np.random.default_rng([self.seed, index])
        size = math.prod(inputs.shape[1:])
        if self.noise == "ball":
            direction = generator.standard_normal(size)
            # A uniform radius would crowd the centre: the volume within t of the centre grows with t^size.
            values = direction * (self.radius * generator.random() ** (1 / size) / np.linalg.norm(direction))
        elif self.noise == "box":
            values = generator.uniform(-self.radius, self.radius, size)
        elif self.noise == "gaussian":
            values = self.radius * generator.standard_normal(size)
        else:
            raise ValueError(f"unknown noise {self.noise!r}: choose 'ball', 'box' or 'gaussian'.")
        narrowed = torch.from_numpy(values).to(torch.float32 if inputs.dtype != torch.float64 else torch.float64)
        return narrowed.reshape(inputs.shape[1:]).to(inputs)


def gaussian(inputs: Tensor, spread: float, seed: int, index: int = 0) -> Tensor:
    """Normal noise of standard deviation `spread` for one sample of `inputs` (batch, ...)."""
    return Draws(spread, noise="gaussian", seed=seed).shift(index, inputs)
