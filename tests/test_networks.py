"""Whole networks run as they are: finite relevance, a closed ledger, the model's own output."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import oracles
import plrp

models = pytest.importorskip("torchvision").models

NETWORKS = {  # name: (options, resolution)
    "alexnet": ({}, 64),
    "vgg11": ({"init_weights": False}, 32),
    "vgg16": ({"init_weights": False}, 32),
    "vgg16_bn": ({"init_weights": False}, 32),
    "resnet18": ({}, 48),
    "resnet50": ({}, 48),
    "resnext50_32x4d": ({}, 48),
    "wide_resnet50_2": ({}, 32),
    "densenet121": ({}, 48),
    "squeezenet1_0": ({}, 64),
    "squeezenet1_1": ({}, 64),
    "googlenet": ({"init_weights": False}, 64),
    "googlenet-transform": ({"init_weights": False, "transform_input": True}, 64),
    "inception_v3": ({"init_weights": False}, 96),
    "inception_v3-transform": ({"init_weights": False, "transform_input": True}, 96),
    "mobilenet_v2": ({}, 48),
    "mobilenet_v3_large": ({}, 48),
    "shufflenet_v2_x1_0": ({}, 48),
    "mnasnet1_0": ({}, 48),
    "efficientnet_b0": ({}, 48),
    "efficientnet_v2_s": ({}, 48),
    "regnet_y_400mf": ({}, 48),
    "convnext_tiny": ({}, 48),
}


def build(name: str) -> nn.Module:
    """A torchvision network with random weights and statistics; made on the meta device, filled cheaply."""
    options, _ = NETWORKS[name]
    # RegNet computes its widths with tensors, which must not be on the meta device.
    with torch.device("cpu" if name.startswith("regnet") else "meta"):
        model = models.get_model(name.removesuffix("-transform"), **options)
    model = model.to_empty(device="cpu").eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for module in model.modules():
            for key, parameter in module.named_parameters(recurse=False):
                if key == "weight" and parameter.dim() > 1:
                    fan_in = parameter[0].numel()
                    parameter.uniform_(-1, 1, generator=generator).mul_((6 / fan_in) ** 0.5)
                elif key == "weight":  # norms without statistics
                    parameter.uniform_(0.5, 1.5, generator=generator)
                elif key == "layer_scale":
                    parameter.uniform_(0.1, 0.5, generator=generator)
                else:
                    parameter.uniform_(-0.1, 0.1, generator=generator)
    oracles.randomise_statistics(model)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.num_batches_tracked.zero_()
    return model


def picture(name: str, batch: int = 1) -> Tensor:
    size = NETWORKS[name][1]
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", NETWORKS)
def test_torchvision_networks_are_explained_with_finite_relevance_and_a_closed_ledger(name):
    model, x = build(name), picture(name)
    with torch.no_grad():
        output = model(x)
    trace = plrp.trace(model, x)
    for pruning in (None, plrp.Pruning(p=0.2), plrp.Pruning(p=0.2, redistribution="M")):
        explanation = trace.explain(pruning=pruning)
        assert torch.equal(explanation.logits, output)
        assert torch.equal(explanation.target, output.argmax(1))
        assert explanation.relevance.shape == x.shape
        assert bool(torch.isfinite(explanation.relevance).all())
        assert bool(explanation.relevance.any())
        oracles.assert_ledger_closes(explanation, output.max(1).values, 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("composite", ["epsilon-plus", "epsilon-alpha2-beta1-flat", "epsilon-alpha2-beta1", "epsilon"])
@pytest.mark.parametrize("name", NETWORKS)
def test_torchvision_networks_are_explained_under_every_composite(name, composite):
    model, x = build(name), picture(name, 2)
    explanation = plrp.explain(model, x, composite=composite)
    assert bool(torch.isfinite(explanation.relevance).all())
    oracles.assert_ledger_closes(explanation, explanation.logits.max(1).values, 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_torchvision_ledgers_close_in_double_precision(name):
    model, x = build(name).double(), picture(name, 2).double()
    for pruning in (None, plrp.Pruning(p=0.3, redistribution="M")):
        explanation = plrp.explain(model, x, pruning=pruning)
        oracles.assert_ledger_closes(explanation, explanation.logits.max(1).values, 1e-9)


@pytest.mark.parametrize("name", ["googlenet", "inception_v3"])
def test_normalisation_inside_the_model_passes_relevance_to_the_raw_input(name):
    """transform_input rescales channels below the first layer: relevance is that of the rescaled input."""
    model, x = build(f"{name}-transform"), picture(name)
    inside = plrp.explain(model, x)
    model.transform_input = False
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    rescaled = x * (std / 0.5)[:, None, None] + ((mean - 0.5) / 0.5)[:, None, None]
    outside = plrp.explain(model, rescaled)
    assert oracles.relative_difference(inside.relevance, outside.relevance) < 1e-3
    assert float(inside.relevance.sum()) == pytest.approx(float(outside.relevance.sum()), rel=1e-3)


# ---------------------------------------------------------------- sequences, volumes, functions


class DenseCNN(nn.Module):
    """A sequence CNN that says something at every position: (batch, classes, length)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(4, 16, 9, padding="same")
        self.body = nn.Sequential(nn.ReLU(), nn.Conv1d(16, 16, 5, padding="same"), nn.BatchNorm1d(16), nn.ReLU())
        self.head = nn.Conv1d(16, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.stem(x)))


class DilatedResidualCNN(nn.Module):
    """Dilated residual convolutions with cropping, as profile models of regulatory DNA use them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(4, 16, 21, padding=10)
        self.dilated = nn.ModuleList([nn.Conv1d(16, 16, 3, dilation=2**i) for i in range(1, 4)])
        self.profile = nn.Conv1d(16, 3, 5, padding=2)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.stem(x))
        for conv in self.dilated:
            update = F.relu(conv(h))
            crop = (h.shape[-1] - update.shape[-1]) // 2
            h = h[..., crop:-crop] + update
        return self.profile(h)


def sequences(batch: int, length: int, seed: int = 0) -> Tensor:
    letters = torch.randint(0, 4, (batch, length), generator=torch.Generator().manual_seed(seed))
    return F.one_hot(letters, 4).transpose(1, 2).float()


@pytest.mark.parametrize("redistribution", [None, "lambda", "M"])
@pytest.mark.parametrize("make", [DenseCNN, DilatedResidualCNN])
def test_dense_sequence_outputs_are_explained_at_an_index(make, redistribution):
    torch.manual_seed(0)
    model, x = oracles.randomise_statistics(make().eval()), sequences(2, 120)
    pruning = None if redistribution is None else plrp.Pruning(p=0.2, redistribution=redistribution)
    explanation = plrp.explain(model, x, target=(2, 41), composite="epsilon-plus", pruning=pruning)
    assert bool(torch.isfinite(explanation.relevance).all())
    assert not explanation.relevance[x == 0].any(), "absent letters get nothing under epsilon-plus"
    oracles.assert_ledger_closes(explanation, model(x).detach()[:, 2, 41], 1e-4)


@pytest.mark.parametrize("make", [DenseCNN, DilatedResidualCNN])
def test_an_index_and_the_callable_that_picks_it_agree(make):
    torch.manual_seed(0)
    model, x = oracles.randomise_statistics(make().eval()), sequences(2, 120)
    by_index = plrp.explain(model, x, target=(1, 30))
    by_callable = plrp.explain(model, x, target=lambda out: out[:, 1, 30])
    assert torch.allclose(by_index.relevance, by_callable.relevance, rtol=1e-6, atol=1e-9)


def test_relevance_of_a_dense_output_stays_in_its_receptive_field():
    torch.manual_seed(0)
    model, x = DenseCNN().eval(), sequences(1, 120)
    relevance = plrp.explain(model, x, target=(0, 60)).relevance
    reach = 4 + 2
    assert not relevance[..., : 60 - reach].any()
    assert not relevance[..., 60 + reach + 1 :].any()
    assert bool(relevance[..., 60].any())


class VolumeCNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv3d(1, 6, 3, padding=1), nn.BatchNorm3d(6), nn.ReLU(inplace=True), nn.MaxPool3d(2),
            nn.Conv3d(6, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool3d(1),
        )  # fmt: skip
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.features(x).flatten(1))


@pytest.mark.parametrize("redistribution", [None, "lambda", "M"])
def test_a_volume_network_is_explained(redistribution):
    torch.manual_seed(0)
    model, x = oracles.randomise_statistics(VolumeCNN().eval()), torch.randn(2, 1, 8, 8, 8)
    pruning = None if redistribution is None else plrp.Pruning(p=0.3, redistribution=redistribution)
    explanation = plrp.explain(model, x, pruning=pruning)
    assert explanation.relevance.shape == x.shape
    assert bool(torch.isfinite(explanation.relevance).all())
    oracles.assert_ledger_closes(explanation, explanation.logits.max(1).values, 1e-4)


class Modules(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3, stride=2, padding=1)
        self.bn1 = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 6, 3, padding=1)
        self.relu, self.pool, self.mean = nn.ReLU(), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1)
        self.flatten, self.drop, self.fc = nn.Flatten(), nn.Dropout(), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.relu(self.bn1(self.conv1(x)))
        h = self.relu(self.conv2(h) + h)
        return self.fc(self.drop(self.flatten(self.mean(self.pool(h)))))


class Functions(nn.Module):
    """The same network without a single submodule: parameters and functions only."""

    def __init__(self, other: Modules) -> None:
        super().__init__()
        for key, value in other.state_dict().items():
            self.register_buffer(key.replace(".", "_"), value)

    def forward(self, x: Tensor) -> Tensor:
        h = F.conv2d(x, self.conv1_weight, self.conv1_bias, 2, 1)
        h = F.batch_norm(h, self.bn1_running_mean, self.bn1_running_var, self.bn1_weight, self.bn1_bias)
        h = torch.relu(h)
        h = torch.conv2d(h, self.conv2_weight, self.conv2_bias, padding=1).add(h).relu_()
        h = F.max_pool2d(h, 2).mean((2, 3))
        return F.dropout(h, 0.5, False) @ self.fc_weight.t() + self.fc_bias


@pytest.mark.parametrize("redistribution", [None, "lambda", "M"])
@pytest.mark.parametrize("composite", ["epsilon-plus-flat", "epsilon-alpha2-beta1", "epsilon"])
def test_a_network_of_functions_alone_is_explained_like_one_of_modules(composite, redistribution):
    """But for the last bias: `@` and `+` are two operations, and a constant shift takes no relevance."""
    torch.manual_seed(0)
    modules = oracles.randomise_statistics(Modules().double().eval())
    nn.init.zeros_(modules.fc.bias)
    x = torch.randn(2, 3, 12, 12, dtype=torch.float64)
    pruning = None if redistribution is None else plrp.Pruning(p=0.2, redistribution=redistribution)
    a = plrp.explain(modules, x, composite=composite, pruning=pruning)
    b = plrp.explain(Functions(modules).eval(), x, composite=composite, pruning=pruning)
    assert oracles.relative_difference(b.relevance, a.relevance) < 1e-9
    oracles.assert_ledger_closes(b, b.logits.max(1).values, 1e-9)


def test_a_plain_function_is_a_model():
    weight = torch.randn(3, 4, dtype=torch.float64)
    x = torch.randn(2, 4, dtype=torch.float64)
    explanation = plrp.explain(lambda v: F.linear(F.relu(v), weight), x, composite="epsilon")
    assert bool(torch.isfinite(explanation.relevance).all())
    oracles.assert_ledger_closes(explanation, explanation.logits.max(1).values, 1e-9)
