"""`choose_p`: against the circuits themselves, p by p."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

import plrp


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 3)).double().eval()


@pytest.fixture
def x() -> Tensor:
    return torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("of", ["probability", "logit", "decision"])
@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.filterwarnings("ignore:No p of the grid")
def test_it_is_the_largest_p_whose_circuit_keeps_the_prediction(
    model: nn.Module, x: Tensor, of: str, positive: bool
) -> None:
    grid, keep = (0.02, 0.1, 0.3, 0.6), 0.8
    found = plrp.choose_p(plrp.trace(model, x), keep, of, grid=grid, positive=positive)
    for sample, p in enumerate(found.tolist()):
        fitting = [0.0]
        for one in grid:
            explanation = plrp.explain(model, x[sample : sample + 1], pruning=plrp.Pruning(p=one))
            kept = explanation.circuit(positive=positive).kept["this circuit"]
            share = kept.of_score if of == "logit" else kept.of_probability
            if kept.decision == 1 if of == "decision" else abs(share - 1) <= 1 - keep:
                fitting.append(one)
        assert p == max(fitting)


def test_it_does_not_depend_on_the_batch(model: nn.Module, x: Tensor) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        together = plrp.choose_p(plrp.trace(model, x))
        alone = [float(plrp.choose_p(plrp.trace(model, x[n : n + 1]))) for n in range(6)]
    assert together.tolist() == alone


def test_where_no_p_fits_it_is_zero_with_a_warning(model: nn.Module, x: Tensor) -> None:
    with pytest.warns(UserWarning, match=r"No p of the grid leaves a circuit that keeps 1 of the logit in sample 0"):
        assert plrp.choose_p(plrp.trace(model, x[:1]), 1.0, "logit", grid=[0.9]).tolist() == [0.0]


def test_refusals(model: nn.Module, x: Tensor) -> None:
    trace = plrp.trace(model, x)
    with pytest.raises(ValueError, match="0 < keep ≤ 1, got 0"):
        plrp.choose_p(trace, 0)
    with pytest.raises(ValueError, match="'probability', 'logit' or 'decision', got 'score'"):
        plrp.choose_p(trace, of="score")
    with pytest.raises(ValueError, match="grid holds no p"):
        plrp.choose_p(trace, grid=[])
    with pytest.raises(ValueError, match="This output has no probability"):
        plrp.choose_p(trace, target=lambda output: output[:, 0] - output[:, 1])


@pytest.mark.filterwarnings("ignore:No p of the grid")
def test_p_auto_is_the_choice_for_one_sample(model: nn.Module, x: Tensor) -> None:
    for n in range(3):
        chosen = float(plrp.choose_p(plrp.trace(model, x[[n]]), pruning=plrp.Pruning(redistribution="M-sign")))
        auto = plrp.explain(model, x[[n]], pruning=plrp.Pruning("auto", redistribution="M-sign"))
        assert auto.pruning == plrp.Pruning(chosen, redistribution="M-sign")
        again = plrp.explain(model, x[[n]], pruning=auto.pruning)
        assert torch.equal(auto.relevance, again.relevance)
        swept = list(plrp.trace(model, x[[n]]).sweep([None, plrp.Pruning("auto")]))[1]
        assert swept.pruning == plrp.Pruning(float(plrp.choose_p(plrp.trace(model, x[[n]]))))
    for options in ({}, {"micro_batch": 1}):
        with pytest.raises(ValueError, match="chosen for each sample: explain one at a time"):
            plrp.explain(model, x, pruning=plrp.Pruning("auto"), **options)
    assert plrp.Pruning.from_dict(plrp.Pruning("auto").to_dict()) == plrp.Pruning("auto")
    with pytest.raises(ValueError, match="0 ≤ p < 1, got 'aut'"):
        plrp.Pruning("aut")  # type: ignore[arg-type]


def test_without_a_probability_the_logit_is_kept() -> None:
    torch.manual_seed(0)
    layers = nn.Conv1d(2, 6, 3), nn.ReLU(), nn.Conv1d(6, 6, 3), nn.ReLU(), nn.Conv1d(6, 3, 3)
    model, x = nn.Sequential(*layers).eval(), torch.randn(1, 2, 12)
    trace, target = plrp.trace(model, x), lambda out: out[:, 0].sum(1)
    with pytest.raises(ValueError, match="has no probability"):
        plrp.choose_p(trace, target=target)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chosen = float(plrp.choose_p(trace, of="logit", target=target))
    assert plrp.explain(model, x, target=target, pruning=plrp.Pruning("auto")).pruning == plrp.Pruning(chosen)
