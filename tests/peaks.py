"""The peak of memory while a function runs, in this process; Linux only."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def _status(field: str) -> int:
    """A line of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def peak_of(function: Callable[[], Any]) -> tuple[Any, int]:
    """The result of a function, or its error, and the bytes that it took at the most, above those in use before."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # the kernel's high-water mark begins here
    except (AttributeError, OSError):
        pytest.skip("the peak of memory is measured by the high-water mark of Linux")
    before = _status("VmRSS")
    try:
        result = function()
    except Exception as error:
        result = error.with_traceback(None)
    return result, _status("VmHWM") - before
