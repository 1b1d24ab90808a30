"""One tidy table of several metrics of several explanations."""

from __future__ import annotations

import pandas
import polars
import pytest
import torch
from torch import nn

import plrp
from plrp import metrics
from plrp.metrics import Explainer, evaluate


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 36, 4)
    ).eval()


@pytest.fixture
def inputs() -> torch.Tensor:
    return torch.randn(3, 3, 10, 10, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def masks() -> torch.Tensor:
    mask = torch.zeros(3, 10, 10, dtype=torch.bool)
    mask[:, 2:6, 2:6] = True
    return mask


def test_a_row_per_sample_and_metric(net, inputs, masks) -> None:
    lrp = plrp.explain(net, inputs)
    pruned = plrp.explain(net, inputs, pruning=plrp.Pruning(p=0.3))
    rows = evaluate(net, inputs, {"LRP": lrp, "PLRP": pruned.relevance}, masks=masks)
    assert len(rows) == 2 * 7 * 3
    assert {tuple(row) for row in rows} == {("sample", "explanation", "metric", "value")}
    table = {(row["explanation"], row["metric"], row["sample"]): row["value"] for row in rows}
    pooled = lrp.relevance.sum(1)
    for sample in range(3):
        assert table["LRP", "gini", sample] == metrics.gini(pooled)[sample].item()
        expected = metrics.relevance_mass_accuracy(pooled, masks)[sample].item()
        assert table["LRP", "relevance_mass_accuracy", sample] == expected
    assert pandas.DataFrame(rows).groupby(["explanation", "metric"])["value"].mean().shape == (14,)
    assert polars.DataFrame(rows).shape == (42, 4)


def test_metrics_with_options_and_functions(net, inputs, masks) -> None:
    explainer = Explainer(net, pruning=plrp.Pruning(p=0.2))
    flipping = {"region": 2, "steps": 3, "order": "both"}
    rows = evaluate(
        net,
        inputs,
        explainer,
        masks=masks,
        metrics=[
            ("entropy", {"normalised": True, "channels": None}),
            ("top_k_intersection", {"k": 5}),
            ("local_lipschitz", {"samples": 2}),
            "max_sensitivity",
            ("pixel_flipping", flipping),
        ],
        batch_size=2,
    )
    table = {(row["metric"], row["sample"]): row["value"] for row in rows}
    relevance = explainer(inputs)
    assert {row["explanation"] for row in rows} == {"relevance"}
    assert table["entropy", 1] == pytest.approx(metrics.entropy(relevance, normalised=True)[1].item(), rel=1e-5)
    curve = metrics.pixel_flipping(net, inputs, relevance, **flipping)
    assert table["pixel_flipping.auc", 2] == pytest.approx(curve.auc[2].item(), rel=1e-5)
    assert table["pixel_flipping.symmetric_relevance_gain", 2] == pytest.approx(
        curve.symmetric_relevance_gain[2].item(), abs=1e-5
    )
    lipschitz = metrics.local_lipschitz(explainer, inputs, samples=2, batch_size=2)
    assert table["local_lipschitz", 0] == pytest.approx(lipschitz[0].item(), rel=1e-5)


def test_an_explanation_is_judged_by_its_own_target(net, inputs) -> None:
    other = plrp.explain(net, inputs, target=[3, 2, 1])
    rows = evaluate(net, inputs, other, metrics=[("pixel_flipping", {"steps": 2, "normalise": False})])
    expected = metrics.pixel_flipping(net, inputs, other.relevance, target=[3, 2, 1], steps=2, normalise=False)
    assert [r["value"] for r in rows if r["metric"] == "pixel_flipping.auc"] == expected.auc.tolist()


def test_an_explainer_keeps_the_unperturbed_winner(net, inputs) -> None:
    class Watching(Explainer):
        targets: list[list[int]] = []  # noqa: RUF012

        def __call__(self, x, target=None):
            self.targets.append(target.tolist())
            return super().__call__(x, target)

    metrics.local_lipschitz(Watching(net), inputs, noise="gaussian", radius=5.0, samples=3, batch_size=3)
    assert Watching.targets == [net(inputs).argmax(1).tolist()] * 4


def test_a_function_without_a_target_and_relevance_without_channels(inputs) -> None:
    rows = evaluate(None, inputs, lambda x: x.sum(1), metrics=["gini", ("local_lipschitz", {"samples": 1})])
    assert len(rows) == 6
    assert rows[0]["value"] == metrics.gini(inputs.sum(1))[0].item()


def test_what_is_missing_is_named(net, inputs) -> None:
    with pytest.raises(ValueError, match="unknown metric 'ginny'"):
        evaluate(net, inputs, inputs, metrics=["ginny"])
    with pytest.raises(ValueError, match="pass masks="):
        evaluate(net, inputs, inputs, metrics=["pointing_game"])
    with pytest.raises(ValueError, match="pass a function"):
        evaluate(net, inputs, inputs, metrics=["local_lipschitz"])
    with pytest.raises(ValueError, match="pass the model"):
        evaluate(None, inputs, inputs, metrics=["pixel_flipping"])
    with pytest.raises(ValueError, match="one per sample"):
        evaluate(net, inputs, inputs[:2])
    assert evaluate(net, inputs[:0], inputs[:0]) == []
