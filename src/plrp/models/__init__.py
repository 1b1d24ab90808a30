"""A user's model by name, file or checkpoint, and its weights. See `load`."""

from .checkpoints import CheckpointError, load_weights, read_state_dict
from .downloads import DownloadError
from .loading import LoadedModel, ModelError, imagenet_categories, load, nearest

__all__ = [
    "CheckpointError",
    "DownloadError",
    "LoadedModel",
    "ModelError",
    "imagenet_categories",
    "load",
    "load_weights",
    "nearest",
    "read_state_dict",
]
