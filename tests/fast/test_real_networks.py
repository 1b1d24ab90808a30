"""Trained networks and photographs: the fast paths against the reference, as they are switched in practice."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from random_layers import body
from test_fast_walks import cut_elsewhere, cuts
from torch import Tensor, nn

import plrp
from plrp import engine

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(engine._PLAIN.get(), reason="there is nothing to compare where fast paths are off"),
]

PRUNINGS = [None, *(plrp.Pruning(p=p, redistribution=kind) for kind in ("lambda", "M") for p in (0.05, 0.2, 0.5))]


@cache
def trained(name: str, data: Path) -> nn.Module:
    models = pytest.importorskip("torchvision").models
    with torch.device("meta"):
        model = models.resnet50() if name == "resnet50" else models.vgg16(init_weights=False)
        if name == "vgg16":
            model.avgpool, model.classifier = nn.AdaptiveAvgPool2d(1), nn.Linear(512, 1000)
    stored = torch.load(data / "weights" / ("resnet50.pth" if name == "resnet50" else "vgg16_gap.pth"))
    stored = {key: value.float() if value.is_floating_point() else value for key, value in stored.items()}
    model.load_state_dict(stored, assign=True)
    return model.eval()


@cache
def photographs(data: Path) -> Tensor:
    transforms = pytest.importorskip("torchvision").transforms
    image = pytest.importorskip("PIL.Image")
    prepare = transforms.Compose(
        [
            transforms.Resize(224),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )
    chosen = sorted((data / "imagenet").glob("*.JPEG"))[:2]
    return torch.stack([prepare(image.open(path).convert("RGB")) for path in chosen])


@cache
def by_reference(name: str, data: Path, pruning: plrp.Pruning | None) -> Any:
    with plrp.plain_walk():
        return plrp.explain(trained(name, data), photographs(data), pruning=pruning)


@pytest.mark.parametrize("pruning", PRUNINGS, ids=repr)
@pytest.mark.parametrize("name", ["resnet50", "vgg16"])
def test_trained_networks_are_explained_as_by_the_reference(
    name: str, pruning: plrp.Pruning | None, data: Path
) -> None:
    """To the rounding of float32 sums, about 1e-6 of the mass.

    θ cuts where C passes p · C(max). Where that is so close that rounding decides, one neuron more survives on one
    path: the ledger then shows other counts, and the explanations differ by what a single neuron holds, 1e-5 of the
    mass in large maps and up to 1e-2 in small ones.
    """
    with body("compiled"):
        found = plrp.explain(trained(name, data), photographs(data), pruning=pruning)
    expected = by_reference(name, data, pruning)
    assert torch.equal(found.score, expected.score)
    distance = (found.relevance - expected.relevance).flatten(1).abs().sum(1)
    off = distance / expected.relevance.flatten(1).abs().sum(1)
    for n in (off > 5e-5).nonzero().flatten().tolist():
        with plrp.plain_walk():
            plain = cuts(expected, n)
        assert cut_elsewhere(cuts(found, n), plain), float(off[n])
        assert float(off[n]) <= 2e-2
