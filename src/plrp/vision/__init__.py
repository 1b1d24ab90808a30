"""Photographs: read them, explain them, draw where the relevance lies. Needs `pip install 'plrp[vision]'`.

- reading: `read_photograph`, `Photographs`, `ECSSD`, `ImageNet`
- as the network sees it: `network_input`, `network_picture`, `network_mask`
- explaining: `explain_photograph`; boxes of a detector: `detect`; `plrp.load` reads saved explanations
- drawing: `heatmap`, `explanation_figure`, `comparison_figure`, `save_figure`
- hidden layers: `thinning`, `thinning_figure`, `flow`, `flow_figure`, `circuit_figure`; of transformers `token_depths`,
  `tokens_figure`
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plrp.files import save_figure
from plrp.lazy import lazily

if TYPE_CHECKING:
    from .datasets import ECSSD, DatasetError, ImageNet, Photographs
    from .detection import Detection, Detections, detect
    from .flows import Flow, Thinning, TokenDepth, flow, thinning, token_depths
    from .heatmaps import Heatmap, heatmap
    from .layer_figures import circuit_figure, flow_figure, thinning_figure, tokens_figure
    from .photograph_explanation import ExplainedPhotograph, SavedRelevance, explain_photograph
    from .photograph_figures import comparison_figure, explanation_figure
    from .photograph_settings import PhotographSettings
    from .photographs import (
        BadImage,
        Photograph,
        network_input,
        network_mask,
        network_picture,
        network_point,
        read_photograph,
    )

__all__ = [
    "ECSSD", "BadImage", "DatasetError", "Detection", "Detections", "ExplainedPhotograph", "Flow", "Heatmap",
    "ImageNet", "Photograph", "PhotographSettings", "Photographs", "SavedRelevance", "Thinning", "TokenDepth",
    "circuit_figure", "comparison_figure", "detect", "explain_photograph", "explanation_figure", "flow", "flow_figure",
    "heatmap", "network_input", "network_mask", "network_picture", "network_point", "read_photograph", "save_figure",
    "thinning", "thinning_figure", "token_depths", "tokens_figure",
]  # fmt: skip

__getattr__, __dir__ = lazily(__name__)
