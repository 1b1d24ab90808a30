"""Apply a model's `Preprocessing`: from a photograph to the network's input, and the same for its mask.

Image and mask are resized and cropped alike, so that a pixel of the relevance and a pixel of the mask are the same
place. On pictures the result equals torchvision's `ImageClassification` preset bit by bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from plrp.models.preprocessing import Preprocessing

from .photographs import BadImage, Photograph

if TYPE_CHECKING:
    from PIL.Image import Image

DEFAULT = Preprocessing()
LONGEST = 4096  # pixels; a strip whose resized long side would exceed it is cropped before it is resized


def network_picture(photograph: Photograph, preprocessing: Preprocessing = DEFAULT) -> Image:
    """The network's view of a photograph as an RGB picture: resized and cropped, not normalised."""
    return _resize_and_crop(photograph.image, photograph.size, preprocessing, preprocessing.interpolation)


def network_input(photograph: Photograph, preprocessing: Preprocessing = DEFAULT) -> Tensor:
    """The network's input: float32 (3, height, width), normalised."""
    pixels = torch.from_numpy(np.array(network_picture(photograph, preprocessing)))  # height, width, channel
    return preprocessing.normalise(pixels.permute(2, 0, 1).contiguous().float().div(255))


def network_mask(mask: Image, size: tuple[int, int], preprocessing: Preprocessing = DEFAULT) -> Tensor:
    """The mask of a photograph of `size` (width, height) in its file, as the network sees it: bool (height, width)."""
    return torch.from_numpy(np.array(_resize_and_crop(mask, size, preprocessing, "nearest")) > 127)


def network_point(
    point: tuple[int, int], size: tuple[int, int], preprocessing: Preprocessing = DEFAULT
) -> tuple[float, float]:
    """Where the network sees the middle of a pixel (x, y) of a photograph of `size` (width, height), in its own pixels.

    Cropped pixels lie outside: below zero, or beyond the network's picture.
    """
    resized, crop = _resized_size(size, preprocessing.resize), preprocessing.crop
    sides = resized if crop is None else (crop, crop) if isinstance(crop, int) else (crop[1], crop[0])
    x, y = (
        (place + 0.5) * after / before - round((after - side) / 2)
        for place, before, after, side in zip(point, size, resized, sides, strict=True)
    )
    return x, y


def _resize_and_crop(image: Image, size: tuple[int, int], preprocessing: Preprocessing, interpolation: str) -> Image:
    from PIL.Image import Resampling

    width, height = _resized_size(size, preprocessing.resize)
    crop = preprocessing.crop
    if max(width, height) > LONGEST:
        if crop is None:
            raise BadImage(
                f"a picture of {image.width} x {image.height} would become {width} x {height} pixels; set crop, or "
                "resize to a fixed (height, width)."
            )
        image, (width, height) = _middle_of_strip(image, (width, height))
    if image.size != (width, height):
        image = image.resize((width, height), Resampling[interpolation.upper()])
    if crop is None:
        return image
    crop_height, crop_width = (crop, crop) if isinstance(crop, int) else crop
    if width < crop_width or height < crop_height:  # the crop reaches outside: black there, as torchvision does
        image = _padded(image, max(width, crop_width), max(height, crop_height))
        width, height = image.size
    left, top = round((width - crop_width) / 2), round((height - crop_height) / 2)
    return image.crop((left, top, left + crop_width, top + crop_height))


def _resized_size(size: tuple[int, int], resize: int | tuple[int, int] | None) -> tuple[int, int]:
    """Width and height after resizing a picture of `size` (width, height)."""
    if resize is None:
        return size
    if isinstance(resize, tuple):
        return resize[1], resize[0]
    longer = int(resize * max(size) / min(size))
    return (resize, longer) if size[0] <= size[1] else (longer, resize)


def _middle_of_strip(image: Image, resized: tuple[int, int]) -> tuple[Image, tuple[int, int]]:
    """The middle of a very long picture, and its size after resizing, which takes bounded memory."""
    sides = min(resized[0], LONGEST), min(resized[1], LONGEST)
    width, height = (max(1, round(of * s / r)) for of, s, r in zip(image.size, sides, resized, strict=True))
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height)), sides


def _padded(image: Image, width: int, height: int) -> Image:
    from PIL import Image as pil

    canvas = pil.new(image.mode, (width, height))
    canvas.paste(image, ((width - image.width) // 2, (height - image.height) // 2))
    return canvas
