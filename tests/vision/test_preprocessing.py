"""Image and mask are treated alike, and a picture as torchvision would."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from plrp.models import Preprocessing
from plrp.vision import Photograph, network_input, network_mask, network_picture


def photograph(image: Image.Image) -> Photograph:
    return Photograph(image, image.size, Path("made.png"))


def noise(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(width).integers(0, 255, (height, width, 3), dtype=np.uint8))


@pytest.mark.parametrize("name", ["resnet50", "vgg16", "efficientnet_b1", "vit_b_16", "inception_v3"])
@pytest.mark.parametrize("size", [(300, 200), (201, 333), (64, 64), (500, 224)])
def test_equals_torchvision_bit_by_bit(name: str, size: tuple[int, int]) -> None:
    preset = torchvision.models.get_model_weights(name).DEFAULT.transforms()
    image = noise(*size)
    assert torch.equal(network_input(photograph(image), Preprocessing.of_preset(preset)), preset(image))


@settings(deadline=None, max_examples=40)
@given(
    width=st.integers(1, 400),
    height=st.integers(1, 400),
    resize=st.one_of(st.none(), st.integers(1, 100), st.tuples(st.integers(1, 100), st.integers(1, 100))),
    crop=st.one_of(st.none(), st.integers(1, 90), st.tuples(st.integers(1, 90), st.integers(1, 90))),
)
def test_a_mask_lies_where_its_picture_lies(
    width: int, height: int, resize: int | tuple[int, int] | None, crop: int | tuple[int, int] | None
) -> None:
    """The mask of the bright side of a picture is the bright side of the transformed picture."""
    preprocessing = Preprocessing(resize, crop, mean=(0, 0, 0), std=(1, 1, 1), interpolation="nearest")
    pixels = np.zeros((height, width), dtype=np.uint8)
    pixels[height // 3 :, width // 4 :] = 255
    image = photograph(Image.fromarray(pixels).convert("RGB"))
    if width > 60 * height or height > 60 * width:
        return
    mask = network_mask(Image.fromarray(pixels), image.size, preprocessing)
    assert torch.equal(network_input(image, preprocessing)[0] > 0.5, mask)


def test_a_mask_stays_black_and_white_and_keeps_its_share() -> None:
    pixels = np.zeros((300, 400), dtype=np.uint8)
    pixels[100:200, 150:250] = 255
    mask = network_mask(Image.fromarray(pixels), (400, 300), Preprocessing(resize=300, crop=300))
    assert mask.dtype == torch.bool
    assert mask.sum() == 100 * 100
    assert mask[100:200, 100:200].all()


@pytest.mark.parametrize("size", [(1, 100_000), (100_000, 1), (3, 50_000)])
def test_a_long_strip_takes_bounded_memory_and_shows_its_middle(size: tuple[int, int]) -> None:
    image = Image.new("RGB", size, (0, 0, 0))
    width, height = size
    middle = (
        (0, height // 2 - 5, width, height // 2 + 5) if height > width else (width // 2 - 5, 0, width // 2 + 5, height)
    )
    image.paste((255, 255, 255), middle)
    picture = np.asarray(network_picture(photograph(image)))
    assert picture.shape == (224, 224, 3)
    assert picture[112, 112].min() > 200
    with pytest.raises(ValueError, match="set crop"):
        network_picture(photograph(image), Preprocessing(crop=None))


def test_denormalise_undoes_the_normalisation() -> None:
    image = photograph(noise(224, 224))
    preprocessing = Preprocessing(resize=None, crop=None)
    back = (
        preprocessing.denormalise(network_input(image, preprocessing)).mul(255).round().byte().permute(1, 2, 0).numpy()
    )
    assert np.array_equal(back, np.asarray(image.image))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"interpolation": "lanczos"}, "bilinear, bicubic or nearest"),
        ({"mean": (0.5,)}, "three entries"),
        ({"std": (1.0, 0.0, 1.0)}, "positive"),
        ({"crop": 0}, "at least one pixel"),
        ({"resize": (0, 5)}, "at least one pixel"),
    ],
)
def test_impossible_settings_are_refused(arguments: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Preprocessing(**arguments)  # type: ignore[arg-type]
