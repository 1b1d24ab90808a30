"""The values that pixel flipping and occlusion write over a region, computed from the unperturbed input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from .regions import Layout
from .seeded import draw

Perturbation: TypeAlias = (
    "Literal['zeros', 'mean', 'image-mean', 'gaussian', 'inversion', 'blur'] | Tensor | Callable[[Tensor], Tensor]"
)


@dataclass(frozen=True)
class PerturbationSettings:
    """Which regions of an input are overwritten, with which values, and how the score is read afterwards.

    Attributes
    ----------
    region
        Size of a tile: an int for all axes (9 is 9 x 9 in an image, a window of 9 in a sequence), or one per axis.
    perturbation, noise_std, blur_sigma
        The values written over a region: `"zeros"`; `"mean"`, its mean per channel; `"image-mean"`, the input's mean
        per channel; `"gaussian"`, noise of `noise_std`; `"inversion"`, −x; `"blur"`, the input blurred with
        `blur_sigma` pixels; a baseline tensor that broadcasts to the inputs; or a callable from inputs to baseline.
    flip_channels
        The input channels that are overwritten; None is all.
    score_as
        The target's logit or probability.
    seed
        Of the noise.
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

    def overwritten(self, inputs: Tensor, layout: Layout, rows: Tensor, batch: int) -> Tensor:
        """The inputs with every region overwritten; `rows` are their indices in a batch of size `batch`."""
        baseline = self._baseline(inputs, layout, rows, batch)
        if self.flip_channels is None:
            return baseline
        changed = inputs.clone()
        changed[:, list(self.flip_channels)] = baseline[:, list(self.flip_channels)]
        return changed

    def _baseline(self, inputs: Tensor, layout: Layout, rows: Tensor, batch: int) -> Tensor:
        perturbation = self.perturbation
        if isinstance(perturbation, Tensor):
            return perturbation.detach().to(inputs).expand(batch, *inputs.shape[1:])[rows]
        if callable(perturbation):
            baseline = perturbation(inputs.clone()).detach().to(inputs)
            if baseline.shape != inputs.shape:
                raise ValueError(
                    f"the perturbation returned a baseline of shape {tuple(baseline.shape)} for inputs of shape "
                    f"{tuple(inputs.shape)}: it must keep the shape."
                )
            return baseline
        if perturbation == "zeros":
            return torch.zeros_like(inputs)
        if perturbation == "mean":
            return layout.regions.spread(layout.regions.means(layout.fold(inputs))).reshape(inputs.shape)
        if perturbation == "image-mean":
            space = tuple(range(2 if layout.has_channels else 1, inputs.ndim))
            return inputs.mean(space, keepdim=True).expand_as(inputs)
        if perturbation == "gaussian":
            noise = draw(layout.shape, noise="gaussian", radius=self.noise_std, seed=self.seed, index=0, like=inputs)
            return noise.expand_as(inputs)
        if perturbation == "inversion":
            return -inputs
        if perturbation == "blur":
            return _blurred(inputs, self.blur_sigma)
        raise ValueError(
            f"unknown perturbation {perturbation!r}: choose 'zeros', 'mean', 'image-mean', 'gaussian', 'inversion', "
            "'blur', a baseline tensor or a callable."
        )


def _blurred(inputs: Tensor, sigma: float) -> Tensor:
    """Inputs smoothed with a Gaussian of `sigma` positions along every axis of space, borders repeated."""
    if not sigma > 0:
        raise ValueError(f"blur_sigma must be positive; got {sigma}.")
    reach = max(1, round(3 * sigma))
    at = torch.arange(-reach, reach + 1, device=inputs.device, dtype=inputs.dtype)
    weight = torch.exp(-(at**2) / (2 * sigma**2))
    weight = (weight / weight.sum()).reshape(1, 1, -1)
    smooth = inputs
    for axis in range(2 if inputs.ndim > 2 else 1, inputs.ndim):
        lines = smooth.movedim(axis, -1)
        padded = F.pad(lines.reshape(-1, 1, lines.shape[-1]), (reach, reach), mode="replicate")
        smooth = F.conv1d(padded, weight).reshape(lines.shape).movedim(-1, axis)
    return smooth
