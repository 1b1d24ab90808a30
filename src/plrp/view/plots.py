"""Relevance as a matplotlib figure: `explanation.plot()`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from plrp.explanation import Explanation
from plrp.files import PICTURES, save_figure
from plrp.genomics.logo import logo_page
from plrp.genomics.sequences import LETTERS, decode
from plrp.text.coloured_text import Cell, Sentence, to_figure
from plrp.vision.photograph_figures import grid_of, hide_empty, show_map

from .page_kinds import input_picture, token_texts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 16
"""Samples in one figure by default."""


def plot(
    explanation: Explanation,
    images: Any = None,
    *,
    samples: Sequence[int] | None = None,
    tokens: Sequence[str] | None = None,
    names: Sequence[str] | Mapping[int, str] | None = None,
) -> Figure:
    """The relevance of some samples: over pictures, as logos of DNA, as coloured tokens, as bars of numbers.

    images: inputs (batch, …) or pictures (height, width, 3) to draw over; by default the explained inputs.
    samples: numbers within the batch (default: the first 16). tokens: the texts of a single sample's token ids.
    names: of the classes, in their order or by number, for the titles.
    """
    if isinstance(samples, int):
        raise TypeError(f"samples are numbers, such as [{samples}, {samples + 2}].")
    if isinstance(names, str):
        raise TypeError(f"names has the names of all classes, or is a dict such as {{153: {names!r}}}.")
    if isinstance(explanation.relevance, tuple):
        raise ValueError("This model has several inputs: plot explanation.relevance[0] and so on by themselves.")
    relevance: Tensor = explanation.relevance.detach().float().cpu()
    chosen = list(range(min(MOST, len(relevance)))) if samples is None else list(samples)
    if images is not None and len(images) != len(relevance):
        raise ValueError(f"images are {len(images)}, samples {len(relevance)}: give one for each.")
    inputs = [_input(explanation, n) if images is None else _given(images[n]) for n in chosen]
    every = explanation.remarks()
    if len(every) != len(relevance):
        raise ValueError(
            "The rows of this input are no samples: draw a graph by plrp.graphs.walks(…).plot(edge_index)."
        )
    remarks, titles = [every[n] for n in chosen], [_title(explanation, n, names) for n in chosen]
    shape, relevance = relevance.shape, relevance[chosen]
    if len(shape) == 4:
        return _pictures(relevance, inputs, titles, remarks)
    titles = [title if remark is None else f"{title}, {remark}" for title, remark in zip(titles, remarks, strict=True)]
    if len(shape) == 3 and shape[1] == len(LETTERS):
        entries: list[Any] = []
        for own, given, title in zip(relevance, inputs, titles, strict=True):
            letters = "N" * shape[-1] if given is None else str(decode(given.numpy()))
            entries.append((title, {"relevance": own.sum(0).numpy()}, letters, []))
        return logo_page(entries)
    if len(shape) != 2:
        raise ValueError(f"plot draws pictures, one-hot DNA, tokens and vectors; this input is {tuple(shape)}.")
    if inputs[0] is not None and not inputs[0].is_floating_point():
        return _texts(relevance, inputs, titles, tokens)
    return _bars(relevance, titles)


def save_plot(explanation: Explanation, path: str | Path, *, dpi: int = 200, **options: Any) -> None:
    """Write the figure of `plot`, whose `options` it takes."""
    if Path(path).suffix.lower() not in PICTURES:
        raise ValueError(f"{path} should end in .html (a page), .npz (numbers), or {', '.join(PICTURES)} (a figure).")
    save_figure(plot(explanation, **options), path, dpi=dpi)


def _input(explanation: Explanation, sample: int) -> Tensor | None:
    if explanation._source is None:  # stored without its model
        return None
    return explanation._source.input_of(sample).detach().cpu()


def _given(image: Any) -> Tensor:
    """An input as it is; a picture (height, width, 3) with its channels first."""
    values = image.detach().cpu() if isinstance(image, Tensor) else torch.from_numpy(np.array(image))
    picture = values.dtype == torch.uint8 and values.dim() == 3 and values.shape[-1] in (3, 4)
    return values[..., :3].movedim(-1, 0).float() / 255 if picture else values


def _title(explanation: Explanation, sample: int, names: Sequence[str] | Mapping[int, str] | None) -> str:
    """The explained class, its score, and the method."""
    how = "LRP" if explanation.pruning is None else explanation.pruning.title
    name = "score"
    if isinstance(explanation.target, Tensor):
        number = int(explanation.target[sample])
        if names is not None and number >= len(names) and not isinstance(names, Mapping):
            raise ValueError(f"{len(names)} names were given, and class {number} was explained: name all classes.")
        known = names if isinstance(names, Mapping) else dict(enumerate(names or ()))
        name = str(known.get(number, f"class {number}"))
    return f"{name} ({float(explanation.score[sample]):.3g}), {how}"


def _pictures(
    relevance: Tensor, inputs: Sequence[Tensor | None], titles: Sequence[str], remarks: Sequence[str | None]
) -> Figure:
    columns = min(4, len(relevance))
    figure, axes = grid_of(math.ceil(len(relevance) / columns), columns, side=2.6)
    for ax, own, given, title, remark in zip(axes.flat, relevance, inputs, titles, remarks, strict=False):
        picture = None if given is None else input_picture(given)
        show_map(ax, own, title, remark=remark, picture=picture)
    hide_empty(axes)
    return figure


def _texts(
    relevance: Tensor, inputs: Sequence[Tensor | None], titles: Sequence[str], tokens: Sequence[str] | None
) -> Figure:
    sentences = []
    for own, given, title in zip(relevance, inputs, titles, strict=True):
        assert given is not None
        words, most = token_texts(given, tokens), float(own.abs().max()) or 1.0
        cells = [Cell(word, float(v) / most, False, f"{float(v):+.3g}") for word, v in zip(words, own, strict=True)]
        sentences.append(Sentence(title, cells))
    figure: Any = to_figure(sentences)
    return figure


def _bars(relevance: Tensor, titles: Sequence[str]) -> Figure:
    figure, axes = grid_of(len(relevance), 1, side=2.2, bar=False)
    figure.set_size_inches(7, 1.8 * len(relevance))
    for ax, own, title in zip(axes.flat, relevance.numpy(), titles, strict=True):
        ax.set_axis_on()
        ax.bar(np.arange(len(own)), own, color=np.where(own > 0, "#d42a20", "#1f63b0"))
        ax.set_title(title, fontsize=9)
    return figure
