"""Flow between channels is computed: it equals the rule by hand, and adds up to the relevance it came from."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import plrp
from plrp.vision import flow, flow_figure, thinning, thinning_figure
from plrp.vision.flows import passages

PRUNINGS = [None, plrp.Pruning(p=0.2), plrp.Pruning(p=0.5), plrp.Pruning(p=0.3, redistribution="M")]


def convnet() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU()),
        *(nn.Conv2d(6, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 10, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        nn.Linear(10, 4),
    ).double().eval()  # fmt: skip


class Residual(nn.Module):
    """Two blocks with a skip around them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.first, self.second = nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.third = nn.Conv2d(6, 6, 1)
        self.fc = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        x = (x + self.second(self.first(x).relu())).relu()
        x = (x + self.third(x)).relu()
        return self.fc(x.mean((2, 3)))  # type: ignore[no-any-return]


def traced(model: nn.Module, seed: int = 3) -> plrp.Trace:
    torch.manual_seed(seed)
    return plrp.trace(model.double().eval(), torch.randn(1, 3, 12, 12, dtype=torch.float64))


def test_two_linear_layers_by_hand() -> None:
    """Neuron k hands neuron j the amount x_j w_kj R_k / (z_k + ε), and nothing else."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)).double()
    x = torch.randn(1, 5, dtype=torch.float64)
    found = flow(plrp.trace(model, x), target=1, composite="epsilon", nodes=7)
    z = model[0](x)[0]
    hidden = z.relu()
    out = model(x)[0, 1]
    R = hidden * model[2].weight[1] * out / (out + 1e-6 * out.sign())
    expected = R[:, None] * model[0].weight * x / (z + 1e-6 * z.sign())[:, None]
    top, bottom = found.levels
    assert found.score == pytest.approx(float(out.detach()))
    assert torch.allclose(top.by_channel, R, atol=1e-12)
    for row, channel in enumerate(top.shown):
        assert torch.allclose(found.edges[0][row], expected[channel], atol=1e-12)
    assert bottom.layer == "input"


@pytest.mark.parametrize("pruning", PRUNINGS)
@pytest.mark.parametrize("model", [convnet, Residual])
@pytest.mark.parametrize("composite", ["epsilon-plus-flat", "epsilon"])
def test_flows_into_a_channel_add_up_to_its_relevance(
    model: type[nn.Module], pruning: plrp.Pruning | None, composite: str
) -> None:
    trace = traced(model())
    found = flow(trace, pruning=pruning, composite=composite, nodes=100)  # every channel is followed
    assert len(found.levels) >= 3
    for level, edges in zip(found.levels[1:], found.edges, strict=True):
        size = float(level.relevance.abs().sum())
        assert torch.allclose(edges.sum(0), level.by_channel, atol=1e-9 * size)


@pytest.mark.parametrize("pruning", PRUNINGS)
def test_levels_hold_the_relevance_of_the_explanation(pruning: plrp.Pruning | None) -> None:
    trace = traced(convnet())
    explanation = trace.explain(pruning=pruning, layers=True)
    found = flow(trace, pruning=pruning)
    for level in found.levels:
        wanted = explanation.relevance if level.layer == "input" else explanation.layers[level.layer]
        torch.testing.assert_close(level.relevance, wanted[0], rtol=1e-9, atol=1e-15)  # plain walk and fast one


def test_pruned_channels_lost_everything_and_lrp_knows_them() -> None:
    trace = traced(convnet())
    found = flow(trace, pruning=plrp.Pruning(p=0.6), nodes=3, pruned=4)
    lost = [(level, channel) for level in found.levels for channel in level.pruned]
    assert lost
    for level, channel in lost:
        assert not level.relevance[channel].any()
        assert level.unpruned[channel].any()
        assert channel not in level.shown
    for level in found.levels:
        mass = level.relevance.reshape(len(level.relevance), -1).abs().sum(1)
        assert sorted(mass.tolist(), reverse=True)[: len(level.shown)] == [float(mass[c]) for c in level.shown]
        assert level.coverage <= 1 + 1e-9
    for above, faded in zip(found.levels, found.faded, strict=False):
        assert len(faded) == len(above.shown) + len(above.pruned)


def test_without_pruning_nothing_is_faded() -> None:
    assert all(level.pruned == () for level in flow(traced(convnet())).levels)


def test_no_level_lies_inside_a_residual_block() -> None:
    trace = traced(Residual())
    names = [next(op.name for op in value.readers if op.is_layer) for value in passages(trace, None)]
    assert names == ["fc", "third", "first", "stem"]
    with pytest.raises(ValueError, match="'second' is no layer that all relevance passes; nearest: "):
        flow(trace, layers=["second"])
    assert [level.layer for level in flow(trace, layers=["stem", "third"]).levels] == ["third", "input"]


def test_flow_is_about_one_sample() -> None:
    with pytest.raises(ValueError, match="the trace holds 2"):
        flow(plrp.trace(convnet(), torch.randn(2, 3, 8, 8, dtype=torch.float64)))


@pytest.mark.parametrize("pruning", [None, plrp.Pruning(p=0.3)])
def test_thinning_counts_what_survives(pruning: plrp.Pruning | None) -> None:
    trace = traced(convnet())
    explanation = trace.explain(pruning=pruning, layers=True)
    rows = thinning(trace, explanation)
    assert [row.layer for row in rows] == ["10", "6", "3", "0"]
    for row in rows:
        relevance = explanation.layers[row.layer][0]
        assert row.neurons == relevance.numel()
        assert row.surviving_neurons == np.count_nonzero(relevance.numpy())
        assert row.surviving_channels == sum(bool(channel.any()) for channel in relevance)
        by_channel = sorted((float(channel.abs().sum()) for channel in relevance), reverse=True)
        assert row.strongest == pytest.approx(sum(by_channel[:10]) / sum(by_channel))
        if relevance.dim() == 3:
            assert row.space is not None
            assert torch.allclose(row.space, relevance.sum(0))
    assert all(row.passage for row in rows)


def test_a_tensor_read_twice_is_one_row() -> None:
    trace = traced(Residual())
    rows = thinning(trace, trace.explain(layers=True))
    assert [row.layer for row in rows] == ["fc", "third", "second", "first", "stem"]
    assert [row.passage for row in rows] == [True, True, False, True, True]


def test_figures_are_drawn_for_any_of_them() -> None:
    for model in (convnet(), Residual()):
        trace = traced(model)
        pruning = plrp.Pruning(p=0.4)
        found = flow(trace, pruning=pruning, nodes=4, pruned=2)
        figure = flow_figure(found, target="tench", title="a fish")
        figure.draw_without_rendering()
        texts = [text.get_text() for text in figure.axes[0].texts]
        assert "tench" in texts
        assert {"red", "green", "blue"} <= set(texts)
        assert any("survive" in text for text in texts)
        plain, pruned = (thinning(trace, trace.explain(pruning=how, layers=True)) for how in (None, pruning))
        drawn = thinning_figure(plain, pruned, name="PLRP-λ")
        drawn.draw_without_rendering()
        titles = [ax.get_title() for ax in drawn.axes]
        assert titles[:3] == ["neurons with relevance", "channels with relevance", "mass in the 10 strongest channels"]


def test_a_level_knows_whose_channels_it_has() -> None:
    """Behind BatchNorm, activation, pools and a flattened place; not behind a residual sum, nor a flattened map."""
    found = flow(traced(convnet()), layers=["3", "6", "10", "0"])
    assert [(level.layer, level.source) for level in found.levels] == [
        ("10", "6"),
        ("6", "3"),
        ("3", "0"),
        ("input", ""),
    ]
    residual = flow(traced(Residual()), layers=["fc", "third", "first"])
    assert [level.source for level in residual.levels] == ["", "", "stem"]
    flat = nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(200, 2))
    assert [level.source for level in flow(traced(flat)).levels] == ["", ""]


def test_a_patch_stands_beside_its_channel() -> None:
    found = flow(traced(convnet()), layers=["6", "3"])
    channel = found.levels[0].shown[0]
    patch = np.full((5, 5, 3), 7, np.uint8)
    plain = len(flow_figure(found).axes[0].images)
    figure = flow_figure(found, patches={"3": {channel: patch}, "9": {0: patch}})
    images = [image.get_array() for image in figure.axes[0].images]
    assert len(images) == plain + 1
    assert sum(image.shape == (5, 5, 3) for image in images) == 1
