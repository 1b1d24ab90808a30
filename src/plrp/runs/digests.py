"""Short hashes of files, by which a run notices that code, weights or samples have changed.

Reading every photograph at each start would cost minutes. So a run caches the hashes in `digests.json`, with size,
times and inode of each file. A file is read again only if one of these has changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from plrp.files import file_digest

from .places import Place

CACHE = "digests.json"
READERS = 8
RECENT = 2.0  # seconds: a file that changed this shortly before it was read may change again within its time stamp
NO_FILE = [-1, 0, 0, 0]  # size and times of no file: a digest that is cached with them is never used again


class Digests:
    """Digests of files. With a `place`, the cache of an earlier start is used for files that have not changed."""

    def __init__(self, place: Place | None = None) -> None:
        self.place = place
        self.stored: dict[str, list[Any]] = {}
        with suppress(OSError, ValueError, AttributeError, TypeError):  # a cache that cannot be read is empty
            entries = {} if place is None else json.loads(place.read(CACHE))
            self.stored = {str(path): list(entry) for path, entry in entries.items() if len(entry) == 5}
        self.known = dict(self.stored)

    def of(self, path: str | Path) -> str:
        """The digest of a file's content: 16 hexadecimal digits."""
        name = os.path.abspath(path)
        about = os.stat(name)
        stamp = [about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino]
        known = self.known.get(name)
        if known is not None and known[:-1] == stamp:
            return str(known[-1])
        begun = time.time()
        digest = content_digest(name)
        stable = begun - max(about.st_mtime, about.st_ctime) > RECENT
        self.known[name] = [*(stamp if stable else NO_FILE), digest]
        return digest

    def of_all(self, paths: Sequence[str | Path], step: Callable[[float], None] = lambda advance: None) -> list[str]:
        """The digests of many files, several read at a time; `step` is called after each."""
        digests = []
        with ThreadPoolExecutor(READERS) as readers:
            for digest in readers.map(self.of, paths):
                digests.append(digest)
                step(1)
        return digests

    def changed(self, paths: Iterable[str | Path]) -> list[str]:
        """The files whose contents have changed since an earlier start."""
        names = [os.path.abspath(path) for path in paths]
        return [name for name in names if name in self.stored and str(self.stored[name][-1]) != self.of(name)]

    def save(self) -> None:
        """Write the cache for the next start."""
        if self.place is not None and self.known != self.stored:
            self.place.write(CACHE, json.dumps(self.known).encode())


def content_digest(path: str | Path) -> str:
    """The digest of a file's content: 16 hexadecimal digits."""
    return file_digest(path)[:16]


def text_digest(text: str | bytes) -> str:
    """The digest of a text or of bytes: 16 hexadecimal digits."""
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()[:16]
