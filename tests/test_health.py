"""Whether an explanation knows its health: each figure restated, and warnings where, and only where, they belong."""

from __future__ import annotations

import copy
import math
import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import plrp
from plrp import cli
from plrp.health import (
    EXPLODED,
    EXPLODED_EPSILON,
    PYTHON,
    VANISHED,
    Problem,
    Scale,
    Wording,
    advice,
    bound_for,
    summary,
    unwarned,
    verdicts,
)

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
        warnings.simplefilter("error", plrp.UnhealthyExplanation)
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
    health = plrp.explain(model, x, composite="epsilon", target=[0, 1, 3]).health

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
            assert float(getattr(health, name)[n]) == pytest.approx(float(expected), rel=1e-9, abs=1e-12), name
        grows = float(at_input.abs().sum()) > max(float(score.abs()), float(hidden.abs().sum()))
        assert health.grew_at[n] == ("'0'" if grows else "the last layer")
    assert all(math.isnan(float(v)) for name in ("cut", "tied", "flipped") for v in getattr(health, name))


@pytest.mark.parametrize("pruning", [None, plrp.Pruning(0.3), plrp.Pruning(0.3, conserve=False), M])
@pytest.mark.parametrize("composite", ["epsilon", "epsilon-plus", "epsilon-alpha2-beta1"])
def test_shares_of_the_score_add_up_to_one(stack: tuple[nn.Module, Tensor], composite: str, pruning: object) -> None:
    model, x = stack
    with unwarned():
        health = plrp.explain(model.double(), x.double(), composite=composite, pruning=pruning).health
    taken = health.to_bias + health.to_constants + health.to_epsilon + health.to_softmax
    total = health.reached + taken + health.dropped - health.created
    assert torch.allclose(total, torch.ones(4, dtype=torch.float64), atol=1e-9 * float(health.amplification.max()))


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
        health = plrp.explain(model, torch.ones(1, 2), composite="epsilon", target=0).health
    assert health.grew_at == ["'1'"]
    assert float(health.amplification[0]) == pytest.approx(199, rel=1e-3)


def test_equal_neurons_at_the_cut_are_a_tie() -> None:
    """Hidden relevance 1, 1, 1, 1, 4: the four hold half of the mass, and stay or go together."""
    model, x = two_layers([[1.0]] * 5, [1.0, 1.0, 1.0, 1.0, 4.0]), torch.ones(1, 1)
    stuck = plrp.explain(model, x, composite="epsilon", pruning=plrp.Pruning(p=0.2)).health
    assert float(stuck.tied) == pytest.approx(0.5)
    assert float(stuck.cut) == 0.0
    assert "nothing was pruned, because equal neurons" in repr(stuck)
    gone = plrp.explain(model, x, composite="epsilon", pruning=plrp.Pruning(p=0.6)).health
    assert (float(gone.tied), float(gone.cut)) == (0.0, 1.0)
    assert "nothing was pruned" not in repr(gone)
    assert "nothing was pruned" not in repr(plrp.explain(model, x, pruning=plrp.Pruning(p=0.0)).health)


def test_equal_groups_at_the_cut_are_a_tie() -> None:
    """Channels of relevance 4 + 0, 2 + 2 and 1 + 16: the least neuron is single, but two channels are equal."""
    first, second = nn.Conv1d(2, 6, 1, bias=False), nn.Conv1d(6, 1, 2, bias=False)
    with torch.no_grad():
        first.weight.copy_(torch.tensor([[1.0, 0.0]] * 6).view(6, 2, 1))
        second.weight.zero_()
        second.weight[0, :3] = torch.tensor([[4.0, 0.0], [2.0, 2.0], [1.0, 16.0]])
    model, x = nn.Sequential(first, second, nn.Flatten()).eval(), torch.ones(1, 2, 2)

    def tied(unit: str, p: float) -> float:
        return float(plrp.explain(model, x, composite="epsilon", pruning=plrp.Pruning(p=p, unit=unit)).health.tied)

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
        assert float(explanation.health.flipped[n]) == pytest.approx(max(shares))
        assert max(shares) > 0


# --- the verdict and the warning --------------------------------------------------------------------------------------


def test_m_explodes_on_a_deep_residual_stack_under_epsilon_and_is_warned_of(stack: tuple[nn.Module, Tensor]) -> None:
    model, x = stack
    with pytest.warns(
        plrp.UnhealthyExplanation, match=r"times the score.*redistribution='M-sign' or 'lambda'"
    ) as caught:
        explanation = plrp.explain(model, x, composite="epsilon", pruning=M)
    assert len(caught) == 1
    assert Path(caught[0].filename) == Path(__file__), "the warning points at the code that called plrp"
    assert explanation.verdicts() == [Problem.EXPLODED] * 4
    assert explanation.health.problems == [Problem.EXPLODED] * 4
    assert float(explanation.closing().max()) < 1e-4, "and yet the ledger closes"
    assert "the pruned input of" in repr(explanation.health)
    assert "unhealthy: in all 4 samples Σ|R| grew to" in repr(explanation)


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("pruning", [None, plrp.Pruning(0.2), plrp.Pruning(0.2, redistribution="M-sign")])
def test_lrp_lambda_and_m_by_sign_do_not(stack: tuple[nn.Module, Tensor], pruning: plrp.Pruning | None) -> None:
    explanation = plrp.explain(*stack, composite="epsilon", pruning=pruning)
    assert explanation.health.healthy
    assert "\nhealthy: " in repr(explanation)


def test_every_way_to_explain_warns_once(stack: tuple[nn.Module, Tensor]) -> None:
    model, x = stack
    trace = plrp.trace(model, x)
    ways = {
        "Trace.explain": lambda: trace.explain(composite="epsilon", pruning=M),
        "Trace.sweep": lambda: list(trace.sweep([None, M], composite="epsilon")),
        "micro_batch": lambda: plrp.explain(model, x, composite="epsilon", pruning=M, micro_batch=3),
    }
    for name, explain in ways.items():
        with pytest.warns(plrp.UnhealthyExplanation, match="in all 4 samples") as caught:
            explain()
        assert len(caught) == 1, name
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        explanation = trace.explain(composite="epsilon", pruning=M)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _ = explanation.ledger, explanation.health  # what is computed once more is not warned of once more


@pytest.mark.usefixtures("silent")
def test_a_small_score_made_of_large_contributions_is_healthy() -> None:
    """h₁ − 0.9999 h₂: Σ|R| is 20,000 times the score in the last layer already, which is the network's own doing."""
    explanation = plrp.explain(two_layers([[1.0], [1.0]], [1.0, -0.9999]), torch.ones(1, 1), composite="epsilon")
    assert float(explanation.health.amplification[0]) > 1e4
    assert explanation.health.healthy


@pytest.mark.parametrize(("bias", "doubtful"), [(0.5, False), (3.0, True), (-3.0, True)])
def test_a_sum_of_the_other_sign_or_far_above_the_score_is_doubtful(bias: float, doubtful: bool) -> None:
    model = nn.Linear(1, 1).double()
    nn.init.constant_(model.weight, 1.0)
    nn.init.constant_(model.bias, bias)
    x = 2.0 if bias == -3.0 else -2.0 if bias == 3.0 else 1.0  # scores −1, 1 and 1.5
    health = plrp.explain(model, torch.tensor([[x]], dtype=torch.float64), composite="epsilon").health
    assert health.healthy
    assert health.doubtful == [doubtful]
    assert repr(health).startswith("doubtful: the input's" if doubtful else "healthy: 67% of the score")


def test_shares_of_a_contrast_are_of_the_difference() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 2).double()
    x = torch.rand(1, 4, dtype=torch.float64)
    health = plrp.explain(model, x, target=plrp.targets.contrast(0, 1), composite="epsilon").health
    logits = model(x)[0]
    bias = (model.bias[0] - model.bias[1]) / (logits[0] - logits[1])
    assert float(health.to_bias) == pytest.approx(float(bias.detach()), rel=1e-4)
    assert float(health.reached + health.to_bias + health.to_epsilon) == pytest.approx(1)
    assert "of the score reached the input" in repr(health)
    assert "times the relevance at the output" in repr(health)


def test_a_score_of_zero_is_said() -> None:
    model, x = two_layers([[1.0], [2.0]], [1.0, 1.0]), torch.tensor([[1.0], [-1.0]])
    with pytest.warns(plrp.UnhealthyExplanation, match="in 1 of 2 samples the score is 0.*another target"):
        explanation = plrp.explain(model, x, composite="epsilon")
    assert explanation.health.problems == [None, Problem.NO_SCORE]
    assert math.isnan(float(explanation.health.reached[1]))


def test_relevance_that_epsilon_takes_on_the_way_is_warned_of() -> None:
    """Activations far below ε = 1e-6, as in a deep network that was never trained: nothing arrives."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(3))).eval()
    with torch.no_grad():
        model[0].weight.mul_(1e-9)
        model[1].weight.mul_(0.1)
    with pytest.warns(plrp.UnhealthyExplanation, match="below 0.001 of the score.*trained"):
        explanation = plrp.explain(model, torch.randn(2, 8), composite="epsilon")
    assert explanation.health.problems == [Problem.VANISHED] * 2
    assert float(explanation.health.to_epsilon.min()) > 0.99
    assert "ε took" in repr(explanation.health)


def test_relevance_beyond_the_range_of_float32_is_warned_of() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(9))).eval()
    wild = plrp.Composite([(plrp.composites.is_any, plrp.rules.AlphaBeta(1e6, 1e6 - 1))])
    with pytest.warns(plrp.UnhealthyExplanation, match="in all 2 samples relevance is not finite.*do not cancel"):
        explanation = plrp.explain(model, torch.randn(2, 8), composite=wild)
    assert explanation.health.problems == [Problem.NOT_FINITE] * 2
    assert "relevance is not finite, most at '" in repr(explanation.health)


def test_bounds_are_met_exactly() -> None:
    score = torch.tensor([2.0, 2.0, 2.0, -2.0, 0.5])
    first = torch.tensor([1.0, 1.0, 1.0, 1.0, 3.0])
    mass = torch.tensor([2 * EXPLODED, 2.01 * EXPLODED, 2.01 * VANISHED, 1.99 * VANISHED, 3 * EXPLODED])
    assert verdicts(score, Scale(first, EXPLODED), mass) == [None, Problem.EXPLODED, None, Problem.VANISHED, None]
    assert verdicts(score[-1:], Scale(None, EXPLODED), mass[-1:]) == [Problem.EXPLODED]
    assert verdicts(score, Scale(first, EXPLODED_EPSILON), mass)[:2] == [None, None]


@pytest.mark.parametrize(
    ("composite", "bound"), [("epsilon", EXPLODED_EPSILON), ("epsilon-plus", EXPLODED), ("epsilon-gamma-box", EXPLODED)]
)
def test_relevance_may_grow_further_under_many_layers_of_epsilon(composite: str, bound: float) -> None:
    torch.manual_seed(0)
    convs = [layer for _ in range(5) for layer in (nn.Conv1d(4, 4, 3, padding=1), nn.ReLU())]
    model = nn.Sequential(*convs, nn.Flatten(), nn.Linear(32, 3)).eval()
    assert plrp.explain(model, torch.rand(2, 4, 8), composite=composite)._scale.bound == bound
    assert (bound_for(3), bound_for(4)) == (EXPLODED, EXPLODED_EPSILON)


# --- invariance, files, several inputs --------------------------------------------------------------------------------


def test_health_of_a_sample_does_not_depend_on_its_batch(stack: tuple[nn.Module, Tensor]) -> None:
    model, x = stack[0].double(), stack[1].double()
    with unwarned():
        whole = plrp.explain(model, x, composite="epsilon", pruning=M).health.records()
        pieces = plrp.explain(model, x, composite="epsilon", pruning=M, micro_batch=3).health.records()
        alone = [
            plrp.explain(model, x[n : n + 1], composite="epsilon", pruning=M).health.records()[0] for n in range(4)
        ]
    for together in (pieces, alone):
        for one, other in zip(whole, together, strict=True):
            for name, value in one.items():
                if name != "sample":
                    assert other[name] == (pytest.approx(value, rel=1e-5) if isinstance(value, float) else value), name


@pytest.mark.parametrize("prunings", [[plrp.Pruning(0.3), plrp.Pruning(0.5), plrp.Pruning(0.7)]])
def test_prunings_that_are_walked_together_are_judged_like_one_alone(prunings: list[plrp.Pruning]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Flatten(),
        nn.Linear(16 * 256, 5),
    ).eval()  # fmt: skip
    trace = plrp.trace(model, torch.rand(2, 3, 16, 16))
    for pruning, found in zip(prunings, trace.sweep(prunings), strict=True):
        alone = trace.explain(pruning=pruning)
        assert torch.allclose(found._scale.first, alone._scale.first, rtol=1e-5)
        assert found.verdicts() == alone.verdicts() == [None, None]


def test_a_stored_explanation_knows_its_health(stack: tuple[nn.Module, Tensor]) -> None:
    model, x = stack
    with unwarned():
        explanation = plrp.explain(model, x, composite="epsilon", pruning=M)
    loaded = pickle.loads(pickle.dumps(explanation))
    assert repr(loaded.health) == repr(explanation.health)
    assert loaded.health.records() == explanation.health.records()


def test_an_explanation_stored_by_an_older_version_still_loads(stack: tuple[nn.Module, Tensor]) -> None:
    explanation = plrp.explain(*stack, pruning=plrp.Pruning(0.1))
    old = copy.copy(explanation)
    state = explanation.__getstate__()
    del state["_scale"]
    for row in state["_ledger"]._rows:
        del row["tied"]
    old.__dict__ = pickle.loads(pickle.dumps(state))
    health = old.health
    assert health.healthy
    assert torch.equal(health.reached, explanation.health.reached)
    assert bool(health.tied.isnan().all())


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
    assert torch.allclose(explanation.health.reached, both.sum(1) / score)
    assert torch.allclose(explanation.health.mass_at_input, both.abs().sum(1) / score.abs())
    assert float(explanation.health.amplification.min()) >= 1


def test_an_empty_batch_is_no_problem() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).eval()
    assert repr(plrp.explain(model, torch.zeros(0, 4)).health) == "healthy: no samples"


def test_many_explanations_are_summed_up_in_a_sentence() -> None:
    assert summary([None] * 3, None) is None
    said = summary([None, Problem.EXPLODED, Problem.EXPLODED, Problem.NO_SCORE], M, "sequences")
    assert said is not None
    assert said.startswith("3 of 4 sequences are unhealthy (2 exploded, 1 without a score): prune with redistribution=")


@pytest.mark.parametrize("problem", Problem)
@pytest.mark.parametrize("pruning", [None, plrp.Pruning(), plrp.Pruning(conserve=False), M])
def test_advice_is_data_that_a_front_door_words(problem: Problem, pruning: plrp.Pruning | None) -> None:
    """The names of settings come from the wording alone: another wording changes nothing else of a sentence."""
    own = Wording("R", "L", "C({})", ("a", "b"))
    replaced = advice(problem, pruning)
    names = (PYTHON.redistribution, "R"), (PYTHON.prune_less, "L"), ("composite='epsilon-plus-flat'", "C(a) or C(b)")
    for python, word in names:
        replaced = replaced.replace(python, word)
    assert advice(problem, pruning, own) == replaced


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


def test_plrp_explain_says_which_variants_are_unhealthy_and_counts_photographs(
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
        warnings.simplefilter("error", plrp.UnhealthyExplanation)
        assert cli.main([*command, "--composite", "epsilon", "--method", "M", "-p", "0.2"]) == 0
    out, err = capsys.readouterr()
    unhealthy = out.count("  PLRP-M, p = 0.2 is unhealthy: Σ|R| grew to")
    assert unhealthy >= 1
    assert out.count("take --method lambda or M-sign, or prune less (a smaller -p)") == unhealthy
    assert "  LRP is unhealthy" not in out
    assert f"{unhealthy} of 2 photographs have unhealthy explanations" in err
    assert cli.main(command) == 0
    out, err = capsys.readouterr()
    assert "unhealthy" not in out + err


def test_plrp_genomics_explain_counts_unhealthy_sequences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    Path("network.py").write_text(NETWORK.format(imports="", first="nn.Conv1d(4, 16, 5)"))
    letters = torch.randint(4, (5, 40), generator=torch.Generator().manual_seed(0)).tolist()
    Path("a.fa").write_text("".join(f">s{n}\n{''.join('ACGT'[c] for c in row)}\n" for n, row in enumerate(letters)))
    command = "genomics explain a.fa --model network.py:build --no-match --part-size 2 --composite epsilon"
    with warnings.catch_warnings():
        warnings.simplefilter("error", plrp.UnhealthyExplanation)
        assert cli.main(f"{command} -p 0.2 --redistribution M --out m".split()) == 0
    assert " of 5 sequences are unhealthy (" in (said := capsys.readouterr().err)
    assert "exploded): take --redistribution lambda or M-sign" in said
    assert cli.main(f"{command} -p 0.2 --out lambda".split()) == 0
    assert "unhealthy" not in "".join(capsys.readouterr())
