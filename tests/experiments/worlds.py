"""A small world for sweeps: a network in a file and a few arrays, so that a part takes a fraction of a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from plrp.experiments import Config

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
