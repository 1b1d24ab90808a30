"""The paper's experiments as configs: section 4.2 and appendices A and B."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
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

SETS = ("ecssd", "imagenet")
HEATMAPS = Maps(limit=30, p=(0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 0.9))


def _photographs(kind: str, network: str, root: str) -> Config:
    masks = kind == "ecssd"
    return Config(
        name=f"{kind}-{network}",
        data=Data(kind, root, options={} if masks else {"sample": 3900}),
        model=Model(f"torchvision:{network}"),
        metrics=(*SPARSITY, *(LOCALIZATION if masks else ()), Metric("score_kept"), *ROBUSTNESS, *FAITHFULNESS),
        maps=HEATMAPS,
        part_size=2,
        batch_size=2,
    )


def _sequences(filters: int, root: str) -> Config:
    planted = {"sequences": 8000, "motifs": list(MOTIFS), "task": "classes", "length": 250, "number": [1, 3]}
    return Config(
        name=f"genomics-{filters}",
        data=Data("simulated-dna", limit=200, options=planted),
        model=Model("sequence-cnn", options={"filters": filters, "epochs": 20, "patience": 4}),
        composite="epsilon-plus",  # one-hot input: Flat would credit letters that are not there
        metrics=(*SPARSITY, *LOCALIZATION, Metric("score_kept")),
        maps=Maps(p=(0.25, 0.5)),
        part_size=50,
        batch_size=50,
    )


PRESETS: dict[str, Callable[[str], Config]] = {
    **{f"{kind}-{name}": partial(_photographs, kind, name) for kind, name in product(SETS, ("vgg16", "resnet50"))},
    **{f"genomics-{filters}": partial(_sequences, filters) for filters in (4, 32)},
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
    changes: dict[str, Any] = {} if limit is None else {"data.limit": limit}
    if weights is not None:
        changes["model.weights"] = str(weights)
    return PRESETS[name](str(root)).changed(**changes)
