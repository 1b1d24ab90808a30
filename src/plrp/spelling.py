"""The names a user may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


def nearest(name: str, names: Sequence[str]) -> str:
    """'; nearest: …' for an unknown name."""
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.3) or list(names[:3])
    return f"; nearest: {', '.join(close)}" if close else ""
