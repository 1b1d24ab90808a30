"""The results of a sweep, read from its folder: tables for pandas, maps one by one."""

from __future__ import annotations

import io
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from plrp.runs.places import Place, RunError

from .config import Config
from .networks import training
from .part_files import read_parquet, split
from .store import PartNames, Store

if TYPE_CHECKING:
    import pandas as pd


class Results:
    """What a sweep has measured so far. Damaged parts count as missing.

    - `config`: the resolved config as plain data (`settings` is the same as a `Config`);
    - `versions`: package versions, git commit, seeds, and every start of the sweep;
    - `samples`: sample, name, label (null where unknown), target, score, correct (null where there is no label);
    - `scores`: sample, variant, p, metric, value; plain LRP stands at p = 0, which all variants are there;
    - `curves`: pixel flipping: sample, variant, p, metric, order ("most" or "least" relevant first), step, share of the
      regions overwritten, score over the unperturbed one;
    - `unhealthy`: variant, p, how many explanations are unhealthy, of how many;
    - `missing`: indices of the parts that are not there.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.settings: Config = store.config()
        self._found: dict[int, PartNames] = store.find(self.settings)
        self._open: tuple[int, Any] | None = None

    @classmethod
    def load(cls, path: str | Path | Place) -> Results:
        """The results in a run's folder."""
        return cls(Store(path))

    @property
    def name(self) -> str:
        """The sweep's name."""
        return self.settings.name

    @property
    def config(self) -> dict[str, Any]:
        """The resolved config, as plain data."""
        return self.settings.to_dict()

    @property
    def kind(self) -> str:
        """What the samples are: `"image"`, `"dna"` or `"array"`."""
        return {"dna": "dna", "simulated-dna": "dna", "arrays": "array"}.get(self.settings.data.kind, "image")

    @cached_property
    def versions(self) -> dict[str, Any]:
        """Package versions, git commit, seeds, and every start of the sweep."""
        return self.store.manifest()

    @property
    def training(self) -> dict[str, Any] | None:
        """How the run's own network was trained, and how well; None where none was."""
        return training(self.store)

    @cached_property
    def _tables(self) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
        contents = {index: self.store.read(found.scores) for index, found in self._found.items()}
        self._found = {index: found for index, found in self._found.items() if contents[index] is not None}
        return split(read_parquet(content) for content in contents.values() if content is not None)

    @property
    def samples(self) -> pd.DataFrame:
        """One row per sample."""
        return self._tables[0]

    @property
    def scores(self) -> pd.DataFrame:
        """One row per sample, variant, p and metric."""
        return self._tables[1]

    @cached_property
    def unhealthy(self) -> pd.DataFrame:
        """Explanations that should not be believed as they are: variant, p, unhealthy (how many), explanations (of how
        many that were judged; runs of older versions judged none). One row per variant and p that has any.
        """
        judged = self.scores[self.scores["metric"] == "unhealthy"]
        counts = judged.groupby(["variant", "p"], sort=False)["value"].agg(unhealthy="sum", explanations="count")
        counts = counts[counts["unhealthy"] > 0].astype(int)
        return counts.reset_index()

    @property
    def curves(self) -> pd.DataFrame:
        """One row per point of a flipping curve."""
        return self._tables[2]

    @property
    def missing(self) -> list[int]:
        """Parts that are not there yet, or damaged."""
        _ = self._tables  # finds the damaged ones
        return [index for index in range(self.settings.parts) if index not in self._found]

    @property
    def complete(self) -> bool:
        """Whether every part is there."""
        return not self.missing

    # -- maps

    @property
    def has_maps(self) -> bool:
        """Whether any relevance maps were kept."""
        return any(found.maps is not None for found in self._found.values())

    @cached_property
    def mapped(self) -> list[int]:
        """The samples whose maps were kept."""
        kept = self.settings.maps
        if kept is None:
            return []
        return [
            s
            for index, found in self._found.items()
            if found.maps is not None
            for s in self.settings.part(index)
            if kept.covers(s, 0)
        ]

    @property
    def map_cells(self) -> list[tuple[str, float]]:
        """The (variant, p) whose maps were kept."""
        kept = self.settings.maps
        return [] if kept is None else [cell for cell in self.settings.cells if kept.covers(0, cell[1])]

    def maps(self, sample: int, variant: str, p: float) -> npt.NDArray[np.float32]:
        """The relevance of a sample, (height, width) or (position,): colours or letters summed."""
        file, row = self._file(sample)
        if p == 0:
            variant = "LRP"
        for cell, (name, share) in enumerate(zip(file["variant"].asstr()[:], file["p"][:], strict=True)):
            if (name, share) == (variant, p):
                return np.asarray(file["maps"][row, cell])
        kept = ", ".join(f"{v} {q:g}" for v, q in self.map_cells)
        raise RunError(f"no map of {variant} at p = {p:g} was kept in {self.store} (there are: {kept}).")

    def inputs(self, sample: int) -> npt.NDArray[Any]:
        """What was explained: a picture (height, width, 3) uint8, letters (4, position) uint8, or the array itself."""
        file, row = self._file(sample)
        return np.asarray(file["inputs"][row])

    def mask(self, sample: int) -> npt.NDArray[np.bool_] | None:
        """The ground truth of a sample, bool (height, width) or (position,); None where there is none."""
        file, row = self._file(sample)
        return np.asarray(file["masks"][row]) if "masks" in file else None

    def _file(self, sample: int) -> tuple[Any, int]:
        """The open HDF5 file that holds a sample, and its row there; one file is kept open."""
        if sample not in self.mapped:
            kept = f"of samples {self.mapped[0]} to {self.mapped[-1]}" if self.mapped else "of no sample"
            raise RunError(f"no maps of sample {sample} in {self.store} (kept {kept}): set [maps] in the config.")
        index = sample // self.settings.part_size
        if self._open is None or self._open[0] != index:
            import h5py

            content = self.store.read(self._found[index].maps or "")
            if content is None:
                raise RunError(f"the maps of part {index} in {self.store} are damaged: start the sweep again.")
            self._open = (index, h5py.File(io.BytesIO(content), "r"))
        file = self._open[1]
        return file, int(np.flatnonzero(file["samples"][:] == sample)[0])

    def __repr__(self) -> str:
        done = self.settings.parts - len(self.missing)
        return f"Results({self.name}: {done} of {self.settings.parts} parts, {len(self.samples)} samples)"


def unhealthy_sentence(results: Results) -> str:
    """How many explanations of a run are unhealthy; an empty text where none is."""
    found = results.unhealthy
    if not len(found):
        return ""
    judged = int((results.scores["metric"] == "unhealthy").sum())
    return (
        f"{int(found['unhealthy'].sum()):,} of {judged:,} explanations are unhealthy (relevance exploded or vanished)"
    )
