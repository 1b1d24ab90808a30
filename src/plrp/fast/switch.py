"""The switch between the fast paths and the readable reference that they must equal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_FAST = ContextVar("plrp_fast", default=True)


def fast() -> bool:
    """Whether fast paths may be taken."""
    return _FAST.get()


@contextmanager
def reference() -> Iterator[None]:
    """Within this context only the plain code runs: every formula as it stands, no fast path."""
    token = _FAST.set(False)
    try:
        yield
    finally:
        _FAST.reset(token)
