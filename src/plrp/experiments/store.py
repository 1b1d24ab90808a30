"""The results of a sweep on the disk: a `plrp.runs.run.Run` with two folders of parts.

    RUN/config.toml                         the resolved config
    RUN/run.json                            versions, git commit, seeds, the machine, and every start
    RUN/parts/000003-KEY-CHECKSUM.parquet   scores of one part
    RUN/maps/000003-KEY-CHECKSUM.h5         its relevance maps, if the config asks for them

A part is finished once its scores exist; its maps are written before them.
"""

from __future__ import annotations

import json
import platform
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import plrp
from plrp.runs.places import Place, RunError, place_at
from plrp.runs.run import CACHE, Run, RunLayout, damaged

from .config import Config, decisive, read_toml

CONFIG, MANIFEST = "config.toml", "run.json"
NETWORK, TRAINING = "network.pt", "training.json"
"""The network that a sweep trained, and how."""
PACKAGES = ("torch", "numpy", "torchvision", "pillow", "pyarrow", "h5py", "pandas", "pyjaspar")
LAYOUT = RunLayout(
    description=CONFIG,
    folders={"parts": "parquet", "maps": "h5"},
    state=(MANIFEST, NETWORK, TRAINING, CACHE),
    digits=6,
    words={"data.digest": "the samples", "model.digest": "the weights", "model.code": "the code"},
    decode=lambda text: Config.from_dict(read_toml(text)),
    encode=Config.to_toml,
    decisive=decisive,
)


class PartsMissing(RunError):
    """A sweep that finished; some parts could not be made, and the message lists them."""

    exit_code = 3


@dataclass(frozen=True)
class PartContent:
    """The results of one part: a Parquet file, and an HDF5 file of its maps, if any."""

    scores: bytes
    maps: bytes | None = None


class Store:
    """The results of one sweep, in a `Place`."""

    def __init__(self, place: Place | str | Path) -> None:
        self.place = place_at(place)

    def __str__(self) -> str:
        return str(self.place)

    def run(self, config: Config | None = None) -> Run:
        """The run in this place, with the parts of a config."""
        return Run(self.place, LAYOUT) if config is None else Run(self.place, LAYOUT, config.parts, config.key)

    def config(self) -> Config:
        """The resolved config."""
        config: Config = self.run().description()
        return config

    def manifest(self) -> dict[str, Any]:
        """Versions, git commit, seeds, and every start of the sweep."""
        try:
            return dict(json.loads(self.place.read(MANIFEST)))
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError) as error:
            raise damaged(self.place, MANIFEST, error) from None

    def begin(
        self, config: Config, facts: dict[str, Any] | None = None, say: Callable[[str], None] = lambda text: None
    ) -> Config:
        """Begin a run, or resume it: a config that would give other results is refused with the differences.

        More samples may be asked for than before. A run without a single part may be begun again with another config.
        Returns the config that is valid from now on.
        """
        run = self.run(config)
        if run.begun:
            run.refuse_changes(config)
            known = self.config()
            if known.samples > config.samples:  # a first look at samples that exist already
                config = config.changed(**{"data.limit": known.samples})
        run.begin(config, say)
        if facts is not None:
            starts = self.manifest().get("starts", [])
            started = {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), **facts}
            manifest = {**facts, "starts": [*starts, started]}
            self.place.write(MANIFEST, json.dumps(manifest, indent=1, ensure_ascii=False).encode())
        return config

    # -- parts

    def put(self, config: Config, index: int, part: PartContent) -> None:
        """Store a part. The maps come first: where the scores are, the part is finished."""
        run = self.run(config)
        if part.maps is not None:
            run.write(index, part.maps, "maps")
        run.write(index, part.scores)

    def find(self, config: Config) -> dict[int, str]:
        """The finished parts of a config: index to the name of its scores. Reading a part shows whether it is whole."""
        run = self.run(config)
        maps = run.names("maps")
        return {k: name for k, name in run.names().items() if k in maps or not _has_maps(config, k)}

    def whole(
        self, config: Config, indices: Iterable[int] | None = None, say: Callable[[str], None] = lambda text: None
    ) -> set[int]:
        """The parts that exist and are whole; damaged files are named and removed."""
        run, wanted = self.run(config), list(range(config.parts) if indices is None else indices)
        scores, maps = (run.whole(wanted, say, folder) for folder in ("parts", "maps"))
        return {index for index in scores if index in maps or not _has_maps(config, index)}


def _has_maps(config: Config, index: int) -> bool:
    """Whether a part has maps."""
    return config.maps is not None and any(config.maps.covers(sample, 0) for sample in config.part(index))


# -- how results came about


def facts(config: Config, device: str, threads: int) -> dict[str, Any]:
    """The facts that a reader needs to repeat a run."""
    seeded = [metric for metric in config.metrics if "seed" in metric.options]
    packages = {}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            packages[name] = metadata.version(name)
    return {
        "plrp": plrp.__version__,
        "git": commit(),
        "python": platform.python_version(),
        "packages": packages,
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
