"""Figures say where the arithmetic broke."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import plrp
from plrp.balance import NOTHING, remarks
from plrp.vision.photograph_figures import comparison_figure, explanation_figure

PICTURE = Image.fromarray(np.full((16, 16, 3), 128, np.uint8))
MAP = torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(0))
REMARK = "PLRP-M multiplied Σ|R| of a tensor by 5e27"


def words(figure: Any) -> list[str]:
    """What stands in and under the panels."""
    return [text.get_text() for ax in figure.axes for text in (*ax.texts, ax.xaxis.label, ax.title)]


def test_a_remark_stands_under_its_map_and_its_overlay_alone() -> None:
    one = torch.ones(1)
    assert remarks(one, one, 5.0e27 * one.double()) == [REMARK]
    maps = {"LRP": MAP, "PLRP-M, p = 0.2": MAP}
    assert words(explanation_figure(PICTURE, maps, remarks={"PLRP-M, p = 0.2": REMARK})).count(REMARK) == 2
    assert words(explanation_figure(PICTURE, maps, remarks={"LRP": REMARK})).count(REMARK) == 1
    grid = comparison_figure(PICTURE, MAP, {"PLRP-M": {0.1: MAP, 0.2: MAP}}, remarks={"PLRP-M, p = 0.2": REMARK})
    marked = [ax.title.get_text() for ax in grid.axes if REMARK in [text.get_text() for text in ax.texts]]
    assert marked == ["PLRP-M, p = 0.2"]


def test_both_rows_are_as_long_and_a_map_without_signs_has_a_bar_from_zero() -> None:
    names = ("GradCAM", "gradient × input", "integrated gradients")
    drawn = explanation_figure(PICTURE, {"LRP": MAP, "PLRP": MAP - 0.5}, beside=dict.fromkeys(names, MAP))
    panels = [ax.title.get_text() for ax in drawn.axes if ax.axison and ax.get_subplotspec() is not None]
    assert panels == ["photograph", "LRP", "PLRP", *names[:2], "PLRP, overlay", "PLRP, outline", names[2]]
    drawn.canvas.draw()
    bars = {ax.title.get_text(): ax.child_axes[0].get_yticklabels() for ax in drawn.axes if ax.child_axes}
    ends = {name: labels[0].get_text() for name, labels in bars.items()}
    assert ends["GradCAM"] == "0"
    assert ends["PLRP"].startswith("−")


def test_the_grid_names_its_rows_and_lrp_stands_apart() -> None:
    grid = comparison_figure(PICTURE, MAP, {"PLRP-λ": {0.1: MAP}, "PLRP-M±": {0.1: MAP}})
    rows = [[text.get_text() for text in grid.axes[n].texts] for n in (1, 4)]
    assert rows == [["PLRP-λ"], ["PLRP-M±"]]
    assert grid.axes[3].title.get_text() == "LRP"


@pytest.mark.parametrize(("positive", "outlined"), [(0.5, True), (0.21, True), (0.19, False), (0.0, False)])
def test_no_outline_where_most_relevance_speaks_against(positive: float, outlined: bool) -> None:
    relevance = torch.zeros(3, 16, 16)
    relevance[0, 4, 4], relevance[0, 12, 12] = positive, positive - 1
    said = words(explanation_figure(PICTURE, {"LRP": relevance}))
    assert ("80% of the positive relevance" in said) == outlined
    assert ("most relevance speaks against this class" in said) == (not outlined)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)).eval()


def test_plot_says_names_and_what_broke(model: nn.Module) -> None:
    explanation = plrp.explain(model, torch.rand(3, 3, 8, 8), target=[0, 1, 2])
    names = ["Maltese dog", "pug", "beagle"]
    for samples in (None, [1]):
        said = " ".join(words(explanation.plot(samples=samples, names=names)))
        assert [name in said for name in names] == [samples is None, True, samples is None]
        assert "multiplied" not in said
    assert "pug (" in " ".join(words(explanation.plot(names={1: "pug"})))
    explanation._grown = torch.tensor([1.0, 7.0, 9.0])
    said = [text for text in words(explanation.plot()) if "multiplied" in text]
    assert said == [f"PLRP-M multiplied Σ|R| of a tensor by {times}" for times in (7, 9)]
    with pytest.raises(ValueError, match="1 names were given, and class 1"):
        explanation.plot(names=["Maltese dog"])
    with pytest.raises(TypeError, match="samples are numbers"):
        explanation.plot(samples=1)
    with pytest.raises(ValueError, match="images are 2, samples 3"):
        explanation.plot(torch.rand(2, 3, 8, 8))


def test_plot_draws_over_the_pictures_given(model: nn.Module) -> None:
    inputs = torch.rand(2, 3, 8, 8)
    explanation = plrp.explain(model, inputs, target=0)
    drawn = [[ax.images[0].get_array() for ax in explanation.plot(images).axes[:2]] for images in (
        inputs, list((inputs * 255).round().byte().movedim(1, -1).numpy()), None, 1 - inputs
    )]  # fmt: skip
    for same in drawn[1:3]:
        assert all(np.array_equal(a, b) for a, b in zip(drawn[0], same, strict=True))
    assert not np.array_equal(drawn[0][0], drawn[3][0])


def test_a_score_of_nothing_is_told_in_the_title_of_bars() -> None:
    model = nn.Sequential(nn.Linear(4, 3, bias=False)).eval()
    explanation = plrp.explain(model, torch.zeros(1, 4), target=0)
    assert words(explanation.plot())[-1].endswith(f"LRP, {NOTHING}")
