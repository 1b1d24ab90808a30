"""The same weights explained by Zennit 0.5.1 and by plrp: relevance agrees to near float64 precision.

Zennit's own BatchNorm folding changes a model's output by about 1e-4, so networks with BatchNorm are folded
here first, in float64, and both libraries are given the folded weights.
"""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import oracles
import plrp

zennit = pytest.importorskip("zennit", reason="Zennit is a test dependency: pip install 'plrp[test]'")
torchvision = pytest.importorskip("torchvision")

from torchvision import models  # noqa: E402
from zennit.attribution import Gradient  # noqa: E402
from zennit.composites import EpsilonAlpha2Beta1Flat, EpsilonGammaBox, EpsilonPlusFlat  # noqa: E402
from zennit.torchvision import ResNetBasicBlockCanonizer, ResNetBottleneckCanonizer  # noqa: E402

LOW, HIGH = -2.5, 2.8

COMPOSITES = {
    "epsilon-plus-flat": (EpsilonPlusFlat, {}),
    "epsilon-alpha2-beta1-flat": (EpsilonAlpha2Beta1Flat, {}),
    "epsilon-gamma-box": (EpsilonGammaBox, {"low": LOW, "high": HIGH}),
}


def slow(name: str) -> object:
    return pytest.param(name, marks=pytest.mark.slow)


def out_of_place(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(getattr(module, "inplace", None), bool):
            module.inplace = False
    return model


def by_zennit(model: nn.Module, x: Tensor, target: Tensor, name: str) -> Tensor:
    make, bounds = COMPOSITES[name]
    bounds = {key: torch.full_like(x[:1], value) for key, value in bounds.items()}
    composite = make(**bounds, canonizers=[ResNetBottleneckCanonizer(), ResNetBasicBlockCanonizer()])
    model = out_of_place(copy.deepcopy(model))
    with Gradient(model, composite) as attributor:
        _, relevance = attributor(x.clone(), lambda out: out * nn.functional.one_hot(target, out.shape[1]))
    return relevance


def by_plrp(model: nn.Module, x: Tensor, target: Tensor, name: str) -> Tensor:
    composite = plrp.composite(name, low=LOW, high=HIGH) if name == "epsilon-gamma-box" else name
    return plrp.explain(model, x, target=target, composite=composite).relevance


def assert_agreement(model: nn.Module, resolution: int, name: str, tolerance: float, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = (torch.rand(1, 3, resolution, resolution, generator=generator, dtype=torch.float64) - 0.5) * 4
    with torch.no_grad():
        target = model(x).argmax(1)
    expected = by_zennit(model, x, target, name)
    found = by_plrp(model, x, target, name)
    assert float(expected.abs().max()) > 0
    assert oracles.relative_difference(found, expected) <= tolerance


def load(model: nn.Module, weights: Path) -> nn.Module:
    """Fill a model made on the meta device with stored fp16 weights, as float64."""
    stored = torch.load(weights)
    stored = {key: value.double() if value.is_floating_point() else value for key, value in stored.items()}
    model.load_state_dict(stored, assign=True)
    return model.eval()


@cache
def vgg16_real(data: Path) -> nn.Module:
    with torch.device("meta"):
        model = models.vgg16(init_weights=False)
        model.avgpool, model.classifier = nn.AdaptiveAvgPool2d(1), nn.Linear(512, 1000)
    return load(model, data / "weights" / "vgg16_gap.pth")


@cache
def vgg16_random(hidden: int, batchnorm: bool = False) -> nn.Module:
    """VGG-16 with random weights and `hidden` units in its fully connected layers (4096 is the original)."""
    with torch.device("meta"):
        model = (models.vgg16_bn if batchnorm else models.vgg16)(init_weights=False)
        for index, (before, after) in {0: (25088, hidden), 3: (hidden, hidden), 6: (hidden, 10)}.items():
            model.classifier[index] = nn.Linear(before, after)
    model = model.to_empty(device="cpu").double().eval()
    torch.manual_seed(1)
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight)
            nn.init.normal_(module.bias, std=0.05)
    return oracles.fold_batchnorm(oracles.randomise_statistics(model, 2)) if batchnorm else model


@pytest.mark.parametrize("name", COMPOSITES)
def test_vgg16_with_real_weights_agrees_with_zennit(data, name):
    assert_agreement(vgg16_real(data), 32, name, 1e-9)


@pytest.mark.parametrize("name", ["epsilon-plus-flat", slow("epsilon-alpha2-beta1-flat"), "epsilon-gamma-box"])
def test_vgg16_with_random_weights_agrees_with_zennit(name):
    assert_agreement(vgg16_random(64), 32, name, 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPOSITES)
def test_vgg16_with_its_full_head_agrees_with_zennit(name):
    assert_agreement(vgg16_random(4096), 64, name, 1e-9)


@cache
def folded(name: str) -> nn.Module:
    """A torchvision ResNet with random weights and statistics, its BatchNorms folded in float64."""
    torch.manual_seed(3)
    model = oracles.randomise_statistics(models.get_model(name, num_classes=10).double().eval(), 3)
    plain = oracles.fold_batchnorm(model)
    x = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    assert oracles.relative_difference(plain(x).detach(), model(x).detach()) < 1e-11
    return plain


@cache
def resnet50_real(data: Path) -> nn.Module:
    with torch.device("meta"):
        model = models.resnet50()
    return oracles.fold_batchnorm(load(model, data / "weights" / "resnet50.pth"))


@pytest.mark.parametrize("name", COMPOSITES)
def test_vgg16_bn_with_folded_weights_agrees_with_zennit(name):
    assert_agreement(vgg16_random(64, batchnorm=True), 32, name, 1e-8)


@pytest.mark.parametrize("network", ["resnet18", slow("resnet50")])
@pytest.mark.parametrize("name", COMPOSITES)
def test_resnets_with_random_folded_weights_agree_with_zennit(network, name):
    assert_agreement(folded(network), 32, name, 1e-8)


@pytest.mark.parametrize("name", COMPOSITES)
def test_resnet50_with_real_folded_weights_agrees_with_zennit(data, name):
    assert_agreement(resnet50_real(data), 32, name, 1e-8)


@pytest.mark.parametrize("network", ["resnet18", slow("resnet50")])
@pytest.mark.parametrize("name", COMPOSITES)
def test_folding_on_the_tape_equals_folding_beforehand(network, name):
    torch.manual_seed(3)
    model = oracles.randomise_statistics(models.get_model(network, num_classes=10).double().eval(), 3)
    x = 4 * torch.rand(1, 3, 32, 32, dtype=torch.float64) - 2
    target = torch.tensor([3])
    expected = by_plrp(folded(network), x, target, name)
    found = by_plrp(model, x, target, name)
    assert oracles.relative_difference(found, expected) <= 1e-8
