"""Work in another process, which ends with this process, however this process ends."""

from __future__ import annotations

import subprocess
import sys

_BOUND = (
    "import os, sys, threading; sys.path[:] = filter(None, sys.path); "  # nothing from the current folder
    "threading.Thread(target=lambda: (sys.stdin.read(), os._exit(1)), daemon=True).start(); "
)
"""Standard input ends when the process that holds its other end does."""


def in_background(code: str) -> subprocess.Popen[bytes]:
    """Run some code in another process of this Python; its output is discarded, its errors can be read afterwards.

    Wait for it with `wait()`: `communicate()` would end it.
    """
    return subprocess.Popen(
        [sys.executable, "-c", _BOUND + code],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def last_words(process: subprocess.Popen[bytes]) -> str:
    """The error output of a process that has ended."""
    assert process.stderr is not None
    return process.stderr.read().decode().strip()
