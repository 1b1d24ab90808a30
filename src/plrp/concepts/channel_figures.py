"""Pictures of channels: the inputs that stand for them.

- `channel_figure`: pictures, cropped and masked by the relevance that passes the channel where it is strongest
- `logo_figure`: sequences, as logos of what the channel read where it is strongest
- `token_figure`: texts, coloured by what the channel read at its strongest token, which is marked
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from plrp.composites import Composite
from plrp.models.loading import LoadedModel
from plrp.progress import progress
from plrp.pruning import Pruning
from plrp.tape.trace import Trace
from plrp.tape.tracing import trace
from plrp.vision.heatmaps import outline_level
from plrp.vision.photograph_figures import FAINT, grid_of, shortened

from .channels import by_channel, layer_named
from .exemplar_results import Exemplar, Exemplars
from .numbered_inputs import FromPhotographs, NumberedInputs, numbered

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHARE = 0.8  # of the positive relevance that a patch shows
MARGIN = 0.15  # of its side around it
WIDEST = 40  # bases of a logo

Pixels = npt.NDArray[np.uint8]
Patches = dict[str, dict[int, Pixels]]
"""By layer and channel, the pixels of an exemplary patch (side, side, 3)."""


@dataclass(frozen=True)
class Reading:
    """What is needed to look at exemplars again: what a search found, and the model and data it was made with.

    target: that of the search, where it was no class; composite: where the search had one of one's own.
    """

    found: Exemplars
    model: nn.Module | LoadedModel
    data: Any
    target: Any = None
    composite: str | Composite | None = None
    latest: dict[int, Trace] = field(default_factory=dict, init=False, repr=False)  # of the input looked at last

    @property
    def module(self) -> nn.Module:
        """The network."""
        return self.model.module if isinstance(self.model, LoadedModel) else self.model

    @property
    def inputs(self) -> NumberedInputs:
        """The data by number."""
        return numbered(self.data, self.model)

    def relevance(
        self, x: Tensor, example: Exemplar, layer: str, channel: int, place: tuple[int, ...] | None = None
    ) -> npt.NDArray[np.float32]:
        """The relevance of an input that passes one channel of a layer, at one place or at all, and nothing beside it;
        in the input's shape.
        """
        explained, settings = int(self.found.classes[example.sample]), self.found.settings
        pruning = settings.get("pruning")
        traced = self._traced(example.sample, x)
        wanted: Any = [channel]
        if place is not None:
            op = layer_named(traced, layer)
            wanted = torch.zeros(op.output.shape, dtype=torch.bool)
            by_channel(wanted, op)[(0, channel, *place)] = True
        relevance = traced.explain(
            target=self.target if explained < 0 else explained,
            composite=self.composite or settings.get("composite", "auto"),
            pruning=None if pruning is None else Pruning(**pruning),
            condition={layer: wanted},
            only_through=True,
        ).relevance[0]
        found: npt.NDArray[np.float32] = relevance.float().cpu().numpy()
        return found

    def _traced(self, sample: int, x: Tensor) -> Trace:
        if sample not in self.latest:
            self.latest.clear()
            self.latest[sample] = trace(self.module, x)
        return self.latest[sample]

    def input(self, example: Exemplar) -> Tensor:
        """The input of an exemplar as a batch of one, where the model is."""
        device = next((parameter.device for parameter in self.module.parameters()), torch.device("cpu"))
        return self.inputs.batch([example.sample]).to(device)

    def patch(self, layer: str, channel: int, example: Exemplar) -> Pixels:
        """What a channel saw in a picture where it is strongest; at all places where it has no relevance there."""
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
        """By channel its strongest exemplars with their patches, at most `count`; empty where none was found.

        `step` is told how many patches are drawn, of how many.
        """
        shown = {channel: self.found.of(layer, channel, count) for channel in channels}
        asked = sorted(((c, e) for c, rows in shown.items() for e in rows), key=lambda one: one[1].sample)
        drawn: dict[tuple[int, int], Pixels] = {}
        for channel, example in asked:  # an input's channels one after the other: it runs through the model once
            drawn[channel, example.sample] = self.patch(layer, channel, example)
            if step is not None:
                step(len(drawn), len(asked))
        return {channel: [(e, drawn[channel, e.sample]) for e in rows] for channel, rows in shown.items()}


def channel_figure(
    found: Exemplars,
    layer: str,
    channels: Sequence[int],
    model: nn.Module | LoadedModel,
    data: Any,
    *,
    by: str = "relevance",
    count: int = 6,
    target: Any = None,
    composite: str | Composite | None = None,
    step: Callable[[float], None] = lambda done: None,
) -> Figure:
    """A row per channel, with the patches of its exemplars: where the relevance that passes it alone comes from, at the
    place where it is strongest.

    `model` and `data` are those of the search, composite and pruning are too; pictures only. `target` and `composite`
    are needed again where the search had no class, or a composite of one's own. `step` is told of every row.
    """
    reading = Reading(found, model, data, target, composite)
    figure, axes = grid_of(len(channels), count, side=1.25, bar=False)
    for row, channel in enumerate(channels):
        examples = found.of(layer, channel, count, by)
        for ax in axes[row][max(1, len(examples)) :]:
            ax.set_axis_off()
        for ax, example in zip(axes[row], examples, strict=False):
            ax.imshow(reading.patch(layer, channel, example))
            ax.set_xlabel(
                shortened(example.name.rsplit("/", 1)[-1], 18), fontsize=5.5, color=FAINT, labelpad=2, parse_math=False
            )
        if not examples:
            axes[row][0].text(0.5, 0.5, "none", fontsize=6.5, color=FAINT, ha="center", va="center")
        axes[row][0].set_ylabel(f"channel {channel}", fontsize=7.5)
        step(1)
    figure.suptitle(f"{layer}: inputs with {_most(by)}, at the channel's strongest place", fontsize=9, parse_math=False)
    return figure


def patches(
    found: Exemplars,
    wanted: Mapping[str, Iterable[int]],
    model: nn.Module | LoadedModel,
    data: Any,
    *,
    show_progress: bool | None = False,
) -> Patches:
    """By layer and channel the patch of the strongest exemplar, for `flow_figure`; leaves out what was not searched."""
    reading, made = Reading(found, model, data), Patches()
    asked = [(layer, channel) for layer, channels in wanted.items() if layer in found for channel in channels]
    with progress("drawing patches", len(asked), show_progress) as step:
        for layer, channel in asked:
            for example in found.of(layer, channel, 1):
                made.setdefault(layer, {})[channel] = reading.patch(layer, channel, example)
            step(1)
    return made


def logo_figure(
    found: Exemplars,
    layer: str,
    channels: Sequence[int],
    model: nn.Module,
    data: Any,
    *,
    by: str = "relevance",
    count: int = 4,
    target: Any = None,
    composite: str | Composite | None = None,
) -> Figure:
    """A row per channel of a sequence network, with logos of its exemplars: what it read where it is strongest.

    Inputs are one-hot, (4, length). A logo spans the receptive field of the strongest place, or the `WIDEST` bases of
    it that hold most relevance; a letter is as tall as the relevance of its base that passes the channel there.
    """
    from plrp.genomics.logo import draw_logo
    from plrp.genomics.sequences import LETTERS

    reading = Reading(found, model, data, target, composite)
    figure, axes = grid_of(len(channels), count, side=1.0, bar=False)
    figure.set_size_inches(count * 2.4, len(channels) * 1.05 + 0.4)
    for row, channel in enumerate(channels):
        examples = found.of(layer, channel, count, by)
        for ax in axes[row][max(1, len(examples)) :]:
            ax.set_axis_off()
        for ax, example in zip(axes[row], examples, strict=False):
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
            draw_logo(ax, relevance[start:end], letters[start:end], start=start)
            ax.set_xlabel(
                f"input {shortened(example.name, 18)}, bases {start}…{end - 1}",
                fontsize=5.5,
                color=FAINT,
                labelpad=2,
                parse_math=False,
            )
        axes[row][0].set_ylabel(f"channel {channel}", fontsize=7.5)
    figure.suptitle(f"{layer}: sequences with {_most(by)}", fontsize=9, parse_math=False)
    return figure


def token_figure(
    found: Exemplars,
    layer: str,
    channels: Sequence[int],
    model: nn.Module,
    data: Any,
    words: Callable[[int], str],
    *,
    by: str = "relevance",
    count: int = 4,
    target: Any = None,
    composite: str | Composite | None = None,
) -> Figure:
    """Texts that stand for channels: the strongest token in ⟦brackets⟧, all coloured by what the channel read there.

    Inputs are token ids, (tokens,); `words` spells one, such as `lambda i: tokenizer.decode([i])`.
    """
    from plrp.text.coloured_text import to_figure

    sentences = token_contexts(
        found, layer, channels, model, data, words, by=by, count=count, target=target, composite=composite
    )
    return to_figure(sentences)


def token_contexts(
    found: Exemplars,
    layer: str,
    channels: Sequence[int],
    model: nn.Module,
    data: Any,
    words: Callable[[int], str],
    *,
    by: str = "relevance",
    count: int = 4,
    target: Any = None,
    composite: str | Composite | None = None,
) -> list[Any]:
    """The captions and coloured tokens that `token_figure` draws, as `coloured_text.Sentence`s; pages use them too."""
    from plrp.text.coloured_text import Cell, Sentence

    reading = Reading(found, model, data, target, composite)
    sentences = []
    for channel in channels:
        for example in found.of(layer, channel, count, by):
            x = reading.input(example)
            if x.dim() != 2 or found[layer].space != tuple(x.shape[1:]):
                raise ValueError(
                    f"Texts are token ids (tokens,), and '{layer}' should have a place for each: the input is "
                    f"{tuple(x.shape[1:])}, the places are {found[layer].space}."
                )
            relevance = reading.relevance(x, example, layer, channel, example.place)
            largest = float(np.abs(relevance).max()) or 1.0
            cells = []
            for i, (token, value) in enumerate(zip(x[0].tolist(), relevance.tolist(), strict=True)):
                word = words(token)
                if i == example.place[0]:
                    word = word[: len(word) - len(word.lstrip(" "))] + f"⟦{word.lstrip(' ')}⟧"
                cells.append(Cell(word, value / largest, False, f"{value:.3g}"))
            caption = f"{layer}, channel {channel}: {by} {example.value:.3g} in input {example.name}"
            sentences.append(Sentence(caption, cells))
    return sentences


def _most(by: str) -> str:
    return "most relevance" if by == "relevance" else "most activation"


def receptive_field(
    module: nn.Module, x: Tensor, layer: str, channel: int, place: Sequence[int]
) -> list[tuple[int, int]]:
    """Which part of an input a neuron reads: per axis of its space (start, end), the smallest box.

    Found by asking the network: what lies before (after) a position is made NaN; where the neuron stays a number, it
    does not read it. In float64, whose convolutions compute each output by itself. `x` is a batch of one.
    """
    network, held = deepcopy(module).double().eval(), list[Tensor]()
    where = (0, channel, *place)
    network.get_submodule(layer).register_forward_hook(lambda _, __, output: held.append(output))

    def reads(axis: int, gone: slice) -> bool:
        probe = x.double().clone()
        probe[(slice(None),) * axis + (gone,)] = torch.nan
        held.clear()
        with torch.no_grad():
            network(probe)
        return bool(held[0][where].isnan())

    def first(size: int, holds: Callable[[int], bool]) -> int:
        """The smallest n in 1…size that holds; all larger ones do."""
        low, high = 1, size
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if holds(middle) else (middle + 1, high)
        return low

    field = []
    for axis in range(2, x.dim()):
        size = x.shape[axis]
        start = first(size, lambda n, axis=axis: reads(axis, slice(0, n))) - 1  # type: ignore[misc]
        after = first(size, lambda n, axis=axis, size=size: reads(axis, slice(size - n, size))) - 1  # type: ignore[misc]
        field.append((start, size - after))
    return field


def picture_of(x: Tensor, inputs: NumberedInputs) -> Pixels:
    """An input as pixels (height, width, 3): a photograph before its normalisation, else stretched to its range."""
    if isinstance(inputs, FromPhotographs):
        mean, std = (
            np.asarray(v, np.float32).reshape(-1, 1, 1) for v in (inputs.preprocessing.mean, inputs.preprocessing.std)
        )
        pixels = x.float().cpu().numpy() * std + mean
    else:
        values = x.float().cpu().numpy()
        low, high = values.min(), values.max()
        pixels = (values - low) / (high - low) if high > low else np.zeros_like(values)
    pixels = pixels if len(pixels) == 3 else pixels.mean(0, keepdims=True).repeat(3, 0)
    return (255 * np.clip(pixels, 0, 1)).round().astype(np.uint8).transpose(1, 2, 0)


def patch(picture: Pixels, relevance: npt.NDArray[np.float32]) -> Pixels:
    """The square around the region that holds most of the positive relevance; what lies outside the region is faded."""
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
