"""Segmenters: the class scores at one point, or over the area of a class, as a classifier."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .detection import SharedModule


class AreaScores(SharedModule):
    """The mean class scores (logits) of a segmenter over an area of its output: pictures → (batch, classes).

    `area` is bool (height, width), of the size of the output.
    """

    def __init__(self, segmenter: nn.Module, area: Tensor) -> None:
        super().__init__(segmenter)
        self.segmenter, self.area = (segmenter,), area  # in a tuple: no child, or every name would change

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        scores = score_map(self.segmenter[0](x))
        assert scores is not None
        return scores[..., self.area].mean(-1)


def score_map(output: Any) -> Tensor | None:
    """The class scores (batch, classes, height, width) in a segmenter's output; None if it has none."""
    if isinstance(output, Mapping):
        output = output.get("out", output.get("logits"))
    return output if isinstance(output, Tensor) and output.dim() == 4 and output.shape[1] > 1 else None


def area_of_class(scores: Tensor, number: int) -> Tensor:
    """Where a class wins, bool (height, width), given the scores (classes, height, width) of one picture."""
    return scores.argmax(0) == number


def area_at(scores: Tensor, point: tuple[float, float]) -> Tensor:
    """The one place of the output at a point (x, y), each a share of the picture's side; bool (height, width)."""
    height, width = scores.shape[1:]
    area = torch.zeros(height, width, dtype=torch.bool, device=scores.device)
    area[min(int(point[1] * height), height - 1), min(int(point[0] * width), width - 1)] = True
    return area
