"""Places for the results of long runs: a folder, or a URL that fsspec opens. Files appear whole or not at all."""

from __future__ import annotations

import errno
import os
import re
import socket
import stat
import tempfile
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

from plrp.errors import UsageError, needed
from plrp.files import FULL, UNFINISHED, new_file, unfinished, writable

OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "oci", "r2", "memory"})
"""Protocols that show an object only once it is complete."""


class RunError(ValueError):
    """A run that cannot be begun, resumed or read; the message says why and what to do."""


class WrongPlace(RunError, UsageError):
    """A folder or URL that cannot be this run: a file, a folder of other files, another run, or no run."""


class DiskFull(OSError):
    """No room for a result. Results that were written before stay, and the run can be resumed."""


class Place(ABC):
    """A store of files. All access to the files of a run goes through these few functions.

    Names are relative, with slashes. `write` leaves the old content or the new one, never a mixture. Of a `private`
    place only this process sees the files.
    """

    private = False

    @abstractmethod
    def write(self, name: str, content: bytes) -> None:
        """Store bytes under a name, whole or not at all."""

    @abstractmethod
    def new_file(self, name: str, size: int | None = None) -> AbstractContextManager[Path]:
        """A path of this machine to write to; its content is stored under the name when the block ends well.

        `size`: bytes that it takes at most, if known, for the error of a full disk.
        """

    @abstractmethod
    def read(self, name: str) -> bytes:
        """The bytes of a file; FileNotFoundError where there is none of this name."""

    @abstractmethod
    def entries(self, folder: str) -> dict[str, bool]:
        """The names in a folder without the folder, each with whether it is a file. A missing folder is empty."""

    @abstractmethod
    def exists(self, name: str) -> bool:
        """Whether there is a file of this name."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file; harmless where there is none."""

    def names(self, folder: str = "", *, hidden: bool = False) -> list[str]:
        """The files in a folder, in order: the visible or the hidden ones, which start with a dot."""
        names = [name for name, is_file in self.entries(folder).items() if is_file and name.startswith(".") == hidden]
        return sorted(f"{folder}/{name}" if folder else name for name in names)

    def lock(self, shard: tuple[int, int] = (1, 1)) -> AbstractContextManager[None]:
        """Keep other processes from doing the same work at the same time, if the place has locks."""
        return nullcontext()

    def tidy(self, folders: Iterable[str], owned: Callable[[str], bool]) -> None:
        """Remove unfinished files that killed writers left at the top and in some folders; only while nobody writes.

        Only versions of files whose names are `owned` are removed. Files behind symbolic links stay.
        """
        for folder in ("", *folders):
            for name in self.names(folder, hidden=True):
                path, slash, last = name.rpartition("/")
                finished = unfinished(last)
                if finished is not None and owned(f"{path}{slash}{finished}"):
                    self.remove(name)

    @property
    def address(self) -> str:
        """The place as other processes and machines name it."""
        return str(self)


class Folder(Place):
    """A folder of this machine, or one that several machines share."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def __str__(self) -> str:
        return str(self.path)

    def write(self, name: str, content: bytes) -> None:
        """Store bytes under a name, whole or not at all; they are on the disk when this returns."""
        with self.new_file(name, len(content)) as part:
            part.write_bytes(content)

    @contextmanager
    def new_file(self, name: str, size: int | None = None) -> Iterator[Path]:
        """A temporary path in the folder of the file."""
        with _full_disk(self.path / name, size), new_file(self.path / name, durable=True) as part:
            yield part

    def read(self, name: str) -> bytes:
        """The bytes of a file."""
        return (self.path / name).read_bytes()

    @property
    def address(self) -> str:
        """Its path in full."""
        return str(self.path.resolve())

    def entries(self, folder: str) -> dict[str, bool]:
        """The files and folders of a folder."""
        path = self.path / folder
        try:
            with os.scandir(path) as entries:
                # isfile: a link that leads nowhere is no file, and no error
                return {e.name: os.path.isfile(e) if e.is_symlink() else e.is_file() for e in entries}
        except FileNotFoundError:
            return {}
        except NotADirectoryError:
            file = next((one for one in (path, *path.parents) if one.is_file()), path)
            raise WrongPlace(f"{file} is a file: name a folder for the results.") from None

    def exists(self, name: str) -> bool:
        """Whether there is a file of this name."""
        return (self.path / name).is_file()

    def remove(self, name: str) -> None:
        """Delete a file; a file behind a symbolic link stays, and is written over."""
        path = self.path / name
        if path.parent == self.path or not path.parent.is_symlink():
            path.unlink(missing_ok=True)

    @contextmanager
    def lock(self, shard: tuple[int, int] = (1, 1)) -> Iterator[None]:
        """Refuse a second process on the same shard of the run. The kernel's locks end with their process."""
        try:
            import fcntl
        except ImportError:  # on Windows: parts are still whole, but work may be done twice
            yield
            return
        with writable(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        index, count = shard
        wanted = [(".lock", fcntl.LOCK_EX if count == 1 else fcntl.LOCK_SH)]
        if count > 1:
            wanted.append((f".lock-{index}-of-{count}", fcntl.LOCK_EX))
        handles: list[int] = []
        try:
            for name, kind in wanted:
                handles.append(_open_lock(self.path / name))
                try:
                    fcntl.flock(handles[-1], kind | fcntl.LOCK_NB)
                except BlockingIOError:
                    owner = _owner(handles[-1])
                    raise RunError(
                        f"another process works on {self.path}{f' ({owner})' if owner else ''}: wait for it, or share "
                        "the work between processes with --shard 1/2, --shard 2/2."
                    ) from None
                except OSError as error:
                    if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                        raise
            # A process that is refused names the owner of the lock; a full disk is no reason to stop here.
            with suppress(OSError):
                if os.fstat(handles[-1]).st_size == 0 or _owner(handles[-1]):  # any other content stays
                    os.ftruncate(handles[-1], 0)
                    os.pwrite(handles[-1], f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
            yield
        finally:
            for handle in handles:
                with suppress(OSError):  # the owner could not be written to a full disk
                    os.close(handle)


def _open_lock(path: Path) -> int:
    """A handle on a lock file, which is created if needed; a link to another file is refused."""
    try:
        with writable(path):
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        about = os.fstat(handle)
        if stat.S_ISREG(about.st_mode) and about.st_nlink <= 1:
            return handle
        os.close(handle)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise
    raise WrongPlace(f"{path} is a link, a folder or a device, not a lock of ours: remove it.")


_OWNER = re.compile(r"process \d+ on [^\n]{1,255}")


def _owner(handle: int) -> str:
    """The owner of a lock, as its file says; empty where the file was not written by us."""
    with suppress(OSError):
        text = os.pread(handle, 300, 0).decode("utf-8", "replace")
        return text if _OWNER.fullmatch(text) else ""
    return ""


class Bucket(Place):
    """A place that fsspec opens by its URL: `s3://bucket/run`, `gs://…`, `sftp://…`, `memory://run`.

    Object stores show only complete objects, so content is sent to its name directly; elsewhere it is written under a
    temporary name and moved. There are no locks: two processes at once do the work twice, and store the same parts
    under the same names.
    """

    def __init__(self, url: str) -> None:
        with needed(f"{url} needs fsspec", "experiments"):
            from fsspec.core import url_to_fs
        self.url = url.rstrip("/")
        try:
            self.files, self.root = url_to_fs(self.url)
        except (ImportError, ValueError) as error:  # a protocol that is unknown or whose package is missing
            raise WrongPlace(f"{url} cannot be opened ({error}).") from None
        self.protocol = self.url.partition("://")[0]
        self.private = self.protocol == "memory"

    def __str__(self) -> str:
        return self.url

    def write(self, name: str, content: bytes) -> None:
        """Store bytes under a name, whole or not at all."""
        with _full_disk(f"{self.url}/{name}", len(content)):
            self._put(name, lambda path: self.files.pipe_file(path, content))

    @contextmanager
    def new_file(self, name: str, size: int | None = None) -> Iterator[Path]:
        """A temporary path; its content is sent when the block ends well."""
        with tempfile.TemporaryDirectory() as folder:
            local = Path(folder) / name.rpartition("/")[2]
            with _full_disk(local, size):
                yield local
            with _full_disk(f"{self.url}/{name}", local.stat().st_size):
                self._put(name, lambda path: self.files.put_file(str(local), path))

    def _put(self, name: str, send: Callable[[str], None]) -> None:
        """Send content to its name directly, or to a temporary name and move it."""
        path = self._path(name)
        if self.protocol in OBJECT_STORES:
            try:
                with self._reached():
                    send(path)
            except FileNotFoundError as error:
                raise WrongPlace(f"{self.url} cannot be written ({_sentence(error)}): make the bucket first.") from None
            return
        folder, _, last = path.rpartition("/")
        self.files.makedirs(folder, exist_ok=True)
        temporary = f"{folder}/.{last}.{uuid.uuid4().hex[:8]}{UNFINISHED}"
        try:
            send(temporary)
            try:
                self.files.mv(temporary, path)
            except NotImplementedError:  # a place that can neither move nor copy stores whole objects
                send(path)
        finally:
            with suppress(FileNotFoundError, NotImplementedError):
                self.files.rm_file(temporary)

    def read(self, name: str) -> bytes:
        """The bytes of a file."""
        return bytes(self.files.cat_file(self._path(name)))

    def entries(self, folder: str) -> dict[str, bool]:
        """The files or objects of a folder, and the folders where the place knows them."""
        self.files.invalidate_cache()  # other processes write there too
        try:
            with self._reached():
                entries = self.files.ls(self._path(folder), detail=True)
        except FileNotFoundError:
            return {}
        names = {str(entry["name"]).rstrip("/").rpartition("/")[2]: entry["type"] == "file" for entry in entries}
        return {name: is_file for name, is_file in names.items() if name}

    def exists(self, name: str) -> bool:
        """Whether there is a file or an object of this name."""
        self.files.invalidate_cache()
        with self._reached():
            return bool(self.files.isfile(self._path(name)))

    def remove(self, name: str) -> None:
        """Delete a file or an object."""
        with suppress(FileNotFoundError):
            self.files.rm_file(self._path(name))

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """Turn errors of the library into WrongPlace: no credentials, no permission, no such host.

        A missing file and a full disk keep their own errors.
        """
        try:
            yield
        except (FileNotFoundError, UsageError, MemoryError):
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno in FULL:
                raise
            raise WrongPlace(f"{self.url} cannot be used ({_sentence(error)}).") from error

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}" if name else str(self.root)


def place_at(where: str | Path | Place) -> Place:
    """A folder by its path or `file://` URL, another place by its URL, or a place itself."""
    if isinstance(where, Place):
        return where
    text = str(where)
    if text.startswith("file://"):
        return Folder(text.removeprefix("file://"))
    return Bucket(text) if "://" in text else Folder(where)


def refuse_strangers(place: Place, allowed: Collection[str] = ()) -> None:
    """Refuse a place that holds other files, with which results would be mixed. `allowed` names may exist."""
    others = sorted(name for name in place.entries("") if name not in allowed and not name.startswith("."))
    if others:
        more = ", …" if len(others) > 3 else ""
        raise WrongPlace(
            f"{place} holds other files ({', '.join(others[:3])}{more}), with which results would be mixed: name a "
            "new or an empty folder."
        )


def _sentence(error: Exception) -> str:
    """The first line of an error."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


@contextmanager
def _full_disk(path: str | Path, size: int | None) -> Iterator[None]:
    """Names the file that did not fit, and how many bytes it takes, in the error."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            bytes_needed = "" if size is None else f" ({size:,} bytes)"
            raise DiskFull(error.errno, f"no space left for {path}{bytes_needed}") from error
        raise
