"""Files for other tools: TF-MoDISco, genome browsers (BED, bedGraph, bigWig), data frames.

A base in several intervals has several values. `overlap` says which one a track shows: their `"mean"`, their `"sum"`,
or the `"strongest"`, the one farthest from 0.
"""

from __future__ import annotations

import io
import zipfile
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import groupby, islice, pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from plrp.errors import UsageError, needed
from plrp.files import new_file
from plrp.runs.memory import read_header

from .seqlets import Match, Seqlets
from .sequences import Floats, Genome, Interval, Ints, Sequences, Values, on_genome, tab_line

Overlap: TypeAlias = Literal["mean", "sum", "strongest"]

ROWS = 1024
"""Sequences that are held in memory at a time."""


# -- TF-MoDISco


def write_npz(path: str | Path, **arrays: Any) -> None:
    """Write an NPZ file, whole or not at all; the same arrays give the same bytes, and memory maps are not loaded."""
    with new_file(path) as part, part.open("wb") as stream:
        np.savez_compressed(stream, **arrays)


def write_npz_rows(path: str | Path, shape: tuple[int, ...], kind: Any, parts: Iterable[npt.NDArray[Any]]) -> None:
    """Write `arr_0` of an NPZ file, whose rows come in parts: memory holds one part, and the disk no other file."""
    header = {"descr": np.lib.format.dtype_to_descr(np.dtype(kind)), "fortran_order": False, "shape": shape}
    with (
        new_file(path) as new,
        zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("arr_0.npy", "w", force_zip64=True) as stream,
    ):
        np.lib.format.write_array_header_1_0(stream, header)
        for rows in parts:
            stream.write(np.ascontiguousarray(rows, kind).data)


def npz_bytes(**arrays: Any) -> bytes:
    """The content of an NPZ file."""
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


@contextmanager
def npz_rows(path: str | Path, count: int) -> Iterator[tuple[tuple[int, ...], Iterator[npt.NDArray[Any]]]]:
    """The shape of the array in an NPZ file, and an iterator over its rows that reads `count` of them at a time."""
    with zipfile.ZipFile(path) as archive, archive.open("arr_0.npy") as stream:
        shape, by_column, kind = read_header(stream)
        if by_column or kind.hasobject or not shape:
            raise ValueError(f"{path}: arr_0 is not an array of numbers, row by row.")

        def rows() -> Iterator[npt.NDArray[Any]]:
            for begin in range(0, shape[0], count):
                some = min(count, shape[0] - begin), *shape[1:]
                content = stream.read(int(np.prod(some)) * kind.itemsize)
                yield np.frombuffer(content, kind).reshape(some)

        yield shape, rows()


def check_modisco(onehot: npt.NDArray[Any], relevance: npt.NDArray[Any]) -> None:
    """Refuse arrays that TF-MoDISco cannot read."""
    if onehot.shape != relevance.shape or onehot.ndim != 3 or onehot.shape[1] != 4:
        raise ValueError(
            f"TF-MoDISco reads two arrays (sequence, 4, position) of one shape; got {onehot.shape}, {relevance.shape}."
        )


def save_modisco(folder: str | Path, onehot: npt.NDArray[Any], relevance: npt.NDArray[Any]) -> tuple[Path, Path]:
    """Write the input of TF-MoDISco: `onehot.npz` and `attributions.npz`, arrays `arr_0` (sequence, 4, position).

    modisco motifs -s onehot.npz -a attributions.npz -n 2000 -w 250 -o modisco.h5

    TF-MoDISco expects *hypothetical* scores, one for each letter at each position, and picks those of the present
    letters itself. `explain_sequences(..., hypothetical=True)` gives them as `attribution.Hypothetical` defines them.
    Ordinary relevance, zero for absent letters, works too, but then seqlets are compared by their actual letters only.
    """
    check_modisco(onehot, relevance)
    paths = Path(folder) / "onehot.npz", Path(folder) / "attributions.npz"
    write_npz(paths[0], arr_0=onehot.astype(np.int8))
    write_npz(paths[1], arr_0=relevance.astype(np.float32))
    return paths


def write_modisco_h5(path: str | Path, onehot: npt.NDArray[Any], relevance: npt.NDArray[Any]) -> None:
    """Write the input of TF-MoDISco's `-i`: `raw/seq` and `shap/seq`, (sequence, 4, position), as ChromBPNet does.

    `projected_shap/seq` has the relevance of the present letters.
    """
    check_modisco(onehot, relevance)
    pieces = ((onehot[k : k + ROWS], relevance[k : k + ROWS]) for k in range(0, len(onehot), ROWS))
    _write_h5(path, onehot.shape, pieces)


def _write_h5(
    path: str | Path, shape: tuple[int, ...], pieces: Iterable[tuple[npt.NDArray[Any], npt.NDArray[Any]]]
) -> None:
    """Write one-hot sequences and their relevance, (sequence, 4, position) in all, piece by piece."""
    with needed("HDF5 needs h5py", "experiments"):
        import h5py
    with new_file(path) as part, h5py.File(part, "w") as file:
        chunk = (max(1, min(shape[0], 64)), *shape[1:])
        kinds = {"raw/seq": np.int8, "shap/seq": np.float32, "projected_shap/seq": np.float32}
        arrays = [file.create_dataset(n, shape, kind, chunks=chunk, compression="gzip") for n, kind in kinds.items()]
        begin = 0
        for letters, scores in pieces:
            rows = slice(begin, begin := begin + len(letters))
            for array, values in zip(arrays, (letters, scores, scores * letters), strict=True):
                array[rows] = values


# -- stretches of sequences, and tables of bases


def write_seqlets(
    path: str | Path, seqlets: Seqlets, sequences: Sequences, matches: Sequence[Match] | None = None
) -> None:
    """Write seqlets as BED6+3: chrom, start, end, name, score, strand, relevance, p-value, sequence; sorted.

    Coordinates are genomic and on the plus strand if the sequences have intervals; otherwise the sequence's name stands
    for the chromosome. The name is the best JASPAR match, or else `seqlet`. The score is the relevance relative to the
    strongest seqlet, 0 to 1000, as browsers expect. The seventh column is the relevance itself, the eighth the match's
    p-value, the ninth the name of the sequence or interval.
    """
    strongest = float(np.abs(seqlets.score).max(initial=0)) or 1.0
    rows, places = [], sequences.places
    for k, (row, start, end) in enumerate(zip(seqlets.sequence, seqlets.start, seqlets.end, strict=True)):
        name, p, strand = "seqlet", ".", "."
        if matches is not None:
            name, p, strand = matches[k].motif.name, f"{matches[k].p:.3g}", matches[k].strand
        relevance = float(seqlets.score[k])
        score = round(1000 * abs(relevance) / strongest)
        rows.append((places[row], start, end, name, score, strand, f"{relevance:.6g}", p, sequences.names[row]))
    write_bed(path, rows)


def write_bed(path: str | Path, rows: Iterable[tuple[Any, ...]]) -> None:
    """Write stretches of sequences as a BED file, sorted, in coordinates of the genome's plus strand.

    A row has the interval of the sequence, start and end of the stretch within it, name, score, strand, other columns.
    """
    lines = []
    for place, start, end, name, score, strand, *more in rows:
        *where, turned = on_genome(place, start, end, strand)
        lines.append((*where, name, score, turned, *more))
    lines.sort(key=lambda line: line[:3])
    with new_file(path) as part:
        part.write_text("".join(tab_line(*line) for line in lines))


def base_table(sequences: Sequences, per_base: Sequence[npt.NDArray[Any]]) -> Any:
    """One row per base as a `pyarrow.Table`: name, position, base, relevance, and chrom, coordinate if known."""
    with needed("Parquet tables need pyarrow", "genomics"):
        import pyarrow as pa
    lengths = sequences.lengths
    columns: dict[str, Any] = {
        "name": pa.array(np.repeat(np.array(sequences.names, object), lengths)).dictionary_encode(),
        "position": np.concatenate([np.arange(n, dtype=np.int32) for n in lengths]) if len(lengths) else [],
        "base": pa.array(list("".join(sequences.letters)), pa.string()).dictionary_encode(),
        "relevance": np.concatenate(per_base).astype(np.float32) if len(lengths) else [],
    }
    if sequences.intervals is not None:
        coordinates = [
            np.arange(i.end - 1, i.start - 1, -1) if i.strand == "-" else np.arange(i.start, i.end)
            for i in sequences.intervals
        ]
        chroms = np.repeat(np.array([i.chrom for i in sequences.intervals], object), lengths)
        columns["chrom"] = pa.array(chroms).dictionary_encode()
        columns["coordinate"] = np.concatenate(coordinates)
    return pa.table(columns)


def write_parquet(path: str | Path, parts: Iterable[tuple[Sequences, Sequence[npt.NDArray[Any]]]]) -> None:
    """Write the `base_table` of each part as a row group of one Parquet file; memory holds one part at a time."""
    import pyarrow.parquet as pq

    writer = None
    with new_file(path) as temporary, ExitStack() as files:
        for sequences, per_base in parts:
            table = base_table(sequences, per_base)
            writer = writer or files.enter_context(pq.ParquetWriter(temporary, table.schema))
            writer.write_table(table)


def open_relevance(folder: str | Path) -> Any:
    """The table of relevance of a folder that `explain_file` wrote, a `pyarrow.parquet.ParquetFile`."""
    with needed("Reading relevance needs pyarrow", "genomics"):
        import pyarrow.parquet as pq
    file = Path(folder) / "relevance.parquet"
    if not file.is_file():
        raise UsageError(f"{file} is not there: finish `plrp genomics explain ... --out {folder}` first.")
    return pq.ParquetFile(file)


def count_sequences(folder: str | Path) -> int:
    """How many sequences a folder that `explain_file` wrote has."""
    batches = open_relevance(folder).iter_batches(columns=["position"], batch_size=1 << 20)
    return sum(int((batch.column(0).to_numpy() == 0).sum()) for batch in batches)


def read_relevance(
    folder: str | Path, batch: int = 512, count: int | None = None
) -> Iterator[tuple[Sequences, Values]]:
    """The sequences of a folder that `explain_file` wrote and their relevance per base, (sequence, position).

    They come in batches of one length, at most `batch` sequences each; `count`: only the first sequences.
    """
    rows = islice(_sequence_rows(open_relevance(folder)), count)
    for _, same_length in groupby(rows, key=lambda row: len(row[1])):
        while some := list(islice(same_length, batch)):
            names, letters, relevance, intervals = map(list, zip(*some, strict=True))
            places = None if intervals[0] is None else intervals
            yield Sequences(names, letters, str(folder), intervals=places), np.stack(relevance)


def _sequence_rows(file: Any) -> Iterator[tuple[str, str, Values, Interval | None]]:
    """Name, letters, relevance and place of each sequence; the rows of a sequence begin where `position` is 0."""
    located = "coordinate" in file.schema_arrow.names
    columns = ["name", "position", "base", "relevance", *(["chrom", "coordinate"] if located else [])]
    head: list[str] = []
    pieces: list[tuple[str, Values, Ints]] = []

    def finished() -> tuple[str, str, Values, Interval | None]:
        letters, relevance, coordinates = zip(*pieces, strict=True)
        interval = None
        if located:
            first, last = int(coordinates[0][0]), int(coordinates[-1][-1])
            start, end, strand = (first, last + 1, "+") if last >= first else (last, first + 1, "-")
            interval = Interval(head[1], start, end, head[0], strand=strand)
        return head[0], "".join(letters), np.concatenate(relevance), interval

    for batch in file.iter_batches(columns=columns, batch_size=1 << 18):
        letters = "".join(batch.column("base").dictionary_decode().to_pylist())
        position, relevance = (batch.column(name).to_numpy() for name in ("position", "relevance"))
        coordinates = batch.column("coordinate").to_numpy() if located else position
        starts = dict.fromkeys(np.flatnonzero(position == 0).tolist())
        for a, b in pairwise(dict.fromkeys([0, *starts, len(letters)])):
            if a in starts:
                if pieces:
                    yield finished()
                head = [batch.column(name)[a].as_py() for name in ("name", "chrom")[: 1 + located]]
                pieces = []
            pieces.append((letters[a:b], relevance[a:b], coordinates[a:b]))
    if pieces:
        yield finished()


# -- tracks along the genome


Track: TypeAlias = tuple[str, Ints, Ints, Floats]
"""A chromosome, and its runs of equal, non-zero values in order: 0-based starts, ends (half-open) and values."""


class Stretches:
    """Disjoint stretches of sequences or chromosomes, whose bases stand one after the other in arrays.

    `places` are intervals; `begin` says where the bases of each place begin in the arrays, and at last their number.
    """

    def __init__(self, places: Sequence[Interval]) -> None:
        self.places = places
        self.begin = np.cumsum([0, *(one.end - one.start for one in places)])
        self._order = sorted((one.chrom, one.start, one.end, row) for row, one in enumerate(places))

    def bases(self, chrom: str, start: int, end: int) -> slice | None:
        """Where the bases of an interval are in the arrays; None where the stretches do not have all of them."""
        place = bisect_right(self._order, (chrom, start, float("inf"))) - 1
        if place < 0:
            return None
        of_chrom, first, last, row = self._order[place]
        if of_chrom != chrom or last < end:
            return None
        begin = int(self.begin[row]) + start - first
        return slice(begin, begin + end - start)


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """Overlapping and touching intervals as one, which has the name of the first, by chromosome and start."""
    places: list[Interval] = []
    for one in sorted(intervals, key=attrgetter("chrom", "start")):
        if places and places[-1].chrom == one.chrom and one.start <= places[-1].end:
            places[-1] = replace(places[-1], end=max(places[-1].end, one.end))
        else:
            places.append(one)
    return places


class JoinedValues:
    """One value for each base, from values of intervals that may overlap."""

    def __init__(self, count: int, overlap: Overlap, kind: type[np.floating[Any]] = np.float64) -> None:
        if overlap not in get_args(Overlap):
            raise ValueError(f"overlap={overlap!r}: choose one of {', '.join(get_args(Overlap))}.")
        self.overlap = overlap
        self.total, self.times = np.zeros(count, kind), np.zeros(count, np.uint32)

    def add(self, bases: slice, values: npt.NDArray[Any]) -> None:
        """Join the values of an interval to the values of its bases; a NaN stays."""
        if self.overlap == "strongest":
            before = self.total[bases]
            self.total[bases] = np.where((np.abs(values) >= np.abs(before)) | np.isnan(values), values, before)
        else:
            self.total[bases] += values
        self.times[bases] += 1

    def values(self) -> npt.NDArray[Any]:
        """The value of each base; 0 where there was none."""
        return self.total / np.maximum(self.times, 1) if self.overlap == "mean" else self.total


def along_genome(
    intervals: Sequence[Interval], per_base: Iterable[npt.ArrayLike], overlap: Overlap = "mean"
) -> Iterator[Track]:
    """The relevance of intervals as one track, a chromosome at a time, ordered by name as the UCSC tools do it.

    `per_base` has one array (position,) per interval, in the direction of the interval's strand.
    """
    stretches = Stretches(merged(intervals))
    joined = JoinedValues(int(stretches.begin[-1]), overlap)
    for one, relevance in zip(intervals, per_base, strict=True):
        values, bases = np.asarray(relevance, np.float64), stretches.bases(one.chrom, one.start, one.end)
        if len(values) != one.end - one.start:
            raise ValueError(
                f"{one.chrom}:{one.start}-{one.end} has {one.end - one.start} bases, its relevance {len(values)}."
            )
        assert bases is not None
        joined.add(bases, values[::-1] if one.strand == "-" else values)
    every, begin = joined.values(), 0
    for chrom, places in groupby(stretches.places, key=attrgetter("chrom")):
        place = np.concatenate([np.arange(one.start, one.end) for one in places])
        value = every[begin : (begin := begin + len(place))]
        first = np.flatnonzero(np.r_[True, (np.diff(place) != 1) | (np.diff(value) != 0)])
        last = np.r_[first[1:], len(place)] - 1
        shown = value[first] != 0
        yield chrom, place[first][shown], place[last][shown] + 1, value[first][shown]


def write_bedgraph(
    path: str | Path, intervals: Sequence[Interval], per_base: Iterable[npt.ArrayLike], *, overlap: Overlap = "mean"
) -> None:
    """Write relevance along the genome as bedGraph: sorted, zeros left out, without a header, as UCSC's tools take it.

    `per_base` has one array (position,) per interval, in the direction of its strand.
    """
    bedgraph_of(path, along_genome(intervals, per_base, overlap))


def bedgraph_of(path: str | Path, tracks: Iterable[Track]) -> None:
    """Write a track as bedGraph."""
    with new_file(path) as part, part.open("w") as stream:
        for chrom, start, end, value in tracks:
            stream.writelines(tab_line(chrom, a, b, f"{v:.6g}") for a, b, v in zip(start, end, value, strict=True))


def bigwig_of(path: str | Path, tracks: Iterable[Track], lengths: Mapping[str, int]) -> None:
    """Write a track as bigWig; `lengths` has the length of every chromosome."""
    with needed("bigWig needs pyBigWig", "bigwig"):
        import pyBigWig
    tracks = list(tracks)
    for chrom, _, end, _ in tracks:
        if chrom not in lengths:
            raise UsageError(f"The genome has no chromosome {chrom}: give the one that the intervals refer to.")
        if len(end) and end[-1] > lengths[chrom]:
            raise UsageError(f"{chrom} has {lengths[chrom]} bases, the relevance reaches {end[-1]}.")
    with new_file(path) as part:
        file = pyBigWig.open(str(part), "w")
        try:
            file.addHeader([(chrom, lengths[chrom]) for chrom, *_ in tracks] or list(lengths.items())[:1])
            for chrom, start, end, value in tracks:
                if len(start):
                    file.addEntries([chrom] * len(start), start.tolist(), ends=end.tolist(), values=value.tolist())
        finally:
            file.close()


def run_tracks(folder: str | Path, overlap: Overlap) -> list[Track]:
    """The relevance of a folder that `explain_file` wrote, along the genome."""
    intervals: list[Interval] = []
    per_base: list[Values] = []
    for sequences, relevance in read_relevance(folder):
        if sequences.intervals is None:
            raise UsageError(f"{folder} has no coordinates: tracks need intervals (BED with --genome) as input.")
        intervals += sequences.intervals
        per_base.extend(relevance)
    return list(along_genome(intervals, per_base, overlap))


def export_run(
    folder: str | Path,
    *,
    bedgraph: str | Path | None = None,
    bigwig: str | Path | None = None,
    h5: str | Path | None = None,
    genome: str | Path | None = None,
    overlap: Overlap = "mean",
) -> list[Path]:
    """Write more files of a finished run; returns their paths. bigWig needs the `genome`, for chromosomes' lengths."""
    if bigwig is not None and genome is None:
        raise UsageError("A bigWig holds the lengths of chromosomes: give the genome (--genome).")
    tracks = [] if bedgraph is None and bigwig is None else run_tracks(folder, overlap)
    if bedgraph is not None:
        bedgraph_of(bedgraph, tracks)
    if bigwig is not None and genome is not None:
        bigwig_of(bigwig, tracks, Genome(genome).lengths)
    if h5 is not None:
        arrays = [Path(folder) / name for name in ("onehot.npz", "attributions.npz")]
        if not all(path.is_file() for path in arrays):
            raise UsageError(f"{folder} has no attributions.npz: TF-MoDISco needs sequences of one length.")
        with npz_rows(arrays[0], ROWS) as (shape, onehot), npz_rows(arrays[1], ROWS) as (other, relevance):
            if shape != other:
                raise UsageError(f"{arrays[0]} and {arrays[1]} are not of one run: explain the sequences again.")
            _write_h5(h5, shape, zip(onehot, relevance, strict=True))
    return [Path(path) for path in (bedgraph, bigwig, h5) if path is not None]
