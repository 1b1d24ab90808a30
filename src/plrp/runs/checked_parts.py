"""Finished parts as files whose names say whether they are whole: `parts/NNNNN-KEY-CHECKSUM.npz`.

KEY is a hash of all that decides a part, CHECKSUM one of its bytes. A part of other settings is none, a damaged one is
named and made again. A step of its own over finished parts has a folder of its own, its `kind`, such as `matches/`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from .places import Place, RunError

READERS = 16
"""Parts that are read at once: a bucket answers many as quickly as one."""
PART_NAME = re.compile(r"(?:parts|matches)/(?P<index>\d{5,})-(?P<key>[0-9a-f]{16})-(?P<checksum>[0-9a-f]{16})\.npz")


def write_part(place: Place, index: int, key: str, content: bytes, kind: str = "parts") -> None:
    """Store a part, whole or not at all."""
    place.write(f"{kind}/{index:05d}-{key}-{checksum(content)}.npz", content)


def find_parts(place: Place, key: str, kind: str = "parts") -> dict[int, str]:
    """The parts of a run that are there: index to name; whether they are whole shows when they are read."""
    matches = filter(None, map(PART_NAME.fullmatch, place.names(kind)))
    return {int(match["index"]): match[0] for match in matches if match["key"] == key}


def whole_parts(
    place: Place, key: str, wanted: Sequence[int], say: Callable[[str], None], kind: str = "parts"
) -> set[int]:
    """Those of the wanted parts that are there and whole; damaged ones are named and removed."""
    found = {k: name for k, name in find_parts(place, key, kind).items() if k in set(wanted)}
    with ThreadPoolExecutor(READERS) as readers:
        contents = readers.map(lambda name: content_of(place, name) is not None, found.values())
        damaged = {k for k, whole in zip(found, contents, strict=True) if not whole}
    for k in sorted(damaged):
        say(f"{found[k]} was damaged and will be made again")
        place.remove(found[k])
    return set(found) - damaged


def content_of(place: Place, name: str) -> bytes | None:
    """The bytes of a part; None where they are not those that were written."""
    match = PART_NAME.fullmatch(name)
    assert match is not None
    try:
        content = place.read(name)
    except FileNotFoundError:
        return None
    return content if checksum(content) == match["checksum"] else None


def read_part(place: Place, name: str) -> bytes:
    """The bytes of a part that is to be whole."""
    content = content_of(place, name)
    if content is None:
        raise RunError(f"{place}/{name} was damaged while the results were gathered: start again, and it is made anew.")
    return content


def checksum(content: bytes) -> str:
    """Of a part's bytes."""
    return hashlib.sha256(content).hexdigest()[:16]
