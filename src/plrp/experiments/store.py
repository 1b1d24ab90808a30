"""Where the results of a sweep are stored: parts that appear whole or not at all, and can be checked.

    RUN/config.toml                         the resolved config
    RUN/run.json                            versions, git commit, seeds, and every start
    RUN/parts/000003-KEY-CHECKSUM.parquet   scores of one part; KEY is a hash of all that decides them
    RUN/maps/000003-KEY-CHECKSUM.h5         its relevance maps, if any are stored

What exists is done. A part's name holds the checksum of its content, so a part that was cut off or damaged is found,
removed and made again. Parts are pure functions of config and index: two processes that make the same one
write the same bytes under the same name.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from plrp.runs.places import Place, RunError, WrongPlace, place_at

from .config import Config, differences, read_toml

READERS = 16
"""Parts that are read at once: a bucket answers many as quickly as one."""

CONFIG, MANIFEST = "config.toml", "run.json"
PART_NAME = re.compile(r"(?P<index>\d{6,})-(?P<key>[0-9a-f]{16})-(?P<checksum>[0-9a-f]{16})\.(?:parquet|h5)")


class PartsMissing(RunError):
    """A sweep that finished; some parts could not be made, and the message lists them."""

    exit_code = 3


class ConfigChanged(WrongPlace):
    """A config that would give other results than those of the run; the message says what differs."""


@dataclass(frozen=True)
class PartContent:
    """The results of one part: a Parquet file, and an HDF5 file where maps are stored."""

    scores: bytes
    maps: bytes | None = None


@dataclass(frozen=True)
class PartNames:
    """The names under which a part is stored."""

    scores: str
    maps: str | None


class Store:
    """The results of one sweep, in a `Place`."""

    def __init__(self, place: Place | str | Path) -> None:
        self.place = place if isinstance(place, Place) else place_at(place)

    def __str__(self) -> str:
        return str(self.place)

    # -- what the run is

    def config(self) -> Config:
        """The resolved config."""
        try:
            return Config.from_dict(read_toml(self.place.read(CONFIG).decode()))
        except FileNotFoundError:
            raise WrongPlace(f"{self} is not a run: it has no {CONFIG}.") from None
        except (ValueError, TypeError) as error:
            raise WrongPlace(f"{self}/{CONFIG} cannot be read: {error} {self._damaged(CONFIG)}") from None

    def manifest(self) -> dict[str, Any]:
        """Versions, git commit, seeds, and every start of the sweep."""
        try:
            return dict(json.loads(self.place.read(MANIFEST)))
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError) as error:
            raise WrongPlace(f"{self}/{MANIFEST} cannot be read: {error}. {self._damaged(MANIFEST)}") from None

    @staticmethod
    def _damaged(name: str) -> str:
        return f"Restore {name} from a copy, or remove it and start the sweep again: its parts stay."

    def begun(self) -> bool:
        """Whether there are results to be mixed with: a config, and at least one part."""
        return self.place.exists(CONFIG) and any(
            PART_NAME.fullmatch(name.rpartition("/")[2]) for name in self.place.names("parts")
        )

    def refuse(self, known: Config, config: Config, files: Sequence[str] = ()) -> NoReturn:
        """Say what differs from the run's config; `files` are samples whose content changed."""
        raise ConfigChanged(
            f"{self} holds results of another config: {'; '.join(map(_in_words, differences(known, config)))}"
            f"{_named(files)}. Choose another folder, or undo the change."
        )

    def begin(self, config: Config, facts: dict[str, Any] | None = None) -> Config:
        """Begin a run, or resume it: a config that would give other results is refused with what differs.

        More samples may be asked for than before. A run without a single part, because it failed at its first sample,
        may be begun again with another config. Returns the config that is valid from now on.
        """
        if self.begun():
            known = self.config()
            if differences(known, config):
                self.refuse(known, config)
            if known.samples > config.samples:  # a first look at what is there already
                config = config.changed(**{"data.limit": known.samples})
        if not self._holds(config):
            self.place.write(CONFIG, config.to_toml().encode())
        if facts is not None:
            starts = self.manifest().get("starts", [])
            started = {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), **facts}
            manifest = {**facts, "starts": [*starts, started]}
            self.place.write(MANIFEST, json.dumps(manifest, indent=1, ensure_ascii=False).encode())
        return config

    def _holds(self, config: Config) -> bool:
        """Whether the config is there as it is; a damaged one of a run without parts is written over."""
        try:
            return self.place.exists(CONFIG) and self.config() == config
        except WrongPlace:
            if self.begun():
                raise
            return False

    # -- parts

    def put(self, config: Config, index: int, part: PartContent) -> None:
        """Keep a part. The maps come first: where the scores are, the part is done."""
        if part.maps is not None:
            self.place.write(self._name(config, index, "maps", part.maps), part.maps)
        self.place.write(self._name(config, index, "parts", part.scores), part.scores)

    def find(self, config: Config, indices: Iterable[int] | None = None) -> dict[int, PartNames]:
        """The parts of a config that are there, by index; whether they are sound shows when they are read."""
        wanted = range(config.parts) if indices is None else indices
        keys = {(index, config.key(index)): index for index in wanted}
        scores: dict[int, str] = {}
        maps: dict[int, str] = {}
        for folder, found in (("parts", scores), ("maps", maps)):
            for name in self.place.names(folder):
                if (match := PART_NAME.fullmatch(name.rpartition("/")[2])) is not None:
                    index = keys.get((int(match["index"]), match["key"]))
                    if index is not None:
                        found[index] = name
        return {
            index: PartNames(name, maps.get(index))
            for index, name in sorted(scores.items())
            if config.maps is None or not any(config.maps.covers(s, 0) for s in config.part(index)) or index in maps
        }

    def verify(self, config: Config, indices: Iterable[int] | None = None) -> tuple[set[int], list[str]]:
        """The parts that are there and whole; damaged ones are removed, and their names returned."""
        whole, removed = set(), []

        def damaged(found: PartNames) -> list[str]:
            return [name for name in (found.scores, found.maps) if name is not None and self._read(name) is None]

        there = list(self.find(config, indices).items())
        with ThreadPoolExecutor(READERS) as readers:
            for begin in range(0, len(there), 64 * READERS):
                some = there[begin : begin + 64 * READERS]
                for (index, _), bad in zip(some, readers.map(damaged, (found for _, found in some)), strict=True):
                    for name in bad:
                        self.place.remove(name)
                    removed += bad
                    if not bad:
                        whole.add(index)
        return whole, removed

    def get(self, found: PartNames) -> bytes | None:
        """The scores of a part as Parquet bytes; None where they are damaged."""
        return self._read(found.scores)

    def get_maps(self, found: PartNames) -> bytes | None:
        """The maps of a part as HDF5 bytes; None where there are none or they are damaged."""
        return None if found.maps is None else self._read(found.maps)

    def _read(self, name: str) -> bytes | None:
        match = PART_NAME.fullmatch(name.rpartition("/")[2])
        assert match is not None
        try:
            content = self.place.read(name)
        except FileNotFoundError:
            return None
        return content if _checksum(content) == match["checksum"] else None

    @staticmethod
    def _name(config: Config, index: int, folder: str, content: bytes) -> str:
        suffix = "parquet" if folder == "parts" else "h5"
        return f"{folder}/{index:06d}-{config.key(index)}-{_checksum(content)}.{suffix}"


def _in_words(difference: str) -> str:
    """A difference between digests, with what they are of."""
    name = difference.partition(" was ")[0]
    of = {"data.digest": "the samples", "model.digest": "the weights"}.get(name)
    if name.startswith("model.code."):
        of = f"the code in {name.removeprefix('model.code.')}"
    return difference if of is None else f"{of} changed ({difference})"


def _named(files: Sequence[str]) -> str:
    """The first of the files that changed."""
    return f"; other contents: {', '.join(files[:3])}{', …' if len(files) > 3 else ''}" if files else ""


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
