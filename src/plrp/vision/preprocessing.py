"""How a photograph becomes a network's input: resize, centre crop, normalise; and the same for its mask.

Image and mask go through one `Geometry`, so that a pixel of the relevance and a pixel of the mask are the
same place. On pictures the result equals torchvision's `ImageClassification` preset bit by bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from plrp.vision.photographs import BadImage, Photograph

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
LONGEST = 4096  # pixels; a strip whose resized long side would exceed it is cropped before it is resized


@dataclass(frozen=True)
class Geometry:
    """Resize the shorter side to `resize` pixels, cut the central `crop` x `crop`, normalise per channel.

    `resize=None` leaves the size as it is, `crop=None` keeps the whole picture. A pair (height, width) sets
    both sides, whatever the proportions. Interpolation is "bilinear" or "bicubic" for pictures, nearest for
    masks.
    """

    resize: int | tuple[int, int] | None = 256
    crop: int | tuple[int, int] | None = 224
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        if self.interpolation not in ("bilinear", "bicubic", "nearest"):
            raise ValueError(f"interpolation is bilinear, bicubic or nearest, not {self.interpolation!r}.")
        if len(self.mean) != 3 or len(self.std) != 3 or min(self.std) <= 0:
            raise ValueError("mean and std have three entries each, std positive: photographs are RGB.")
        for name, side in (("resize", self.resize), ("crop", self.crop)):
            if side is not None and min(_pair(side)) < 1:
                raise ValueError(f"{name} is at least one pixel, not {side}.")

    @classmethod
    def of_preset(cls, preset: Any) -> Geometry:
        """The geometry of a torchvision `ImageClassification` preset (`weights.transforms()`)."""
        return cls(
            resize=_side(preset.resize_size),
            crop=_side(preset.crop_size),
            mean=tuple(preset.mean),
            std=tuple(preset.std),
            interpolation=str(preset.interpolation.value),
        )

    def picture(self, photograph: Photograph) -> Image:
        """What the network sees, as an RGB picture: resized and cropped, not normalised."""
        return self._resized_and_cropped(photograph.image, photograph.size, self.interpolation)

    def tensor(self, photograph: Photograph) -> Tensor:
        """The network's input: float32 (3, height, width), normalised."""
        pixels = torch.from_numpy(np.array(self.picture(photograph)))  # height, width, channel
        unit = pixels.permute(2, 0, 1).contiguous().float().div(255)
        mean, std = torch.tensor(self.mean).view(3, 1, 1), torch.tensor(self.std).view(3, 1, 1)
        return unit.sub(mean).div(std)

    def mask(self, mask: Image, size: tuple[int, int] | None = None) -> Tensor:
        """A mask at the same place as the picture: bool (height, width). `size` is the photograph's in its
        file.
        """
        return torch.from_numpy(np.array(self._resized_and_cropped(mask, size or mask.size, "nearest")) > 127)

    def denormalised(self, inputs: Tensor) -> Tensor:
        """From network inputs (..., 3, height, width) back to RGB between 0 and 1."""
        mean, std = torch.tensor(self.mean).view(3, 1, 1), torch.tensor(self.std).view(3, 1, 1)
        return (inputs.detach().cpu() * std + mean).clamp(0, 1)

    def _resized_and_cropped(self, image: Image, size: tuple[int, int], interpolation: str) -> Image:
        from PIL.Image import Resampling

        method = Resampling[interpolation.upper()]
        width, height = size if self.resize is None else self._resized_size(size)
        if max(width, height) > LONGEST:
            image, (width, height) = self._middle_of_strip(image, (width, height))
        if image.size != (width, height):
            image = image.resize((width, height), method)
        if self.crop is None:
            return image
        crop_height, crop_width = _pair(self.crop)
        if width < crop_width or height < crop_height:  # the crop reaches outside: black there, as torchvision does
            image = _padded(image, max(width, crop_width), max(height, crop_height))
            width, height = image.size
        left, top = round((width - crop_width) / 2), round((height - crop_height) / 2)
        return image.crop((left, top, left + crop_width, top + crop_height))

    def _resized_size(self, size: tuple[int, int]) -> tuple[int, int]:
        """Width and height after resizing a picture of `size` (width, height)."""
        if isinstance(self.resize, tuple):
            return self.resize[1], self.resize[0]
        assert self.resize is not None
        short, long = min(size), max(size)
        longer = int(self.resize * long / short)
        return (self.resize, longer) if size[0] <= size[1] else (longer, self.resize)

    def _middle_of_strip(self, image: Image, resized: tuple[int, int]) -> tuple[Image, tuple[int, int]]:
        """The middle of a very long picture, so that resizing it takes bounded memory."""
        if self.crop is None:
            raise BadImage(
                f"a picture of {image.width} x {image.height} would become {resized[0]} x {resized[1]} "
                "pixels; set crop, or resize to a fixed (height, width)."
            )
        keep = tuple(min(side, LONGEST) for side in resized)
        width, height = (max(1, round(of * k / r)) for of, k, r in zip(image.size, keep, resized, strict=True))
        left, top = (image.width - width) // 2, (image.height - height) // 2
        return image.crop((left, top, left + width, top + height)), (keep[0], keep[1])


def _padded(image: Image, width: int, height: int) -> Image:
    from PIL import Image as pil

    canvas = pil.new(image.mode, (width, height))
    canvas.paste(image, ((width - image.width) // 2, (height - image.height) // 2))
    return canvas


def _pair(side: int | tuple[int, int]) -> tuple[int, int]:
    return (side, side) if isinstance(side, int) else side


def _side(sizes: Sequence[int]) -> int | tuple[int, int]:
    return int(sizes[0]) if len(sizes) == 1 else (int(sizes[0]), int(sizes[1]))
