"""Build plrp's wheel without its compiled loops: `python tools/pure_wheel.py --out DIR`.

The loops need POSIX threads. This wheel is tagged `py3-none-any`, so pip takes it wherever no compiled one fits
(Windows). It is built from a copy whose pyproject.toml names no extension module.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def without_extensions(pyproject: str) -> str:
    """The text of a pyproject.toml without its tables of extension modules."""
    found = re.sub(r"(?ms)^\[\[tool\.setuptools\.ext-modules\]\]\n.*?(?=^\[)", "", pyproject)
    if found == pyproject:
        raise SystemExit("pyproject.toml has no [[tool.setuptools.ext-modules]]: this script must follow it.")
    return found


def build(out: Path) -> None:
    """Build the wheel into `out`."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in ("README.md", "LICENSE"):
            shutil.copy(ROOT / name, copy)
        shutil.copytree(
            ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__", "*.so", "*.c", "*.h")
        )
        (copy / "pyproject.toml").write_text(without_extensions((ROOT / "pyproject.toml").read_text("utf-8")), "utf-8")
        subprocess.run([sys.executable, "-m", "build", "--wheel", "--outdir", str(out.resolve()), folder], check=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("dist"), help="folder of the wheel (default: dist)")
    build(parser.parse_args().out)
