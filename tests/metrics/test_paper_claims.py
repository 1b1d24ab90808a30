"""The benchmark of the paper's statements, on a small network: it resumes, and its shortcuts are exact."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

import plrp
from plrp import metrics

pytest.importorskip("torchvision")


@pytest.fixture(scope="module")
def claims() -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "benchmarks" / "paper_claims.py"
    spec = importlib.util.spec_from_file_location("paper_claims", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["paper_claims"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 7, stride=4), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 10),
    ).eval()  # fmt: skip


def test_a_gain_that_stops_before_p_is_computed_once_and_exactly(claims, net) -> None:
    trace = plrp.trace(net, torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0)))
    target = trace.output.argmax(1)
    found = dict(claims.explained(trace, target, claims.ALL))
    assert list(found) == claims.ALL
    for method in claims.ALL:
        alone = trace.explain(target=target, pruning=method.pruning).relevance.sum(1)
        if method.gain or method.redistribution != "lambda":
            assert torch.equal(found[method], alone), method
        else:  # walked together with others, which may add up in another order
            torch.testing.assert_close(found[method], alone, rtol=1e-4, atol=1e-7)


def test_moments_give_the_lipschitz_estimate(claims, net) -> None:
    image = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))

    class Options:
        perturbations = 3

    rows = claims.measure_lipschitz(net, image, torch.empty(0), Options)
    head = {"config": "", "part": "lipschitz", "model": "net", "photo": 0}
    plain = [{**head, **{key: claims.plain(value) for key, value in row.items()}} for row in rows]
    results = claims.Results(plain, "net")
    for method in (claims.LRP, claims.Method("lambda", 0.3)):

        def explain(x: torch.Tensor, target: torch.Tensor, pruning=method.pruning) -> torch.Tensor:
            return plrp.explain(net, x, target=target, pruning=pruning).relevance.sum(1)

        for measure, normalise in (("lipschitz", None), ("lipschitz_own_max", "max")):
            expected = metrics.local_lipschitz(
                explain, image, target=net(image).argmax(1), samples=3, normalise=normalise, **claims.NOISE
            )
            assert results.mean(measure, method) == pytest.approx(expected.item(), rel=1e-3)


@pytest.mark.slow
def test_a_stopped_run_goes_on_and_reports(claims, net, data, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(claims, "load", lambda name, folder: net)
    arguments = ["--models", "resnet50", "--data", str(data), "--out", str(tmp_path), "--perturbations", "1"]
    arguments += ["--lipschitz-photos", "5", "--flipping-photos", "5"]
    monkeypatch.setattr(sys, "argv", ["paper_claims.py", *arguments, "--photos", "4"])
    claims.main()
    before = (tmp_path / "records-resnet50.jsonl").read_text()
    monkeypatch.setattr(sys, "argv", ["paper_claims.py", *arguments, "--photos", "5"])
    capsys.readouterr()
    claims.main()
    assert "1/1 maps resnet50 photograph 4" in capsys.readouterr().out
    assert (tmp_path / "records-resnet50.jsonl").read_text().startswith(before)
    results = json.loads((tmp_path / "results.json").read_text())["resnet50"]
    assert {"statement", "holds", "numbers"} <= set(results["verdicts"][0])
    sections = Counter(verdict["section"] for verdict in results["verdicts"])
    assert (sections["sparsity"], sections["localization"], sections["robustness"]) == (6, 6, 6)
    assert sections["faithfulness"] >= 7  # without those that need a positive score
    assert set(results["means"]) == {method.label for method in claims.ALL}
