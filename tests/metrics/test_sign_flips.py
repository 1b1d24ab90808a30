"""The benchmark of sign flips, on a small network: its numbers, its resuming, its part of the page."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

import plrp

pytest.importorskip("torchvision")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def study() -> ModuleType:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        return importlib.import_module("sign_flips")
    finally:
        sys.path.pop(0)


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 7, stride=4), nn.ReLU()]
    for _ in range(6):
        layers += [nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 10)).eval()


def test_flips_and_amplification_are_the_explanations(study, net) -> None:
    trace = plrp.trace(net, torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0)))
    found = {m.label: e for m, e in study.explained(trace, "epsilon", study.ALL)}
    assert list(found) == [m.label for m in study.ALL]
    flips = {label: study.flips(e) for label, e in found.items()}
    assert all(count == 0 for label in ("LRP", "λ p=0.3") for count in flips[label].values())
    assert flips["M p=0.15"]["flips"] > flips["M± p=0.15"]["flips"]
    assert flips["M p=0.15"]["flips_mass"] > 10 * flips["M± p=0.15"]["flips_mass"]
    rows = study.measure_maps(net, trace.inputs[0].data, torch.ones(1, 64, 64, dtype=torch.bool), "epsilon")
    pruning = plrp.Pruning(0.15, redistribution="M")
    alone = trace.explain(composite="epsilon", pruning=pruning, layers=True)
    largest = max(float(r.abs().sum()) for r in alone.layers.values()) / float(alone.score.abs())
    row = next(row for row in rows if row["method"] == "M p=0.15")
    assert float(row["amplification"]) >= largest * (1 - 1e-4)
    assert float(row["mass_absolute"]) == pytest.approx(1)  # all of the picture is in the mask


@pytest.mark.slow
def test_a_stopped_run_goes_on_and_writes_its_part_of_the_page(study, net, data, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(study, "load", lambda name, folder: net)
    page = tmp_path / "page.md"
    page.write_text(f"before\n{study.BEGIN}\nold\n{study.END}\nafter\n")
    words = ["sign_flips.py", "--models", "resnet50", "--data", str(data), "--out", str(tmp_path), "--page", str(page)]
    monkeypatch.setattr(sys, "argv", [*words, "--flipping-photos", "1", "--photos", "1"])
    study.main()
    before = (tmp_path / "records-resnet50.jsonl").read_text()
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", [*words, "--flipping-photos", "1", "--photos", "2"])
    study.main()
    assert "3/3 maps resnet50 epsilon-gamma-box photograph 1" in capsys.readouterr().out
    assert (tmp_path / "records-resnet50.jsonl").read_text().startswith(before)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert text.count("Photographs: 2; flipping 1 at p = 0.15, 1 at the others.") == 3
    assert text.count("| M± p=0.15 |") == 3
