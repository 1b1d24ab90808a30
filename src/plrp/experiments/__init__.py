"""Sweeps over data, models, variants and proportions, and their reports.

- the description of a sweep: `Config` (with `Data`, `Model`, `Metric`, `Maps`), `preset`
- run it, or the missing parts of it: `sweep`
- its results: `Results`

`pip install 'plrp[experiments]'`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plrp.lazy import lazily
from plrp.runs.places import Bucket, DiskFull, Folder, Place, RunError
from plrp.runs.run import ConfigChanged

if TYPE_CHECKING:
    from .config import VARIANTS, Config, ConfigError, Data, Maps, Metric, Model
    from .presets import PRESETS, preset
    from .results import Results
    from .store import PartsMissing, Store
    from .sweeps import sweep

__all__ = [
    "PRESETS",
    "VARIANTS",
    "Bucket",
    "Config",
    "ConfigChanged",
    "ConfigError",
    "Data",
    "DiskFull",
    "Folder",
    "Maps",
    "Metric",
    "Model",
    "PartsMissing",
    "Place",
    "Results",
    "RunError",
    "Store",
    "preset",
    "sweep",
]

__getattr__, __dir__ = lazily(__name__)
