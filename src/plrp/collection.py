"""Python's search for cyclic garbage, paused while a tape is written or walked.

A tape is thousands of objects, all of them in use, which Python would search again and again while they are made. What
a tape leaves behind is released by hand (`tape.seam.release`).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """Within this context garbage is not searched for, unless the user's code asks for it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
