"""Where a report's files go: every figure once for the page and once for each format on disk."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from plrp.experiments import pages
from plrp.experiments.pages import data_uri
from plrp.experiments.score_figures import DARK, PIXELS
from plrp.files import new_file, save_figure, write_csv
from plrp.runs.places import Folder, refuse_strangers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE = "index.html"
WRITTEN = "files.json"
"""The list of a report's own files, by which the next report in the same folder knows which files it may remove."""
FOLDERS = ("figures", "tables")


class Sheets:
    """The folder of a report: `index.html`, `figures/`, `tables/`, and `files.json`, the list of their files.

    Files of an earlier report in the same folder that this one does not write are removed; other files stay, and so do
    those behind symbolic links. A folder of other files that holds no report is refused.
    """

    def __init__(self, out: Path, formats: Sequence[str], show_progress: bool | None = None) -> None:
        self.out, self.formats, self.show_progress = out, tuple(formats), show_progress
        self.names: set[tuple[str, str]] = set()
        self.earlier, self.written = earlier_files(out), set[str]()
        if not (out / WRITTEN).exists():
            refuse_strangers(Folder(out))

    def drawing(self, name: str, draw: Callable[..., Figure], alt: str, caption: str = "") -> str:
        """Lines and letters: vectors on the page, in the colours of the reader's theme; `draw` takes `narrow=`."""
        wide, narrow = draw(narrow=False), draw(narrow=True)
        caption += self._write(name, wide)
        width = round(PIXELS * wide.get_figwidth())
        return pages.picture(data_uri(wide, dark=DARK), alt, caption, data_uri(narrow, dark=DARK), width=width)

    def photograph(self, name: str, draw: Callable[..., Figure], alt: str, caption: str = "") -> str:
        """Pictures made of pixels: kept on white, whatever the theme; `draw` takes `narrow=`."""
        from PIL import features

        wide, narrow = draw(narrow=False), draw(narrow=True)
        caption += self._write(name, wide)
        kind = "webp" if features.check("webp") else "png"
        return pages.picture(data_uri(wide, kind, 130), alt, caption, data_uri(narrow, kind, 150), plate=True)

    def _write(self, name: str, figure: Figure) -> str:
        """Write a figure in every format; returns the name of the first file for its caption."""
        name = self._free("figures", name)
        for kind in self.formats:
            save_figure(figure, self._file("figures", f"{name}.{kind}"))
        return f" <code>figures/{pages.escape(name)}.{self.formats[0]}</code>" if self.formats else ""

    def _file(self, folder: str, name: str) -> Path:
        """The path of a new file, listed before it is written: an interrupted report leaves none unlisted."""
        self.written.add(f"{folder}/{name}")
        self._list(self.earlier | self.written)
        return self.out / folder / name

    def _list(self, files: set[str]) -> None:
        with new_file(self.out / WRITTEN) as part:
            part.write_text(json.dumps({"files": sorted(files)}, indent=1) + "\n", encoding="utf-8")

    def _free(self, folder: str, name: str) -> str:
        """A name that no other file of this report has in its folder."""
        number, wanted = 2, name
        while (folder, name) in self.names:
            name, number = f"{wanted}-{number}", number + 1
        self.names.add((folder, name))
        return name

    def table(self, name: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Numbers as CSV."""
        write_csv(self._file("tables", f"{self._free('tables', name)}.csv"), head, rows)

    def json(self, name: str, content: Any) -> None:
        """Plain data as JSON."""
        with new_file(self._file("tables", f"{name}.json")) as part:
            part.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    def finish(self, document: str) -> Path:
        """Write the page, and remove files that only an earlier report wrote; returns the page's path."""
        path = self.out / PAGE
        pages.write_page(path, document)
        for name in self.earlier - self.written:
            if not (self.out / name).parent.is_symlink():  # a folder elsewhere is not ours to clean
                (self.out / name).unlink(missing_ok=True)
        self._list(self.written)
        return path


def earlier_files(out: Path) -> set[str]:
    """The files that an earlier report in this folder lists; empty without a list."""
    try:
        listed = json.loads((out / WRITTEN).read_text("utf-8"))["files"]
        paths = [PurePosixPath(name) for name in listed]
    except (OSError, ValueError, LookupError, TypeError):
        return set()
    # A list that was tampered with must not lead out of the folder.
    return {str(path) for path in paths if str(path.parent) in FOLDERS and path.name not in ("", "..")}
