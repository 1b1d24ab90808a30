"""Work that another process does meanwhile, and that ends with this one, however this one ends."""

from __future__ import annotations

import subprocess
import sys

_BOUND = (
    "import os, sys, threading; sys.path[:] = filter(None, sys.path); "  # nothing from the current folder
    "threading.Thread(target=lambda: (sys.stdin.read(), os._exit(1)), daemon=True).start(); "
)
"""Standard input ends when the process that holds its other end does."""


def in_background(code: str) -> subprocess.Popen[bytes]:
    """A process of this Python that runs some code; what it prints is dropped, what it says in error is kept.

    Wait for it with `wait()`: `communicate()` would end it.
    """
    return subprocess.Popen(
        [sys.executable, "-c", _BOUND + code],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def last_words(process: subprocess.Popen[bytes]) -> str:
    """What a process that has ended said in error."""
    assert process.stderr is not None
    return process.stderr.read().decode().strip()
