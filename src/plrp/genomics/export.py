"""Files for other tools: TF-MoDISco, genome browsers, data frames."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby, islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from plrp.errors import UsageError, not_installed
from plrp.files import new_file

from .seqlets import Match, Seqlets
from .sequences import Interval, Sequences, on_genome, tab_line


def write_npz(path: str | Path, **arrays: Any) -> None:
    """Write an NPZ file, whole or not at all; the same arrays give the same bytes, and memory maps are not loaded."""
    with new_file(path) as part, part.open("wb") as stream:
        np.savez_compressed(stream, **arrays)


def npz_bytes(**arrays: Any) -> bytes:
    """The content of an NPZ file."""
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


@contextmanager
def npz_rows(
    path: str | Path, count: int, name: str = "arr_0"
) -> Iterator[tuple[tuple[int, ...], Iterator[npt.NDArray[Any]]]]:
    """The shape of an array in an NPZ file, and an iterator over its rows that reads `count` of them at a time."""
    with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as stream:
        major = np.lib.format.read_magic(stream)[0]
        read = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
        shape, by_column, kind = read(stream)
        if by_column or kind.hasobject or not shape:
            raise ValueError(f"{path}: {name} is not an array of numbers, row by row.")

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
    try:
        import pyarrow as pa
    except ImportError:
        raise not_installed("Parquet tables need pyarrow", "genomics") from None
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

    with new_file(path) as temporary:
        writer = None
        try:
            for sequences, per_base in parts:
                table = base_table(sequences, per_base)
                writer = writer or pq.ParquetWriter(temporary, table.schema)
                writer.write_table(table)
        finally:
            if writer is not None:
                writer.close()


def open_relevance(folder: str | Path) -> Any:
    """The table of relevance of a folder that `explain_file` wrote, a `pyarrow.parquet.ParquetFile`."""
    try:
        import pyarrow.parquet as pq
    except ImportError:
        raise not_installed("Reading relevance needs pyarrow", "genomics") from None
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
) -> Iterator[tuple[Sequences, npt.NDArray[np.float32]]]:
    """The sequences of a folder that `explain_file` wrote and their relevance per base, (sequence, position).

    They come in batches of one length, at most `batch` sequences each; `count`: only the first sequences.
    """
    rows = islice(_sequence_rows(open_relevance(folder)), count)
    for _, same_length in groupby(rows, key=lambda row: len(row[1])):
        while some := list(islice(same_length, batch)):
            names, letters, relevance, intervals = map(list, zip(*some, strict=True))
            places = None if intervals[0] is None else intervals
            yield Sequences(names, letters, str(folder), intervals=places), np.stack(relevance)


def _sequence_rows(file: Any) -> Iterator[tuple[str, str, npt.NDArray[np.float32], Interval | None]]:
    """Name, letters, relevance and place of each sequence; the rows of a sequence begin where `position` is 0."""
    located = "coordinate" in file.schema_arrow.names
    columns = ["name", "position", "base", "relevance", *(["chrom", "coordinate"] if located else [])]
    head: list[str] = []
    pieces: list[tuple[str, npt.NDArray[np.float32], npt.NDArray[np.int64]]] = []

    def finished() -> tuple[str, str, npt.NDArray[np.float32], Interval | None]:
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
