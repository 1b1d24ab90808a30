"""The values that take the place of removed regions.

A *perturbation* of pixel flipping and occlusion is computed from the unperturbed input, whichever regions are missing.
An *imputer* sees all missing entries: `linear_imputation` fills a hole from its rim, so a large hole is filled
differently from two small ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from plrp.references import blurred, channel_means

from .feature_rows import pick
from .regions import Layout
from .seeded import gaussian

Perturbation: TypeAlias = (
    "Literal['zeros', 'mean', 'image-mean', 'gaussian', 'inversion', 'blur'] | Tensor | Callable[[Tensor], Tensor]"
)
Imputer: TypeAlias = "Literal['linear', 'histogram', 'image-mean', 'zeros'] | Callable[[Tensor, Tensor], Tensor]"

DIRECT, DIAGONAL = 1 / 6, 1 / 12  # weights of the eight neighbours of a pixel
NEIGHBOUR = 1 / 2  # of the two neighbours of a base


@dataclass(frozen=True)
class PerturbationSettings:
    """Which regions of an input are overwritten, with which values, and how the score is read afterwards.

    - `region`: size of a tile: one int per axis, or one for all (9 is 9 x 9 in an image, a window of 9 in a sequence).
    - `perturbation`, `noise_std`, `blur_sigma`: the values written over a region: `"zeros"`; `"mean"`, its mean per
      channel; `"image-mean"`, the input's mean per channel; `"gaussian"`, noise of `noise_std`; `"inversion"`, −x;
      `"blur"`, the input blurred with `blur_sigma` pixels; a baseline tensor that broadcasts to the inputs; or a
      callable from inputs to baseline.
    - `flip_channels`: the input channels that are overwritten; None is all.
    - `score_as`: the target's logit or probability; `seed`: of the noise.
    """

    region: int | Sequence[int] = 1
    perturbation: Perturbation = "zeros"
    noise_std: float = 0.3
    blur_sigma: float = 8.0
    flip_channels: Sequence[int] | None = None
    score_as: Literal["logit", "probability"] = "logit"
    seed: int = 0

    def check(self, layout: Layout, inputs: Tensor) -> None:
        """Refuse, before the model runs, a perturbation that does not fit the inputs or would change nothing."""
        if isinstance(self.perturbation, Tensor):
            try:
                self.perturbation.expand_as(inputs)
            except RuntimeError as error:
                raise ValueError(
                    f"a baseline of shape {tuple(self.perturbation.shape)} does not broadcast to inputs of shape "
                    f"{tuple(inputs.shape)}."
                ) from error
        elif self.perturbation == "mean" and layout.regions.count == layout.regions.number.numel():
            raise ValueError(
                "the mean of a region of one entry is the entry: nothing would be flipped; use 'image-mean'."
            )
        if self.flip_channels is not None and not layout.has_channels:
            raise ValueError("inputs (batch, features) have no channels to choose from: leave flip_channels=None.")

    def overwritten(self, inputs: Tensor, layout: Layout, rows: Tensor) -> Tensor:
        """The inputs with every region overwritten; `rows` are their indices in the batch of the layout."""
        baseline = self._baseline(inputs, layout, rows)
        if self.flip_channels is None:
            return baseline
        changed = inputs.clone()
        changed[:, list(self.flip_channels)] = baseline[:, list(self.flip_channels)]
        return changed

    def _baseline(self, inputs: Tensor, layout: Layout, rows: Tensor) -> Tensor:
        perturbation, regions = self.perturbation, layout.regions
        if isinstance(perturbation, Tensor):
            return perturbation.detach().to(inputs).expand(layout.batch, *inputs.shape[1:])[rows]
        if callable(perturbation):
            baseline = perturbation(inputs.clone()).detach().to(inputs)
            if baseline.shape != inputs.shape:
                raise ValueError(
                    f"the perturbation returned a baseline of shape {tuple(baseline.shape)} for inputs of shape "
                    f"{tuple(inputs.shape)}: it must keep the shape."
                )
            return baseline
        values: dict[str, Callable[[], Tensor]] = {
            "zeros": lambda: torch.zeros_like(inputs),
            "mean": lambda: regions.spread(regions.reduced(layout.fold(inputs), "mean")).reshape(inputs.shape),
            "image-mean": lambda: channel_means(inputs),
            "gaussian": lambda: gaussian(inputs, self.noise_std, self.seed).expand_as(inputs),
            "inversion": lambda: -inputs,
            "blur": lambda: blurred(inputs, self.blur_sigma),
        }
        return pick("perturbation", perturbation, values, "a baseline tensor", "a callable")()


def impute(inputs: Tensor, missing: Tensor, imputer: Imputer, *, noise: float = 0.01, seed: int = 0) -> Tensor:
    """The inputs (batch, channel, *space) with the entries where `missing` (batch, 1, *space) is True imputed.

    - `"linear"`: `linear_imputation`, with Gaussian noise of standard deviation `noise` added (ROAD);
    - `"histogram"`: each missing pixel takes all channels of a pixel of the same input, drawn at random;
    - `"image-mean"`: the mean of the input per channel;
    - `"zeros"`: 0;
    - or a callable `impute(inputs, missing)`.
    """

    def histogram() -> Tensor:
        flat = inputs.flatten(2)
        chosen = np.random.default_rng([seed, flat.shape[2]]).integers(flat.shape[2], size=flat.shape[2])
        return flat[:, :, torch.from_numpy(chosen).to(inputs.device)].reshape(inputs.shape)

    values: dict[str, Callable[[], Tensor]] = {
        "linear": lambda: linear_imputation(inputs, missing) + gaussian(inputs, noise, seed),
        "histogram": histogram,
        "image-mean": lambda: channel_means(inputs),
        "zeros": lambda: torch.zeros_like(inputs),
    }
    if callable(imputer):
        filled = imputer(inputs.clone(), missing)
    else:
        filled = pick("imputer", imputer, values, "a callable")()
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
    row = [DIAGONAL, DIRECT, DIAGONAL]
    sequence = inputs.ndim == 3
    weight = torch.tensor([NEIGHBOUR, 0.0, NEIGHBOUR] if sequence else [row, [DIRECT, 0.0, DIRECT], row]).to(inputs)

    def spread(x: Tensor) -> Tensor:
        """Σ_j w_ij x_j for every pixel, channel by channel; nothing lies beyond the border."""
        convolve = F.conv1d if sequence else F.conv2d
        return convolve(x.flatten(0, 1)[:, None], weight[None, None], padding=1).reshape(x.shape)

    def inner(a: Tensor, b: Tensor) -> Tensor:
        return (a * b).sum(tuple(range(2, a.ndim)), keepdim=True)

    def quotient(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(b > 0, a / b.clamp(min=torch.finfo(b.dtype).tiny), 0.0)

    around = spread(torch.ones_like(inputs[:, :1]))  # Σ_j w_ij over the neighbours that exist
    # each channel of each sample is a system of its own
    x = torch.zeros_like(inputs)
    residual = direction = hole * spread(known)
    size = inner(residual, residual)
    enough = tolerance**2 * size
    for _ in range(most):
        if not bool((size > enough).any()):
            break
        image = hole * (around * direction - spread(direction))
        step = quotient(size, inner(direction, image))
        x = x + step * direction
        residual = residual - step * image
        before, size = size, inner(residual, residual)
        direction = residual + quotient(size, before) * direction
    return known + hole * x
