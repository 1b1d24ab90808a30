"""Concepts: the meaning of the channels of a layer, shown by the inputs that gave them most relevance.

- `exemplars`: for each channel the inputs that gave it most relevance, and most activation; stored and resumable
- `neuron_relevance`: the relevance of every channel over a data set, as a table
- `class_channels`, `prototypes`: which channels a class uses, and its few typical ways to use them
- `subspaces`: concepts that are no single channels, by PRCA or DRSA; `exemplars` takes them in place of channels
- `channel_figure`, `logo_figure`, `token_figure`: a channel with its exemplary patches, logos, or texts
- `patches`: exemplary patches for the picture of the flow; `Reading`: for pages
- `receptive_field`: the part of an input that a neuron reads
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plrp.lazy import lazily

if TYPE_CHECKING:
    from .channel_figures import (
        Reading,
        channel_figure,
        logo_figure,
        patches,
        receptive_field,
        token_contexts,
        token_figure,
    )
    from .exemplar_results import Exemplar, Exemplars, Prototypes, class_channels, prototypes
    from .relevant_subspaces import Subspaces, subspaces
    from .search import exemplars, neuron_relevance

__all__ = [
    "Exemplar", "Exemplars", "Prototypes", "Reading", "Subspaces", "channel_figure", "class_channels", "exemplars",
    "logo_figure", "neuron_relevance", "patches", "prototypes", "receptive_field", "subspaces", "token_contexts",
    "token_figure",
]  # fmt: skip

__getattr__, __dir__ = lazily(__name__)
