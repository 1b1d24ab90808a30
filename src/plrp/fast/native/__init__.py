"""The compiled inner loops, where they could be compiled: the C files here, called with the tensors they work on.

`available()` is False without a compiler at installation, and with `PLRP_NATIVE=0` (or no, off, false) in the
environment; then the twins in Python run. `status()` says which, and why. `signatures.py` lists all arguments.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from .signatures import SIGNATURES, checked, format_of

_native: Any = None
_absent = ""  # why the loops are not in use
if os.environ.get("PLRP_NATIVE", "").strip().lower() in ("0", "no", "off", "false"):
    _absent = f"PLRP_NATIVE={os.environ['PLRP_NATIVE']}"
else:
    try:
        _native = import_module(f"{__name__}._native")
        if getattr(_native, "formats", None) != {name: format_of(name) for name in SIGNATURES}:
            _native, _absent = None, "built from other sources than these (install plrp again)"
    except ModuleNotFoundError:
        _absent = "not built (no C compiler at installation?)"
    except ImportError as error:
        _absent = f"failed to load ({error})"

_loops: dict[str, Callable[..., Any]] = (
    {} if _native is None else {name: checked(name, getattr(_native, name)) for name in SIGNATURES}
)


def available(*tensors: Tensor) -> bool:
    """Whether the compiled loops are there and can take these tensors."""
    if _native is None:
        return False
    return all(t.dtype is torch.float32 and t.is_cpu and t.is_contiguous() for t in tensors)


def status() -> str:
    """Whether the compiled loops are in use, and if not, why: a line for people."""
    if _native is None:
        return f"compiled loops not in use: {_absent}"
    return f"compiled loops in use ({threads()} thread{'s' * (threads() != 1)})"


def threads() -> int:
    """As many as torch uses itself."""
    return torch.get_num_threads()


def empty(dtype: torch.dtype, *shape: int) -> Tensor:
    """Memory for the result of a loop, on the CPU whatever torch's default device is."""
    return torch.empty(shape, dtype=dtype, device="cpu")


def call(name: str, *arguments: Tensor | float | None) -> Any:
    """Call a compiled loop; arguments that do not fit its signature raise TypeError, ValueError or IndexError."""
    return _loops[name](*arguments)
