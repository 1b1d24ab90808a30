"""Activations that are not zero at zero: φ(0) is a constant, and signs below are those that occlusion finds."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import oracles
import plrp
from plrp import rules
from plrp.composites import is_any, names
from plrp.tape.operations import Family

Step = Callable[[Tensor], Tensor]
WALKS: dict[str, Callable[[], AbstractContextManager[Any]]] = {"plain": plrp.plain_walk, "fast": nullcontext}
BOUNDS = torch.tensor([0.5, -1.0, 0.0, 2.0], dtype=torch.float64)

OFFSETS: dict[str, Step] = {
    "softplus": F.softplus,
    "softplus, scaled": lambda z: F.softplus(z, beta=2.0, threshold=5.0),
    "exp": torch.exp,
    "exp2": torch.exp2,
    "sigmoid": torch.sigmoid,
    "sigmoid in place": lambda z: (z * 1).sigmoid_(),
    "hardsigmoid": F.hardsigmoid,
    "logsigmoid": F.logsigmoid,
    "cos": torch.cos,
    "acos": lambda z: torch.acos(z / 9),
    "cosh": torch.cosh,
    "erfc": torch.erfc,
    "clamp": lambda z: z.clamp(min=0.5),
    "clamp by a tensor": lambda z: torch.clamp(z, min=BOUNDS),
    "clamp between": lambda z: z.clamp(-2.0, -0.5),
    "hardtanh": lambda z: F.hardtanh(z, 0.25, 2.0),
    "pow 0": lambda z: z.pow(0),
    "powers": lambda z: z.pow(torch.tensor([0.0, 2.0, 1.0, 3.0], dtype=torch.float64)),
    "σ (1 − σ)": lambda z: z.sigmoid() * (1 - z.sigmoid()),
    "σ (1 − σ) of one σ": lambda z: (lambda s: s * (1 - s))(z.sigmoid()),
    "σ · exp": lambda z: z.sigmoid() * (-0.3 * z).exp(),
    "exp · exp": lambda z: z.exp() * (-2 * z).exp(),
    "exp / (1 + exp)²": lambda z: (lambda e: e / (1 + e) ** 2)(z.exp()),
    "exp / (1 + exp), in place": lambda z: (lambda e: e.clone().div_(1 + e))(z.exp()),
    "by constants": lambda z: (z + BOUNDS).sigmoid() * (z * BOUNDS).cos(),
    "of a function by hand": lambda z: (lambda s: s * (1 - s) * (1 - 2 * s + 3 * s * s))(z.sigmoid()),
    "(1 + z) (1 − z)": lambda z: (1 + z) * (1 - z),
}


class Above(nn.Module):
    """A step on the input, and a layer above it."""

    def __init__(self, step: Step, width: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.step, self.above = step, nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.above(self.step(x))


INPUTS = torch.tensor([[-4.0, -1.5, -0.25, 0.0], [0.25, 1.0, 2.5, 4.0], [-3.5, 0.5, 0.0, -0.5]], dtype=torch.float64)


@pytest.mark.parametrize("walk", WALKS)
@pytest.mark.parametrize("rule", [rules.Epsilon(), rules.Flat()], ids=repr)
@pytest.mark.parametrize("name", OFFSETS)
def test_the_value_at_zero_takes_its_share(name: str, rule: rules.Rule, walk: str) -> None:
    """R_in = R (φ(z) − φ(0)) / φ(z), the rest is a constant's; all of R where φ(z) = 0, which ♭ above hands to it."""
    phi, model = OFFSETS[name], Above(OFFSETS[name]).double().eval()
    with WALKS[walk]():
        found = plrp.explain(model, INPUTS, target=0, composite=plrp.Composite([(is_any, rule)]), layers=True)
        closing = found.closing()
    r, y, at_zero = found.layers["above"], phi(INPUTS), phi(torch.zeros_like(INPUTS))
    constant = torch.where(y == 0, r, r * at_zero / torch.where(y == 0, 1.0, y))
    torch.testing.assert_close(found.relevance, torch.where(y == 0, 0.0, r * (y - at_zero) / y).nan_to_num())
    assert found.booked.total("absorbed_constant").tolist() == pytest.approx(constant.sum(1).tolist(), abs=1e-12)
    assert float(closing.max()) < 1e-12


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-30, 30), min_size=4, max_size=4), st.sampled_from(sorted(OFFSETS)))
def test_no_relevance_is_lost_or_made(entries: list[float], name: str) -> None:
    x = torch.tensor([entries], dtype=torch.float64)
    x = x / 4 if name == "acos" else x
    found = plrp.explain(Above(OFFSETS[name]).double().eval(), x, target=0, composite="epsilon")
    assert bool(found.relevance.isfinite().all())
    assert float(found.closing().max()) < 1e-9


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_value_at_zero_is_that_of_the_walks_precision(dtype: torch.dtype) -> None:
    """Where z = 0 nothing is handed down: φ(z) and φ(0) are of one precision."""
    found = plrp.explain(Above(F.softplus).to(dtype).eval(), torch.zeros(2, 4, dtype=dtype), composite="epsilon")
    assert found.relevance.dtype == torch.float32
    assert float(found.relevance.abs().max()) == 0.0
    assert float(found.closing().max()) < 1e-6


UNCHANGED: dict[str, Step] = {
    "relu": torch.relu, "gelu": F.gelu, "silu": F.silu, "tanh": torch.tanh, "leaky": F.leaky_relu, "abs": torch.abs,
    "square": torch.square, "pow": lambda z: z.pow(3), "clamp": lambda z: z.clamp(-1, 1), "hardtanh": F.hardtanh,
    "log1p": lambda z: torch.log1p(z.abs()), "x·σ(x)": lambda z: z * z.sigmoid(), "x·cos(x)": lambda z: z * z.cos(),
    "x·log|x|": lambda z: z * (z.abs() + 1).log(), "x·threshold(x)": lambda z: z * F.threshold(z, 0.1, 2.0),
    "x·x": lambda z: z * z, "tanh·σ": lambda z: z.tanh() * z.sigmoid(), "softsign": lambda z: z / (1 + z.abs()),
    "exp·relu": lambda z: (-z).exp() * z.relu(), "exp·2x": lambda z: (-z * z).exp() * (2 * z),
    "exp·(exp − 1)": lambda z: (-z).exp() * (z.exp() - 1), "(2σ − 1)·exp": lambda z: (2 * z.sigmoid() - 1) * (-z).exp(),
    "σ (1 − σ) (1 − 2σ)": lambda z: (lambda s: s * (1 - s) * (1 - 2 * s))(z.sigmoid()),
    "softplus·gelu": lambda z: F.softplus(-z) * F.gelu(z),
}  # fmt: skip


@pytest.mark.parametrize("name", UNCHANGED)
def test_activations_that_are_zero_at_zero_pass_all_of_it(name: str) -> None:
    found = plrp.explain(Above(UNCHANGED[name]).double().eval(), INPUTS, target=0, composite="epsilon", layers=True)
    assert torch.equal(found.relevance, found.layers["above"])
    assert found.booked.total("absorbed_constant").tolist() == [0.0] * 3


def test_a_value_by_itself_is_its_square() -> None:
    found, square = (
        plrp.explain(Above(step).double().eval(), INPUTS, target=0, composite="epsilon").relevance
        for step in (lambda z: (lambda s: s * s)(z.sigmoid()), lambda z: z.sigmoid() ** 2)
    )
    torch.testing.assert_close(found, square)


@pytest.mark.parametrize("step", [lambda z: F.normalize(z, dim=1) * z.exp(), lambda z: F.normalize(z).exp() * (1 - z)])
def test_a_statistic_is_no_function_of_one_value(step: Step) -> None:
    assert float(plrp.explain(Above(step).double().eval(), INPUTS, composite="epsilon").closing().max()) < 1e-9


def test_a_rule_pass_of_the_users_stays_a_plain_pass() -> None:
    model = Above(torch.sigmoid).double().eval()
    for key in (torch.sigmoid, "sigmoid"):
        found = plrp.explain(model, INPUTS, target=0, composite="epsilon", layers=True, rules={key: "pass"})
        assert torch.equal(found.relevance, found.layers["above"])


def test_a_users_rule_within_a_product_is_not_passed_over() -> None:
    model = Above(lambda z: (lambda s: s * (1 - s))(z.sigmoid())).double().eval()
    for key in (torch.sigmoid, "sigmoid"):
        rules = {key: lambda r, output, z: r * 0 + 7}
        found = plrp.explain(model, INPUTS, target=0, composite="epsilon", rules=rules)
        assert torch.equal(found.relevance, torch.full_like(INPUTS, 7.0))


def test_a_gate_after_a_shift_stays_one_and_the_shift_takes_its_share() -> None:
    """x σ(x) of x = h + c is nn.SiLU there, though it is not 0 where h is."""
    torch.manual_seed(0)
    below, above, x = nn.Linear(4, 4).double(), nn.Linear(4, 3).double(), torch.randn(3, 4, dtype=torch.float64)
    maps = [
        plrp.explain(lambda x, phi=phi: above(phi(below(x) + BOUNDS)), x, composite="epsilon-plus", target=0).relevance
        for phi in (F.silu, lambda h: h * h.sigmoid())
    ]
    torch.testing.assert_close(*maps)


def test_a_logarithm_of_a_sigmoid_is_no_gate_but_may_have_one() -> None:
    """h · σ(h) of h = log σ(z): relevance goes to h, whose value at 0 takes its share."""
    z = torch.tensor([[-1.5, -0.4, 0.7, 2.0]], dtype=torch.float64)
    eye = torch.eye(4, dtype=torch.float64)

    def gated(x: Tensor) -> Tensor:
        h = F.logsigmoid(x @ eye)
        return (h * (1.5 * h).sigmoid()).sum(1, keepdim=True)

    found = plrp.explain(gated, z, target=0, composite="epsilon").relevance
    expected = (1.5 * F.logsigmoid(z)).sigmoid() * (F.logsigmoid(z) + math.log(2))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_a_product_of_functions_that_is_not_finite_at_zero_is_refused() -> None:
    """z / (exp z − 1) falls, and the map said that it rises."""
    with pytest.raises(plrp.UnsupportedOperation, match="not finite at 0"):
        plrp.explain(Above(lambda z: z / z.expm1()).double().eval(), INPUTS[1:2], composite="epsilon")


def test_a_hidden_number_within_a_product_is_noticed() -> None:
    @torch.jit.script
    def hidden(z: Tensor) -> Tensor:
        return z.sum(1, keepdim=True)

    model = Above(lambda z: (lambda s: s * (3 - s))(z.sigmoid() + hidden(z))).double().eval()
    with pytest.raises(plrp.UnsupportedOperation, match="not on the tape"):
        plrp.explain(model, INPUTS, target=0, composite="epsilon")


REFUSED: dict[str, Step] = {
    "log": lambda z: torch.log(z.abs() + 1),
    "log2": lambda z: torch.log2(z.abs() + 1),
    "log10": lambda z: torch.log10(z.abs() + 1),
    "pow": lambda z: (z.abs() + 1).pow(-1),
    "pow#2": lambda z: (z.abs() + 1).pow(1).pow(torch.tensor([-1.0, 1.0, 2.0, 0.0], dtype=torch.float64)),
    "reciprocal": lambda z: torch.reciprocal(z.abs() + 1),
    "rsqrt": lambda z: (z.abs() + 1).rsqrt(),
}


@pytest.mark.parametrize("name", REFUSED)
def test_functions_that_are_not_finite_at_zero_are_refused(name: str) -> None:
    model = Above(REFUSED[name]).double().eval()
    with pytest.raises(plrp.UnsupportedOperation, match=rf"not finite at 0.*log1p.*rules=\{{'{name}': rule\}}"):
        plrp.explain(model, INPUTS, composite="epsilon")
    found = plrp.explain(model, INPUTS, target=0, composite="epsilon", rules={name: lambda r, output, z: r})
    assert float(found.closing().max()) < 1e-9
    with pytest.raises(plrp.UnsupportedOperation, match="not finite at 0"):
        plrp.explain(Above(torch.relu).double().eval(), INPUTS, target=lambda o: (o.exp() + 1).log()[:, 0])


def test_they_serve_as_a_gate() -> None:
    """No relevance goes there: a spread that is held constant."""
    model = Above(lambda z: z * (z.square().mean(-1, keepdim=True) + 1e-6).rsqrt()).double().eval()
    found = plrp.explain(model, INPUTS, target=0, composite="epsilon", layers=True)
    assert torch.equal(found.relevance, found.layers["above"])


# --- the signs below --------------------------------------------------------------------------------------------------


class Sums(nn.Module):
    """A layer of one input per neuron, a layer of two neurons with weights of mostly one sign, φ, and their sum."""

    def __init__(self, phi: Step, sign: float) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.phi, self.first = phi, nn.Conv1d(9, 9, 1, groups=9, bias=False)
        self.second, self.third = nn.Conv1d(9, 2, 1, bias=False), nn.Linear(2, 1, bias=False)
        self.first.weight.data.fill_(1.0)
        row = sign * torch.linspace(-0.1, 0.8, 9)
        self.second.weight.data = torch.stack([row, 0.9 * row])[:, :, None]
        self.third.weight.data.fill_(1.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.third(self.phi(self.second(torch.relu(self.first(x)))).flatten(1))


def occluded(model: nn.Module, x: Tensor) -> Tensor:
    """By how much the score of x (1, n, 1) falls where each input is set to zero, (n,)."""
    n = x.shape[1]
    without = x.repeat(n, 1, 1) * (1 - torch.eye(n, dtype=x.dtype))[:, :, None]
    with torch.no_grad():
        return (model(x) - model(without))[:, 0]


def rank_correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's, by mean ranks of ties."""
    ranks = [(v[:, None] > v).sum(1) + ((v[:, None] == v).sum(1) - 1) / 2 for v in (a, b)]
    return float(torch.corrcoef(torch.stack(ranks))[0, 1])


SIGNED: dict[str, Step] = {
    "softplus": F.softplus,
    "exp": torch.exp,
    "100 sigmoid": lambda z: 100 * z.sigmoid(),
    "sigmoid of the negative": lambda z: (-z).sigmoid(),
    "logsigmoid": F.logsigmoid,
    "sigmoid of tanh": lambda z: torch.tanh(z).sigmoid(),
    "σ (1 − σ)": lambda z: (lambda s: s * (1 - s))(z.sigmoid()),
    "exp · exp": lambda z: z.exp() * (-2 * z).exp(),
    "exp / (1 + exp)²": lambda z: (lambda e: e / (1 + e) ** 2)(z.exp()),
    "(1 + σ) (2 − σ)": lambda z: (lambda s: s * (3 - s))(1 + z.sigmoid()),
    "elu + 1": lambda z: F.elu(z) + 1,
    "(tanh + 1) / 2": lambda z: (1 + z.tanh()) / 2,
    "(1 + z) (1 − z)": lambda z: (1 + z) * (1 - z),
}


@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("composite", names())
@pytest.mark.parametrize("name", SIGNED)
def test_relevance_has_the_sign_and_order_of_occlusion(name: str, composite: str, sign: float) -> None:
    """Before, the map of softplus, exp and sigmoid was exactly the inverse of it where z < 0."""
    model = Sums(SIGNED[name], sign).double().eval()
    x = torch.linspace(0.4, 1.0, 9, dtype=torch.float64).flip(0)[None, :, None]
    if "alpha2" in composite:
        with pytest.raises(plrp.UnsupportedOperation, match=r"turn signs in layer 'second'.*is not 0 at 0.*epsilon"):
            plrp.explain(model, x, target=0, composite=composite)
        return
    for walk in WALKS.values():
        with walk():
            box = {"low": 0.0, "high": 1.0} if "box" in composite else {}
            found = plrp.explain(model, x, target=0, composite=plrp.composite(composite, **box))
            assert float(found.closing().max()) < 1e-12
        assert rank_correlation(found.relevance[0, :, 0], occluded(model, x)) > 0.9


class Chained(nn.Module):
    """A convolution whose output reaches a sigmoid through a step."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.step = nn.Conv1d(2, 6, 3), nn.Conv1d(6, 6, 3, padding=1), step
        self.norm, self.last = nn.BatchNorm1d(6), nn.LazyLinear(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.step(self.norm(self.second(torch.relu(self.first(x))))).flatten(1))


BELOW: dict[str, tuple[Step, bool]] = {
    "nothing": (torch.sigmoid, True),
    "a view": (lambda h: h.flatten(1).sigmoid(), True),
    "a scale": (lambda h: (-3 * h).exp(), True),
    "a shift": (lambda h: F.softplus(h + 1), True),
    "a pool": (lambda h: F.avg_pool1d(h, 2).sigmoid(), True),
    "a maximum": (lambda h: F.max_pool1d(h, 2).sigmoid(), True),
    "a sum": (lambda h: (h + h.flip(1)).cos(), True),
    "a norm": (lambda h: F.layer_norm(h, h.shape[-1:]).sigmoid(), True),
    "a GELU": (lambda h: F.gelu(h).sigmoid(), True),
    "one of several readers": (lambda h: h.relu() + h.exp(), True),
    "a ReLU": (lambda h: h.relu().sigmoid(), False),
    "a ReLU and more": (lambda h: F.max_pool1d(2 * h.relu(), 2).exp(), False),
    "a gate": (lambda h: h * h.sigmoid(), False),
    "a clamp that is flat below 0": (lambda h: h.clamp(min=0.1), False),
    "an activation that is 0 at 0": (torch.tanh, False),
    "a shift of an activation": (lambda h: 1 - h.tanh(), True),
    "a shift of a ReLU": (lambda h: 1 + h.relu(), False),
}


@pytest.mark.parametrize("name", BELOW)
def test_zplus_takes_the_sign_of_outputs_that_such_an_activation_reads(name: str) -> None:
    step, signed = BELOW[name]
    model, x = Chained(step), torch.randn(2, 2, 9)
    model(x)
    model.eval()
    trace, composite = plrp.trace(model, x), plrp.composite("epsilon-plus")
    lines = composite.table(trace).splitlines()
    assert any(line.split() == ["second", "⇒", "SignedZPlus()" if signed else "ZPlus()"] for line in lines)
    assert any(line.split() == ["first", "⇒", "ZPlus()"] for line in lines)
    assert "SignedZPlus()" not in repr(composite)
    found = trace.explain(composite=composite)
    assert {row["rule"] for row in found.ledger if row["layer"] == "second"} == {
        "SignedZPlus()" if signed else "ZPlus()"
    }
    assert plrp.check(model, x).composites == tuple(n for n in names() if not (signed and "alpha" in n))


def test_a_box_below_such_an_activation_is_refused() -> None:
    """Its contributions are all ≥ 0, so that outputs z < 0 would credit the inputs that raise z."""
    model, x = (
        nn.Sequential(nn.Conv1d(2, 6, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(30, 2)).eval(),
        torch.rand(1, 2, 7),
    )
    with pytest.raises(plrp.UnsupportedOperation, match=r"ZBox.* would turn signs in layer '0': the sigmoid above it"):
        plrp.explain(model, x, composite="epsilon-gamma-box")
    assert "epsilon-gamma-box" not in plrp.check(model, x).composites
    model[1] = nn.Tanh()
    assert "epsilon-gamma-box" in plrp.check(model, x).composites


def test_tables_name_the_layers_that_a_composite_refuses() -> None:
    """They raised the refusal itself, and a table shows what is wrong."""
    model, x = Sums(F.softplus, -1.0).double().eval(), torch.rand(2, 9, 1, dtype=torch.float64)
    trace, composite = plrp.trace(model, x), plrp.composite("epsilon-alpha2-beta1")
    refusal = "none: AlphaBeta(alpha=2, beta=1) would turn signs in layer 'second': the softplus above it"
    assert any(line.startswith("second") and refusal in line for line in composite.table(trace).splitlines())
    rows = {row[0]: row[3] for row in trace.rows(composite)}
    assert rows["second"].startswith(refusal)
    assert rows["first"] == "AlphaBeta(alpha=2, beta=1)"


def test_alpha_without_beta_is_zplus_there_and_a_rule_keeps_its_epsilon() -> None:
    model, x = Sums(torch.sigmoid, -1.0).double().eval(), torch.rand(2, 9, 1, dtype=torch.float64)
    found = [
        plrp.explain(model, x, target=0, composite=plrp.Composite([(is_any, rule)]))
        for rule in (rules.AlphaBeta(1, 0, 0.01), rules.ZPlus(0.01), rules.SignedZPlus(0.01))
    ]
    assert torch.equal(found[0].relevance, found[1].relevance)
    assert {row["rule"] for row in found[1].ledger if row["layer"] == "second"} == {"SignedZPlus(epsilon=0.01)"}
    assert float((found[1].relevance - found[2].relevance).abs().max()) < 1e-9  # the other layers have outputs ≥ 0


@pytest.mark.parametrize("redistribution", ["lambda", "M", "M-sign"])
@pytest.mark.parametrize("walk", WALKS)
def test_pruning_conserves_below_such_activations_and_p_0_is_lrp(walk: str, redistribution: str) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv1d(2, 8, 3), nn.Softplus(), nn.Conv1d(8, 8, 3, padding=1), nn.Sigmoid(), nn.Conv1d(8, 6, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(6 * 8, 2),
    ).double().eval()  # fmt: skip
    x = torch.randn(3, 2, 12, dtype=torch.float64)
    prunings = [None, *(plrp.Pruning(p, redistribution=redistribution) for p in (0.0, 0.3))]
    with WALKS[walk]():
        plain, none, pruned = (plrp.explain(model, x, composite="epsilon-plus", pruning=how) for how in prunings)
        oracles.assert_ledger_closes(pruned, pruned.score, 1e-10)
    assert torch.equal(none.relevance, plain.relevance)
    rows = [row for row in pruned.ledger if row["op"] == "prune"]
    assert all(row["neurons_after"] < row["neurons_before"] for row in rows if row["neurons_before"] > 2)


def test_hypothetical_scores_follow_the_signed_rule() -> None:
    """They are the relevance itself for the letters that are there."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(4, 5, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(5 * 8, 2)).eval()
    options = {"composite": "epsilon-plus", "target": 0}
    plain, absent_too = (
        plrp.genomics.explain_sequences(model, ["ACGTTGCAAC"], **options, hypothetical=hypothetical)
        for hypothetical in (False, True)
    )
    there = plrp.genomics.encode(["ACGTTGCAAC"]) > 0
    assert absent_too.relevance[there] == pytest.approx(plain.relevance[there], rel=1e-4, abs=1e-6)
    assert plain.relevance[there].any()


# --- targets and heads ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phi", [torch.sigmoid, torch.exp, F.softplus])
def test_a_target_may_end_in_such_an_activation(phi: Step) -> None:
    """φ(z) − φ(0) is shared out below z, by ε in proportion to the contributions; φ(0) is booked."""
    torch.manual_seed(0)
    layer, x = nn.Linear(5, 2).double().eval(), torch.randn(4, 5, dtype=torch.float64)
    trace = plrp.trace(layer, x)
    before = trace.explain(target=0, composite="epsilon-plus").relevance
    found = trace.explain(target=lambda o: phi(o)[:, 0], composite="epsilon")
    z = layer(x)[:, 0].detach()
    risen = phi(z) - phi(torch.zeros_like(z))
    expected = x * layer.weight[0].detach() * (risen / oracles.stabilise(z))[:, None]
    torch.testing.assert_close(found.relevance, expected)
    assert found.booked.total("absorbed_constant").tolist() == pytest.approx((phi(z) - risen).tolist())
    signed = trace.explain(target=lambda o: phi(o)[:, 0], composite=plrp.Composite([(is_any, rules.ZPlus())]))
    assert {row["rule"] for row in signed.ledger if row["op"] == "linear"} == {"SignedZPlus()"}
    assert torch.equal(trace.explain(target=0, composite="epsilon-plus").relevance, before)  # no mark is left behind


@pytest.mark.parametrize("end", [nn.Softplus(), nn.Softplus(beta=3), torch.exp, lambda z: z.exp().squeeze(-1)])
def test_a_final_softplus_or_exp_is_left_out_and_named(end: Any) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 1)).eval(), torch.randn(3, 4)
    found = plrp.explain(lambda x: end(model(x)), x, composite="epsilon", target=lambda o: o.reshape(-1))
    expected = plrp.explain(model, x, composite="epsilon", target=lambda o: o.reshape(-1))
    assert torch.equal(found.relevance, expected.relevance)
    assert found.head in ("softplus", "exp")
    assert f"relevance starts before the model's final {found.head}" in str(found)


# --- not element by element -------------------------------------------------------------------------------------------


def test_a_threshold_passes_its_input_and_books_its_constant() -> None:
    for inplace in (False, True):
        model = Above(nn.Sequential(nn.Identity(), nn.Threshold(0.5, 20.0, inplace))).double().eval()
        found = plrp.explain(model, INPUTS.clone(), target=0, composite="epsilon", layers=True)
        r, passes = found.layers["above"], INPUTS > 0.5
        assert torch.equal(found.relevance, torch.where(passes, r, 0.0))
        booked = found.booked.total("absorbed_constant").tolist()
        assert booked == pytest.approx(torch.where(passes, 0.0, r).sum(1).tolist())
        assert float(found.closing().max()) < 1e-12


@pytest.mark.parametrize("mode", ["floor", "trunc"])
def test_rounded_quotients_are_refused(mode: str) -> None:
    for step in (lambda z: torch.div(z, 0.3, rounding_mode=mode), lambda z: z // 0.3):
        with pytest.raises(plrp.UnsupportedOperation, match="div"):
            plrp.explain(Above(step).double().eval(), INPUTS, composite="epsilon")
    plain = Above(lambda z: torch.div(z, 0.3, rounding_mode=None)).double().eval()
    assert float(plrp.explain(plain, INPUTS, composite="epsilon").closing().max()) < 1e-12


def test_a_norm_of_the_input_is_held_constant() -> None:
    """x / ‖x‖ and the local response norm: relevance stays where it is, and samples are not mixed."""
    steps: list[Step] = [
        F.normalize,
        lambda z: F.normalize(z, p=1.0, dim=-1),
        lambda z: F.local_response_norm(z[:, :, None], 2)[:, :, 0],
    ]
    for step in steps:
        found = plrp.explain(Above(step).double().eval(), INPUTS, target=0, composite="epsilon", layers=True)
        assert torch.equal(found.relevance, found.layers["above"])
    mixed: list[Step] = [
        lambda z: F.normalize(z, dim=0),
        lambda z: F.normalize(z.T[None], dim=2)[0].T,
        lambda z: F.local_response_norm(z.T[None].transpose(1, 2), 2)[0],
    ]
    for step in mixed:
        with pytest.raises(plrp.UnsupportedOperation, match="mixes the samples of the batch"):
            plrp.explain(Above(step).double().eval(), INPUTS, composite="epsilon")


def test_the_signal_of_a_glu_takes_all() -> None:
    for dim in (-1, 1):
        model = Above(lambda z, dim=dim: F.glu(z, dim), 2).double().eval()
        found = plrp.explain(model, INPUTS, target=0, composite="epsilon", layers=True)
        expected = torch.cat([found.layers["above"], torch.zeros(3, 2, dtype=torch.float64)], 1)
        assert torch.equal(found.relevance, expected)
        torch.testing.assert_close(found.logits, model(INPUTS))
    with pytest.raises((plrp.UnsupportedOperation, ValueError), match=r"samples|batch"):
        plrp.explain(Above(lambda z: F.glu(z, 0)).double().eval(), INPUTS[:2], composite="epsilon")


# --- a softmax written by hand ----------------------------------------------------------------------------------------


def by_sum(z: Tensor) -> Tensor:
    return z.exp() / z.exp().sum(-1, keepdim=True)


def less_the_maximum(z: Tensor) -> Tensor:
    e = (z - z.max(-1, keepdim=True).values).exp()
    return e / e.sum(-1, keepdim=True)


def of_one_exponential(z: Tensor) -> Tensor:
    e = torch.exp(z)
    return e / e.sum(-1, keepdim=True)


def by_a_view(z: Tensor) -> Tensor:
    e = torch.exp(z - z.amax(-1)[..., None])
    return e / e.sum(-1).unsqueeze(-1)


def by_reciprocal(z: Tensor) -> Tensor:
    e = torch.exp(z - z.amax(-1, keepdim=True))
    return (1 / e.sum(-1, keepdim=True)) * e


def in_place(z: Tensor) -> Tensor:
    e = torch.exp(z)
    e /= e.sum(-1, keepdim=True) + 1e-9
    return e


def by_logsumexp(z: Tensor) -> Tensor:
    return (z - z.logsumexp(-1, keepdim=True)).exp()


def by_normalize(z: Tensor) -> Tensor:
    return F.normalize((z - z.amax(-1, keepdim=True)).exp(), p=1, dim=-1)


BY_HAND = [by_sum, less_the_maximum, of_one_exponential, by_a_view, by_reciprocal, in_place, by_logsumexp, by_normalize]


class Weighing(nn.Module):
    """Scores, their softmax, and a use of it."""

    def __init__(self, softmax: Step, use: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.scores, self.values, self.last = nn.Linear(5, 4), nn.Linear(5, 4), nn.Linear(4, 3)
        self.softmax, self.use = softmax, use

    def forward(self, x: Tensor) -> Tensor:
        weights = self.softmax(self.scores(x))
        if self.use == "head":
            return weights
        return self.last(weights * self.values(x) if self.use == "gate" else weights)


SCORED = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
USES = [("head", "epsilon"), ("inner", "attnlrp"), ("gate", "epsilon"), ("gate", "attnlrp")]


@pytest.mark.parametrize(("use", "composite"), USES)
@pytest.mark.parametrize("softmax", BY_HAND)
def test_a_softmax_written_by_hand_is_explained_as_one(softmax: Step, use: str, composite: str) -> None:
    options: dict[str, Any] = {"target": 1, "composite": composite}
    found = plrp.explain(Weighing(softmax, use).double().eval(), SCORED, **options)
    expected = plrp.explain(Weighing(lambda z: z.softmax(-1), use).double().eval(), SCORED, **options)
    torch.testing.assert_close(found.relevance, expected.relevance, rtol=1e-7, atol=1e-9)
    assert found.head == expected.head == ("softmax" if use == "head" else None)
    assert float(found.closing().max()) < 1e-8


@pytest.mark.parametrize("softmax", BY_HAND)
def test_inside_it_is_refused_where_a_softmax_is(softmax: Step) -> None:
    with pytest.raises(plrp.UnsupportedOperation, match=r"No rule for `torch\.softmax`.*neither.*last step.*attnlrp"):
        plrp.explain(Weighing(softmax, "inner").double().eval(), SCORED, composite="epsilon")


def masked(z: Tensor) -> Tensor:
    e = z.exp() * torch.tensor([1.0, 0.0, 1.0, 1.0], dtype=z.dtype)
    return e / e.sum(-1, keepdim=True)


def over_two_axes(z: Tensor) -> Tensor:
    e = z.view(-1, 2, 2).exp()
    return (e / e.sum((1, 2), keepdim=True)).flatten(1)


def of_base_2(z: Tensor) -> Tensor:
    return torch.exp2(z) / torch.exp2(z).sum(-1, keepdim=True)


def scaled(z: Tensor) -> Tensor:
    return 8 * z.exp() / z.exp().sum(-1, keepdim=True)


def by_mean(z: Tensor) -> Tensor:
    return z.exp() / z.exp().mean(-1, keepdim=True)


def by_average(z: Tensor) -> Tensor:
    return z.exp() / F.adaptive_avg_pool1d(z.exp()[:, None], 1)[:, 0]


def of_squares(z: Tensor) -> Tensor:
    return z.exp() ** 2 / (z.exp() ** 2).sum(-1, keepdim=True)


def of_expm1(z: Tensor) -> Tensor:
    e = z.expm1() + 1
    return e / e.sum(-1, keepdim=True)


def scaled_and_normalized(z: Tensor) -> Tensor:
    return F.normalize(8 * z.exp(), p=1, dim=-1)


def beside_a_zero(z: Tensor) -> Tensor:
    return z.exp() / (1 + z.exp().sum(-1, keepdim=True))


OTHERS = [masked, over_two_axes, of_base_2, scaled, by_mean, by_average, of_squares, of_expm1, scaled_and_normalized]
OTHERS += [beside_a_zero]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("softmax", [*BY_HAND, *OTHERS[2:]])
def test_in_half_precision_none_is_taken_for_another_function(softmax: Step, dtype: torch.dtype) -> None:
    """Rows of 1000 entries: their sum is one up to rounding alone."""
    model = nn.Sequential(nn.Linear(5, 1000), Above(softmax, 1000)).to(dtype).eval()
    with pytest.raises(plrp.UnsupportedOperation, match=r"a softmax (that is neither|written by hand)"):
        plrp.explain(model, SCORED.to(dtype), composite="epsilon")


@pytest.mark.parametrize("softmax", OTHERS)
def test_other_softmaxes_written_by_hand_are_gates_or_refused(softmax: Step) -> None:
    for use, composite in (("inner", "attnlrp"), ("inner", "epsilon"), ("head", "epsilon")):
        with pytest.raises(plrp.UnsupportedOperation, match="a softmax written by hand"):
            plrp.explain(Weighing(softmax, use).double().eval(), SCORED, composite=composite)
    found = plrp.explain(Weighing(softmax, "gate").double().eval(), SCORED, composite="epsilon", layers=True)
    assert "scores" not in {row["layer"] for row in found.ledger}


def test_one_over_the_samples_mixes_them() -> None:
    with pytest.raises(plrp.UnsupportedOperation, match="mixes the samples"):
        plrp.explain(Weighing(lambda z: z.exp() / z.exp().sum(0), "inner").double().eval(), SCORED, composite="attnlrp")


def test_an_exponential_that_is_scaled_otherwise_is_no_softmax() -> None:
    for softmax in (lambda z: z.exp() / z.exp().amax(-1, keepdim=True), lambda z: (z - z.amax(-1, keepdim=True)).exp()):
        trace = plrp.trace(Weighing(softmax, "inner").double().eval(), SCORED)
        assert all(op.kind != "softmax" for op in trace.ops)
        assert next(op.family for op in trace.ops if op.kind == "exp") is Family.OFFSET


@pytest.mark.parametrize("function", [lambda h: (-h.square()).exp(), lambda h: h.abs().sigmoid()])
def test_square_and_abs_below_an_offset_carry_relevance_of_outputs_below_zero(function: Any) -> None:
    """z = −0.7: z⁺ takes the negative contributions, as where the square is written h ** 2; αβ is refused."""
    conv = nn.Conv1d(1, 1, 3, bias=False)
    conv.weight.data = torch.tensor([[[-1.0, 0.5, -0.2]]])

    def model(x: Tensor) -> Tensor:
        return 2 * function(conv(x)).flatten(1)

    def explained(composite: str) -> Tensor:
        return plrp.explain(model, torch.ones(1, 1, 3), target=lambda o: o[:, 0], composite=composite).relevance

    relevance = explained("epsilon-plus").flatten()
    assert relevance[1] == 0
    assert torch.allclose(relevance[2] / relevance[0], torch.tensor(0.2))
    with pytest.raises(plrp.UnsupportedOperation, match="not 0 at 0"):
        explained("epsilon-alpha2-beta1")
