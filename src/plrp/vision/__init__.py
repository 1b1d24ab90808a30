"""Photographs: read them, explain them, draw where the relevance lies. Needs `pip install 'plrp[vision]'`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from plrp.files import save_figure

if TYPE_CHECKING:
    from plrp.vision.datasets import ECSSD, DatasetError, ImageNet, Photographs
    from plrp.vision.explained import ExplainedPhotograph, explain_photograph
    from plrp.vision.figures import comparison_figure, explanation_figure
    from plrp.vision.flows import Flow, Thinning, flow, thinning
    from plrp.vision.geometry import Geometry
    from plrp.vision.heatmaps import Heatmap, heatmap
    from plrp.vision.layers import flow_figure, thinning_figure
    from plrp.vision.photographs import BadImage, Photograph, read_photograph

# Loaded when first used: `plrp --help` imports this package, and needs none of them.
_HOME = {
    "datasets": ("ECSSD", "DatasetError", "ImageNet", "Photographs"),
    "explained": ("ExplainedPhotograph", "explain_photograph"),
    "figures": ("comparison_figure", "explanation_figure"),
    "flows": ("Flow", "Thinning", "flow", "thinning"),
    "geometry": ("Geometry",),
    "heatmaps": ("Heatmap", "heatmap"),
    "layers": ("flow_figure", "thinning_figure"),
    "photographs": ("BadImage", "Photograph", "read_photograph"),
}

__all__ = [
    "ECSSD",
    "BadImage",
    "DatasetError",
    "ExplainedPhotograph",
    "Flow",
    "Geometry",
    "Heatmap",
    "ImageNet",
    "Photograph",
    "Photographs",
    "Thinning",
    "comparison_figure",
    "explain_photograph",
    "explanation_figure",
    "flow",
    "flow_figure",
    "heatmap",
    "read_photograph",
    "save_figure",
    "thinning",
    "thinning_figure",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOME.items():
        if name in names:
            found = getattr(import_module(f"plrp.vision.{home}"), name)
            globals()[name] = found
            return found
    raise AttributeError(f"module 'plrp.vision' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
