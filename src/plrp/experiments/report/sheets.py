"""Where a report's files go: every figure once for the page and once for each format on disk."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plrp import pages
from plrp.experiments.figures import DARK, PIXELS
from plrp.files import new_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE = "index.html"


class Sheets:
    """The folder of a report: `index.html`, `figures/`, `tables/`."""

    def __init__(self, out: Path, formats: Sequence[str], show_progress: bool | None = None) -> None:
        self.out = out
        self.formats = tuple(formats)
        self.show_progress = show_progress
        self.names: set[tuple[str, str]] = set()

    def drawing(self, name: str, wide: Figure, alt: str, caption: str = "", narrow: Figure | None = None) -> str:
        """Lines and letters: vectors on the page, in the colours of the reader's theme."""
        name = self._keep(name, wide)
        small = None if narrow is None else pages.data_uri(narrow, dark=DARK)
        width = round(PIXELS * wide.get_figwidth())
        return pages.picture(pages.data_uri(wide, dark=DARK), alt, caption + self._where(name), small, width=width)

    def photograph(self, name: str, wide: Figure, alt: str, caption: str = "", narrow: Figure | None = None) -> str:
        """Pictures made of pixels: kept on white, whatever the theme."""
        from PIL import features

        name = self._keep(name, wide)
        kind = "webp" if features.check("webp") else "png"
        small = None if narrow is None else pages.data_uri(narrow, kind, 150)
        return pages.picture(pages.data_uri(wide, kind, 130), alt, caption + self._where(name), small, plate=True)

    def _keep(self, name: str, figure: Figure) -> str:
        """Write a figure in every format; returns its name, with a number where that was taken."""
        from plrp.vision.heatmaps import save_figure

        name = self._free("figures", name)
        for kind in self.formats:
            (self.out / "figures").mkdir(parents=True, exist_ok=True)
            save_figure(figure, self.out / "figures" / f"{name}.{kind}")
        return name

    def _free(self, folder: str, name: str) -> str:
        """A name that no other file of this report has in its folder."""
        number, wanted = 2, name
        while (folder, name) in self.names:
            name, number = f"{wanted}-{number}", number + 1
        self.names.add((folder, name))
        return name

    def _where(self, name: str) -> str:
        return f" <code>figures/{name}.{self.formats[0]}</code>" if self.formats else ""

    def table(self, name: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Numbers as CSV."""
        name = self._free("tables", name)
        with new_file(self.out / "tables" / f"{name}.csv") as part, part.open("w", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(head)
            writer.writerows(rows)

    def json(self, name: str, content: Any) -> None:
        """Plain data as JSON."""
        with new_file(self.out / "tables" / f"{name}.json") as part:
            part.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    def finish(self, document: str) -> Path:
        """The page, last of all; returns its path."""
        path = self.out / PAGE
        pages.write_page(path, document)
        return path
