"""Concepts: what the channels of a layer stand for, by the inputs that gave them most relevance.

- `exemplars`: for each channel the inputs that gave it most relevance, and most activation; stored and resumable
- `neuron_relevance`: the relevance of every channel over a data set, as a table
- `class_channels`, `prototypes`: which channels a class uses, and its few typical ways to use them
- `channel_figure`: a channel with its exemplary patches
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plrp.lazy import lazily

if TYPE_CHECKING:
    from .classes import Prototypes, class_channels, prototypes
    from .drawing import channel_figure
    from .found import Exemplar, Exemplars
    from .search import exemplars, neuron_relevance

__all__ = [
    "Exemplar",
    "Exemplars",
    "Prototypes",
    "channel_figure",
    "class_channels",
    "exemplars",
    "neuron_relevance",
    "prototypes",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "drawing": ("channel_figure",),
        "found": ("Exemplar", "Exemplars"),
        "classes": ("Prototypes", "class_channels", "prototypes"),
        "search": ("exemplars", "neuron_relevance"),
    },
)
