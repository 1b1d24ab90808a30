"""A bright disc, a small network that sees it, and the moment at which a page is drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

SIDE = 72
PROPORTIONS = (0.05, 0.15, 0.4, 0.8)
NAMES = ["tabby cat", "<b>dog</b>", "</script><script>document.title='run'</script>", "fish & chips"]


def network() -> nn.Sequential:
    """Convolutions, a pool and a linear head; weights are the same every time."""
    torch.manual_seed(3)
    layers = [nn.Conv2d(3, 6, 5, stride=2, padding=2), nn.ReLU(), nn.Conv2d(6, 8, 3, padding=1), nn.ReLU()]
    layers += [nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(72, 4)).eval()


def picture() -> torch.Tensor:
    """A bright disc on a gradient, with some noise: (1, 3, SIDE, SIDE) between 0 and 1."""
    y, x = np.mgrid[:SIDE, :SIDE] / SIDE
    disc = ((x - 0.4) ** 2 + (y - 0.55) ** 2 < 0.06) * 0.5
    noise = np.random.default_rng(0).uniform(0, 0.15, (3, SIDE, SIDE))
    return torch.from_numpy(np.clip(0.3 * x + disc + noise, 0, 1)).float()[None]


def mask() -> np.ndarray:
    y, x = np.mgrid[:SIDE, :SIDE] / SIDE
    return (x - 0.4) ** 2 + (y - 0.55) ** 2 < 0.06


def frame(tab: Any) -> None:
    """Waits until what was asked for is drawn."""
    tab.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
