"""One long run: a place, a description of the settings that decide its results, and finished, checked parts.

    RUN/run.json                         the description (of a sweep: config.toml)
    RUN/parts/00003-KEY-CHECKSUM.npz     one part; KEY is a hash of all that decides it, CHECKSUM one of its bytes

An existing part is finished. A part that was cut off or damaged does not match the checksum in its name: it is removed
and made again. Parts are pure functions of the description and their index, so two processes that make the same part
write the same bytes under the same name.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from plrp.files import file_digest

from .crew import LocalCrew, Watch, make_here
from .places import DiskFull, Place, RunError, WrongPlace, place_at, refuse_strangers
from .ray import spread
from .work import Execution, Failure, Work

READERS = 16  # parts that are read at the same time: a bucket answers many requests as quickly as one
NAMED = 5  # differences that a refusal names
MAKE_ROOM = "Make room and start again: the rest will be done"
CACHE = "digests.json"
FILE_READERS = 8
RECENT = 2.0  # seconds: a file that changed this shortly before it was read may change again within its time stamp
NO_FILE = [-1, 0, 0, 0]  # size and times of no file: a digest that is cached with them is never used again
Shard = tuple[int, int]  # (i, n): every n-th part, from the i-th on


class ConfigChanged(WrongPlace):
    """A description (of a sweep: a config) that would give other results; the message names the differences."""


@dataclass(frozen=True)
class RunLayout:
    """The files of one kind of run.

    description: the file that holds the description. folders: each folder of parts, with the suffix of its files.
    state: files that may exist before the description. results: files that are gathered from the parts. digits: of a
    part's index in file names. words: entries of the description that are digests, with the thing they are of.
    decode, encode: the description from text, and to text. decisive: the entries that decide the results, plain data.
    """

    description: str
    folders: Mapping[str, str]
    state: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    digits: int = 5
    words: Mapping[str, str] = field(default_factory=dict)
    decode: Callable[[str], Any] = lambda text: dict(json.loads(text))
    encode: Callable[[Any], str] = lambda description: json.dumps(description, indent=1) + "\n"
    decisive: Callable[[Any], Mapping[str, Any]] = dict

    @cached_property
    def part_name(self) -> re.Pattern[str]:
        """Names of parts, with their folders."""
        number = rf"\d{{{self.digits},}}-[0-9a-f]{{16}}-[0-9a-f]{{16}}"
        return re.compile("|".join(rf"{folder}/{number}\.{suffix}" for folder, suffix in self.folders.items()))

    def owns(self, name: str) -> bool:
        """Whether a run writes a file of this name."""
        return name in (self.description, *self.state, *self.results) or self.part_name.fullmatch(name) is not None

    def has_parts(self, place: Place) -> bool:
        """Whether a place holds a part, of any description."""
        return any(map(self.part_name.fullmatch, place.names("parts")))


class Run:
    """A run of numbered parts in a place. `key(index)` is a hash of all that decides a part."""

    def __init__(
        self, place: Place | str | Path, layout: RunLayout, parts: int = 0, key: Callable[[int], str] = lambda index: ""
    ) -> None:
        self.place, self.layout, self.parts, self.key = place_at(place), layout, parts, key

    # -- the description

    def description(self) -> Any:
        """The description of the run that is stored here."""
        name = self.layout.description
        try:
            return self.layout.decode(self.place.read(name).decode())
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            raise WrongPlace(f"{self.place} is not a run: it has no {name}.") from None
        except (ValueError, TypeError) as error:
            raise damaged(self.place, name, error) from None

    @property
    def begun(self) -> bool:
        """Whether results exist: a description, and at least one part."""
        return self.place.exists(self.layout.description) and self.layout.has_parts(self.place)

    def refuse_strangers(self) -> None:
        """Refuse to begin in a folder of other files.

        Files of shards that began already may be there. Where there are parts, it is a run whose description was lost.
        """
        if not self.place.exists(self.layout.description) and not self.layout.has_parts(self.place):
            refuse_strangers(self.place, (self.layout.description, *self.layout.folders, *self.layout.state))

    def refuse_changes(self, description: Any, files: Sequence[str] = ()) -> None:
        """Refuse a description that would give other results. `files`: names of inputs whose content changed."""
        before, now = (self.layout.decisive(entries) for entries in (self.description(), description))
        changes = [in_words(name, *values, self.layout.words) for name, values in differences(before, now).items()]
        if changes:
            changes = [*changes[:NAMED], *["…"] * (len(changes) > NAMED)]
            changes += [f"other contents: {', '.join(files[:3])}{', …' if len(files) > 3 else ''}"] if files else []
            raise ConfigChanged(
                f"{self.place} holds results of another run: {'; '.join(changes)}. Choose another folder, or undo the "
                "change."
            )

    @contextmanager
    def session(self, shard: Shard = (1, 1)) -> Iterator[None]:
        """Keep other processes away from the same shard, and remove files that killed writers left."""
        self.refuse_strangers()
        with self.place.lock(shard):
            if shard == (1, 1):  # no other process writes
                self.place.tidy(self.layout.folders, self.layout.owns)
            yield

    def begin(self, description: Any, say: Callable[[str], None] = lambda text: None) -> None:
        """Write the description. A run with parts is resumed, or refused where the description differs.

        A run without parts, because its first part failed, may be begun again with another description.
        """
        begun, name, text = self.begun, self.layout.description, self.layout.encode(description)
        if begun:
            self.refuse_changes(self.layout.decode(text))
        if self.place.exists(name):
            with suppress(WrongPlace):  # damaged, and no part depends on it
                if self.description() == self.layout.decode(text):
                    return
            if not begun:
                say(
                    f"{self.place} holds a run with other settings that was stopped before its first part: this one "
                    "takes its place"
                )
        self.place.write(name, text.encode())

    # -- parts

    def shard(self, shard: Shard) -> list[int]:
        """The parts of a shard."""
        index, count = shard
        if not 1 <= index <= count:
            raise ValueError(f"shard {index}/{count}: write i/n with i from 1 to n.")
        return list(range(index - 1, self.parts, count))

    def write(self, index: int, content: bytes, folder: str = "parts") -> None:
        """Store a part, whole or not at all."""
        number = f"{index:0{self.layout.digits}d}-{self.key(index)}-{text_digest(content)}"
        self.place.write(f"{folder}/{number}.{self.layout.folders[folder]}", content)

    def names(self, folder: str = "parts") -> dict[int, str]:
        """The parts that exist: index to name. Reading a part shows whether it is whole."""
        names = {}
        for name in filter(self.layout.part_name.fullmatch, self.place.names(folder)):
            number, key, _ = name.rpartition("/")[2].split("-")
            if int(number) < self.parts and key == self.key(int(number)):
                names[int(number)] = name
        return dict(sorted(names.items()))

    def content(self, name: str) -> bytes | None:
        """The bytes of a part; None where it is damaged or gone."""
        try:
            content = self.place.read(name)
        except FileNotFoundError:
            return None
        checksum = name.rpartition("-")[2].partition(".")[0]
        return content if text_digest(content) == checksum else None

    def read(self, name: str) -> bytes:
        """The bytes of a part that must be whole."""
        content = self.content(name)
        if content is None:
            raise RunError(
                f"{self.place}/{name} was damaged while the results were gathered: start again, and it is made anew."
            )
        return content

    def whole(
        self, indices: Iterable[int], say: Callable[[str], None] = lambda text: None, folder: str = "parts"
    ) -> set[int]:
        """The wanted parts that exist and are whole. Damaged parts are named and removed."""
        wanted = set(indices)
        names = {index: name for index, name in self.names(folder).items() if index in wanted}
        with ThreadPoolExecutor(READERS) as readers:
            checked = readers.map(lambda name: self.content(name) is not None, names.values())
            damaged = [index for index, sound in zip(names, checked, strict=True) if not sound]
        for index in damaged:
            say(f"{names[index]} was damaged and will be made again")
            self.place.remove(names[index])
        return names.keys() - set(damaged)

    def remove_parts(self) -> None:
        """Remove all parts, so that the run may be begun again with another description; other files stay."""
        for folder in self.layout.folders:
            for name in filter(self.layout.part_name.fullmatch, self.place.names(folder)):
                self.place.remove(name)

    def make(
        self,
        maker: Any,
        indices: Sequence[int],
        watch: Watch,
        work: Callable[[str | None], Work],
        execution: Execution,
        tolerant: bool = True,
    ) -> list[Failure]:
        """Make parts and store them: in this process by `maker`, in several processes, or on a cluster.

        `work(folder)` describes the work for other processes; `folder` is the one that Ray copies to the workers.
        Returns the parts that failed; in this process, unless `tolerant`, the first failure is raised.
        """
        if not indices:
            return []
        before, workers, engine = watch.parts_stored, min(execution.workers or 1, len(indices)), execution.engine
        try:
            if engine is not None:
                if self.place.private:
                    raise WrongPlace(
                        f"{self.place} is this process's memory, which workers do not see: name a folder or a bucket."
                    )
                return spread(engine, work(engine.runtime_env.get("working_dir")), indices, watch)
            if workers > 1 and not self.place.private:
                return LocalCrew(work(None), indices, watch, workers, execution.threads).run()
            return make_here(maker, indices, watch, tolerant)
        except (DiskFull, KeyboardInterrupt) as error:
            progress = f"{watch.parts_stored - before} of {len(indices)} parts were stored"
            if isinstance(error, DiskFull):
                raise DiskFull(error.errno, f"{error.strerror}; {progress} and stay. {MAKE_ROOM}") from None
            watch.say(f"stopped: {progress}; start again to resume")
            raise


@contextmanager
def gathering() -> Iterator[None]:
    """For results that are made of the parts: the error of a full disk says that the parts stay."""
    try:
        yield
    except DiskFull as error:
        raise DiskFull(error.errno, f"{error.strerror}; finished parts stay. {MAKE_ROOM}") from None


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The entries in which two descriptions differ, by dotted names, with both values; None is an absent entry."""
    old, new = _leaves(before), _leaves(now)
    both = {name: (old.get(name), new.get(name)) for name in dict.fromkeys([*old, *new])}
    return {name: (was, now) for name, (was, now) in both.items() if was != now}


def in_words(name: str, was: Any, now: Any, words: Mapping[str, str]) -> str:
    """A difference; of a digest, with the thing that changed."""
    change = f"{name} was {quoted(was)} and is {quoted(now)}"
    for entry, thing in words.items():
        if name == entry or name.startswith(f"{entry}."):
            where = name.removeprefix(entry).replace(".", " in ", 1)
            return f"{thing}{where} changed ({change})"
    return change


def _leaves(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The entries of nested tables by dotted names. An empty table counts as an entry."""
    leaves: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping) and value:
            leaves |= _leaves(value, f"{prefix}{name}.")
        elif value is not None:
            leaves[prefix + name] = "there" if isinstance(value, Mapping) else value
    return leaves


def quoted(value: Any) -> str:
    """An entry of a description as JSON, cut to 80 characters."""
    text = "absent" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}…"


def differs_here(things: str, work: str) -> RunError:
    """The error of a worker whose files differ from those of the machine that started the work."""
    return RunError(f"{socket.gethostname()} has other {things} than where {work} was started.")


def damaged(place: Place, name: str, error: Exception) -> WrongPlace:
    """The error for a file of a run that cannot be read."""
    return WrongPlace(
        f"{place}/{name} cannot be read: {str(error).rstrip('.')}. Restore {name} from a copy, or remove it and start "
        "again: finished parts stay."
    )


class Digests:
    """Short hashes of files, by which a run notices that code, weights or samples have changed.

    Reading every photograph at each start would cost minutes. So a `place` caches the hashes in `digests.json`, with
    size, times and inode of each file. A file is read again only if one of these has changed.
    """

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
        with ThreadPoolExecutor(FILE_READERS) as readers:
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
