"""Targets in a photograph: the whole, one box of a detector, a point or the area of a class of a segmenter.

Each target is the class score of a classifier: of the whole picture, or of this part of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from plrp.models.loading import LoadedModel, imagenet_categories
from plrp.models.preprocessing import Preprocessing
from plrp.tape.trace import Trace
from plrp.tape.verification import trace as trace_model
from plrp.target_text import TargetError, WrittenTarget, class_number

from .detection import SharedModule, detect, is_detector
from .photographs import Photograph, network_input, network_picture, network_point

if TYPE_CHECKING:
    from PIL.Image import Image

BACKGROUND = ("__background__", "background", "no person")


class PicturePart(NamedTuple):
    """The part of a photograph that was asked about.

    `words` name it. In pixels of the network's input: the `box` (left, top, right, bottom) of a detector, the `point`
    (x, y) or the `area`, bool (height, width), of a segmenter.
    """

    words: str
    box: tuple[float, float, float, float] | None = None
    point: tuple[float, float] | None = None
    area: np.ndarray | None = None


class Aim(NamedTuple):
    """A photograph as its network reads it, and the class to explain.

    `module` gives the class scores of the picture or its part, `picture` is the network's view of the photograph, and
    `exclusive` says whether the classes exclude each other (softmax).
    """

    module: nn.Module
    trace: Trace
    picture: Image
    logits: Tensor
    categories: tuple[str, ...]
    target: int
    place: PicturePart | None = None
    exclusive: bool = True


def aim(model: LoadedModel, photograph: Photograph, target: int | str | None = None, device: str = "cpu") -> Aim:
    """The part of a photograph and the class that a target asks for."""
    asked = WrittenTarget.read(target)
    if asked.at is not None and not (asked.at[0] < photograph.size[0] and asked.at[1] < photograph.size[1]):
        width, height = photograph.size
        raise TargetError(
            f"{asked.at[0]},{asked.at[1]} lies outside {photograph.path.name}, {width} x {height} pixels."
        )
    if is_detector(model.module):
        return _at_box(model, photograph, asked, device)
    preprocessing = model.preprocessing or Preprocessing()
    inputs = network_input(photograph, preprocessing)[None].to(device)
    picture = network_picture(photograph, preprocessing)
    trace = trace_model(model.module, inputs)
    scores = _score_map(trace.output)
    if scores is not None:
        return _at_area(model, photograph, asked, inputs, picture, scores[0].detach().float().cpu())
    if not isinstance(trace.output, Tensor) or trace.output.dim() != 2:
        raise TargetError(
            f"{model.name} is not a classifier, segmenter or detector: its output is neither (batch, classes) nor "
            "(batch, classes, height, width)."
        )
    if asked.at is not None:
        raise TargetError(f"{model.name} gives one answer for the whole picture: leave out 'at x,y'.")
    return _classified(model, model.module, trace, picture, asked.name)


def _classified(
    model: LoadedModel,
    module: nn.Module,
    trace: Trace,
    picture: Image,
    target: int | str | None,
    place: PicturePart | None = None,
    exclusive: bool = True,
) -> Aim:
    logits = trace.output[0].detach().float().cpu()
    categories = categories_of(model, len(logits))
    chosen = int(logits.argmax()) if target is None else class_number(target, categories)
    return Aim(module, trace, picture, logits, categories, chosen, place, exclusive)


# --- detectors --------------------------------------------------------------------------------------------------------


def _at_box(model: LoadedModel, photograph: Photograph, asked: WrittenTarget, device: str) -> Aim:
    """The most probable box: of the class that is asked for, around the point that is asked for."""
    from PIL import Image as pil

    pixels = torch.from_numpy(np.array(photograph.image)).permute(2, 0, 1).float().div(255).to(device)
    resize = None if model.preprocessing is None else model.preprocessing.resize
    if isinstance(resize, tuple):
        raise TargetError("a detector keeps the proportions of a picture: resize its shorter side, by one number.")
    seen = detect(model.module, pixels, resize=resize)
    height, width = seen.size
    scale = width / photograph.size[0], height / photograph.size[1]
    point = None if asked.at is None else ((asked.at[0] + 0.5) * scale[0], (asked.at[1] + 0.5) * scale[1])
    number = None
    if asked.name is not None:
        number = class_number(asked.name, categories_of(model, _classes(model.module)))
    for box in seen.boxes:
        left, top, right, bottom = box.box
        around = point is None or (left <= point[0] < right and top <= point[1] < bottom)
        if number in (None, box.label) and around:
            break
    else:
        categories = categories_of(model, _classes(model.module))
        what = "nothing" if number is None else f"no {categories[number]}"
        where = "" if asked.at is None else f" at {asked.at[0]},{asked.at[1]}"
        best: dict[str, float] = {}
        for one in seen.boxes:
            best.setdefault(categories[one.label], one.score)
        listed = ", ".join(f"{name} ({score:.0%})" for name, score in list(best.items())[:5])
        instead = f"; it finds {listed}." if best else ", nor anything else."
        raise TargetError(f"{model.name} finds {what} in {photograph.path.name}{where}{instead}")
    left, top, right, bottom = (round(side / scale[n % 2]) for n, side in enumerate(box.box))
    place = PicturePart(f"in the box {left},{top} to {right},{bottom}", box=box.box)
    canvas = pil.new("RGB", (seen.inputs.shape[3], seen.inputs.shape[2]))  # padded as the network's input is
    canvas.paste(photograph.image.resize((width, height), pil.Resampling.BILINEAR))
    trace = trace_model(box.scores, seen.inputs)
    return _classified(model, box.scores, trace, canvas, box.label, place, seen.exclusive)


def _classes(detector: nn.Module) -> int:
    """How many classes a detector has, the background included."""
    heads = getattr(detector, "roi_heads", None)
    if heads is not None:
        return int(heads.box_predictor.cls_score.out_features)
    head: Any = detector.head
    return int(getattr(head.classification_head, "num_classes", 0) or head.classification_head.num_columns)


# --- segmenters -------------------------------------------------------------------------------------------------------


class AreaScores(SharedModule):
    """The mean class scores (logits) of a segmenter over an area of its output: pictures → (batch, classes).

    `area` is bool (height, width), of the size of the output.
    """

    def __init__(self, segmenter: nn.Module, area: Tensor) -> None:
        super().__init__(segmenter)
        self.segmenter, self.area = (segmenter,), area  # in a tuple: no child, or every name would change

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        scores = _score_map(self.segmenter[0](x))
        assert scores is not None
        return scores[..., self.area].mean(-1)


def _score_map(output: Any) -> Tensor | None:
    """The class scores (batch, classes, height, width) in a segmenter's output; None if it has none."""
    if isinstance(output, Mapping):
        output = output.get("out", output.get("logits"))
    return output if isinstance(output, Tensor) and output.dim() == 4 and output.shape[1] > 1 else None


def _at_area(
    model: LoadedModel, photograph: Photograph, asked: WrittenTarget, inputs: Tensor, picture: Image, scores: Tensor
) -> Aim:
    """One point of the picture, or all places that the class wins (of itself: the largest but for the background)."""
    categories = categories_of(model, len(scores))
    number = None if asked.name is None else class_number(asked.name, categories)
    if asked.at is not None:
        x, y = network_point(asked.at, photograph.size, model.preprocessing or Preprocessing())
        if not (0 <= x < picture.width and 0 <= y < picture.height):
            raise TargetError(
                f"{asked.at[0]},{asked.at[1]} of {photograph.path.name} is cut off before the network sees it: choose "
                "another point, or another --crop."
            )
        height, width = scores.shape[1:]
        area = torch.zeros(height, width, dtype=torch.bool)
        area[min(int(y / picture.height * height), height - 1), min(int(x / picture.width * width), width - 1)] = True
        place = PicturePart(f"at {asked.at[0]},{asked.at[1]}", point=(x, y))
    else:
        sizes = scores.argmax(0).flatten().bincount(minlength=len(scores))
        if number is None:
            objects = sizes.clone()
            objects[[n for n, name in enumerate(categories) if name.lower() in BACKGROUND]] = 0
            number = int(objects.argmax() if objects.any() else sizes.argmax())
        if not sizes[number]:
            seen = sizes.argsort(descending=True)[: min(5, int((sizes > 0).sum()))].tolist()
            listed = ", ".join(f"{categories[n]} ({float(sizes[n] / sizes.sum()):.0%})" for n in seen)
            raise TargetError(
                f"{model.name} sees no {categories[number]} in {photograph.path.name}; it sees {listed}. Ask for a "
                f"point: '{categories[number]} at x,y'."
            )
        area = scores.argmax(0) == number
        shape = tuple(inputs.shape[2:])
        shown = torch.nn.functional.interpolate(area[None, None].float(), shape, mode="nearest")[0, 0].bool().numpy()
        place = PicturePart(f"where it wins ({float(area.float().mean()):.0%})", area=shown)
    module = AreaScores(model.module, area.to(inputs.device))
    return _classified(model, module, trace_model(module, inputs), picture, number, place)


# --- classes ----------------------------------------------------------------------------------------------------------


def categories_of(model: LoadedModel, classes: int) -> tuple[str, ...]:
    """The names of a model's classes: its own, ImageNet's if there are 1,000, or else numbers."""
    if model.categories is not None:
        if len(model.categories) != classes:
            raise TargetError(f"{model.name} has {classes} outputs but {len(model.categories)} class names.")
        return model.categories
    if classes == 1000:
        return imagenet_categories()
    return tuple(f"class {number}" for number in range(classes))
