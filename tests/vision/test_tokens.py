"""Patches and heads of vision transformers, by depth."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torchvision.models import SwinTransformer, VisionTransformer

import plrp
from plrp.vision import token_depths, tokens_figure


def network() -> nn.Module:
    torch.manual_seed(0)
    model = VisionTransformer(16, 4, 3, 4, 24, 32, num_classes=5)  # 16 patches and a class token, 3 blocks of 4 heads
    nn.init.normal_(model.heads.head.weight)
    return model.eval()


@pytest.mark.parametrize("pruning", [None, plrp.Pruning(p=0.3, unit="position")])
def test_tokens_and_heads_hold_what_the_layers_hold(pruning: Any) -> None:
    trace = plrp.trace(network(), torch.randn(1, 3, 16, 16))
    explanation = trace.explain(target=1, composite="attnlrp", pruning=pruning, layers=True)
    depths = token_depths(trace, explanation)
    assert len(depths) == 3
    for number, one in enumerate(depths):
        block = f"encoder.layers.encoder_layer_{number}.self_attention"
        assert one.layer == f"{block}.out_proj"
        assert (len(one.tokens), len(one.heads), one.grid.shape) == (17, 4, (4, 4))  # type: ignore[union-attr]
        read = explanation.layers[block].reshape(17, 24)
        torch.testing.assert_close(one.tokens, read.abs().sum(1))
        outputs = explanation.layers[one.layer].reshape(17, 4, 6)  # head by head, side by side
        torch.testing.assert_close(one.heads, outputs.sum((0, 2)))
        assert bool((one.tokens == 0).any()) == (pruning is not None)
    drawn = tokens_figure(depths, title="why")
    titles = [axis.get_title() for part in drawn.subfigs for axis in part.axes]
    assert [title.split("\n")[0] for title in titles[:3]] == ["attention 1", "attention 2", "attention 3"]


def test_attention_within_windows_has_heads_and_no_map() -> None:
    torch.manual_seed(0)
    model = SwinTransformer([2, 2], 8, [2], [2], [4, 4], num_classes=3).eval()
    trace = plrp.trace(model, torch.randn(1, 3, 16, 16))
    depths = token_depths(trace, trace.explain(target=1, composite="attnlrp", layers=True))
    assert [(len(one.tokens), len(one.heads), one.grid) for one in depths] == [(64, 2, None)] * 2
    assert tokens_figure(depths).subfigs[1].axes[0].get_title() == "relevance of the heads"


def test_a_network_without_attention_has_no_tokens() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 8), nn.ReLU(), nn.Linear(8, 2))
    trace = plrp.trace(model.eval(), torch.randn(1, 3, 8, 8))
    assert token_depths(trace, trace.explain(layers=True)) == []
