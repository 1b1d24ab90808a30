"""Sweeps over data, models, variants and proportions, and their reports.

- the description of a sweep: `Config` (with `Data`, `Model`, `Metric`, `Maps`), `preset`
- run it, or the missing parts of it: `sweep`
- its results: `Results`
- settings for one's own model: `Candidate`, `Tuned` (`plrp.tune`)

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
    from .tuning import Candidate, Tuned

__all__ = [
    "PRESETS", "VARIANTS", "Bucket", "Candidate", "Config", "ConfigChanged", "ConfigError", "Data", "DiskFull",
    "Folder", "Maps", "Metric", "Model", "PartsMissing", "Place", "Results", "RunError", "Store", "Tuned", "preset",
    "sweep",
]  # fmt: skip

__getattr__, __dir__ = lazily(__name__)
