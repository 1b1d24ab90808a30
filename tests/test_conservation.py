"""Pruning conserves mass at every pruned tensor of real architectures, λ and M, at every p."""

from __future__ import annotations

from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import oracles
import plrp

models = pytest.importorskip("torchvision").models

ALL_P = [0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95]


class SequenceCNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(4, 24, 11, padding="same")
        self.body = nn.ModuleList(nn.Conv1d(24, 24, 3, padding="same", dilation=2**i) for i in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm1d(24) for _ in range(4))
        self.fc1, self.fc2 = nn.Linear(24, 32), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.stem(x))
        for conv, norm in zip(self.body, self.norms, strict=True):
            h = h + F.relu(norm(conv(h)))
        return self.fc2(F.relu(self.fc1(F.max_pool1d(h, 5).mean(-1))))


def with_biases(model: nn.Module, seed: int = 0) -> nn.Module:
    """He-initialised weights, and biases or BatchNorm shifts of both signs everywhere."""
    torch.manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.1)
    return oracles.randomise_statistics(model, seed).eval()


@cache
def prepared(name: str) -> tuple[nn.Module, Tensor]:
    generator = torch.Generator().manual_seed(1)
    if name == "sequence-cnn":
        letters = torch.randint(0, 4, (2, 200), generator=generator)
        return with_biases(SequenceCNN()), F.one_hot(letters, 4).transpose(1, 2).float()
    with torch.device("meta"):
        options = {"init_weights": False} if name == "vgg16" else {}
        model = models.get_model(name, **options)
        if name == "vgg16":  # the original head but for its width
            model.classifier = nn.Sequential(nn.Linear(25088, 128), nn.ReLU(True), nn.Dropout(), nn.Linear(128, 1000))
    model = model.to_empty(device="cpu")
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
    return with_biases(model), torch.randn(1, 3, 64, 64, generator=generator)


@cache
def traced(name: str) -> plrp.Trace:
    return plrp.trace(*prepared(name))


def assert_conserved(name: str, redistribution: str, p: float) -> None:
    trace = traced(name)
    explanation = trace.explain(pruning=plrp.Pruning(p=p, redistribution=redistribution))
    rows = [row for row in explanation.ledger if row["op"] == "prune"]
    assert rows
    assert sum(row["neurons_after"] for row in rows) < sum(row["neurons_before"] for row in rows)
    for row in rows:
        norm = row["mass_in_positive"] + row["mass_in_negative"]
        # Where denominators nearly cancel, M hands on hundreds of times ‖R‖₁, of which float32 keeps seven digits.
        larger = max(norm, row["mass_out_positive"] + row["mass_out_negative"]) if redistribution != "lambda" else norm
        before, after = oracles.net(row, "in"), oracles.net(row, "out")
        assert abs(after - before) <= 1e-5 * larger, (row["layer"], before, after)
        if redistribution == "lambda":
            for sign in ("positive", "negative"):
                change = abs(row[f"mass_out_{sign}"] - row[f"mass_in_{sign}"])
                assert change <= 1e-5 * norm, (row["layer"], sign)
    oracles.assert_ledger_closes(explanation, explanation.logits.max(1).values, 1e-4)
    assert bool(torch.isfinite(explanation.relevance).all())


@pytest.mark.parametrize("redistribution", ["lambda", "M", "M-sign"])
@pytest.mark.parametrize("name", ["vgg16", "resnet50", "densenet121"])
def test_every_pruned_tensor_keeps_its_total(name, redistribution):
    assert_conserved(name, redistribution, 0.5)


@pytest.mark.parametrize("p", ALL_P)
@pytest.mark.parametrize("redistribution", ["lambda", "M", "M-sign"])
def test_every_pruned_tensor_of_a_sequence_network_keeps_its_total(redistribution, p):
    assert_conserved("sequence-cnn", redistribution, p)


@pytest.mark.slow
@pytest.mark.parametrize("p", ALL_P)
@pytest.mark.parametrize("redistribution", ["lambda", "M", "M-sign"])
@pytest.mark.parametrize("name", ["vgg16", "resnet50", "densenet121"])
def test_every_pruned_tensor_keeps_its_total_at_every_p(name, redistribution, p):
    assert_conserved(name, redistribution, p)


@pytest.mark.parametrize("redistribution", ["lambda", "M", "M-sign"])
def test_the_mass_recorded_at_a_pruned_tensor_is_the_mass_of_that_tensor(redistribution):
    """The ledger is not taken at its word: its sums are those of the relevance the engine hands out."""
    trace = traced("sequence-cnn")
    pruning = plrp.Pruning(p=0.3, redistribution=redistribution)
    explanation = trace.explain(pruning=pruning, layers=True)
    for row in explanation.ledger:
        if row["op"] == "prune":
            kept = explanation.layers[row["layer"]][row["sample"]].double()
            assert row["mass_out_positive"] == pytest.approx(float(oracles.positive(kept).sum()), rel=1e-5, abs=1e-9)
            negative = -float(oracles.negative(kept).sum())
            assert row["mass_out_negative"] == pytest.approx(negative, rel=1e-5, abs=1e-9)
            assert row["neurons_after"] == int((kept != 0).sum())
    names = {row["layer"] for row in explanation.ledger if row["op"] == "prune"}
    assert names == {*(f"body.{i}" for i in range(4)), "fc1", "fc2"}


@pytest.mark.parametrize("redistribution", ["lambda", "M", "M-sign"])
def test_every_conv_and_linear_input_but_the_first_is_pruned_once(redistribution):
    """ResNet-50: 53 convs and fc; conv1 is first, and each downsample reads its block's input with conv1."""
    explanation = traced("resnet50").explain(pruning=plrp.Pruning(p=0.1, redistribution=redistribution))
    assert len([row for row in explanation.ledger if row["op"] == "prune"]) == 54 - 1 - 4
