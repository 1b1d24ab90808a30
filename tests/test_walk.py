"""The plain walk: it runs no fast code, asks a device nothing on its way, and books what padding wins."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import plrp
from difference_networks import networks
from plrp.composites import _NAMED
from plrp.pruning import Site
from plrp.request import Request
from plrp.rules import Branch, Part
from plrp.tape.maps import Weight
from plrp.tape.values import Value
from plrp.walk import Walk


def test_the_reference_runs_no_fast_code() -> None:
    program = """
import sys, torch, plrp
from torch import nn
model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)).eval()
x = torch.randn(2, 3, 8, 8)
with plrp.plain_walk():
    for pruning in (None, plrp.Pruning(0.2), plrp.Pruning(0.2, redistribution="M")):
        assert plrp.explain(model, x, pruning=pruning).closing().max() < 1e-6
    list(plrp.trace(model, x).sweep([plrp.Pruning(0.2), plrp.Pruning(0.4)]))
loaded = [name for name in sys.modules if name.startswith("plrp.fast")]
assert not loaded, loaded
plrp.explain(model, x)
assert "plrp.fast.fast_walk" in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class Noted(Exception):
    """Fast code ran."""


def _refuse(*_: Any, **__: Any) -> Any:
    raise Noted


def test_what_is_begun_with_the_plain_walk_is_finished_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger of an explanation, and the rest of a sweep, are of the same walk, wherever they are read."""
    if plrp.engine._fast("fast_walk") is None:
        pytest.skip("there is no other walk where fast paths are off")
    torch.manual_seed(0)
    model, x = (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)).eval(),
        torch.randn(2, 3, 8, 8),
    )
    trace = plrp.trace(model, x)
    fast = trace.explain(pruning=plrp.Pruning(0.2)).relevance  # leaves its denominators in the trace
    for key in [key for key in trace.memory or () if getattr(key[0], "__module__", "").startswith("plrp.fast")]:
        held = (trace.memory or {})[key]
        (trace.memory or {})[key] = (held[0], held[1] * 2 if isinstance(held[1], Tensor) else held[1])
    with plrp.plain_walk():
        alone = plrp.explain(model, x, pruning=plrp.Pruning(0.2))
        traced = trace.explain(pruning=plrp.Pruning(0.2))
        sweep = trace.sweep([plrp.Pruning(0.2), plrp.Pruning(0.4)])
    torch.testing.assert_close(traced.relevance, fast, rtol=1e-4, atol=1e-6)
    monkeypatch.setattr("plrp.fast.fast_walk.FastWalk.__init__", _refuse)
    assert alone.closing().max() < 1e-6
    assert traced.survivors("3")
    assert len(list(sweep)) == 2
    with pytest.raises(Noted):
        plrp.explain(model, x)


# What makes the host wait for a device: a value read, or a shape that depends on values.
ASKS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "is_nonzero", "equal", "_to_copy", "item")


class Questions(TorchDispatchMode):
    """Counts what a walk asks a device."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.listening = False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        boolean_index = name == "index" and any(t is not None and t.dtype == torch.bool for t in args[1])
        elsewhere = name != "_to_copy" or (kwargs or {}).get("device") is not None
        if self.listening and ((name.startswith(ASKS) and elsewhere) or boolean_index):
            self.asked.append(name)
        return function(*args, **(kwargs or {}))


HOST = ("cpu", "numpy", "tolist", "item", "__bool__", "__float__", "__int__", "__index__", "__contains__", "__array__")


class HostCalls(TorchFunctionMode):
    """Adds the calls that bring a tensor to the host; of one that is there already some reach no dispatcher."""

    def __init__(self, questions: Questions) -> None:
        super().__init__()
        self.questions = questions

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function == Tensor.is_cpu.__get__:  # type: ignore[attr-defined]
            return False
        name = getattr(function, "__name__", "")
        if self.questions.listening and (
            name in HOST or (name == "to" and "cpu" in [a for a in args if type(a) is str])
        ):
            self.questions.asked.append(name)
        return function(*args, **(kwargs or {}))


@contextmanager
def elsewhere(patch: pytest.MonkeyPatch) -> Iterator[Questions]:
    """A walk as on another device, between the last layer and the first."""
    questions, hand_down, groups = Questions(), Walk.hand_down, Site.groups

    def listening(walk: Any, op: Any, given: Any) -> None:
        questions.listening = not op.first
        hand_down(walk, op, given)
        questions.listening = not op.first

    def on_host(site: Site, *layout: Any) -> Any:  # the numbers of groups are made there, from shapes alone
        heard, questions.listening = questions.listening, False
        found = groups(site, *layout)
        questions.listening = heard
        return found

    patch.setattr(Walk, "hand_down", listening)
    patch.setattr(Site, "groups", on_host)
    with questions, HostCalls(questions):
        yield questions


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1)
        self.norm, self.head = nn.BatchNorm2d(8), nn.Linear(8 * 49, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.a(x)))
        x = nn.functional.max_pool2d(torch.relu(self.b(x) + self.c(x)), 2)
        return self.head(x.flatten(1))


PRUNINGS = [
    None,
    plrp.Pruning(0.2),
    plrp.Pruning(0.2, redistribution="M"),
    plrp.Pruning(p=None, sparsity_gain=1.0),
    plrp.Pruning(p=None, sparsity_gain=1.0, measure="gini"),
]


@pytest.mark.parametrize("pruning", PRUNINGS, ids=str)
@pytest.mark.parametrize("composite", ["epsilon-plus-flat", "epsilon", "epsilon-alpha2-beta1", "epsilon-gamma-box"])
def test_nothing_is_asked_of_a_device_on_the_way(
    pruning: plrp.Pruning | None, composite: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model, x = Net().eval(), torch.randn(2, 3, 16, 16)
    chosen = plrp.composite(composite)
    trace = plrp.trace(model, x)
    monkeypatch.setattr(Value, "forget", lambda value: None)
    with elsewhere(monkeypatch) as questions, torch.no_grad():
        Walk(trace, Request(composite=chosen, pruning=pruning).bound(trace)).run()
    assert questions.asked == []


UNITS = [plrp.Pruning(0.2, unit=unit) for unit in ("position", "channel")]
MORE = [*PRUNINGS, *UNITS, plrp.Pruning(0.2, redistribution="M-sign"), plrp.Pruning(0.2, conserve=False)]
FAMILIES = networks(torch.float32)
REFUSED = (ValueError, plrp.TraceError, plrp.UnsupportedOperation)
WHOLE = ("cnn", "max pools", "average pools", "resnet", "vit", "transformer", "lstm", "gru")  # the rest is operations


@pytest.mark.parametrize("reference", [False, True], ids=["", "reference"])
@pytest.mark.parametrize(
    ("name", "prunings"),
    [
        ("cnn", MORE[4:6]),
        ("vit", MORE[4:6]),
        *(pytest.param(n, MORE, marks=pytest.mark.slow) for n in (*WHOLE, "operations")),
    ],
)
def test_no_family_asks_a_device_anything(
    name: str, prunings: list[plrp.Pruning | None], reference: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every composite and pruning over every family of networks, attention and references included."""
    monkeypatch.setattr(Value, "forget", lambda value: None)
    heard, walked = list[str](), 0
    for network in [name] if name != "operations" else [n for n in FAMILIES if n not in WHOLE]:
        model, x, x0 = FAMILIES[network]
        try:
            trace = plrp.trace(model, x, reference=x0) if reference else plrp.trace(model, x)
        except REFUSED:
            continue  # an operation that has a meaning against a reference only
        for composite in _NAMED:
            for pruning in prunings:
                try:
                    request = Request(composite=composite, pruning=pruning, target=1).bound(trace)
                    walk = Walk(trace, request)
                except REFUSED:
                    continue  # no composite for these operations, or no unit of these layers
                with monkeypatch.context() as patch, elsewhere(patch) as questions, torch.no_grad(), suppress(*REFUSED):
                    walk.run()
                    walked += 1
                heard += [f"{network}, {composite}, {pruning}: {asked}" for asked in questions.asked]
    assert not heard, "\n".join(dict.fromkeys(heard))
    assert walked > 6


def test_questions_are_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the test above could not fail."""
    questions = Questions()
    with questions, HostCalls(questions):
        questions.listening = True
        x = torch.randn(4)
        float(x.sum())
        x.nonzero()
        x[x > 0]
        x.tolist()
        x.to("cpu")
    assert {"_local_scalar_dense", "nonzero", "index", "tolist", "to"} <= set(questions.asked)


# --- windows of a pool that lie wholly in padding ---------------------------------------------------------------------


class Maxima(nn.Module):
    """A pool that returns the places of its maxima too, which nobody reads."""

    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        maxima: Tensor = self.pool(x)[0]
        return maxima


POOLS: dict[str, tuple[Any, Any, tuple[int, ...]]] = {
    "1D": (nn.Conv1d, nn.MaxPool1d(2, 1, 1, 4), (3,)),
    "2D": (nn.Conv2d, nn.MaxPool2d((2, 1), 1, (1, 0), (4, 1)), (3, 8)),
    "2D with places": (nn.Conv2d, Maxima(nn.MaxPool2d((2, 1), 1, (1, 0), (4, 1), return_indices=True)), (3, 8)),
    "3D": (nn.Conv3d, nn.MaxPool3d((2, 1, 1), 1, (1, 0, 0), (4, 1, 1)), (3, 4, 4)),
}


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("pruning", [None, plrp.Pruning(0.2), plrp.Pruning(0.2, redistribution="M")], ids=str)
def test_relevance_of_windows_wholly_in_padding_is_booked(name: str, pruning: plrp.Pruning | None) -> None:
    """They have no winner: the constant keeps what it is handed, nothing is written outside the plane."""
    conv, pool, plane = POOLS[name]
    torch.manual_seed(0)
    model = nn.Sequential(conv(3, 64, 1), pool, nn.ReLU(), conv(64, 64, 1), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10))
    model, x = model.eval(), torch.randn(2, 3, *plane)
    model(x)
    everywhere = plrp.Composite([(plrp.composites.is_any, plrp.rules.WSquare())])
    with plrp.plain_walk():
        expected = plrp.trace(model, x).explain(composite=everywhere, pruning=pruning)
        assert expected.closing().max() < 1e-6
    found = plrp.trace(model, x).explain(composite=everywhere, pruning=pruning)
    assert found.closing().max() < 1e-6
    torch.testing.assert_close(found.relevance, expected.relevance, rtol=1e-4, atol=1e-6)
    pooled = [row for row in expected.ledger if row["op"].startswith("max_pool")]
    assert pooled
    assert all(row["absorbed_constant"] != 0 for row in pooled)


def test_other_devices_take_the_plain_walk() -> None:
    from plrp.engine import choose_walk

    trace = plrp.trace(nn.Linear(3, 2), torch.randn(1, 3))
    request = Request(composite="epsilon").bound(trace)
    fast = plrp.engine._fast("fast_walk")  # none within --plain-walk and --without-fast
    assert type(choose_walk(trace, request)) is (Walk if fast is None else fast.FastWalk)
    trace.inputs[0].data = trace.inputs[0].data.to("meta")
    assert type(choose_walk(trace, request)) is Walk


def test_the_signs_of_contributions_are_told_apart_without_asking_the_device() -> None:
    """PLRP-M-sign: a tensor on the meta device has no values to ask for."""
    x, weight = torch.empty(2, 3, device="meta"), Weight(torch.empty(4, 3, device="meta"))
    positive, negative = Branch(None, (Part(x, weight),)).by_sign()  # type: ignore[arg-type]
    assert len(positive.parts) == len(negative.parts) == 2


class _OnlyGated(nn.Module):
    """The only convolution that reads h feeds a gate, which relevance never reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.gate, self.head = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 6, 1), nn.Linear(6 * 36, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        return self.head((h * torch.sigmoid(self.gate(h))).flatten(1))


@pytest.mark.parametrize("redistribution", ["lambda", "M"])
def test_a_tensor_is_pruned_only_where_relevance_passes_one_of_its_layers(redistribution: str) -> None:
    """Relevance comes to h over the product alone, so h is no input of a layer on its way, and is not cut."""
    torch.manual_seed(0)
    trace = plrp.trace(_OnlyGated().eval(), torch.rand(2, 3, 8, 8))
    found = trace.explain(pruning=plrp.Pruning(p=0.4, redistribution=redistribution))
    assert [row["layer"] for row in found.ledger if row["op"] == "prune" and row["sample"] == 0] == ["head"]
    uncut = trace.explain(pruning=plrp.Pruning(p=0.4, redistribution=redistribution, layers={"gate": 0.0}))
    assert torch.equal(found.relevance, uncut.relevance)


def test_a_trace_explains_with_a_rules_own_tensors_whatever_it_explained_before() -> None:
    """Denominators are remembered by the ids of such tensors, so a new tensor must not get the id of an old one."""
    torch.manual_seed(0)
    model, x = nn.Linear(6, 3).eval(), torch.rand(2, 6)
    trace = plrp.trace(model, x)

    def relevance(trace: plrp.Trace, low: Any) -> Tensor:
        composite = plrp.Composite([(plrp.composites.is_any, plrp.rules.ZBox(low, 2.0))])
        return trace.explain(composite=composite).relevance

    expected = [relevance(plrp.trace(model, x), -float(low)) for low in range(9)]
    for low in range(9):
        assert torch.equal(relevance(trace, torch.tensor(-float(low))), expected[low])
        gc.collect()
