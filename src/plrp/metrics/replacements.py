"""What pixel flipping writes over a region; always computed from the unperturbed input."""

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
class Replacement:
    """A perturbation with its settings; see `pixel_flipping`."""

    perturbation: Perturbation
    noise_std: float
    blur_sigma: float
    flip_channels: Sequence[int] | None
    seed: int

    def check(self, layout: Layout, inputs: Tensor) -> None:
        """Refuse, before the model runs, what could not be written or would change nothing."""
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

    def of(self, inputs: Tensor, layout: Layout, rows: Tensor, batch: int) -> Tensor:
        """The inputs with every region overwritten; `rows` are these inputs' places in the batch."""
        baseline = self._baseline(inputs, layout, rows, batch)
        if self.flip_channels is None:
            return baseline
        overwritten = inputs.clone()
        overwritten[:, list(self.flip_channels)] = baseline[:, list(self.flip_channels)]
        return overwritten

    def _baseline(self, inputs: Tensor, layout: Layout, rows: Tensor, batch: int) -> Tensor:
        what = self.perturbation
        if isinstance(what, Tensor):
            return what.detach().to(inputs).expand(batch, *inputs.shape[1:])[rows]
        if callable(what):
            baseline = what(inputs.clone()).detach().to(inputs)
            if baseline.shape != inputs.shape:
                raise ValueError(
                    f"the perturbation returned a baseline of shape {tuple(baseline.shape)} for inputs of shape "
                    f"{tuple(inputs.shape)}: it must keep the shape."
                )
            return baseline
        if what == "zeros":
            return torch.zeros_like(inputs)
        if what == "mean":
            return layout.regions.spread(layout.regions.means(layout.fold(inputs))).reshape(inputs.shape)
        if what == "image-mean":
            space = tuple(range(2 if layout.has_channels else 1, inputs.ndim))
            return inputs.mean(space, keepdim=True).expand_as(inputs)
        if what == "gaussian":
            noise = draw(layout.shape, noise="gaussian", radius=self.noise_std, seed=self.seed, index=0, like=inputs)
            return noise.expand_as(inputs)
        if what == "inversion":
            return -inputs
        if what == "blur":
            return _blurred(inputs, self.blur_sigma)
        raise ValueError(
            f"unknown perturbation {what!r}: choose 'zeros', 'mean', 'image-mean', 'gaussian', 'inversion', 'blur', "
            "a baseline tensor or a callable."
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
