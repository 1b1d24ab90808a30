"""The files of a part of a sweep: scores and curves as Parquet, maps as HDF5.

A part is one flat Parquet table, a row per sample, variant, p and metric, with the sample's facts repeated in every row
(Parquet stores repetitions once). Flipping curves stand in the row of their area. So any tool reads a run without plrp:
`duckdb "select variant, p, metric, avg(value) from 'RUN/parts/*.parquet' group by all"`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

SAMPLE_COLUMNS = ("sample", "name", "label", "target", "score", "correct")
SCORE_COLUMNS = ("sample", "variant", "p", "metric", "value")
CURVE_COLUMNS = ("sample", "variant", "p", "metric", "order", "step", "share", "score")


@dataclass(frozen=True)
class SampleFacts:
    """The facts of a sample that need no explanation of it; `label` is None where it is not known."""

    sample: int
    name: str
    label: int | None
    target: int
    score: float

    @property
    def correct(self) -> bool | None:
        """Whether the winning class is the label."""
        return None if self.label is None else self.label == self.target


@dataclass
class ScoreRows:
    """The results of a part while they are gathered: facts by sample, and one row per score."""

    facts: dict[int, SampleFacts] = field(default_factory=dict)
    scores: list[dict[str, Any]] = field(default_factory=list)

    def add(
        self,
        sample: int,
        variant: str,
        p: float,
        metric: str,
        value: float,
        share: list[float] | None = None,
        most: list[float] | None = None,
        least: list[float] | None = None,
    ) -> None:
        """One score, with its flipping curves where it is an area under one."""
        row = {"sample": sample, "variant": variant, "p": p, "metric": metric, "value": value}
        self.scores.append({**row, "flipped_share": share, "curve_most": most, "curve_least": least})

    def extend(self, other: ScoreRows) -> None:
        """Add the rows of another batch."""
        self.facts.update(other.facts)
        self.scores.extend(other.scores)

    def table(self, metadata: dict[str, Any]) -> pa.Table:
        """The rows in order of sample, then as they were added."""
        import pyarrow as pa

        words = pa.dictionary(pa.int32(), pa.string())
        curve = pa.list_(pa.float64())
        kinds = {"sample": pa.int64(), "name": words, "label": pa.int64(), "target": pa.int64(), "score": pa.float64()}
        kinds |= {"correct": pa.bool_(), "variant": words, "p": pa.float64(), "metric": words, "value": pa.float64()}
        kinds |= {"flipped_share": curve, "curve_most": curve, "curve_least": curve}
        rows = [
            {**vars(self.facts[row["sample"]]), "correct": self.facts[row["sample"]].correct, **row}
            for row in sorted(self.scores, key=itemgetter("sample"))
        ]
        schema = pa.schema(list(kinds.items()), metadata={"plrp": json.dumps(metadata, sort_keys=True)})
        return pa.Table.from_pylist(rows, schema)

    def to_parquet(self, metadata: dict[str, Any]) -> bytes:
        """The table as the bytes of a Parquet file."""
        import pyarrow.parquet as pq

        sink = io.BytesIO()
        pq.write_table(self.table(metadata), sink, compression="zstd")
        return sink.getvalue()


def read_parquet(content: bytes) -> pa.Table:
    """The table of a part."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    return pq.read_table(pa.BufferReader(content))


def split(parts: Iterable[pa.Table]) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Samples, scores and curves of parts, as three tidy tables."""
    import pandas as pd
    import pyarrow as pa

    tables = [table.replace_schema_metadata(None) for table in parts]
    whole = pa.concat_tables(tables or [ScoreRows().table({})]).unify_dictionaries()
    flat = whole.select([*SAMPLE_COLUMNS, "variant", "p", "metric", "value"]).to_pandas()
    flat["label"] = whole["label"].to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
    flat["correct"] = whole["correct"].to_pandas(types_mapper={pa.bool_(): pd.BooleanDtype()}.get)
    for column in ("name", "variant", "metric"):
        flat[column] = flat[column].astype(str)
    samples = flat[list(SAMPLE_COLUMNS)].drop_duplicates("sample").sort_values("sample", ignore_index=True)
    scores = flat[list(SCORE_COLUMNS)].sort_values("sample", kind="stable", ignore_index=True)
    return samples, scores, _curves(whole)


def _curves(whole: pa.Table) -> pd.DataFrame:
    """One row per point of a flipping curve, as `CURVE_COLUMNS`."""
    import pandas as pd
    import pyarrow.compute as pc

    points = [
        (row["sample"], row["variant"], row["p"], metric, order, step, share, score)
        for row in whole.filter(pc.is_valid(whole["flipped_share"])).to_pylist()
        for metric in [row["metric"].replace("pixel_flipping_auc", "pixel_flipping")]
        for order in ("most", "least")
        if (curve := row[f"curve_{order}"]) is not None
        for step, (share, score) in enumerate(zip(row["flipped_share"], curve, strict=True))
    ]
    return pd.DataFrame(points, columns=CURVE_COLUMNS).sort_values("sample", kind="stable", ignore_index=True)


# -- maps


@dataclass(frozen=True)
class StoredMaps:
    """The maps of a part: `maps[cell]` (sample, *space) of the samples `samples`, and their inputs.

    `inputs` is (sample, height, width, 3) uint8 for photographs, (sample, 4, position) uint8 for DNA, else float32
    (sample, ...); `masks` (sample, *space) bool, or None.
    """

    samples: list[int]
    maps: dict[tuple[str, float], npt.NDArray[np.float32]]
    inputs: npt.NDArray[Any]
    masks: npt.NDArray[np.bool_] | None

    @classmethod
    def joined(cls, batches: list[StoredMaps]) -> StoredMaps:
        """The maps of several batches as one."""
        masks = [k.masks for k in batches if k.masks is not None]
        samples = [sample for k in batches for sample in k.samples]
        maps = {cell: np.concatenate([k.maps[cell] for k in batches]) for cell in batches[0].maps}
        return cls(samples, maps, np.concatenate([k.inputs for k in batches]), np.concatenate(masks) if masks else None)

    def to_hdf5(self) -> bytes:
        """The maps as the bytes of an HDF5 file: one compressed chunk per map, so that a reader loads single maps."""
        import h5py

        sink = io.BytesIO()
        with h5py.File(sink, "w") as file:
            cells = list(self.maps)
            stacked = np.stack([self.maps[cell] for cell in cells], 1).astype(np.float32)  # (sample, cell, *space)
            one = (1, 1, *stacked.shape[2:])
            file.create_dataset("maps", data=stacked, chunks=one, compression="gzip", shuffle=True)
            file["samples"] = np.array(self.samples, np.int64)
            file["variant"] = [variant for variant, _ in cells]
            file["p"] = np.array([p for _, p in cells], np.float64)
            for name, values in (("inputs", self.inputs), ("masks", self.masks)):
                if values is not None:
                    one = (1, *values.shape[1:])
                    file.create_dataset(name, data=values, chunks=one, compression="gzip", shuffle=True)
        return sink.getvalue()
