"""All benchmarks, one after the other: what `make bench` runs. `--quick` is the short version of each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PARTS = ("engine", "metrics", "logos")


def main() -> int:
    folder = Path(__file__).parent
    failed = []
    for part in PARTS:
        print(f"\n=== {part} " + "=" * (70 - len(part)), flush=True)
        if subprocess.run([sys.executable, str(folder / f"{part}.py"), *sys.argv[1:]], check=False).returncode:
            failed.append(part)
    if failed:
        print(f"\nfailed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
