"""Where long runs store their results: a folder, or what fsspec opens by its URL; written whole or not at all."""

from __future__ import annotations

import errno
import os
import socket
import tempfile
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from plrp.errors import UsageError
from plrp.files import UNFINISHED, new_file

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "oci", "r2", "memory"})
"""Protocols that show an object once all of it is there."""


class RunError(ValueError):
    """A run that cannot be begun, resumed or read; the message says why and what to do."""


class WrongPlace(RunError, UsageError):
    """A folder or URL that cannot be this run: a file, a folder of other files, another run, or none."""


class DiskFull(OSError):
    """No room for a result. What was written before stays, and the run can be resumed."""


class Place(ABC):
    """Where named bytes are stored. All access to the files of a run goes through these few functions.

    Names are relative, with slashes. `write` leaves the old content or the new one, never a mixture.
    """

    @abstractmethod
    def write(self, name: str, content: bytes) -> None:
        """Store bytes under a name, whole or not at all."""

    @abstractmethod
    def new_file(self, name: str) -> AbstractContextManager[Path]:
        """A path of this machine to write to; its content is stored under the name when the block ends well."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """The bytes of a name; FileNotFoundError where there are none."""

    @abstractmethod
    def names(self, folder: str = "") -> list[str]:
        """The names in a folder, in order; none where there is no such folder."""

    def top(self) -> list[str]:
        """What is here, in order: files, and folders where the place knows them, without hidden names."""
        return self.names()

    @abstractmethod
    def exists(self, name: str) -> bool:
        """Whether there is something under a name."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove what is stored under a name; harmless where there is nothing."""

    def lock(self, shard: tuple[int, int] = (1, 1)) -> AbstractContextManager[None]:
        """Keep other processes from doing the same work at the same time, where the place can."""
        return nullcontext()

    def tidy(self) -> None:
        """Remove what killed writers left behind, where they leave anything. Only while nobody else writes."""
        return None

    @property
    def private(self) -> bool:
        """Whether only this process sees what is stored here."""
        return False


class Folder(Place):
    """A folder of this machine, or one that several machines share."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def __str__(self) -> str:
        return str(self.path)

    def write(self, name: str, content: bytes) -> None:
        """Store bytes under a name, whole or not at all, and on the disk when it returns."""
        with _full_disk(f"{self.path / name} ({len(content):,} bytes)"), self.new_file(name) as part:
            part.write_bytes(content)

    def new_file(self, name: str) -> AbstractContextManager[Path]:
        """A path beside the one of that name."""
        return new_file(self.path / name, durable=True)

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

    def top(self) -> list[str]:
        """What is here, in order: files and folders, without hidden names."""
        try:
            return sorted(name for name in os.listdir(self.path) if not name.startswith("."))
        except FileNotFoundError:
            return []
        except NotADirectoryError:
            file = next((path for path in (self.path, *self.path.parents) if path.is_file()), self.path)
            raise WrongPlace(f"{file} is a file: name a folder for the results.") from None

    def exists(self, name: str) -> bool:
        """Whether there is a file of that name."""
        return (self.path / name).is_file()

    def remove(self, name: str) -> None:
        """Delete a file."""
        (self.path / name).unlink(missing_ok=True)

    @contextmanager
    def lock(self, shard: tuple[int, int] = (1, 1)) -> Iterator[None]:
        """Refuse a second process on the same shard of the run. The kernel's locks: they end with their process."""
        try:
            import fcntl
        except ImportError:  # on Windows: parts are whole whoever writes them, but work may be done twice
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
                    owner = stream.read()
                    raise RunError(
                        f"another process works on {self.path}{f' ({owner})' if owner else ''}: wait for it, or share "
                        "the work between processes with --shard 1/2, --shard 2/2."
                    ) from None
                except OSError as error:
                    if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                        raise
            # Tells the process that is refused whom to look for; a full disk is no reason to stop here.
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

    An object store shows an object once it is whole, so content is put there directly; elsewhere it is written under
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
            raise WrongPlace(f"{url} cannot be opened ({error}).") from None
        self.protocol = self.url.partition("://")[0]

    def __str__(self) -> str:
        return self.url

    @property
    def private(self) -> bool:
        """Whether it is this process's memory."""
        return self.protocol == "memory"

    def write(self, name: str, content: bytes) -> None:
        """Store bytes under a name, whole or not at all."""
        with _full_disk(f"{self.url}/{name} ({len(content):,} bytes)"):
            self._put(name, lambda path: self.files.pipe_file(path, content))

    @contextmanager
    def new_file(self, name: str) -> Iterator[Path]:
        """A temporary path; its content is sent when the block ends well."""
        with tempfile.TemporaryDirectory() as folder:
            local = Path(folder) / name.rpartition("/")[2]
            yield local
            with _full_disk(f"{self.url}/{name} ({local.stat().st_size:,} bytes)"):
                self._put(name, lambda path: self.files.put_file(str(local), path))

    def _put(self, name: str, send: Callable[[str], None]) -> None:
        """Send content to its name directly, or under another name and move it."""
        path = self._path(name)
        if self.protocol in OBJECT_STORES:
            send(path)
            return
        folder, _, last = path.rpartition("/")
        self.files.makedirs(folder, exist_ok=True)
        beside = f"{folder}/.{last}.{uuid.uuid4().hex[:8]}{UNFINISHED}"
        try:
            send(beside)
            try:
                self.files.mv(beside, path)
            except NotImplementedError:  # what can neither move nor copy puts whole objects
                send(path)
        finally:
            with suppress(FileNotFoundError, NotImplementedError):
                self.files.rm_file(beside)

    def read(self, name: str) -> bytes:
        """The bytes of a name."""
        return bytes(self.files.cat_file(self._path(name)))

    def names(self, folder: str = "") -> list[str]:
        """The names in a folder, in order."""
        found = [_last(entry) for entry in self._entries(folder) if entry["type"] == "file"]
        return sorted(f"{folder}/{name}" if folder else name for name in found if name and not name.startswith("."))

    def top(self) -> list[str]:
        """What is here, in order: files and folders, without hidden names."""
        return sorted(name for name in map(_last, self._entries("")) if name and not name.startswith("."))

    def _entries(self, folder: str) -> list[dict[str, Any]]:
        self.files.invalidate_cache()  # others write there too
        try:
            return list(self.files.ls(self._path(folder), detail=True))
        except FileNotFoundError:
            return []

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


def refuse_strangers(place: Place, allowed: Collection[str] = ()) -> None:
    """Refuse to begin in a folder of other files: results would be mixed with them. `allowed` names may be there."""
    others = [name for name in place.top() if name not in allowed]
    if others:
        more = ", …" if len(others) > 3 else ""
        raise WrongPlace(
            f"{place} holds other files ({', '.join(others[:3])}{more}), with which results would be mixed: name a "
            "new or an empty folder."
        )


def _last(entry: dict[str, Any]) -> str:
    return str(entry["name"]).rstrip("/").rpartition("/")[2]


@contextmanager
def _full_disk(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise DiskFull(error.errno, f"no space left for {what}") from error
        raise
