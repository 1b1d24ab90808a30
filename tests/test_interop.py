"""plrp inside Quantus and Captum, as their users would use it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import plrp
from plrp.interop import CaptumLRP, explain_func


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 36, 4)
    ).eval()


@pytest.fixture
def inputs() -> torch.Tensor:
    return torch.randn(3, 3, 10, 10, generator=torch.Generator().manual_seed(0))


def test_explain_func_is_plrp_in_numpy(net, inputs) -> None:
    expected = plrp.explain(net, inputs, target=[1, 2, 0], pruning=plrp.Pruning(p=0.3)).relevance
    given = inputs.numpy().astype(np.float64)  # Quantus hands out whatever dtype the user's array has
    relevance = explain_func(net, given, np.array([1, 2, 0]), pruning=plrp.Pruning(p=0.3), device="cpu")
    np.testing.assert_array_equal(relevance, expected.numpy())
    pooled = explain_func(net, inputs, np.array([1, 2, 0]), pruning=plrp.Pruning(p=0.3), channels="sum")
    assert pooled.shape == (3, 1, 10, 10)
    np.testing.assert_allclose(pooled, expected.sum(1, keepdim=True).numpy())
    with pytest.raises(TypeError, match="epsilon"):
        explain_func(net, inputs, None, epsilon=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_quantus_evaluates_plrp(net, inputs) -> None:
    quantus = pytest.importorskip("quantus")
    pruning = plrp.Pruning(p=0.2)
    classes = net(inputs).argmax(1)
    (score,) = quantus.Sparseness(disable_warnings=True)(
        net,
        inputs[:1].numpy(),
        classes[:1].numpy(),
        explain_func=explain_func,
        explain_func_kwargs={"pruning": pruning, "channels": "sum"},
    )
    ours = plrp.metrics.gini(plrp.explain(net, inputs[:1], pruning=pruning).relevance, channels="sum")
    assert ours.item() == pytest.approx(score, abs=1e-5)
    lipschitz = quantus.LocalLipschitzEstimate(nr_samples=2, disable_warnings=True)(
        net, inputs.numpy(), classes.numpy(), explain_func=explain_func
    )
    assert np.isfinite(lipschitz).all()


def test_attribute_takes_captums_targets(net, inputs) -> None:
    method = CaptumLRP(net, composite="epsilon", pruning=plrp.Pruning(p=0.1))

    def expected(target):
        return plrp.explain(net, inputs, target=target, composite="epsilon", pruning=plrp.Pruning(p=0.1)).relevance

    assert torch.equal(method.attribute(inputs, target=2), expected(2))
    assert torch.equal(method.attribute(inputs, target=[0, 1, 2]), expected([0, 1, 2]))
    assert torch.equal(method.attribute(inputs, target=torch.tensor([0, 1, 2])), expected([0, 1, 2]))
    assert torch.equal(method.attribute(inputs, target=[(0,), (1,), (2,)]), expected([0, 1, 2]))
    assert torch.equal(method.attribute(inputs), expected(None))


def test_attribute_of_dense_outputs_and_further_arguments() -> None:
    class Dense(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv1d(4, 3, 5, padding=2)

        def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
            return self.conv(x) * scale

    torch.manual_seed(0)
    net, x = Dense().eval(), torch.randn(2, 4, 20)
    method = CaptumLRP(net, composite="epsilon")
    tuple_target = method.attribute(x, target=(1, 7))
    assert torch.equal(tuple_target, plrp.explain(net, x, target=(1, 7), composite="epsilon").relevance)
    per_sample = method.attribute(x, target=[(1, 7), (2, 3)])
    torch.testing.assert_close(per_sample[0], tuple_target[0])
    torch.testing.assert_close(per_sample[1], method.attribute(x, target=(2, 3))[1])
    scaled = method.attribute(x, target=(1, 7), additional_forward_args=3.0)
    torch.testing.assert_close(scaled, 3 * tuple_target, rtol=1e-4, atol=1e-5)


def test_convergence_delta_is_what_relevance_leaves_of_the_score(net, inputs) -> None:
    relevance, delta = CaptumLRP(net, composite="epsilon").attribute(inputs, target=1, return_convergence_delta=True)
    torch.testing.assert_close(delta, net(inputs)[:, 1].detach() - relevance.flatten(1).sum(1))


def test_captums_metrics_take_the_method(net, inputs) -> None:
    captum_metrics = pytest.importorskip("captum.metrics")
    method = CaptumLRP(net, pruning=plrp.Pruning(p=0.1))
    target = net(inputs).argmax(1)
    torch.manual_seed(0)
    sensitivity = captum_metrics.sensitivity_max(method.attribute, inputs, target=target, n_perturb_samples=3)
    assert sensitivity.shape == (3,)
    assert sensitivity.isfinite().all()

    def noise(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        shift = 0.1 * torch.randn_like(x)
        return shift, x - shift

    infidelity = captum_metrics.infidelity(net, noise, inputs, method.attribute(inputs, target=target), target=target)
    assert infidelity.shape == (3,)


@pytest.mark.filterwarnings("ignore")
def test_captum_agrees_on_the_epsilon_rule() -> None:
    attr = pytest.importorskip("captum.attr")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8, bias=False), nn.ReLU(), nn.Linear(8, 3, bias=False)).double().eval()
    x = torch.randn(2, 6, dtype=torch.float64)
    theirs = attr.LRP(net).attribute(x, target=1)
    ours = CaptumLRP(net, composite="epsilon").attribute(x, target=1)
    torch.testing.assert_close(ours, theirs.detach(), rtol=1e-3, atol=1e-4)  # ε = 1e-9 there, 1e-6 here
