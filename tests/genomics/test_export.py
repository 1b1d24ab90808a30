"""What other tools read: checked by reading it back the way they do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from plrp.files import new_file, new_folder
from plrp.genomics import (
    Interval,
    Seqlets,
    Sequences,
    encode,
    jaspar,
    save_modisco,
    simulate,
    write_bedgraph,
    write_parquet,
    write_seqlets,
)
from plrp.genomics.export import npz_rows, write_npz, write_npz_rows
from plrp.genomics.seqlets import Match

RNG = np.random.default_rng(0)


def test_the_npz_pair_has_what_tf_modisco_loads(tmp_path: Path) -> None:
    onehot = encode(["ACGT" * 5, "NNNN" * 5])
    relevance = RNG.normal(size=onehot.shape).astype(np.float32)
    paths = save_modisco(tmp_path, onehot, relevance)
    first = [path.read_bytes() for path in paths]
    assert np.array_equal(np.load(paths[0])["arr_0"], onehot)
    assert np.array_equal(np.load(paths[1])["arr_0"], relevance)
    save_modisco(tmp_path, onehot, relevance)
    assert [path.read_bytes() for path in paths] == first  # no time stamps
    with pytest.raises(ValueError, match="of one shape"):
        save_modisco(tmp_path, onehot, relevance[:1])


def seqlets(*rows: tuple[int, int, int, float]) -> Seqlets:
    columns = list(zip(*rows, strict=True))
    return Seqlets(*(np.array(column) for column in columns))


def test_seqlets_as_bed_of_the_sequences(tmp_path: Path) -> None:
    sequences = Sequences(["b", "a"], ["A" * 30, "C" * 30])
    match = Match(jaspar("CTCF"), 1.5e-7, 1e-4, 0, 10, "-")
    write_seqlets(tmp_path / "s.bed", seqlets((0, 5, 10, 2.0), (1, 0, 8, -1.0)), sequences, [match, match])
    rows = [line.split("\t") for line in (tmp_path / "s.bed").read_text().splitlines()]
    assert rows == [
        ["a", "0", "8", "CTCF", "500", "-", "-1", "1.5e-07", "a"],
        ["b", "5", "10", "CTCF", "1000", "-", "2", "1.5e-07", "b"],
    ]


def test_seqlets_on_the_genome_turn_back_on_the_minus_strand(tmp_path: Path) -> None:
    intervals = [Interval("chr1", 100, 130, strand="+"), Interval("chr1", 200, 230, strand="-")]
    sequences = Sequences(["x", "y"], ["A" * 30, "C" * 30], intervals=intervals)
    match = Match(jaspar("CTCF"), 1e-3, 1, 0, 10, "+")
    write_seqlets(tmp_path / "s.bed", seqlets((0, 5, 10, 1.0), (1, 5, 10, 1.0)), sequences, [match, match])
    rows = [line.split("\t")[:6] for line in (tmp_path / "s.bed").read_text().splitlines()]
    assert rows == [["chr1", "105", "110", "CTCF", "1000", "+"], ["chr1", "220", "225", "CTCF", "1000", "-"]]


@pytest.mark.parametrize("overlap", ["mean", "sum", "strongest"])
def test_bedgraph_restated_base_by_base(tmp_path: Path, overlap: str) -> None:
    intervals = [Interval("chr2", 10, 20), Interval("chr2", 15, 25, strand="-"), Interval("chr1", 0, 5)]
    values = [np.round(RNG.normal(size=i.end - i.start), 3) * (RNG.random(i.end - i.start) > 0.3) for i in intervals]
    write_bedgraph(tmp_path / "r.bedgraph", intervals, values, overlap=overlap)
    sums: dict[tuple[str, int], list[float]] = {}
    for interval, array in zip(intervals, values, strict=True):
        for k, value in enumerate(array):
            place = interval.end - 1 - k if interval.strand == "-" else interval.start + k
            sums.setdefault((interval.chrom, place), []).append(value)
    join = {"mean": np.mean, "sum": np.sum, "strongest": lambda v: max(v, key=abs)}[overlap]
    expected = {key: join(v) for key, v in sums.items() if join(v) != 0}
    lines = (tmp_path / "r.bedgraph").read_text().splitlines()
    found: dict[tuple[str, int], float] = {}
    last = ("", 0)
    for line in lines:
        chrom, start, end, value = line.split("\t")
        assert (chrom, int(start)) >= last  # sorted, no overlap: what bedGraphToBigWig asks for
        last = (chrom, int(end))
        for place in range(int(start), int(end)):
            found[chrom, place] = float(value)
    assert found.keys() == expected.keys()
    assert all(found[key] == pytest.approx(expected[key], rel=1e-5) for key in expected)
    with pytest.raises(ValueError, match="has 5 bases, its relevance 4"):
        write_bedgraph(tmp_path / "bad.bedgraph", intervals[2:], [np.ones(4)])
    assert not (tmp_path / "bad.bedgraph").exists()


def test_parquet_is_read_by_pandas_and_polars(tmp_path: Path) -> None:
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    parts = [
        (Sequences(["x"], ["ACG"], intervals=[Interval("chr1", 7, 10, strand="-")]), [np.array([1.0, 2.0, 3.0])]),
        (Sequences(["y"], ["TT"], intervals=[Interval("chr2", 0, 2)]), [np.array([0.0, -1.0])]),
    ]
    write_parquet(tmp_path / "r.parquet", parts)
    frame = pandas.read_parquet(tmp_path / "r.parquet")
    assert frame["name"].tolist() == ["x", "x", "x", "y", "y"]
    assert "".join(frame["base"]) == "ACGTT"
    assert frame["coordinate"].tolist() == [9, 8, 7, 0, 1]
    assert polars.read_parquet(tmp_path / "r.parquet")["relevance"].to_list() == [1, 2, 3, 0, -1]


def test_files_and_folders_appear_whole_or_not_at_all(tmp_path: Path) -> None:
    def fail(context) -> None:
        with context as part:
            if part.is_dir():
                (part / "half").write_text("half")
            else:
                part.write_text("half")
            raise KeyboardInterrupt

    (tmp_path / "old.txt").write_text("old")
    for context in (new_file(tmp_path / "old.txt"), new_file(tmp_path / "new.txt"), new_folder(tmp_path / "folder")):
        with pytest.raises(KeyboardInterrupt):
            fail(context)
    assert [path.name for path in tmp_path.iterdir()] == ["old.txt"]
    assert (tmp_path / "old.txt").read_text() == "old"


@pytest.mark.parametrize("kind", [np.float32, np.int8])
@pytest.mark.parametrize("count", [1, 3, 7])
def test_an_array_written_in_parts_is_the_array(tmp_path: Path, count: int, kind: type[np.generic]) -> None:
    given = np.random.default_rng(0).normal(0, 9, size=(7, 4, 5))
    parts = (given[begin : begin + count] for begin in range(0, 7, count))
    write_npz_rows(tmp_path / "parts.npz", given.shape, kind, parts)
    write_npz(tmp_path / "whole.npz", arr_0=given.astype(kind))
    assert (tmp_path / "parts.npz").read_bytes() == (tmp_path / "whole.npz").read_bytes()


@pytest.mark.parametrize("count", [1, 3, 7, 100])
def test_rows_of_an_archive_are_those_of_the_array(tmp_path: Path, count: int) -> None:
    given = np.random.default_rng(0).normal(size=(7, 4, 5)).astype(np.float32)
    write_npz(tmp_path / "a.npz", arr_0=given)
    with npz_rows(tmp_path / "a.npz", count) as (shape, rows):
        found = list(rows)
    assert shape == given.shape
    assert max(map(len, found)) == min(count, 7)
    np.testing.assert_array_equal(np.concatenate(found), given)
    write_npz(tmp_path / "b.npz", arr_0=np.asfortranarray(given))
    with pytest.raises(ValueError, match="row by row"), npz_rows(tmp_path / "b.npz", count):
        pass


@pytest.mark.slow
def test_tf_modisco_finds_the_planted_motif_in_what_we_export(tmp_path: Path) -> None:
    """TF-MoDISco itself, on the files: hypothetical scores of a trained network lead it to the planted
    motif."""
    modiscolite = pytest.importorskip("modiscolite")
    from plrp.genomics import SequenceCNN, explain_sequences, match_motifs

    data = simulate(2400, motifs=["SPI1", "TAL1::TCF3"], number=(1, 2), length=120, seed=0)
    train, validation, test = data.split(0.6, 0.2, 0.2)
    network = SequenceCNN(16)
    network.fit(train.onehot(), train.labels, validation=(validation.onehot(), validation.labels), epochs=12)
    chosen = test.chosen(np.flatnonzero(test.labels == 0))
    found = explain_sequences(network, chosen.onehot(), target=0, hypothetical=True)
    paths = save_modisco(tmp_path, chosen.onehot(), found.relevance)
    onehot, scores = (np.load(path)["arr_0"].transpose(0, 2, 1).astype("float32") for path in paths)
    positive, _ = modiscolite.tfmodisco.TFMoDISco(
        one_hot=onehot, hypothetical_contribs=scores, max_seqlets_per_metacluster=1000, sliding_window_size=15,
        flank_size=5, target_seqlet_fdr=0.1, n_leiden_runs=2,
    )  # fmt: skip
    matrix = np.asarray(positive[0].sequence).T
    matrix = (matrix + 1e-3) / (matrix + 1e-3).sum(0)
    names = [match.motif.name.upper() for match in match_motifs([matrix])[0]]
    assert "SPI1" in names
