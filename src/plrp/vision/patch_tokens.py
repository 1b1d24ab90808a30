"""Inside a vision transformer: the patches and the heads that still carry relevance at each depth.

Attention is recognised on the tape, not by names: its output projection reads a rearranged matrix product, attention
(tokens × tokens) · values (tokens × channels of a head).
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from plrp.explanation import Explanation
from plrp.tape.operations import Family
from plrp.tape.trace import Trace
from plrp.tape.values import Op

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_EXTRA = 8  # class tokens and registers in front of the patches


class TokenDepth(NamedTuple):
    """One attention of a picture's transformer, for one sample.

    layer: its output projection. tokens: Σ|R| over the channels of the attention's input, (tokens,). heads: relevance
    of the heads' outputs, (heads,). whole: whether all tokens attend to each other; if not, they lie window by window.
    """

    layer: str
    tokens: Tensor
    heads: Tensor
    whole: bool = True

    @property
    def grid(self) -> Tensor | None:
        """The patches as a square map, without class token and registers; None if they form no square."""
        side = math.isqrt(len(self.tokens))
        extra = len(self.tokens) - side**2
        return self.tokens[extra:].view(side, side) if self.whole and side > 1 and extra <= MOST_EXTRA else None


def token_depths(trace: Trace, explanation: Explanation) -> list[TokenDepth]:
    """The attentions of a trace of one picture, from the input up; the explanation was made with `layers=True`."""
    depths = []
    for before, op in pairwise(trace.layers):
        count, together = _heads(op)
        if count and op.name in explanation.layers and before.name in explanation.layers:
            read, heads = explanation.layers[before.name], explanation.layers[op.name]
            by_head = heads.reshape(-1, count, heads.shape[-1] // count)
            tokens = read.reshape(-1, read.shape[-1]).abs().sum(-1)
            whole = len(tokens) == together
            depths.append(TokenDepth(op.name, tokens.float().cpu(), by_head.sum((0, 2)).float().cpu(), whole))
    return depths


def _heads(op: Op) -> tuple[int, int]:
    """How many heads a layer reads side by side, and of how many tokens; (0, 0) if it reads no heads."""
    below = op.inputs[0].producer
    while below is not None and below.family is Family.REARRANGE and len(below.inputs) == 1:
        below = below.inputs[0].producer
    if below is None or below.kind not in ("matmul", "bmm") or len(below.inputs) != 2:
        return 0, 0
    shape, width = below.output.shape, op.inputs[0].shape[-1]
    count = width // shape[-1]
    fits = op.kind == "linear" and count * shape[-1] == width and shape[-3] % count == 0
    return (count, shape[-2]) if fits else (0, 0)


def tokens_figure(depths: list[TokenDepth], *, title: str = "") -> Figure:
    """The patches at each depth, from the input on the left, and the heads by relevance.

    A grey patch holds no relevance.
    """
    from plrp.figure import Figure

    maps = [(number, one) for number, one in enumerate(depths, 1) if one.grid is not None]
    columns = min(6, len(maps)) or 1
    rows = math.ceil(len(maps) / columns)
    figure = Figure(figsize=(1.35 * columns + 3.2, max(2.6, 1.55 * rows + 0.6)), layout="constrained")
    parts: Any = figure.subfigures(1, 2, width_ratios=[1.35 * columns, 3.0])
    left, right = parts
    axes = left.subplots(max(rows, 1), columns, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    for axis, (number, one) in zip(axes.flat, maps, strict=False):
        grid = one.grid
        assert grid is not None
        alive = float((one.tokens > 0).float().mean())
        image = grid.masked_fill(grid == 0, torch.nan)
        axis.set_axis_on()
        axis.set_facecolor("#d9d9d9")
        axis.imshow(image.numpy(), cmap="Reds", vmin=0, vmax=float(grid.max()) or 1.0, interpolation="nearest")
        axis.set_xticks([])
        axis.set_yticks([])
        axis.set_title(f"attention {number}\n{alive:.0%} of tokens", fontsize=7.5)
    most = max(len(one.heads) for one in depths)
    heads = torch.full((len(depths), most), torch.nan)
    for number, one in enumerate(depths):
        heads[number, : len(one.heads)] = one.heads
    limit = float(heads.nan_to_num().abs().max()) or 1.0
    axis = right.subplots()
    axis.set_facecolor("#d9d9d9")
    drawn = axis.imshow(heads.numpy(), cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest")
    axis.set_yticks(range(len(depths)), range(1, len(depths) + 1), fontsize=7)
    axis.set_xticks(range(0, most, max(1, most // 12)), range(0, most, max(1, most // 12)), fontsize=7)
    axis.set_ylabel("attention", fontsize=8)
    axis.set_xlabel("head", fontsize=8)
    axis.set_title("relevance of the heads", fontsize=8.5)
    axis.invert_yaxis()
    right.colorbar(drawn, ax=axis, shrink=0.7).ax.tick_params(labelsize=7)
    if title:
        figure.suptitle(title, fontsize=9, parse_math=False)
    return figure
