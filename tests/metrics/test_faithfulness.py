"""Pixel flipping against a slow restatement, one region and one forward pass at a time; options and edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from plrp.metrics import INNVESTIGATE, pixel_flipping

PERTURBATIONS = ["zeros", "mean", "image-mean", "gaussian", "inversion", "blur"]


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 4))
    return layers.double().eval()


@pytest.fixture(scope="module")
def inputs() -> torch.Tensor:
    return torch.randn(3, 3, 8, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.fixture(scope="module")
def relevance() -> torch.Tensor:
    return torch.randn(3, 3, 8, 10, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def linear(weights: list[float]) -> nn.Module:
    layer = nn.Linear(len(weights), 1, bias=False)
    layer.weight.data = torch.tensor([weights])
    return layer


def slow_curve(net, x, r, *, region, order, baseline, counts, score) -> list[float]:
    """One sample, one region and one forward pass at a time; partial tiles, summed relevance."""
    rows, columns = math.ceil(x.shape[1] / region[0]), math.ceil(x.shape[2] / region[1])
    tiles = [
        (slice(i * region[0], (i + 1) * region[0]), slice(j * region[1], (j + 1) * region[1]))
        for i in range(rows)
        for j in range(columns)
    ]
    sums = [r[:, a, b].sum().item() for a, b in tiles]
    ranked = sorted(range(len(tiles)), key=lambda t: -sums[t] if order == "most" else sums[t])
    winner = net(x[None])[0].argmax().item()
    values, flipped = [], 0
    moved = x.clone()
    for count in counts:
        while flipped < count:
            a, b = tiles[ranked[flipped]]
            moved[:, a, b] = baseline[:, a, b]
            flipped += 1
        out = net(moved[None])[0]
        values.append((out.softmax(0) if score == "probability" else out)[winner].item())
    return values


@pytest.mark.parametrize("region", [(1, 1), (3, 3), (2, 5), (8, 10)])
@pytest.mark.parametrize("order", ["most", "least"])
@pytest.mark.parametrize("score", ["logit", "probability"])
def test_slow_restatement(net, inputs, relevance, region, order, score) -> None:
    baseline = torch.randn(inputs.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    count = math.ceil(8 / region[0]) * math.ceil(10 / region[1])
    counts = sorted({0, 1, count // 3, count // 2, count})
    result = pixel_flipping(
        net,
        inputs,
        relevance,
        region=region,
        order=order,
        perturbation=baseline,
        steps=counts,
        score_as=score,
        normalise=False,
    )
    for i in range(len(inputs)):
        expected = slow_curve(
            net,
            inputs[i],
            relevance[i],
            region=region,
            order=order,
            baseline=baseline[i],
            counts=counts,
            score=score,
        )
        assert result.curve[i].tolist() == pytest.approx(expected, abs=1e-12)
    assert result.flipped.tolist() == pytest.approx([c / count for c in counts])


def test_what_each_perturbation_writes(inputs) -> None:
    """All regions flipped, the model sees the baseline itself."""
    seen: list[torch.Tensor] = []

    def watch(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.clone())
        return x.flatten(1)

    def baseline(perturbation, **options) -> torch.Tensor:
        seen.clear()
        pixel_flipping(watch, inputs, inputs, target=0, perturbation=perturbation, steps=1, **options)
        return torch.cat(seen)[-2 * len(inputs) :][1::2]  # a fixed target needs no pass: (sample, point) pairs only

    assert torch.equal(baseline("zeros"), torch.zeros_like(inputs))
    assert torch.equal(baseline("inversion"), -inputs)
    torch.testing.assert_close(baseline("image-mean"), inputs.mean((2, 3), keepdim=True).expand_as(inputs))
    tiles = baseline("mean", region=(4, 5))
    torch.testing.assert_close(tiles[1, 2, :4, 5:], inputs[1, 2, :4, 5:].mean().expand(4, 5))
    noise = baseline("gaussian", noise_std=0.5)
    assert torch.equal(noise[0], noise[2])  # the same draw for all, so that the rest of the batch does not matter
    assert noise[0].std().item() == pytest.approx(0.5, abs=0.1)
    assert torch.equal(noise, baseline("gaussian", noise_std=0.5))
    assert not torch.equal(noise, baseline("gaussian", noise_std=0.5, seed=1))
    smooth = baseline("blur", blur_sigma=2.0)
    assert (smooth - inputs.mean((2, 3), keepdim=True)).abs().max() < (inputs - inputs.mean()).abs().max()
    constant = pixel_flipping(
        lambda x: x.mean((2, 3)),
        torch.ones(1, 2, 6, 6),
        torch.ones(1, 2, 6, 6),
        target=0,
        perturbation="blur",
    )
    assert constant.curve.tolist()[0] == pytest.approx([1.0] * constant.curve.shape[1])  # blur keeps a constant
    assert torch.equal(baseline(lambda x: x + 1), inputs + 1)
    assert torch.equal(baseline(torch.tensor(0.25)), torch.full_like(inputs, 0.25))
    assert torch.equal(baseline(inputs.flip(0)), inputs.flip(0))
    only_first = baseline("zeros", flip_channels=[0])
    assert torch.equal(only_first[:, 1:], inputs[:, 1:])
    assert (only_first[:, 0] == 0).all()


def test_linear_model_by_hand() -> None:
    """f = Σ x: flipping takes away exactly what it hits, so areas are known."""
    x = torch.tensor([[4.0, 3.0, 2.0, 1.0]])
    result = pixel_flipping(linear([1.0] * 4), x, x, steps=4, order="both")
    assert result.flipped.tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert result.curve.tolist()[0] == pytest.approx([1, 0.6, 0.3, 0.1, 0])
    assert result.least_first.tolist()[0] == pytest.approx([1, 0.9, 0.7, 0.4, 0])
    assert result.auc.item() == pytest.approx((0.5 + 0.6 + 0.3 + 0.1) / 4)
    assert result.aopc.item() == pytest.approx((0 + 0.4 + 0.7 + 0.9 + 1) / 5)
    assert result.symmetric_relevance_gain.item() == pytest.approx((0.5 + 0.9 + 0.7 + 0.4) / 4 - 0.375)
    assert result.tied.item() == 0
    lone = pixel_flipping(linear([1.0] * 4), x, x, steps=4, order="least")
    assert lone.curve.tolist() == result.least_first.tolist()
    assert lone.symmetric_relevance_gain is None


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(-2, 2), min_size=1, max_size=8),
    st.sampled_from(["stable", "random"]),
    st.integers(0, 3),
)
def test_tied_regions_are_counted_and_broken_as_asked(values, ties, seed) -> None:
    x = torch.tensor([[float(2**k) for k in range(len(values))]])  # the curve tells which entries are gone
    n = len(values)
    result = pixel_flipping(
        linear([1.0] * n),
        x,
        torch.tensor([values]),
        steps=range(1, n + 1),
        ties=ties,
        seed=seed,
        normalise=False,
    )
    assert result.tied.item() == pytest.approx(sum(values.count(v) > 1 for v in values) / n)
    order = [int(math.log2(a - b)) for a, b in zip(result.curve[0, :-1], result.curve[0, 1:], strict=True)]
    assert [values[i] for i in order] == sorted(values, reverse=True)
    if ties == "stable":
        assert order == sorted(range(n), key=lambda i: -values[i])


def test_random_ties_are_seeded_and_the_same_for_every_sample() -> None:
    x = torch.arange(1.0, 41.0).reshape(1, 40).expand(3, 40)
    runs = [
        pixel_flipping(linear([1.0] * 40), x, torch.zeros(3, 40), steps=40, ties="random", seed=seed).curve
        for seed in (0, 0, 1)
    ]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])
    assert torch.equal(runs[0][0], runs[0][2])


@pytest.mark.parametrize("perturbation", PERTURBATIONS)
@pytest.mark.parametrize("ties", ["stable", "random"])
def test_batch_mates_and_batch_size_do_not_matter(net, inputs, relevance, perturbation, ties) -> None:
    options = {"region": 2, "perturbation": perturbation, "ties": ties, "steps": 5, "order": "both"}
    sparse = relevance.where(relevance > 1, 0.0)
    reference = pixel_flipping(net, inputs, sparse, **options)
    for batch_size in (1, 4, 7, 1000):
        again = pixel_flipping(net, inputs, sparse, batch_size=batch_size, **options)
        torch.testing.assert_close(again.curve, reference.curve)
        torch.testing.assert_close(again.symmetric_relevance_gain, reference.symmetric_relevance_gain)
    alone = pixel_flipping(net, inputs[2:], 1e6 * sparse[2:], **options)
    torch.testing.assert_close(alone.curve[0], reference.curve[2])


def test_memory_is_bounded_and_inputs_stay(net, inputs, relevance) -> None:
    sizes: list[int] = []

    def watch(x: torch.Tensor) -> torch.Tensor:
        sizes.append(len(x))
        x.mul_(1)  # even a model that writes into what it is given
        return net(x)

    before = inputs.clone(), relevance.clone()
    pixel_flipping(watch, inputs, relevance, region=3, steps=6, batch_size=4)
    assert max(sizes) <= 4
    assert sum(sizes) == 3 + 3 * 7
    assert torch.equal(inputs, before[0])
    assert torch.equal(relevance, before[1])


def test_sequences_tables_and_volumes() -> None:
    torch.manual_seed(0)
    one_hot = torch.eye(4)[torch.randint(4, (2, 30))].mT.contiguous()
    model = nn.Sequential(nn.Conv1d(4, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(5 * 28, 2)).eval()
    windows = pixel_flipping(model, one_hot, torch.randn(2, 4, 30), region=7, steps=range(1, 6), normalise=False)
    assert windows.flipped.tolist() == pytest.approx([k / 5 for k in range(6)])  # 30 bases: five windows, one cut off
    pooled = pixel_flipping(model, one_hot, torch.randn(2, 30), region=7, steps=3)
    assert pooled.curve.shape == (2, 4)
    table = pixel_flipping(nn.Linear(6, 2), torch.randn(4, 6), torch.randn(4, 6), region=2, steps=3)
    assert table.flipped.tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1])
    volume = pixel_flipping(
        lambda x: x.flatten(2).mean(2),
        torch.randn(1, 2, 4, 4, 4),
        torch.randn(1, 2, 4, 4, 4),
        region=2,
        steps=2,
    )
    assert volume.curve.shape == (1, 3)


def test_channels_none_flips_entries_on_their_own() -> None:
    x = torch.tensor([[[1.0, 2.0], [4.0, 8.0]]])  # one sample, two channels, two positions
    result = pixel_flipping(lambda v: v.flatten(1).sum(1, keepdim=True), x, x, channels=None, steps=4, normalise=False)
    assert result.curve.tolist() == [[15, 7, 3, 1, 0]]
    together = pixel_flipping(lambda v: v.flatten(1).sum(1, keepdim=True), x, x, steps=2, normalise=False)
    assert together.curve.tolist() == [[15, 5, 0]]


def test_steps() -> None:
    x = torch.ones(1, 100)

    def counts(**options) -> list[int]:
        shares = pixel_flipping(linear([1.0] * 100), x, x, **options).flipped
        return [round(share * 100) for share in shares.tolist()]

    assert counts(steps=4) == [0, 25, 50, 75, 100]
    assert counts(steps=2, until=0.1) == [0, 5, 10]
    assert counts(steps=3, spacing="logarithmic") == [0, 1, 10, 100]
    assert counts(steps=[0, 3, 7]) == counts(steps=[3, 7]) == [0, 3, 7]
    assert counts(steps=1000) == list(range(101))  # points that coincide are one
    for bad in ([7, 3], [3, 3], [101], [], [-1, 2]):
        with pytest.raises(ValueError, match="must rise within 1 to 100"):
            counts(steps=bad)
    for options in ({"steps": 0}, {"steps": 3, "until": 0}, {"steps": 3, "until": 1.5}):
        with pytest.raises(ValueError, match="steps must be positive"):
            counts(**options)


def test_a_score_that_is_not_positive_cannot_be_normalised() -> None:
    x = torch.tensor([[1.0, 2.0], [-1.0, -2.0], [1.0, -1.0]])
    result = pixel_flipping(linear([1.0, 1.0]), x, x, steps=2)
    assert result.curve[0].tolist() == pytest.approx([1, 1 / 3, 0])
    assert result.curve[1:].isnan().all()
    assert result.auc[1:].isnan().all()
    assert not pixel_flipping(linear([1.0, 1.0]), x, x, steps=2, normalise=False).curve.isnan().any()


def test_targets() -> None:
    x = torch.rand(2, 3, 6)
    dense = lambda v: v * 2  # noqa: E731  # output (batch, 3, 6)
    by_index = pixel_flipping(dense, x, x, target=(1, 4), steps=3)
    by_callable = pixel_flipping(dense, x, x, target=lambda out: out[:, 1, 4], steps=3)
    assert torch.equal(by_index.curve, by_callable.curve)
    with pytest.raises(ValueError, match="say which score to explain"):
        pixel_flipping(dense, x, x)
    with pytest.raises(ValueError, match="does not fit the output"):
        pixel_flipping(dense, x, x, target=(1,))
    with pytest.raises(ValueError, match="computes its own score"):
        pixel_flipping(dense, x, x, target=lambda out: out[:, 1, 4], score_as="probability")
    net = nn.Linear(4, 3).eval()
    flat = torch.rand(2, 4)
    chosen = pixel_flipping(net, flat, flat, target=[2, 0], steps=2, normalise=False).curve[:, 0]
    torch.testing.assert_close(chosen, net(flat)[[0, 1], [2, 0]].double().detach())
    winners = pixel_flipping(net, flat, flat, steps=2, normalise=False).curve[:, 0]
    torch.testing.assert_close(winners, net(flat).max(1).values.double().detach())
    with pytest.raises(ValueError, match="one class per"):
        pixel_flipping(net, flat, flat, target=[2, 0, 1])
    single = pixel_flipping(linear([1.0, 1.0]), flat[:, :2], flat[:, :2], score_as="probability", normalise=False)
    torch.testing.assert_close(single.curve[:, 0], flat[:, :2].sum(1).sigmoid().double())


def test_a_model_in_training_mode_is_refused(inputs, relevance) -> None:
    for layer in (nn.Dropout(0.5), nn.BatchNorm2d(3)):
        net = nn.Sequential(layer, nn.Flatten(), nn.Linear(240, 2)).double()
        with pytest.raises(ValueError, match=r"call model\.eval\(\)"):
            pixel_flipping(net, inputs, relevance)
    harmless = nn.Sequential(nn.Flatten(), nn.Linear(240, 2)).double()
    assert harmless.training
    pixel_flipping(harmless, inputs, relevance, region=4)


def test_edges(net, inputs, relevance) -> None:
    empty = pixel_flipping(net, inputs[:0], relevance[:0], steps=3)
    assert empty.curve.shape == (0, 4)
    assert empty.auc.shape == (0,)
    zero = pixel_flipping(net, inputs, torch.zeros_like(relevance), region=2, steps=3)
    assert zero.tied.tolist() == [1, 1, 1]
    assert zero.curve.isfinite().all()
    bad = relevance.clone()
    bad[1, 0, 0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"sample\(s\) \[1\]"):
        pixel_flipping(net, inputs, bad)
    with pytest.raises(ValueError, match="does not fit"):
        pixel_flipping(net, inputs, relevance[:, :2])
    with pytest.raises(ValueError, match="2 relevance maps for 3 inputs"):
        pixel_flipping(net, inputs, relevance[:2])
    with pytest.raises(ValueError, match="does not fit inputs with space"):
        pixel_flipping(net, inputs, relevance, region=(3, 3, 3))
    with pytest.raises(ValueError, match="does not fit inputs with space"):
        pixel_flipping(net, inputs, relevance, region=11)
    with pytest.raises(ValueError, match="use 'image-mean'"):
        pixel_flipping(net, inputs, relevance, perturbation="mean")
    with pytest.raises(ValueError, match="does not broadcast"):
        pixel_flipping(net, inputs, relevance, perturbation=torch.zeros(2, 3, 8, 10))
    with pytest.raises(ValueError, match="must keep the shape"):
        pixel_flipping(net, inputs, relevance, perturbation=lambda x: x[:, :1])
    with pytest.raises(ValueError, match="no channels to choose"):
        pixel_flipping(linear([1.0]), torch.ones(1, 1), torch.ones(1, 1), flip_channels=[0])
    for option in ("perturbation", "order", "ties", "score_as", "edges", "aggregate", "spacing"):
        with pytest.raises(ValueError, match=f"unknown {option} 'odd'"):
            pixel_flipping(net, inputs, relevance, **{option: "odd"})


def test_aggregates(inputs) -> None:
    """A tile cut off by the border has less of a sum, but not of a mean or maximum."""
    r = torch.ones(1, 1, 4)
    r[0, 0, 3] = 1.5
    x = torch.tensor([[[1.0, 1.0, 1.0, 10.0]]])
    total = lambda v: v.sum((1, 2))[:, None]  # noqa: E731
    for aggregate, first in (("sum", 10.0), ("mean", 3.0), ("max", 3.0)):
        curve = pixel_flipping(total, x, r, region=3, steps=[1], aggregate=aggregate, normalise=False).curve
        assert curve.tolist() == [[13.0, first]]


def slow_innvestigate(x: np.ndarray, analysis: np.ndarray, regions: int, perturb, colours: int) -> np.ndarray:
    """What iNNvestigate's `Perturbation` does, on the first `colours` (it takes one): reflect to whole 9 x 9 tiles,
    average the analysis over colours and tiles, overwrite the highest tiles of each image, crop."""
    pads = [(-n % 9 // 2, -n % 9 - -n % 9 // 2) for n in x.shape[2:]]
    wide = np.pad(x, [(0, 0), (0, 0), *pads], mode="reflect")
    mean = np.pad(analysis.mean(1, keepdims=True), [(0, 0), (0, 0), *pads], mode="reflect")
    rows, columns = wide.shape[2] // 9, wide.shape[3] // 9
    for image, heat in zip(wide, mean, strict=True):
        tiles = {
            (i, j): heat[0, 9 * i : 9 * i + 9, 9 * j : 9 * j + 9].mean() for i in range(rows) for j in range(columns)
        }
        for i, j in sorted(tiles, key=lambda t: -tiles[t])[:regions]:
            for colour in image[:colours]:
                tile = colour[9 * i : 9 * i + 9, 9 * j : 9 * j + 9]
                tile[:] = perturb(tile)
    return wide[:, :, pads[0][0] : pads[0][0] + x.shape[2], pads[1][0] : pads[1][0] + x.shape[3]]


@pytest.mark.parametrize("size", [(18, 27), (20, 31)])
@pytest.mark.parametrize(("name", "perturb"), [("zeros", np.zeros_like), ("mean", np.mean), ("inversion", np.negative)])
@pytest.mark.parametrize("colours", [1, 3])
def test_innvestigate_preset(size, name, perturb, colours) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, *size, generator=generator, dtype=torch.float64)
    r = torch.randn(2, 3, *size, generator=generator, dtype=torch.float64)
    weight = torch.randn(3, *size, generator=generator, dtype=torch.float64)
    model = lambda v: (v * weight).flatten(1).sum(1, keepdim=True)  # noqa: E731
    options = {**INNVESTIGATE, "perturbation": name, "steps": [1, 2, 5], "normalise": False}
    result = pixel_flipping(model, x, r, flip_channels=range(colours), **options)
    for point, regions in enumerate([0, 1, 2, 5]):
        expected = model(torch.from_numpy(slow_innvestigate(x.numpy(), r.numpy(), regions, perturb, colours)))
        torch.testing.assert_close(result.curve[:, point], expected[:, 0])
