"""A small world for sweeps: a network in a file and a few arrays, so that a part takes a fraction of a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from plrp.experiments import Config, Results
from plrp.experiments.part_files import SampleFacts, ScoreRows, StoredMaps
from plrp.experiments.store import PartContent

PLAIN = {"metrics": {"gini": {}, "relevance_mass_accuracy": {}, "pixel_flipping": {"region": 3, "steps": 2}}}
NETWORK = """\
import torch

def build():
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 6, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(6, 8, 3, padding=1), torch.nn.ReLU(),
        torch.nn.Conv2d(8, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(2),
        torch.nn.Flatten(), torch.nn.Linear(32, 4),
    )
"""


def world(folder: Path, samples: int = 10, **changes: Any) -> Config:
    """A config of `samples` arrays 3 × 12 × 12 with masks and labels, and a small CNN; all files in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    masks = np.zeros((samples, 12, 12), bool)
    masks[:, 3:9, 4:10] = True
    inputs = rng.normal(size=(samples, 3, 12, 12)).astype(np.float32)
    np.savez(folder / "data.npz", inputs=inputs, masks=masks, labels=rng.integers(0, 4, samples))
    (folder / "net.py").write_text(NETWORK)
    table: dict[str, Any] = {
        "name": "tiny",
        "data": {"kind": "arrays", "root": str(folder / "data.npz")},
        "model": {"name": f"{folder / 'net.py'}:build"},
        "p": [0.0, 0.1, 0.3, 0.6, 0.9],
        "part_size": 3,
        "batch_size": 2,
        "metrics": {
            "gini": {},
            "entropy": {},
            "nonzero": {},
            "relevance_mass_accuracy": {},
            "relevance_mass_accuracy.absolute": {"version": "absolute"},
            "pointing_game": {},
            "score_kept": {},
            "local_lipschitz": {"samples": 2, "limit": 4, "p": [0.3]},
            "local_lipschitz.max": {"samples": 2, "limit": 4, "p": [0.3], "normalise": "max"},
            "max_sensitivity": {"samples": 2, "limit": 1},
            "pixel_flipping": {"region": 3, "steps": 4, "limit": 5, "p": [0.3, 0.9]},
            "pixel_flipping.probability": {
                "region": 3, "steps": 4, "limit": 5, "p": [0.3, 0.9], "score_as": "probability",
            },
        },
        "maps": {"limit": 4, "p": [0.3]},
    }  # fmt: skip
    return Config.from_dict(table).changed(**changes)


def plain_world(folder: Path, samples: int = 12, **changes: object) -> Config:
    """A world whose parts take some ten milliseconds."""
    table = {**world(folder, samples).to_dict(), **PLAIN, "p": [0.0, 0.3], "part_size": 1, "batch_size": 1}
    return Config.from_dict(table).changed(**changes)


def poisonous(folder: Path, samples: int, deadly: str) -> Config:
    """A world whose network does `deadly` where a sample's first value is huge."""
    config = plain_world(folder, samples)
    network = folder / "net.py"
    inner = network.read_text().replace("def build", "def inner")
    network.write_text(
        f"import os, time\n{inner}\n"
        "class Network(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.inner = inner()\n"
        "    def forward(self, x):\n"
        f"        if (x[0, 0, 0, 0] > 1e6).item():\n            {deadly}\n"
        "        return self.inner(x)\n"
        "def build():\n    torch.manual_seed(0)\n    return Network()\n"
    )
    return config


def poison(folder: Path, *samples: int) -> None:
    """Makes the first value of some samples huge."""
    with np.load(folder / "data.npz") as stored:
        arrays = dict(stored)
    arrays["inputs"][list(samples), 0, 0, 0] = 1e7
    np.savez(folder / "data.npz", **arrays)


def held_up(folder: Path, samples: int, free: int) -> tuple[Config, Path]:
    """A world whose parts are held up from part `free` on, until the file that is returned is removed."""
    held = folder / "held"
    config = poisonous(folder, samples, f"while os.path.exists({str(held)!r}): time.sleep(0.02)")
    poison(folder, *range(free, samples))
    held.touch()
    return config, held


def same(one: Results, other: Results) -> None:
    """Both hold the same tables, and the same parts to the byte."""
    assert one.complete
    assert other.complete
    for table in ("samples", "scores", "curves"):
        pd.testing.assert_frame_equal(getattr(one, table), getattr(other, table))
    for folder in ("parts", "maps"):
        assert one.store.place.names(folder) == other.store.place.names(folder)


def made_part(config: Config, index: int, seed: int = 0) -> PartContent:
    """A part of random numbers."""
    rng = np.random.default_rng([seed, index])
    rows = ScoreRows()
    for sample in config.part(index):
        rows.facts[sample] = SampleFacts(sample, f"s{sample}", 1 if sample else None, 1, 2.5)
        for variant, p in config.cells:
            rows.add(sample, variant, p, "gini", float(rng.random()))
        rows.add(sample, "LRP", 0.0, "pixel_flipping_auc", 0.5, [0.0, 1.0], [1.0, 0.25], [1.0, 0.75])
    kept = [s for s in config.part(index) if config.maps is not None and config.maps.covers(s, 0)]
    cells = [cell for cell in config.cells if config.maps is not None and config.maps.covers(0, cell[1])]
    maps = {cell: rng.random((len(kept), 4, 4), np.float32) for cell in cells}
    drawn = np.zeros((len(kept), 4, 4, 3), np.uint8)
    return PartContent(
        rows.to_parquet({"part": index}), StoredMaps(kept, maps, drawn, None).to_hdf5() if kept else None
    )
