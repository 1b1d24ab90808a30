"""Renews the copy of igv.js that `plrp genomics browser` puts into its pages: python tools/igv.py [VERSION].

igv.js (MIT) comes from the npm registry, as `npm pack` gives it, which checks its integrity. It is kept compressed,
without the line that points to its source map, beside its licence.
"""

from __future__ import annotations

import gzip
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

VERSION = "3.8.10"
FRONT = Path(__file__).parents[1] / "src" / "plrp" / "genomics" / "front"


def main(version: str) -> None:
    """Fetch a version, and write its script and licence."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["npm", "pack", "--silent", f"igv@{version}"], cwd=folder, check=True)
        (archive,) = Path(folder).glob("*.tgz")
        with tarfile.open(archive) as files:
            script, licence = (_content(files, f"package/{name}") for name in ("dist/igv.min.js", "LICENSE"))
    script = script[: script.rindex(b"//# sourceMappingURL")]
    (FRONT / "igv.min.js.gz").write_bytes(gzip.compress(script, 9, mtime=0))
    (FRONT / "igv-LICENSE.txt").write_bytes(f"igv.js {version}\n\n".encode() + licence)


def _content(files: tarfile.TarFile, name: str) -> bytes:
    stream = files.extractfile(name)
    assert stream is not None
    return stream.read()


if __name__ == "__main__":
    main(*(sys.argv[1:] or [VERSION]))
