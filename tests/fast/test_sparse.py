"""Relevance of few neurons goes through a layer as a dense tensor would, in compiled loops and in torch alike."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from random_layers import BODIES, PATTERNS, Layer, assert_near, body, layers, neurons, relevance
from torch import Tensor

from plrp.fast import native, propagation, selection, weight_cache
from plrp.fast import neuron_layers as loops
from plrp.fast import neurons as sparse
from plrp.fast.neuron_layers import Geometry
from plrp.fast.neurons import Neurons, Rows
from plrp.fast.weight_cache import FastWeight
from plrp.rules import Branch, Part
from plrp.tape.maps import Convolution, ConvolutionForm

bodies = pytest.mark.parametrize("name", BODIES)
quick = settings(max_examples=60, deadline=None)


def tensor_of(layer: Layer, dtype: torch.dtype) -> tuple[Tensor, FastWeight, Neurons]:
    return layer.x.to(dtype), FastWeight(layer.weight.to(dtype)), neurons(layer.relevance, dtype)


def random_relevance(seed: int, pattern: str, samples: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    plane = [(9,), (4, 5), (2, 3, 2)][seed % 3]
    return relevance((samples, 1 + seed % 37, *plane), pattern, generator)


tensors = st.builds(random_relevance, st.integers(0, 10_000), st.sampled_from(PATTERNS), st.integers(0, 3))


# ---------------------------------------------------------------- forms of relevance


@bodies
@quick
@given(tensors)
def test_neurons_and_rows_are_the_tensor(name: str, held: Tensor) -> None:
    with body(name) as dtype:
        few = neurons(held, dtype)
        assert torch.equal(few.dense(), held.to(dtype))
        assert torch.equal(few.rows().dense(), held.to(dtype))
        assert torch.equal(few.at(held), few.values.double())
        assert torch.equal(few.channel_sums().double(), held.sum(1, keepdim=True))  # eighths: exact
        assert torch.equal(few.sum(few.values), held.flatten(1).sum(1))
        assert torch.equal(few.holding(2 * few.values).dense(), 2 * held.to(dtype))
        if held.shape[0]:
            assert few.counts.tolist() == held.flatten(1).count_nonzero(1).tolist()
            some = torch.arange(0, held.shape[0], 2)
            assert torch.equal(few.only(some).dense(), held[some].to(dtype))
        for kind in (few, few.rows()):
            for found, expected in zip(
                sparse.mass_of(kind, None), (held.clamp(min=0), held.clamp(max=0).neg()), strict=True
            ):
                assert torch.equal(found, expected.flatten(1).sum(1))


def forms(held: Tensor, dtype: torch.dtype) -> list[sparse.Relevance]:
    few = neurons(held, dtype)
    return [few, few.rows(), held.to(dtype)]


@bodies
@quick
@given(st.integers(0, 10_000), st.sampled_from(PATTERNS), st.sampled_from(PATTERNS), st.integers(0, 3))
def test_sums_and_readings_of_any_two_forms(name: str, seed: int, one: str, other: str, samples: int) -> None:
    a = random_relevance(seed, one, samples)
    b = relevance(tuple(a.shape), other, torch.Generator().manual_seed(seed + 1))
    with body(name) as dtype:
        at = neurons(a, dtype)
        for second in forms(b, dtype):
            assert torch.equal(sparse.at_neurons(second, at), b.reshape(-1)[(a.reshape(-1) != 0)].to(dtype)[order(at)])
            for first in forms(a, dtype):
                assert torch.equal(sparse.dense(sparse.add(first, second)), (a + b).to(dtype))


def order(few: Neurons) -> Tensor:
    """Where the neurons, which go by position, stand among the non-zero entries of the tensor, which go by channel."""
    return few.flat.argsort().argsort()


@bodies
@quick
@given(tensors, st.integers(0, 10_000))
def test_regrouped_neurons_add_up_where_they_meet(name: str, held: Tensor, seed: int) -> None:
    with body(name) as dtype:
        few = neurons(held, dtype)
        generator = torch.Generator().manual_seed(seed)
        places = held.shape[0] * held.shape[2:].numel()
        count = len(few.values)
        at = torch.randint(0, max(1, places // 2), (count,), generator=generator)
        expected = torch.zeros(places, held.shape[1], dtype=dtype)
        for position, channel, value in zip(at.tolist(), few.channels.tolist(), few.values, strict=True):
            expected[position, channel] += value
        found = sparse.regroup(held.shape, at, few.channels, few.values)
        expected = (
            expected.view(held.shape[0], held.shape[2:].numel(), held.shape[1]).transpose(1, 2).reshape(held.shape)
        )
        assert torch.equal(found.dense(), expected)
        assert len(found.values) == len(set(zip(at.tolist(), few.channels.tolist(), strict=True)))
        assert found.positions.tolist() == sorted(set(at.tolist()))


@bodies
@quick
@given(tensors, st.sampled_from([0.0, 0.05, 0.5, 0.95]), st.sampled_from([0.0, 0.3]), st.booleans())
def test_survivors_are_the_entries_above_theta_times_lambda(
    name: str, held: Tensor, p: float, p_negative: float, rescale: bool
) -> None:
    with body(name) as dtype:
        values = held.to(dtype)
        rows = neurons(held, dtype).rows()
        offsets = torch.arange(held.shape[0] + 1) * held.shape[1:].numel()
        stats = selection.statistics(values, offsets, p, p_negative)
        again = selection.statistics(rows.values, rows.offsets * held.shape[1], p, p_negative)
        assert torch.equal(stats, again)
        per_sample = (-1, *(1,) * (held.dim() - 1))
        up, down = (stats[:, i].view(per_sample) for i in range(2))
        expected = torch.where((held > up) | (held < -down), held, 0.0)
        if rescale:
            for part in (slice(0, None), slice(None, 0)):
                bounds = {"min": part.start, "max": part.stop}
                before, after = held.clamp(**bounds), expected.clamp(**bounds)
                scale = before.flatten(1).sum(1) / after.flatten(1).sum(1)
                expected = torch.where(after != 0, after * scale.view(per_sample), expected)
        for given_ in (values, rows):
            found = sparse.survivors(given_, stats, rescale)
            assert_near(found.dense(), expected, expected)
            assert torch.equal(found.dense() != 0, expected != 0)
            assert len(found.values) == int((expected != 0).sum()) == int(stats[:, 7].sum())
            assert found.begins.tolist()[-1] == len(found.values)
            assert found.positions.tolist() == sorted(set(found.positions.tolist()))


@bodies
@quick
@given(tensors, st.sampled_from([0.0, 0.05, 0.5, 0.95]), st.sampled_from([0.0, 0.3]))
def test_survivors_kept_in_place_are_the_same_survivors(name: str, held: Tensor, p: float, p_negative: float) -> None:
    with body(name) as dtype:
        values = held.to(dtype)
        before = values.clone()
        stats = selection.statistics(values, torch.arange(len(held) + 1) * held.shape[1:].numel(), p, p_negative)
        found = sparse.thin(values, stats)
        assert torch.equal(values, before)
        assert torch.equal(found, sparse.survivors(values, stats, rescale=True).dense())
        assert not torch.signbit(found[found == 0]).any()


@bodies
@quick
@given(tensors, st.integers(0, 10_000))
def test_a_tensor_is_read_at_the_neurons(name: str, held: Tensor, seed: int) -> None:
    """Of any dtype, expanded, not contiguous: as indexing does."""
    with body(name) as dtype:
        few = neurons(held, dtype)
        tensor = torch.randn(held.shape, generator=torch.Generator().manual_seed(seed))
        expected = tensor.reshape(-1)[few.flat]
        for kind in (torch.float32, torch.float64, torch.int64):
            assert torch.equal(few.at(tensor.to(kind)), expected.to(kind))
        strided = tensor.transpose(0, -1).contiguous().transpose(0, -1)
        assert torch.equal(few.at(strided), expected)
        assert torch.equal(few.at(tensor[:, :1]), tensor[:, :1].expand_as(tensor).reshape(-1)[few.flat])
        assert torch.equal(few.holding(few.values.double()).at(tensor).float(), expected)


# ---------------------------------------------------------------- layers


@bodies
@quick
@given(layers())
def test_a_plan_holds_what_the_outputs_read(name: str, layer: Layer) -> None:
    ones = torch.ones_like(layer.weight)
    reached = layer.transposed((layer.relevance != 0).double().sum(1, keepdim=True).expand_as(layer.relevance), ones)
    with body(name) as dtype:
        few = neurons(layer.relevance, dtype)
        found = loops.plan(layer.geometry, few)
        expected = (reached[:, 0] != 0).reshape(-1).nonzero().flatten() if reached.numel() else torch.zeros(0)
        assert found.positions.tolist() == expected.tolist()
        assert found.taps.shape == (len(few.positions), layer.weight.shape[2:].numel())
        # A tensor that holds its own place, patch by patch: tap t of output q reads that place.
        place = torch.arange(1.0, layer.x.shape[0] * layer.x.shape[2:].numel() + 1, dtype=torch.float64)
        place = place.view(layer.x.shape[0], 1, *layer.x.shape[2:])
        taps = layer.weight.shape[2:].numel()
        pick = torch.eye(taps, dtype=torch.float64).view(taps, 1, *layer.weight.shape[2:])
        alone = Layer(place, pick, layer.bias, layer.relevance, layer.stride, layer.padding, layer.dilation, 1)
        read = alone.conv(place, pick).flatten(2).transpose(1, 2).reshape(-1, taps)[few.positions]
        rows = torch.cat([found.positions, torch.tensor([-1])])[found.taps.long()]
        assert torch.equal(rows + 1.0, read.to(torch.float32))


@bodies
@settings(max_examples=120, deadline=None)
@given(layers(), st.sampled_from([0, 1, -1]), st.booleans())
def test_a_layer_over_neurons_is_the_dense_layer(name: str, layer: Layer, part: int, scaled: bool) -> None:
    outputs = layer.weight.shape[0]
    scale = layer.bias.sign().view(-1, *(1,) * (layer.weight.dim() - 1)) / 4 if scaled else None  # exact
    weight = layer.weight if scale is None else layer.weight * scale
    weight = weight if part == 0 else weight.clamp(min=0) if part > 0 else weight.clamp(max=0)
    magnitude = layer.conv(layer.x.abs(), weight.abs())
    with body(name) as dtype:
        x, _, few = tensor_of(layer, dtype)
        lazy = FastWeight(layer.weight.to(dtype), None if scale is None else scale.to(dtype), part)
        assert_near(lazy.full, weight, weight)
        found = loops.plan(layer.geometry, few)
        rows = loops.gather(x, found.positions)
        assert torch.equal(Rows(x.shape, found.positions, rows).dense() != 0, masked(x, found.positions) != 0)
        assert torch.equal(rows, x.flatten(2).transpose(1, 2).reshape(-1, x.shape[1])[found.positions])
        d = loops.contributions(found, few, rows, lazy)
        assert_near(d, few.at(layer.conv(layer.x, weight)), few.at(magnitude))
        taken = loops.hand(found, few, few.values, lazy)
        down = Rows(x.shape, found.positions, taken).dense()
        assert_near(
            down, layer.transposed(layer.relevance, weight), layer.transposed(layer.relevance.abs(), weight.abs())
        )
        last = lazy.inputs_last(few.channels).movedim(1, -1).reshape(outputs, -1, layer.weight.shape[1])
        for channel in set(few.channels.tolist()):
            assert_near(last[channel], weight[channel].flatten(1).T, weight[channel].flatten(1).T)


def masked(x: Tensor, positions: Tensor) -> Tensor:
    """x at these positions, zero elsewhere."""
    plane = x.shape[2:].numel()
    mask = torch.zeros(x.shape[0] * plane, dtype=x.dtype)
    mask[positions] = 1
    return x * mask.view(x.shape[0], 1, *x.shape[2:])


@settings(max_examples=120, deadline=None)
@given(layers(nonnegative=True), st.sampled_from([0.0, 1e-6, 0.25]), st.booleans(), st.booleans())
def test_the_fused_layer_is_its_three_steps(layer: Layer, epsilon: float, biased: bool, one_sign: bool) -> None:
    with body("compiled") as dtype:
        x, weight, few = tensor_of(layer, dtype)
        found = loops.plan(layer.geometry, few)
        bias = layer.bias.to(dtype) if biased else None
        rows = loops.gather(x, found.positions)
        d, s, taken = loops.through(found, few, few.values, rows, weight, bias, epsilon, one_sign)
    z = layer.conv(layer.x, layer.weight)
    if biased:
        z = z + layer.bias.view(-1, *(1,) * (z.dim() - 2))
    stable = z + epsilon
    share = torch.where(stable == 0, 0.0, layer.relevance / torch.where(stable == 0, 1.0, stable))
    assert_near(d, few.at(z), few.at(z))
    assert_near(s, few.at(share), few.at(share))
    expected = layer.x * layer.transposed(share, layer.weight)
    down = Rows(x.shape, found.positions, taken).dense()
    assert_near(down, expected, layer.x * layer.transposed(share.abs(), layer.weight))


@bodies
@settings(max_examples=100, deadline=None)
@given(layers(whole=True), st.booleans(), st.booleans(), st.integers(0, 10_000), st.sampled_from(PATTERNS))
def test_the_second_pass_of_m_reaches_the_survivors_alone(
    name: str, layer: Layer, one_sign: bool, biased: bool, seed: int, kept: str
) -> None:
    """m_k, n̂_k and r̂_j as the design states them; integers, so that contributions cancel to nothing often."""
    x, w = (layer.x.abs(), layer.weight.abs()) if one_sign else (layer.x, layer.weight)
    bias = (layer.bias.abs() if biased else torch.zeros_like(layer.bias)).view(-1, *(1,) * (x.dim() - 2))
    survivors = relevance(tuple(x.shape), kept, torch.Generator().manual_seed(seed))
    mask = (survivors != 0).double()
    d = layer.conv(x, w) + bias
    s = torch.where(layer.relevance == 0, 0.0, layer.relevance / (d + torch.copysign(torch.tensor(1e-6), d)))
    m = s * (d - bias)
    reached, magnitude = layer.conv(mask * x, w), layer.conv(mask * x.abs(), w.abs())
    orphaned = reached.abs() <= 1e-6 * magnitude
    q = torch.where(orphaned, 0.0, m / torch.where(orphaned, 1.0, reached))
    expected = mask * x * layer.transposed(q, w)
    with body(name) as dtype:
        few, left = neurons(layer.relevance, dtype), neurons(survivors, dtype)
        found = loops.plan(layer.geometry, few)
        shift = bias.to(dtype) if biased else None
        form = ConvolutionForm(layer.stride, layer.padding, layer.dilation, groups=layer.groups)
        conv = Convolution(w.to(dtype), shift, form)
        branch = Branch(conv, (Part(x.to(dtype), conv.whole),), shift, one_sign=one_sign)
        one = propagation.SparsePass(branch, found, few, few.values, few.at(s.to(dtype)), few.at(d.to(dtype)), 1e-6)
        received, lost = propagation.redistribute(one, left)
    spread = mask * x.abs() * layer.transposed(q.abs(), w.abs())
    assert_near(received, left.at(expected), left.at(spread))
    assert_near(lost, few.at(torch.where(orphaned, m, 0.0)), few.at(s.abs() * (d.abs() + bias)))


# ---------------------------------------------------------------- pools


POOL = {1: F.max_pool1d_with_indices, 2: F.max_pool2d_with_indices, 3: F.max_pool3d_with_indices}


@quick
@given(st.integers(1, 3), st.integers(1, 2), st.integers(2, 3), st.integers(1, 3), st.integers(1, 2), st.data())
def test_winners_are_those_of_torch(
    axes: int, samples: int, kernel: int, stride: int, dilation: int, data: st.DataObject
) -> None:
    plane = (13, 11, 7)[:axes]
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    x = torch.randint(-2, 3, (samples, 3, *plane), generator=generator).float()  # ties everywhere
    padding = data.draw(st.integers(0, kernel // 2))
    out, index = POOL[axes](x, kernel, stride, padding, dilation, return_indices=True)
    held = relevance(tuple(out.shape), data.draw(st.sampled_from(PATTERNS)), generator)
    geometry = Geometry(
        x.shape, out.shape, (kernel,) * axes, (stride,) * axes, (padding,) * axes, (dilation,) * axes, 1
    )
    few, stacked = neurons(held, torch.float32), neurons(torch.cat([held, held.flip(1)]), torch.float32)
    with body("compiled"):
        found = loops.winners(x, geometry, few)
        again = loops.winners(x, geometry, stacked)  # two copies of the batch, one activation
        whole = loops.to_winners(x, geometry, held.float())
    assert found is not None
    assert again is not None
    assert whole is not None
    assert torch.equal(found, index.reshape(-1)[few.flat])
    assert torch.equal(again, torch.cat([index, index]).reshape(-1)[stacked.flat])
    expected = torch.zeros(*x.shape[:2], x.shape[2:].numel()).scatter_add_(2, index.flatten(2), held.float().flatten(2))
    assert torch.equal(whole, expected.view_as(x))  # eighths: exact


@bodies
@quick
@given(tensors)
def test_non_zero_entries_are_counted(name: str, held: Tensor) -> None:
    with body(name) as dtype:
        rows = torch.where(held == 0, -0.0, held).flatten(1).to(dtype)
        assert sparse.nonzero_counts(rows).tolist() == [sum(v != 0 for v in row) for row in rows.tolist()]


# ---------------------------------------------------------------- threads


def large_layer(samples: int = 2) -> Layer:
    """Enough products that the compiled loops start threads."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(samples, 48, 24, 24, generator=generator).abs().double()
    weight = torch.randn(40, 48, 3, 3, generator=generator).double()
    held = relevance((samples, 40, 12, 12), "few", generator)
    return Layer(x, weight, weight.flatten(1).sum(1), held, (2, 2), (1, 1), (1, 1), 1)


def test_the_number_of_threads_changes_no_bit() -> None:
    layer = large_layer()
    results = []
    with body("compiled") as dtype:
        for threads in (1, 2, 3):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(native, "threads", lambda threads=threads: threads)
                x, weight, few = tensor_of(layer, dtype)
                found = loops.plan(layer.geometry, few)
                rows = loops.gather(x, found.positions)
                d = loops.contributions(found, few, rows, weight)
                taken = loops.hand(found, few, few.values, weight)
                fused = loops.through(found, few, few.values, rows, weight, None, 1e-6, True)
                stats = selection.statistics(x, torch.arange(3) * x[0].numel(), 0.3, 0.1)
                results.append((rows, d, taken, *fused, stats))
    assert len(neurons(layer.relevance).values) * 9 * 48 > 1 << 16
    for other in results[1:]:
        assert all(map(torch.equal, results[0], other))


@pytest.mark.parametrize("lasting", [False, True])
def test_threads_may_share_a_weight(lasting: bool) -> None:
    """A weight is multiplied out channel by channel on demand: nobody may read a channel before it is there."""
    raw = torch.randn(256, 256, 3, 3, generator=torch.Generator().manual_seed(0))
    expected = raw.clamp(min=0).flatten(2).transpose(1, 2).reshape(256, -1)
    every = torch.arange(256, dtype=torch.int32)
    wrong: list[int] = []
    with body("compiled"):
        for _ in range(20):
            weight_cache.clear()
            weight, gate = FastWeight(raw, None, 1, cached=lasting), threading.Barrier(4)
            weight._begin(last=True)[0].rows.fill_(float("nan"))

            def read(weight: FastWeight = weight, gate: threading.Barrier = gate) -> None:
                gate.wait()
                found = weight.inputs_last(every).movedim(1, -1).reshape(256, -1).clone()
                wrong.append(int((found != expected).any(1).sum()))

            threads = [threading.Thread(target=read) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert wrong == [0] * 80
