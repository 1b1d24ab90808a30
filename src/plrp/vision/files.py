"""Write a file whole or not at all: an interrupted run leaves finished results finished, and no halves."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """A file beside `path` to write to, which takes its name when the block ends well and is removed
    otherwise.
    """
    path = Path(path)
    handle, part = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    os.close(handle)
    try:
        yield Path(part)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(part, 0o666 & ~mask)  # mkstemp makes private files
        os.replace(part, path)
    finally:
        Path(part).unlink(missing_ok=True)
