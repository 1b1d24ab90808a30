"""A one-shot explanation keeps less of the forward pass, and overwrites what nobody needs; it answers the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from nets import KINDS, network, target
from torch import Tensor, nn

import plrp
from plrp.explanation import explain_trace
from plrp.request import Request
from plrp.tape.trace import Trace, record

PRUNINGS = [None, plrp.Pruning(p=0.3), plrp.Pruning(p=0.3, redistribution="M")]


class Written(nn.Module):
    """Two convolutions, a BatchNorm and a head; what happens between them differs."""

    def __init__(self, between: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.between = between
        self.a, self.b, self.c = nn.Conv1d(2, 4, 3, padding=1), nn.Conv1d(4, 4, 3, padding=1), nn.Conv1d(4, 4, 1)
        self.norm, self.head, self.relu = nn.BatchNorm1d(4), nn.Linear(4, 3), nn.ReLU(inplace=True)
        nn.init.normal_(self.norm.running_mean)
        nn.init.uniform_(self.norm.running_var, 0.5, 2)
        nn.init.normal_(self.norm.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.between(self, x).mean(2))


WAYS: dict[str, Callable[[Any, Tensor], Tensor]] = {}


def way(function: Callable[[Any, Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    WAYS[function.__name__] = function
    return function


@way
def activation_functions_in_place(m: Any, x: Tensor) -> Tensor:
    h = F.leaky_relu_(m.a(x), 0.2)
    h = torch.relu_(m.b(h))
    h = F.silu(m.c(h), inplace=True)
    return F.elu(m.c(h), inplace=True).clamp_(min=0)


@way
def methods_in_place_one_after_the_other(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    h.relu_()
    h.mul_(2).add_(1)
    h = m.b(h)
    h.clamp_(min=0)
    h /= 3
    return h


@way
def a_sum_and_then_in_place(m: Any, x: Tensor) -> Tensor:
    h = m.relu(m.a(x))
    h = m.relu(h + m.b(h))
    g = m.c(h)
    g += h
    g = m.relu(g)
    g = g.add_(h).relu_()
    return torch.add(g, m.b(g), alpha=0.5).relu_()


@way
def a_tensor_added_to_itself(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    h = (h + h).relu_()
    return m.relu(m.b(h) + h[:, :, :1])


@way
def one_module_many_times(m: Any, x: Tensor) -> Tensor:
    h = m.relu(m.a(x))
    h = m.relu(m.b(h))
    return m.relu(m.norm(m.b(h)))


@way
def read_once_more_after_the_activation(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    up = F.relu(h)
    down = F.relu(-h)
    return F.relu(m.b(up) + m.c(down) + h)


@way
def changed_after_the_activation_read_it(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    up = F.relu(h)
    h.mul_(-1)
    return F.relu(m.b(up) + m.c(h))


@way
def a_norm_that_is_folded_and_one_that_is_not(m: Any, x: Tensor) -> Tensor:
    h = m.relu(m.norm(m.a(x)))
    g = m.b(h)
    return m.relu(m.norm(g)) + F.relu(g)


@way
def a_norm_of_a_sum(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    h = h + m.c(F.relu(h))
    return F.relu(m.b(m.relu(m.norm(h))))


@way
def the_input_itself(m: Any, x: Tensor) -> Tensor:
    x.relu_()
    x.mul_(3)
    return m.relu(m.a(x))


@way
def views_of_what_was_overwritten(m: Any, x: Tensor) -> Tensor:
    h = m.a(x).relu_()
    left, right = h.chunk(2, 1)
    return m.b(torch.cat([right, left], 1).relu_())


@way
def let_go_by_name(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    g = F.relu(h)
    del h
    h = m.b(g)
    del g
    h = F.relu(h)
    return h + m.c(h).relu_()


def explained(trace: Trace, composite: str, pruning: plrp.Pruning | None, where: Any = None) -> plrp.Explanation:
    return explain_trace(trace, Request(target=where, composite=composite, pruning=pruning, layers=True))


def same(found: plrp.Explanation, expected: plrp.Explanation) -> None:
    pairs = [(found.relevance, expected.relevance), (found.score, expected.score), (found.logits, expected.logits)]
    assert found.layers.keys() == expected.layers.keys()
    pairs += [(found.layers[name], expected.layers[name]) for name in expected.layers]
    for a, b in pairs:
        assert float((a - b).abs().sum()) <= 1e-9 * float(b.abs().sum())


def held(trace: Trace) -> int:
    """The bytes of all tensors on the tape but the model's own."""
    storages = {}
    for value in [*trace.inputs, *(value for op in trace.ops for value in op.outputs)]:
        if not value.forgotten:
            storages[value.data.untyped_storage().data_ptr()] = value.data.untyped_storage().nbytes()
    return sum(storages.values())


@pytest.mark.parametrize("pruning", PRUNINGS, ids=repr)
@pytest.mark.parametrize("name", WAYS)
def test_what_is_forgotten_makes_no_difference(name: str, pruning: plrp.Pruning | None) -> None:
    model = Written(WAYS[name]).double().eval()
    x = torch.randn(2, 2, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    given, state = x.clone(), {key: value.clone() for key, value in model.state_dict().items()}
    with torch.no_grad():
        output = model(x.clone())
    for composite in ("epsilon-plus-flat", "epsilon-alpha2-beta1", "epsilon", "epsilon-gamma-box"):
        whole = record(model, x)
        assert not any(value.forgotten for op in whole.ops for value in op.outputs)
        expected = explained(whole, composite, pruning)
        assert torch.equal(expected.logits, output)
        frugal = record(model, x, frugal=True)
        assert any(value.forgotten for op in frugal.ops for value in op.outputs)
        assert held(frugal) < held(whole)
        same(explained(frugal, composite, pruning), expected)  # whatever a rule asks for is computed again
        same(explained(frugal, composite, pruning), expected)
        once = plrp.explain(model, x, composite=composite, pruning=pruning, layers=True)
        same(once, expected)
        assert torch.equal(once.logits, output)
        assert once.ledger
    assert torch.equal(x, given)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(sorted(KINDS)),
    st.sampled_from([1, 2]),
    st.integers(0, 10_000),
    st.sampled_from(["epsilon-plus-flat", "epsilon", "epsilon-gamma-box"]),
    st.sampled_from(PRUNINGS),
)
def test_networks_that_forget_are_explained_like_those_that_do_not(
    kind: str, axes: int, seed: int, composite: str, pruning: plrp.Pruning | None
) -> None:
    model, x = network(kind, axes, seed, torch.float64)
    expected = explained(record(model, x), composite, pruning, target(kind, axes))
    same(explained(record(model, x, frugal=True), composite, pruning, target(kind, axes)), expected)
    same(plrp.explain(model, x, target=target(kind, axes), composite=composite, pruning=pruning, layers=True), expected)


@pytest.mark.parametrize("frugal", [True, False])
def test_an_overwritten_tensor_with_another_view_alive_is_refused(frugal: bool) -> None:
    def between(m: Any, x: Tensor) -> Tensor:
        h = m.a(x)
        other = h[:, :2]
        h.relu_()
        return h + other.sum(1, keepdim=True)

    with pytest.raises(plrp.TraceError, match="another view"):
        record(Written(between).eval(), torch.randn(1, 2, 9), frugal=frugal)


def test_a_pre_activation_that_the_model_returns_is_kept() -> None:
    class Both(Written):
        def forward(self, x: Tensor) -> Any:
            h = self.a(x)
            return {"logits": self.head(F.relu(h).mean(2)), "before": h}

    model, x = Both(lambda m, x: x).double().eval(), torch.randn(2, 2, 9, dtype=torch.float64)
    for pick in (lambda out: out["logits"][:, 1], lambda out: out["before"][:, 0].sum(1)):
        found = plrp.explain(model, x, target=pick)
        plain = plrp.trace(model, x).explain(target=pick)
        assert torch.allclose(found.relevance, plain.relevance, rtol=1e-10, atol=0)
        assert torch.equal(found.logits["before"], model(x)["before"])
