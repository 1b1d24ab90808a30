"""Limits of memory: a batch that does not fit is halved; a file of strangers may unpack to so much and no more."""

from __future__ import annotations

import io
import math
import warnings
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from plrp.errors import UsageError
from plrp.settings import LARGEST

T = TypeVar("T")
_WORDS = ("can't allocate memory", "not enough memory", "out of memory", "unable to allocate", "bad allocation")


class OutOfMemory(MemoryError):
    """A single sample does not fit into memory; the message says what to do."""


def out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory was not enough: of Python, of a GPU, or of torch's allocator on the CPU."""
    if isinstance(error, OutOfMemory):
        return False
    if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in _WORDS)


def fitting(size: int, work: Callable[[int], T], option: str) -> tuple[int, T]:
    """The size of a batch, halved with a warning until memory is enough, and the result of some work on it.

    `option` sets the size. A single sample that does not fit is refused.
    """
    while True:
        try:
            return size, work(size)
        except Exception as error:
            if not out_of_memory(error):
                raise
        if size <= 1:  # outside the handler: its traceback holds the tensors that filled the memory
            raise OutOfMemory(
                "out of memory with a single sample: use a machine or device with more memory (--device cpu), fewer "
                "workers, or shorter inputs."
            )
        half = size // 2
        begins = f"{option}{half} begins so"
        warnings.warn(f"out of memory with {size} samples at a time: going on with {half}. {begins}.", stacklevel=3)
        size = half


class TooLarge(UsageError):
    """A file that unpacks to more than is allowed; the message says how to allow it."""

    def __init__(self, path: str | Path, largest: int) -> None:
        super().__init__(
            f"{path} unpacks to more than {largest / 1e9:g} GB, and was not read. If it is what it should be, allow "
            "more: --largest-input 20GB, or largest= in Python and in [data] of a config."
        )


class Unpacked(io.RawIOBase):
    """A stream that unpacks a file, and stops where more than `largest` bytes have come out of it."""

    def __init__(self, stream: IO[bytes], path: str | Path, largest: int) -> None:
        self.stream, self.path, self.largest, self.count = stream, path, largest, 0

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Some bytes, as many as fit."""
        block = self.stream.read(len(buffer))
        self.count += len(block)
        if self.count > self.largest:
            raise TooLarge(self.path, self.largest)
        buffer[: len(block)] = block
        return len(block)


def read_arrays(
    path: str | Path, names: Sequence[str] | None = None, *, largest: int = LARGEST
) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an `.npz` (those of `names`, if given), or the one of an `.npy` as `arr_0`; no pickles.

    The sizes that the file declares are checked before memory is taken. ValueError: it is not such a file, or damaged.
    """
    path = Path(path)
    try:
        if not zipfile.is_zipfile(path):
            with path.open("rb") as stream:
                _check_header(stream, path.stat().st_size)
            return {"arr_0": np.load(path, allow_pickle=False)}
        with zipfile.ZipFile(path) as archive:
            entries = [e for e in archive.infolist() if names is None or e.filename.removesuffix(".npy") in names]
            if sum(entry.file_size for entry in entries) > largest:
                raise TooLarge(path, largest)
            arrays = {}
            for entry in entries:
                with archive.open(entry) as stream:
                    _check_header(stream, entry.file_size)
                with archive.open(entry) as stream:
                    arrays[entry.filename.removesuffix(".npy")] = np.lib.format.read_array(stream, allow_pickle=False)
            return arrays
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(str(error)) from None


def read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """The shape of an array in NPY format, whether it is stored by columns, and its type. ValueError: damaged."""
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    try:
        return read(stream)
    except Exception as error:  # Python's parser and tokenizer read it, which raise about ten kinds
        raise ValueError(f"the header of an array is damaged ({type(error).__name__})") from None


def _check_header(stream: IO[bytes], size: int) -> None:
    """Refuse an array whose header promises more than the file holds."""
    shape, _, kind = read_header(stream)
    if kind.hasobject:
        raise ValueError("it holds Python objects, which are not loaded")
    if min(shape, default=0) < 0 or math.prod(shape) * kind.itemsize > size:
        raise ValueError(f"an array of {shape} does not fit into its {size:,} bytes")
