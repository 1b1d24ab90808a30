"""Simulated sequences: what was planted is there, nothing overlaps, tasks mean what they say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plrp.genomics import SequenceError, jaspar, load_simulated, motif, read_simdata, reverse_complement, simulate
from plrp.genomics.simulation import TASKS

A = motif([[1, 0, 0, 1], [0, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]], "A")  # AGCA
B = motif([[0, 0, 0], [0, 0, 0], [0, 0, 1], [1, 1, 0]], "B")  # TTG


@settings(max_examples=40, deadline=None)
@given(
    task=st.sampled_from(TASKS),
    length=st.integers(40, 80),
    number=st.sampled_from([1, 2, (1, 3)]),
    spacing=st.sampled_from([None, 0, 3, (1, 5)]),
    orientation=st.sampled_from(["forward", "reverse", "both"]),
    seed=st.integers(0, 5),
)
def test_everything_planted_is_there(task, length, number, spacing, orientation, seed) -> None:
    data = simulate(
        30, motifs=[A, B], task=task, length=length, number=number, spacing=spacing, orientation=orientation, seed=seed
    )
    low, high = (number, number) if isinstance(number, int) else number
    for row in range(len(data)):
        sites = data.plantings.of(row)
        expected = np.zeros(length, bool)
        last = 0
        for start, end, kind, strand in sites:
            assert start >= last  # in order, no overlap
            last = end
            site = data.letters[row][start:end]
            consensus = data.motifs[kind].consensus
            assert site == (consensus if strand > 0 else reverse_complement(consensus))
            assert strand == {"forward": 1, "reverse": -1}.get(orientation, strand)
            expected[start:end] = True
        assert last <= length
        assert np.array_equal(expected, data.mask[row])

        copies = [sum(kind == k for _, _, kind, _ in sites) for k in range(2)]
        assert all(n == 0 or low <= n <= high for n in copies)
        a, b = (n > 0 for n in copies)
        meaning = {"presence": a, "and": a and b, "or": a or b, "xor": a != b, "classes": b}[task]
        assert data.labels[row] == meaning
        if spacing is not None and a and b:
            assert copies[0] == copies[1]
            least, most = (spacing, spacing) if isinstance(spacing, int) else spacing
            ends = [end for _, end, kind, _ in sites if kind == 0]
            starts = [start for start, _, kind, _ in sites if kind == 1]
            assert all(least <= s - e <= most for e, s in zip(ends, starts, strict=True))


def test_placements_are_uniform_over_all_that_fit() -> None:
    """Two sites in a short sequence: every placement without overlap is equally likely."""
    data = simulate(60000, motifs=[A, B], task="and", length=10, seed=3)
    both = np.flatnonzero(data.labels == 1)
    starts = np.full((len(data), 2), -1)
    starts[data.plantings.sequence, data.plantings.motif] = data.plantings.start
    seen, counts = np.unique(starts[both], axis=0, return_counts=True)
    possible = [(a, b) for a in range(7) for b in range(8) if a + 4 <= b or b + 3 <= a]
    assert {tuple(pair) for pair in seen.tolist()} == set(possible)
    expected = len(both) / len(possible)
    assert np.abs(counts - expected).max() < 6 * np.sqrt(expected)


def test_background_frequencies_and_balance() -> None:
    data = simulate(4000, motifs=[A], task="presence", length=100, background=(0.1, 0.2, 0.3, 0.4), seed=1)
    letters = np.array([list(s) for s in data.letters])[data.labels == 0]
    assert [float((letters == c).mean()) for c in "ACGT"] == pytest.approx([0.1, 0.2, 0.3, 0.4], abs=0.01)
    assert data.labels.mean() == 0.5


def test_same_seed_same_data_and_other_seed_other_data() -> None:
    one, two, three = (simulate(50, motifs=[A, B], task="xor", seed=s) for s in (4, 4, 5))
    assert one.letters == two.letters
    assert one.letters != three.letters
    assert np.array_equal(one.labels, two.labels)


def test_classes_with_an_empty_one() -> None:
    data = simulate(90, motifs=[A, B], task="classes", empty_class=True)
    assert data.class_names == ["A", "B", "none"]
    assert np.bincount(data.labels).tolist() == [30, 30, 30]
    assert not data.mask[data.labels == 2].any()


def test_a_hundred_thousand_sequences_are_drawn_without_a_loop_per_base() -> None:
    """No Python frame runs once per sequence or base while placing and drawing: counted, not timed."""
    import sys

    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event == "call" and "plrp" in frame.f_code.co_filename
        return None

    sys.setprofile(count)
    try:
        data = simulate(100_000, motifs=[A, B], task="and", length=60, number=(1, 2))
    finally:
        sys.setprofile(None)
    assert len(data) == 100_000
    assert calls < 1000


def test_save_and_load(tmp_path: Path) -> None:
    data = simulate(40, motifs=["CTCF", "SPI1"], task="or", number=(1, 2), orientation="both", spacing=(2, 9))
    again = load_simulated(data.save(tmp_path / "sim"))
    assert (again.names, again.letters, again.class_names) == (data.names, data.letters, data.class_names)
    assert np.array_equal(again.labels, data.labels)
    assert np.array_equal(again.mask, data.mask)
    assert again.settings == data.settings
    for row in range(len(data)):
        assert again.plantings.of(row) == data.plantings.of(row)
    with pytest.raises(FileExistsError, match="is there already and not empty"):
        data.save(tmp_path / "sim")
    assert [p.name for p in tmp_path.iterdir()] == ["sim"]  # nothing half-written beside it


@pytest.mark.parametrize("content", [b"", b"\xff\x82", b"[]", b"{}", b'{"class_names": ["a"'])
def test_a_damaged_description_is_named(tmp_path: Path, content: bytes) -> None:
    simulate(4, motifs=["CTCF"]).save(tmp_path / "sim")
    (tmp_path / "sim" / "simulation.json").write_bytes(content)
    with pytest.raises(SequenceError, match=r"simulation\.json is damaged \(.*\): simulate the data again\.$"):
        load_simulated(tmp_path / "sim")


def test_parts_keep_their_own_sites() -> None:
    data = simulate(50, motifs=[A, B], task="or", number=(1, 3))
    parts = data.split(0.5, 0.3, seed=2)
    assert [len(part) for part in parts] == [25, 15]
    assert not set(parts[0].names) & set(parts[1].names)
    for part in parts:
        for row, name in enumerate(part.names):
            assert part.plantings.of(row) == data.plantings.of(data.names.index(name))


def test_what_cannot_be_simulated_is_said() -> None:
    with pytest.raises(ValueError, match="need 14 bases in a sequence of 12"):
        simulate(10, motifs=[A, B], task="and", number=2, length=12)
    with pytest.raises(ValueError, match="needs 2 motifs, got 1"):
        simulate(10, motifs=[A], task="xor")
    with pytest.raises(ValueError, match="Unknown task 'nand'"):
        simulate(10, motifs=[A, B], task="nand")
    with pytest.raises(ValueError, match="four frequencies"):
        simulate(10, motifs=[A], task="presence", background=(1, 1, 1, 1))
    with pytest.raises(ValueError, match="one copy or more"):
        simulate(10, motifs=[A], task="presence", number=0)
    with pytest.raises(ValueError, match="least before most"):
        simulate(10, motifs=[A, B], task="and", spacing=(5, 1))


def test_jaspar_names_are_looked_up() -> None:
    data = simulate(4, motifs=["GATA1", "TAL1::TCF3"])
    assert [m.id for m in data.motifs] == [jaspar("GATA1").id, jaspar("TAL1::TCF3").id]


def test_simdata_restated(tmp_path: Path) -> None:
    file = tmp_path / "x.simdata"
    file.write_text(
        "seqName\tsequence\tembeddings\ns1\tACGTACGTAC\tpos-2_GATA_disc1-GTAC,pos-7_TAL1_known1-TAC\ns2\tTTTTTTTTTT\t\n"
    )
    data = read_simdata(file)
    assert data.class_names == ["none", "GATA", "TAL1", "GATA and TAL1"]
    assert data.labels.tolist() == [3, 0]
    assert data.plantings.of(0) == [(2, 6, 0, 1), (7, 10, 1, 1)]
    file.write_text("h\ns1\tACGT\tpos-1_X-GGG\n")
    with pytest.raises(SequenceError, match=r"x\.simdata, line 2: GGG is not at base 1 of 's1'"):
        read_simdata(file)
    file.write_text("h\ns1\tACGT\tnonsense\n")
    with pytest.raises(SequenceError, match=r"line 2: cannot read the embedding 'nonsense'"):
        read_simdata(file)


def test_tal_gata_is_read_whole(data: Path) -> None:
    found = read_simdata(data / "tal_gata")
    assert len(found) == 8000
    assert np.bincount(found.labels).tolist() == [2000] * 4
    rows = [line.split("\t") for line in (data / "tal_gata" / "labels.txt").read_text().splitlines()[1:]]
    said = {name.removeprefix("allNs_"): int(gata) + 2 * int(tal) for name, gata, tal, _ in rows}
    assert {name: int(label) for name, label in zip(found.names, found.labels, strict=True)} == said
