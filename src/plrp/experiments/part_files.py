"""The tables of a sweep: how scores, curves and maps of a part become bytes, and come back.

A part is one flat Parquet table, a row per sample, variant, p and metric, with the sample's facts repeated in every row
(Parquet stores repetitions once). Flipping curves stand in the row of their area. So any tool reads a run as it is:
`duckdb "select variant, p, metric, avg(value) from 'RUN/parts/*.parquet' group by all"`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
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
    """What is known of a sample before it is explained: `label` None where there is none."""

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
    """The results of a part while they are gathered."""

    facts: dict[int, SampleFacts] = field(default_factory=dict)
    sample: list[int] = field(default_factory=list)
    variant: list[str] = field(default_factory=list)
    p: list[float] = field(default_factory=list)
    metric: list[str] = field(default_factory=list)
    value: list[float] = field(default_factory=list)
    share: list[list[float] | None] = field(default_factory=list)
    most: list[list[float] | None] = field(default_factory=list)
    least: list[list[float] | None] = field(default_factory=list)

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
        for column, entry in zip(
            (self.sample, self.variant, self.p, self.metric, self.value, self.share, self.most, self.least),
            (sample, variant, p, metric, value, share, most, least),
            strict=True,
        ):
            column.append(entry)  # type: ignore[attr-defined]

    def extend(self, other: ScoreRows) -> None:
        """Add the rows of another batch."""
        self.facts.update(other.facts)
        for name in ("sample", "variant", "p", "metric", "value", "share", "most", "least"):
            getattr(self, name).extend(getattr(other, name))

    def table(self, metadata: dict[str, Any]) -> pa.Table:
        """The rows in order of sample, then as they were added."""
        import pyarrow as pa

        order = np.argsort(np.array(self.sample, np.int64), kind="stable")
        facts = [self.facts[self.sample[i]] for i in order]

        def taken(column: list[Any]) -> list[Any]:
            return [column[i] for i in order]

        words = pa.dictionary(pa.int32(), pa.string())
        curve = pa.list_(pa.float64())
        return pa.table(
            {
                "sample": pa.array(taken(self.sample), pa.int64()),
                "name": pa.array([f.name for f in facts], pa.string()).cast(words),
                "label": pa.array([f.label for f in facts], pa.int64()),
                "target": pa.array([f.target for f in facts], pa.int64()),
                "score": pa.array([f.score for f in facts], pa.float64()),
                "correct": pa.array([f.correct for f in facts], pa.bool_()),
                "variant": pa.array(taken(self.variant), pa.string()).cast(words),
                "p": pa.array(taken(self.p), pa.float64()),
                "metric": pa.array(taken(self.metric), pa.string()).cast(words),
                "value": pa.array(taken(self.value), pa.float64()),
                "flipped_share": pa.array(taken(self.share), curve),
                "curve_most": pa.array(taken(self.most), curve),
                "curve_least": pa.array(taken(self.least), curve),
            },
            metadata={"plrp": json.dumps(metadata, sort_keys=True)},
        )

    def to_parquet(self, metadata: dict[str, Any]) -> bytes:
        """The same as the bytes of a Parquet file."""
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
    if not tables:
        tables = [ScoreRows().table({})]
    whole = pa.concat_tables(tables).unify_dictionaries()
    flat = whole.select([*SAMPLE_COLUMNS, "variant", "p", "metric", "value"]).to_pandas()
    flat["label"] = whole["label"].to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
    flat["correct"] = whole["correct"].to_pandas(types_mapper={pa.bool_(): pd.BooleanDtype()}.get)
    for column in ("name", "variant", "metric"):
        flat[column] = flat[column].astype(str)
    samples = flat[list(SAMPLE_COLUMNS)].drop_duplicates("sample").sort_values("sample", ignore_index=True)
    scores = flat[list(SCORE_COLUMNS)].sort_values("sample", kind="stable", ignore_index=True)
    return samples, scores, _curves(whole)


def _curves(whole: pa.Table) -> pd.DataFrame:
    import pandas as pd
    import pyarrow.compute as pc

    rows = whole.filter(pc.is_valid(whole["flipped_share"]))
    columns: dict[str, list[Any]] = {name: [] for name in CURVE_COLUMNS}
    for row in rows.select(
        ["sample", "variant", "p", "metric", "flipped_share", "curve_most", "curve_least"]
    ).to_pylist():
        for order in ("most", "least"):
            curve = row[f"curve_{order}"]
            if curve is None:
                continue
            for step, (share, score) in enumerate(zip(row["flipped_share"], curve, strict=True)):
                metric = row["metric"].replace("pixel_flipping_auc", "pixel_flipping")
                entry = (row["sample"], row["variant"], row["p"], metric, order, step, share, score)
                for column, value in zip(columns.values(), entry, strict=True):
                    column.append(value)
    return pd.DataFrame(columns).sort_values("sample", kind="stable", ignore_index=True)


# -- maps


@dataclass(frozen=True)
class StoredMaps:
    """The maps of a part: `maps[cell]` (sample, *space) of the samples `samples`, and what they lie on.

    `inputs` is (sample, height, width, 3) uint8 for photographs, (sample, 4, position) uint8 for DNA, else float32
    (sample, ...); `masks` (sample, *space) bool, or None.
    """

    samples: list[int]
    maps: dict[tuple[str, float], npt.NDArray[np.float32]]
    inputs: npt.NDArray[Any]
    masks: npt.NDArray[np.bool_] | None

    def to_hdf5(self) -> bytes:
        """As the bytes of an HDF5 file: one compressed chunk per map, so that one is read without the others."""
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
                    file.create_dataset(
                        name, data=values, chunks=(1, *values.shape[1:]), compression="gzip", shuffle=True
                    )
        return sink.getvalue()
