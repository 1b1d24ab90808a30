"""Models by name, file or checkpoint, with their weights, class names and preprocessing.

- a model by name: `load` (a `LoadedModel`), `imagenet_categories`, `published_categories`
- weights from a file: `load_weights`, `read_state_dict`
- how it wants photographs: `Preprocessing`
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plrp.lazy import lazily

if TYPE_CHECKING:
    from .checkpoints import CheckpointError, load_weights, read_state_dict
    from .downloads import DownloadError
    from .loading import LoadedModel, ModelError, imagenet_categories, load, published_categories
    from .preprocessing import Preprocessing

__all__ = [
    "CheckpointError", "DownloadError", "LoadedModel", "ModelError", "Preprocessing", "imagenet_categories", "load",
    "load_weights", "published_categories", "read_state_dict",
]  # fmt: skip

__getattr__, __dir__ = lazily(__name__)
