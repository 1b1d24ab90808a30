"""Figures of channels: the inputs that gave each channel most relevance, at the place where the channel is strongest.

- `channel_figure`: pictures, cropped and masked by the relevance that passes the channel there
- `logo_figure`: sequences, as logos of the relevance that passes the channel there
- `token_figure`: texts, coloured by the relevance that passes the channel at its strongest token, which is marked
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from plrp.composites import Composite
from plrp.conditions import Projection, by_channel
from plrp.genomics import logo
from plrp.genomics.sequences import LETTERS
from plrp.models.loading import LoadedModel
from plrp.progress import progress
from plrp.pruning import Pruning
from plrp.spelling import shortened
from plrp.tape.refusals import device_of
from plrp.tape.trace import Trace
from plrp.tape.verification import trace
from plrp.text.coloured_text import Cell, Sentence, to_figure
from plrp.vision.heatmaps import outline_level
from plrp.vision.photograph_figures import FAINT, grid_of

from .exemplar_results import Exemplar, Exemplars
from .numbered_inputs import FromPhotographs, NumberedInputs, numbered
from .search import layer_named

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHARE = 0.8  # of the positive relevance lies in the region that a patch shows
MARGIN = 0.15  # around this region, as a share of its side
WIDEST = 40  # bases of a logo

Pixels = npt.NDArray[np.uint8]
Patches = dict[str, dict[int, Pixels]]
"""By layer and channel, the pixels of an exemplary patch (side, side, 3)."""


@dataclass(frozen=True)
class Reading:
    """The results of a search for exemplars, and the model and data of the search, to look at the exemplars again.

    target, composite: those of the search, if they were no class and no named composite.
    """

    exemplars: Exemplars
    model: nn.Module | LoadedModel
    data: Any
    target: Any = None
    composite: str | Composite | None = None
    latest: dict[int, Trace] = field(default_factory=dict, init=False, repr=False)  # of the latest input, by its number

    @property
    def module(self) -> nn.Module:
        """The network."""
        return self.model.module if isinstance(self.model, LoadedModel) else self.model

    @cached_property
    def inputs(self) -> NumberedInputs:
        """The data by number."""
        return numbered(self.data, self.model)

    def relevance(
        self, x: Tensor, example: Exemplar, layer: str, channel: int, place: tuple[int, ...] | None = None
    ) -> npt.NDArray[np.float32]:
        """The relevance of an input that passes a channel of a layer, at one place or at all; in the input's shape."""
        explained, settings = int(self.exemplars.classes[example.sample]), self.exemplars.settings
        pruning = settings.get("pruning")
        if example.sample not in self.latest:
            self.latest.clear()
            self.latest[example.sample] = trace(self.module, x)
        traced = self.latest[example.sample]
        condition: Any = [channel]
        if bases := settings.get("subspaces"):
            condition = Projection(torch.tensor(bases[channel]), at=place)
        elif place is not None:
            op = layer_named(traced, layer)
            condition = torch.zeros(op.output.shape, dtype=torch.bool)
            by_channel(condition, op)[(0, channel, *place)] = True
        explanation = traced.explain(
            target=self.target if explained < 0 else explained,
            composite=self.composite or settings.get("composite", "auto"),
            pruning=None if pruning is None else Pruning(**pruning),
            condition={layer: condition},
            only_through=True,
        )
        return explanation.relevance[0].float().cpu().numpy()

    def input(self, example: Exemplar) -> Tensor:
        """The input of an exemplar as a batch of one, where the model is."""
        return self.inputs.batch([example.sample]).to(device_of(self.module))

    def patch(self, layer: str, channel: int, example: Exemplar) -> Pixels:
        """The part of a picture that a channel saw at its strongest place, or at all if this one has no relevance."""
        x = self.input(example)
        if x.dim() != 4:
            raise ValueError(f"Patches are drawn of pictures (channels, height, width), got {tuple(x.shape[1:])}.")
        relevance = self.relevance(x, example, layer, channel, example.place).sum(0)
        if not (relevance > 0).any():
            relevance = self.relevance(x, example, layer, channel).sum(0)
        return patch(picture_of(x[0], self.inputs), relevance)

    def patches(
        self, layer: str, channels: Iterable[int], count: int = 3, step: Callable[[int, int], None] | None = None
    ) -> dict[int, list[tuple[Exemplar, Pixels]]]:
        """By channel its strongest exemplars with their patches, at most `count`; an empty list if it has none.

        `step` is called with the numbers of drawn patches and of all.
        """
        shown = {channel: self.exemplars.of(layer, channel, count) for channel in channels}
        asked = sorted(((c, e) for c, rows in shown.items() for e in rows), key=lambda one: one[1].sample)
        drawn: dict[tuple[int, int], Pixels] = {}
        for channel, example in asked:  # sorted by input, so that each runs through the model once
            drawn[channel, example.sample] = self.patch(layer, channel, example)
            if step is not None:
                step(len(drawn), len(asked))
        return {channel: [(e, drawn[channel, e.sample]) for e in rows] for channel, rows in shown.items()}


def channel_figure(
    exemplars: Exemplars,
    layer: str,
    channels: Sequence[int],
    model: nn.Module | LoadedModel,
    data: Any,
    *,
    by: str = "relevance",
    count: int = 6,
    step: Callable[[float], None] = lambda done: None,
    **search: Any,
) -> Figure:
    """A row per channel with patches of its exemplars: the region whose relevance passes the channel's strongest place.

    `model` and `data` are those of the search; the data are pictures. Composite and pruning are taken from the search.
    search: `target` and `composite`, if those of the search were no class and no named composite. `step` is called
    after every row.
    """
    reading = Reading(exemplars, model, data, **search)

    def draw(ax: Any, channel: int, example: Exemplar) -> str:
        ax.imshow(reading.patch(layer, channel, example))
        return shortened(example.name.rsplit("/", 1)[-1], 18)

    title = f"{layer}: inputs with most {by}, at the {exemplars.unit}'s strongest place"
    return _rows(reading, layer, channels, count, by, draw, title, step)


def _rows(
    reading: Reading,
    layer: str,
    channels: Sequence[int],
    count: int,
    by: str,
    draw: Callable[[Any, int, Exemplar], str],
    title: str,
    step: Callable[[float], None] = lambda done: None,
) -> Figure:
    """A row per channel; `draw` draws an exemplar into its panel and returns the label below it."""
    figure, axes = grid_of(len(channels), count, side=1.25, bar=False)
    figure.suptitle(title, fontsize=9, parse_math=False)
    for row, channel in zip(axes, channels, strict=True):
        examples = reading.exemplars.of(layer, channel, count, by)
        for ax in row[max(1, len(examples)) :]:
            ax.set_axis_off()
        for ax, example in zip(row, examples, strict=False):
            label = draw(ax, channel, example)
            ax.set_xlabel(label, fontsize=5.5, color=FAINT, labelpad=2, parse_math=False)
        if not examples:
            row[0].text(0.5, 0.5, "none", fontsize=6.5, color=FAINT, ha="center", va="center")
        row[0].set_ylabel(f"{reading.exemplars.unit} {channel}", fontsize=7.5)
        step(1)
    return figure


def patches(
    exemplars: Exemplars,
    wanted: Mapping[str, Iterable[int]],
    model: nn.Module | LoadedModel,
    data: Any,
    *,
    show_progress: bool | None = False,
) -> Patches:
    """By layer and channel the patch of the strongest exemplar, for `flow_figure`; layers not searched are left out."""
    reading, drawn = Reading(exemplars, model, data), Patches()
    asked = [(layer, channel) for layer, channels in wanted.items() if layer in exemplars for channel in channels]
    with progress("drawing patches", len(asked), show_progress) as step:
        for layer, channel in asked:
            for example in exemplars.of(layer, channel, 1):
                drawn.setdefault(layer, {})[channel] = reading.patch(layer, channel, example)
            step(1)
    return drawn


def logo_figure(
    exemplars: Exemplars,
    layer: str,
    channels: Sequence[int],
    model: nn.Module,
    data: Any,
    *,
    by: str = "relevance",
    count: int = 4,
    **search: Any,
) -> Figure:
    """A row per channel of a sequence network, with logos of its exemplars at the channel's strongest place.

    Inputs are one-hot, (4, length). A logo spans the receptive field of the strongest place, or the `WIDEST` bases of
    it that hold most relevance; the height of a letter is the relevance of its base that passes the channel there.
    search: see `channel_figure`.
    """
    reading = Reading(exemplars, model, data, **search)

    def draw(ax: Any, channel: int, example: Exemplar) -> str:
        x = reading.input(example)
        if x.dim() != 3 or x.shape[1] != 4:
            raise ValueError(f"Logos are drawn of one-hot sequences (4, length), got {tuple(x.shape[1:])}.")
        relevance = reading.relevance(x, example, layer, channel, example.place).sum(0)
        ((start, end),) = receptive_field(reading.module, x, layer, channel, example.place)
        if end - start > WIDEST:
            mass = np.convolve(np.abs(relevance[start:end]), np.ones(WIDEST), "valid")
            start += int(mass.argmax())
            end = start + WIDEST
        bases = x[0].cpu().numpy()
        letters = "".join(LETTERS[k] if bases[k, i] > 0 else "N" for i, k in enumerate(bases.argmax(0)))
        logo.draw_logo(ax, relevance[start:end], letters[start:end], start=start)
        return f"input {shortened(example.name, 18)}, bases {start}…{end - 1}"

    figure = _rows(reading, layer, channels, count, by, draw, f"{layer}: sequences with most {by}")
    figure.set_size_inches(count * 2.4, len(channels) * 1.05 + 0.4)
    return figure


def token_figure(
    exemplars: Exemplars,
    layer: str,
    channels: Sequence[int],
    model: nn.Module,
    data: Any,
    words: Callable[[int], str],
    **options: Any,
) -> Figure:
    """Texts that gave channels most relevance: the strongest token in ⟦brackets⟧, each token in its relevance's colour.

    Draws the sentences of `token_contexts`, whose options it takes.
    """
    return to_figure(token_contexts(exemplars, layer, channels, model, data, words, **options))


def token_contexts(
    exemplars: Exemplars,
    layer: str,
    channels: Sequence[int],
    model: nn.Module,
    data: Any,
    words: Callable[[int], str],
    *,
    by: str = "relevance",
    count: int = 4,
    **search: Any,
) -> list[Any]:
    """The captions and coloured tokens of channels' exemplars, as `coloured_text.Sentence`s, for figures and pages.

    Inputs are token ids, (tokens,); `words` spells one, such as `lambda i: tokenizer.decode([i])`. search: see
    `channel_figure`.
    """
    reading, space = Reading(exemplars, model, data, **search), exemplars[layer].space
    sentences = []
    for channel in channels:
        for example in exemplars.of(layer, channel, count, by):
            x = reading.input(example)
            if x.dim() != 2 or space != tuple(x.shape[1:]):
                shape = tuple(x.shape[1:])
                raise ValueError(f"Texts need ids (tokens,), '{layer}' a place for each: got {shape} and {space}.")
            relevance = reading.relevance(x, example, layer, channel, example.place)
            largest = float(np.abs(relevance).max()) or 1.0
            cells = []
            for i, (token, value) in enumerate(zip(x[0].tolist(), relevance.tolist(), strict=True)):
                word = words(token)
                if i == example.place[0]:
                    word = word[: len(word) - len(word.lstrip(" "))] + f"⟦{word.lstrip(' ')}⟧"
                cells.append(Cell(word, value / largest, False, f"{value:.3g}"))
            value = f"{example.value:.1%} of the relevance" if by == "relevance" else f"{by} {example.value:.3g}"
            caption = f"{layer}, {exemplars.unit} {channel}: {value} in input {example.name}"
            sentences.append(Sentence(caption, cells))
    return sentences


def receptive_field(
    module: nn.Module, x: Tensor, layer: str, channel: int, place: Sequence[int]
) -> list[tuple[int, int]]:
    """The part of an input that a neuron reads: per axis of the input's space (start, end), the smallest box.

    The network itself tells: positions at one end of an axis are made NaN, and the neuron does not read them if it
    stays a number. In float64, whose convolutions compute each output by itself. `x` is a batch of one.
    """
    network, outputs = deepcopy(module).double().eval(), list[Tensor]()
    where = (0, channel, *place)
    network.get_submodule(layer).register_forward_hook(lambda _, __, output: outputs.append(output))

    def reads(axis: int, hidden: slice) -> bool:
        probe = x.double().clone()
        probe[(slice(None),) * axis + (hidden,)] = torch.nan
        outputs.clear()
        with torch.no_grad():
            network(probe)
        return bool(outputs[0][where].isnan())

    def unread(axis: int, at_end: bool) -> int:
        """How many positions at one end of an axis the neuron does not read."""
        size = x.shape[axis]
        hidden = (lambda n: slice(size - n, size)) if at_end else (lambda n: slice(0, n))
        return bisect_left(range(1, size), True, key=lambda n: reads(axis, hidden(n)))

    return [(unread(axis, False), x.shape[axis] - unread(axis, True)) for axis in range(2, x.dim())]


def picture_of(x: Tensor, inputs: NumberedInputs) -> Pixels:
    """An input as pixels (height, width, 3): a photograph as before its normalisation, else its range stretched."""
    if isinstance(inputs, FromPhotographs):
        pixels = inputs.preprocessing.denormalise(x.float())
    else:
        pixels = x.float().cpu()
        low, high = pixels.min(), pixels.max()
        pixels = (pixels - low) / (high - low) if high > low else torch.zeros_like(pixels)
    pixels = pixels if len(pixels) == 3 else pixels.mean(0, keepdim=True).repeat(3, 1, 1)
    return (255 * pixels).round().byte().permute(1, 2, 0).numpy()


def patch(picture: Pixels, relevance: npt.NDArray[np.float32]) -> Pixels:
    """The square around the region that holds most of the positive relevance; pixels outside the region are faded."""
    if not (relevance > 0).any():
        return picture
    field, level = outline_level(relevance, SHARE)
    inside = field >= level
    shown = picture.astype(np.float32)
    shown[~inside] = 0.25 * shown[~inside] + 0.75 * 255
    rows, columns = np.flatnonzero(inside.any(1)), np.flatnonzero(inside.any(0))
    height, width = inside.shape
    side = min(int((1 + 2 * MARGIN) * max(np.ptp(rows), np.ptp(columns))) + 3, height, width)
    top = int(np.clip((rows[0] + rows[-1] + 1 - side) // 2, 0, height - side))
    left = int(np.clip((columns[0] + columns[-1] + 1 - side) // 2, 0, width - side))
    return shown[top : top + side, left : left + side].astype(np.uint8)
