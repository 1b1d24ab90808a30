"""The trace: any way of writing a model is recorded, named, and explained as the same mathematics."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

import oracles
import plrp
from plrp.ledger import Booking
from plrp.passing import pass_on, transposed
from plrp.tape.trace import record

COMPOSITES = ["epsilon-plus-flat", "epsilon-alpha2-beta1", "epsilon"]
PRUNINGS = [None, plrp.Pruning(p=0.2), plrp.Pruning(p=0.2, redistribution="M")]


class Written(nn.Module):
    """One residual network; subclasses write its middle in different words."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (
            nn.Conv1d(3, 6, 3, padding=1),
            nn.Conv1d(6, 6, 3, padding=1),
            nn.Conv1d(6, 6, 1),
        )
        self.fc = nn.Linear(48, 4)

    def middle(self, x: Tensor) -> Tensor:
        h = F.relu(self.a(x))
        return F.relu(self.b(h) + self.c(h))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.middle(x).flatten(1))


def write(middle) -> type[Written]:
    return type("Rewritten", (Written,), {"middle": middle})


def in_place_statement(self, x):
    h = self.a(x)
    h.relu_()
    y = self.b(h)
    y += self.c(h)
    y.relu_()
    return y


def functional_in_place(self, x):
    h = F.relu(self.a(x), inplace=True)
    return torch.relu_(self.b(h).add_(self.c(h)))


def python_sum(self, x):
    h = torch.relu(self.a(x))
    return F.relu(sum([self.b(h), self.c(h)]))


def zero_plus(self, x):
    h = self.a(x).relu()
    return F.relu(0 + (self.b(h) + self.c(h)) + 0.0)


def stacked(self, x):
    h = self.a(x).clamp_min(0)
    return torch.stack([self.b(h), self.c(h)], 1).sum(1).relu()


def modules_inside(self, x):
    h = nn.ReLU(inplace=True)(self.a(x))
    return nn.Sequential(nn.Identity(), nn.ReLU(inplace=True), nn.Dropout(0.5).eval())(self.b(h) + self.c(h))


def views_around(self, x):
    h = F.relu(self.a(x).transpose(1, 2)).permute(0, 2, 1).unsqueeze(0).squeeze(0)
    y = (self.b(h) + self.c(h)).view(x.shape[0], -1)
    return F.relu(y.reshape(x.shape[0], 6, -1))


def chunked(self, x):
    h = torch.cat([F.relu(part) for part in self.a(x).chunk(2, dim=1)], dim=1)
    y = self.b(h) + self.c(h)
    left, right = y.split(3, dim=1)
    return torch.cat((left.relu(), right.relu()), 1)


def functions_of_parameters(self, x):
    h = F.conv1d(x, self.a.weight, self.a.bias, padding=1).relu()
    y = torch.conv1d(h, self.b.weight, self.b.bias, 1, 1)
    return torch.add(y, F.conv1d(h, self.c.weight, self.c.bias)).relu()


def nested_containers(self, x):
    found = {"h": [F.relu(self.a(x))]}
    parts = ({"b": self.b(found["h"][0])}, [self.c(found["h"][-1])])
    return F.relu(parts[0]["b"] + parts[1][0])


def keyword_arguments(self, x):
    h = torch.relu(input=F.conv1d(input=x, weight=self.a.weight, bias=self.a.bias, padding=1))
    return F.relu(input=torch.add(input=self.b(input=h), other=self.c(input=h)), inplace=False)


def assigned_items(self, x):
    h = F.relu(self.a(x))
    y = torch.zeros(x.shape[0], 6, x.shape[2], dtype=x.dtype)
    s = self.b(h) + self.c(h)
    y[:, :2] = s[:, :2]
    y[:, 2:] = s[:, 2:]
    return F.relu(y)


def tensor_methods_with_no_rule_of_their_own(self, x):
    assert x.shape[0] == x.size(0) == len(x)
    assert x.dim() == 3
    h = F.relu(self.a(x.to(x.dtype).contiguous().type_as(x)))
    return F.relu(self.b(h).float().to(x.dtype) if False else self.b(h) + self.c(h))


SPELLINGS = [
    in_place_statement,
    functional_in_place,
    python_sum,
    zero_plus,
    stacked,
    modules_inside,
    views_around,
    chunked,
    functions_of_parameters,
    nested_containers,
    keyword_arguments,
    assigned_items,
    tensor_methods_with_no_rule_of_their_own,
]


def written(kind: type[Written] = Written) -> tuple[Written, Tensor]:
    torch.manual_seed(0)
    return kind().double().eval(), torch.randn(2, 3, 8, dtype=torch.float64)


@pytest.mark.parametrize("pruning", PRUNINGS, ids=str)
@pytest.mark.parametrize("composite", COMPOSITES)
@pytest.mark.parametrize("middle", SPELLINGS, ids=lambda f: f.__name__)
def test_every_spelling_of_a_network_gets_the_same_relevance(middle, composite, pruning):
    expected = plrp.explain(*written(), composite=composite, pruning=pruning)
    model, x = written(write(middle))
    with torch.no_grad():
        output = model(x.clone())
    found = plrp.explain(model, x, composite=composite, pruning=pruning)
    assert torch.equal(found.logits, output)
    assert oracles.relative_difference(found.relevance, expected.relevance) < 1e-9
    oracles.assert_ledger_closes(found, output.max(1).values, 1e-9)


LIKE = {
    "expand_as": lambda c, h: c.expand_as(h),
    "view_as": lambda c, h: c.expand(h.shape).contiguous().view_as(h),
    "reshape_as": lambda c, h: c.expand(h.shape).reshape_as(h),
    "type_as": lambda c, h: c.float().expand(h.shape).type_as(h),
    "to": lambda c, h: c.float().expand(h.shape).to(h),
    "zeros_like": lambda c, h: torch.zeros_like(h) + c,
    "new_tensor": lambda c, h: h.new_tensor(c.expand(h.shape).tolist()),
}


@pytest.mark.parametrize("kind", LIKE)
def test_a_constant_in_the_shape_or_type_of_an_activation_stays_constant(kind):
    """Only the shape or dtype of h is read: relevance that lands on the constant is not handed to h."""

    def joined(like):
        def middle(self, x):
            h = F.relu(self.a(x))
            constant = torch.arange(6, dtype=x.dtype)[:, None] / 8 + 0.25  # exact in float32 too
            h = torch.cat([h[:, :3], like(constant, h)[:, 3:]], 1)
            return F.relu(self.b(h) + self.c(h))

        return write(middle)

    expected = plrp.explain(*written(joined(lambda c, h: c.expand(h.shape))), composite="epsilon")
    found = plrp.explain(*written(joined(LIKE[kind])), composite="epsilon")
    assert oracles.relative_difference(found.relevance, expected.relevance) < 1e-9
    oracles.assert_ledger_closes(found, found.logits.max(1).values, 1e-9)


def test_an_item_set_to_zero_takes_no_relevance():
    def middle(self, x):
        h = F.relu(self.a(x))
        h[:, 0] = 0
        return F.relu(self.b(h) + self.c(h))

    class Masked(Written):
        def middle(self, x: Tensor) -> Tensor:
            keep = torch.ones(6, 1, dtype=x.dtype)
            keep[0] = 0
            h = F.relu(self.a(x)) * keep
            return F.relu(self.b(h) + self.c(h))

    model, x = written(write(middle))
    found = plrp.explain(model, x, composite="epsilon")
    expected = plrp.explain(*written(Masked), composite="epsilon")
    assert torch.equal(found.logits, model(x))
    assert oracles.relative_difference(found.relevance, expected.relevance) < 1e-9
    with torch.no_grad():  # channel 0 of `a` has no way to the output
        model.a.weight[0].zero_()
        model.a.bias[0].fill_(5.0)
    again = plrp.explain(model, x, composite="epsilon")
    assert oracles.relative_difference(again.relevance, found.relevance) < 1e-9


def test_an_in_place_operation_beside_a_live_view_is_refused():
    def middle(self, x):
        h = self.a(x)
        view = h[:, :3]
        h.relu_()
        return F.relu(self.b(h) + self.c(h)) + view.mean()

    model, x = written(write(middle))
    with pytest.raises((plrp.UnsupportedOperation, ValueError, RuntimeError), match=r"(?i)view"):
        plrp.explain(model, x)


def test_an_in_place_operation_after_its_views_died_is_right():
    def middle(self, x):
        h = self.a(x)
        view = h[:, :3]
        assert view.shape[1] == 3
        del view
        h.relu_()
        return F.relu(self.b(h) + self.c(h))

    expected = plrp.explain(*written())
    found = plrp.explain(*written(write(middle)))
    assert oracles.relative_difference(found.relevance, expected.relevance) < 1e-9


# ---------------------------------------------------------------- names


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.fc, self.head = nn.Linear(5, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.fc(F.relu(self.fc(F.relu(self.stem(x)))))))


class Unrolled(nn.Module):
    def __init__(self, other: Twice) -> None:
        super().__init__()
        self.stem, self.one, self.two, self.head = map(copy.deepcopy, (other.stem, other.fc, other.fc, other.head))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.two(F.relu(self.one(F.relu(self.stem(x)))))))


@pytest.mark.parametrize("pruning", PRUNINGS, ids=str)
def test_a_module_called_twice_is_two_layers(pruning):
    torch.manual_seed(0)
    model = Twice().double().eval()
    x = torch.randn(3, 5, dtype=torch.float64)
    found = plrp.explain(model, x, pruning=pruning, layers=True)
    expected = plrp.explain(Unrolled(model).eval(), x, pruning=pruning, layers=True)
    assert torch.equal(found.relevance, expected.relevance)
    assert list(found.layers) == ["stem", "fc", "fc#2", "head"] or set(found.layers) == {
        "stem",
        "fc",
        "fc#2",
        "head",
    }
    assert torch.equal(found.layers["fc#2"], expected.layers["two"])
    assert torch.equal(found.layers["fc"], expected.layers["one"])


def test_layers_are_named_by_the_path_of_their_parameter():
    models = pytest.importorskip("torchvision").models
    model = models.resnet18(num_classes=3).eval()
    explanation = plrp.explain(model, torch.randn(1, 3, 32, 32), layers=True)
    expected = {name for name, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)}
    assert set(explanation.layers) == expected


@pytest.mark.parametrize("pruning", PRUNINGS, ids=str)
def test_tied_weights_stay_tied_and_are_explained_where_they_are_used(pruning):
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.a, self.b, self.head = (nn.Linear(i, o) for i, o in ((5, 6), (6, 6), (6, 6), (6, 3)))
            self.b.weight = self.a.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.head(F.relu(self.b(F.relu(self.a(F.relu(self.stem(x)))))))

    torch.manual_seed(0)
    model = Tied().double().eval()
    untied = copy.deepcopy(model)
    untied.b.weight = nn.Parameter(untied.a.weight.detach().clone())
    x = torch.randn(3, 5, dtype=torch.float64)
    found = plrp.explain(model, x, pruning=pruning).relevance
    assert torch.equal(found, plrp.explain(untied, x, pruning=pruning).relevance)
    assert model.b.weight is model.a.weight


def test_an_encoder_and_its_transposed_decoder_share_one_weight():
    class AutoEncoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode = nn.Linear(6, 4, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(self.encode(x)) @ self.encode.weight

    torch.manual_seed(0)
    model = AutoEncoder().double().eval()
    x = torch.randn(2, 6, dtype=torch.float64)
    explanation = plrp.explain(model, x, target=2, composite="epsilon")
    plain = nn.Sequential(copy.deepcopy(model.encode), nn.ReLU(), nn.Linear(4, 6, bias=False)).double().eval()
    plain[2].weight = nn.Parameter(model.encode.weight.detach().T.clone())
    expected = plrp.explain(plain, x, target=2, composite="epsilon")
    assert oracles.relative_difference(explanation.relevance, expected.relevance) < 1e-12


PARAMETRISATIONS = {
    "weight_norm": lambda m: parametrizations.weight_norm(m),
    "spectral_norm": lambda m: parametrizations.spectral_norm(m),
    "own": lambda m: (parametrize.register_parametrization(m, "weight", nn.Tanh()), m)[1],
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("pruning", PRUNINGS, ids=str)
@pytest.mark.parametrize("kind", [*PARAMETRISATIONS, "old-weight_norm"])
def test_parametrised_layers_are_explained_by_the_weight_they_use(kind, pruning):
    torch.manual_seed(0)
    plain, x = written()
    model = copy.deepcopy(plain)
    dress = PARAMETRISATIONS.get(kind, nn.utils.weight_norm)
    for name in ("a", "b", "fc"):
        dress(getattr(model, name))
    model.eval()
    for name in ("a", "b", "fc"):
        getattr(plain, name).weight = nn.Parameter(getattr(model, name).weight.detach().clone())
    found = plrp.explain(model, x, pruning=pruning, layers=True)
    expected = plrp.explain(plain, x, pruning=pruning, layers=True)
    assert oracles.relative_difference(found.relevance, expected.relevance) < 1e-9
    assert len(found.layers) == len(expected.layers)


# ---------------------------------------------------------------- inputs, outputs, targets


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 6), nn.Linear(3, 6), nn.Linear(12, 2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.c(torch.cat([F.relu(self.a(x)), F.relu(self.b(y))], 1))


@pytest.mark.parametrize("pruning", PRUNINGS, ids=str)
def test_several_inputs_get_each_their_relevance(pruning):
    torch.manual_seed(0)
    model = TwoInputs().double().eval()
    x, y = torch.randn(3, 4, dtype=torch.float64), torch.randn(3, 3, dtype=torch.float64)
    explanation = plrp.explain(model, (x, y), composite="epsilon", pruning=pruning)
    assert isinstance(explanation.relevance, tuple)
    assert [r.shape for r in explanation.relevance] == [x.shape, y.shape]
    oracles.assert_ledger_closes(explanation, explanation.logits.max(1).values, 1e-9)


def test_an_input_that_is_never_read_gets_zeros():
    class Ignores(TwoInputs):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.c(torch.cat([F.relu(self.a(x))] * 2, 1))

    explanation = plrp.explain(Ignores().eval(), (torch.randn(2, 4), torch.randn(2, 3)))
    assert not explanation.relevance[1].any()
    assert bool(explanation.relevance[0].any())


class ManyOutputs(Written):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor):
        out = super().forward(x)
        return {
            "dict": {"logits": out, "aux": x.mean()},
            "tuple": (x, out),
            "nested": {"heads": [out, (out * 2,)]},
        }[self.kind]


@pytest.mark.parametrize(
    ("kind", "pick"),
    [
        ("dict", lambda out: out["logits"][:, 1]),
        ("tuple", lambda out: out[1][:, 1]),
        ("nested", lambda out: out["heads"][0][:, 1]),
    ],
)
def test_dict_and_tuple_outputs_are_explained_by_a_callable(kind, pick):
    torch.manual_seed(0)
    model = ManyOutputs(kind).double().eval()
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    plain = Written().double().eval()
    plain.load_state_dict(model.state_dict())
    found = plrp.explain(model, x, target=pick, pruning=plrp.Pruning(p=0.1))
    expected = plrp.explain(plain, x, target=1, pruning=plrp.Pruning(p=0.1))
    assert oracles.relative_difference(found.relevance, expected.relevance) < 1e-9


def test_targets_may_be_spelled_as_int_list_tensor_tuple_or_callable():
    model, x = written()
    trace = plrp.trace(model, x)
    expected = trace.explain(target=2).relevance
    for target in (
        *([2, 2], torch.tensor([2, 2]), torch.tensor([2, 2], dtype=torch.int32), numpy.array([2, 2])),
        *((2,), numpy.int64(2), torch.tensor(2), lambda out: out[:, 2]),
    ):
        assert oracles.relative_difference(trace.explain(target=target).relevance, expected) < 1e-9
    each = trace.explain(target=[0, 3])
    assert torch.equal(each.relevance[0], trace.explain(target=0).relevance[0])
    assert torch.equal(each.relevance[1], trace.explain(target=3).relevance[1])
    assert each.target.tolist() == [0, 3]
    winners = trace.explain()
    assert torch.equal(winners.target, model(x).argmax(1))
    assert oracles.relative_difference(trace.explain(target=-1).relevance, trace.explain(target=3).relevance) == 0


def test_a_single_logit_and_a_regression_head_are_ordinary():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 1)).double().eval()
    x = torch.randn(3, 4, dtype=torch.float64)
    found = plrp.explain(model, x)
    oracles.assert_ledger_closes(found, model(x).detach()[:, 0], 1e-9)

    class Squeezed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, v: Tensor) -> Tensor:
            return self.inner(v).squeeze(1)

    flat = plrp.explain(Squeezed().eval(), x)
    assert oracles.relative_difference(flat.relevance, found.relevance) < 1e-12


@pytest.mark.parametrize("end", ["softmax", "log_softmax", "sigmoid", "Softmax", "Sigmoid", "LogSoftmax", "method"])
def test_relevance_starts_before_a_final_softmax_or_sigmoid_and_says_so(end):
    ends = {
        "softmax": lambda v: F.softmax(v, 1),
        "log_softmax": lambda v: F.log_softmax(v, 1),
        "sigmoid": torch.sigmoid,
        "Softmax": nn.Softmax(1),
        "Sigmoid": nn.Sigmoid(),
        "LogSoftmax": nn.LogSoftmax(1),
        "method": lambda v: v.softmax(dim=-1),
    }

    class Ended(Written):
        def forward(self, x: Tensor) -> Tensor:
            return ends[end](super().forward(x))

    expected = plrp.explain(*written())
    found = plrp.explain(*written(Ended))
    assert torch.equal(found.relevance, expected.relevance)
    assert ("sigmoid" if "igmoid" in end else "softmax") in str(found).lower().replace("_", "").replace("log", "")
    oracles.assert_ledger_closes(found, expected.logits.max(1).values, 1e-9)


def test_a_sigmoid_in_the_middle_is_an_activation_and_not_an_end():
    model = nn.Sequential(nn.Linear(3, 4), nn.Sigmoid(), nn.Linear(4, 2)).double().eval()
    x = torch.randn(2, 3, dtype=torch.float64)
    found = plrp.explain(model, x)
    oracles.assert_ledger_closes(found, model(x).detach().max(1).values, 1e-9)


def test_normalisation_inside_the_model_does_not_change_the_sum_of_relevance():
    class Normalised(Written):
        def forward(self, x: Tensor) -> Tensor:
            mean, std = torch.tensor([5.0, -3.0, 9.0]).double(), torch.tensor([0.2, 4.0, 1.0]).double()
            return super().forward((x - mean[:, None]) / std[:, None])

    model, x = written(Normalised)
    plain, _ = written()
    mean, std = torch.tensor([5.0, -3.0, 9.0]).double(), torch.tensor([0.2, 4.0, 1.0]).double()
    inside = plrp.explain(model, x, composite="epsilon")
    outside = plrp.explain(plain, (x - mean[:, None]) / std[:, None], composite="epsilon")
    assert oracles.relative_difference(inside.relevance, outside.relevance) < 1e-9


def test_inactive_dropout_changes_nothing():
    class Dropping(Written):
        def middle(self, x: Tensor) -> Tensor:
            return F.dropout(super().middle(x), 0.5, self.training)

    assert torch.equal(plrp.explain(*written(Dropping)).relevance, plrp.explain(*written()).relevance)


def test_work_that_does_not_touch_the_input_is_not_recorded():
    class Busy(Written):
        def forward(self, x: Tensor) -> Tensor:
            constant = torch.fft.fft(torch.randn(8)).abs().sum()
            assert constant > 0
            grid = torch.linspace(0, 1, 8).cumsum(0).sort().values
            return super().forward(x) + 0 * grid.sum()

    found = plrp.explain(*written(Busy))
    assert oracles.relative_difference(found.relevance, plrp.explain(*written()).relevance) < 1e-9


def test_a_model_inside_no_grad_or_that_detaches_nothing_is_recorded_all_the_same():
    class NoGrad(Written):
        @torch.no_grad()
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)

    assert torch.equal(plrp.explain(*written(NoGrad)).relevance, plrp.explain(*written()).relevance)


# ---------------------------------------------------------------- printing


def test_printing_a_trace_shows_layer_op_shape_and_rule():
    model, x = written()
    trace = plrp.trace(model, x)
    text = str(trace)
    for word in ("a", "b", "c", "fc", "conv1d", "linear", "2×6×8", "Flat", "ZPlus", "Epsilon"):
        assert word in text, word
    assert "<table" in trace._repr_html_()
    assert "fc" in trace._repr_html_()


def test_html_escapes_what_a_model_may_name_itself():
    model = nn.Sequential()
    model.add_module("<b>bold", nn.Linear(2, 2))
    trace = plrp.trace(model.eval(), torch.randn(1, 2))
    assert "<b>bold" not in trace._repr_html_()


def test_a_custom_composite_and_overrides_by_name_are_followed():
    model, x = written()
    rules = plrp.rules
    mine = plrp.Composite(
        [(plrp.composites.is_conv, rules.Gamma(0.5)), (plrp.composites.is_linear, rules.Epsilon(0.1))],
        first=rules.WSquare(),
        layers={"c": rules.ZPlus()},
        name="mine",
    )
    found = plrp.explain(model, x, composite=mine, target=0)
    by_layer = {row["layer"]: row["rule"] for row in found.ledger if row["op"] in ("conv1d", "linear")}
    assert "WSquare" in by_layer["a"]
    assert "Gamma" in by_layer["b"]
    assert "ZPlus" in by_layer["c"]
    assert "Epsilon" in by_layer["fc"]
    steps = [
        oracles.linear_step("a", "x", model.a, (3, 8)), oracles.relu_step("h", "a"),
        oracles.linear_step("b", "h", model.b, (6, 8)), oracles.linear_step("c", "h", model.c, (6, 8)),
        oracles.add_step("s", "b", "c"), oracles.relu_step("g", "s"),
        oracles.linear_step("fc", "g", model.fc, (48,)),
    ]  # fmt: skip
    choice = {
        "a": ("wsquare", {}), "b": ("gamma", {"gamma": 0.5}), "c": ("zplus", {}),
        "fc": ("epsilon", {"epsilon": 0.1}),
    }  # fmt: skip
    for sample in range(2):
        walk = oracles.walk(steps, x[sample].reshape(-1), 0, lambda step, first: choice[step.name])
        assert oracles.relative_difference(found.relevance[sample].reshape(-1), walk.relevance["x"]) < 1e-7


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("epsilon-plus-flat", ("flat", "zplus", "epsilon")),
        ("epsilon-plus", ("zplus", "zplus", "epsilon")),
        ("epsilon-alpha2-beta1-flat", ("flat", "alphabeta", "epsilon")),
        ("epsilon-alpha2-beta1", ("alphabeta", "alphabeta", "epsilon")),
        ("epsilon", ("epsilon", "epsilon", "epsilon")),
        ("epsilon-gamma-box", ("zbox", "gamma", "epsilon")),
    ],
)
def test_named_composites_give_first_conv_and_linear_layers_their_rules(name, expected):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(3, 4, 3), nn.ReLU(), nn.Conv1d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
    model = model.double().eval()
    x = torch.rand(1, 3, 8, dtype=torch.float64) - 0.5
    composite = plrp.composite(name, low=-0.5, high=0.5) if name.endswith("box") else plrp.composite(name)
    found = plrp.explain(model, x, composite=composite, target=1)
    steps = [
        oracles.linear_step("0", "x", model[0], (3, 8)), oracles.relu_step("a", "0"),
        oracles.linear_step("2", "a", model[2], (4, 6)), oracles.relu_step("b", "2"),
        oracles.linear_step("5", "b", model[5], (16,)),
    ]  # fmt: skip
    options = {"zbox": {"low": -0.5, "high": 0.5}}
    choice = dict(zip(("0", "2", "5"), expected, strict=True))
    walk = oracles.walk(
        steps, x.reshape(-1), 1, lambda step, first: (choice[step.name], options.get(choice[step.name], {}))
    )
    assert oracles.relative_difference(found.relevance.reshape(-1), walk.relevance["x"]) < 1e-9


class Turned(nn.Module):
    """Reads constants that are computed from buffers in every pass, as rotary positions are."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.turn = nn.Module()
        self.turn.register_buffer("angles", torch.rand(6))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(30):
            cosine, sine = self.turn.angles.cos(), self.turn.angles.sin()
            spare = [torch.rand(6) + n for n in range(3)]  # come and go: later tensors get their ids
            x = x * cosine + torch.relu(x) * sine
            del spare, cosine, sine
        return self.layer(x)


def test_entries_have_the_same_names_in_every_pass() -> None:
    model, x = Turned(), torch.rand(2, 6)
    names = [[op.name for op in record(model, x).ops] for _ in range(12)]
    assert all(found == names[0] for found in names)


@pytest.mark.parametrize(
    "moved",
    [
        lambda h: h.transpose(1, -1),
        lambda h: torch.swapaxes(h, 1, 2),
        lambda h: h[:, 1:],
        lambda h: h[..., None, ::2],
        lambda h: h[:, 0],
        lambda h: h.repeat_interleave(3, -2),
        lambda h: torch.repeat_interleave(h, 2, 1),
        lambda h: torch.repeat_interleave(h, torch.tensor([1, 0, 2]), 1),
    ],
)
def test_moves_hand_down_by_their_derivative(moved: Any) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    layer = nn.Linear(4, 4, dtype=torch.float64)
    weights = torch.randn_like(moved(x))
    trace = plrp.trace(lambda x: (moved(layer(x)) * weights).flatten(1).sum(1), x)
    (op,) = [op for op in trace.ops if op.kind in ("transpose", "swapaxes", "getitem", "repeat_interleave")]
    given = torch.randn(op.output.shape, dtype=torch.float64)
    (found,) = pass_on(op, [given], Booking(False), plrp.composite("epsilon"))
    (expected,) = transposed(op, [given], torch.float64, op.inputs)
    assert found is not None
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


# --- random numbers ---------------------------------------------------------------------------------------------------

POOLS = {2: F.fractional_max_pool2d, 3: F.fractional_max_pool3d}


@pytest.mark.parametrize("axes", POOLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_random_windows_are_those_of_the_forward_pass(axes: int, dtype: torch.dtype) -> None:
    """Relevance reaches the places that won there; on the way back nothing is drawn."""
    torch.manual_seed(0)
    layer, x = nn.Linear(2 * 4**axes, 3).to(dtype).eval(), torch.randn(3, 2, *[9] * axes).to(dtype)

    def pooled(x: Tensor, **options: Any) -> Any:
        torch.manual_seed(5)
        return POOLS[axes](x, 2, output_size=4, **options)

    trace = plrp.trace(lambda x: layer(pooled(x).flatten(1)), x)
    state = torch.get_rng_state()
    found = trace.explain(target=0, composite="epsilon")
    assert torch.equal(torch.get_rng_state(), state)
    largest, winners = pooled(x, return_indices=True)
    handed = largest.flatten(1).double() * layer.weight[0].double()
    expected = torch.zeros(x.flatten(2).shape, dtype=torch.float64)
    expected.scatter_add_(2, winners.flatten(2), handed.view(3, 2, -1))
    torch.testing.assert_close(found.relevance.flatten(2).double(), expected, rtol=1e-2, atol=1e-3)
    assert found.closing().max() < 1e-6


@pytest.mark.parametrize("inplace", [False, True])
def test_a_relu_with_random_slopes_is_refused_while_they_are_drawn(inplace: bool) -> None:
    net = nn.Sequential(nn.Linear(6, 6), nn.RReLU(0.0, 0.5, inplace), nn.Linear(6, 3))
    x = torch.randn(2, 6, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match=r"rrelu.* is active: explanations would be random. Call `model.eval\(\)`"):
        plrp.explain(net.train(), x)
    leaky = nn.Sequential(net[0], nn.LeakyReLU(0.25), net[2])
    assert torch.equal(plrp.explain(net.eval(), x).relevance, plrp.explain(leaky.eval(), x).relevance)


# --- nothing to explain -----------------------------------------------------------------------------------------------

NOBODY = torch.tensor([], dtype=torch.long)

EXPERTS = {
    "linear": nn.Linear(6, 6),
    "activation": nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.Linear(6, 6)),
    "in place": nn.Sequential(nn.Linear(6, 6), nn.ReLU(inplace=True)),
    "batch norm": nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)),
    "layer norm": nn.LayerNorm(6),
    "convolution": nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Conv1d(2, 2, 3, padding=1), nn.Flatten()),
    "max pool": nn.Sequential(nn.Unflatten(1, (2, 3)), nn.MaxPool1d(3, 1, 1), nn.Flatten()),
    "a gate": lambda h: h * torch.sigmoid(h),
    "attention": lambda h: (torch.softmax(h[:, :, None] @ h[:, None], -1) @ h[:, :, None])[..., 0],
}

INTO = {
    "index_add": lambda h, v: h.index_add(0, NOBODY, v),
    "index_add_": lambda h, v: h.clone().index_add_(0, NOBODY, v),
    "index_add of a buffer": lambda h, v: h + torch.zeros_like(h).index_add(0, NOBODY, v),
    "index_copy": lambda h, v: h.index_copy(0, NOBODY, v),
    "scatter": lambda h, v: h.scatter(0, NOBODY[:, None].expand(0, 6), v),
    "scatter_add": lambda h, v: h.scatter_add(0, NOBODY[:, None].expand(0, 6), v),
    "masked_scatter": lambda h, v: h.masked_scatter(torch.zeros(h.shape) > 0, v),
    "cat": lambda h, v: torch.cat([v, h]),
    "a sum": lambda h, v: h + v.sum(0),
    "item assignment": lambda h, v: with_rows(h, v),
}


def with_rows(h: Tensor, v: Tensor) -> Tensor:
    h = h.clone()
    h[NOBODY] = v
    return h


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(("expert", "into"), [*((e, "index_add") for e in EXPERTS), *(("activation", i) for i in INTO)])
def test_an_unused_expert_gets_no_relevance(batch: int, expert: str, into: str) -> None:
    torch.manual_seed(0)
    below, above, x = nn.Linear(6, 6).eval(), nn.Linear(6, 3).eval(), torch.randn(batch, 6)
    module = EXPERTS[expert].eval() if isinstance(EXPERTS[expert], nn.Module) else EXPERTS[expert]

    def net(x: Tensor) -> Tensor:
        h = below(x)
        return above(INTO[into](h, module(h[NOBODY])))

    for pruning in (None, plrp.Pruning(0.2), plrp.Pruning(0.2, redistribution="M")):
        found = plrp.explain(net, x, target=0, pruning=pruning)
        without = plrp.explain(lambda x: above(below(x)), x, target=0, pruning=pruning)
        torch.testing.assert_close(found.relevance, without.relevance, rtol=1e-3, atol=1e-4)
        assert found.closing().max() < 1e-6
    assert plrp.check(net, x)


def test_experts_chosen_by_the_input_are_explained_whoever_is_chosen() -> None:
    """Of two experts each token takes one: in a sequence of its own, a token's map is the same."""
    torch.manual_seed(0)
    below, above, experts = nn.Linear(6, 6), nn.Linear(6, 3), [nn.Linear(6, 6), nn.Linear(6, 6)]

    def net(x: Tensor) -> Tensor:
        h = below(x).flatten(0, 1)
        chosen, out = (h[:, 0] > 0).long(), torch.zeros_like(h)
        for number, expert in enumerate(experts):
            (rows,) = torch.where(chosen == number)
            out = out.index_add(0, rows, expert(h[rows]).relu())
        return above(out.view(*x.shape[:2], 6)).sum(1)

    tokens = torch.randn(8, 6)
    assert 0 < int((below(tokens)[:, 0] > 0).sum()) < 8
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # another input may choose others
        together = plrp.explain(net, tokens[None], target=0, composite="epsilon").relevance[0]
        for token, expected in zip(tokens, together, strict=True):
            alone = plrp.explain(net, token[None, None], target=0, composite="epsilon").relevance[0, 0]
            torch.testing.assert_close(alone, expected, rtol=1e-3, atol=1e-4)
