"""Conditions beside zennit-crp 0.6.0, the reference implementation of concept relevance propagation, in float64.

It asks for zennit ≤ 0.4.6, so no extra can name it beside the zennit of the other tests, with which it works as well:
`pip install --no-deps zennit-crp==0.6.0`.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import oracles
import plrp

pytest.importorskip("torchvision")
attribution = pytest.importorskip(
    "crp.attribution", reason="zennit-crp asks for an older zennit: pip install --no-deps zennit-crp==0.6.0"
)

from zennit.torchvision import ResNetBasicBlockCanonizer  # noqa: E402

from test_zennit import COMPOSITES, HIGH, LOW, folded, out_of_place, vgg16_real  # noqa: E402

pytestmark = pytest.mark.slow


def by_crp(model: nn.Module, x: Tensor, conditions: list[dict[str, list[int]]], name: str, parallel: bool) -> Tensor:
    """Relevance summed over the colours, a map per condition."""
    make, bounds = COMPOSITES[name]
    given = {key: torch.full_like(x[:1], value) for key, value in bounds.items()}
    composite = make(**given, canonizers=[ResNetBasicBlockCanonizer()])  # sums of a skip by the ε-rule
    attributor = attribution.CondAttribution(out_of_place(copy.deepcopy(model)))
    found = attributor(x.clone().requires_grad_(), conditions, composite, exclude_parallel=not parallel)
    return found.heatmap


def assert_agreement(model: nn.Module, layers: dict[str, list[list[int]]], name: str, parallel: bool = False) -> None:
    """`layers`, the topmost first: of each the channels of every condition."""
    x = (torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 0.5) * 4
    with torch.no_grad():
        target = int(model(x).argmax())
    conditions = [dict(zip(layers, each, strict=True)) for each in zip(*layers.values(), strict=True)]
    expected = by_crp(model, x, [{"y": [target], **one} for one in conditions], name, parallel)
    rules: Any = plrp.composite(name, low=LOW, high=HIGH) if name == "epsilon-gamma-box" else name
    swept = plrp.trace(model, x).sweep(
        [None], target=target, composite=rules, condition=conditions, only_through=not parallel
    )
    found = torch.cat([one.relevance.sum(1) for one in swept])
    assert all(float(one.abs().max()) > 0 for one in expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert oracles.relative_difference(ours, theirs) <= 1e-9


@pytest.mark.parametrize("name", COMPOSITES)
def test_vgg16_with_real_weights(data: Path, name: str) -> None:
    model = vgg16_real(data)
    assert_agreement(model, {"features.28": [list(range(0, 512, 7)), list(range(1, 512, 3)), list(range(256))]}, name)
    both = {
        "features.24": [list(range(0, 512, 2)), list(range(300))],
        "features.14": [[*range(128)], [*range(64, 256)]],
    }
    assert_agreement(model, both, name)


@pytest.mark.parametrize("parallel", [False, True])
def test_residual_networks_through_a_layer_and_around_it(parallel: bool) -> None:
    model = folded("resnet18")
    layers = {"layer3.1.conv1": [list(range(128)), list(range(100, 256))]}
    assert_agreement(model, layers, "epsilon-plus-flat", parallel)
