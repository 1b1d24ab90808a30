"""The paper's experiments as configs: section 4.2 and appendices A and B."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from plrp.spelling import nearest

from .config import Config, ConfigError, Data, Maps, Metric, Model

SPARSITY = (Metric("gini"), Metric("entropy"), Metric("nonzero"))
LOCALIZATION = (Metric("relevance_mass_accuracy"), Metric("relevance_rank_accuracy"), Metric("pointing_game"))

NOISE = {"noise": "gaussian", "radius": 0.1, "samples": 20}
"""Quantus' perturbation, which the paper used, with fewer draws than its 200."""

ROBUSTNESS = (
    Metric("local_lipschitz", NOISE, limit=10),  # the paper's number of samples
    Metric("local_lipschitz.max", {**NOISE, "normalise": "max"}, limit=10),
)
TILES = (1, 2, 4, 8, 16, 32, 64, 125, 250, 625)
"""Numbers of flipped 9 × 9 tiles; 625 is all of a picture of 224 × 224."""

FLIPPING = {"preset": "innvestigate", "perturbation": "zeros", "steps": list(TILES)}
FAITHFULNESS = (
    Metric("pixel_flipping", {**FLIPPING, "score_as": "logit"}),
    Metric("pixel_flipping.probability", {**FLIPPING, "score_as": "probability"}),
)
MOTIFS = ("TAL1::TCF3", "CTCF", "SPI1", "NRF1")
"""Planted in the simulated sequences, one kind per class, one to three copies each."""

HEATMAPS = Maps(limit=30, p=(0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 0.9))


def _photographs(name: str, kind: str, model: str, root: str, localized: bool, **options: Any) -> Config:
    metrics = (*SPARSITY, *(LOCALIZATION if localized else ()), Metric("score_kept"), *ROBUSTNESS, *FAITHFULNESS)
    return Config(
        name=name,
        data=Data(kind, root, options=options),
        model=Model(model),
        metrics=metrics,
        maps=HEATMAPS,
        part_size=2,
        batch_size=2,
    )


def _sequences(name: str, filters: int) -> Config:
    planted = {"sequences": 8000, "motifs": list(MOTIFS), "task": "classes", "length": 250, "number": [1, 3]}
    return Config(
        name=name,
        data=Data("simulated-dna", limit=200, options=planted),
        model=Model("sequence-cnn", options={"filters": filters, "epochs": 20, "patience": 4}),
        composite="epsilon-plus",  # one-hot input: Flat would credit letters that are not there
        metrics=(*SPARSITY, *LOCALIZATION, Metric("score_kept")),
        maps=Maps(p=(0.25, 0.5)),
        part_size=50,
        batch_size=50,
    )


PRESETS: dict[str, Callable[[str], Config]] = {
    "ecssd-vgg16": lambda root: _photographs("ecssd-vgg16", "ecssd", "torchvision:vgg16", root, True),
    "ecssd-resnet50": lambda root: _photographs("ecssd-resnet50", "ecssd", "torchvision:resnet50", root, True),
    "imagenet-vgg16": lambda root: _photographs(
        "imagenet-vgg16", "imagenet", "torchvision:vgg16", root, False, sample=3900
    ),
    "imagenet-resnet50": lambda root: _photographs(
        "imagenet-resnet50", "imagenet", "torchvision:resnet50", root, False, sample=3900
    ),
    "genomics-4": lambda root: _sequences("genomics-4", 4),
    "genomics-32": lambda root: _sequences("genomics-32", 32),
}


def preset(
    name: str, *, root: str | Path | None = None, weights: str | Path | None = None, limit: int | None = None
) -> Config:
    """One of the paper's experiments.

    `root` is the folder of the photographs (`images` and `ground_truth_mask` of ECSSD; ImageNet's validation set, of
    which 3,900 are drawn so that all classes are there), or one that holds it as `ecssd` or `imagenet`; sequences are
    simulated and need none. `weights` replaces the published ones.

    >>> preset("genomics-4").model.options["filters"]
    4
    """
    if name not in PRESETS:
        raise ConfigError(f"no preset {name!r}{nearest(name, list(PRESETS))}.")
    if root is None and not name.startswith("genomics"):
        raise ConfigError(f"the preset {name} needs --root, the folder of its photographs.")
    config = PRESETS[name](str(root))
    changes: dict[str, Any] = {}
    if weights is not None:
        changes["model.weights"] = str(weights)
    if limit is not None:
        changes["data.limit"] = limit
    return config.changed(**changes)
