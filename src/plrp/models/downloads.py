"""Download published weights with progress, resuming and checksums; a file gets its name only once it is complete."""

from __future__ import annotations

import os
import re
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from plrp.files import file_digest, new_file
from plrp.progress import progress

ATTEMPTS = 3  # a broken connection is resumed where it broke off
TIMEOUT = 30  # seconds without a byte
INSECURE = "PLRP_MIRROR_INSECURE"
LOOPBACK = ("localhost", "127.0.0.1", "::1")
_CHUNK = 1 << 18
_HASH_IN_NAME = re.compile(r"-([0-9a-f]{8,64})\.\w+$")  # resnet50-11ad3fa6.pth: the first digits of the SHA-256


class DownloadError(OSError):
    """A download that failed; the message says how far it got and what to do."""


def fetch(url: str, folder: str | Path, *, quiet: bool = False) -> Path:
    """The file of a URL in `folder`, downloaded if it is not there yet.

    Where the file's name carries its SHA-256, as torchvision's do, the content is checked against its first digits.
    The environment variable PLRP_MIRROR is a base address that has files of the same names: `https:`, or this
    machine's own. PLRP_MIRROR_INSECURE=1 takes `http:` and `file:` as well.
    """
    name = Path(urlsplit(url).path).name
    target = Path(folder) / name
    digits = _HASH_IN_NAME.search(name)
    if target.exists():
        if digits and not file_digest(target).startswith(digits.group(1)):
            raise DownloadError(f"{target} does not match the checksum in its name; delete it and run again.")
        return target
    if mirror := os.environ.get("PLRP_MIRROR"):
        url = f"{mirror.rstrip('/')}/{name}"
    _check_address(url)
    with new_file(target) as part:
        _download(url, part, quiet)
        if digits and not file_digest(part).startswith(digits.group(1)):
            raise DownloadError(f"The download from {url} does not match the checksum in its name and was discarded.")
    return target


def _check_address(url: str) -> None:
    """Refuse addresses whose content others can change on its way, unless the user allows them."""
    parts = urlsplit(url)
    safe = parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK)
    if not safe and not (parts.scheme in ("http", "file") and os.environ.get(INSECURE) == "1"):
        raise DownloadError(
            f"{url} is not downloaded from: weights come by https. {INSECURE}=1 in the environment allows http: and "
            "file: addresses of a mirror that you trust."
        )


class _NoDowngrade(urllib.request.HTTPRedirectHandler):
    """Follows a redirect only to an address that would have been accepted in the first place."""

    def redirect_request(self, request: Any, answer: Any, code: int, message: str, headers: Any, url: str) -> Any:
        _check_address(url)
        return super().redirect_request(request, answer, code, message, headers, url)


def _download(url: str, part: Path, quiet: bool) -> None:
    show = False if quiet else None
    for attempt in range(1, ATTEMPTS + 1):
        have = part.stat().st_size
        try:
            request = urllib.request.Request(url, headers={"User-Agent": "plrp"})
            if have:
                request.add_header("Range", f"bytes={have}-")
            with urllib.request.build_opener(_NoDowngrade).open(request, timeout=TIMEOUT) as answer:
                if have and answer.status != 206:  # the server starts over
                    have = 0
                length = answer.headers.get("Content-Length")
                size = have + int(length) if length else None
                bar = progress(
                    f"downloading {url}", size, show, unit="bytes", done=have, announce=not have, transient=True
                )
                with open(part, "ab" if have else "wb") as file, bar as step:
                    while chunk := answer.read(_CHUNK):
                        file.write(chunk)
                        step(len(chunk))
            done = part.stat().st_size
            if size is None or done == size:
                return
            reason = f"the connection broke off after {done / 1e6:.1f} of {size / 1e6:.1f} MB"
        except urllib.error.HTTPError as error:
            raise DownloadError(
                f"{url} could not be downloaded: the server answered {error.code} {error.reason}."
            ) from error
        except DownloadError:
            raise
        except (OSError, HTTPException) as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
        if attempt == ATTEMPTS:
            raise DownloadError(
                f"{url} could not be downloaded in {ATTEMPTS} attempts: {reason}; try again, or give the "
                "weights as a local file with `--weights FILE` (in Python `weights=`)."
            )
