"""Where the results of a sweep are kept: parts that appear whole or not at all, and know whether they are sound.

    RUN/config.toml                         the resolved config
    RUN/run.json                            versions, git commit, seeds, and every start
    RUN/parts/000003-KEY-CHECKSUM.parquet   scores of one part; KEY is a hash of all that decides them
    RUN/maps/000003-KEY-CHECKSUM.h5         its relevance maps, if they are kept

What exists is done. A part's name holds the checksum of its content, so a part that was cut off or damaged is found,
thrown away and done again. Parts are pure functions of config and index: two processes that make the same one
write the same bytes under the same name.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import socket
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plrp.files import UNFINISHED, new_file

from .config import Config, differences, read_toml

CONFIG, MANIFEST = "config.toml", "run.json"
_NAME = re.compile(r"(?P<index>\d{6,})-(?P<key>[0-9a-f]{16})-(?P<checksum>[0-9a-f]{16})\.(?:parquet|h5)")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "oci", "r2", "memory"})
"""Protocols that show an object once all of it is there."""


class RunError(ValueError):
    """A run that cannot be begun, taken up or read; the message says why and what to do."""


class PartsMissing(RunError):
    """A sweep that went to its end, but for parts that could not be made; the message names them."""

    exit_code = 3


class ConfigChanged(RunError):
    """A config that would give other results than those a run holds already; the message says what differs."""


class DiskFull(OSError):
    """No room for a result. What was written before stays, and the sweep can be taken up again."""


class Place(ABC):
    """Where named bytes are kept. All access to the files of a run goes through these few functions.

    Names are relative, with slashes. `write` leaves the old content or the new one, never a mixture.
    """

    @abstractmethod
    def write(self, name: str, content: bytes) -> None:
        """Keep bytes under a name, whole or not at all."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """The bytes of a name; FileNotFoundError where there are none."""

    @abstractmethod
    def names(self, folder: str = "") -> list[str]:
        """The names in a folder, in order; none where there is no such folder."""

    @abstractmethod
    def exists(self, name: str) -> bool:
        """Whether there is something under a name."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Forget a name; harmless where there is none."""

    def lock(self, shard: tuple[int, int] = (1, 1)) -> AbstractContextManager[None]:
        """Keep other processes from doing the same work at the same time, where the place can."""
        return nullcontext()

    def tidy(self) -> None:
        """Remove what killed writers left behind, where they leave anything. Only while nobody else writes."""
        return None

    @property
    def private(self) -> bool:
        """Whether only this process sees what is kept here."""
        return False


class Folder(Place):
    """A folder of this machine, or one that several machines share."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def __str__(self) -> str:
        return str(self.path)

    def write(self, name: str, content: bytes) -> None:
        """Keep bytes under a name, whole or not at all, and on the disk when it returns."""
        try:
            with new_file(self.path / name, durable=True) as part:
                part.write_bytes(content)
        except OSError as error:
            if error.errno in _FULL:
                raise DiskFull(error.errno, f"no space left for {self.path / name} ({len(content):,} bytes)") from error
            raise

    def read(self, name: str) -> bytes:
        """The bytes of a name."""
        return (self.path / name).read_bytes()

    def names(self, folder: str = "") -> list[str]:
        """The names in a folder, in order."""
        try:
            with os.scandir(self.path / folder) as entries:
                found = [e.name for e in entries if e.is_file() and not e.name.startswith(".")]
        except FileNotFoundError:
            return []
        return sorted(f"{folder}/{name}" if folder else name for name in found)

    def exists(self, name: str) -> bool:
        """Whether there is a file of that name."""
        return (self.path / name).is_file()

    def remove(self, name: str) -> None:
        """Delete a file."""
        (self.path / name).unlink(missing_ok=True)

    @contextmanager
    def lock(self, shard: tuple[int, int] = (1, 1)) -> Iterator[None]:
        """Refuses a second process on the same shard of the run. Locks of the kernel's: they end with their process."""
        try:
            import fcntl
        except ImportError:  # not on Windows: parts are whole whoever writes them, only work may be done twice
            yield
            return
        self.path.mkdir(parents=True, exist_ok=True)
        index, count = shard
        wanted = [(".lock", fcntl.LOCK_EX if count == 1 else fcntl.LOCK_SH)]
        if count > 1:
            wanted.append((f".lock-{index}-of-{count}", fcntl.LOCK_EX))
        held = []
        try:
            for name, kind in wanted:
                stream = (self.path / name).open("a+")
                held.append(stream)
                try:
                    fcntl.flock(stream, kind | fcntl.LOCK_NB)
                except BlockingIOError:
                    stream.seek(0)
                    raise RunError(
                        f"another process works on {self.path}{_told(stream.read())}: wait for it, or share the work "
                        "between processes with --shard 1/2, --shard 2/2."
                    ) from None
                except OSError as error:
                    if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                        raise
            # Whom to look for, for the process that is refused; a full disk is no reason to stop here.
            with suppress(OSError):
                held[-1].truncate(0)
                held[-1].write(f"process {os.getpid()} on {socket.gethostname()}")
                held[-1].flush()
            yield
        finally:
            for stream in held:
                with suppress(OSError):  # what could not be written to a full disk
                    stream.close()

    def tidy(self) -> None:
        """Remove unfinished files of writers that were killed."""
        for folder in (self.path, self.path / "parts", self.path / "maps"):
            for path in folder.glob(f".*{UNFINISHED}*"):
                path.unlink(missing_ok=True)


class Bucket(Place):
    """A place that fsspec knows by its URL: `s3://bucket/run`, `gs://…`, `sftp://…`, `memory://run`.

    An object store shows an object once it is whole, so content is put there at once; elsewhere it is written under
    another name and moved. There are no locks: two sweeps at once do work twice, and store the same parts under the
    same names.
    """

    def __init__(self, url: str) -> None:
        try:
            from fsspec.core import url_to_fs
        except ImportError:
            raise ImportError(f"{url} needs fsspec: pip install 'plrp[experiments]'") from None
        self.url = url.rstrip("/")
        try:
            self.files, self.root = url_to_fs(self.url)
        except (ImportError, ValueError) as error:  # a protocol whose package is missing, or that nobody knows
            raise RunError(f"{url} cannot be opened ({error}).") from None
        self.protocol = self.url.partition("://")[0]

    def __str__(self) -> str:
        return self.url

    @property
    def private(self) -> bool:
        """Whether it is this process's memory."""
        return self.protocol == "memory"

    def write(self, name: str, content: bytes) -> None:
        """Keep bytes under a name, whole or not at all."""
        path = self._path(name)
        try:
            self.files.makedirs(path.rpartition("/")[0], exist_ok=True)
            if self.protocol in OBJECT_STORES:
                self.files.pipe_file(path, content)
                return
            folder, _, last = path.rpartition("/")
            beside = f"{folder}/.{last}.{uuid.uuid4().hex[:8]}{UNFINISHED}"
            try:
                self.files.pipe_file(beside, content)
                try:
                    self.files.mv(beside, path)
                except NotImplementedError:  # what can neither move nor copy puts whole objects
                    self.files.pipe_file(path, content)
            finally:
                with suppress(FileNotFoundError, NotImplementedError):
                    self.files.rm_file(beside)
        except OSError as error:
            if error.errno in _FULL:
                raise DiskFull(error.errno, f"no space left for {self.url}/{name} ({len(content):,} bytes)") from error
            raise

    def read(self, name: str) -> bytes:
        """The bytes of a name."""
        return bytes(self.files.cat_file(self._path(name)))

    def names(self, folder: str = "") -> list[str]:
        """The names in a folder, in order."""
        self.files.invalidate_cache()  # others write there too
        try:
            entries = self.files.ls(self._path(folder), detail=True)
        except FileNotFoundError:
            return []
        found = [entry["name"].rpartition("/")[2] for entry in entries if entry["type"] == "file"]
        return sorted(f"{folder}/{name}" if folder else name for name in found if name and not name.startswith("."))

    def exists(self, name: str) -> bool:
        """Whether there is a file or an object of that name."""
        self.files.invalidate_cache()
        return bool(self.files.isfile(self._path(name)))

    def remove(self, name: str) -> None:
        """Delete a file or an object."""
        with suppress(FileNotFoundError):
            self.files.rm_file(self._path(name))

    def tidy(self) -> None:
        """Remove unfinished files of writers that were killed."""
        for folder in ("", "parts", "maps"):
            with suppress(FileNotFoundError):
                for entry in self.files.ls(self._path(folder), detail=True):
                    last = entry["name"].rpartition("/")[2]
                    if last.startswith(".") and last.endswith(UNFINISHED):
                        self.files.rm_file(entry["name"])

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}" if name else str(self.root)


def place_at(where: str | Path) -> Place:
    """A folder by its path or `file://` URL, anything else that fsspec knows by its URL."""
    text = str(where)
    if text.startswith("file://"):
        return Folder(text.removeprefix("file://"))
    return Bucket(text) if "://" in text else Folder(where)


@dataclass(frozen=True)
class Part:
    """The results of one part: a Parquet file, and an HDF5 file where maps are kept."""

    scores: bytes
    maps: bytes | None = None


@dataclass(frozen=True)
class Found:
    """The names under which a part is kept."""

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
            raise RunError(f"{self} is no run: it has no {CONFIG}.") from None

    def manifest(self) -> dict[str, Any]:
        """Versions, git commit, seeds, and every start of the sweep."""
        try:
            return dict(json.loads(self.place.read(MANIFEST)))
        except FileNotFoundError:
            return {}

    def settle(self, config: Config, facts: dict[str, Any] | None = None) -> Config:
        """Begin a run, or take it up: a config that would give other results is refused with what differs.

        More samples may be asked for than before. Returns the config that holds from now on.
        """
        if self.place.exists(CONFIG):
            known = self.config()
            differing = differences(known, config)
            if differing:
                raise ConfigChanged(
                    f"{self} holds results of another config: {'; '.join(differing)}. Choose another folder, or put "
                    "back what was changed."
                )
            if known.samples > config.samples:  # a first look at what is there already
                config = config.changed(**{"data.limit": known.samples})
        document = config.to_toml().encode()
        if not self.place.exists(CONFIG) or self.place.read(CONFIG) != document:
            self.place.write(CONFIG, document)
        if facts is not None:
            starts = self.manifest().get("starts", [])
            started = {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), **facts}
            manifest = {**facts, "starts": [*starts, started]}
            self.place.write(MANIFEST, json.dumps(manifest, indent=1, ensure_ascii=False).encode())
        return config

    # -- parts

    def put(self, config: Config, index: int, part: Part) -> None:
        """Keep a part. The maps come first: where the scores are, the part is done."""
        if part.maps is not None:
            self.place.write(self._name(config, index, "maps", part.maps), part.maps)
        self.place.write(self._name(config, index, "parts", part.scores), part.scores)

    def find(self, config: Config, indices: Iterable[int] | None = None) -> dict[int, Found]:
        """The parts of a config that are there, by index; whether they are sound shows when they are read."""
        wanted = range(config.parts) if indices is None else indices
        keys = {(index, config.key(index)): index for index in wanted}
        scores: dict[int, str] = {}
        maps: dict[int, str] = {}
        for folder, found in (("parts", scores), ("maps", maps)):
            for name in self.place.names(folder):
                if (match := _NAME.fullmatch(name.rpartition("/")[2])) is not None:
                    index = keys.get((int(match["index"]), match["key"]))
                    if index is not None:
                        found[index] = name
        return {
            index: Found(name, maps.get(index))
            for index, name in sorted(scores.items())
            if config.maps is None or not any(config.maps.covers(s, 0) for s in config.part(index)) or index in maps
        }

    def sound(self, config: Config, indices: Iterable[int] | None = None) -> tuple[set[int], list[str]]:
        """The parts that are there and whole; damaged ones are removed, and their names returned."""
        whole, removed = set(), []
        for index, found in self.find(config, indices).items():
            bad = [name for name in (found.scores, found.maps) if name is not None and self._read(name) is None]
            for name in bad:
                self.place.remove(name)
            removed += bad
            if not bad:
                whole.add(index)
        return whole, removed

    def get(self, found: Found) -> bytes | None:
        """The scores of a part as Parquet bytes; None where they are damaged."""
        return self._read(found.scores)

    def get_maps(self, found: Found) -> bytes | None:
        """The maps of a part as HDF5 bytes; None where there are none or they are damaged."""
        return None if found.maps is None else self._read(found.maps)

    def _read(self, name: str) -> bytes | None:
        match = _NAME.fullmatch(name.rpartition("/")[2])
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


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _told(text: str) -> str:
    return f" ({text})" if text else ""
