"""Letters in, letters out, and every way a sequence file can be wrong."""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plrp.genomics import (
    Genome,
    SequenceError,
    decode,
    encode,
    from_onehot,
    read_bed,
    read_fasta,
    read_intervals,
    read_npz,
    reverse_complement,
    write_fasta,
)
from plrp.genomics.sequences import IUPAC

dna = st.text("ACGTN", min_size=1, max_size=40)
iupac = st.text("".join(IUPAC) + "".join(IUPAC).lower(), min_size=1, max_size=40)


@settings(deadline=None)
@given(dna)
def test_decode_inverts_encode(letters: str) -> None:
    assert decode(encode(letters)) == letters


@settings(deadline=None)
@given(iupac)
def test_encode_restated_letter_by_letter(letters: str) -> None:
    shared, certain = encode(letters, "share"), encode(letters, "zero")
    for position, code in enumerate(letters):
        stands_for = IUPAC[code.upper()]
        for row, letter in enumerate("ACGT"):
            assert shared[row, position] == np.float32((letter in stands_for) / len(stands_for))
            assert certain[row, position] == (stands_for == letter)


@settings(deadline=None)
@given(iupac)
def test_reverse_complement_of_letters_is_that_of_arrays_and_undoes_itself(letters: str) -> None:
    twice = reverse_complement(reverse_complement(letters))
    assert twice.upper() == letters.upper().replace("U", "T")
    flipped = reverse_complement(encode(letters, "share"))
    assert np.array_equal(encode(reverse_complement(letters), "share"), flipped)


def test_many_sequences_encode_like_each_one() -> None:
    sequences = ["ACGTNACG", "ttttacgn", "GGGGGGGG"]
    assert np.array_equal(encode(sequences), np.stack([encode(s) for s in sequences]))


def test_ambiguous_codes_are_refused_on_request() -> None:
    with pytest.raises(SequenceError, match=r"sequence 1: 'R' at base 3 is not one of A, C, G, T"):
        encode(["ACGT", "ACRT"], "error")


def test_fasta_round_trip(tmp_path: Path) -> None:
    for name in ("a.fa", "a.fa.gz"):
        write_fasta(tmp_path / name, ["one", "two"], ["ACGT", "NNAC"])
        found = read_fasta(tmp_path / name)
        assert found.names == ["one", "two"]
        assert found.letters == ["ACGT", "NNAC"]
    assert (tmp_path / "a.fa.gz").read_bytes()[:2] == b"\x1f\x8b"


def test_windows_lines_wrapped_lines_lower_case_and_comments_of_headers(tmp_path: Path) -> None:
    file = tmp_path / "w.fa"
    file.write_bytes(b">one a description\r\nacgu\r\nNNN\r\n\r\n>two\r\nRYK\r\n")
    found = read_fasta(file)
    assert (found.names, found.letters, found.lines) == (["one", "two"], ["ACGTNNN", "RYK"], [1, 5])


BAD = {
    "empty": (b"", r"line 1: no sequences in this file"),
    "blank": (b"\n\n", r"line 1: no sequences"),
    "duplicate": (b">a\nACGT\n>b\nAC\n>a\nGG\n", r"line 5: the name 'a' was used before, in line 1"),
    "protein": (b">dna\nACGT\n>sp|P1\nMKVLAAGIVE\n", r"line 4: 'L' in record 'sp\|P1' is not a nucleotide.*protein"),
    "an X": (b">a\nACGTX\n", r"line 2: 'X' in record 'a' is not a nucleotide; write N for an unknown base"),
    "gaps": (b">a\nAC-GT\n", r"line 2: '-' in record 'a'.*gaps"),
    "no header": (b"ACGT\n", r"line 1: text before the first '>' header"),
    "no name": (b">\nACGT\n", r"line 1: this header has no name"),
    "no bases": (b">a\n>b\nACGT\n", r"line 1: record 'a' has no sequence"),
    "no bases at the end": (b">a\nAC\n>b\n", r"line 3: record 'b' has no sequence"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_fasta_names_file_and_line(tmp_path: Path, case: str) -> None:
    content, message = BAD[case]
    file = tmp_path / "bad.fa"
    file.write_bytes(content)
    with pytest.raises(SequenceError, match=rf"bad\.fa, {message}"):
        read_fasta(file)


def test_truncated_gzip_names_the_line_it_breaks_at(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    records = "".join(f">s{i}\n{''.join(rng.choice(list('ACGT'), 80))}\n" for i in range(2000))
    whole = gzip.compress(records.encode())
    (tmp_path / "cut.fa.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SequenceError, match=r"cut\.fa\.gz, line \d\d+: the gzip file ends or breaks here"):
        read_fasta(tmp_path / "cut.fa.gz")


@pytest.mark.parametrize("read", [read_fasta, Genome])
def test_a_folder_for_a_fasta_file_is_refused_with_the_file_that_could_be_meant(tmp_path: Path, read) -> None:
    (tmp_path / "notes.txt").write_text("dear")
    with pytest.raises(SequenceError, match=r"is a folder, not a FASTA file: name a file; none in it ends like one"):
        read(tmp_path)
    (tmp_path / "sequences.fa.gz").write_bytes(gzip.compress(b">a\nACGT\n"))
    with pytest.raises(SequenceError, match=rf"name a file, such as {tmp_path}/sequences\.fa\.gz\.$"):
        read(tmp_path)


def test_missing_file_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(SequenceError, match=r"none\.fa: cannot be read \(No such file"):
        read_fasta(tmp_path / "none.fa")


@pytest.fixture
def genome(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    chroms = {"chr1": 95, "chr2": 40}
    text = ""
    for name, length in chroms.items():
        letters = "".join(rng.choice(list("ACGTacgtN"), length))
        text += f">{name} assembled\n" + "\n".join(letters[k : k + 10] for k in range(0, length, 10)) + "\n"
    file = tmp_path / "genome.fa"
    file.write_text(text)
    return file


@settings(deadline=None)
@given(st.data())
def test_a_genome_is_read_anywhere_as_if_it_were_in_memory(data: st.DataObject) -> None:
    letters = data.draw(st.text("ACGTN", min_size=1, max_size=60))
    width = data.draw(st.integers(1, 20))
    end_of_line = data.draw(st.sampled_from([b"\n", b"\r\n"]))
    start = data.draw(st.integers(0, len(letters) - 1))
    end = data.draw(st.integers(start + 1, len(letters)))
    with tempfile.TemporaryDirectory() as folder:
        for suffix in ("fa", "fa.gz"):
            lines = [b">x", *(letters[k : k + width].encode() for k in range(0, len(letters), width)), b">y", b"AC"]
            content = end_of_line.join(lines) + end_of_line
            file = Path(folder) / f"g.{suffix}"
            file.write_bytes(gzip.compress(content) if suffix == "fa.gz" else content)
            found = Genome(file)
            assert found.lengths == {"x": len(letters), "y": 2}
            assert found.fetch("x", start, end) == letters[start:end]


def test_intervals_are_cut_out_of_a_genome_by_strand(tmp_path: Path, genome: Path) -> None:
    whole = read_fasta(genome)
    bed = tmp_path / "peaks.bed"
    bed.write_text("#comment\ntrack name=x\nchr1\t5\t15\tpeak\t0\t+\nchr2\t0\t40\nchr1\t20\t30\tother\t.\t-\n")
    found = read_intervals(bed, genome)
    assert found.names == ["peak", "chr2:0-40(+)", "other"]
    assert found.letters[0] == whole.letters[0][5:15]
    assert found.letters[1] == whole.letters[1]
    assert found.letters[2] == reverse_complement(whole.letters[0][20:30])
    assert found.lines == [3, 4, 5]


def test_an_index_beside_the_genome_is_used(genome: Path, tmp_path: Path) -> None:
    scanned = Genome(genome)
    index = genome.with_name("genome.fa.fai")
    index.write_text("".join(f"{n}\t{e[0]}\t{e[1]}\t{e[2]}\t{e[3]}\n" for n, e in scanned._index.items()))
    assert Genome(genome).fetch("chr2", 3, 33) == scanned.fetch("chr2", 3, 33)


def test_intervals_are_recentred(tmp_path: Path, genome: Path) -> None:
    bed = tmp_path / "p.bed"
    bed.write_text("chr1\t40\t50\n")
    found = read_intervals(bed, genome, width=20)
    assert found.lengths.tolist() == [20]
    assert found.intervals is not None
    assert (found.intervals[0].start, found.intervals[0].end) == (35, 55)


BAD_BED = {
    "past the end": (
        "chr1\t0\t9\nchr1\t90\t96\n",
        r"line 2: chr1:90-96 reaches past the chromosome, which has 95 bases",
    ),
    "unknown chromosome": ("chrX\t0\t9\n", r"line 1: chrX:0-9 is not on a chromosome of .*genome\.fa"),
    "not numbers": ("chr1\tfive\t9\n", r"line 1: expected 'chrom start end'"),
    "too few columns": ("chr1\t5\n", r"line 1: expected 'chrom start end'"),
    "backwards": ("chr1\t9\t5\n", r"line 1: chr1:9-5 is empty or negative"),
    "strand": ("chr1\t1\t5\tx\t0\t?\n", r"line 1: the strand is '\?'"),
    "empty": ("", r"line 1: no intervals"),
    "twice": ("chr1\t1\t5\nchr1\t1\t5\n", r"line 2: the same interval as in line 1"),
}


@pytest.mark.parametrize("case", BAD_BED)
def test_bad_bed_names_file_and_line(tmp_path: Path, genome: Path, case: str) -> None:
    content, message = BAD_BED[case]
    bed = tmp_path / "bad.bed"
    bed.write_text(content)
    with pytest.raises(SequenceError, match=rf"bad\.bed, {message}"):
        read_intervals(bed, genome)


def test_bed_of_three_to_six_columns(tmp_path: Path) -> None:
    bed = tmp_path / "a.bed"
    bed.write_bytes(b"chr1\t1\t5\r\nchr1\t1\t5\tn\r\nchr1\t1\t5\tn\t7\t-\textra\r\n")
    found = read_bed(bed)
    assert [(i.name, i.score, i.strand) for i in found] == [(".", ".", "+"), ("n", ".", "+"), ("n", "7", "-")]


def test_ragged_genome_lines_are_refused(tmp_path: Path) -> None:
    (tmp_path / "g.fa").write_text(">a\nACGT\nAC\nACGT\n")
    with pytest.raises(SequenceError, match=r"g\.fa, line 4: lines of different lengths"):
        Genome(tmp_path / "g.fa")


@settings(deadline=None, max_examples=300)
@given(st.lists(st.sampled_from([b">a", b">b c", b"ACGT", b"AC", b"ACGTACGT", b"", b" "]), max_size=8), st.data())
def test_a_genome_is_refused_or_read_as_read_fasta_reads_it(lines: list[bytes], data: st.DataObject) -> None:
    """Whatever lines are blank, short, long or end otherwise: no window of a chromosome ever has the wrong bases."""
    ends = data.draw(st.lists(st.sampled_from([b"\n", b"\r\n"]), min_size=len(lines), max_size=len(lines)))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "g.fa"
        file.write_bytes(b"".join(line + end for line, end in zip(lines, ends, strict=True)))
        try:
            genome = Genome(file)
            windows = {(name, k): genome.fetch(name, k, k + 1) for name, n in genome.lengths.items() for k in range(n)}
        except SequenceError:
            return
        records = read_fasta(file)
        assert genome.lengths == dict(zip(records.names, records.lengths.tolist(), strict=True))
        for name, bases in zip(records.names, records.letters, strict=True):
            assert "".join(windows[name, k] for k in range(len(bases))) == bases


def test_why_pyfaidx_does_not_read_genomes(tmp_path: Path) -> None:
    """It takes a last line that is longer than the others, and reads past it; docs/decisions.md names this reason."""
    pyfaidx = pytest.importorskip("pyfaidx")
    file = tmp_path / "g.fa"
    file.write_text(">a\nACGT\nAAAACCCCGGGG\n>b\nTTTT\n")
    assert read_fasta(file).letters[0][12:16] == "GGGG"
    assert pyfaidx.Faidx(str(file), as_raw=True).fetch("a", 13, 16) == "GGG>b"
    file.with_name("g.fa.fai").unlink()
    with pytest.raises(SequenceError, match=r"g\.fa, line 3: lines of different lengths within 'a'"):
        Genome(file)


@pytest.mark.parametrize("line", ["a\t4\t3\n", "a\t4\t3\t0\t0\n", "a\tfour\t3\t4\t5\n"])
def test_a_damaged_index_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "g.fa").write_text(">a\nACGT\n")
    (tmp_path / "g.fa.fai").write_text(line)
    with pytest.raises(SequenceError, match=r"g\.fa\.fai, line 1: not an index of a FASTA file; delete it"):
        Genome(tmp_path / "g.fa")


def test_npz_with_either_axis_order(tmp_path: Path) -> None:
    onehot = encode(["ACGTNA", "TTTTTT"])
    np.savez(tmp_path / "a.npz", onehot=onehot, names=np.array(["x", "y"]))
    np.savez(tmp_path / "b.npz", onehot.transpose(0, 2, 1))
    np.save(tmp_path / "c.npy", onehot)
    assert read_npz(tmp_path / "a.npz").names == ["x", "y"]
    for name in ("a.npz", "b.npz", "c.npy"):
        assert read_npz(tmp_path / name).letters == ["ACGTNA", "TTTTTT"]


def test_arrays_that_are_not_onehot_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SequenceError, match=r"axes \(sequence, 4, position\); this one is \(2, 3, 5\)"):
        from_onehot(np.zeros((2, 3, 5)))
    with pytest.raises(SequenceError, match="not one-hot"):
        from_onehot(np.full((1, 4, 5), 0.25))
    (tmp_path / "x.npz").write_bytes(b"PK nonsense")
    with pytest.raises(SequenceError, match=r"x\.npz: not a readable NPZ"):
        read_npz(tmp_path / "x.npz")
    np.savez(tmp_path / "y.npz", onehot=np.zeros((0, 4, 5)))
    with pytest.raises(SequenceError, match="no array 'z'"):
        read_npz(tmp_path / "y.npz", key="z")


def test_sequences_of_different_lengths_name_the_odd_one(tmp_path: Path) -> None:
    (tmp_path / "a.fa").write_text(">a\nACGT\n>b\nACG\n")
    with pytest.raises(SequenceError, match=r"a\.fa, line 3, record 'b' has 3 bases, the first sequence has 4"):
        read_fasta(tmp_path / "a.fa").onehot()
