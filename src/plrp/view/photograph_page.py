"""Pages of photographs, and of any input (batch, channel, height, width)."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from plrp.models.preprocessing import Preprocessing
from plrp.vision.photograph_explanation import ExplainedPhotograph, class_probabilities

from .bundle import Bundle, finite
from .grid import Grid
from .page_data import PageSettings, classes, collect


def photograph_bundle(
    explained: ExplainedPhotograph,
    *,
    variant: str | None = None,
    mask: Tensor | npt.ArrayLike | None = None,
    **size: Any,
) -> Bundle:
    """A photograph for every p, for PLRP-λ and PLRP-M±, for its strongest classes: `plrp explain -o x.html`.

    variant: the one of `explained.relevance` that was asked for (default: the last). mask: bool (height, width), as the
        network sees it (`plrp.vision.network_mask`). size: `proportions`, `targets`, `inside`, … of `PageSettings`.
    """
    settings = PageSettings(**size)
    asked = explained.prunings[variant or list(explained.prunings)[-1]]
    chosen = classes(explained.logits, explained.target, settings.targets)
    grid = Grid.around(asked, chosen, chosen.index(explained.target), settings.proportions)
    where = None if mask is None else fitting_mask(mask, tuple(explained.trace.inputs[0].shape[2:]))
    bundle = collect(explained.trace, grid, explained.composite, settings, mask=where)
    bundle.facts.update(
        kind="picture",
        title=explained.photograph.name,
        model=explained.model.name.split(":")[-1],
        targets=target_facts(chosen, explained.logits, explained.categories, explained.exclusive),
        picture=data_address(np.asarray(explained.picture.convert("RGB"))),
    )
    return bundle


def target_facts(
    chosen: Sequence[int], logits: Tensor, categories: Sequence[str] | None, exclusive: bool = True
) -> list[dict[str, Any]]:
    """For the page: number, name, score and probability of each class."""
    shares = class_probabilities(logits.detach().double(), exclusive)
    return [
        {
            "number": number,
            "name": categories[number] if categories is not None else f"class {number}",
            "score": finite(float(logits[number])),
            "probability": finite(float(shares[number])),
        }
        for number in chosen
    ]


def input_picture(inputs: Tensor) -> npt.NDArray[np.uint8] | None:
    """A network's input (channel, height, width) as a picture, uint8 (height, width, 3); None if it cannot be one.

    Values between 0 and 1 are shown as they are. Values in the range of ImageNet's normalisation are denormalised. All
    others are stretched from black to white.
    """
    if inputs.dim() != 3 or len(inputs) not in (1, 3):
        return None
    values = inputs.detach().float().cpu()
    low, high = float(values.min()), float(values.max())
    usual = Preprocessing()
    black, white = (usual.normalise(torch.full((3, 1, 1), end)) for end in (0.0, 1.0))
    if low < 0 and len(values) == 3 and bool((values >= black - 1e-3).all() and (values <= white + 1e-3).all()):
        values = usual.denormalise(values)
    elif low < 0 or high > 1:
        values = (values - low) / max(high - low, 1e-12)
    pixels = (values * 255).round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0)
    return pixels.expand(-1, -1, 3).contiguous().numpy()


def data_address(pixels: npt.NDArray[np.uint8], side: int | None = None, kind: str = "PNG", **options: Any) -> str:
    """A picture (height, width, 3) as an address that holds it, scaled down to `side` pixels."""
    from PIL import Image as pil

    image, content = pil.fromarray(pixels), io.BytesIO()
    if side is not None:
        image.thumbnail((side, side))
    image.save(content, format=kind, optimize=True, **options)
    return f"data:image/{kind.lower()};base64," + base64.b64encode(content.getvalue()).decode("ascii")


def fitting_mask(mask: Tensor | npt.ArrayLike, shape: tuple[int, ...]) -> Tensor:
    """A mask as bool (*shape); refused where it has another shape."""
    fitting = torch.as_tensor(np.asarray(mask.cpu() if isinstance(mask, Tensor) else mask)).bool()
    if tuple(fitting.shape) != shape:
        raise ValueError(
            f"the mask is {tuple(fitting.shape)}, the network sees {shape}: pass it through plrp.vision.network_mask."
        )
    return fitting
