"""Patches for the channels of a page: parts of the inputs that gave a channel most relevance in a search made before.

A page shows the channels that a layer reads; a search has the channels that a layer makes, so each layer is looked up
by the layer below it (`plrp.vision.flows.source_of`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from plrp.concepts.channel_figures import Reading
from plrp.concepts.exemplar_results import Exemplar
from plrp.tape.trace import Trace
from plrp.vision.flows import source_of

from .bundle import data_address
from .layer_channels import layer_inputs
from .page_data import Report

COUNT = 3  # patches of a channel
SIDE = 72  # pixels of a patch

Rows = list[list[dict[str, Any]]]
"""The strongest channels of each layer: `facts["channels"]`."""


@dataclass(frozen=True)
class ChannelPatches:
    """Draws patches for the channels of pages, each once: a server hands out many pages."""

    reading: Reading
    drawn: dict[tuple[str, int], list[dict[str, str]]] = field(default_factory=dict, repr=False)

    def layers(
        self, channels: Rows, trace: Trace, report: Report | None = None
    ) -> Iterator[tuple[int, dict[int, list[dict[str, str]]]]]:
        """The number of each layer that was searched, and by channel its patches with captions.

        `report` is called with the numbers of drawn patches and of all patches of a layer.
        """
        for number, (op, rows) in enumerate(zip(layer_inputs(trace), channels, strict=True)):
            source = source_of(op.inputs[0])
            if source not in self.reading.exemplars:
                continue
            wanted = [row["channel"] for row in rows]
            missing = [channel for channel in wanted if (source, channel) not in self.drawn]
            for channel, shown in self.reading.patches(source, missing, COUNT, report).items():
                self.drawn[source, channel] = [
                    {"picture": data_address(pixels, SIDE, "JPEG", quality=80), "caption": _caption(channel, one)}
                    for one, pixels in shown
                ]
            yield number, {channel: self.drawn[source, channel] for channel in wanted if self.drawn[source, channel]}

    def show(self, channels: Rows, trace: Trace, report: Report | None = None) -> None:
        """Write the patches into the rows of a page."""
        for number, patches in self.layers(channels, trace, report):
            for row in channels[number]:
                if row["channel"] in patches:
                    row["exemplars"] = patches[row["channel"]]


def _caption(channel: int, exemplar: Exemplar) -> str:
    name = f"input {exemplar.name}" if exemplar.name.isdecimal() else exemplar.name.rsplit("/", 1)[-1]
    return f"{name}: gave channel {channel} relevance {exemplar.value:.3g}"
