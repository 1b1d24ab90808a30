"""The results of a sweep, read from its folder: tables for pandas, and single maps."""

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
from .store import Store

if TYPE_CHECKING:
    import pandas as pd


class MapReader:
    """The relevance maps that a sweep kept, read one by one."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.settings: Config = store.config()
        self.run = store.run(self.settings)
        self._scores = store.find(self.settings)  # names of files, by part
        self._maps = {index: name for index, name in self.run.names("maps").items() if index in self._scores}
        self._open: tuple[int, Any] | None = None

    @property
    def has_maps(self) -> bool:
        """Whether any relevance maps were kept."""
        return bool(self._maps)

    @cached_property
    def mapped(self) -> list[int]:
        """The samples whose maps were kept."""
        asked = self.settings.maps
        samples = (sample for index in self._maps for sample in self.settings.part(index))
        return [] if asked is None else [sample for sample in samples if asked.covers(sample, 0)]

    @property
    def map_cells(self) -> list[tuple[str, float]]:
        """The (variant, p) whose maps were kept."""
        asked = self.settings.maps
        return [] if asked is None else [cell for cell in self.settings.cells if asked.covers(0, cell[1])]

    def maps(self, sample: int, variant: str, p: float) -> npt.NDArray[np.float32]:
        """The relevance of a sample, (height, width) or (position,): colours or letters summed."""
        file, row = self._file(sample)
        if p == 0:
            variant = "LRP"
        for cell, (name, share) in enumerate(zip(file["variant"].asstr()[:], file["p"][:], strict=True)):
            if (name, share) == (variant, p):
                return np.asarray(file["maps"][row, cell])
        cells = ", ".join(f"{v} {q:g}" for v, q in self.map_cells)
        raise RunError(f"no map of {variant} at p = {p:g} was kept in {self.store} (there are: {cells}).")

    def inputs(self, sample: int) -> npt.NDArray[Any]:
        """The input: a picture (height, width, 3) uint8, letters (4, position) uint8, or the array itself."""
        file, row = self._file(sample)
        return np.asarray(file["inputs"][row])

    def mask(self, sample: int) -> npt.NDArray[np.bool_] | None:
        """The ground truth of a sample, bool (height, width) or (position,); None where there is none."""
        file, row = self._file(sample)
        return np.asarray(file["masks"][row]) if "masks" in file else None

    def _file(self, sample: int) -> tuple[Any, int]:
        """The HDF5 file that holds a sample, and its row there; one file stays open."""
        if sample not in self.mapped:
            others = f"of samples {self.mapped[0]} to {self.mapped[-1]}" if self.mapped else "of no sample"
            raise RunError(f"no maps of sample {sample} in {self.store} (kept {others}): set [maps] in the config.")
        index = sample // self.settings.part_size
        if self._open is None or self._open[0] != index:
            import h5py

            content = self.run.content(self._maps[index])
            if content is None:
                raise RunError(f"the maps of part {index} in {self.store} are damaged: start the sweep again.")
            self._open = (index, h5py.File(io.BytesIO(content), "r"))
        file = self._open[1]
        return file, int(np.flatnonzero(file["samples"][:] == sample)[0])


class Results(MapReader):
    """The results of a sweep so far. Damaged parts count as missing.

    `name` is the sweep's; `config` the resolved config as plain data (`settings` is the same as a `Config`); `kind` is
    that of the samples: `"image"`, `"dna"` or `"array"`.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.name, self.config = self.settings.name, self.settings.to_dict()
        kinds = {"dna": "dna", "simulated-dna": "dna", "arrays": "array"}
        self.kind = kinds.get(self.settings.data.kind, "image")

    @classmethod
    def load(cls, path: str | Path | Place) -> Results:
        """The results in a run's folder."""
        return cls(Store(path))

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
        contents = {index: self.run.content(name) for index, name in self._scores.items()}
        whole = {index: content for index, content in contents.items() if content is not None}
        self._scores = {index: self._scores[index] for index in whole}
        return split(map(read_parquet, whole.values()))

    @property
    def samples(self) -> pd.DataFrame:
        """One row per sample: sample, name, label (null where unknown), target, score, correct (null where there is no
        label).
        """
        return self._tables[0]

    @property
    def scores(self) -> pd.DataFrame:
        """sample, variant, p, metric, value; plain LRP stands at p = 0, which all variants are there."""
        return self._tables[1]

    @property
    def curves(self) -> pd.DataFrame:
        """One row per point of a flipping curve: sample, variant, p, metric, order ("most" or "least" relevant first),
        step, share of the regions overwritten, score over the unperturbed one.
        """
        return self._tables[2]

    @cached_property
    def broken(self) -> pd.DataFrame:
        """Explanations whose arithmetic broke: variant, p, broken (how many), explanations (of how many that were
        looked at; older versions did not look). One row per variant and p that has any.
        """
        looked_at = self.scores[self.scores["metric"] == "broken"]
        counts = looked_at.groupby(["variant", "p"], sort=False)["value"].agg(broken="sum", explanations="count")
        return counts[counts["broken"] > 0].astype(int).reset_index()

    @property
    def missing(self) -> list[int]:
        """Parts that do not exist yet, or are damaged."""
        _ = self._tables  # finds the damaged parts
        return [index for index in range(self.settings.parts) if index not in self._scores]

    @property
    def complete(self) -> bool:
        """Whether every part exists."""
        return not self.missing

    def __repr__(self) -> str:
        done = self.settings.parts - len(self.missing)
        return f"Results({self.name}: {done} of {self.settings.parts} parts, {len(self.samples)} samples)"


def broken_sentence(results: Results) -> str:
    """In how many explanations of a run, with any, the arithmetic broke."""
    count, every = int(results.broken["broken"].sum()), int((results.scores["metric"] == "broken").sum())
    return f"the arithmetic broke in {count:,} of {every:,} explanations (not finite, or grown by pruning)"
