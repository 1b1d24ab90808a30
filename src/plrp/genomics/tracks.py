"""Relevance along the genome, for browsers and command-line tools: bedGraph and bigWig; and HDF5 for TF-MoDISco.

A base in several intervals has several values. `overlap` says which one is written: their `"mean"`, their `"sum"`, or
the `"strongest"`, the one farthest from 0.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from plrp.errors import UsageError, not_installed
from plrp.files import new_file

from .export import check_modisco, npz_rows, read_relevance
from .sequences import Genome, Interval, tab_line

Overlap: TypeAlias = Literal["mean", "sum", "strongest"]


class Track(NamedTuple):
    """Runs of equal, non-zero values on one chromosome, in order: 0-based `start`, `end` (half-open) and `value`."""

    chrom: str
    start: npt.NDArray[np.int64]
    end: npt.NDArray[np.int64]
    value: npt.NDArray[np.float64]


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
        """Join the values of an interval to those that its bases have."""
        if self.overlap == "strongest":
            self.total[bases] = np.where(np.abs(values) >= np.abs(self.total[bases]), values, self.total[bases])
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
        yield Track(chrom, place[first][shown], place[last][shown] + 1, value[first][shown])


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
    try:
        import pyBigWig
    except ImportError:
        raise not_installed("bigWig needs pyBigWig", "bigwig") from None
    tracks = list(tracks)
    for track in tracks:
        if track.chrom not in lengths:
            raise UsageError(f"The genome has no chromosome {track.chrom}: give the one that the intervals refer to.")
        if len(track.end) and track.end[-1] > lengths[track.chrom]:
            raise UsageError(f"{track.chrom} has {lengths[track.chrom]} bases, the relevance reaches {track.end[-1]}.")
    with new_file(path) as part:
        file = pyBigWig.open(str(part), "w")
        try:
            file.addHeader([(track.chrom, lengths[track.chrom]) for track in tracks] or list(lengths.items())[:1])
            for chrom, start, end, value in tracks:
                if len(start):
                    file.addEntries([chrom] * len(start), start.tolist(), ends=end.tolist(), values=value.tolist())
        finally:
            file.close()


def write_modisco_h5(path: str | Path, onehot: npt.NDArray[Any], relevance: npt.NDArray[Any]) -> None:
    """Write the input of TF-MoDISco's `-i`: `raw/seq` and `shap/seq`, (sequence, 4, position), as ChromBPNet does.

    `projected_shap/seq` has the relevance of the present letters.
    """
    check_modisco(onehot, relevance)
    pieces = ((onehot[k : k + ROWS], relevance[k : k + ROWS]) for k in range(0, len(onehot), ROWS))
    _write_h5(path, onehot.shape, pieces)


ROWS = 1024
"""Sequences that are held in memory at a time."""


def _write_h5(
    path: str | Path, shape: tuple[int, ...], pieces: Iterable[tuple[npt.NDArray[Any], npt.NDArray[Any]]]
) -> None:
    """Write one-hot sequences and their relevance, (sequence, 4, position) in all, piece by piece."""
    try:
        import h5py
    except ImportError:
        raise not_installed("HDF5 needs h5py", "experiments") from None
    with new_file(path) as part, h5py.File(part, "w") as file:
        chunk = (max(1, min(shape[0], 64)), *shape[1:])
        kinds = {"raw/seq": np.int8, "shap/seq": np.float32, "projected_shap/seq": np.float32}
        arrays = [file.create_dataset(n, shape, kind, chunks=chunk, compression="gzip") for n, kind in kinds.items()]
        begin = 0
        for letters, scores in pieces:
            rows = slice(begin, begin := begin + len(letters))
            for array, values in zip(arrays, (letters, scores, scores * letters), strict=True):
                array[rows] = values


# -- files of a run


def run_tracks(folder: str | Path, overlap: Overlap) -> list[Track]:
    """The relevance of a folder that `explain_file` wrote, along the genome."""
    intervals: list[Interval] = []
    per_base: list[npt.NDArray[np.float32]] = []
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
