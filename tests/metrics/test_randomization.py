"""The sanity check by randomised weights, and the similarities it is measured with."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import plrp
from plrp.metrics import (
    Explainer,
    cosine,
    efficient_randomization,
    model_randomization,
    pearson,
    smooth_randomization,
    spearman,
)
from plrp.metrics.randomization import _randomise
from plrp.metrics.seeded import gaussian


@pytest.mark.parametrize("ties", [False, True])
def test_similarities_against_scipy(ties) -> None:
    stats = pytest.importorskip("scipy.stats")
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 4, 3, 20, generator=generator, dtype=torch.float64)
    b = b + a
    if ties:
        a, b = a.where(a > 0.5, 0.0), b.round()
    for i in range(4):
        first, second = a[i].flatten().numpy(), b[i].flatten().numpy()
        assert spearman(a, b)[i].item() == pytest.approx(stats.spearmanr(first, second).statistic)
        assert pearson(a, b)[i].item() == pytest.approx(stats.pearsonr(first, second).statistic)
        expected = first @ second / np.linalg.norm(first) / np.linalg.norm(second)
        assert cosine(a, b)[i].item() == pytest.approx(expected)


def test_similarities_of_constant_and_bad_maps() -> None:
    ramp, flat = torch.arange(4.0)[None], torch.ones(1, 4)
    assert spearman(ramp, flat).isnan().all()
    assert pearson(ramp, flat).isnan().all()
    assert cosine(ramp, torch.zeros(1, 4)).isnan().all()
    with pytest.raises(ValueError, match="NaN or infinite"):
        spearman(ramp, flat * torch.nan)


class Residual(nn.Module):
    """Registered in another order than it runs, with a functional ReLU and a skip."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)
        self.norm = nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 6, 3)
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.unused = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.norm(self.first(x)))
        return self.head(torch.relu(self.second(h + x)).mean((2, 3)))


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return Residual().eval()


@pytest.fixture
def inputs() -> torch.Tensor:
    return torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def test_layers_are_randomised_in_the_reverse_order_of_execution_on_a_copy(net, inputs) -> None:
    before = copy.deepcopy(net.state_dict())
    state = torch.get_rng_state()
    result = model_randomization(net, inputs, measures=("spearman", "pearson", "cosine"))
    assert result.layers == ("head", "second", "norm", "first")
    assert set(result.similarity) == {"spearman", "pearson", "cosine"}
    for values in result.similarity.values():
        assert values.shape == (4, 3)
        assert values.dtype == torch.float64
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    again = model_randomization(net, inputs, batch_size=2)
    torch.testing.assert_close(again.similarity["spearman"], result.similarity["spearman"])
    other = model_randomization(net, inputs, seed=1)
    assert not torch.equal(other.similarity["cosine"], result.similarity["cosine"])


def test_cascading_and_independent(net, inputs) -> None:
    seen: list[dict[str, torch.Tensor]] = []

    def explain(model: nn.Module, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        seen.append(copy.deepcopy(model.state_dict()))
        assert target.tolist() == net(inputs).argmax(1).tolist()  # the original's winner, throughout
        return x

    def changed(state: dict[str, torch.Tensor]) -> set[str]:
        return {n.rpartition(".")[0] for n, v in net.state_dict().items() if not torch.equal(v, state[n])}

    result = model_randomization(net, inputs, explain, layers=["head", "second", "first"])
    assert [changed(s) for s in seen] == [set(), {"head"}, {"head", "second"}, {"head", "second", "first"}]
    assert result.similarity["spearman"].tolist() == [pytest.approx([1.0] * 3)] * 3  # x does not depend on the weights
    seen.clear()
    model_randomization(net, inputs, explain, layers=["head", "second", "first"], cascading=False)
    assert [changed(s) for s in seen] == [set(), {"head"}, {"second"}, {"first"}]


def test_an_explainer_brings_its_pruning_to_the_copies(net, inputs) -> None:
    pruned = Explainer(net, composite="epsilon-plus", pruning=plrp.Pruning(p=0.5))
    ours = model_randomization(net, inputs, pruned, layers=["head"])
    by_hand = model_randomization(
        net,
        inputs,
        lambda model, x, target: (
            plrp.explain(model, x, target=target, composite="epsilon-plus", pruning=plrp.Pruning(p=0.5)).relevance
        ),
        layers=["head"],
    )
    assert torch.equal(ours.similarity["cosine"], by_hand.similarity["cosine"])


def test_signs_can_be_left_out(net, inputs) -> None:
    def flips(model: nn.Module, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return x if torch.equal(model.head.weight, net.head.weight) else -x

    signed = model_randomization(net, inputs, flips, layers=["head"])
    unsigned = model_randomization(net, inputs, flips, layers=["head"], absolute=True)
    assert signed.similarity["cosine"][0].tolist() == pytest.approx([-1.0] * 3)
    assert unsigned.similarity["cosine"][0].tolist() == pytest.approx([1.0] * 3)


def test_parameters_without_a_reset_are_redrawn_at_their_scale(inputs) -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(5 + 0.1 * torch.randn(1, 1, 8, 8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.factor

    drawn = {}

    def explain(model: nn.Module, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        drawn["factor"] = model[0].factor.detach().clone()
        return x

    net = nn.Sequential(Scale(), nn.Flatten(), nn.Linear(64, 2)).eval()
    model_randomization(net, inputs, explain, layers=["0"])
    assert not torch.equal(drawn["factor"], net[0].factor)
    assert drawn["factor"].mean().item() == pytest.approx(5, abs=0.1)
    assert drawn["factor"].std().item() == pytest.approx(0.1, abs=0.05)


def test_unknown_names_are_refused(net, inputs) -> None:
    with pytest.raises(ValueError, match="no modules"):
        model_randomization(net, inputs, layers=["tail"])
    with pytest.raises(ValueError, match="choose from"):
        model_randomization(net, inputs, measures=("ssim",))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="nothing to randomise"):
        model_randomization(net, inputs, layers=[])


def test_efficient_randomization_against_quantus_entropy(net) -> None:
    """The relative rise of the histogram's entropy, by Quantus' own function, on a model randomised by hand."""
    complexity = pytest.importorskip("quantus.functions.complexity_func")
    x = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    explainer = Explainer(net, composite="epsilon")
    rise = efficient_randomization(net, x, explainer, bins=20)
    target = net(x).argmax(1)
    before = explainer(x, target)
    steps = model_randomization(net, x, explainer)  # the same seeds: its last step has every layer randomised
    noise = copy.deepcopy(net)
    modules = dict(noise.named_modules())
    for step, name in enumerate(steps.layers):
        _randomise(modules[name], 0, step)
    after = Explainer(noise, composite="epsilon")(x, target)
    for i in range(3):
        a, b = (complexity.discrete_entropy(m[i].numpy(), m[i].numpy(), n_bins=20) for m in (before, after))
        assert rise[i].item() == pytest.approx((b - a) / a, rel=1e-6)
    constant = efficient_randomization(net, x, lambda model, inputs, target: torch.ones_like(inputs))
    assert constant.isnan().all()


def test_smooth_randomization_averages_noisy_explanations(net) -> None:
    x = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    explainer = Explainer(net, composite="epsilon")
    plain = model_randomization(net, x, explainer)
    alone = smooth_randomization(net, x, explainer, samples=1)
    silent = smooth_randomization(net, x, explainer, samples=3, noise=0.0)
    for other in (alone, silent):
        assert torch.allclose(other.similarity["spearman"], plain.similarity["spearman"], atol=1e-6)

    def by_hand(model: nn.Module, inputs: torch.Tensor, target: object) -> torch.Tensor:
        maps = [plrp.explain(model, inputs, target=target, composite="epsilon").relevance]
        for index in (1, 2):
            shift = gaussian(inputs, 1.0, seed=5, index=index)
            noisy = torch.stack([one + 0.2 * (one.max() - one.min()) * shift for one in inputs])
            maps.append(plrp.explain(model, noisy, target=target, composite="epsilon").relevance)
        return torch.stack(maps).mean(0)

    expected = model_randomization(net, x, by_hand, seed=5)
    found = smooth_randomization(net, x, explainer, samples=3, noise=0.2, seed=5)
    assert torch.allclose(found.similarity["cosine"], expected.similarity["cosine"], atol=1e-6)
