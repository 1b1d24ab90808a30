"""Pictures of channels: the inputs that stand for them, cropped and masked by the channel's own relevance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from plrp.composites import AUTO, Composite
from plrp.models.loading import LoadedModel
from plrp.pruning import Pruning
from plrp.tape.tracing import trace
from plrp.vision.figures import FAINT, grid_of, set_title, shortened
from plrp.vision.heatmaps import outline_level

from .found import Exemplars
from .inputs import FromData, FromPhotographs, NumberedInputs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHARE = 0.8  # of the positive relevance that a patch shows
MARGIN = 0.15  # of its side around it


def channel_figure(
    found: Exemplars,
    layer: str,
    channels: Sequence[int],
    model: nn.Module | LoadedModel,
    data: Any,
    *,
    by: str = "relevance",
    count: int = 6,
    composite: str | Composite = AUTO,
    pruning: Pruning | None = None,
) -> Figure:
    """A row per channel, with the patches of its exemplars: where the relevance that passes it alone comes from.

    `model` and `data` are those of the search; pictures only.
    """
    module = model.module if isinstance(model, LoadedModel) else model
    inputs = _inputs(model, data)
    figure, axes = grid_of(len(channels), count, side=1.25, bar=False)
    for row, channel in enumerate(channels):
        examples = found.of(layer, channel, count, by)
        for ax in axes[row][len(examples) :]:
            ax.set_axis_off()
        for ax, example in zip(axes[row], examples, strict=False):
            x = inputs.batch([example.sample])
            target = int(found.classes[example.sample])
            relevance = _through(module, x, layer, channel, None if target < 0 else target, composite, pruning)
            ax.imshow(patch(picture_of(x[0], inputs), relevance))
            ax.set_xlabel(shortened(example.name.rsplit("/", 1)[-1], 18), fontsize=5.5, color=FAINT, labelpad=2)
        axes[row][0].set_ylabel(f"channel {channel}", fontsize=7.5)
    what = "most relevance" if by == "relevance" else "most activation"
    set_title(axes[0][0], "")
    figure.suptitle(f"{layer}: inputs with {what}, masked by what passes the channel", fontsize=9, parse_math=False)
    return figure


def _inputs(model: nn.Module | LoadedModel, data: Any) -> NumberedInputs:
    if isinstance(data, NumberedInputs):
        return data
    if isinstance(data, str) or hasattr(data, "rglob"):
        return FromPhotographs(data, model if isinstance(model, LoadedModel) else LoadedModel(model, "", ""))
    return FromData(data)


def _through(
    module: nn.Module,
    x: Tensor,
    layer: str,
    channel: int,
    target: Any,
    composite: str | Composite,
    pruning: Pruning | None,
) -> npt.NDArray[np.float32]:
    """The relevance of a picture (height, width) that passes one channel of a layer and nothing beside it."""
    explained = trace(module, x).explain(
        target=target, composite=composite, pruning=pruning, condition={layer: [channel]}, only_through=True
    )
    relevance = explained.relevance[0]
    if relevance.dim() != 3:
        raise ValueError(f"Patches are drawn of pictures (channels, height, width), got {tuple(relevance.shape)}.")
    found: npt.NDArray[np.float32] = relevance.sum(0).float().cpu().numpy()
    return found


def picture_of(x: Tensor, inputs: NumberedInputs) -> npt.NDArray[np.uint8]:
    """An input as pixels (height, width, 3): a photograph before its normalisation, else stretched to its range."""
    if isinstance(inputs, FromPhotographs):
        mean, std = (
            np.asarray(v, np.float32).reshape(-1, 1, 1) for v in (inputs.preprocessing.mean, inputs.preprocessing.std)
        )
        pixels = x.float().cpu().numpy() * std + mean
    else:
        values = x.float().cpu().numpy()
        low, high = values.min(), values.max()
        pixels = (values - low) / (high - low) if high > low else np.zeros_like(values)
    pixels = pixels if len(pixels) == 3 else pixels.mean(0, keepdims=True).repeat(3, 0)
    return (255 * np.clip(pixels, 0, 1)).round().astype(np.uint8).transpose(1, 2, 0)


def patch(picture: npt.NDArray[np.uint8], relevance: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """The square around the region that holds most of the positive relevance; what lies outside the region is faded."""
    if not (relevance > 0).any():
        return picture
    field, level = outline_level(relevance, SHARE)
    inside = field >= level
    shown = picture.astype(np.float32)
    shown[~inside] = 0.25 * shown[~inside] + 0.75 * 255
    rows, columns = np.flatnonzero(inside.any(1)), np.flatnonzero(inside.any(0))
    height, width = inside.shape
    side = min(int((1 + 2 * MARGIN) * max(np.ptp(rows), np.ptp(columns))) + 3, height, width)
    top = int(np.clip((rows[0] + rows[-1] + 1 - side) // 2, 0, height - side))
    left = int(np.clip((columns[0] + columns[-1] + 1 - side) // 2, 0, width - side))
    return shown[top : top + side, left : left + side].astype(np.uint8)
