"""Differences to a reference by the fast walk: equal to the plain one, in stacks equal to one by one."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import plrp
from difference_networks import networks
from plrp.fast import limits, native
from plrp.fast.signed_branch import SignedBranch, share
from plrp.rules import Gamma, Part, SignedZPlus
from plrp.tape.maps import Convolution, ConvolutionForm, Weight


class Dilated(nn.Module):
    """Residual convolutions over sequences, with GELU, a max pool, a difference, strides and groups."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.down = nn.Conv1d(4, 8, 7, padding=3), nn.Conv1d(8, 8, 3, stride=2, groups=2)
        self.wide, self.far = nn.Conv1d(8, 8, 3, padding=2, dilation=2), nn.Conv1d(8, 8, 3, padding=4, dilation=4)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.stem(x))
        h = h + F.gelu(self.wide(h))
        h = F.max_pool1d(h, 3, 2, 1) - 0.5 * F.max_pool1d(self.far(h), 3, 2, 1)
        return self.head(F.relu(self.down(h)).mean(2))


def cases() -> dict[str, tuple[nn.Module, Tensor, Tensor]]:
    torch.manual_seed(7)
    model = Dilated().double().eval()
    x, x0 = torch.randn(2, 2, 4, 40, generator=torch.Generator().manual_seed(8)).double()
    named = ("cnn", "max pools", "average pools", "resnet", "vit", "transformer", "lstm", "gru")
    return {"dilated": (model, x, x0), **{name: case for name, case in networks().items() if name in named}}


CASES = cases()
PRUNINGS = [
    *(plrp.Pruning(p=p, redistribution=how) for p, how in itertools.product((0.1, 0.4), ("lambda", "M", "M-sign"))),
    plrp.Pruning(p=0.3, p_negative=0.1),
    plrp.Pruning(p=0.3, unit="position"),
]


@pytest.fixture(autouse=True)
def _small_networks_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FEWEST", 1)
    monkeypatch.setattr(limits, "NEURONS_BELOW", 0.6)
    monkeypatch.setattr(limits, "POSITIONS_BELOW", 1.0)


def explain(model: Any, x: Tensor, x0: Any, **options: Any) -> plrp.Explanation:
    return plrp.explain(model, x, reference=x0, **{"target": 1, **options})


# --- one walk and the other -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::plrp.BrokenArithmetic")
@pytest.mark.parametrize("composite", ["rescale", "rescale-gamma", "rescale-plus"])
@pytest.mark.parametrize("name", CASES)
def test_both_walks_agree(name: str, composite: str) -> None:
    model, x, x0 = CASES[name]
    for pruning in (None, *PRUNINGS):
        fast = explain(model, x, x0, composite=composite, pruning=pruning, layers=True)
        with plrp.plain_walk():
            plain = explain(model, x, x0, composite=composite, pruning=pruning, layers=True)
        pairs = [(fast.relevance, plain.relevance), *((fast.layers[key], plain.layers[key]) for key in plain.layers)]
        for one, other in pairs:
            assert (one - other).abs().max() <= 1e-9 * other.abs().max(), pruning
        assert fast.closing().max() < 1e-12
    unpruned = explain(model, x, x0, composite=composite).relevance
    for redistribution in ("lambda", "M", "M-sign"):
        none = plrp.Pruning(p=0.0, redistribution=redistribution)
        assert torch.equal(explain(model, x, x0, composite=composite, pruning=none).relevance, unpruned)


@pytest.mark.parametrize("composite", ["rescale", "rescale-gamma", "rescale-plus"])
@pytest.mark.parametrize("name", ["dilated", "max pools", "resnet"])
def test_compiled_loops_agree_in_float32(name: str, composite: str) -> None:
    model, x, x0 = (one.float() for one in CASES[name])
    try:
        for pruning in (None, plrp.Pruning(p=0.1), plrp.Pruning(p=0.4)):
            fast = explain(model, x, x0, composite=composite, pruning=pruning).relevance
            with plrp.plain_walk():
                plain = explain(model, x, x0, composite=composite, pruning=pruning).relevance
            assert (fast - plain).abs().max() <= 1e-3 * plain.abs().max()
    finally:
        model.double()


# --- γ and z⁺ as one branch -------------------------------------------------------------------------------------------


@given(st.integers(0, 1000), st.sampled_from([None, 0.0, 0.25, 1.0, 1e4]))
def test_one_branch_is_the_two_of_the_rule(seed: int, gamma: float | None) -> None:
    generator = torch.Generator().manual_seed(seed)
    form = ConvolutionForm((1,), (1,), (1,))
    layer = Convolution(torch.randn(5, 3, 3, generator=generator).double(), None, form)
    x = torch.randn(2, 3, 9, generator=generator).double()
    x[0, :, :4] = 0.0  # outputs that are exactly zero
    z, relevance = layer.apply(x, layer.weight), torch.randn(2, 5, 9, generator=generator).double()
    rule = SignedZPlus(0.0) if gamma is None else Gamma(gamma, 0.0)
    expected: Any = 0.0
    for branch in rule.branches(layer, x, z, False):
        d = branch.contributions()
        expected = expected + branch.hand(branch.part_of(relevance) / d.masked_fill(d == 0, torch.inf), x)
    g = share(rule, layer)
    assert g is not None
    one = SignedBranch(layer, (Part(x, layer.whole), Part(g * x.abs(), Weight(layer.weight.abs()))), z=z)
    d = one.contributions()
    received = one.hand(relevance / d.masked_fill(d == 0, torch.inf), x)
    assert (received - expected).abs().max() <= 1e-12 * expected.abs().max()
    assert share(Gamma(0.25), layer) is None  # with an ε
    assert share(Gamma(0.25, 0.0), layer.with_parameters(layer.weight, torch.ones(5, 1))) is None


def test_z_plus_gives_exactly_nothing_to_inputs_that_speak_against_all_outputs() -> None:
    torch.manual_seed(0)
    conv = nn.Conv1d(4, 16, 5, padding=2, bias=False)
    with torch.no_grad():
        conv.weight.abs_()
        conv.weight[:, 0] *= -0.01  # channel 0 speaks against every output, and decides none
    x = torch.rand(1, 4, 50)
    relevance = plrp.explain(
        nn.Sequential(conv, nn.Flatten(), nn.Linear(800, 2)), x, reference=torch.zeros_like(x), composite="rescale-plus"
    ).relevance
    assert (relevance[:, 0] == 0).all()
    assert (relevance[:, 1:] != 0).any()


def test_a_trace_remembers_the_denominators_of_each_form_apart() -> None:
    model, x, x0 = CASES["dilated"]
    trace = plrp.trace(model, x, reference=x0)
    for pruning in (None, *PRUNINGS[:3], None):
        again = trace.explain(target=1, composite="rescale-gamma", pruning=pruning).relevance
        fresh = explain(model, x, x0, composite="rescale-gamma", pruning=pruning).relevance
        assert torch.allclose(again, fresh, rtol=1e-9, atol=1e-12)


# --- several references -----------------------------------------------------------------------------------------------


class Counting(nn.Module):
    """A network that counts its passes, and may insist on a size of batch."""

    def __init__(self, only: int | None = None) -> None:
        super().__init__()
        self.inside, self.only, self.passes = Dilated(), only, list[Tensor]()

    def forward(self, x: Tensor) -> Tensor:
        self.passes.append(x.detach().clone())
        return self.inside(x.reshape(self.only or len(x), 4, -1))


def references(x: Tensor, count: int = 4) -> Tensor:
    return torch.randn(count, *x.shape, generator=torch.Generator().manual_seed(9)).to(x)


@pytest.mark.parametrize("target", [None, 2, [1, 3], plrp.targets.contrast(0, [1, 2])])
def test_references_in_one_batch_are_the_references_one_by_one(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    model, (_, x, _) = Counting().double().eval(), CASES["dilated"]
    for pruning in (None, plrp.Pruning(p=0.2)):
        stacked = explain(model, x, references(x), target=target, pruning=pruning)
        if not plrp.engine._PLAIN.get():
            assert any(len(one) == 8 for one in model.passes)
        model.passes.clear()
        with monkeypatch.context() as patch:
            patch.setattr(limits, "STACKED_BYTES", 1)
            single = explain(model, x, references(x), target=target, pruning=pruning)
        assert all(len(one) <= 2 for one in model.passes)
        assert torch.allclose(stacked.relevance, single.relevance, rtol=1e-9, atol=1e-12)
        assert stacked.reference is not None
        assert single.reference is not None
        for name in ("score", "scores", "relevance"):
            one, other = getattr(stacked.reference, name), getattr(single.reference, name)
            assert torch.allclose(one, other, rtol=1e-9, atol=1e-11)
        assert repr(stacked.target) == repr(single.target)
        assert torch.allclose(stacked.logits, single.logits)
        assert stacked.closing().max() < 1e-12


def test_groups_are_nearly_equal_and_hold_every_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    model, (_, x, _) = Counting().double().eval(), CASES["dilated"]
    bytes_of_two = plrp.tape.seam.tape_bytes(plrp.trace(model, x))
    monkeypatch.setattr(limits, "STACKED_BYTES", 3 * bytes_of_two)
    model.passes.clear()
    stack = references(x, 7)
    explain(model, x, stack)
    recorded = torch.cat([one for one in model.passes if not any(torch.equal(part, x) for part in one.split(2))])
    if not plrp.engine._PLAIN.get():
        assert torch.equal(recorded, stack.flatten(0, 1))


def test_a_model_for_one_size_of_batch_and_functions_take_references_one_by_one() -> None:
    model, (_, x, _) = Counting(only=2).double().eval(), CASES["dilated"]
    each = torch.stack([explain(model, x, x0).relevance for x0 in references(x)])
    assert torch.allclose(explain(model, x, references(x)).relevance, each.mean(0))
    model.passes.clear()
    explain(lambda x: model(x), x, references(x))
    assert all(len(one) <= 2 for one in model.passes)


@pytest.mark.parametrize("together", [True, False])
def test_a_sweep_records_every_reference_once(together: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, (_, x, _) = Counting().double().eval(), CASES["dilated"]
    monkeypatch.setattr(limits, "STACKED_BYTES", 1 << 24 if together else 1)
    stack, prunings = references(x), [None, plrp.Pruning(p=0.2), plrp.Pruning(p=0.4), plrp.Pruning(p=0.5)]
    trace = plrp.trace(model, x, reference=stack)
    model.passes.clear()
    swept = list(trace.sweep(prunings, target=1))
    recorded = torch.cat(model.passes)
    for x0 in stack[1:]:
        assert sum(torch.equal(part, x0) for part in recorded.split(2)) == 1
    for explanation, pruning in zip(swept, prunings, strict=True):
        asked = explain(model, x, stack, pruning=pruning)
        assert torch.allclose(explanation.relevance, asked.relevance, rtol=1e-9, atol=1e-12)
        assert explanation.pruning == pruning
        assert explanation.closing().max() < 1e-12


def test_prunings_of_one_reference_are_stacked(monkeypatch: pytest.MonkeyPatch) -> None:
    if not native.available() or plrp.engine._PLAIN.get():
        pytest.skip("stacks are for the compiled loops")
    from plrp.fast import stacked_walk

    walks: list[int] = []
    begin = stacked_walk.StackedWalk.__init__

    def counted(self: Any, trace: Any, cases: Any) -> None:
        walks.append(len(cases))
        begin(self, trace, cases)

    monkeypatch.setattr(stacked_walk.StackedWalk, "__init__", counted)
    for name in ("dilated", "max pools", "resnet", "average pools"):
        model, x, x0 = CASES[name]
        trace = plrp.trace(model, x, reference=x0)
        prunings = [plrp.Pruning(p=p) for p in (0.2, 0.3, 0.5)]
        for swept, pruning in zip(trace.sweep(prunings, target=1), prunings, strict=True):
            with plrp.plain_walk():
                alone = explain(model, x, x0, pruning=pruning).relevance
            assert (swept.relevance - alone).abs().max() <= 1e-9 * alone.abs().max()
    assert walks == [3] * 4
