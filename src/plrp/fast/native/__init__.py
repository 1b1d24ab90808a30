"""The compiled inner loops, where they could be compiled: `_native.c`, called with addresses of tensors.

`available()` is False without a compiler at installation, and with `PLRP_NATIVE=0` in the environment; then the
twins in Python run. They take contiguous float32 tensors on the CPU.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

_native: Any
try:
    from . import _native
except ImportError:  # not compiled: no compiler, or a platform without threads and vectors as gcc and clang have them
    _native = None
if os.environ.get("PLRP_NATIVE") == "0":
    _native = None


def available(*tensors: Tensor) -> bool:
    """Whether the compiled loops are there and can take these tensors."""
    if _native is None:
        return False
    return all(t.dtype is torch.float32 and t.is_cpu and t.is_contiguous() for t in tensors)


def threads() -> int:
    """As many as torch uses itself."""
    return torch.get_num_threads()


def call(name: str, *arguments: Tensor | float | None) -> Any:
    """Call a compiled loop: tensors go as their addresses, None as 0."""
    numbers = [a.data_ptr() if isinstance(a, Tensor) else a if a is not None else 0 for a in arguments]
    return getattr(_native, name)(*numbers)
