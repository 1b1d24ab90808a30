"""Results that appear whole or not at all: written beside their place, then renamed into it.

An interrupted run leaves finished results finished, and no halves under their names.
"""

from __future__ import annotations

import csv
import errno
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plrp.errors import NotWritable, needed
from plrp.tables import csv_cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure

UNFINISHED = ".part"
"""How a file ends that is being written; its name also starts with a dot."""

PICTURES = (".png", ".svg", ".pdf", ".jpg", ".jpeg", ".webp")
"""How the file of a figure ends."""

_UNFINISHED_NAME = re.compile(r"\.(?P<stem>.+)\.[a-z0-9_]{8}\.part(?P<suffix>\.[^.]+)?")
_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of the operating system that mean a full disk."""


def unfinished(name: str) -> str | None:
    """The name of the file that was being written under `name`; None for a name that is not of our making.

    A writer that is given a temporary path may make one of its own beside it: then both layers are taken off.
    """
    match = _UNFINISHED_NAME.fullmatch(name)
    if match is None:
        return None
    finished = match["stem"] + (match["suffix"] or "")
    return unfinished(finished) or finished


@contextmanager
def writable(path: str | Path) -> Iterator[None]:
    """Names the place that could not be written to in the error."""
    try:
        yield
    except OSError as error:
        if error.errno in _NOT_WRITABLE:
            reason = os.strerror(error.errno).lower()
            raise NotWritable(f"{path} cannot be written ({reason}): name another place for the results.") from None
        hidden = UNFINISHED in Path(str(error.filename)).name  # users know their own name for the file
        if hidden and error.errno == errno.EISDIR:
            raise NotWritable(f"{path} is a folder, and a file is written there: move it, and start again.") from None
        if error.errno in FULL or (hidden and error.errno):
            raise OSError(error.errno, os.strerror(error.errno), str(path)) from error
        raise


@contextmanager
def new_file(path: str | Path, *, durable: bool = False) -> Iterator[Path]:
    """A temporary path beside `path` that becomes `path` when the block ends well, and disappears when it does not.

    Its suffix is that of `path`. `durable` waits until the content is on the disk, so that it survives a power cut.
    """
    path = Path(path)
    with writable(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.stem}.", suffix=f"{UNFINISHED}{path.suffix}", dir=path.parent)
    os.close(handle)
    part = Path(name)
    try:
        with writable(path):
            yield part
            part.chmod(0o666 & ~_umask())  # mkstemp makes private files
            if durable:
                with part.open("rb+") as stream:
                    os.fsync(stream.fileno())
            os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def new_folder(path: str | Path) -> Iterator[Path]:
    """A temporary folder beside `path` that becomes `path` when the block ends well. An existing `path` is refused."""
    path = Path(path)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FileExistsError(f"{path} is there already and not empty: choose another folder, or remove it.")
    with writable(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield part
        part.chmod(0o777 & ~_umask())
        if path.exists():
            path.rmdir()
        os.replace(part, path)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def plausible_size(path: str | Path) -> int:
    """Bytes that a stranger's file may unpack to: 100 times its own size. 256 MB are never too many."""
    return max(256_000_000, 100 * Path(path).stat().st_size)


def file_digest(path: str | Path) -> str:
    """The SHA-256 of a file, read in blocks: 64 hexadecimal digits."""
    state = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            state.update(block)
    return state.hexdigest()


def write_csv(path: str | Path, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A CSV file, whole or not at all, that spreadsheets read without running a formula."""
    with new_file(path) as part, part.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([csv_cell(cell) for cell in row] for row in (head, *rows))


def new_figure(
    size: tuple[float, float] | None = None, extra: str = "vision", what: str = "figures", **how: Any
) -> Figure:
    """An empty figure, `size` in inches; where matplotlib is missing, the error says that `extra` brings it."""
    with needed(f"{what} need matplotlib", extra):
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        from plrp.figure import Figure
    figure = Figure(figsize=size, **how)
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: str | Path, *, dpi: int = 200) -> None:
    """Write a figure whole or not at all, in the format that its name ends in.

    In SVG and PDF the labels stay text. No time stamps: the same figure gives the same bytes.
    """
    import matplotlib

    path = Path(path)
    kind = path.suffix.lower().lstrip(".")
    if f".{kind}" not in PICTURES:
        raise ValueError(f"{path} should end in {', '.join(PICTURES)}.")
    settings: dict[Any, Any] = {"svg.fonttype": "none", "pdf.fonttype": 42, "svg.hashsalt": "plrp"}
    undated: dict[str, dict[str, None]] = {
        "png": {"Software": None},
        "svg": {"Date": None, "Creator": None},
        "pdf": {"CreationDate": None, "Producer": None, "Creator": None},
    }
    with new_file(path) as part, matplotlib.rc_context(settings):
        figure.savefig(part, format=kind, dpi=dpi, metadata=undated.get(kind))


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
