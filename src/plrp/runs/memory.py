"""Out of memory: how it is recognised, and the remedy: the next batch is half as large."""

from __future__ import annotations

import warnings

import torch

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


def smaller_batch(size: int, option: str) -> int:
    """Half of a batch that did not fit, announced by a warning; `option` sets it. A single sample is refused."""
    if size <= 1:
        raise OutOfMemory(
            "out of memory with a single sample: use a machine or device with more memory (--device cpu), fewer "
            "workers, or shorter inputs."
        )
    half = size // 2
    warnings.warn(
        f"out of memory with {size} samples at a time: going on with {half}. {option}{half} begins so.",
        stacklevel=3,
    )
    return half
