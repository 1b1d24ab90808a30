"""Results that appear whole or not at all: written beside their place, then renamed into it.

An interrupted run leaves finished results finished, and no halves under their names.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

UNFINISHED = ".part"
"""How a file ends that is being written; its name also starts with a dot."""


@contextmanager
def new_file(path: str | Path, *, durable: bool = False) -> Iterator[Path]:
    """A temporary path beside `path` that becomes `path` when the block ends well, and disappears when it does not.

    Its suffix is that of `path`. `durable` waits until the content is on the disk: for what must survive a power cut.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.stem}.", suffix=f"{UNFINISHED}{path.suffix}", dir=path.parent)
    os.close(handle)
    part = Path(name)
    try:
        yield part
        part.chmod(0o666 & ~_umask())  # mkstemp makes private files
        if durable:
            _to_disk(part)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def new_folder(path: str | Path) -> Iterator[Path]:
    """A temporary folder beside `path` that becomes `path` when the block ends well. An existing `path` is refused."""
    path = Path(path)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FileExistsError(f"{path} is there already and not empty: choose another folder, or remove it.")
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


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _to_disk(path: Path) -> None:
    with path.open("rb+") as stream:
        os.fsync(stream.fileno())
