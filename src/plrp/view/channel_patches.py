"""What the channels of a page stand for: patches of the inputs that gave them most relevance, of a search made before.

A page's channels are those that a layer reads; a search has those that a layer makes (`plrp.vision.flows.source_of`).
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from plrp.concepts.channel_figures import Pixels, Reading
from plrp.concepts.exemplar_results import Exemplar
from plrp.tape.trace import Trace
from plrp.vision.flows import source_of

from .grid import layer_inputs
from .page_data import Report

COUNT = 3  # patches of a channel
SIDE = 72  # pixels of a patch

Rows = list[list[dict[str, Any]]]
"""Of each layer, its strongest channels: `facts["channels"]`."""


@dataclass(frozen=True)
class Exemplary:
    """Patches of the channels of pages; what was drawn once is kept, for the next page that a server hands out."""

    reading: Reading
    drawn: dict[tuple[str, int], list[dict[str, str]]] = field(default_factory=dict, repr=False)

    def layers(
        self, channels: Rows, trace: Trace, report: Report | None = None
    ) -> Iterator[tuple[int, dict[int, list[dict[str, str]]]]]:
        """Layer by layer: its number, and by channel patches with captions; leaves out layers that were not searched.

        `report` is told how many patches of a layer are drawn, of how many.
        """
        for number, (op, rows) in enumerate(zip(layer_inputs(trace), channels, strict=True)):
            source = source_of(op.inputs[0])
            if source not in self.reading.found:
                continue
            wanted = [row["channel"] for row in rows]
            missing = [channel for channel in wanted if (source, channel) not in self.drawn]
            for channel, shown in self.reading.patches(source, missing, COUNT, report).items():
                self.drawn[source, channel] = [
                    {"picture": thumbnail(pixels), "caption": _caption(channel, one)} for one, pixels in shown
                ]
            yield number, {channel: self.drawn[source, channel] for channel in wanted if self.drawn[source, channel]}

    def show(self, channels: Rows, trace: Trace, report: Report | None = None) -> None:
        """Write the patches into the rows of a page."""
        for number, found in self.layers(channels, trace, report):
            for row in channels[number]:
                if row["channel"] in found:
                    row["exemplars"] = found[row["channel"]]


def thumbnail(pixels: Pixels) -> str:
    """A patch as an address that holds it: JPEG, at most `SIDE` pixels wide."""
    from PIL import Image as pil

    small = pil.fromarray(pixels)
    small.thumbnail((SIDE, SIDE))
    content = io.BytesIO()
    small.save(content, format="JPEG", quality=80, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(content.getvalue()).decode("ascii")


def _caption(channel: int, exemplar: Exemplar) -> str:
    name = f"input {exemplar.name}" if exemplar.name.isdecimal() else exemplar.name.rsplit("/", 1)[-1]
    return f"{name}: gave channel {channel} relevance {exemplar.value:.3g}"
