"""How a model wants its photographs, as plain data; `plrp.vision` applies it to pictures and masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
INTERPOLATIONS = ("bilinear", "bicubic", "nearest")


@dataclass(frozen=True)
class Preprocessing:
    """Resize the shorter side to `resize` pixels, cut the central `crop` x `crop`, normalise per channel.

    `resize=None` leaves the size as it is, `crop=None` keeps the whole picture. A pair (height, width) sets both sides
    and ignores the proportions. Pictures are interpolated by `interpolation` ("bilinear", "bicubic" or "nearest"),
    masks always by "nearest".
    """

    resize: int | tuple[int, int] | None = 256
    crop: int | tuple[int, int] | None = 224
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        if self.interpolation not in INTERPOLATIONS:
            raise ValueError(f"interpolation is bilinear, bicubic or nearest, not {self.interpolation!r}.")
        if len(self.mean) != 3 or len(self.std) != 3 or min(self.std) <= 0:
            raise ValueError("mean and std have three entries each, std positive: photographs are RGB.")
        for name, side in (("resize", self.resize), ("crop", self.crop)):
            if side is not None and (side if isinstance(side, int) else min(side)) < 1:
                raise ValueError(f"{name} is at least one pixel, not {side}.")

    @classmethod
    def of_preset(cls, preset: Any) -> Preprocessing:
        """The preprocessing of a torchvision preset (`weights.transforms()`) of a classifier or segmenter."""
        return cls(
            resize=_side(preset.resize_size),
            crop=_side(getattr(preset, "crop_size", None)),
            mean=tuple(preset.mean),
            std=tuple(preset.std),
            interpolation=str(preset.interpolation.value),
        )

    @classmethod
    def of(cls, given: Any) -> Preprocessing:
        """From a `Preprocessing`, a torchvision preset, or a `Compose` of the usual steps, in a model's file."""
        if isinstance(given, cls):
            return given
        if hasattr(given, "resize_size"):
            return cls.of_preset(given)
        settings: dict[str, Any] = {"resize": None, "crop": None, "mean": (0.0,) * 3, "std": (1.0,) * 3}
        for step in getattr(given, "transforms", [given]):
            kind = type(step).__name__
            if kind == "Resize":
                settings["resize"] = _side(step.size)
                settings["interpolation"] = str(getattr(step.interpolation, "value", step.interpolation))
            elif kind == "CenterCrop":
                crop = _side(step.size)
                settings["crop"] = crop[0] if isinstance(crop, tuple) and crop[0] == crop[1] else crop
            elif kind == "Normalize":
                settings["mean"], settings["std"] = tuple(map(float, step.mean)), tuple(map(float, step.std))
            elif kind not in ("ToTensor", "PILToTensor", "ToImage", "ToDtype", "ConvertImageDtype"):
                raise ValueError(
                    f"preprocessing: {kind} is not among Resize, CenterCrop, ToTensor and Normalize: give "
                    "plrp.models.Preprocessing(resize=256, crop=224, mean=(…), std=(…))."
                )
        return cls(**settings)

    def normalise(self, rgb: Tensor) -> Tensor:
        """RGB between 0 and 1, (..., 3, height, width), as the network reads it."""
        return rgb.sub(_per_channel(self.mean)).div(_per_channel(self.std))

    def denormalise(self, inputs: Tensor) -> Tensor:
        """From network inputs (..., 3, height, width) back to RGB between 0 and 1."""
        return (inputs.detach().cpu() * _per_channel(self.std) + _per_channel(self.mean)).clamp(0, 1)


def _per_channel(values: tuple[float, ...]) -> Tensor:
    return torch.tensor(values).view(3, 1, 1)


def _side(size: int | Sequence[int] | None) -> int | tuple[int, int] | None:
    """One number, a pair (height, width), or None, from a number or a list of one or two."""
    if size is None or isinstance(size, int):
        return size
    return int(size[0]) if len(size) == 1 else (int(size[0]), int(size[1]))
