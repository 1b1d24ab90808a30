"""Weights cached from one explanation to the next are never out of date, and go with the model."""

from __future__ import annotations

import copy
import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import plrp
from plrp import engine
from plrp.fast import native, weight_cache
from plrp.fast.fast_maps import OneChannel, fast_map
from plrp.fast.weight_cache import FastWeight

needs_compiled_loops = pytest.mark.skipif(not native.available(), reason="nothing is cached without the compiled loops")
needs_fast_walk = pytest.mark.skipif(engine._PLAIN.get(), reason="the plain walk caches nothing")


@pytest.fixture(autouse=True)
def empty_cache() -> Iterator[None]:
    gc.collect()
    weight_cache.clear()
    yield
    weight_cache.clear()


def small_net() -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        *(nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 8, 1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 144, 4)),
    )
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, -1, 1)
            nn.init.uniform_(module.running_var, 0.5, 2)
    return net.eval()


def photo(batch: int = 2) -> Tensor:
    return torch.randn(batch, 3, 12, 12, generator=torch.Generator().manual_seed(1))


def relevance(net: nn.Module, pruning: plrp.Pruning | None = None, composite: str = "epsilon-plus-flat") -> Tensor:
    found: Tensor = plrp.explain(net, photo(), target=1, pruning=pruning, composite=composite).relevance
    return found


def step(net: nn.Sequential) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    net(photo()).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def write_behind_torch(net: nn.Sequential) -> None:
    before = net[3].weight._version
    net[3].weight.data.mul_(-1)
    assert net[3].weight._version == before  # torch does not notice


def swap_two_numbers(net: nn.Sequential) -> None:
    flat = net[3].weight.data.view(-1)
    flat[[3, 4]] = flat[[4, 3]]


def load_others(net: nn.Sequential) -> None:
    net.load_state_dict({name: t + 0.1 if t.is_floating_point() else t for name, t in net.state_dict().items()})


def through_numpy(net: nn.Sequential) -> None:
    net[3].weight.detach().numpy()[5] = 0.25


def other_scale(net: nn.Sequential) -> None:
    net[4].running_var.data[2] *= 3


CHANGES: list[Callable[[nn.Sequential], None]] = [
    *(step, write_behind_torch, swap_two_numbers, load_others, through_numpy, other_scale)
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("pruning", [None, plrp.Pruning(0.5), plrp.Pruning(0.3, redistribution="M")])
def test_whatever_changes_a_weight_is_seen(
    change: Callable[[nn.Sequential], None], pruning: plrp.Pruning | None
) -> None:
    net = small_net()
    before = relevance(net, pruning)
    change(net)
    after = relevance(net, pruning)
    assert not torch.equal(after, before)
    assert torch.equal(after, relevance(copy.deepcopy(net), pruning))


FORMER_KEYS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)


@needs_compiled_loops
@pytest.mark.parametrize("chain", range(4))
def test_no_weights_can_be_made_to_share_a_fingerprint(chain: int) -> None:
    """While the keys were constants, a weight equal to one of them hid whatever stood beside it."""
    linear = nn.Linear(16, 1, bias=False)
    words = linear.weight.data.view(torch.int64)
    words[0, 2 * chain] = FORMER_KEYS[chain] - (1 << 64 if FORMER_KEYS[chain] >> 63 else 0)
    fingerprints = []
    for value in (0.5, 0.75):
        linear.weight.data[0, 4 * chain + 2] = value
        found = weight_cache.derived_once(linear.weight.data, last=False)
        native.call(
            *("weights", linear.weight.data, None, 1, 16, 1, 1, None, 1, None, found.rows, found.fingerprints, 1)
        )
        fingerprints.append(int(found.fingerprints))
    assert fingerprints[0] != fingerprints[1]


@needs_fast_walk
@needs_compiled_loops
def test_what_has_not_changed_is_not_derived_again() -> None:
    net = small_net()
    before = relevance(net)
    cached = [one for known in weight_cache._cache.values() for one in known.values()]
    fingerprints = [one.fingerprints.clone() for one in cached]
    assert cached
    for one in cached:
        one.rows.mul_(2)  # were it derived again, this would be gone
    changed = relevance(net)
    found = [one for known in weight_cache._cache.values() for one in known.values()]
    assert [one.rows.data_ptr() for one in found] == [one.rows.data_ptr() for one in cached]
    assert all(map(torch.equal, fingerprints, (one.fingerprints for one in found)))
    assert not torch.equal(before, changed)


@needs_compiled_loops
@given(st.data())
@settings(max_examples=200, deadline=None)
def test_every_bit_of_a_row_is_seen(data: st.DataObject) -> None:
    inputs, taps = data.draw(st.integers(1, 40)), data.draw(st.sampled_from([1, 3]))
    raw = torch.randn(3, inputs, taps, generator=torch.Generator().manual_seed(inputs))
    scale = torch.rand(3, generator=torch.Generator().manual_seed(taps))
    every = torch.arange(3, dtype=torch.int32)
    FastWeight(raw, scale, 1, cached=True).inputs_last(every)  # derived, and cached
    at, bit = data.draw(st.integers(0, raw.numel() - 1)), data.draw(st.integers(0, 31))
    flipped = raw.view(-1).view(torch.int32)
    flipped[at] ^= 1 << bit if bit < 31 else -(1 << 31)
    found = FastWeight(raw, scale, 1, cached=True).inputs_last(every)
    expected = FastWeight(raw, scale, 1).inputs_last(every)
    assert torch.equal(found.nan_to_num(), expected.nan_to_num())
    assert weight_cache._cache  # it was not derived anew because nothing is cached


@needs_fast_walk
@needs_compiled_loops
def test_it_goes_with_the_model() -> None:
    net = small_net()
    relevance(net)
    assert 0 < weight_cache.size() <= 2 * sum(p.nbytes for p in net.parameters())
    del net
    gc.collect()
    assert weight_cache.size() == 0


@needs_compiled_loops
def test_no_more_is_kept_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    net = small_net()
    expected = relevance(net)
    weight_cache.clear()
    monkeypatch.setattr(weight_cache, "MOST", 1)
    assert torch.equal(relevance(net), expected)
    assert weight_cache.size() == 0


class Tied(nn.Module):
    """One convolution used twice, a BatchNorm of its own after each use: W⁺ differs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.first = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(3, 8, 3)
        self.norms = nn.ModuleList([nn.BatchNorm2d(8), nn.BatchNorm2d(8)])
        nn.init.uniform_(self.norms[0].weight, 0.5, 2)
        nn.init.uniform_(self.norms[1].weight, -2, -0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        for norm in self.norms:
            x = norm(self.conv(x)).relu()
        return x.flatten(2).sum(2)


@pytest.mark.parametrize("pruning", [None, plrp.Pruning(0.4)])
def test_one_weight_under_two_scales(pruning: plrp.Pruning | None) -> None:
    net = Tied().eval()
    for _ in range(3):
        found = relevance(net, pruning)
        with plrp.plain_walk():
            expected = relevance(net, pruning)
        assert torch.allclose(found, expected, rtol=1e-4, atol=1e-6 * float(expected.abs().max()))


@needs_fast_walk
@needs_compiled_loops
def test_a_trace_goes_on_with_the_weights_it_began_with() -> None:
    """What another explanation finds out of date is not written over: this one may still be reading it."""
    net = small_net()
    trace = plrp.trace(net, photo())
    before = trace.explain(target=1).relevance
    made = [m.rows.clone() for mine in weight_cache._cache.values() for m in mine.values()]
    held = [m.rows for mine in weight_cache._cache.values() for m in mine.values()]
    step(net)
    relevance(net)
    assert held
    assert all(map(torch.equal, made, held))
    assert before.isfinite().all()


@pytest.mark.parametrize("form", [{}, {"stride": 2, "padding": 1}, {"dilation": 2}, {"padding": "same"}])
@pytest.mark.parametrize("side", [9, 12])
def test_constants_of_flat_are_how_many_inputs_are_read(form: dict[str, int | str], side: int) -> None:
    conv = nn.Conv2d(3, 5, 4, **form)
    x = torch.randn(2, 3, side, side)
    trace = plrp.trace(conv, x)
    found = trace.ops[0].map
    assert found is not None
    one_channel = fast_map(found).flat
    assert isinstance(one_channel, OneChannel)
    counted = nn.functional.conv2d(torch.ones(1, 3, side, side), torch.ones_like(conv.weight), None, **form)
    d = one_channel.of_ones(x.shape)
    assert torch.equal(d, counted[:, :1])
    assert one_channel.of_ones((2 * x).shape) is d  # made once
    assert plrp.rules.Flat().branches(found, x, None, nonnegative=False)[0].denominator is None


class Refilled(nn.Module):
    """One parameter that is given other data for every layer, and none after the last: weights streamed from afar."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.work = nn.Parameter(torch.zeros(1))
        self.bank, self.head = [torch.randn(3, 3, 3, 3) for _ in range(3)], nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.bank:
            self.work.data = weight
            x = nn.functional.conv2d(x, self.work, padding=1).relu()
        self.work.data = torch.empty(0)
        return self.head(x.flatten(2).mean(2))


class Written(nn.Module):
    """The same with its weights in their places."""

    def __init__(self, of: Refilled) -> None:
        super().__init__()
        self.bank, self.head = of.bank, of.head

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.bank:
            x = nn.functional.conv2d(x, weight, padding=1).relu()
        return self.head(x.flatten(2).mean(2))


@pytest.mark.parametrize("pruning", [None, plrp.Pruning(0.2)])
def test_a_parameter_that_is_refilled_while_the_model_runs(pruning: plrp.Pruning | None) -> None:
    net = Refilled().eval()
    assert torch.equal(relevance(net, pruning), relevance(Written(net).eval(), pruning))


class Careless(plrp.rules.ZPlus):
    """A rule of a user's, which writes into what it is given."""

    def branches(self, map: Any, x: Tensor, z: Tensor | None, nonnegative: bool) -> list[Any]:
        map.positive.full.sqrt_()
        map.negative.full.zero_()
        return super().branches(map, x, z, nonnegative)


def test_a_rule_that_writes_into_weights_spoils_none_of_the_others() -> None:
    net = small_net()
    before = [relevance(net), relevance(net, composite="epsilon-alpha2-beta1")]
    careless = plrp.Composite([(plrp.composites.is_conv, Careless()), (plrp.composites.is_any, plrp.rules.Epsilon())])
    plrp.explain(net, photo(), target=1, composite=careless)
    assert all(map(torch.equal, before, [relevance(net), relevance(net, composite="epsilon-alpha2-beta1")]))


def test_nothing_of_the_tape_asks_for_gradients() -> None:
    recorded = plrp.trace(small_net(), photo())
    for op in recorded.layers:
        assert op.map is not None
        parts = op.map.raw, op.map.scale, op.map.bias
        assert not any(t.requires_grad for t in parts if t is not None)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_does_not_wait_for_a_thread_that_it_has_not() -> None:
    script = """
import os, signal, threading
import torch
from plrp.fast import weight_cache
torch.set_num_threads(1)
begun, over = threading.Event(), threading.Event()
def hold():
    with weight_cache._lock:
        begun.set()
        over.wait()
threading.Thread(target=hold, daemon=True).start()
begun.wait()
child = os.fork()
if child == 0:
    signal.alarm(20)
    weight_cache.size()
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
over.set()
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "7"
