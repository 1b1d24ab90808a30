"""Detectors (torchvision's Faster R-CNN, RetinaNet and SSD): the class scores of one box, as a classifier.

A detector scores many places (proposals or anchors) and keeps a few boxes. The place of a box is looked up once; from
the picture to the scores of this place the network is an ordinary classifier, with the place as a constant.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from plrp.errors import UsageError
from plrp.models.preprocessing import Preprocessing
from plrp.tape.refusals import DETECTORS


class SharedModule(nn.Module):
    """A module with the parameters and children of another, under the same names; the other stays as it is."""

    def __init__(self, shared: nn.Module) -> None:
        super().__init__()
        self._parameters = dict(shared._parameters)
        self._buffers = dict(shared._buffers)
        self._modules = dict(shared._modules)
        self.training = shared.training


class BoxScores(SharedModule):
    """The class scores (logits) of one place that a detector looks at: (1, 3, height, width) → (1, classes).

    `place` is a proposal, (1, 4) in pixels of the input, of a Faster R-CNN, else the number of an anchor; `size` is the
    picture's (height, width) within the input, which may be padded.
    """

    def __init__(self, detector: nn.Module, place: Tensor | int, size: tuple[int, int]) -> None:
        super().__init__(detector)
        self.place, self.size = place, size

    def forward(self, x: Tensor) -> Tensor:
        """Logits; of a Faster R-CNN and an SSD the first class is the background."""
        features = _features(self, x)
        if isinstance(self.place, Tensor):
            heads: Any = self.roi_heads
            pooled = heads.box_roi_pool(features, [self.place], [self.size])
            logits: Tensor = heads.box_predictor(heads.box_head(pooled))[0]
            return logits
        head: Any = self.head
        scores: Tensor = head.classification_head(list(features.values()))
        return scores[:, self.place]


class Detection(NamedTuple):
    """One box: left, top, right and bottom in pixels of the network's input, class, probability, and its scorer."""

    box: tuple[float, float, float, float]
    label: int
    score: float
    scores: BoxScores


class Detections(NamedTuple):
    """The boxes of a detector in a picture, the most probable first.

    `inputs` (1, 3, height, width): the picture as the network reads it, resized, normalised and padded at the right and
    below; `size`: its height and width without the padding. `exclusive`: whether the classes of a box share a softmax.
    """

    inputs: Tensor
    size: tuple[int, int]
    boxes: list[Detection]
    exclusive: bool


def is_detector(module: nn.Module) -> bool:
    """Whether a module is one of torchvision's detectors."""
    return any(c.__module__.startswith("torchvision.models.detection.") for c in type(module).__mro__)


def own_preprocessing(module: nn.Module) -> Preprocessing | None:
    """How a detector normalises pictures itself; None for any other module."""
    if not is_detector(module):
        return None
    transform: Any = module.transform
    return Preprocessing(None, None, tuple(transform.image_mean), tuple(transform.image_std))


@torch.no_grad()
def detect(detector: nn.Module, picture: Tensor, *, resize: int | None = None) -> Detections:
    """The boxes that a detector finds in a picture (3, height, width) of values from 0 to 1.

    resize: pixels of the shorter side, in place of the detector's own. Explain a box with
    `plrp.explain(box.scores, detections.inputs, target=box.label)`.
    """
    kinds = {c.__name__ for c in type(detector).__mro__}
    if not is_detector(detector) or not kinds.intersection(DETECTORS):
        raise UsageError(
            f"{type(detector).__name__} is no detector whose boxes have class scores of their own: "
            f"{', '.join(sorted(DETECTORS))} of torchvision and classes derived from them."
        )
    if detector.training:
        raise UsageError("The detector is in training mode, in which it finds no boxes: call `model.eval()`.")
    model: Any = detector
    transform = model.transform
    if resize is not None:
        transform = copy.copy(transform)
        transform.min_size, transform.fixed_size = (resize,), transform.fixed_size and (resize, resize)
    images, _ = transform([picture])
    (size,) = images.image_sizes
    features = _features(model, images.tensors)
    look = _proposals if "FasterRCNN" in kinds else _anchors
    kept, places, probabilities, decoded = look(model, images, features)
    detections = []
    for box, score, label in zip(*kept, strict=True):
        row = _row(probabilities[:, label], decoded[:, label], score, box)
        scorer = BoxScores(model, places[row], tuple(size))
        left, top, right, bottom = box.tolist()
        detections.append(Detection((left, top, right, bottom), int(label), float(score), scorer))
    detections.sort(key=lambda one: -one.score)
    return Detections(images.tensors, (int(size[0]), int(size[1])), detections, "RetinaNet" not in kinds)


def _features(model: Any, x: Tensor) -> dict[str, Tensor]:
    features = model.backbone(x)
    return {"0": features} if isinstance(features, Tensor) else features


Looked = tuple[Sequence[Tensor], Sequence[Tensor | int], Tensor, Tensor]
"""Boxes, scores and labels of a detector; the places that it looked at, as `BoxScores` takes them; of each place and
class the probability (places, classes) and the box (places, classes, 4)."""


def _proposals(model: Any, images: Any, features: Any) -> Looked:
    """The boxes of a Faster R-CNN, and its proposals."""
    heads = model.roi_heads
    proposals, _ = model.rpn(images, features)
    pooled = heads.box_roi_pool(features, proposals, images.image_sizes)
    logits, regression = heads.box_predictor(heads.box_head(pooled))
    detections = heads.postprocess_detections(logits, regression, proposals, images.image_sizes)
    decoded = _clipped(heads.box_coder.decode(regression, proposals), images)
    return [parts[0] for parts in detections], list(proposals[0][:, None]), logits.softmax(-1), decoded


def _anchors(model: Any, images: Any, features: Any) -> Looked:
    """The boxes of a RetinaNet or SSD, and its anchors by number."""
    maps = list(features.values())
    outputs, anchors = model.head(maps), model.anchor_generator(images, maps)
    logits, regression = outputs["cls_logits"][0], outputs["bbox_regression"][0]
    if hasattr(model.head.classification_head, "cls_logits"):  # RetinaNet: level by level, classes apart
        places = [one.shape[2] * one.shape[3] for one in maps]
        counts = [count * len(logits) // sum(places) for count in places]
        by_level = {key: list(value.split(counts, 1)) for key, value in outputs.items()}
        (detections,) = model.postprocess_detections(by_level, [list(anchors[0].split(counts))], images.image_sizes)
        probabilities = logits.sigmoid()
    else:
        (detections,) = model.postprocess_detections(outputs, anchors, images.image_sizes)
        probabilities = logits.softmax(-1)
    decoded = _clipped(model.box_coder.decode_single(regression, anchors[0]), images)
    same = decoded[:, None].expand(-1, probabilities.shape[1], -1)  # a place has one box for all classes
    return [detections[name] for name in ("boxes", "scores", "labels")], range(len(logits)), probabilities, same


def _clipped(boxes: Tensor, images: Any) -> Tensor:
    """Boxes cut off at the picture's edges, as the detector's are."""
    height, width = images.image_sizes[0]
    most = torch.tensor([width, height, width, height], dtype=boxes.dtype, device=boxes.device)
    return boxes.clamp_min(0).minimum(most)


def _row(probabilities: Tensor, boxes: Tensor, score: Tensor, box: Tensor) -> int:
    """The place that a box came from: among the places with its score, the one with its corners."""
    others = (probabilities - score).abs() > 1e-6
    if others.all():
        raise UsageError(
            f"No place that the detector looks at has the score of its box, {float(score):.4f}, so that the box cannot "
            "be traced back: its postprocess_detections has to leave the scores as they are."
        )
    return int((boxes - box).abs().sum(-1).masked_fill(others, torch.inf).argmin())
