"""Passes over whole tensors, in either layout, are the formulas of `rules.py` and `passing.py`, to the last bit."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from nets import KINDS, network, target
from torch import Tensor, nn

import plrp
from plrp import engine
from plrp.fast import channels_last, fast_walk, limits, native
from plrp.fast import whole_tensors as whole
from plrp.fast.neuron_layers import Geometry, to_winners
from plrp.fast.neurons import Neurons, Rows, add, dense, dense_last

pytestmark = pytest.mark.skipif(not native.available(), reason="no compiled loops here")

# From one entry to more than a tile of places and a vector of channels, and enough for several threads.
shapes = st.one_of(
    st.tuples(st.integers(1, 3), st.integers(1, 40), st.integers(1, 70)),
    st.tuples(st.integers(1, 3), st.integers(1, 20), st.integers(1, 12), st.integers(1, 12)),
    st.sampled_from([(2, 64, 31, 33), (1, 130, 23, 29), (0, 3, 4, 4)]),
)
seeds = st.integers(0, 2**31)


def drawn(shape: tuple[int, ...], seed: int) -> Tensor:
    """Numbers of both signs, many of them zero."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator) * (torch.rand(shape, generator=generator) < 0.7)


def layouts(tensor: Tensor) -> list[Tensor]:
    return [tensor, tensor.movedim(1, -1).contiguous().movedim(-1, 1)]


@settings(max_examples=60, deadline=None)
@given(shapes, seeds)
def test_turning_changes_the_layout_and_nothing_else(shape: tuple[int, ...], seed: int) -> None:
    tensor = drawn(shape, seed)
    found = channels_last.to_channels_last(tensor)
    assert torch.equal(found, tensor)
    assert found.movedim(1, -1).is_contiguous()
    assert channels_last.channels_last(found) != found.is_contiguous()


@settings(max_examples=80, deadline=None)
@given(shapes, seeds, st.booleans(), st.sampled_from([1e-6, 0.25]))
def test_quotients_are_those_of_the_formula(shape: tuple[int, ...], seed: int, one_sign: bool, epsilon: float) -> None:
    r, d = drawn(shape, seed), drawn(shape, seed + 1)
    d = d.abs() if one_sign else d
    expected = r / (d + epsilon if one_sign else d + torch.copysign(torch.full_like(d, epsilon), d))
    for relevance, denominator in zip(layouts(r), layouts(d), strict=True):
        found = whole.divide(relevance, denominator, epsilon, one_sign)
        assert found is not None
        assert torch.equal(found, expected)
        into = denominator.clone()
        assert whole.divide(relevance, into, epsilon, one_sign, out=into) is into  # d itself may be written over
        assert torch.equal(into, expected)


def test_quotients_of_unlike_layouts_are_left_to_torch() -> None:
    r, d = drawn((2, 3, 4, 5), 0), drawn((2, 3, 4, 5), 1)
    assert whole.divide(layouts(r)[1], d, 1e-6, False) is None
    assert whole.divide(r[:1], d, 1e-6, False) is None  # broadcast
    assert whole.divide(r.double(), d.double(), 1e-6, False) is None


@settings(max_examples=80, deadline=None)
@given(shapes, seeds, st.booleans())
def test_a_sum_is_split_as_the_formula_says_in_the_layout_of_its_relevance(
    shape: tuple[int, ...], seed: int, one_sign: bool
) -> None:
    r, a, b = (drawn(shape, seed + k) for k in range(3))
    if one_sign:
        a, b = a.abs(), b.abs()
    z, epsilon = a + b, 1e-6
    s = r / (z + epsilon if one_sign else torch.copysign(torch.full_like(z, epsilon), z) + z)
    for relevance in layouts(r):
        found = whole.split(relevance, a, b, epsilon, one_sign)
        assert found is not None
        for part, operand in zip(found, (a, b), strict=True):
            assert torch.equal(part, s * operand)
            assert part.stride() == relevance.stride()


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 3),
    st.integers(1, 20),
    st.integers(3, 14),
    st.integers(3, 14),
    st.integers(1, 3),
    st.integers(1, 3),
    seeds,
)
def test_known_winners_take_all_windows_overlapping_or_not(
    batch: int, channels: int, height: int, width: int, kernel: int, stride: int, seed: int
) -> None:
    x = drawn((batch, channels, height, width), seed)
    pooled, winners = F.max_pool2d(x, kernel, stride, return_indices=True)
    r = drawn(tuple(pooled.shape), seed + 1)
    expected = torch.zeros(batch, channels, height * width).scatter_add_(2, winners.flatten(2), r.flatten(2))
    found = whole.hand_to_winners(layouts(r)[1], winners, x.shape)
    if found is None:  # both layouts are one
        assert not channels_last.channels_last(layouts(r)[1])
        return
    torch.testing.assert_close(found, expected.view(x.shape), rtol=1e-5, atol=1e-5)
    assert found.movedim(1, -1).is_contiguous()


@settings(max_examples=80, deadline=None)
@given(
    st.integers(1, 3),
    st.sampled_from([1, 4, 5]),
    st.integers(1, 33),
    st.integers(1, 40),
    st.integers(1, 15),
    st.integers(0, 9),
    seeds,
)
def test_inputs_that_are_not_zero_receive_what_the_transposed_convolution_hands_them(
    batch: int, inputs: int, outputs: int, length: int, taps: int, padding: int, seed: int
) -> None:
    if length + 2 * padding < taps:
        length = taps
    generator = torch.Generator().manual_seed(seed)
    x = F.one_hot(torch.randint(inputs + 2, (batch, length), generator=generator), inputs + 2)[..., :inputs]
    x = x.movedim(-1, 1).float().contiguous()  # letters, and some that are none
    weight = torch.randn(outputs, inputs, taps, generator=generator)
    leaf = x.double().requires_grad_()
    y = F.conv1d(leaf, weight.double(), padding=padding)
    s = torch.randn(y.shape, generator=generator)
    (back,) = torch.autograd.grad(y, leaf, s.double())
    expected = x.double() * back
    found = whole.hand_one_by_one(layouts(s)[1], weight, layouts(x)[1], padding)
    if found is None:
        many = x.count_nonzero() > limits.MANY_ZEROS * x.numel()
        assert many or layouts(s)[1].is_contiguous() or not whole.compiled(layouts(s)[1], layouts(x)[1])
        return
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3), st.integers(1, 9), st.integers(1, 6), st.integers(2, 6), seeds)
def test_relevance_of_few_neurons_becomes_the_same_tensor_in_either_layout(
    batch: int, channels: int, height: int, width: int, seed: int
) -> None:
    shape = torch.Size((batch, channels, height, width))
    held = drawn(shape, seed)
    lived = held.movedim(1, -1).reshape(-1, channels).ne(0)
    positions = lived.any(1).nonzero().flatten()
    sizes = lived[positions].sum(1)
    begins = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    where = lived[positions].nonzero()
    rows = held.movedim(1, -1).reshape(-1, channels)[positions]
    neurons = Neurons(shape, positions, begins, where[:, 1].int(), rows[lived[positions]])
    for relevance in (neurons, Rows(shape, positions, rows)):
        assert torch.equal(dense(relevance), held)
        last = dense_last(relevance)
        assert torch.equal(last, held)
        assert last.movedim(1, -1).is_contiguous()
        total = add(relevance, layouts(held)[1])
        assert torch.equal(dense(total), 2 * held)


# ---------------------------------------------------------------- whole networks


class Skips(nn.Module):
    """A stem with a max pool, and two blocks with skips, one of them through a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.a, self.b, self.c = nn.Conv2d(16, 24, 3, padding=1), nn.Conv2d(16, 24, 1), nn.Conv2d(24, 24, 3, padding=1)
        self.norm, self.head = nn.BatchNorm2d(24), nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.stem(x)), 3, 2, 1)
        x = F.relu(self.norm(self.a(x)) + self.b(x))
        x = F.relu(x + self.c(x))
        return self.head(x.mean((2, 3)))


@pytest.mark.skipif(engine._PLAIN.get(), reason="the plain walk leaves tensors as they lie")
@pytest.mark.parametrize("composite", ["epsilon-plus-flat", "epsilon-plus", "epsilon-alpha2-beta1"])
def test_plain_lrp_goes_with_channels_last_and_equals_the_reference(
    composite: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model, x = Skips().eval(), torch.randn(2, 3, 24, 24)
    seen = []

    def laid_out(tensor: Tensor) -> Tensor:
        seen.append(tensor.shape)
        return channels_last.to_channels_last(tensor)

    monkeypatch.setattr(fast_walk, "to_channels_last", laid_out)
    found = plrp.explain(model, x, composite=composite)
    assert seen
    with plrp.plain_walk():
        expected = plrp.explain(model, x, composite=composite)
    assert found.relevance.is_contiguous()
    torch.testing.assert_close(found.relevance, expected.relevance, rtol=1e-4, atol=1e-6)
    assert found.closing().max() < 1e-5
    names = ["a", "c"]
    for name, layer in plrp.explain(model, x, composite=composite, layers=names).layers.items():
        kept = plrp.explain(model, x, composite=composite, layers=[name]).layers[name]
        assert torch.equal(layer, kept)
    trace = plrp.trace(model, x)  # one trace, any order, the same bits
    pruned = trace.explain(composite=composite, pruning=plrp.Pruning(0.2)).relevance
    assert torch.equal(trace.explain(composite=composite).relevance, found.relevance)
    assert torch.equal(trace.explain(composite=composite, pruning=plrp.Pruning(0.2)).relevance, pruned)
    other = plrp.trace(model, x)
    other.explain(composite=composite)
    assert torch.equal(other.explain(composite=composite, pruning=plrp.Pruning(0.2)).relevance, pruned)


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_networks_of_all_kinds_equal_the_reference(kind: str, axes: int, seed: int) -> None:
    model, x = network(kind, axes, seed)
    found = plrp.explain(model, x, target=target(kind, axes)).relevance
    with plrp.plain_walk():
        expected = plrp.explain(model, x, target=target(kind, axes)).relevance
    scale = expected.abs().sum()
    assert (found - expected).abs().sum() <= 1e-4 * scale


def test_one_hot_sequences_equal_the_reference() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv1d(4, 16, 11, padding=5),
        nn.ReLU(),
        nn.MaxPool1d(4),
        nn.Conv1d(16, 16, 5),
        nn.ReLU(),
        nn.Flatten(),
        nn.LazyLinear(3),
    ).eval()
    x = F.one_hot(torch.randint(4, (6, 101)), 4).movedim(-1, 1).float().contiguous()
    model(x)
    found = plrp.explain(model, x, composite="epsilon-plus").relevance
    with plrp.plain_walk():
        expected = plrp.explain(model, x, composite="epsilon-plus").relevance
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    assert bool((found[x == 0] == 0).all())


@pytest.mark.parametrize("size", [2, 3, 4, 5])
@pytest.mark.parametrize("length", [12, 13, 15, 63])
def test_windows_side_by_side_hand_relevance_to_the_first_largest(size: int, length: int) -> None:
    """Against autograd, whose winner is the first too: with ties, zeros, and a last window that is cut short."""
    generator = torch.Generator().manual_seed(length)
    x = torch.randint(-2, 3, (3, 4, length), generator=generator).float().requires_grad_()
    pooled = F.max_pool1d(x, size, ceil_mode=True)
    relevance = drawn(tuple(pooled.shape), length)
    (expected,) = torch.autograd.grad(pooled, x, relevance)
    geometry = Geometry(x.shape, pooled.shape, (size,), (size,), (0,), (1,), 1)
    found = to_winners(x.detach(), geometry, relevance)
    assert found is not None
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
