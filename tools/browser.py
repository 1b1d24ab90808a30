"""Sees to a browser for the tests of the page: `python3 tools/browser.py`; `make test` calls it.

Where there is no Chromium, Debian's is installed if this may be done without a question (root, apt-get). Where it may
not, or fails, a sentence says that those tests will be skipped. It never fails itself.
"""

import os
import shutil
import subprocess
import sys

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
PATIENCE = 300  # seconds for each step of apt-get


def find():
    """The browser that is there; None where there is none."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


def install():
    """Installs Debian's Chromium; returns whether there is one then."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "stdin": subprocess.DEVNULL}
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    for words in (["update"], ["install", "--yes", "--no-install-recommends", "chromium"]):
        try:
            subprocess.run(["apt-get", *words], env=environment, timeout=PATIENCE, check=False, **quiet)
        except (OSError, subprocess.TimeoutExpired):
            return False
    return find() is not None


def main():
    """Finds or installs, and says what could not be done."""
    if find() is None:
        allowed = shutil.which("apt-get") is not None and hasattr(os, "geteuid") and os.geteuid() == 0
        if allowed:
            print("set-up: installing Chromium for the tests of the page", flush=True)
        if not (allowed and install()):
            print("set-up: there is no Chromium, so the tests of the page in a browser will be skipped; "
                  "`apt-get install chromium` brings it.")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
