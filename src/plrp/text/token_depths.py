"""Inside a language model: the tokens and the attention heads that carry relevance at each depth."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from plrp.files import new_figure
from plrp.spelling import shortened, visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .text_explanation import ExplainedSpan, ExplainedText
    from .tokens import Token

BLOCK = re.compile(r"^(?P<stack>.*?)\.?(?P<number>\d+)\.(?P<inner>.+)$")
OUTPUT = re.compile(
    r"(Attention\.o|o_proj|out_proj|out_lin|attn\.c_proj|attention\.output\.dense|attn\.proj|attention\.dense)(#\d+)?$"
)
"""The layer that reads the heads of an attention side by side."""


class TokenLayers(NamedTuple):
    """Relevance of the tokens at the depths of a transformer; (blocks, tokens), each the sum of |R| over channels.

    `attention` is taken at the input of each block's first layer, which its attention reads; `mlp` at the input of the
    first layer after the attention. Neither holds the relevance that the skips carry past both.
    """

    names: list[str]
    attention: Tensor
    mlp: Tensor


class _Block(NamedTuple):
    name: str
    reads: str
    output: str
    mlp: str | None
    ends: str | None  # the last layer of the MLP


def blocks_of(explained: ExplainedText) -> list[_Block]:
    """The blocks with an attention, in order of execution."""
    inside: dict[str, list[str]] = {}
    for name in explained.explanation.layers.names:
        if match := BLOCK.match(name):
            inside.setdefault(f"{match['stack']}.{match['number']}".lstrip("."), []).append(name)
    blocks = []
    for block, names in inside.items():
        outputs = [n for n, name in enumerate(names) if OUTPUT.search(name)]
        if outputs and outputs[0]:
            after = outputs[-1] + 1  # a decoder attends to itself and then to its encoder
            mlp = (names[after], names[-1]) if after < len(names) else (None, None)
            blocks.append(_Block(block, names[0], names[outputs[0]], *mlp))
    if not blocks:
        raise ValueError("No attention was found by the names of the model's layers: look at explanation.layers.")
    return blocks


def layer_relevance(explained: ExplainedText, name: str | None) -> Tensor:
    """Relevance at a layer's input, (tokens, channels); zeros for a layer that is missing."""
    layers, count = explained.explanation.layers, len(explained.tokens)
    if name is None or (name not in layers and name in layers.names and name in layers.wanted):
        return torch.zeros(count, 1)  # no relevance reaches it
    if name not in layers:
        raise ValueError("The relevance of the layers was not kept: explain with layers=True.")
    relevance = layers[name].detach().float().cpu().flatten(0, -2)
    if not explained.encoded:
        return relevance[:count]
    begin, end = (explained.encoded, count) if "decoder" in name else (0, explained.encoded)
    return torch.nn.functional.pad(relevance[: end - begin], (0, 0, begin, count - end))


def token_layers(explained: ExplainedText) -> TokenLayers:
    """How much relevance each token carries at each depth; needs `layers=True`."""
    blocks = blocks_of(explained)
    attention = [layer_relevance(explained, b.reads).abs().sum(-1) for b in blocks]
    mlp = [layer_relevance(explained, b.mlp).abs().sum(-1) for b in blocks]
    return TokenLayers([b.name for b in blocks], torch.stack(attention), torch.stack(mlp))


def head_relevance(explained: ExplainedText) -> Tensor:
    """The relevance of each attention head's outputs, summed over tokens and channels: (blocks, heads)."""
    blocks, heads = blocks_of(explained), explained.attention_heads
    if heads < 1:
        raise ValueError("The model's configuration names no attention heads.")
    outputs = [layer_relevance(explained, block.output) for block in blocks]
    divided = [r.unflatten(-1, (heads, -1)) if r.shape[-1] % heads == 0 else torch.zeros(1, heads, 1) for r in outputs]
    return torch.stack([relevance.sum((0, 2)) for relevance in divided])


def layers_figure(explained: ExplainedText) -> Figure:
    """Tokens by depth before attention and MLP, as shares of the block's relevance, and heads by relevance.

    A grey cell holds no relevance.
    """
    from matplotlib.colors import PowerNorm

    tokens, heads = token_layers(explained), head_relevance(explained)
    count, depth = len(explained.tokens), len(tokens.names)
    tall, each, last = max(2.8, 0.2 * depth + 1.6), min(9.0, max(2.6, 0.2 * count + 1)), 0.22 * heads.shape[1] + 1.4
    figure = new_figure((2 * each + last, tall), layout="constrained")
    axes = figure.subplots(1, 3, width_ratios=[each, each, last])
    every = math.ceil(count / (7 * each))  # as many labels as there is room for
    labels = _labels(explained.tokens)[::every]
    numbers = [_block_label(name, explained.encoded > 0) for name in tokens.names]
    read = {"read by attention": tokens.attention, "read by the MLP": tokens.mlp}
    shares = [values / values.sum(1, keepdim=True).clamp_min(1e-30) for values in read.values()]
    most = max(float(share.max()) for share in shares)
    for axis, (title, values), share in zip(axes, read.items(), shares, strict=False):
        holding = float((values > 0).float().mean())
        image = _image(axis, share.masked_fill(values == 0, torch.nan), "Reds", 0, most)
        image.set_norm(PowerNorm(0.5, 0, most))  # keeps small shares visible beside a dominant token
        axis.set_title(f"{title}\n{holding:.0%} of the cells hold relevance", fontsize=9)
        axis.set_xticks(range(0, count, every), labels, rotation=90, fontsize=7, parse_math=False)
        axis.set_xlabel("grey: no relevance", fontsize=7, color="#666")
        _depth(axis, numbers)
    _bar(figure, image, axes[:2], "share of the block's Σ|R|", shrink=0.6, pad=0.01)
    axes[0].set_ylabel("block", fontsize=8)
    most = float(heads.abs().max()) or 1.0
    image = _image(axes[2], heads, "RdBu_r", -most, most)
    axes[2].set_title("heads\nrelevance of their outputs", fontsize=9)
    axes[2].set_xticks(range(heads.shape[1]), range(heads.shape[1]), fontsize=7)
    _depth(axes[2], numbers)
    _bar(figure, image, axes[2], "Σ R", shrink=0.6, pad=0.02)
    figure.suptitle(visible(explained.caption()), fontsize=9, parse_math=False)
    return figure


def matrix_figure(span: ExplainedSpan) -> Figure:
    """Explained tokens × tokens that were read, red for positive and blue for negative relevance."""
    values = span.relevance
    rows, columns = values.shape
    later = torch.arange(columns)[None] >= torch.tensor([len(one.relevance) for one in span.explanations])[:, None]
    figure = new_figure((max(4.0, 0.32 * columns + 2), max(2.2, 0.3 * rows + 1.5)), layout="constrained")
    axis = figure.subplots()
    most = float(values.abs().max()) or 1.0
    image = _image(axis, values.masked_fill(later, torch.nan), "RdBu_r", -most, most)
    axis.axvline(span.prompt - 0.5, color="black", lw=0.8)
    axis.set_title(f"for each token written, the relevance of each token read\n{span[0].method}", fontsize=9)
    axis.set_xticks(range(columns), _labels(span.tokens), rotation=90, fontsize=8, parse_math=False)
    axis.set_yticks(range(rows), [visible(t).strip() or "␣" for t in span.targets], fontsize=8, parse_math=False)
    axis.set_xlabel("token read", fontsize=8)
    axis.set_ylabel("token explained", fontsize=8)
    _bar(figure, image, axis, "relevance", shrink=0.8)
    return figure


def _block_label(name: str, both: bool) -> str:
    """The number of a block; with `both`, whether it is of the encoder or the decoder."""
    stack, _, number = name.rpartition(".")
    return f"{'decoder' if 'decoder' in stack else 'encoder'} {number}" if both else number


def _labels(tokens: Sequence[Token]) -> list[str]:
    return [shortened(visible(token.shown).strip() or "␣", 14) for token in tokens]


def _image(axis: Any, values: Tensor, colours: str, low: float, high: float) -> Any:
    axis.set_facecolor("#d9d9d9")
    return axis.imshow(values.numpy(), cmap=colours, vmin=low, vmax=high, aspect="auto", interpolation="nearest")


def _bar(figure: Any, image: Any, axes: Any, label: str, **place: float) -> None:
    bar = figure.colorbar(image, ax=axes, **place)
    bar.ax.tick_params(labelsize=7)
    bar.set_label(label, fontsize=7)


def _depth(axis: Any, numbers: list[str]) -> None:
    """Blocks from the input at the bottom to the answer at the top."""
    every = max(1, len(numbers) // 12)
    axis.set_yticks(range(0, len(numbers), every), numbers[::every], fontsize=7)
    axis.invert_yaxis()
