"""How results came about: versions, the source's commit, seeds, the machine."""

from __future__ import annotations

import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import plrp

from .config import Config

PACKAGES = ("torch", "numpy", "torchvision", "pillow", "pyarrow", "h5py", "pandas", "pyjaspar")


def facts(config: Config, device: str, threads: int) -> dict[str, Any]:
    """The facts that a reader needs to repeat a run."""
    seeded = [metric for metric in config.metrics if "seed" in metric.options]
    return {
        "plrp": plrp.__version__,
        "git": commit(),
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _version(name)) is not None},
        "system": f"{platform.system()} {platform.machine()}",
        "device": device,
        "threads": threads,
        "seeds": {
            "samples, perturbations, ties, training": config.seed,
            **{f"metrics.{metric.name}": metric.options["seed"] for metric in seeded},
        },
    }


def commit() -> dict[str, Any] | None:
    """The commit that plrp's source is at, and whether it was changed since; None for an installed package."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, timeout=20, check=True
        ).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain", "--", "src"))}
    except (OSError, subprocess.SubprocessError):
        return None


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
