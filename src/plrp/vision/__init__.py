"""Photographs: read them, explain them, draw where the relevance lies. Needs `pip install 'plrp[vision]'`."""

from plrp.vision.datasets import ECSSD, DatasetError, ImageNet, Photographs
from plrp.vision.geometry import Geometry
from plrp.vision.photographs import BadImage, Photograph, read_photograph

__all__ = [
    "ECSSD",
    "BadImage",
    "DatasetError",
    "Geometry",
    "ImageNet",
    "Photograph",
    "Photographs",
    "read_photograph",
]
