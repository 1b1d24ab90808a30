"""Where the score of an explanation went: each figure restated; a warning where, and only where, arithmetic broke."""

from __future__ import annotations

import copy
import math
import pickle
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import plrp
from plrp import cli
from plrp.balance import GROWN, NOTHING, Problem, find_problems, remarks, unwarned
from plrp.ledger import growth
from plrp.pruning import tied

EPSILON = 1e-6
M = plrp.Pruning(p=0.2, redistribution="M")


class ResidualStack(nn.Module):
    """x + relu(linear(x)), many times."""

    def __init__(self, depth: int = 60, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return self.head(x)


@pytest.fixture
def stack() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return ResidualStack().eval(), torch.randn(4, 16)


@pytest.fixture
def silent() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", plrp.BrokenArithmetic)
        yield


def two_layers(weights: list[list[float]], last: list[float]) -> nn.Module:
    """x → relu(Wx) → one score, without biases."""
    model = nn.Sequential(
        nn.Linear(len(weights[0]), len(weights), bias=False), nn.ReLU(), nn.Linear(len(last), 1, bias=False)
    )
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor(weights))
        model[2].weight.copy_(torch.tensor([last]))
    return model.eval()


# --- the figures ------------------------------------------------------------------------------------------------------


def test_figures_are_those_of_the_formulas_written_out() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 4)).double().eval()
    x = torch.randn(3, 6, dtype=torch.float64)
    x[:, 2] = 0.0
    balance = plrp.explain(model, x, composite="epsilon", target=[0, 1, 3]).balance

    def stabilised(z: Tensor) -> Tensor:
        return z + torch.where(z >= 0, EPSILON, -EPSILON)

    for n, target in enumerate((0, 1, 3)):
        (w1, b1), (w2, b2) = ((layer.weight.detach(), layer.bias.detach()) for layer in (model[0], model[2]))
        z1 = w1 @ x[n] + b1
        h = z1.clamp(min=0)
        score = w2[target] @ h + b2[target]
        q = score / stabilised(score)
        hidden = h * w2[target] * q
        s = hidden / stabilised(z1)
        at_input = x[n] * (w1.T @ s)
        bias = b2[target] * q + (b1 * s).sum()
        epsilon = score - score * q + (hidden - z1 * s).sum()
        largest = max(float(r.abs().sum()) for r in (score[None], hidden, at_input))
        restated = {
            "score": score,
            "amplification": largest / score.abs(),
            "mass_at_input": at_input.abs().sum() / score.abs(),
            "reached": at_input.sum() / score,
            "to_bias": bias / score,
            "to_epsilon": epsilon / score,
            "dropped": 0.0,
            "created": 0.0,
            "zeros": 1 / 6,
        }
        for name, expected in restated.items():
            assert float(getattr(balance, name)[n]) == pytest.approx(float(expected), rel=1e-9, abs=1e-12), name
        grows = float(at_input.abs().sum()) > max(float(score.abs()), float(hidden.abs().sum()))
        where = "'2'" if float(hidden.abs().sum()) > float(score.abs()) else "the output"
        if grows and float(at_input.abs().sum() / hidden.abs().sum()) > float(hidden.abs().sum() / score.abs()):
            where = "'0'"
        assert balance.grew_at[n] == (where if not grows or where == "'0'" else "'2'")
    assert all(math.isnan(float(v)) for name in ("cut", "tied", "flipped") for v in getattr(balance, name))


@pytest.mark.parametrize("pruning", [None, plrp.Pruning(0.3), plrp.Pruning(0.3, conserve=False), M])
@pytest.mark.parametrize("composite", ["epsilon", "epsilon-plus", "epsilon-alpha2-beta1"])
def test_shares_of_the_score_add_up_to_one(stack: tuple[nn.Module, Tensor], composite: str, pruning: object) -> None:
    model, x = stack
    with unwarned():
        balance = plrp.explain(model.double(), x.double(), composite=composite, pruning=pruning).balance
    taken = balance.to_bias + balance.to_constants + balance.to_epsilon + balance.to_softmax
    total = balance.reached + taken + balance.dropped - balance.created
    assert torch.allclose(total, torch.ones(4, dtype=torch.float64), atol=1e-9 * float(balance.amplification.max()))


def test_growth_is_told_at_the_entry_where_it_happened() -> None:
    """The third layer subtracts two nearly equal neurons: there, and only there, Σ|R| grows a hundredfold."""
    torch.manual_seed(0)
    layers = [nn.Linear(2, 2, bias=False) for _ in range(3)]
    with torch.no_grad():
        layers[0].weight.copy_(torch.eye(2))
        layers[1].weight.copy_(torch.tensor([[1.0, -0.99], [0.0, 0.0]]))
        layers[2].weight.copy_(torch.eye(2))
    model = nn.Sequential(*layers).eval()
    with unwarned():
        balance = plrp.explain(model, torch.ones(1, 2), composite="epsilon", target=0).balance
    assert balance.grew_at == ["'1'"]
    assert float(balance.amplification[0]) == pytest.approx(199, rel=1e-3)


def test_equal_neurons_at_the_cut_are_a_tie() -> None:
    """Hidden relevance 1, 1, 1, 1, 4: the four hold half of the mass, and stay or go together."""
    model, x = two_layers([[1.0]] * 5, [1.0, 1.0, 1.0, 1.0, 4.0]), torch.ones(1, 1)
    stuck = plrp.explain(model, x, composite="epsilon", pruning=plrp.Pruning(p=0.2)).balance
    assert float(stuck.tied) == pytest.approx(0.5)
    assert float(stuck.cut) == 0.0
    assert "nothing was pruned, because equal neurons" in repr(stuck)
    gone = plrp.explain(model, x, composite="epsilon", pruning=plrp.Pruning(p=0.6)).balance
    assert (float(gone.tied), float(gone.cut)) == (0.0, 1.0)
    assert "nothing was pruned" not in repr(gone)
    assert "nothing was pruned" not in repr(plrp.explain(model, x, pruning=plrp.Pruning(p=0.0)).balance)


def test_ties_of_a_batch_are_those_of_its_samples() -> None:
    rows = torch.tensor([[1.0, 1.0, 2.0, 0.0], [3.0, 3.0, 3.0, 1.0], [5.0, 5.0, 0.0, 0.0]])
    none = torch.zeros_like(rows)
    assert tied([rows, none]).tolist() == tied([none, rows]).tolist() == [0.5, 0.0, 1.0]


def test_equal_groups_at_the_cut_are_a_tie() -> None:
    """Channels of relevance 4 + 0, 2 + 2 and 1 + 16: the least neuron is single, but two channels are equal."""
    first, second = nn.Conv1d(2, 6, 1, bias=False), nn.Conv1d(6, 1, 2, bias=False)
    with torch.no_grad():
        first.weight.copy_(torch.tensor([[1.0, 0.0]] * 6).view(6, 2, 1))
        second.weight.zero_()
        second.weight[0, :3] = torch.tensor([[4.0, 0.0], [2.0, 2.0], [1.0, 16.0]])
    model, x = nn.Sequential(first, second, nn.Flatten()).eval(), torch.ones(1, 2, 2)

    def tied(unit: str, p: float) -> float:
        return float(plrp.explain(model, x, composite="epsilon", pruning=plrp.Pruning(p=p, unit=unit)).balance.tied)

    assert tied("neuron", 0.02) == 0.0
    assert tied("channel", 0.2) == pytest.approx(8 / 25)
    assert tied("channel", 0.4) == 0.0  # both are gone


@pytest.mark.parametrize("redistribution", ["lambda", "M"])
@pytest.mark.parametrize("p", [0.05, 0.6])
def test_ties_are_the_same_neuron_by_neuron_and_by_whole_tensors(redistribution: str, p: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 3),
    ).eval()  # fmt: skip
    x = torch.randn(2, 2, 4, 4).repeat_interleave(8, 2).repeat_interleave(8, 3)  # patches of one colour
    options = {"pruning": plrp.Pruning(p=p, redistribution=redistribution), "composite": "epsilon-plus"}
    fast = [row["tied"] for row in plrp.explain(model, x, **options).ledger if row["op"] == "prune"]
    with plrp.plain_walk():
        plain = [row["tied"] for row in plrp.explain(model, x, **options).ledger if row["op"] == "prune"]
    assert fast == pytest.approx(plain, rel=1e-4)
    assert any(share > 0 for share in plain)


def test_flips_are_the_largest_share_of_a_tensors_mass(stack: tuple[nn.Module, Tensor]) -> None:
    model, x = stack
    with unwarned():
        explanation = plrp.explain(model, x, composite="epsilon", pruning=M)
    for n in range(len(x)):
        rows = [row for row in explanation.ledger if row["op"] == "prune" and row["sample"] == n]
        shares = [row["flipped_mass"] / (row["mass_out_positive"] + row["mass_out_negative"]) for row in rows]
        assert float(explanation.balance.flipped[n]) == pytest.approx(max(shares))
        assert max(shares) > 0


# --- the sentence -----------------------------------------------------------------------------------------------------


def test_the_sentence_names_the_quantity_and_its_value() -> None:
    model = nn.Linear(2, 1).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 2.0]]))
        model.bias.fill_(1.0)
    one = plrp.explain(model, torch.tensor([[1.0, 1.0]]).double(), composite="epsilon").balance
    assert repr(one) == (
        "conserves; 75% of the score (4) reached the input, 25% went to biases; Σ|R| is at most 1 times the score"
    )
    two = plrp.explain(model, torch.tensor([[1.0, 1.0], [3.0, 2.0]]).double(), composite="epsilon").balance
    assert repr(two).startswith("conserves; on average 81% of the score (4 to 8) reached the input, 19% went to biases")


@pytest.mark.parametrize(
    ("x", "bias", "share"), [(1.0, 0.5, 67), (-2.0, 3.0, -200), (2.0, -3.0, -200), (2.0, -1.9, 2000)]
)
def test_signs_and_sums_are_stated_and_not_judged(x: float, bias: float, share: int) -> None:
    """Biases that take more than the score, or less than nothing: figures, no verdict and no advice."""
    model = nn.Linear(1, 1).double()
    nn.init.constant_(model.weight, 1.0)
    nn.init.constant_(model.bias, bias)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        balance = plrp.explain(model, torch.tensor([[x]], dtype=torch.float64), composite="epsilon").balance
    assert balance.problems == [None]
    said = (
        f"conserves; {share}% of the score ({x + bias:.3g}) reached the input, {100 - share}% went to biases; Σ|R| is"
    )
    assert repr(balance).startswith(said)


@pytest.mark.usefixtures("silent")
def test_relevance_that_does_not_arrive_is_accounted_for_and_no_more() -> None:
    """Activations far below ε = 1e-6: ε takes all. Whether the network was trained is not for the balance to say."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(3))).eval()
    with torch.no_grad():
        model[0].weight.mul_(1e-9)
        model[1].weight.mul_(0.1)
    balance = plrp.explain(model, torch.randn(2, 8), composite="epsilon").balance
    assert balance.problems == [None, None]
    assert float(balance.to_epsilon.min()) > 0.99
    assert "0% of the score (" in repr(balance)
    assert "reached the input, 100% to ε; " in repr(balance)
    assert "train" not in repr(balance)


def difference(score: float, relevance: float) -> tuple[nn.Module, Tensor]:
    """Two classes near 8 whose difference is `score`, of which the input holds `relevance` and the bias the rest."""
    model = nn.Linear(2, 2).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[3.0 + relevance, 5.0], [3.0, 5.0]], dtype=torch.float64))
        model.bias.copy_(torch.tensor([score - relevance, 0.0], dtype=torch.float64))
    return model.eval(), torch.ones(1, 2, dtype=torch.float64)


@pytest.mark.parametrize("score", [0.124, 0.01, 1e-4, -0.124, 3.0])
def test_shares_of_a_contrast_are_of_its_score_however_small(score: float) -> None:
    """Of +0.124, Σ R = −0.504 is −406%; 0.2.0 said −2%, of another quantity."""
    model, x = difference(score, -0.504)
    explanation = plrp.explain(model, x, target=plrp.targets.contrast(0, 1), composite="epsilon")
    assert float(explanation.score) == pytest.approx(score, rel=1e-3)
    assert float(explanation.relevance.sum()) == pytest.approx(-0.504, rel=1e-4)
    balance = explanation.balance
    assert float(balance.reached) == pytest.approx(-0.504 / score, rel=1e-4)
    assert float(balance.reached + balance.to_bias + balance.to_epsilon) == pytest.approx(1)
    assert float(balance.mass_at_input) == pytest.approx(float(explanation.relevance.abs().sum()) / abs(score))
    assert f"conserves; {-0.504 / score:.0%} of the score ({score:.3g}) reached the input" in repr(balance)


@pytest.mark.parametrize("seed", [plrp.targets.clrp(0), plrp.targets.sglrp(0)])
def test_shares_of_relevance_that_adds_up_to_0_are_of_its_mass(seed: plrp.targets.Seed) -> None:
    model, x = difference(0.124, -0.504)
    explanation = plrp.explain(model, x, target=seed, composite="epsilon")
    logits = model(x)[0].detach()
    p = float(logits.softmax(0)[0])
    whole = 2 * float(logits[0]) if seed.name == "clrp" else 2 * p * (1 - p)
    balance = explanation.balance
    assert float(balance.whole) == pytest.approx(whole)
    assert float(balance.reached) == pytest.approx(float(explanation.relevance.sum()) / whole)
    assert f"of Σ|R| at the output ({whole:.3g}) reached the input" in repr(balance)


@pytest.mark.usefixtures("silent")
def test_a_score_of_zero_is_said_and_is_no_fault() -> None:
    model, x = two_layers([[1.0], [2.0]], [1.0, 1.0]), torch.tensor([[1.0], [-1.0]])
    explanation = plrp.explain(model, x, composite="epsilon")
    assert explanation.balance.problems == [None, None]
    assert explanation.remarks() == [None, NOTHING]
    assert math.isnan(float(explanation.balance.reached[1]))
    assert repr(explanation.balance) == (
        f"in 1 of 2 samples {NOTHING}. "
        "conserves; 100% of the score (3) reached the input; Σ|R| is at most 1 times the score"
    )
    assert repr(plrp.explain(model, x[1:], composite="epsilon").balance) == NOTHING


@pytest.mark.usefixtures("silent")
def test_a_contrast_of_equal_scores_has_relevance_but_no_shares() -> None:
    model, x = difference(0.0, -0.5)
    explanation = plrp.explain(model, x, target=plrp.targets.contrast(0, 1), composite="epsilon")
    assert float(explanation.score) == 0
    assert float(explanation.relevance.sum()) == pytest.approx(-0.5, rel=1e-4)
    assert explanation.remarks() == [None]
    assert repr(explanation.balance) == "the score is 0, so that nothing is a share of it"


def test_a_ledger_that_does_not_close_is_said() -> None:
    explanation = plrp.explain(two_layers([[1.0], [2.0]], [1.0, 1.0]), torch.ones(1, 1), composite="epsilon")
    _ = explanation.booked
    explanation.relevance = 0.9 * explanation.relevance
    assert explanation.balance.problems == [Problem.OPEN]
    assert repr(explanation.balance) == "the ledger misses 10.0% of the largest Σ|R|"


def test_the_words_of_a_verdict_are_gone() -> None:
    """Conservation is arithmetic: neither source nor docs speak of an explanation's health."""
    root = Path(plrp.__file__).parents[2]
    files = [file for kind in ("py", "js", "html", "css", "md") for file in (root / "src").rglob(f"*.{kind}")]
    files += [*(root / "docs").rglob("*.md"), root / "README.md"] if (root / "docs").exists() else []
    verdict = re.compile(r"health|doubtful", re.IGNORECASE)
    assert [str(file) for file in files if verdict.search(file.read_text("utf-8"))] == []


# --- broken arithmetic ------------------------------------------------------------------------------------------------


def test_m_explodes_on_a_deep_residual_stack_under_epsilon_and_is_warned_of(stack: tuple[nn.Module, Tensor]) -> None:
    model, x = stack
    with pytest.warns(
        plrp.BrokenArithmetic, match=r"PLRP-M multiplied Σ\|R\| of a tensor by more than 5: .*'M-sign' or 'lambda'"
    ) as caught:
        explanation = plrp.explain(model, x, composite="epsilon", pruning=M)
    assert len(caught) == 1
    assert Path(caught[0].filename) == Path(__file__), "the warning points at the code that called plrp"
    assert explanation.problems() == explanation.balance.problems == [Problem.GROWN] * 4
    assert float(explanation.closing().max()) < 1e-4, "and yet the ledger closes"
    assert "in all 4 samples PLRP-M multiplied Σ|R| by " in repr(explanation)
    assert f" at the pruned input of '{explanation.balance.grown_at[2].split(chr(39))[1]}', and it grew to " in repr(
        explanation
    )
    assert "conserves" not in repr(explanation)


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("pruning", [None, plrp.Pruning(0.2), plrp.Pruning(0.2, redistribution="M-sign")])
def test_lrp_lambda_and_m_by_sign_do_not(stack: tuple[nn.Module, Tensor], pruning: plrp.Pruning | None) -> None:
    explanation = plrp.explain(*stack, composite="epsilon", pruning=pruning)
    assert explanation.balance.problems == [None] * 4
    assert "\nconserves; on average " in repr(explanation)


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("scale", [1e-2, 1e-4, 1e-6])
@pytest.mark.parametrize("pruning", [None, plrp.Pruning(0.05), plrp.Pruning(0.05, redistribution="M-sign")])
def test_small_scores_are_no_reason_to_warn(stack: tuple[nn.Module, Tensor], scale: float, pruning: object) -> None:
    """The score as a difference of nearly equal logits: Σ|R| is thousands of times the score, which nothing broke."""
    model, x = stack
    logits = model(x).detach()
    shift = (1 - scale) * logits[:, 0].mean()
    with torch.no_grad():
        model.head.bias[0] -= shift
    explanation = plrp.explain(model, x, target=0, composite="epsilon", pruning=pruning)
    assert explanation.balance.problems == [None] * 4


@pytest.mark.parametrize("redistribution", ["lambda", "M", "M-sign"])
@pytest.mark.parametrize("composite", ["epsilon", "epsilon-plus", "epsilon-gamma"])
def test_the_growth_by_pruning_is_the_largest_of_the_pruned_tensors(
    stack: tuple[nn.Module, Tensor], composite: str, redistribution: str
) -> None:
    model, x = stack[0].double(), stack[1].double()
    with unwarned():
        explanation = plrp.explain(
            model, x, composite=composite, pruning=plrp.Pruning(0.2, redistribution=redistribution)
        )
    for n in range(len(x)):
        factor, where = 1.0, ""
        for row in explanation.ledger:
            if row["op"] == "prune" and row["sample"] == n:
                before = row["mass_in_positive"] + row["mass_in_negative"]
                after = row["mass_out_positive"] + row["mass_out_negative"]
                if after / before > factor:
                    factor, where = after / before, f"the pruned input of '{row['layer']}'"
        assert float(explanation.balance.grown[n]) == pytest.approx(factor, rel=1e-9)
        assert redistribution == "lambda" or explanation.balance.grown_at[n] == where
        if redistribution == "M":
            assert float(explanation._grown[n]) == pytest.approx(factor, rel=1e-6)
        elif redistribution == "lambda":
            assert factor == pytest.approx(1)
    assert (explanation._grown is None) == (redistribution != "M")


def test_every_way_to_explain_warns_once(stack: tuple[nn.Module, Tensor]) -> None:
    model, x = stack
    trace = plrp.trace(model, x)
    ways = {
        "Trace.explain": lambda: trace.explain(composite="epsilon", pruning=M),
        "Trace.sweep": lambda: list(trace.sweep([None, M], composite="epsilon")),
        "micro_batch": lambda: plrp.explain(model, x, composite="epsilon", pruning=M, micro_batch=3),
    }
    for name, explain in ways.items():
        with pytest.warns(plrp.BrokenArithmetic, match="in all 4 samples") as caught:
            explain()
        assert len(caught) == 1, name
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        explanation = trace.explain(composite="epsilon", pruning=M)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _ = explanation.ledger, explanation.balance  # what is computed once more is not warned of once more


@pytest.mark.usefixtures("silent")
def test_a_small_score_made_of_large_contributions_is_no_fault() -> None:
    """h₁ − 0.9999 h₂: Σ|R| is 20,000 times the score in the last layer already, which is the network's own doing."""
    explanation = plrp.explain(two_layers([[1.0], [1.0]], [1.0, -0.9999]), torch.ones(1, 1), composite="epsilon")
    assert float(explanation.balance.amplification[0]) > 1e4
    assert explanation.balance.problems == [None]


def test_relevance_beyond_the_range_of_float32_is_warned_of() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(9))).eval()
    wild = plrp.Composite([(plrp.composites.is_any, plrp.rules.AlphaBeta(1e6, 1e6 - 1))])
    with pytest.warns(plrp.BrokenArithmetic, match="in all 2 samples relevance is not finite"):
        explanation = plrp.explain(model, torch.randn(2, 8), composite=wild)
    assert explanation.balance.problems == [Problem.NOT_FINITE] * 2
    assert "relevance is not finite, first at '" in repr(explanation.balance)


def test_bounds_are_met_exactly() -> None:
    mass, grown = torch.tensor([1.0, 1e30, math.inf, math.nan]), torch.tensor([GROWN, 1.01 * GROWN, 1e9, 1.0])
    assert find_problems(mass, grown) == [None, Problem.GROWN, Problem.NOT_FINITE, Problem.NOT_FINITE]
    assert find_problems(mass, None) == [None, None, Problem.NOT_FINITE, Problem.NOT_FINITE]
    said = remarks(torch.tensor([0.0, 1.0, 1.0, 0.0]), mass, grown)
    assert said == [None, "PLRP-M multiplied Σ|R| of a tensor by 5.1", *["relevance is not finite"] * 2]
    assert remarks(torch.zeros(1), torch.zeros(1), None) == [NOTHING]
    assert growth(torch.tensor([0.0, 2.0, 2.0]), torch.tensor([0.0, 1.0, 6.0])).tolist() == [1.0, 1.0, 3.0]


# --- invariance, files, several inputs --------------------------------------------------------------------------------


def test_the_balance_of_a_sample_does_not_depend_on_its_batch(stack: tuple[nn.Module, Tensor]) -> None:
    model, x = stack[0].double(), stack[1].double()
    with unwarned():
        whole = plrp.explain(model, x, composite="epsilon", pruning=M).balance.records()
        pieces = plrp.explain(model, x, composite="epsilon", pruning=M, micro_batch=3).balance.records()
        alone = [
            plrp.explain(model, x[n : n + 1], composite="epsilon", pruning=M).balance.records()[0] for n in range(4)
        ]
    for together in (pieces, alone):
        for one, other in zip(whole, together, strict=True):
            for name, value in one.items():
                if name != "sample":
                    assert other[name] == (pytest.approx(value, rel=1e-5) if isinstance(value, float) else value), name


@pytest.mark.parametrize("prunings", [[plrp.Pruning(0.3), plrp.Pruning(0.5), plrp.Pruning(0.7)]])
def test_prunings_that_are_walked_together_have_the_problems_of_one_alone(prunings: list[plrp.Pruning]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Flatten(),
        nn.Linear(16 * 256, 5),
    ).eval()  # fmt: skip
    trace = plrp.trace(model, torch.rand(2, 3, 16, 16))
    for pruning, found in zip(prunings, trace.sweep(prunings), strict=True):
        alone = trace.explain(pruning=pruning)
        assert found.problems() == alone.problems() == [None, None]


def test_a_stored_explanation_knows_its_balance(stack: tuple[nn.Module, Tensor]) -> None:
    model, x = stack
    with unwarned():
        explanation = plrp.explain(model, x, composite="epsilon", pruning=M)
    loaded = pickle.loads(pickle.dumps(explanation))
    assert repr(loaded.balance) == repr(explanation.balance)
    assert loaded.balance.records() == explanation.balance.records()


def test_an_explanation_stored_by_an_older_version_still_loads(stack: tuple[nn.Module, Tensor]) -> None:
    explanation = plrp.explain(*stack, pruning=plrp.Pruning(0.1))
    old = copy.copy(explanation)
    state = explanation.__getstate__()
    del state["_begun"], state["_grown"]
    for row in state["_ledger"]._rows:
        del row["tied"]
    old.__dict__ = pickle.loads(pickle.dumps(state))
    balance = old.balance
    assert balance.problems == old.problems() == [None] * 4
    assert torch.equal(balance.reached, explanation.balance.reached)
    assert bool(balance.tied.isnan().all())


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(5, 3)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.a(a) + self.b(b)


def test_all_inputs_of_a_model_count() -> None:
    torch.manual_seed(0)
    explanation = plrp.explain(TwoInputs().eval(), (torch.randn(2, 4), torch.randn(2, 5)), composite="epsilon")
    both = torch.cat(explanation.relevance, 1).double()
    score = explanation.score.double()
    assert torch.allclose(explanation.balance.reached, both.sum(1) / score)
    assert torch.allclose(explanation.balance.mass_at_input, both.abs().sum(1) / score.abs())
    assert float(explanation.balance.amplification.min()) >= 1


def test_an_empty_batch_is_no_problem() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).eval()
    assert repr(plrp.explain(model, torch.zeros(0, 4)).balance) == "no samples"


# --- commands and sweeps ----------------------------------------------------------------------------------------------

NETWORK = """
import torch
from torch import nn
{imports}

class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = {first}
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(60))
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        x = torch.relu(self.first(x)).flatten(2).mean(2)
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return self.head(x)

def build():
    torch.manual_seed(0)
    return Stack()
"""


def test_plrp_explain_says_in_which_variants_arithmetic_broke_and_counts_photographs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    image = pytest.importorskip("PIL.Image")
    monkeypatch.chdir(tmp_path)
    small = "from plrp.models import Preprocessing\npreprocessing = Preprocessing(resize=18, crop=16)"
    Path("network.py").write_text(NETWORK.format(imports=small, first="nn.Conv2d(3, 16, 3)"))
    for seed, name in enumerate(("cat", "dog")):
        pixels = np.random.default_rng(seed).integers(0, 255, (20, 20, 3), dtype=np.uint8)
        image.fromarray(pixels).save(f"{name}.png")
    command = ["explain", "cat.png", "dog.png", "--model", "network.py:build", "--dpi", "40", "-o", "out/"]
    with warnings.catch_warnings():
        warnings.simplefilter("error", plrp.BrokenArithmetic)
        assert cli.main([*command, "--composite", "epsilon", "--method", "M", "-p", "0.2"]) == 0
    out, err = capsys.readouterr()
    broken = out.count("  PLRP-M, p = 0.2: PLRP-M multiplied Σ|R| by ")
    assert broken >= 1
    assert out.count("take --method lambda or M-sign, or prune less (a smaller -p)") == broken
    assert "  LRP: PLRP-M" not in out
    assert f"the arithmetic broke in explanations of {broken} of 2 photographs" in err
    assert cli.main(command) == 0
    out, err = capsys.readouterr()
    assert "arithmetic" not in out + err
    assert "multiplied" not in out
