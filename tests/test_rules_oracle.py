"""Every rule on every linear operation equals its formula on the operation's explicit matrix, in float64."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import oracles
import plrp
from plrp import rules

RULES = {
    "zero": (lambda: rules.Zero(), "zero", {}),
    "epsilon": (lambda: rules.Epsilon(), "epsilon", {}),
    "epsilon-large": (lambda: rules.Epsilon(epsilon=0.25), "epsilon", {"epsilon": 0.25}),
    "gamma": (lambda: rules.Gamma(), "gamma", {"gamma": 0.25}),
    "gamma-large": (lambda: rules.Gamma(3.0, epsilon=0.25), "gamma", {"gamma": 3.0, "epsilon": 0.25}),
    "alpha2-beta1": (lambda: rules.AlphaBeta(), "alphabeta", {"alpha": 2.0, "beta": 1.0}),
    "alpha1-beta0": (lambda: rules.AlphaBeta(alpha=1, beta=0), "alphabeta", {"alpha": 1.0, "beta": 0.0}),
    "alpha3-beta2": (
        lambda: rules.AlphaBeta(alpha=3, beta=2, epsilon=0.25),
        "alphabeta",
        {"alpha": 3.0, "beta": 2.0, "epsilon": 0.25},
    ),
    "zplus": (lambda: rules.ZPlus(), "zplus", {}),
    "signed-zplus": (lambda: rules.SignedZPlus(), "signed-zplus", {}),
    "zbox": (lambda: rules.ZBox(-4.6, 5.1, epsilon=0.25), "zbox", {"low": -4.6, "high": 5.1, "epsilon": 0.25}),
    "flat": (lambda: rules.Flat(), "flat", {}),
    "wsquare": (lambda: rules.WSquare(), "wsquare", {}),
}

# name: (module without its bias argument, shape of one input)
OPS = {
    "conv1d": (lambda b: nn.Conv1d(2, 3, 3, bias=b), (2, 7)),
    "conv1d-stride-padding": (lambda b: nn.Conv1d(2, 3, 4, stride=3, padding=2, bias=b), (2, 8)),
    "conv1d-same-even": (lambda b: nn.Conv1d(2, 3, 4, padding="same", bias=b), (2, 6)),
    "conv1d-valid": (lambda b: nn.Conv1d(2, 3, 3, padding="valid", bias=b), (2, 6)),
    "conv1d-same-dilated": (lambda b: nn.Conv1d(2, 2, 3, padding="same", dilation=2, bias=b), (2, 7)),
    "conv1d-groups": (lambda b: nn.Conv1d(4, 6, 3, padding=1, groups=2, bias=b), (4, 5)),
    "conv2d": (lambda b: nn.Conv2d(2, 3, 3, bias=b), (2, 5, 4)),
    "conv2d-stride-padding": (
        lambda b: nn.Conv2d(2, 3, (3, 2), stride=(2, 1), padding=(1, 0), bias=b),
        (2, 5, 4),
    ),
    "conv2d-uneven-stride": (lambda b: nn.Conv2d(2, 2, 2, stride=3, bias=b), (2, 6, 7)),  # last rows unread
    "conv2d-same": (lambda b: nn.Conv2d(2, 2, (2, 3), padding="same", bias=b), (2, 4, 4)),
    "conv2d-dilation": (lambda b: nn.Conv2d(2, 2, 2, dilation=(2, 3), padding=1, bias=b), (2, 5, 5)),
    "conv2d-depthwise": (lambda b: nn.Conv2d(3, 6, 3, padding=1, groups=3, bias=b), (3, 4, 4)),
    "conv2d-pointwise": (lambda b: nn.Conv2d(4, 3, 1, bias=b), (4, 3, 3)),
    "conv3d": (lambda b: nn.Conv3d(2, 2, 2, padding=1, bias=b), (2, 3, 3, 3)),
    "conv3d-stride-dilation-groups": (
        lambda b: nn.Conv3d(2, 4, (1, 2, 2), stride=(1, 2, 1), dilation=(1, 1, 2), groups=2, bias=b),
        (2, 2, 4, 4),
    ),
    "transposed1d": (lambda b: nn.ConvTranspose1d(2, 3, 3, bias=b), (2, 5)),
    "transposed1d-all": (
        lambda b: nn.ConvTranspose1d(4, 4, 3, stride=3, padding=1, output_padding=1, groups=2, dilation=2, bias=b),
        (4, 4),
    ),
    "transposed2d": (
        lambda b: nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1, output_padding=1, bias=b),
        (2, 3, 3),
    ),
    "transposed2d-groups": (lambda b: nn.ConvTranspose2d(4, 2, 2, groups=2, bias=b), (4, 3, 3)),
    "transposed3d": (lambda b: nn.ConvTranspose3d(2, 2, 2, stride=2, bias=b), (2, 2, 2, 2)),
    "linear": (lambda b: nn.Linear(6, 5, bias=b), (6,)),
    "linear-3d": (lambda b: nn.Linear(4, 3, bias=b), (3, 4)),
    "linear-4d": (lambda b: nn.Linear(4, 3, bias=b), (2, 3, 4)),
}


class Head(nn.Module):
    """An operation below a linear head of one output: relevance of mixed sign reaches the operation."""

    def __init__(self, op: nn.Module, shape: tuple[int, ...], rectified: bool = False) -> None:
        super().__init__()
        self.op = op
        self.rectified = rectified
        with torch.no_grad():
            size = op(torch.zeros(1, *shape, dtype=torch.float64)).numel()
        self.head = nn.Linear(size, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.rectified:
            x = F.relu(x)
        return self.head(self.op(x).flatten(1))


def single_rule(rule: rules.Rule) -> plrp.Composite:
    return plrp.Composite([(plrp.composites.is_any, rules.Zero())], layers={"op": rule}, name="one rule")


def prepared(op_name: str, bias: bool, rectified: bool = False) -> tuple[Head, Tensor]:
    build, shape = OPS[op_name]
    torch.manual_seed(sum(map(ord, op_name)) + bias)
    model = Head(build(bias).double(), shape, rectified).double().eval()
    return model, torch.randn(2, *shape, dtype=torch.float64)


def expected_below(model: Head, x: Tensor, upper: Tensor, rule: str, options: dict) -> Tensor:
    """Relevance at the op's input by the matrix formula, given the relevance `upper` of its output."""
    step = oracles.linear_step("op", "x", model.op, tuple(x.shape[1:]))
    activations = x.clamp(min=0) if model.rectified else x
    rows = [
        oracles.hand_down(
            oracles.branches(rule, a.reshape(-1), step.matrix, step.bias, step.ones, **options), r.reshape(-1)
        ).relevance
        for a, r in zip(activations, upper, strict=True)
    ]
    return torch.stack(rows).reshape(x.shape)


@pytest.mark.parametrize("rectified", [False, True], ids=["mixed-sign", "after-relu"])
@pytest.mark.parametrize("bias", [False, True], ids=["no-bias", "bias"])
@pytest.mark.parametrize("op_name", OPS)
@pytest.mark.parametrize("rule_name", RULES)
def test_a_rule_on_a_linear_operation_equals_its_matrix_formula(rule_name, op_name, bias, rectified):
    make_rule, oracle_rule, options = RULES[rule_name]
    model, x = prepared(op_name, bias, rectified)
    explanation = plrp.explain(model, x, target=0, composite=single_rule(make_rule()), layers=True)
    upper = explanation.layers["head"]
    assert bool((upper > 0).any())
    assert bool((upper < 0).any())
    expected = expected_below(model, x, upper, oracle_rule, options)
    assert explanation.relevance.shape == x.shape
    assert oracles.relative_difference(explanation.relevance, expected) < 1e-9


@pytest.mark.parametrize("bias", [False, True], ids=["no-bias", "bias"])
@pytest.mark.parametrize("op_name", OPS)
@pytest.mark.parametrize("rule_name", ["epsilon", "zplus", "alpha2-beta1", "wsquare", "zbox", "flat"])
def test_the_ledger_row_of_a_linear_operation_holds_what_bias_and_epsilon_took(rule_name, op_name, bias):
    make_rule, oracle_rule, options = RULES[rule_name]
    model, x = prepared(op_name, bias)
    explanation = plrp.explain(model, x, target=0, composite=single_rule(make_rule()), layers=True)
    step = oracles.linear_step("op", "x", model.op, tuple(x.shape[1:]))
    for sample in range(len(x)):
        r = explanation.layers["head"][sample].reshape(-1)
        parts = oracles.branches(oracle_rule, x[sample].reshape(-1), step.matrix, step.bias, step.ones, **options)
        took = oracles.hand_down(parts, r)
        [row] = [w for w in explanation.ledger if w["sample"] == sample and w["layer"] == "op"]
        scale = float(r.abs().sum())
        assert row["absorbed_bias"] == pytest.approx(took.absorbed_bias, abs=1e-9 * scale)
        stabilised = row["absorbed_epsilon"] - row["created"]
        assert stabilised == pytest.approx(took.absorbed_epsilon, abs=1e-9 * scale)
        if rule_name == "alpha2-beta1":
            created = oracles.empty_branch_creation(parts, r)
            assert row["created"] == pytest.approx(created, abs=1e-6 * scale)
        else:
            assert row["created"] == 0
        assert row["mass_in_positive"] == pytest.approx(float(oracles.positive(r).sum()), abs=1e-9 * scale)
        assert row["mass_in_negative"] == pytest.approx(-float(oracles.negative(r).sum()), abs=1e-9 * scale)
        out = took.relevance
        assert row["mass_out_positive"] == pytest.approx(float(oracles.positive(out).sum()), abs=1e-9 * scale)
        assert row["mass_out_negative"] == pytest.approx(-float(oracles.negative(out).sum()), abs=1e-9 * scale)
    oracles.assert_ledger_closes(explanation, explanation.logits[:, 0], 1e-9)


@pytest.mark.parametrize("mode", ["circular", "reflect", "replicate"])
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("rule_name", RULES)
def test_padding_modes_move_relevance_back_to_the_elements_they_copied(rule_name, dims, mode):
    make_rule, oracle_rule, options = RULES[rule_name]
    torch.manual_seed(dims)
    conv_of = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[dims]
    shape = {1: (2, 6), 2: (2, 4, 3), 3: (1, 3, 3, 2)}[dims]
    padded_conv = conv_of(shape[0], 2, 3 if dims < 3 else 2, padding=1, padding_mode=mode).double()
    model = Head(padded_conv, shape).double().eval()
    x = torch.randn(2, *shape, dtype=torch.float64)
    explanation = plrp.explain(model, x, target=0, composite=single_rule(make_rule()), layers=True)

    bare = conv_of(shape[0], 2, padded_conv.kernel_size).double()
    bare.load_state_dict(padded_conv.state_dict())
    widths = [1, 1] * dims
    wide = F.pad(x, widths, mode=mode)
    plain = copy.deepcopy(model)
    plain.op = bare
    on_wide = expected_below(plain, wide, explanation.layers["head"], oracle_rule, options)
    copies = oracles.unit_responses(lambda v: F.pad(v, widths, mode=mode), shape)
    expected = (on_wide.flatten(1) @ copies.T).reshape(x.shape)
    assert oracles.relative_difference(explanation.relevance, expected) < 1e-9
    oracles.assert_ledger_closes(explanation, explanation.logits[:, 0], 1e-9)


@pytest.mark.parametrize("rule_name", RULES)
def test_a_product_with_a_constant_matrix_is_a_linear_layer_without_bias(rule_name):
    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 5, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight

    make_rule, oracle_rule, options = RULES[rule_name]
    torch.manual_seed(3)
    model = Head(Product(), (3, 4)).double().eval()
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    explanation = plrp.explain(model, x, target=0, composite=single_rule(make_rule()), layers=True)
    matrix = torch.block_diag(*[model.op.weight.detach()] * 3)
    connected = torch.block_diag(*[torch.ones(4, 5, dtype=torch.float64)] * 3)
    for sample in range(2):
        parts = oracles.branches(
            oracle_rule, x[sample].reshape(-1), matrix, torch.zeros(15).double(), connected, **options
        )
        expected = oracles.hand_down(parts, explanation.layers["head"][sample]).relevance
        assert oracles.relative_difference(explanation.relevance[sample].reshape(-1), expected) < 1e-9


@pytest.mark.parametrize("call", ["matmul", "operator", "mm", "method"])
def test_every_spelling_of_a_constant_product_gives_the_same_relevance(call):
    weight = nn.Parameter(torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    spelled = {
        "matmul": lambda x: torch.matmul(x, weight),
        "operator": lambda x: x @ weight,
        "mm": lambda x: torch.mm(x, weight),
        "method": lambda x: x.matmul(weight),
    }[call]

    class Spelled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = weight

        def forward(self, x: Tensor) -> Tensor:
            return spelled(x)

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(weight.detach().T.clone())

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, self.weight)

    x = torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for composite in ("epsilon", "epsilon-plus-flat"):
        a = plrp.explain(Spelled().eval(), x, composite=composite)
        b = plrp.explain(Plain().eval(), x, composite=composite)
        assert oracles.relative_difference(a.relevance, b.relevance) < 1e-12


@pytest.mark.parametrize("shape", [(2, 1, 1), (1, 2, 4, 4), (2, 4, 4)], ids=["channels", "batch", "full"])
def test_zbox_takes_bounds_per_element(shape):
    model, x = prepared("conv2d-pointwise", True)
    model = Head(nn.Conv2d(2, 3, 3, padding=1).double(), (2, 4, 4)).double().eval()
    x = torch.rand(2, 2, 4, 4, dtype=torch.float64) - 0.5
    low = -0.5 - torch.rand(shape, dtype=torch.float64)
    high = 0.5 + torch.rand(shape, dtype=torch.float64)
    composite = single_rule(rules.ZBox(low=low, high=high))
    explanation = plrp.explain(model, x, target=0, composite=composite, layers=True)
    flat = {"low": low.expand(1, 2, 4, 4).reshape(-1), "high": high.expand(1, 2, 4, 4).reshape(-1)}
    expected = expected_below(model, x, explanation.layers["head"], "zbox", flat)
    assert oracles.relative_difference(explanation.relevance, expected) < 1e-9


def test_gamma_of_zero_is_epsilon():
    model, x = prepared("conv1d", True)
    gamma, epsilon = (
        plrp.explain(model, x, target=0, composite=single_rule(rule)).relevance
        for rule in (rules.Gamma(gamma=0), rules.Epsilon())
    )
    assert oracles.relative_difference(gamma, epsilon) < 1e-12


def test_boxes_of_other_tensors_are_other_rules_on_the_same_trace():
    model, x = prepared("linear", True)
    trace = plrp.trace(model, x)
    for low in (torch.full((6,), -9.0).double(), torch.full((6,), -5.0).double()):
        composite = single_rule(rules.ZBox(low=low, high=9.0))
        again = [
            trace.explain(target=0, composite=composite).relevance for _ in range(2)
        ]  # denominators are remembered
        expected = plrp.explain(model, x, target=0, composite=composite).relevance
        assert all(oracles.relative_difference(found, expected) < 1e-12 for found in again)


BOUNDS = {"neither": {}, "low": {"low": -20.0}, "high": {"high": 20.0}}


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("op_name", ["conv1d", "conv2d", "linear", "linear-3d"])
def test_a_bound_that_is_left_out_is_each_samples_own_extreme(op_name, bounds):
    model, x = prepared(op_name, True)
    x = x * torch.tensor([1.0, 3.0], dtype=torch.float64).reshape(2, *[1] * (x.dim() - 1)) + 0.5
    composite = single_rule(rules.ZBox(**BOUNDS[bounds]))
    found = plrp.explain(model, x, target=0, composite=composite, layers=True)
    for sample in range(2):
        box = {"low": x[sample].min(), "high": x[sample].max()} | BOUNDS[bounds]
        one = slice(sample, sample + 1)
        expected = expected_below(model, x[one], found.layers["head"][one], "zbox", box)
        assert oracles.relative_difference(found.relevance[one], expected) < 1e-9
    assert plrp.explain(model, x[:0], target=0, composite=composite).relevance.shape == x[:0].shape


PRINTED = {
    "Epsilon()": rules.Epsilon(),
    "ZPlus(epsilon=0.001)": rules.ZPlus(1e-3),
    "Zero()": rules.Zero(),
    "AlphaBeta(alpha=3, beta=2, epsilon=0.1)": rules.AlphaBeta(3, 2, 0.1),
    "ZBox(low=-1, high=tensor)": rules.ZBox(torch.tensor(-1.0), torch.zeros(2)),
    "ZBox(high=2)": rules.ZBox(high=2),
}


@pytest.mark.parametrize("text", PRINTED)
def test_a_rule_prints_as_its_call(text):
    assert repr(PRINTED[text]) == PRINTED[text].name == text


def test_rules_of_the_same_settings_are_not_confused_on_one_trace():
    """Denominators are remembered by the type of a rule and its settings."""
    model, x = prepared("linear", True)
    trace = plrp.trace(model, x)
    for make_rule, *_ in RULES.values():
        composite = single_rule(make_rule())
        found = trace.explain(target=0, composite=composite).relevance
        assert torch.equal(found, plrp.trace(model, x).explain(target=0, composite=composite).relevance)


@pytest.mark.parametrize("seed", range(5))
def test_inputs_on_the_edge_of_their_box_receive_exactly_nothing(seed):
    """n_jk = 0 for x at `low` under w⁺ and at `high` under w⁻: rounding neither makes these live nor moves what is."""
    low, high = -2.1179, 2.64  # a normalised black and white
    torch.manual_seed(seed)
    first = nn.Linear(200, 1)
    x = torch.where(first.weight > 0, torch.tensor(low), torch.tensor(high)).detach()
    x[:, :3] *= 1 - 1e-6
    model = nn.Sequential(first, nn.Linear(1, 2)).eval()
    composite = plrp.Composite([(plrp.composites.is_any, rules.Epsilon())], first=rules.ZBox(low, high))
    found = plrp.explain(model, x, target=0, composite=composite, layers=True)
    w, xs, edges = first.weight[0].detach().double(), x[0].double(), torch.tensor([low, high]).double()
    n = (xs - edges[0]) * w.clamp(min=0) + (xs - edges[1]) * w.clamp(max=0)
    expected = n / (n.sum() + rules.EPSILON) * found.layers["1"][0].double()
    assert not found.relevance[0, 3:].any()
    assert oracles.relative_difference(found.relevance[0].double(), expected) < 1e-4


@pytest.mark.parametrize("rule_name", ["zplus", "alpha2-beta1", "gamma", "epsilon", "flat", "wsquare"])
@pytest.mark.parametrize("rectified", [False, True], ids=["mixed-sign", "after-relu"])
def test_rules_in_float32_stay_near_their_float64_formula(rule_name, rectified):
    """The savings for x ≥ 0 (z⁻ = z − z⁺, one branch only) may not cost accuracy in single precision."""
    make_rule, oracle_rule, options = RULES[rule_name]
    torch.manual_seed(7)
    model = Head(nn.Conv2d(8, 12, 3, padding=1).double(), (8, 6, 6), rectified).float().eval()
    with torch.no_grad():  # half of the output channels have no negative weight at all: empty branches
        model.op.weight[:6].abs_()
        model.op.bias[:6].abs_()
    x = torch.randn(2, 8, 6, 6)
    explanation = plrp.explain(model, x, target=0, composite=single_rule(make_rule()), layers=True)
    expected = expected_below(
        copy.deepcopy(model).double(), x.double(), explanation.layers["head"].double(), oracle_rule, options
    )
    relative = (explanation.relevance - expected).abs().sum() / expected.abs().sum()
    assert float(relative) < (2e-3 if rule_name in ("epsilon", "gamma") else 1e-5)


@pytest.mark.parametrize("fold", ["folded", "read-twice"])
@pytest.mark.parametrize("rule_name", ["zplus", "epsilon", "alpha2-beta1", "gamma", "flat", "wsquare"])
def test_batchnorm_is_folded_only_where_nobody_else_reads_the_layer(rule_name, fold):
    make_rule, oracle_rule, options = RULES[rule_name]

    class ConvNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.op = nn.Conv1d(2, 3, 3, padding=1)
            self.bn = nn.BatchNorm1d(3)
            self.head = nn.Linear(15, 1, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            y = self.op(x)
            z = self.bn(y)
            if fold == "read-twice":
                z = z + 0 * y.clamp(min=-100)
            return self.head(z.flatten(1))

    torch.manual_seed(5)
    model = oracles.randomise_statistics(ConvNorm().double().eval(), 3)
    x = torch.randn(2, 2, 5, dtype=torch.float64)
    explanation = plrp.explain(model, x, target=0, composite=single_rule(make_rule()), layers=True)
    upper = explanation.layers["head"].reshape(2, 3, 5)
    bn = model.bn
    scale = (bn.weight / torch.sqrt(bn.running_var + bn.eps)).detach()
    shift = (bn.bias - bn.running_mean * scale).detach()
    plain = nn.Module()
    plain.op, plain.rectified = copy.deepcopy(model.op), False
    if fold == "folded":
        with torch.no_grad():
            plain.op.weight.mul_(scale[:, None, None])
            plain.op.bias.copy_(plain.op.bias * scale + shift)
        expected = expected_below(plain, x, upper, oracle_rule, options)
    else:  # z + 0·y: the sum hands everything to z; then the ε-rule on the affine map, its shift the bias
        y = model.op(x).detach()
        z = y * scale[:, None] + shift[:, None]
        upper = z * upper / oracles.stabilise(z)
        upper = y * scale[:, None] * upper / oracles.stabilise(z)
        expected = expected_below(plain, x, upper, oracle_rule, options)
    assert oracles.relative_difference(explanation.relevance, expected) < 1e-9
    oracles.assert_ledger_closes(explanation, explanation.logits[:, 0], 1e-9)


# ---------------------------------------------------------------- operations without weights of their own


class Below(nn.Module):
    """`function` applied to the input itself, then a linear head under the 0-rule."""

    def __init__(self, function, x: Tensor) -> None:
        super().__init__()
        self.function = function
        with torch.no_grad():
            size = function(x)[0].numel()
        self.head = nn.Linear(size, 1, bias=False).double()
        if isinstance(function, nn.Module):
            self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.function(x).flatten(1))


ZERO = lambda: plrp.Composite([(plrp.composites.is_any, rules.Zero())], name="zero")  # noqa: E731

SPLITS = {
    "avg_pool1d": (lambda v: F.avg_pool1d(v, 3, 2, 1), (2, 7)),
    "avg_pool2d-padded": (lambda v: F.avg_pool2d(v, 3, 2, 1), (2, 5, 5)),
    "avg_pool2d-unpadded-count": (lambda v: F.avg_pool2d(v, 3, 2, 1, count_include_pad=False), (2, 5, 5)),
    "avg_pool2d-ceil": (lambda v: F.avg_pool2d(v, 2, 2, ceil_mode=True), (2, 5, 5)),
    "avg_pool2d-divisor": (lambda v: F.avg_pool2d(v, 2, divisor_override=3), (2, 4, 4)),
    "avg_pool3d": (lambda v: F.avg_pool3d(v, 2), (1, 4, 4, 2)),
    "adaptive_avg_pool1d": (lambda v: F.adaptive_avg_pool1d(v, 3), (2, 7)),
    "adaptive_avg_pool2d": (lambda v: F.adaptive_avg_pool2d(v, (2, 3)), (2, 5, 5)),
    "adaptive_avg_pool2d-upward": (lambda v: F.adaptive_avg_pool2d(v, 3), (2, 2, 1)),
    "adaptive_avg_pool3d": (lambda v: F.adaptive_avg_pool3d(v, 1), (2, 2, 2, 2)),
    "mean": (lambda v: v.mean(-1), (3, 5)),
    "mean-axes": (lambda v: v.mean((-1, -2)), (3, 4, 2)),
    "mean-keepdim": (lambda v: torch.mean(v, dim=1, keepdim=True), (3, 4)),
    "sum": (lambda v: v.sum(1), (3, 5)),
    "sum-axes": (lambda v: torch.sum(v, (1, 2)), (3, 4, 2)),
}


@pytest.mark.parametrize("name", SPLITS)
def test_means_sums_and_average_pools_split_in_proportion(name):
    op, shape = SPLITS[name]
    torch.manual_seed(0)
    x = torch.randn(2, *shape, dtype=torch.float64)
    model = Below(op, x).eval()
    explanation = plrp.explain(model, x, target=0, composite=ZERO(), layers=True)
    matrix = oracles.unit_responses(op, shape)
    for sample in range(2):
        flat = x[sample].reshape(-1)
        r = explanation.layers["head"][sample].reshape(-1)
        part = oracles.Branch(flat[:, None] * matrix, torch.zeros_like(r), torch.ones_like(r))
        expected = oracles.hand_down([part], r).relevance
        assert oracles.relative_difference(explanation.relevance[sample].reshape(-1), expected) < 1e-9
    oracles.assert_ledger_closes(explanation, explanation.logits[:, 0], 1e-9)


MOVES = {
    "max_pool1d": (lambda v: F.max_pool1d(v, 3, 2, 1), (2, 7)),
    "max_pool1d-dilated": (lambda v: F.max_pool1d(v, 2, 1, 0, 2), (2, 7)),
    "max_pool2d": (lambda v: F.max_pool2d(v, 2), (2, 4, 4)),
    "max_pool2d-overlapping": (lambda v: F.max_pool2d(v, 3, 1, 1), (2, 4, 4)),
    "max_pool2d-ceil": (lambda v: F.max_pool2d(v, 2, ceil_mode=True), (2, 5, 5)),
    "max_pool3d": (lambda v: F.max_pool3d(v, 2), (1, 4, 4, 2)),
    "adaptive_max_pool1d": (lambda v: F.adaptive_max_pool1d(v, 3), (2, 7)),
    "adaptive_max_pool2d": (lambda v: F.adaptive_max_pool2d(v, (2, 3)), (2, 5, 5)),
    "adaptive_max_pool3d": (lambda v: F.adaptive_max_pool3d(v, 1), (2, 2, 3, 2)),
    "amax": (lambda v: v.amax(-1), (2, 5)),
    "flatten": (lambda v: torch.flatten(v, 1), (2, 3)),
    "view": (lambda v: v.view(v.shape[0], 3, 2), (2, 3)),
    "reshape": (lambda v: v.reshape(v.shape[0], -1, 2), (2, 3)),
    "permute": (lambda v: v.permute(0, 2, 1), (2, 3)),
    "transpose": (lambda v: v.transpose(1, 2), (2, 3)),
    "swapaxes": (lambda v: v.transpose(-1, -2).contiguous(), (2, 3)),
    "mT": (lambda v: v.mT, (2, 3)),
    "squeeze": (lambda v: v.squeeze(1), (1, 3)),
    "unsqueeze": (lambda v: v.unsqueeze(1), (2, 3)),
    "none-index": (lambda v: v[:, None], (2, 3)),
    "slice": (lambda v: v[:, 1:], (3, 4)),
    "strided-slice": (lambda v: v[..., ::2], (3, 5)),
    "integer-index": (lambda v: v[:, 1], (3, 4)),
    "fancy-index": (lambda v: v[:, [2, 0, 2]], (3, 4)),
    "tensor-index": (lambda v: v[:, torch.tensor([1, 1, 0])], (3, 4)),
    "ellipsis": (lambda v: v[..., -1], (3, 4)),
    "chunk": (lambda v: torch.cat(v.chunk(2, 1)[::-1], 1), (4, 3)),
    "split": (lambda v: torch.cat(torch.split(v, [1, 3], 1)[::-1], 1), (4, 3)),
    "one-chunk": (lambda v: v.chunk(2, 1)[1], (4, 3)),
    "unbind": (lambda v: torch.stack(v.unbind(1)[1:], 1), (4, 3)),
    "cat-twice": (lambda v: torch.cat([v, v], 1), (2, 3)),
    "stack": (lambda v: torch.stack([v, v], -1), (2, 3)),
    "narrow": (lambda v: v.narrow(1, 1, 2), (4, 3)),
    "flip": (lambda v: v.flip(-1), (2, 3)),
    "roll": (lambda v: torch.roll(v, 1, -1), (2, 3)),
    "expand": (lambda v: v.unsqueeze(-1).expand(-1, -1, -1, 2), (2, 3)),
    "repeat": (lambda v: v.repeat(1, 2, 1), (2, 3)),
    "pad-zero": (lambda v: F.pad(v, (1, 2)), (2, 3)),
    "pad-constant": (lambda v: F.pad(v, (1, 2), value=1.5), (2, 3)),
    "pad-negative": (lambda v: F.pad(v, (-1, 0)), (2, 4)),
    "pad-reflect": (lambda v: F.pad(v, (1, 2), mode="reflect"), (2, 4)),
    "pixel-shuffle": (lambda v: F.pixel_shuffle(v, 2), (4, 2, 2)),
    "upsample-nearest": (lambda v: F.interpolate(v, scale_factor=2, mode="nearest"), (2, 2, 2)),
    "clone": (lambda v: v.clone(), (2, 3)),
    "detach-free-identity": (lambda v: nn.Identity()(v), (2, 3)),
    "dropout-inactive": (lambda v: F.dropout(v, 0.5, training=False), (2, 3)),
}


@pytest.mark.parametrize("name", MOVES)
def test_relevance_follows_the_elements_through_rearrangements_and_max_pools(name):
    op, shape = MOVES[name]
    torch.manual_seed(0)
    x = torch.randn(2, *shape, dtype=torch.float64)
    model = Below(op, x).eval()
    explanation = plrp.explain(model, x, target=0, composite=ZERO(), layers=True)
    r = explanation.layers["head"]
    _, expected = torch.autograd.functional.vjp(lambda v: op(v).flatten(1), x, r)
    assert oracles.relative_difference(explanation.relevance, expected) < 1e-12
    assert explanation.relevance.shape == x.shape
    oracles.assert_ledger_closes(explanation, explanation.logits[:, 0], 1e-9)


ACTIVATIONS = {
    "relu": F.relu,
    "relu6": F.relu6,
    "leaky_relu": lambda v: F.leaky_relu(v, 0.1),
    "prelu": nn.PReLU(),
    "gelu": F.gelu,
    "gelu-tanh": lambda v: F.gelu(v, approximate="tanh"),
    "silu": F.silu,
    "hardswish": F.hardswish,
    "elu": F.elu,
    "selu": F.selu,
    "celu": F.celu,
    "mish": F.mish,
    "tanh": torch.tanh,
    "hardtanh": F.hardtanh,
    "clamp": lambda v: v.clamp(min=0),
    "clamp-max": lambda v: torch.clamp(v, -1, 1),
    "silu-by-hand": lambda v: v * torch.sigmoid(v),
    "hardswish-by-hand": lambda v: v * F.relu6(v + 3) / 6,
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_pass_relevance_unchanged(name):
    activation = ACTIVATIONS[name]
    torch.manual_seed(0)
    x = torch.randn(2, 4, 3, dtype=torch.float64)
    if isinstance(activation, nn.Module):
        activation = activation.double()
    model = Below(activation, x).eval()
    explanation = plrp.explain(model, x, target=0, composite=ZERO(), layers=True)
    expected = explanation.layers["head"].reshape(x.shape)
    assert torch.equal(explanation.relevance, expected)


CONSTANTS = {
    "shift": lambda v, c: v + c,
    "shift-reversed": lambda v, c: c + v,
    "subtract": lambda v, c: v - c,
    "subtract-reversed": lambda v, c: c - v,
    "scale": lambda v, c: v * c,
    "scale-reversed": lambda v, c: c * v,
    "divide": lambda v, c: v / c,
    "number": lambda v, c: (v - 0.5) / 0.25,
    "negate": lambda v, c: -v,
    "torch-add-alpha": lambda v, c: torch.add(v, c, alpha=2),
    "normalise": lambda v, c: (v - c) / (1 + c.abs()),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_added_or_multiplied_below_the_first_layer_pass_relevance(name):
    op = CONSTANTS[name]
    torch.manual_seed(0)
    constant = torch.randn(4, 1, dtype=torch.float64)
    x = torch.randn(2, 4, 3, dtype=torch.float64)
    model = Below(lambda v: op(v, constant), x).eval()
    explanation = plrp.explain(model, x, target=0, composite=ZERO(), layers=True)
    expected = explanation.layers["head"].reshape(x.shape)
    assert oracles.relative_difference(explanation.relevance, expected) < 1e-12


TURNED = {
    "scale-right": lambda h, c: h * c,
    "scale-left": lambda h, c: c * h,
    "scale-in-place": lambda h, c: h.mul_(c),
    "torch-mul-left": lambda h, c: torch.mul(c, h),
    "divide": lambda h, c: h / c,
    "shift-right": lambda h, c: h + c,
    "shift-left": lambda h, c: c + h,
    "shift-in-place": lambda h, c: h.add_(c),
    "subtract": lambda h, c: h - c.abs(),
    "subtract-reversed": lambda h, c: c - h,
    "negate": lambda h, c: -h,
    "number-left": lambda h, c: -2.0 * h,
    "add-alpha": lambda h, c: torch.add(h, c.abs(), alpha=-1),
    "where": lambda h, c: torch.where(h > 0.5, h, c.expand_as(h)),
    "where-number": lambda h, c: torch.where(h > 0.5, h, -1.0),
    "masked-fill": lambda h, c: h.masked_fill(h < 0.5, -1.0),
    "cat-constant": lambda h, c: torch.cat([c.expand_as(h), h], 1)[:, 3:],
    "pad-negative-value": lambda h, c: F.pad(h, (1, 1), value=-1.0),
    "pad-positional": lambda h, c: F.pad(h, (1, 1), "constant", -1.0),
    "clamp-below-zero": lambda h, c: h.clamp(-1.0, -0.25),
    "minimum": lambda h, c: torch.minimum(h, c.expand_as(h)),
    "log": lambda h, c: torch.log1p(h - 0.5),
    "bicubic": lambda h, c: F.interpolate(h[:, None], size=(6, 9), mode="bicubic")[:, 0],
    "gate": lambda h, c: h * torch.tanh((h * c).mean(-1, keepdim=True)),
    "batch-norm": lambda h, c: F.batch_norm(h, torch.ones(6).double(), torch.ones(6).double()),
    "layer-norm": lambda h, c: F.layer_norm(h, h.shape[-1:]),
    "set-item": lambda h, c: _with_item(h, -1.0),
}


def _with_item(h: Tensor, value: float) -> Tensor:
    h = h.clone()
    h[:, 0] = value
    return h


@pytest.mark.parametrize("rule_name", ["zplus", "alpha2-beta1", "gamma"])
@pytest.mark.parametrize("name", TURNED)
def test_a_sign_turned_after_a_relu_is_noticed(name, rule_name):
    """Rules save work where x ≥ 0 is known: whatever may make x negative again must end that knowledge."""
    op = TURNED[name]
    make_rule, oracle_rule, options = RULES[rule_name]
    torch.manual_seed(0)
    constant = -0.3 - torch.rand(6, 1, dtype=torch.float64)

    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv1d(3, 6, 3, padding=1)
            self.op = nn.LazyConv1d(4, 3, padding=1)
            self.head = nn.LazyLinear(1, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.op(op(F.relu(self.first(x)), constant)).flatten(1))

    model = Turned().double().eval()
    x = torch.randn(2, 3, 7, dtype=torch.float64)
    with torch.no_grad():
        model(x)
        activations = op(F.relu(model.first(x)), constant)
    assert bool((activations < 0).any())
    explanation = plrp.explain(model, x, target=0, composite=single_rule(make_rule()), layers=True)
    model.rectified = False
    expected = expected_below(model, activations, explanation.layers["head"], oracle_rule, options)
    assert oracles.relative_difference(explanation.layers["op"], expected) < 1e-9


NORMS = {
    "layer_norm": (nn.LayerNorm(6), (4, 6)),
    "layer_norm-two-axes": (nn.LayerNorm((4, 6)), (4, 6)),
    "layer_norm-plain": (nn.LayerNorm(6, elementwise_affine=False), (4, 6)),
    "group_norm": (nn.GroupNorm(2, 4), (4, 6)),
    "instance_norm1d": (nn.InstanceNorm1d(4, affine=True), (4, 6)),
    "instance_norm2d": (nn.InstanceNorm2d(4, affine=True), (4, 3, 2)),
    "batch_norm1d": (nn.BatchNorm1d(4), (4, 6)),
    "batch_norm2d": (nn.BatchNorm2d(4), (4, 3, 2)),
}


@pytest.mark.parametrize("name", NORMS)
def test_norm_layers_are_the_epsilon_rule_on_the_affine_map_left_when_their_spread_is_held(name):
    """(x − μ)/σ · w + b with σ held is y = Ax + t: R_j = x_j Σ_k A_kj R_k/(y_k + ε); t absorbs the rest.

    The mean of a sample is part of A; that of a BatchNorm is a constant, part of t. The 0.1 takes its share.
    """
    module, shape = NORMS[name]
    torch.manual_seed(0)
    module = copy.deepcopy(module).double().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter))
    oracles.randomise_statistics(module) if "batch" in name else None
    x = torch.randn(2, *shape, dtype=torch.float64) + 0.3

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv1d(4, 4, 1, groups=4) if len(shape) == 2 else nn.Conv2d(4, 4, 1, groups=4)
            self.norm = module
            self.head = nn.Linear(x[0].numel(), 1, bias=False)

        def forward(self, v: Tensor) -> Tensor:
            return self.head(self.norm(F.relu(self.first(v)) + 0.1).flatten(1))

    model = Model().double().eval()
    first = plrp.Composite([(plrp.composites.is_any, rules.Zero())], name="zero")
    explanation = plrp.explain(model, x, target=0, composite=first, layers=True)
    with torch.no_grad():
        pre = model.first(x)
        h = F.relu(pre) + 0.1
        y = module(h)
        axes = {"layer_norm": (-1,), "layer_norm-two-axes": (-1, -2), "layer_norm-plain": (-1,)}.get(name)
        if axes is not None:
            variance = h.var(axes, unbiased=False, keepdim=True)
            weight = module.weight if module.weight is not None else 1.0
        elif name == "group_norm":
            variance = h.reshape(2, 2, -1).var(-1, unbiased=False).repeat_interleave(2, 1)[..., None]
            weight = module.weight[:, None]
        elif name.startswith("instance"):
            variance = h.flatten(2).var(-1, unbiased=False).reshape(2, 4, *[1] * (len(shape) - 1))
            weight = module.weight.reshape(4, *[1] * (len(shape) - 1))
        else:
            variance = module.running_var.reshape(4, *[1] * (len(shape) - 1))
            weight = module.weight.reshape(4, *[1] * (len(shape) - 1))
        slope = weight / torch.sqrt(variance + module.eps)
        upper = explanation.layers["head"].reshape(x.shape)
        at_h = torch.zeros_like(h)
        for sample in range(2):  # A column by column: the norm of each unit vector, less the norm of nothing
            for j in range(h[sample].numel()):
                unit = torch.zeros_like(h[sample]).flatten()
                unit[j] = h[sample].flatten()[j]
                moved = unit.reshape(shape)
                if axes is not None:
                    moved = moved - moved.mean(axes, keepdim=True)
                elif name == "group_norm":
                    moved = moved - moved.reshape(2, -1).mean(-1).repeat_interleave(2)[:, None]
                elif name.startswith("instance"):
                    moved = moved - moved.mean(tuple(range(1, len(shape))), keepdim=True)
                own = slope[sample] if slope.dim() == h.dim() and len(slope) == 2 else slope
                share = (own * moved) * upper[sample] / oracles.stabilise(y[sample])
                at_h[sample].view(-1)[j] = share.sum()
        absorbed = (explanation.layers["head"].sum(1) - at_h.flatten(1).sum(1)).tolist()
        rows = [
            row
            for row in explanation.ledger
            if row["op"] in ("layer_norm", "group_norm", "instance_norm", "batch_norm")
        ]
        assert [oracles.lost(row) for row in rows] == pytest.approx(absorbed, rel=1e-8)
        constants = [row["absorbed_constant"] for row in explanation.ledger if row["op"] == "add"]
        assert constants == pytest.approx((0.1 * at_h / oracles.stabilise(h)).flatten(1).sum(1).tolist(), rel=1e-8)
        at_h = F.relu(pre) * at_h / oracles.stabilise(h)
        conv = model.first.weight.reshape(4, *[1] * (len(shape) - 1)) * x
        expected = conv * at_h / (pre)  # the 0-rule of the depthwise 1×1 conv, bias included in z
    assert oracles.relative_difference(explanation.relevance, expected) < 1e-8
    oracles.assert_ledger_closes(explanation, explanation.logits[:, 0], 1e-9)


GATES = {
    "sigmoid": lambda v, g: v * torch.sigmoid(g),
    "sigmoid-first": lambda v, g: torch.sigmoid(g) * v,
    "hardsigmoid": lambda v, g: v * F.hardsigmoid(g),
    "softmax": lambda v, g: v * torch.softmax(g, 1),
    "broadcast": lambda v, g: v * g.mean(-1, keepdim=True),
    "broadcast-first": lambda v, g: g.mean(-1, keepdim=True) * v,
    "torch-mul": lambda v, g: torch.mul(v, g.sigmoid()),
    "squeeze-excite": lambda v, g: v * F.relu(g.mean(-1, keepdim=True)).sigmoid(),
}


@pytest.mark.parametrize("name", GATES)
def test_the_signal_of_a_gated_product_takes_all_relevance_and_the_gate_none(name):
    op = GATES[name]

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(12, 1, bias=False)

        def forward(self, v: Tensor, g: Tensor) -> Tensor:
            return self.head(op(v, g).flatten(1))

    torch.manual_seed(0)
    model = Gated().double().eval()
    v, g = torch.randn(2, 2, 4, 3, dtype=torch.float64)
    explanation = plrp.explain(model, (v, g), target=0, composite=ZERO(), layers=True)
    signal, gate = explanation.relevance
    expected = explanation.layers["head"].reshape(v.shape)
    assert oracles.relative_difference(signal, expected) < 1e-12
    assert not gate.any()
    oracles.assert_ledger_closes(explanation, explanation.logits[:, 0], 1e-9)


def test_a_branch_that_only_feeds_a_gate_has_no_ledger_row():
    class SqueezeExcite(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv1d(2, 4, 3)
            self.squeeze = nn.Linear(4, 4)
            self.head = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = F.relu(self.conv(x))
            gate = torch.sigmoid(self.squeeze(h.mean(-1)))
            return self.head((h * gate.unsqueeze(-1)).mean(-1))

    model = SqueezeExcite().double().eval()
    explanation = plrp.explain(model, torch.randn(2, 2, 9, dtype=torch.float64))
    assert "squeeze" not in {row["layer"] for row in explanation.ledger}
    assert {"conv", "head"} <= {row["layer"] for row in explanation.ledger}
    oracles.assert_ledger_closes(explanation, explanation.logits.gather(1, explanation.target[:, None])[:, 0], 1e-9)


ADDS = {
    "operator": lambda a, b: a + b,
    "torch-add": lambda a, b: torch.add(a, b),
    "method": lambda a, b: a.add(b),
    "in-place": lambda a, b: a.clone().add_(b),
    "python-sum": lambda a, b: sum([a, b]),
    "stack-sum": lambda a, b: torch.stack([a, b]).sum(0),
    "add-alpha": lambda a, b: torch.add(a, b / 2, alpha=2),
    "subtract-negative": lambda a, b: a - (-b),
}


@pytest.mark.parametrize("name", ADDS)
def test_a_sum_of_two_tensors_splits_in_proportion_to_their_values(name):
    op = ADDS[name]

    class Added(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(12, 1, bias=False)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.head(op(a, b).flatten(1))

    torch.manual_seed(0)
    model = Added().double().eval()
    a, b = torch.randn(2, 2, 4, 3, dtype=torch.float64)
    explanation = plrp.explain(model, (a, b), target=0, composite=ZERO(), layers=True)
    r = explanation.layers["head"].reshape(a.shape)
    for found, value in zip(explanation.relevance, (a, b), strict=True):
        expected = value * r / oracles.stabilise(a + b)
        assert oracles.relative_difference(found, expected) < 1e-9


def test_a_broadcast_operand_of_a_sum_collects_relevance_from_everywhere_it_was_added():
    class Added(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(12, 1, bias=False)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.head((a + b).flatten(1))

    torch.manual_seed(0)
    model = Added().double().eval()
    a, b = torch.randn(2, 4, 3, dtype=torch.float64), torch.randn(2, 4, 1, dtype=torch.float64)
    explanation = plrp.explain(model, (a, b), target=0, composite=ZERO(), layers=True)
    r = explanation.layers["head"].reshape(a.shape)
    share = r / oracles.stabilise(a + b)
    assert oracles.relative_difference(explanation.relevance[0], a * share) < 1e-9
    assert oracles.relative_difference(explanation.relevance[1], b * share.sum(-1, keepdim=True)) < 1e-9
